"""A collective of a stage on a mesh, as a program describes it: its groups of members, operands and results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dnnc.onnx.elements import BY_NUMBER, nbytes

SMALL = 1 << 15
"""Up to so many bytes, each member reduces the whole tensor: exchanging parts would cost a second round of messages."""

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of a stage. ``groups``: its members' numbers, each group in the order of the axis. ``operands`` and
    ``results``: shapes by member. ``level``: of the segment that it follows.

    Three fields define what it computes (``ir.ops.opdefs`` states them for each ``kind``). A member takes its part along
    dimension ``split`` of every operand of its group (all of it where ``split`` is -1). It joins these parts along dimension
    ``join``, or reduces them by ``reduction`` where ``join`` is -1."""

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
        """Raises KeyError, TypeError, ValueError for what is no collective. ``collective_faults`` checks the values."""
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
