"""Studies of machines and plans: fewer or more devices, profiles of operators, numbers of machines fitted to measurements.

- ``whatif``, ``subsets``: plans on subsets of the devices, and with devices added;
- ``profiling``: the operators of a model that ``dnnc profile`` measures;
- ``runs``, ``calibrate``: files of measured runs, and numbers of devices and links fitted to them;
- ``faults``: the kinds of errors.
"""
