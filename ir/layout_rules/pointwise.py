"""Layout rules of ops that work element by element, broadcasting included.

Every dimension of the result is a parallel factor, which an operand that broadcasts along it lacks. The ops differ only in the
operands that may be terms of a reduction.
"""

from __future__ import annotations

from collections.abc import Mapping

from ir.layout_rules.draft import BOTH, Draft, Draw, UnfitError
from ir.ops.operators import ELEMENTWISE, names_with

_SUMS: Mapping[str, tuple[tuple[int, ...], ...]] = {
    "Add": ((0, 1),),
    "Div": ((0,),),
    "Mul": ((0,), (1,)),
    "Neg": ((0,),),
    "Sub": ((0, 1),),
}
"""Groups of operands that may be terms of a sum together: for fixed other operands, the op is jointly linear in them."""

_MAXIMA: Mapping[str, tuple[tuple[int, ...], ...]] = {
    "Add": ((0,), (1,)),
    "Ceil": ((0,),),
    "Erf": ((0,),),
    "Exp": ((0,),),
    "Floor": ((0,),),
    "Relu": ((0,),),
    "Sigmoid": ((0,),),
    "Softplus": ((0,),),
    "Sub": ((0,),),
    "Tanh": ((0,),),
}
"""Operands that may be terms of a maximum: the op never decreases in them, f(max(x, y)) = max(f(x), f(y)). Log and Sqrt are not
among these: a term may be negative though the maximum is not, and then yields NaN."""


def _pointwise(name: str) -> Draw:
    """For the op ``onnx.<name>``."""

    def draw(draft: Draft) -> None:
        _modern_broadcast(draft)
        draft.tie_broadcast(range(len(draft.operands)))
        if name != "Div" or draft.dtype(-1).is_float:  # division of integers rounds
            draft.passes(*_SUMS.get(name, ()))
        draft.passes(*_MAXIMA.get(name, ()), reductions=("max",))

    return draw


def _modern_broadcast(draft: Draft) -> None:
    """Raises UnfitError for the broadcasting of opsets before 7, by the attributes ``broadcast`` and ``axis``."""
    shapes = {draft.shape(i) for i in range(len(draft.operands)) if draft.present(i)}
    if draft.get("broadcast") is not None or draft.get("axis") is not None or (draft.opset < 7 and len(shapes) > 1):
        raise UnfitError("broadcasts as before opset 7")


def _variadic(*reductions: str) -> Draw:
    """For an op of any number of operands, all of which may be terms together."""

    def draw(draft: Draft) -> None:
        draft.tie_broadcast(range(len(draft.operands)))
        if reductions:
            draft.passes(tuple(range(len(draft.operands))), reductions=reductions)

    return draw


def where(draft: Draft) -> None:
    """Where(condition, x, y): x and y may be terms together."""
    draft.tie_broadcast((0, 1, 2))
    draft.passes((1, 2), reductions=BOTH)


def cast(draft: Draft) -> None:
    """Cast and CastLike(x, y), which casts to the type of y. Terms pass if the cast does not round: the sum of rounded terms is
    not the rounded sum."""
    draft.tie_broadcast((0,))
    before, after = draft.dtype(0), draft.dtype(-1)
    if before == after or (before.is_float and after.is_float and after.bits > before.bits):
        draft.passes((0,), reductions=BOTH)


def identity(draft: Draft) -> None:
    """Identity."""
    draft.tie_broadcast((0,))
    draft.passes((0,), reductions=BOTH)


def dropout(draft: Draft) -> None:
    """Dropout at inference returns its operand. In training it has no rule, since shards would draw different random
    numbers."""
    if draft.constant(2) not in ((0,), None) or (draft.present(2) and draft.constant(2) is None):
        raise UnfitError("may be training")
    if draft.opset < 7 and not draft.get("is_test", 0):
        raise UnfitError("trains")
    draft.tie_broadcast((0,), range(-1, -1 - len(draft.results), -1))
    if len(draft.results) == 1:
        draft.passes((0,), reductions=BOTH)


def quantize(draft: Draft) -> None:
    """QuantizeLinear and DequantizeLinear(x, scale, zero point): one scale, or one per index of ``axis``."""
    if int(draft.get("block_size", 0)):
        raise UnfitError("scales of blocks")
    axis = draft.axis("axis", 1) if draft.rank(1) else -1
    for dim in range(draft.rank(0)):
        scales = ((1, 0), (2, 0)) if dim == axis else ()
        draft.tie(f"d{dim}", (0, dim), (-1, dim), *scales)
    draft.no_gradient.update({0, 1, 2})


RULES: dict[str, Draw] = {
    **{name: _pointwise(name.removeprefix("onnx.")) for name in sorted(names_with(ELEMENTWISE))},
    "onnx.Cast": cast,
    "onnx.CastLike": cast,
    "onnx.DequantizeLinear": quantize,
    "onnx.Dropout": dropout,
    "onnx.Identity": identity,
    "onnx.Max": _variadic("max"),
    "onnx.Mean": _variadic("sum"),
    "onnx.Min": _variadic(),
    "onnx.QuantizeLinear": quantize,
    "onnx.Sum": _variadic("sum"),
    "onnx.com.microsoft.DequantizeLinear": quantize,
    "onnx.com.microsoft.QuantizeLinear": quantize,
    "onnx.Where": where,
}
"""By the op's full name."""
