"""Questions about machines and plans: what would help, what was measured, which numbers fit.

- ``whatif``, ``subsets``: plans on parts of the machines and on more;
- ``profiling``: the ops of a model as plans see them, to be measured;
- ``runs``, ``calibrate``: measured plans, and numbers of devices and links fitted to them.
"""
