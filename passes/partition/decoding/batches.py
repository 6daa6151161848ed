"""The step of a decoder for any number of sequences of a group, from two modules of it: what an op computes and moves, and the
length of each dimension, are linear in that number."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from ir.core.facets import Cost
from ir.core.module import Module, Resource
from ir.core.ops import Op, Value
from ir.core.types import TensorType, Type


class Batches:
    """Modules by batch. ``given``: two of them, with their batches; they are of the same ops (``alike``)."""

    def __init__(self, low: tuple[int, Module], high: tuple[int, Module]) -> None:
        self.low, self.high = low, high
        self._types: dict[tuple[int, int, int], Type] = {}
        self._costs: dict[tuple[int, int, int], Cost] = {}

    @property
    def alike(self) -> bool:
        """Whether the modules differ in sizes alone."""
        one, other = self.low[1].entry, self.high[1].entry
        return [_form(op) for op in one.ops] == [_form(op) for op in other.ops] and all(
            isinstance(there := self.high[1].symbol(own.name), Resource) and type(there.type) is type(own.type)
            for own in self.low[1].of_type(Resource)
        )

    def at(self, batch: int) -> Module:
        """The module of groups of ``batch`` sequences; attributes are those of the module of fewest."""
        if batch in (self.low[0], self.high[0]):
            return self.low[1] if batch == self.low[0] else self.high[1]
        module, other = self.low[1], self.high[1]
        entry, far = module.entry, other.entry
        args = tuple(self._value(one, two, batch) for one, two in zip(entry.args, far.args, strict=True))
        results = tuple(self._value(one, two, batch) for one, two in zip(entry.results, far.results, strict=True))
        ops = tuple(self._op(one, two, batch) for one, two in zip(entry.ops, far.ops, strict=True))
        sized = replace(entry, args=args, results=results, ops=ops)
        there = other.resources
        symbols = tuple(
            sized
            if symbol is entry
            else replace(symbol, type=self._type(symbol.type, there[symbol.name].type, batch))
            if isinstance(symbol, Resource)
            else symbol
            for symbol in module.symbols
        )
        return replace(module, symbols=symbols)

    def _op(self, one: Op, two: Op, batch: int) -> Op:
        results = tuple(self._value(a, b, batch) for a, b in zip(one.results, two.results, strict=True))
        here, there = one.facet(Cost), two.facet(Cost)
        if here is None or there is None:
            return replace(one, results=results)
        key = id(here), id(there), batch
        if key not in self._costs:
            names = [field.name for field in fields(Cost) if field.name != "kind"]
            parts: dict[str, Any] = {name: self._number(getattr(here, name), getattr(there, name), batch) for name in names}
            self._costs[key] = replace(here, **parts)
        return replace(one, results=results).with_facets(self._costs[key])

    def _value(self, one: Value, two: Value, batch: int) -> Value:
        type_ = self._type(one.type, two.type, batch)
        return one if type_ is one.type else replace(one, type=type_)

    def _type(self, one: Type, two: Type, batch: int) -> Type:
        if one == two or not (isinstance(one, TensorType) and isinstance(two, TensorType)):
            return one
        key = id(one), id(two), batch
        if key not in self._types:
            dims = zip(one.shape or (), two.shape or (), strict=True)
            shape = tuple(self._number(a, b, batch) if isinstance(a, int) and isinstance(b, int) else a for a, b in dims)
            self._types[key] = replace(one, shape=shape)
        return self._types[key]

    def _number(self, one: int, two: int, batch: int) -> int:
        slope = (two - one) / (self.high[0] - self.low[0])
        return max(0, round(one + slope * (batch - self.low[0])))


def _form(op: Op) -> tuple[object, ...]:
    shapes = tuple(
        len(value.type.shape or ()) if isinstance(value.type, TensorType) else type(value.type) for value in op.results
    )
    return op.name, op.operands, tuple(value.name for value in op.results), shapes, op.facet(Cost) is None
