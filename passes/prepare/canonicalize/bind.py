"""Binding symbolic dimensions in a module that is IR already (from text, or built): types change, nothing is inferred again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ir.core import dims as dimensions
from ir.core.module import Func, Module, Resource, Stage, Symbol
from ir.core.ops import Op, Region, Value, all_values
from ir.core.types import MapType, OptionalType, SeqType, TensorType, Type

Bindings = Mapping[str, int | str]


def bind_types(module: Module, dims: Bindings) -> Module:
    """``module`` with the symbols of ``dims`` replaced in every type. Raises UsageError for a symbol that it lacks."""
    known: dict[str, None] = {}
    for symbol in module.symbols:
        for value in _values(symbol):
            for dim in _dims(value.type):
                if isinstance(dim, str):
                    known.update(dict.fromkeys(dimensions.symbols(dim)))
    resolved = dimensions.resolve(dims, known)
    return replace(module, symbols=tuple(_bind_symbol(symbol, resolved) for symbol in module.symbols))


def _values(symbol: Symbol) -> Iterator[Value]:
    if isinstance(symbol, Func | Stage):
        yield from symbol.args
        yield from all_values(symbol.ops)
    elif isinstance(symbol, Resource):
        yield Value(symbol.name, symbol.type)


def _dims(type_: Type) -> Iterator[int | str | None]:
    match type_:
        case TensorType():
            yield from type_.shape or ()
        case SeqType() | OptionalType():
            yield from _dims(type_.element)
        case MapType():
            yield from _dims(type_.value)


def _bind_symbol(symbol: Symbol, bindings: Bindings) -> Symbol:
    if isinstance(symbol, Resource):
        return replace(symbol, type=_bind_type(symbol.type, bindings))
    if isinstance(symbol, Func | Stage):
        args, results = _bind_values(symbol.args, bindings), _bind_values(symbol.results, bindings)
        return replace(symbol, args=args, results=results, ops=_bind_ops(symbol.ops, bindings))
    return symbol


def _bind_values(values: tuple[Value, ...], bindings: Bindings) -> tuple[Value, ...]:
    return tuple(Value(value.name, _bind_type(value.type, bindings)) for value in values)


def _bind_ops(ops: tuple[Op, ...], bindings: Bindings) -> tuple[Op, ...]:
    return tuple(
        replace(
            op,
            results=_bind_values(op.results, bindings),
            regions=tuple(
                (key, Region(_bind_values(region.args, bindings), _bind_ops(region.ops, bindings), region.results))
                for key, region in op.regions
            ),
        )
        for op in ops
    )


def _bind_type(type_: Type, bindings: Bindings) -> Type:
    match type_:
        case TensorType() if type_.shape is not None:
            return replace(type_, shape=tuple(dimensions.bind(dim, bindings) for dim in type_.shape))
        case SeqType() | OptionalType():
            return replace(type_, element=_bind_type(type_.element, bindings))
        case MapType():
            return replace(type_, value=_bind_type(type_.value, bindings))
    return type_
