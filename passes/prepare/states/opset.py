"""Raises the opset of a module whose ops mean the same in the newer one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from ir.core.attributes import Attribute, AttrKind, attributes
from ir.core.diagnostics import InvalidInput
from ir.core.module import Inline, Module, Resource
from ir.core.names import unique
from ir.core.ops import Op, Region, all_ops
from ir.core.types import DType, TensorType
from ir.ops.opdefs import Dialects, module_opsets, opdef
from passes.graph.symbols import insert_symbols
from passes.prepare.states.faults import OldOpset

KEY = "opset.onnx"
OLDEST = 13
"""Below, Softmax and other ops mean something else under the same attributes."""
AXES_BECAME_OPERANDS = frozenset(
    f"onnx.Reduce{kind}" for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")
)
"""Of opset 18."""
CHANGED = {
    **{"onnx.Pad": 18, "onnx.Split": 18, "onnx.Resize": 19, "onnx.DFT": 20},
    **{"onnx.GroupNormalization": 21, "onnx.AveragePool": 22},
}
"""Operators that mean, or may mean, something else under the same attributes since this opset; ``Split`` into equal parts."""


def raised(module: Module, opset: int, dialects: Dialects) -> Module:
    """``module`` in opset ``opset`` of ONNX; unchanged if it has that one or a newer one. Raises InvalidInput for an op that
    changed between."""
    opsets = module_opsets(module)
    current = opsets.get("onnx")
    if current is None or current >= opset:
        return module
    entry, new = module.entry, {**opsets, "onnx": opset}
    made: dict[tuple[int, ...], Resource] = {}
    taken = {symbol.name for symbol in module.symbols}

    def axes(numbers: tuple[int, ...]) -> str:
        if numbers not in made:
            data = Inline(b"".join(number.to_bytes(8, "little", signed=True) for number in numbers))
            made[numbers] = Resource(unique("@axes", taken), TensorType(DType.I64, (len(numbers),)), data)
        return made[numbers].name

    def newer(ops: Iterable[Op]) -> tuple[Op, ...]:
        return tuple(_with_regions(_newer(op), newer) for op in ops)

    def _newer(op: Op) -> Op:
        if op.name in AXES_BECAME_OPERANDS and (numbers := op.get("axes")) is not None and current < 18:
            kept = tuple((key, value) for key, value in op.attributes if key != "axes")
            return replace(op, operands=(op.operands[0], axes(tuple(numbers))), attributes=kept)
        return op

    ops = newer(entry.ops)
    for op in all_ops(ops):
        definition = opdef(op.name, new, dialects)
        unequal = op.name == "onnx.Split" and len(op.operands) > 1  # its parts are stated: nothing changed
        faults = definition.faults(op) if definition is not None and op.dialect == "onnx" else []
        if current < OLDEST or faults or (current < CHANGED.get(op.name, OLDEST) and not unequal):
            raise InvalidInput(OldOpset(op.name.removeprefix("onnx."), current), where=op.location.node or op.id)
    attributes_ = {key: value for key, value in module.attributes if key != KEY} | {KEY: Attribute(AttrKind.INT, opset)}
    module = module.replace(entry, replace(entry, ops=ops))
    return insert_symbols(replace(module, attributes=attributes(attributes_)), made.values())


def _with_regions(op: Op, newer: Callable[[Iterable[Op]], tuple[Op, ...]]) -> Op:
    if not op.regions:
        return op
    return replace(op, regions=tuple((key, Region(r.args, newer(r.ops), r.results)) for key, r in op.regions))
