"""The planner: a model into stages on devices, replicas and meshes, with a proof of how good the plan is.

An *ideal* is a set of nodes that has all nodes before each of its own; the stages of a contiguous plan are the differences of
consecutive ideals of a chain, and all ideals of a graph are its *lattice*. A stage on a mesh has a *layout* for each of its
values. The rooms, from the top down:

- ``partition_pass``: the pass ``partition``, which asks up to three searches; ``options``: what they read; ``best``: the best
  plan of several searches.
- ``bridge``: the search on single devices and replicas, from IR to a problem and from a solution to a plan.
- ``on_meshes``: the searches on meshes; ``alternatives``: what other plans on the meshes of a plan would cost.
- ``lattice``: stages between any two ideals, on single devices and their replicas.
- ``chain``: stages between places where the function may be cut, on any form of devices.
- ``layouts``: a layout for every value of a function on one mesh.
- ``replay``: plans that a person or a script stated, in the place of a search.
- ``place``: the pass that gives stages concrete devices.

The problem of stages as numbers, its exact reductions and simple bounds are ``passes.stages``; a mesh, what its members do and
what that costs ``passes.meshes``.
"""
