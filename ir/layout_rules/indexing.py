"""Layout rules of ops that pick or put elements by index: Gather and Scatter in their forms, OneHot.

An indexed dimension is a factor of kind sum if an index into another shard can yield zero (an embedding split by vocabulary),
else whole.
"""

from __future__ import annotations

from ir.core.types import DType
from ir.layout_rules.adapt import LocalEntry, ShiftIndices
from ir.layout_rules.draft import BOTH, Draft, Draw, Place, UnfitError
from ir.layout_rules.rule import Kind


def _addable(draft: Draft) -> bool:
    return draft.dtype(-1) not in (DType.BOOL, DType.STRING)


def gather(draft: Draft) -> None:
    """Gather(data, indices): the dimensions of the indices replace ``axis``."""
    axis, picked = draft.axis("axis", 0), draft.rank(1)
    behind = draft.rank(0) - axis - 1
    if draft.rank(-1) != axis + picked + behind:
        raise UnfitError("the result does not have that rank")
    for dim in range(draft.rank(0)):
        if dim < axis:
            draft.tie(f"d{dim}", (0, dim), (-1, dim))
        elif dim > axis:
            draft.tie(f"d{dim}", (0, dim), (-1, dim + picked - 1))
        elif _addable(draft):
            draft.tie("entry", (0, dim), kind=Kind.SUM, adapt=(ShiftIndices(1, behind),), divided=False)
    for dim in range(picked):
        draft.tie(f"i{dim}", (1, dim), (-1, axis + dim))
    draft.passes((0,), reductions=BOTH)


def gather_elements(draft: Draft) -> None:
    """GatherElements(data, indices): a dimension other than ``axis`` is parallel if data and indices are equally long there."""
    axis = draft.axis("axis", 0)
    for dim in range(draft.rank(0)):
        if dim == axis:
            draft.tie("index", (1, dim), (-1, dim))
            if _addable(draft):
                draft.tie("entry", (0, dim), kind=Kind.SUM, adapt=(ShiftIndices(1, 0),), divided=False)
        elif draft.shape(0)[dim] == draft.shape(1)[dim]:
            draft.tie(f"d{dim}", (0, dim), (1, dim), (-1, dim))
    draft.passes((0,), reductions=BOTH)


def gather_nd(draft: Draft) -> None:
    """GatherND(data, indices [.., k]): after the batch dimensions, k dimensions of the data are indexed, the others copied."""
    batches = int(draft.get("batch_dims", 0))
    width = draft.shape(1)[-1]
    if not isinstance(width, int) or not batches + width <= draft.rank(0):
        raise UnfitError("the length of an index is not known")
    count = draft.rank(1) - 1
    for dim in range(count):
        places: list[Place] = [(0, dim)] if dim < batches else []
        draft.tie(f"i{dim}", *places, (1, dim), (-1, dim))
    for dim in range(batches + width, draft.rank(0)):
        draft.tie(f"d{dim}", (0, dim), (-1, dim - batches - width + count))
    draft.passes((0,), reductions=BOTH)


def scatter_elements(draft: Draft) -> None:
    """ScatterElements(data, indices, updates) and Scatter: a dimension other than ``axis`` is parallel if data and indices are
    equally long there. Added updates may be split along ``axis``, with the data on one member. Data and updates may be terms
    together."""
    axis = draft.axis("axis", 0)
    adds = draft.get("reduction", "none") == "add"
    for dim in range(draft.rank(0)):
        if dim == axis and adds and _addable(draft):
            draft.tie("update", (1, dim), (2, dim), kind=Kind.SUM, partial=(0,))
        elif dim != axis and draft.shape(0)[dim] == draft.shape(1)[dim]:
            draft.tie(f"d{dim}", (0, dim), (1, dim), (2, dim), (-1, dim))
    _scatter_terms(draft)


def scatter_nd(draft: Draft) -> None:
    """ScatterND(data, indices [.., k], updates): the first k dimensions of the data are indexed, the others copied. Added
    updates may be split, with the data on one member."""
    width = draft.shape(1)[-1]
    if not isinstance(width, int) or width > draft.rank(0):
        raise UnfitError("the length of an index is not known")
    count = draft.rank(1) - 1
    if draft.get("reduction", "none") == "add" and _addable(draft):
        for dim in range(count):
            draft.tie(f"i{dim}", (1, dim), (2, dim), kind=Kind.SUM, partial=(0,))
    for dim in range(width, draft.rank(0)):
        draft.tie(f"d{dim}", (0, dim), (2, dim - width + count), (-1, dim))
    _scatter_terms(draft)


def _scatter_terms(draft: Draft) -> None:
    """Replacing and adding are linear in data and updates together."""
    if draft.get("reduction", "none") in ("none", "add"):
        draft.passes((0, 2))


def one_hot(draft: Draft) -> None:
    """OneHot(indices, depth, values [off, on]): the dimensions of the indices are parallel, and so is the new one if the depth
    is a constant: a member marks its own classes."""
    rank = draft.rank(-1)
    axis = draft.dim(int(draft.get("axis", -1)), rank)
    for dim in range(rank):
        if dim == axis:
            if draft.constant(1) is not None and draft.dtype(0).is_integer and draft.dtype(0).value[0] == "i":
                draft.tie("class", (-1, dim), adapt=(ShiftIndices(0, None), LocalEntry(1, 0)))
        else:
            draft.tie(f"i{dim - (dim > axis)}", (0, dim - (dim > axis)), (-1, dim))


RULES: dict[str, Draw] = {
    "onnx.Gather": gather,
    "onnx.GatherElements": gather_elements,
    "onnx.GatherND": gather_nd,
    "onnx.OneHot": one_hot,
    "onnx.Scatter": scatter_elements,
    "onnx.ScatterElements": scatter_elements,
    "onnx.ScatterND": scatter_nd,
}
"""By the op's full name."""
