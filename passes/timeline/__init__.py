"""A plan as events in time: which device does what when, and what it holds meanwhile.

- ``workload``: the seconds of stages and channels that a placed plan says;
- ``orders``: the order of work per device for a stream; ``families``: the same for a training step;
- ``simulate``: start and end of each action of such orders; ``arrays``, ``kernels``: its compiled loop;
- ``memory``: bytes that each device holds while the actions run.
"""
