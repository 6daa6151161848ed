"""Rules of ops that read or write where indices say: the gradient is added up at the same places."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ir.core.types import DType, TensorType
from passes.differentiate.rules.moves import scattered, zeros
from passes.differentiate.site import Rule, Site

Gradients = Sequence[str | None]


def _adds(site: Site) -> None:
    """Raises InvalidInput where ONNX cannot add at indices."""
    if not site.has_opset(16):
        raise site.fault("its gradient adds up rows, which opset 16 can", "export the model with opset 16 or later")


def gather(site: Site) -> Gradients:
    """Rows of a table: the gradient is added to the rows that were read.

    Of one constant index, the gradient with zeros around it. Else by ScatterND over the first dimension."""
    shape, indices = site.shape(0), site.shape(1)
    axis = int(site.op.get("axis", 0)) % len(shape)
    known = site.numbers(1)
    if known is not None and len(indices) <= 1 and len(set(rows := [int(i) % shape[axis] for i in known])) == len(rows):
        given = site.reshape(site.given, (*shape[:axis], len(rows), *shape[axis + 1 :]))
        return [scattered(site, given, axis, shape[axis], rows)]
    _adds(site)
    count, dtype = len(indices), site.type(0).dtype
    # The indexed dimensions to the front, so that rows of the gradient are rows of the table.
    front = (*range(axis, axis + count), *range(axis), *range(axis + count, len(shape) - 1 + count))
    updates = site.transpose(site.given, front)
    table = (shape[axis], *shape[:axis], *shape[axis + 1 :])
    places = site.reshape(site.operand(1), (*indices, 1))
    found = site.emit("onnx.ScatterND", (zeros(site, table, dtype), places, updates), TensorType(dtype, table), reduction="add")
    return [site.transpose(found, (*range(1, axis + 1), 0, *range(axis + 1, len(shape))))]


def gather_elements(site: Site) -> Gradients:
    """ScatterElements that adds."""
    _adds(site)
    operands = (zeros(site, site.shape(0), site.type(0).dtype), site.operand(1), site.given)
    axis = int(site.op.get("axis", 0))
    return [site.emit("onnx.ScatterElements", operands, site.type(0), axis=axis, reduction="add")]


def gather_nd(site: Site) -> Gradients:
    """ScatterND that adds. It has no batch dimensions: their coordinates stand before the indices."""
    _adds(site)
    batch, shape, indices = int(site.op.get("batch_dims", 0)), site.shape(1), site.operand(1)
    if batch:
        column = (*shape[:-1], 1)
        along = [tuple(shape[dim] if i == dim else 1 for i in range(len(shape))) for dim in range(batch)]
        ahead = [site.program.constant(DType.I64, one, range(max(one))) for one in along]
        columns = [site.expand(one, column) for one in ahead]
        type_ = TensorType(DType.I64, (*shape[:-1], shape[-1] + batch))
        indices = site.emit("onnx.Concat", (*columns, indices), type_, axis=len(shape) - 1)
    operands = (zeros(site, site.shape(0), site.type(0).dtype), indices, site.given)
    return [site.emit("onnx.ScatterND", operands, site.type(0), reduction="add")]


def scatter_elements(site: Site) -> Gradients:
    """What was written over gets no gradient; what was written gets that of its place."""
    reduction = site.op.get("reduction", "none")
    axis, given, indices = int(site.op.get("axis", 0)), site.given, site.operand(1)
    if reduction in ("max", "min"):
        return _scatter_extreme(site, axis)
    if reduction not in ("none", "add"):
        raise site.fault(f"the reduction '{reduction}' has no rule", "use 'none', 'add', 'max' or 'min'")
    first = given
    if reduction == "none" and site.wants(0):
        nothing = zeros(site, site.shape(1), site.type(0).dtype)
        first = site.emit("onnx.ScatterElements", (given, indices, nothing), site.type(0), axis=axis)
    third = site.emit("onnx.GatherElements", (given, indices), site.type(2), axis=axis) if site.wants(2) else None
    return [first, None, third]


def _scatter_extreme(site: Site, axis: int) -> Gradients:
    """All elements that are the extreme of a place share its gradient equally, as in torch's ``scatter_reduce``."""
    result, indices, type_ = site.result(), site.operand(1), site.type(2)
    there = site.emit("onnx.GatherElements", (result, indices), type_, axis=axis)
    old = site.cast(site.compare("Equal", site.operand(0), result), type_.dtype)
    new = site.cast(site.compare("Equal", site.operand(2), there), type_.dtype)
    count = site.emit("onnx.ScatterElements", (old, indices, new), site.type(0), axis=axis, reduction="add")
    each = site.div(site.given, count)
    third = site.mul(new, site.emit("onnx.GatherElements", (each, indices), type_, axis=axis)) if site.wants(2) else None
    return [site.mul(old, each) if site.wants(0) else None, None, third]


def scatter_nd(site: Site) -> Gradients:
    """As ``scatter_elements``, by rows."""
    reduction = site.op.get("reduction", "none")
    if reduction not in ("none", "add"):
        raise site.fault(f"the reduction '{reduction}' has no rule", "use 'none' or 'add'")
    given, indices = site.given, site.operand(1)
    first = given
    if reduction == "none" and site.wants(0):
        nothing = zeros(site, site.shape(2), site.type(0).dtype)
        first = site.emit("onnx.ScatterND", (given, indices, nothing), site.type(0))
    third = site.emit("onnx.GatherND", (given, indices), site.type(2)) if site.wants(2) else None
    return [first, None, third]


def chosen(site: Site) -> Gradients:
    """TopK: the gradient at the places that were chosen."""
    shape = site.shape(0)
    axis = int(site.op.get("axis", -1)) % len(shape)
    places = site.result(1)
    operands = (zeros(site, shape, site.type(0).dtype), places, site.given)
    return [site.emit("onnx.ScatterElements", operands, site.type(0), axis=axis), None]


def compress(site: Site) -> Gradients:
    """Which elements are kept is known when the program runs only."""
    raise site.fault(f"the size of its result depends on values, of at most {math.prod(site.shape(0))} elements")


RULES: dict[str, Rule] = {
    "onnx.Compress": compress,
    "onnx.Gather": gather,
    "onnx.GatherElements": gather_elements,
    "onnx.GatherND": gather_nd,
    "onnx.ScatterElements": scatter_elements,
    "onnx.ScatterND": scatter_nd,
    "onnx.TopK": chosen,
}
