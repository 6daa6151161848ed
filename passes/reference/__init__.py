"""Reference: placement problems as papers state them, and exact searches for them. ``dnnc solve`` offers these.

The rooms import the passes, and no pass imports them: what compiles a model by default needs none of this.

- ``reference_pass``: the pass ``reference``, for a model or a workload: ``partition`` with the searches below.
- ``several_stages``, ``pieces``: plans in which a device runs several stages.
- ``from_workload``: from the ops of a workload to the problems of the papers.
- ``assignment``: any assignment of ops to devices, contiguous or not, by annealing and mixed-integer programmes (Tarnawski et
  al., "Efficient Algorithms for Device Placement of DNN Graph Operators", NeurIPS 2020; its contiguous splits are those of the
  pass ``partition``).
- ``latency``: one sample alone; accelerators run contiguous pieces one after another, CPUs run single nodes (the same paper).
- ``training``: explicit forward and backward nodes; a colour is on one device (the same paper).
- ``pipedream``: stages replicated over machines (Narayanan et al., "PipeDream", SOSP 2019).
- ``baselines``: what a person or a simpler tool would do, judged by the same definitions.
"""
