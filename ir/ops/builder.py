"""Builders of modules, functions and regions: the only mutable objects. They keep names unique and build frozen objects.

    module = Builder("@mlp", producer="example")
    w = module.resource("w", TensorType(DType.F32, (4, 4)), Splat(1.0))
    with module.func("main") as func:
        x = func.arg("x", TensorType(DType.F32, (8, 4)))
        y = func.op("onnx.MatMul", (x, w), TensorType(DType.F32, (8, 4)), name="y")
        func.result(y)
    module.build()

Names are given without a sigil or with it, come back with it, and are made unique by a number behind them (``names.unique``).
Builders do not verify; ``ir.verify`` checks the whole module once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ir.core.attributes import Attributes, attributes
from ir.core.facets import Facet, Facets
from ir.core.module import Func, Module, Resource, ResourceData, Symbol
from ir.core.names import unique
from ir.core.ops import UNKNOWN_LOCATION, Location, Op, Region, Value
from ir.core.types import UNKNOWN, Type


class BodyBuilder:
    """Ops of one body, in order. Bodies of one function share ``taken``, the names of its values, so that a name is assigned
    once; ``types`` knows the type of every value seen."""

    def __init__(self, taken: set[str] | None = None, types: dict[str, Type] | None = None) -> None:
        self.taken: set[str] = taken if taken is not None else set()
        self.types: dict[str, Type] = types if types is not None else {}
        self.args: list[Value] = []
        self.ops: list[Op] = []
        self.location = UNKNOWN_LOCATION

    def fresh(self, name: str) -> str:
        """``%name``, or ``%name_1``...: a name that no value of the function has, taken from now on."""
        return unique(name if name[:1] == "%" else "%" + name, self.taken)

    def arg(self, name: str, type_: Type = UNKNOWN) -> str:
        """Adds an argument; its name."""
        value = Value(self.fresh(name), type_)
        self.args.append(value)
        self.types[value.name] = type_
        return value.name

    def op(self, kind: str, operands: Sequence[str] = (), type_: Type = UNKNOWN, *, name: str = "v", **parts: Any) -> str:
        """Adds an op with one result; the result's name. ``parts`` as in ``multi``."""
        return self.multi(kind, operands, (type_,), names=(name,), **parts)[0]

    def multi(
        self,
        kind: str,
        operands: Sequence[str],
        types: Sequence[Type],
        *,
        names: Sequence[str] = (),
        attrs: Mapping[str, Any] | Attributes = (),
        facets: Facets = (),
        location: Location | None = None,
        regions: Iterable[tuple[str, Region]] = (),
    ) -> tuple[str, ...]:
        """Adds an op with a result per type; their names. ``attrs`` are plain Python values, or attributes as they are; the
        location is the builder's own unless given."""
        wanted = [*names, *["v"] * (len(types) - len(names))]
        results = tuple(Value(self.fresh(name), type_) for name, type_ in zip(wanted, types, strict=True))
        self.append(
            Op(
                kind,
                tuple(operands),
                results,
                attributes(attrs),
                tuple(regions),
                tuple(sorted(facets, key=lambda facet: facet.keyword)),
                self.location if location is None else location,
            )
        )
        return tuple(value.name for value in results)

    def append(self, op: Op) -> Op:
        """Adds an op as it is; its result names count as taken."""
        self.ops.append(op)
        for value in op.results:
            self.taken.add(value.name)
            self.types[value.name] = value.type
        return op

    def clone(self, op: Op, mapping: dict[str, str], *facets: Facet) -> Op:
        """Adds a copy of ``op`` whose operands are renamed by ``mapping`` and whose results get fresh names, which
        ``mapping`` then holds; regions likewise. Names that ``mapping`` lacks stay."""
        copy = self._clone(op, mapping)
        return self.append(copy.with_facets(*facets) if facets else copy)

    def _clone(self, op: Op, mapping: dict[str, str]) -> Op:
        operands = tuple(mapping.get(name, name) for name in op.operands)
        regions = tuple((key, self._clone_region(region, mapping)) for key, region in op.regions)
        return replace(op, operands=operands, regions=regions, results=self._rename(op.results, mapping))

    def _clone_region(self, region: Region, mapping: dict[str, str]) -> Region:
        args = self._rename(region.args, mapping)
        ops = tuple(self._clone(op, mapping) for op in region.ops)
        return Region(args, ops, tuple(mapping.get(name, name) for name in region.results))

    def _rename(self, values: Iterable[Value], mapping: dict[str, str]) -> tuple[Value, ...]:
        renamed = []
        for value in values:
            name = self.fresh(value.name) if value.name else ""
            mapping[value.name] = name or value.name
            self.types[name] = value.type
            renamed.append(Value(name, value.type))
        return tuple(renamed)

    def region(self) -> RegionBuilder:
        """A builder of a region inside this body; give its ``build(results)`` to ``multi``."""
        return RegionBuilder(self.taken, self.types)


class RegionBuilder(BodyBuilder):
    """A nested body."""

    def build(self, results: Sequence[str] = ()) -> Region:
        return Region(tuple(self.args), tuple(self.ops), tuple(results))


class FuncBuilder(BodyBuilder):
    """A function: its arguments, ops and results."""

    def __init__(self, name: str, attrs: Mapping[str, Any] | Attributes = ()) -> None:
        super().__init__()
        self.name = name if name[:1] == "@" else "@" + name
        self.attributes = attributes(attrs)
        self.results: list[Value] = []

    def result(self, name: str, type_: Type | None = None) -> None:
        """Makes a value (or a resource, with its type) a result of the function."""
        self.results.append(Value(name, self.types.get(name, UNKNOWN) if type_ is None else type_))

    def build(self) -> Func:
        return Func(self.name, tuple(self.args), tuple(self.results), tuple(self.ops), self.attributes)


class Builder:
    """A module: its symbols in the order they were added."""

    def __init__(self, name: str = "@module", **attrs: Any) -> None:
        self.name = name if name[:1] == "@" else "@" + name
        self.attributes = attributes(attrs)
        self.symbols: list[Symbol] = []
        self.taken: set[str] = set()

    def fresh(self, name: str) -> str:
        """``@name``, or ``@name_1``...: a name that no symbol of the module has, taken from now on."""
        return unique(name if name[:1] == "@" else "@" + name, self.taken)

    def add(self, symbol: Symbol) -> str:
        """Adds a symbol as it is; its name. Raises ValueError when the name is taken."""
        if symbol.name in self.taken:
            raise ValueError(f"symbol {symbol.name} is there already")
        self.taken.add(symbol.name)
        self.symbols.append(symbol)
        return symbol.name

    def resource(self, name: str, type_: Type, data: ResourceData, *, digest: str = "", facets: Facets = ()) -> str:
        """Adds a resource under ``name`` or a fresh name like it; its name."""
        resource = Resource(self.fresh(name), type_, data, digest, facets)
        self.symbols.append(resource)
        return resource.name

    @contextmanager
    def func(self, name: str, **attrs: Any) -> Iterator[FuncBuilder]:
        """A function under ``name`` or a fresh name like it, added when the block ends."""
        builder = FuncBuilder(self.fresh(name), attrs)
        yield builder
        self.symbols.append(builder.build())

    def build(self) -> Module:
        return Module(self.name, tuple(self.symbols), self.attributes)
