"""Which values of a training step lie in the memory of another value, as PyTorch's views do.

A Transpose, a Split, an Expand and what only changes a shape make views where they can: the elements stay where they are, and
the view has other strides, 0 along what is repeated. A new shape for which no strides exist is a copy, as that of a matrix that
was transposed and is flattened (``torch.Tensor.view``, "each new view size .. must be a subspace of an original dimension"). A
view keeps all of the memory it lies in: a part of a Split the whole, and a transposed weight nothing but the weight. What an
elementwise op makes of a view is new, in the order of that view, so a new shape of it may be a copy, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from ir.core.ops import Op, Value
from ir.core.types import TensorType
from ir.ops import operators
from passes.graph.graph import reads

Numbers = tuple[int, ...]

_ALWAYS = ("onnx.Transpose", "onnx.Split", "onnx.Expand")
"""Ops whose results are views whatever the strides of the operand."""


class _Strided(NamedTuple):
    """A view lies in the memory of ``base``, of elements that are so far apart along its dimensions; None where that is not
    known."""

    base: str
    shape: Numbers
    strides: Numbers | None


def bases(ops: Iterable[Op]) -> dict[str, str]:
    """Of each view that the ops make the value or resource whose memory it is, which is no view itself. Values of
    unknown shape, and those that the bodies of ops see, count as copies."""
    ops = [*ops]
    inside = {name for op in ops if op.regions for name in reads(op)}
    known: dict[str, _Strided] = {}
    shapes = {value.name: _shape(value) for op in ops for value in op.results}
    for op in ops:
        if not op.operands or any(value.name in inside for value in op.results):
            continue
        if not _may_be_view(op):
            known.update(
                (value.name, kept) for value in op.results if (kept := _in_order(op, value, known, shapes)) is not None
            )
            continue
        for value in op.results:
            source, shape = known.get(op.operands[0]) or _contiguous(op, value, shapes), shapes[value.name]
            if source is None or shape is None:
                continue
            strides = _strides(op, shape, source)
            if strides is not None or op.name in _ALWAYS:
                known[value.name] = _Strided(source.base, shape, strides)
    return {name: view.base for name, view in known.items() if name != view.base}


def _may_be_view(op: Op) -> bool:
    return operators.has(op, operators.SHAPE_ONLY) or op.name in _ALWAYS


def _in_order(op: Op, value: Value, known: Mapping[str, _Strided], shapes: Mapping[str, Numbers | None]) -> _Strided | None:
    """A new value whose dimensions lie in the order in which those of the first operand of its shape do, as PyTorch writes what
    an elementwise op makes of a view; None where that is the usual order, or the op another."""
    shape = shapes[value.name]
    if shape is None or not operators.has(op, operators.ELEMENTWISE):
        return None
    source = known.get(next((name for name in op.operands if shapes.get(name) == shape), ""))
    if source is None or source.strides is None or 0 in source.strides or source.strides == _dense(shape):
        return None
    apart = source.strides
    order = sorted(range(len(shape)), key=lambda at: -apart[at])
    strides = _dense(tuple(shape[at] for at in order))
    return _Strided(value.name, shape, tuple(strides[at] for at in _inverse(order)))


def _shape(value: Value) -> Numbers | None:
    shape = value.type.shape if isinstance(value.type, TensorType) else None
    return None if shape is None or not all(isinstance(size, int) for size in shape) else tuple(map(int, map(str, shape)))


def _contiguous(op: Op, value: Value, shapes: Mapping[str, Numbers | None]) -> _Strided | None:
    """The operand of an op whose result is ``value``, without gaps; of what only changes a shape under that shape."""
    shape = shapes[value.name]
    if op.name == "onnx.Expand":
        before = shapes.get(op.operands[0])
        return _Strided(op.operands[0], before or (), None if before is None else _dense(before))
    if shape is not None and op.name == "onnx.Transpose":
        shape = tuple(shape[at] for at in _inverse(_order(op, len(shape))))
    elif op.name == "onnx.Split":
        sizes, axis = [_shape(one) for one in op.results], int(op.get("axis", 0))
        if shape is None or None in sizes:
            return None
        axis %= len(shape)
        shape = (*shape[:axis], sum(size[axis] for size in sizes if size is not None), *shape[axis + 1 :])
    return None if shape is None else _Strided(op.operands[0], shape, _dense(shape))


def _strides(op: Op, shape: Numbers, source: _Strided) -> Numbers | None:
    """Those of a result of this shape as a view of the operand; None where it is none, or they are not known."""
    if source.strides is None:
        return None
    if op.name == "onnx.Transpose":
        return tuple(source.strides[at] for at in _order(op, len(shape)))
    if op.name == "onnx.Expand":
        new = len(shape) - len(source.shape)
        old = zip(shape[new:], source.shape, source.strides, strict=True)
        return (*(0 for _ in range(new)), *(stride if size == before else 0 for size, before, stride in old))
    return source.strides if op.name == "onnx.Split" else _reshaped(source.shape, source.strides, shape)


def _reshaped(before: Numbers, old: Numbers, shape: Numbers) -> Numbers | None:
    """Strides under another shape. Dimensions that lie without a gap are one run of elements, and each run has to be cut into
    whole new dimensions."""
    if 0 in shape:
        return _dense(shape)
    runs: list[tuple[int, int]] = []  # elements, and how far apart they are
    for size, stride in zip(before, old, strict=True):
        if size == 1:
            continue
        if runs and runs[-1][1] == size * stride:
            runs[-1] = runs[-1][0] * size, stride
        else:
            runs.append((size, stride))
    strides, left = [0] * len(shape), 1
    for at in reversed(range(len(shape))):
        if shape[at] == 1:
            continue
        if left == 1:
            if not runs:
                return None
            left, apart = runs.pop()
        if left % shape[at]:
            return None
        strides[at] = apart
        left, apart = left // shape[at], apart * shape[at]
    return tuple(strides) if left == 1 and not runs else None


def _order(op: Op, rank: int) -> Sequence[int]:
    stated = op.get("perm")
    return tuple(map(int, stated)) if stated else tuple(reversed(range(rank)))


def _inverse(order: Sequence[int]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)


def _dense(shape: Numbers) -> Numbers:
    return tuple(accumulate(reversed(shape[1:]), int.__mul__, initial=1))[::-1] if shape else ()
