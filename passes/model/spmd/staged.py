"""``Staged``: one stage of a sharded plan as it was decided, and how many microbatches it holds."""

from __future__ import annotations

from dataclasses import dataclass

from passes.model.spmd.mesh import DeviceMesh
from passes.model.spmd.price import Bill, Decisions


@dataclass(frozen=True, slots=True)
class Staged:
    """The positions of a stage's ops in the entry function, ascending, its mesh, what was decided on it and what that costs."""

    ops: tuple[int, ...]
    mesh: DeviceMesh
    decisions: Decisions
    bill: Bill


def in_flight(microbatches: int, stages: int, number: int) -> int:
    """Microbatches whose backward passes stage ``number`` has before it at most, as 1F1B has it: one for each stage from it
    on."""
    return min(microbatches, stages - number)


__all__ = ["Staged", "in_flight"]
