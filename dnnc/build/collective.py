"""A collective of a stage on a mesh, as a manifest describes it: who takes part, and with what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dnnc.onnx.elements import BY_NUMBER, nbytes

SMALL = 1 << 15
"""Bytes up to which each member reduces all of a tensor by itself: a second round of tokens costs more."""

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of a stage. ``groups``: its members' numbers, each group in the order of the axis. ``operands`` and
    ``results``: shapes by member. ``level``: of the segment that it follows.

    What it does follows from three fields, which ``ir.ops.opdefs`` states for each ``kind``: of each operand a member takes its
    part along ``split`` (all of it where that is -1); what it took of all of them is joined along ``join``, or reduced by
    ``reduction`` where that is -1."""

    kind: str
    channel: int
    level: int
    operand: str
    result: str
    element: int
    groups: tuple[tuple[int, ...], ...]
    operands: tuple[Shape, ...]
    results: tuple[Shape, ...]
    reduction: str = ""
    split: int = -1
    join: int = -1

    def group_of(self, member: int) -> tuple[int, ...]:
        """The group of ``member``, in order."""
        return next(group for group in self.groups if member in group)

    def nbytes(self, shape: Shape) -> int:
        return nbytes(BY_NUMBER[self.element], shape)

    @property
    def shared(self) -> bool:
        """Whether a group's result is one tensor in shared memory."""
        return self.split < 0 and (self.join >= 0 or self.nbytes(self.operands[0]) > SMALL)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Collective:
        """Raises KeyError, TypeError, ValueError for what is no collective; ``collective_faults`` tells if it makes sense."""
        return cls(
            kind=str(data["kind"]),
            channel=int(data["channel"]),
            level=int(data["level"]),
            operand=str(data["operand"]),
            result=str(data["result"]),
            element=int(data["element"]),
            groups=tuple(tuple(int(member) for member in group) for group in data["groups"]),
            operands=tuple(tuple(int(dim) for dim in shape) for shape in data["operands"]),
            results=tuple(tuple(int(dim) for dim in shape) for shape in data["results"]),
            reduction=str(data["reduction"]),
            split=int(data["split"]),
            join=int(data["join"]),
        )
