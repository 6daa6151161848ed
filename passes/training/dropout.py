"""Random numbers of a training step as ops that are the same in any split: noise, and dropouts as a mask and a product with it.

``%y = onnx.Dropout(%x)`` becomes ``%y.mask = grad.mask(%dropout.seed) {number, ratio}`` and ``%y = onnx.Mul(%y.mask, %x)``. The
mask is the first factor, so that it counts as what the product keeps for the gradient of ``%x``. ``onnx.RandomNormalLike(%x)``
becomes ``grad.normal(%dropout.seed) {number, mean, scale}``, whether dropouts are on or not: a model that draws noise trains
with noise. The seed is a further argument of the entry function, a number of each microbatch; ``number`` counts the draws of
the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ir.core.attributes import attributes
from ir.core.diagnostics import InvalidInput
from ir.core.module import Func, Module
from ir.core.names import unique
from ir.core.ops import Op, Value
from ir.core.types import DType, TensorType
from ir.layout_rules import Surroundings
from ir.ops.grads import MASK, NORMAL, UNIFORM
from ir.ops.opdefs import module_opsets
from ir.ops.operators import TRAINING_OPERAND
from passes.framework.base import PassContext
from passes.graph.graph import describe, reads
from passes.training.faults import DropsInside, MaskIsRead, NoDropout, RatioNoConstant, RatioOutOfRange

DROPOUT = "onnx.Dropout"
SEED = "%dropout.seed"
_DEFAULT = 0.5
"""The ratio of a Dropout that states none."""


NOISE: Mapping[str, tuple[str, Mapping[str, float]]] = {
    "onnx.RandomNormal": (NORMAL, {"mean": 0.0, "scale": 1.0}),
    "onnx.RandomNormalLike": (NORMAL, {"mean": 0.0, "scale": 1.0}),
    "onnx.RandomUniform": (UNIFORM, {"high": 1.0, "low": 0.0}),
    "onnx.RandomUniformLike": (UNIFORM, {"high": 1.0, "low": 0.0}),
}
"""Operators that draw, with the op that they become and their attributes of floats, by default."""


def with_draws(module: Module, context: PassContext, *, masks: bool) -> Module:
    """The module whose entry draws its noise and, if ``masks``, the masks of its dropouts; a warning where it has none.

    Raises InvalidInput for a dropout whose mask is read, whose ratio is no constant from 0 to below 1, that stands in a region
    or is of another domain."""
    func = module.entry
    names = {value.name for op in func.ops for value in op.results} | {arg.name for arg in func.args}
    seed = unique(SEED, set(names))
    names.add(seed)
    read = {name for op in func.ops for name in reads(op)} | {value.name for value in func.results}
    around = Surroundings(module.resources.values(), module_opsets(module))
    ops, number, dropped = list[Op](), 0, 0
    for op in func.ops:
        if masks:
            _check_inside(op)
        around.see(op)
        if op.name in NOISE:
            kind, numbers = NOISE[op.name]
            fields = attributes(number=number, **{key: float(op.get(key, value)) for key, value in numbers.items()})
            ops.append(Op(kind, (seed,), op.results, fields, location=op.location))
            number += 1
            continue
        ratio = _ratio(op, around) if masks and op.name == DROPOUT else 0.0
        if not ratio:
            ops.append(op)
            continue
        if any(value.name in read for value in op.results[1:]):
            raise InvalidInput(MaskIsRead(), where=describe(op))
        made = op.results[0]
        mask = Value(unique(f"{made.name}.mask", names), made.type)
        fields = attributes(number=number, ratio=ratio)
        ops.append(Op(MASK, (seed,), (mask,), fields, location=op.location))
        ops.append(Op("onnx.Mul", (mask.name, op.operands[0]), (made,), location=op.location))
        number, dropped = number + 1, dropped + 1
    if masks and not dropped:
        context.sink.warn(NoDropout(), where=func.name)
    if not number:
        return module
    context.count("training", dropouts=dropped, noise=number - dropped)
    return module.replace(func, _with_seed(func, ops, seed))


def _with_seed(func: Func, ops: Iterable[Op], seed: str) -> Func:
    return replace(func, ops=tuple(ops), args=(*func.args, Value(seed, TensorType(DType.I64, ()))))


def _ratio(op: Op, around: Surroundings) -> float:
    """What part of the elements a Dropout drops: an attribute before opset 12, then a constant operand."""
    name = op.operands[1] if len(op.operands) > 1 else ""
    if not name:
        ratio = float(op.get("ratio", _DEFAULT))
    else:
        numbers = around.numbers.get(name)
        if numbers is None or len(numbers) != 1:
            raise InvalidInput(RatioNoConstant(name), where=describe(op))
        ratio = float(numbers[0])
    if not 0 <= ratio < 1:
        raise InvalidInput(RatioOutOfRange(ratio), where=describe(op))
    return ratio


def _check_inside(op: Op) -> None:
    """Raises InvalidInput for a dropout that no mask can be made of."""
    if op.name in TRAINING_OPERAND and op.name != DROPOUT:
        raise InvalidInput(DropsInside(op.name), where=describe(op))
    inner = [one for _, region in op.regions for one in region.ops]
    if any(one.name in TRAINING_OPERAND for one in inner):
        raise InvalidInput(DropsInside(f"a dropout inside {op.name}"), where=describe(op))
    for one in inner:
        _check_inside(one)
