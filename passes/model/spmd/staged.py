"""``Staged``: one stage of a sharded plan as it was decided."""

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


__all__ = ["Staged"]
