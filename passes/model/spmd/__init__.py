"""SPMD: one program on all members of a mesh. The one model of what a sharded op is and costs, asked by the search of
``shard``, by ``replay``, by ``lower`` and by reports.

- ``mesh``: named axes over devices, each as fast as its slowest link; seconds of collectives;
- ``layouts``: the layouts of a type, and the cheapest chain of collectives between any two;
- ``reshard``: the same chains step by step, found by another algorithm;
- ``bill``, ``price``, ``staged``: what a sharded function costs under given decisions; a stage with its mesh, decisions and
  bill;
- ``footprint``: what a stage needs of a device, activations and buffers too;
- ``cross_mesh``: what passes between stages that are meshes, and what it costs;
- ``notation``, ``decided``: placements as texts; what a module says of its decisions, read and checked;
- ``plan``: a sharded plan written into its module, and read again stage by stage and layer by layer;
- ``program``: what one device runs, read from its ``program`` symbol;
- ``count``: what the collectives of a lowered stage cost, counted from its ops;
- ``member_work``, ``duplication``: what members spend on their parts of an op; which ops each member runs whole;
- ``synced``, ``factors``: how members agree on gradients, and gradients that are products of smaller factors;
- ``reshard_ops``, ``undecided``: changes of layout as ops; a module without what was decided about it.
"""

from passes.model.spmd.count import Counted, count
from passes.model.spmd.program import LocalProgram, Part, local_programs

__all__ = ["Counted", "LocalProgram", "Part", "count", "local_programs"]
