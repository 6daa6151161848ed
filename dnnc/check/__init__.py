"""``dnnc check``: what the stages of a build compute against the unsplit model.

- ``check``, ``verdict``: the comparison, and what it proves; ``unsplit``, ``reference``: the model to compare with;
- ``compare``, ``noise``, ``perturb``, ``dataflow``: how far values may be apart, and how far rounding moves them;
- ``lockstep``, ``locate``: all members of a mesh in one process; which of them goes wrong first.
"""
