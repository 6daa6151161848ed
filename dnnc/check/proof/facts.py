"""Facts: which part of which value of the model a term is, on each member of a unit.

``Part(node, placements, family)``: by the placements over the axes of the stage's mesh, the member's box of the node
(``ir.ops.boxes``). With placements ``P``, it is that box of a summand: ``family`` (from 1) names one way to write the node as a
sum or maximum, with a summand for each place along these axes. Without ``P`` the family is 0.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from ir.core.module import Mesh
from ir.core.types import Partial, Replicate, TensorType, Type
from ir.ops.boxes import Box, Placements, box, coordinates, shape_of


class Part(NamedTuple):
    """Part of a node; see above."""

    node: int
    placements: Placements
    family: int = 0


class Facts:
    """The facts of one unit, by term and by node, in the order of their discovery."""

    def __init__(self) -> None:
        self._of: dict[int, dict[Part, None]] = {}
        self._terms: dict[int, dict[tuple[int, Part], None]] = {}

    def add(self, term: int, part: Part) -> bool:
        """Whether the fact is new."""
        parts = self._of.setdefault(term, {})
        if part in parts:
            return False
        parts[part] = None
        self._terms.setdefault(part.node, {})[term, part] = None
        return True

    def of(self, term: int) -> tuple[Part, ...]:
        """What a term is known to be."""
        return tuple(self._of.get(term, ()))

    def terms(self, node: int) -> list[tuple[int, Part]]:
        """The terms that are parts of a node."""
        return list(self._terms.get(node, ()))

    def has(self, term: int, part: Part) -> bool:
        return part in self._of.get(term, ())

    def __contains__(self, node: int) -> bool:
        return node in self._terms


class Families:
    """Numbers of ways to write a node as a sum."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def number(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers) + 1)


def whole(mesh: Mesh) -> Placements:
    """Replicated along all axes."""
    return (Replicate(),) * len(mesh.axes)


def is_partial(placements: Placements) -> bool:
    """Whether a part by these placements is a term of a sum or maximum."""
    return any(isinstance(placement, Partial) for placement in placements)


def reductions(placements: Placements) -> set[str]:
    """The reductions of which a part is a term."""
    return {placement.reduction for placement in placements if isinstance(placement, Partial)}


class Boxes:
    """The boxes of all members of a mesh, each computed once."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self._known: dict[tuple[Type, Placements], tuple[Box, ...]] = {}
        self._types: dict[tuple[Type, Placements, tuple[int, ...]], tuple[Type, ...]] = {}
        self._places: dict[tuple[tuple[int, ...], int], frozenset[int]] = {}

    def of(self, type_: Type, placements: Placements) -> tuple[Box, ...]:
        """The box of each member; empty boxes for what is no tensor of known shape."""
        found = self._known.get((type_, placements))
        if found is None:
            members = range(max(1, len(self.mesh.devices)) if self.mesh.axes else 1)
            found = tuple(box(type_, placements, self.mesh, member) for member in members)
            self._known[type_, placements] = found
        return found

    def types(self, type_: Type, placements: Placements, members: tuple[int, ...]) -> tuple[Type, ...]:
        """The different types of the parts of ``members``."""
        key = (type_, placements, members)
        found = self._types.get(key)
        if found is None:
            every = self.of(type_, placements)
            found = tuple(dict.fromkeys(local_type(type_, every[member]) for member in members))
            self._types[key] = found
        return found

    def places(self, members: tuple[int, ...], axis: int) -> frozenset[int]:
        """The places of ``members`` along an axis."""
        found = self._places.get((members, axis))
        if found is None:
            found = frozenset(coordinates(self.mesh, member)[axis] for member in members)
            self._places[members, axis] = found
        return found

    def local_shape(self, type_: Type, placements: Placements, members: tuple[int, ...]) -> tuple[int, ...] | None:
        """The shape of the part, if it is a tensor of known shape and all ``members`` have the same."""
        if shape_of(type_) is None or not isinstance(type_, TensorType):
            return None
        types = self.types(type_, placements, members)
        return shape_of(types[0]) if len(types) == 1 else None


def local_type(type_: Type, here: Box) -> Type:
    """The type of a part of a value in the box ``here``."""
    if not here or not isinstance(type_, TensorType):
        return type_
    return TensorType(type_.dtype, tuple(length for _, length in here), None, type_.sparse)
