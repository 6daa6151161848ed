"""Profiled workloads of the literature, split over devices: ``dnnc solve``, ``verify-plan`` and ``simulate`` of a split.

- ``profiled``, ``methods``, ``solve``: read a workload, solve it, and give a split with its bound;
- ``report``, ``placement_result``: show the split, and write it in the format of the reference;
- ``verify_plan``: verifies a split with code that shares nothing with the solver;
- ``scheduled``: turns a build or a split into the schedule that ``dnnc simulate`` follows;
- ``faults``: the kinds of errors.
"""
