"""``dnnc check`` compares what the stages of a build compute with what the unsplit model computes.

- ``check``, ``verdict``: the comparison, and what it proves; ``unsplit``, ``reference``: the model to compare with;
- ``compare``, ``noise``, ``perturb``, ``dataflow``: which differences pass, and how far rounding alone moves values;
- ``lockstep``, ``locate``: run all members of a mesh in one process, and find the member that goes wrong first;
- ``tokens``: the check of a language model whose caches stay on its devices;
- ``proof``: shows it for all inputs, without running anything;
- ``faults``: the kinds of errors.
"""
