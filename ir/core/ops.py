"""Values, ops, regions: the body of a program.

Names carry their sigil (``ir/core/names.py``): ``%x`` is a value of the enclosing function, ``@w`` a symbol of the module,
``""`` an absent optional operand. An op refers to what it uses by name only, so bodies compare and hash by structure.

Invariants (checked by ``ir.verifier``): single assignment within a function, its regions included; every name used is defined
before it in the same body, in an enclosing body (regions capture freely) or by the module; facets sorted and at most one of
each kind.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar, overload

from ir.core.attributes import Attribute, Attributes
from ir.core.facets import Facet, Facets, with_facet
from ir.core.types import UNKNOWN, Type


@dataclass(frozen=True, slots=True)
class Location:
    """Where an op came from: the path of its graph (``main``, ``main/If_3/then_branch``), its node name, and the scope that
    the exporter recorded. All empty: explicitly unknown."""

    path: str = ""
    node: str = ""
    scope: str = ""


UNKNOWN_LOCATION = Location()


@dataclass(frozen=True, slots=True)
class Value:
    """A name with its type: a result, a function argument, a region argument."""

    name: str
    type: Type = UNKNOWN


@dataclass(frozen=True, slots=True)
class Region:
    """A nested body (If, Loop, Scan): its arguments, its ops, and the names it yields."""

    args: tuple[Value, ...]
    ops: tuple[Op, ...]
    results: tuple[str, ...]


F = TypeVar("F", bound=Facet)


@dataclass(frozen=True, slots=True)
class Op:
    """One operation. ``name`` is ``dialect.Name``; ONNX domains other than the default one stand in front of the operator:
    ``onnx.ai.onnx.ml.Scaler``, ``onnx.com.microsoft.Gelu``. A region's key is that of ONNX's graph attribute."""

    name: str
    operands: tuple[str, ...] = ()
    results: tuple[Value, ...] = ()
    attributes: Attributes = ()
    regions: tuple[tuple[str, Region], ...] = ()
    facets: Facets = ()
    location: Location = UNKNOWN_LOCATION

    @property
    def dialect(self) -> str:
        return self.name.partition(".")[0]

    @property
    def id(self) -> str:
        """What names the op in plans and diagnostics: its first result, or its own name where it has none."""
        return self.results[0].name if self.results else self.name

    def get(self, key: str, default: Any = None) -> Any:
        """The Python value of attribute ``key``, or ``default``."""
        for name, attribute in self.attributes:
            if name == key:
                return attribute.value
        return default

    def attribute(self, key: str) -> Attribute | None:
        return next((attribute for name, attribute in self.attributes if name == key), None)

    @overload
    def facet(self, kind: type[F]) -> F | None: ...
    @overload
    def facet(self, kind: type[F], default: F) -> F: ...
    def facet(self, kind: type[F], default: F | None = None) -> F | None:
        """The facet of this class, or ``default``."""
        for facet in self.facets:
            if type(facet) is kind:
                return facet
        return default

    def with_facets(self, *facets: Facet) -> Op:
        """The op with these facets in place of those of their kinds."""
        merged = self.facets
        for facet in facets:
            merged = with_facet(merged, facet)
        return replace(self, facets=merged)


def all_ops(ops: Iterable[Op]) -> Iterator[Op]:
    """The ops in order, each followed by those of its regions."""
    for op in ops:
        yield op
        for _, region in op.regions:
            yield from all_ops(region.ops)


def all_values(ops: Iterable[Op]) -> Iterator[Value]:
    """Every value that the ops and those of their regions define: results, and arguments of regions."""
    for op in ops:
        yield from op.results
        for _, region in op.regions:
            yield from region.args
            yield from all_values(region.ops)


def all_reads(op: Op) -> Iterator[str]:
    """Each name that an op and the ops of its regions read, those that they define themselves and absent ones included."""
    yield from op.operands
    for _, region in op.regions:
        yield from region.results
        for inner in region.ops:
            yield from all_reads(inner)


class Interned:
    """Numbers from 0 on for sequences of immutable objects; equal sequences have equal numbers. A sequence of the very objects
    that were asked for before is found by their identities, so that what many ops share is hashed once."""

    def __init__(self) -> None:
        self._by_value: dict[Hashable, int] = {}
        self._by_identity: dict[tuple[int, ...], tuple[int, tuple[Hashable, ...]]] = {}

    def number(self, *parts: Hashable) -> int:
        """The number of ``parts``."""
        key = tuple(map(id, parts))
        known = self._by_identity.get(key)
        if known is None:  # the parts are held: no other objects get their identities meanwhile
            known = self._by_identity[key] = self._by_value.setdefault(parts, len(self._by_value)), parts
        return known[0]
