"""A function in stages, each on a mesh of its own: cuts, devices and shardings chosen together, with a bound.

A *unit* is what lies between two neighbouring places where a function may be cut (``units``); a stage is a *run* of units on a
block of devices (``submeshes``) that the stages before it have not taken (``taking``). ``stages`` is the search: ``bounding``
holds what each run costs at least on each block, from ``crossings`` (transfers), ``chains`` (tables of units) and ``workspace``
(bytes beside weights); ``pipeline`` finds the best sequence of stages by these, ``solved`` solves the stages of a sequence one
after the other. ``borders`` makes the sharding problem of one stage; ``kernels``: loops.
"""
