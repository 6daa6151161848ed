"""One program on all members of a mesh (SPMD): what a sharded op is, and what it costs.

- ``mesh``: named axes over devices, each as fast as its slowest link; seconds of collectives;
- ``layouts``: the layouts of a type, and the cheapest chain of collectives between any two, step by step;
- ``costs``: what members spend and hold;
- ``staged``: a stage with its mesh, decisions and bill;
- ``notation``, ``decided``: placements as texts; what a module says of its decisions, read and checked;
- ``program``: what one device runs, read from its ``program`` symbol;
- ``synced``, ``factors``: how members agree on gradients, and gradients that are products of smaller factors;
- ``reshard_ops``, ``undecided``: changes of layout as ops; a module without what was decided about it.
"""

from passes.meshes.costs.count import Counted, count
from passes.meshes.program import LocalProgram, Part, local_programs

__all__ = ["Counted", "LocalProgram", "Part", "count", "local_programs"]
