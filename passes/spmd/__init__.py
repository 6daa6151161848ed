"""SPMD: a sharded stage as one program for all members of its mesh, with explicit collectives, and as what each member runs.

- ``boxes``: which part of a tensor a member holds;
- ``program``: ``LocalProgram``, what one member runs;
- ``decided``: what ``shard`` wrote into the module, read and checked;
- ``lowering``: the SPMD program of a stage, conversions explicit;
- ``local``: what one member of it runs;
- ``count``: what its collectives cost, counted from its ops;
- ``worked``: what its members compute, counted from what each runs.
"""

from passes.spmd.boxes import Box, Placements, Range, box, coordinates, delivers, members_along, placements_of
from passes.spmd.count import Counted, count
from passes.spmd.local import local_program, local_programs
from passes.spmd.lowering import lower_sharded
from passes.spmd.program import Exchange, LocalProgram, Message, Part
from passes.spmd.worked import Worked, worked

__all__ = [
    "Box",
    "Counted",
    "Exchange",
    "LocalProgram",
    "Message",
    "Part",
    "Placements",
    "Range",
    "Worked",
    "box",
    "coordinates",
    "count",
    "delivers",
    "local_program",
    "local_programs",
    "lower_sharded",
    "members_along",
    "placements_of",
    "worked",
]
