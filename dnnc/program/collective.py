"""A collective of a stage on a mesh, as a manifest describes it: who takes part, with what, and what must hold of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dnnc.program.elements import BFLOAT16, BY_NUMBER, Element, nbytes, packed

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
REDUCTIONS = ("sum", "max")
SMALL = 1 << 15
"""Bytes up to which each member reduces all of a tensor by itself: a second round of tokens costs more."""

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of a stage. ``groups``: its members' numbers, each group in the order of the axis. ``operands`` and
    ``results``: shapes by member. ``split``: the dimension that is cut (reduce_scatter, all_to_all), ``join``: the one along
    which parts are joined (all_gather, all_to_all); -1 where there is none. ``level``: of the segment that it follows."""

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
        return self.kind == "all_gather" or (self.kind == "all_reduce" and self.nbytes(self.operands[0]) > SMALL)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Collective:
        """Raises KeyError, TypeError, ValueError for what is no collective; ``faults`` tells whether it makes sense."""
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

    def faults(self, members: int) -> Iterator[str]:
        """Why this cannot be a collective of a stage of so many members; nothing when it can."""
        if self.kind not in KINDS:
            yield f"collective '{self.kind}' is unknown, one of {', '.join(KINDS)} expected"
            return
        element = BY_NUMBER.get(self.element)
        if element is None or packed(element):
            yield f"a collective cannot move elements of type {self.element if element is None else element.name}"
            return
        if self.level < 0:
            yield f"a level is at least 0, not {self.level}"
        if sorted(member for group in self.groups for member in group) != list(range(members)):
            yield f"groups {[list(group) for group in self.groups]} do not hold each of {members} members once"
            return
        if len(self.operands) != members or len(self.results) != members:
            yield f"{len(self.operands)} operands and {len(self.results)} results found, {members} members expected"
            return
        if any(dim < 0 for shape in (*self.operands, *self.results) for dim in shape):
            yield "a dimension is below 0"
            return
        if self.kind in ("all_reduce", "reduce_scatter"):
            if self.reduction not in REDUCTIONS:
                yield f"reduction '{self.reduction}' is unknown, one of {', '.join(REDUCTIONS)} expected"
            elif not reducible(element, self.reduction):
                yield f"no {self.reduction} of elements of type {element.name}"
        for name, dim, needed in (
            ("split", self.split, self.kind in ("reduce_scatter", "all_to_all")),
            ("join", self.join, self.kind in ("all_gather", "all_to_all")),
        ):
            ranks = {len(shape) for shape in (*self.operands, *self.results)}
            if len(ranks) != 1 or not (0 <= dim < min(ranks) if needed else dim == -1):
                yield f"{name} dimension {dim} does not fit shapes {_texts(self.operands)}"
                return
        for group in self.groups:
            yield from self._group_faults(group)

    def _group_faults(self, group: tuple[int, ...]) -> Iterator[str]:
        operands, results = [self.operands[m] for m in group], [self.results[m] for m in group]
        wanted = [list(shape) for shape in operands]
        if self.split >= 0:  # what a member gives is cut into parts as long as the results
            lengths = [shape[self.split] for shape in results]
            if any(shape[self.split] != sum(lengths) for shape in operands):
                yield f"parts of {lengths} along dimension {self.split} are not those of {_texts(operands)}"
            for shape, length in zip(wanted, lengths, strict=True):
                shape[self.split] = length
        if self.join >= 0:
            total = sum(shape[self.join] for shape in operands)
            for shape in wanted:
                shape[self.join] = total
        else:
            wanted = [[d if i == self.split else wanted[0][i] for i, d in enumerate(shape)] for shape in wanted]
        if [list(shape) for shape in results] != wanted or (self.join < 0 and len(set(operands)) != 1):
            yield f"{self.kind} of {_texts(operands)} gives {_texts(map(tuple, wanted))}, not {_texts(results)}"


def _texts(shapes: Any) -> str:
    return ", ".join("x".join(map(str, shape)) or "scalar" for shape in shapes)


def reducible(element: Element, reduction: str) -> bool:
    """Whether elements can be added up, or compared."""
    if element.name == "bool":
        return reduction == "max"
    if element.name.startswith("complex"):
        return reduction == "sum"
    return element.number == BFLOAT16 or (element.carrier == element.name)
