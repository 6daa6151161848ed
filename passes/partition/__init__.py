"""The planner: a model into stages on devices, replicas and meshes, with a proof of how good the plan is.

An *ideal* is a set of nodes that has all nodes before each of its own; the stages of a contiguous plan are the differences of
consecutive ideals of a chain, and all ideals of a graph are its *lattice*. A stage on a mesh has a *layout* for each of its
values. The rooms, from the top down:

- ``bridge``: the pass ``partition`` (``partition_pass``), from IR to a problem and from a solution to a plan.
- ``shard_pass``: the pass ``shard``; ``alternatives``: what other plans on its meshes would cost.
- ``lattice``: stages between any two ideals, on single devices and their replicas.
- ``chain``: stages between places where the function may be cut, on any form of devices.
- ``layouts``: a layout for every value of a function on one mesh.
- ``objective``: what an objective brings to a search over the lattice, and what a solution is.
- ``replay``: plans that a person or a script stated, in the place of a search.
- ``place``: the pass that gives stages concrete devices.

The problem of stages as numbers, its exact reductions and simple bounds are ``passes.stages``; a mesh, what its members do and
what that costs ``passes.meshes``.
"""
