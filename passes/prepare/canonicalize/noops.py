"""Ops that hand an operand through: proven from types and constants, never from what data are likely.

``passed_through`` answers with the operand that every element of the first result equals, in the same order and bit for bit
(the payload of a NaN aside). Two types prove a shape equal when they are equal and hold no unknown dimension; a symbol stands
for one number. Adding a floating-point 0.0 is no identity (it turns -0.0 into 0.0); subtracting it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ir.core.names import ABSENT
from ir.core.ops import Op
from ir.core.types import TensorType, Type
from passes.prepare.canonicalize.constants import Constants

Types = dict[str, Type]
Rule = Callable[[Op, Types, Constants], str | None]


def passed_through(op: Op, types: Types, constants: Constants) -> str | None:
    """The operand that the op's only used result equals, or None. The caller checks that other results are unused."""
    rule = _RULES.get(op.name)
    if rule is None or not op.operands or not op.results:
        return None
    try:
        return rule(op, types, constants) or None
    except IndexError:  # too few operands, a permutation of another rank: no valid op, and not this pass's to report
        return None


def _same_type(op: Op, types: Types, operand: int = 0) -> bool:
    """Whether the first result has the operand's element type and provably its shape."""
    given, made = types.get(op.operands[operand]), op.results[0].type
    return isinstance(given, TensorType) and given == made and given.shape is not None and None not in given.shape


def _identity(op: Op, types: Types, constants: Constants) -> str | None:
    return op.operands[0]


def _same_shape(op: Op, types: Types, constants: Constants) -> str | None:
    """Cast, Reshape, Squeeze, Expand...: what they do to the type is all they do."""
    return op.operands[0] if _same_type(op, types) else None


def _dropout(op: Op, types: Types, constants: Constants) -> str | None:
    """At inference. ``training_mode`` is an operand since opset 12; before, training was another graph."""
    if len(op.operands) > 2 and op.operands[2] != ABSENT and constants.splat(op.operands[2]) != 0:
        return None
    return op.operands[0]


def _transpose(op: Op, types: Types, constants: Constants) -> str | None:
    """The permutation leaves the order of the dimensions that are not 1."""
    if not _same_type(op, types):
        return None
    given = types[op.operands[0]]
    assert isinstance(given, TensorType)
    shape = given.shape or ()
    order = op.get("perm") or tuple(reversed(range(len(shape))))
    moving = [axis for axis in order if shape[axis] != 1]
    return op.operands[0] if moving == sorted(moving) else None


def _slice(op: Op, types: Types, constants: Constants) -> str | None:
    """As many elements as before, taken forwards: all of them."""
    if len(op.operands) > 4 and op.operands[4] != ABSENT:
        steps = constants.ints(op.operands[4])
        if steps is None or min(steps, default=1) < 1:
            return None
    return _same_shape(op, types, constants)


def _pad(op: Op, types: Types, constants: Constants) -> str | None:
    """Equal shapes are not enough: a pad of 1 and a crop of 1 shift the elements."""
    pads = op.get("pads") or (constants.ints(op.operands[1]) if len(op.operands) > 1 else None)
    return op.operands[0] if pads is not None and not any(pads) else None


def _one_operand(op: Op, types: Types, constants: Constants) -> str | None:
    """Concat, Sum, Max...: of one operand."""
    return op.operands[0] if len(op.operands) == 1 else None


def _one_result(op: Op, types: Types, constants: Constants) -> str | None:
    return op.operands[0] if len(op.results) == 1 and _same_type(op, types) else None


def _neutral(value: float, *, sides: tuple[int, ...]) -> Rule:
    """A binary op whose operand on one of ``sides`` is everywhere ``value``: the other operand."""

    def rule(op: Op, types: Types, constants: Constants) -> str | None:
        for side in sides:
            if constants.splat(op.operands[side]) == value and _same_type(op, types, 1 - side):
                return op.operands[1 - side]
        return None

    return rule


def _add(op: Op, types: Types, constants: Constants) -> str | None:
    """Plus an integer 0, or plus -0.0 (the neutral element of floating-point addition)."""
    for side in (0, 1):
        value = constants.splat(op.operands[side])
        if value == 0 and _same_type(op, types, 1 - side) and (not _is_float(op) or math.copysign(1.0, value) < 0):
            return op.operands[1 - side]
    return None


def _subtract(op: Op, types: Types, constants: Constants) -> str | None:
    """Minus an integer 0 or minus 0.0; minus -0.0 would turn -0.0 into 0.0."""
    value = constants.splat(op.operands[1])
    if value == 0 and _same_type(op, types) and (not _is_float(op) or math.copysign(1.0, value) > 0):
        return op.operands[0]
    return None


def _is_float(op: Op) -> bool:
    made = op.results[0].type
    return isinstance(made, TensorType) and made.dtype.is_float


def _where(op: Op, types: Types, constants: Constants) -> str | None:
    condition = constants.splat(op.operands[0])
    if condition is None:
        return None
    chosen = 1 if condition else 2
    return op.operands[chosen] if _same_type(op, types, chosen) else None


_RULES: dict[str, Rule] = {
    "onnx.Identity": _identity,
    **{
        f"onnx.{name}": _same_shape
        for name in ("Cast", "CastLike", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Expand", "Tile")
    },
    **{f"onnx.{name}": _one_operand for name in ("Concat", "Sum", "Mean", "Max", "Min")},
    "onnx.Dropout": _dropout,
    "onnx.Transpose": _transpose,
    "onnx.Slice": _slice,
    "onnx.Pad": _pad,
    "onnx.Split": _one_result,
    "onnx.Where": _where,
    "onnx.Add": _add,
    "onnx.Sub": _subtract,
    "onnx.Mul": _neutral(1, sides=(0, 1)),
    "onnx.Div": _neutral(1, sides=(1,)),
    "onnx.And": _neutral(1, sides=(0, 1)),
    "onnx.Or": _neutral(0, sides=(0, 1)),
    "onnx.Xor": _neutral(0, sides=(0, 1)),
}
