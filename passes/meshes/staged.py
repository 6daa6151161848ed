"""``Staged``: one stage of a sharded plan as it was decided."""

from __future__ import annotations

from dataclasses import dataclass

from passes.meshes.costs.bill import Bill, Decisions
from passes.meshes.mesh import DeviceMesh


@dataclass(frozen=True, slots=True)
class Staged:
    """The positions of a stage's ops in the entry function, ascending, its mesh, what was decided on it and what that costs.
    ``others``: the devices of further replicas of a stage on one device, which take microbatches in turn with that of ``mesh``;
    the bill is of one microbatch on one replica."""

    ops: tuple[int, ...]
    mesh: DeviceMesh
    decisions: Decisions
    bill: Bill
    others: tuple[str, ...] = ()

    @property
    def devices(self) -> tuple[str, ...]:
        """All devices of the stage."""
        return (*self.mesh.devices, *self.others)

    @property
    def replicas(self) -> int:
        return 1 + len(self.others)
