"""Transposes between merged dimensions: exporters write a transpose of the last dimensions of ``[B, H, S, D]`` as

    Reshape to [B*H, S, D] -> Transpose [0, 2, 1] -> Reshape to [B, H, D, S]

which is one Transpose ``[0, 1, 3, 2]``. Beside two ops less, the leading dimensions stay apart, so that each can be split over
devices: heads are no contiguous part of ``B*H``.
"""

from __future__ import annotations

from collections.abc import Mapping

from ir.core.attributes import attributes
from ir.core.ops import Op
from ir.core.types import TensorType, Type

_CHAIN = ("onnx.Reshape", "onnx.Transpose", "onnx.Reshape")


def unmerged(op: Op, makers: Mapping[str, Op], types: Mapping[str, Type]) -> Op | None:
    """The transpose that ``op``, the last of such a chain, makes of what the first one read; None where it is none.

    The shapes prove it: the middle keeps the merged dimension first, the dimensions behind it are the same on both sides but
    for the permutation, and the leading ones come back as they were."""
    chain = _chain(op, makers)
    if chain is None:
        return None
    first, middle = chain
    source, merged, result = (
        _shape(type_) for type_ in (types.get(first.operands[0]), first.results[0].type, op.results[0].type)
    )
    if source is None or merged is None or result is None or len(merged) < 2 or len(result) != len(source):
        return None
    perm = tuple(middle.get("perm") or reversed(range(len(merged))))
    lead = len(source) - len(merged) + 1
    if lead < 2 or perm[0] != 0 or sorted(perm) != list(range(len(merged))):
        return None
    order = (*range(lead), *(axis + lead - 1 for axis in perm[1:]))
    if merged[1:] != source[lead:] or result != tuple(source[axis] for axis in order):
        return None
    return Op(
        "onnx.Transpose",
        (first.operands[0],),
        op.results,
        attributes({"perm": list(order)}),
        facets=op.facets,
        location=op.location,
    )


def _chain(op: Op, makers: Mapping[str, Op]) -> tuple[Op, Op] | None:
    """The reshape and the transpose before ``op``, where it is the end of such a chain."""
    middle = makers.get(op.operands[0]) if op.name == _CHAIN[2] and op.operands else None
    first = makers.get(middle.operands[0]) if middle is not None and middle.name == _CHAIN[1] and middle.operands else None
    return (first, middle) if first is not None and middle is not None and first.name == _CHAIN[0] and first.operands else None


def _shape(type_: Type | None) -> tuple[int | str, ...] | None:
    """The shape, None where a dimension is not known."""
    shape = type_.shape if isinstance(type_, TensorType) else None
    return None if shape is None or None in shape else tuple(dim for dim in shape if dim is not None)
