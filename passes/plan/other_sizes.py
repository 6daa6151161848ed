"""The stages of a plan, on the same model whose sizes are others, or are left open.

A plan is made for numbers. Which ops a stage has holds for other sizes too, and names of values are the same: they are the
model's. What simplification computed from numbers alone is computed by ops of the other module: shapes, masks, positions. Such
an op reads nothing but constants and shapes of arguments, so it stands in each stage that needs its result, and travels
nowhere. Any other op that the planned module lacks stands in the last of the stages that make its operands.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ir.core.attributes import attributes
from ir.core.facets import Measured, StageSet
from ir.core.module import Func, Inline, Module, Plan, Resource
from ir.core.names import unique
from ir.core.ops import Op, Value
from ir.core.topology import Topology
from ir.core.types import Dim, DType, TensorType, Type, type_bytes
from passes.graph.graph import reads
from passes.graph.symbols import insert_symbols

SHAPE = "onnx.Shape"
SLICES_SHAPES = 15
"""The opset of ONNX from which on ``Shape`` takes ``start`` and ``end``."""


def cut_alike(planned: Module, other: Module) -> Module:
    """``other`` with the plan, the machines and the stages of ``planned``: both expanded, without stages on meshes. An op of
    both has the facts of ``planned``, and measured shapes where a type of its own says no size."""
    known = {value.name: op for op in planned.entry.ops for value in op.results}
    opset = dict(other.attributes).get("opset.onnx")
    if opset is not None and int(opset.value) >= SLICES_SHAPES:
        sized = {arg.name: arg.type for arg in planned.entry.args}
        other = _with_shapes_of_arguments(other, sized, _shapes_of_elsewhere(other.entry, known))
    entry, ops = other.entry, []
    for op, stages in zip(entry.ops, _stages(entry, known), strict=True):
        facts = known[op.results[0].name].facets if op.results and op.results[0].name in known else ()
        if shapes := _measured(op, known):
            facts = (*(facet for facet in facts if not isinstance(facet, Measured)), shapes)
        ops.append(replace(op, facets=facts).with_facets(StageSet(stages)) if stages else None)
    other = other.replace(entry, replace(entry, ops=tuple(op for op in ops if op is not None)))
    other = insert_symbols(other.without(Topology, Plan), planned.of_type(Topology))
    return insert_symbols(other, planned.of_type(Plan))


def cut_at_first(planned: Module, other: Module) -> Module:
    """``other`` in the stages of ``planned``, each op in one: that of its first reader where it has several stages in
    ``planned``, or none. So whatever a later stage reads of an earlier one crosses, sizes and masks too."""
    entry, found = other.entry, list[Op]()
    known = {value.name: op for op in planned.entry.ops for value in op.results}
    last = max((len(plan.stages) for plan in planned.of_type(Plan)), default=1) - 1
    first = dict.fromkeys((value.name for value in entry.results), last)
    for op in reversed(entry.ops):
        own = [*(_stated(op, known) or ())[:1], *(first[value.name] for value in op.results if value.name in first)]
        if own:
            found.append(op.with_facets(StageSet((min(own),))))
            first.update((name, min(min(own), first.get(name, last))) for name in reads(op))
    other = other.replace(entry, replace(entry, ops=tuple(reversed(found))))
    other = insert_symbols(other.without(Topology, Plan), planned.of_type(Topology))
    return insert_symbols(other, planned.of_type(Plan))


def _shapes_of_elsewhere(entry: Func, known: Mapping[str, Op]) -> frozenset[str]:
    """Results of those ``Shape`` ops that a stage needs in which the value is not."""
    stages = _stages(entry, known, {value.name for op in entry.ops if op.name == SHAPE for value in op.results})
    present: dict[str, set[int]] = {}
    for op, own in zip(entry.ops, stages, strict=True):
        for name in (*(value.name for value in op.results), *(() if op.name == SHAPE else reads(op))):
            present.setdefault(name, set()).update(own)
    shapes = ((op, own) for op, own in zip(entry.ops, stages, strict=True) if op.name == SHAPE)
    return frozenset(op.results[0].name for op, own in shapes if not set(own) <= present.get(op.operands[0], set()))


def _with_shapes_of_arguments(module: Module, sized: Mapping[str, Type], shapes: Container[str]) -> Module:
    """The module in which ``shapes`` are put together of those of arguments, where all open dimensions are an argument's.
    ``sized``: the arguments with their sizes: the smallest one tells a dimension."""
    entry = module.entry
    place: dict[str, tuple[str, int]] = {}
    for arg in sorted(entry.args, key=lambda arg: type_bytes(sized.get(arg.name, arg.type)) or 0):
        for axis, dim in enumerate(_dims(arg.type) or ()):
            if isinstance(dim, str):
                place.setdefault(dim, (arg.name, axis))
    types = {arg.name: arg.type for arg in entry.args}
    taken = {symbol.name for symbol in module.symbols}
    names = types.keys() | {value.name for op in entry.ops for value in op.results}
    ops: list[Op] = []
    numbers: dict[int, Resource] = {}
    for op in entry.ops:
        dims = _dims(types.get(op.operands[0])) if op.name == SHAPE and op.results[0].name in shapes else None
        types.update((value.name, value.type) for value in op.results)
        told = dims[op.get("start", 0) : op.get("end", len(dims))] if dims is not None else ()
        if not told or not all(isinstance(dim, int) or dim in place for dim in told):
            ops.append(op)
            continue
        parts: list[str] = []
        for dim in told:
            if isinstance(dim, int):
                if dim not in numbers:
                    data = Inline(np.array([dim], "<i8").tobytes())
                    numbers[dim] = Resource(unique(f"@size.{dim}", taken), TensorType(DType.I64, (1,)), data)
                parts.append(numbers[dim].name)
            elif isinstance(dim, str):
                ops.append(_size(*place[dim], unique(f"{op.results[0].name}.{dim}", names)))
                parts.append(ops[-1].results[0].name)
        ops.append(Op("onnx.Concat", tuple(parts), op.results, attributes(axis=0), location=op.location))
    module = module.replace(entry, replace(entry, ops=tuple(ops)))
    return insert_symbols(module, numbers.values())


def _size(argument: str, axis: int, name: str) -> Op:
    """The op that makes the size of one dimension of an argument, a tensor of one number."""
    return Op(SHAPE, (argument,), (Value(name, TensorType(DType.I64, (1,))),), attributes(start=axis, end=axis + 1))


def _dims(type_: Type | None) -> tuple[Dim, ...] | None:
    return type_.shape if isinstance(type_, TensorType) else None


def _stages(entry: Func, known: Mapping[str, Op], anywhere: Container[str] = ()) -> list[tuple[int, ...]]:
    """The stages of each op, none for one whose results nothing needs. ``known``: ops of the planned module, by result.
    ``anywhere``: results of ops that can run in each stage that needs them, whatever they read."""
    made: dict[str, int] = {}
    arguments = {arg.name for arg in entry.args}
    fixed: set[str] = set()
    stated: list[tuple[int, ...] | None] = []
    for op in entry.ops:
        own = _stated(op, known)
        constant = all(name in fixed or name[0] == "@" or (op.name == SHAPE and name in arguments) for name in reads(op))
        if own is None and (constant or op.results[0].name in anywhere):
            fixed.update(value.name for value in op.results)
        elif own is None:
            own = (max((made.get(name, 0) for name in reads(op)), default=0),)
        if own is not None:
            made.update((value.name, own[0]) for value in op.results)
        stated.append(own)
    needed: dict[str, set[int]] = {value.name: {0} for value in entry.results if value.name in fixed}
    found: list[tuple[int, ...]] = []
    for op, own in zip(reversed(entry.ops), reversed(stated), strict=True):
        stages = own or tuple(sorted({stage for value in op.results for stage in needed.get(value.name, ())}))
        for name in reads(op):
            if name in fixed:
                needed.setdefault(name, set()).update(stages)
        found.append(stages)
    return found[::-1]


def _stated(op: Op, known: Mapping[str, Op]) -> tuple[int, ...] | None:
    stated = next((known[value.name] for value in op.results if value.name in known), None)
    return stated.facet(StageSet, StageSet(())).stages or None if stated is not None else None


def _measured(op: Op, known: Mapping[str, Op]) -> Measured | None:
    """The shapes that the results have in the planned module; None where all types of the op say their sizes."""
    if all(_is_sized(value.type) for value in op.results):
        return None
    sized: dict[str, Sequence[Dim] | None] = {
        value.name: _dims(value.type)
        for name in {value.name for value in op.results} & known.keys()
        for value in known[name].results
    }
    texts = tuple(_text(sized.get(value.name)) if not _is_sized(value.type) else "" for value in op.results)
    return Measured(texts) if any(text not in ("", "?") for text in texts) else None


def _is_sized(type_: Type) -> bool:
    return type_bytes(type_) is not None


def _text(shape: Sequence[Dim] | None) -> str:
    if shape is None or not all(isinstance(dim, int) for dim in shape):
        return "?"
    return "x".join(map(str, shape))
