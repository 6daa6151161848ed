"""Results that are constants: read off types, or computed from constant operands by the evaluator.

Results small enough are spelled out; a tensor of one value may be much larger (models without their weights have such), until
all together are ``repeated_bytes``: what goes beyond is computed when the program runs, as the model says. Weights in files are
no constants here, and a quantised constant is never widened to floating point: ``DequantizeLinear`` stays beside what it feeds.
"""

from __future__ import annotations

from collections.abc import Callable

from ir.core.attributes import Dense
from ir.core.limits import LIMITS
from ir.core.names import ABSENT
from ir.core.ops import Op
from ir.core.types import TensorType, Type, UnknownType, type_bytes
from ir.ops.operators import DEQUANTISES, QUANTISES, RANDOM, SELECTS, has
from ir.text.dense import storage_fault
from passes.framework.base import ConstantEvaluator
from passes.prepare.canonicalize.constants import Constants, constant_dense, first_value, holds, ints_dense

Types = dict[str, Type]
Answer = Dense | int | float
"""A constant result: its elements, or the one value that all of them have."""


def folded(
    op: Op, types: Types, constants: Constants, evaluate: ConstantEvaluator | None, opsets: dict[str, int]
) -> tuple[Answer, ...] | None:
    """The constant results of ``op``, all of them, or None."""
    if op.dialect != "onnx" or op.regions or not op.results:
        return None
    if (
        op.name != "onnx.Constant"
        and sum(type_bytes(v.type) or 0 for v in op.results) + constants.repeated > LIMITS.repeated_bytes
    ):
        return None
    rule = _RULES.get(op.name)
    if rule is not None and len(op.results) == 1 and (answer := rule(op, types, constants)) is not None:
        return (answer,) if _fits(answer, op.results[0].type) else None
    if not any(op.operands):
        return None
    if has(op, SELECTS) and all(static(result.type) for result in op.results):
        value = constants.splat(op.operands[0])
        if value is not None:  # one value everywhere, whatever moves
            source = types.get(op.operands[0])
            return (value,) * len(op.results) if all(_same_element(source, result.type) for result in op.results) else None
    if evaluate is None or has(op, RANDOM, QUANTISES, DEQUANTISES) or constants.made > LIMITS.all_folded_bytes:
        return None
    if any((type_bytes(result.type) or 0) > constants.limit for result in op.results):
        return None
    operands: list[Dense | None] = []
    for name in op.operands:
        dense = None if name == ABSENT else constants.dense(name)
        if dense is None and name != ABSENT:
            return None
        operands.append(dense)
    results = evaluate(op, tuple(operands), opsets)
    if results is None or not all(_fits(dense, value.type) for dense, value in zip(results, op.results, strict=True)):
        return None
    return results


def static(type_: Type) -> bool:
    """Whether ``type_`` is a tensor with a number for every dimension."""
    return isinstance(type_, TensorType) and type_.elements is not None


def _same_element(one: Type | None, other: Type) -> bool:
    return isinstance(one, TensorType) and isinstance(other, TensorType) and one.dtype is other.dtype


def _fits(answer: Answer, declared: Type) -> bool:
    """Whether a result is of the type that inference found: else one of the two is wrong, and the op stays."""
    if not isinstance(answer, Dense):
        return isinstance(declared, TensorType) and holds(declared.dtype, answer)
    dense = answer
    if storage_fault(dense.type, dense.data):
        return False
    if not isinstance(declared, TensorType):
        return isinstance(declared, UnknownType)
    given = dense.type.shape or ()
    if declared.dtype is not dense.type.dtype or declared.sparse:
        return False
    if declared.shape is None:
        return True
    pairs = zip(given, declared.shape, strict=False)
    return len(given) == len(declared.shape) and all(not isinstance(dim, int) or dim == have for have, dim in pairs)


def _constant(op: Op, types: Types, constants: Constants) -> Answer | None:
    return constant_dense({key: attribute.value for key, attribute in op.attributes})


def _shape(op: Op, types: Types, constants: Constants) -> Answer | None:
    """Shape, of the dimensions from ``start`` to ``end`` (opset 15) when these are numbers."""
    given = types.get(op.operands[0]) if op.operands else None
    if not isinstance(given, TensorType) or given.shape is None:
        return None
    dims = given.shape[op.get("start", 0) : op.get("end", len(given.shape))]
    numbers = [dim for dim in dims if isinstance(dim, int) and dim < 1 << 63]
    return ints_dense(numbers) if len(numbers) == len(dims) else None


def _size(op: Op, types: Types, constants: Constants) -> Answer | None:
    given = types.get(op.operands[0]) if op.operands else None
    if not isinstance(given, TensorType) or given.elements is None or given.elements >= 1 << 63:
        return None
    return ints_dense([given.elements], scalar=True)


def _constant_of_shape(op: Op, types: Types, constants: Constants) -> Answer | None:
    """Any size: one value, float 0 without an attribute."""
    if not static(op.results[0].type):
        return None
    value = op.get("value")
    return first_value(value) if isinstance(value, Dense) else 0.0


_RULES: dict[str, Callable[[Op, Types, Constants], Answer | None]] = {
    "onnx.Constant": _constant,
    "onnx.Shape": _shape,
    "onnx.Size": _size,
    "onnx.ConstantOfShape": _constant_of_shape,
}
