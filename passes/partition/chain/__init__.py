"""A function in stages on any blocks of devices, meshes among them: cuts, devices and layouts chosen together, with a bound.

A *unit* is what lies between two neighbouring places where the function may be cut; a stage is a *run* of consecutive units on
a block of devices that the stages before it have not taken. ``stages`` is the search. It asks

- ``units``: the places to cut, and which runs are alike; ``submeshes``: the blocks; ``taking``: the order in which they
  are taken;
- ``bounding``: what each run costs at least on each block, from ``least`` (ops by themselves), ``crossings`` (transfers),
  ``chains`` (tables of units) and ``workspace`` (bytes beside weights);
- ``pipeline``: the best sequence of stages by these bounds; ``kernels``: its compiled loops;
- ``solved``: the exact costs of the stages of a sequence, one after the other; ``borders``: the layout problem of one stage.
"""
