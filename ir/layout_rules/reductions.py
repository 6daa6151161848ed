"""Layout rules of ops along dimensions: reductions, normalisations, Softmax, scans, sorting.

A dimension that is reduced by sum or maximum is a factor of that kind; one whose elements depend on each other in another way
is whole; all others are parallel.
"""

from __future__ import annotations

from collections.abc import Iterable

from ir.core.types import DType
from ir.layout_rules.adapt import Adapt, LocalAttribute, ScaleResult
from ir.layout_rules.draft import Draft, Draw, Place, UnfitError
from ir.layout_rules.rule import Kind


def _reduce(kind: Kind, *, linear: bool = False, mean: bool = False) -> Draw:
    """For a reduction over ``axes``, an attribute or operand; without them over all dimensions, or none if
    ``noop_with_empty_axes``. ``linear``: operands may be terms of the reduction; ``mean``: it is the mean, in shards a sum."""

    def draw(draft: Draft) -> None:
        rank = draft.rank(0)
        kept = bool(draft.get("keepdims", 1))
        axes = draft.axes(1, rank)
        if axes is None:
            axes = _changed(draft, kept)
        elif not axes and not draft.get("noop_with_empty_axes", 0):
            axes = tuple(range(rank))
        if draft.rank(-1) != (rank if kept else rank - len(axes)):
            raise UnfitError(f"axes {axes} do not make rank {rank} into {draft.rank(-1)}")
        dtype = draft.dtype(0)
        exact = dtype is not DType.BOOL and (dtype.is_float or not mean)  # the mean of integers rounds
        adapt: tuple[Adapt, ...] = (ScaleResult(),) if mean else ()
        target = 0
        for dim in range(rank):
            if dim not in axes:
                draft.tie(f"d{dim}", (0, dim), (-1, target))
            elif exact and kind is not Kind.WHOLE:
                draft.tie(f"d{dim}", (0, dim), kind=kind, adapt=adapt)
            target += kept or dim not in axes
        if linear and exact:
            draft.passes((0,), reductions=(kind.value,))

    return draw


def _changed(draft: Draft, kept: bool) -> tuple[int, ...]:
    """The reduced dimensions, by the types alone. Raises UnfitError if the result lacks them."""
    if not kept:
        raise UnfitError("axes are not known")
    pairs = zip(draft.shape(0), draft.shape(-1), strict=True)
    return tuple(dim for dim, (before, after) in enumerate(pairs) if before != after)


def arg_extreme(draft: Draft) -> None:
    """ArgMax and ArgMin: the axis is whole."""
    rank, axis = draft.rank(0), draft.axis("axis", 0)
    kept = bool(draft.get("keepdims", 1))
    for dim in range(rank):
        if dim != axis:
            draft.tie(f"d{dim}", (0, dim), (-1, dim - (not kept and dim > axis)))


def softmax(draft: Draft) -> None:
    """Softmax, LogSoftmax, Hardmax: the axis is whole; before opset 13, all dimensions from it on."""
    axis = draft.axis("axis", -1 if draft.opset >= 13 else 1)
    draft.tie_same((0, -1), whole=(axis,) if draft.opset >= 13 else range(axis, draft.rank(0)))


def along_axis(draft: Draft) -> None:
    """LpNormalization: the axis is whole."""
    draft.tie_same((0, -1), whole=(draft.axis("axis", -1),))


def cumulative(draft: Draft) -> None:
    """CumSum(x, axis): the axis is whole."""
    axis = draft.constant(1)
    if axis is None or len(axis) != 1:
        raise UnfitError("the axis is not known")
    draft.tie_same((0, -1), whole=(draft.dim(int(axis[0]), draft.rank(0)),))
    draft.passes((0,))


def fourier(draft: Draft) -> None:
    """DFT(x, length, axis): the axis is whole, and so are real and imaginary parts, which are the last dimension."""
    stated = draft.constant(2) if draft.present(2) else (draft.get("axis", -2 if draft.opset >= 20 else 1),)
    if stated is None or len(stated) != 1:
        raise UnfitError("the axis is not known")
    axis = draft.dim(int(stated[0]), draft.rank(0))
    for dim in range(draft.rank(0) - 1):
        if dim != axis:
            draft.tie(f"d{dim}", (0, dim), (-1, dim))
    draft.passes((0,))


def top_k(draft: Draft) -> None:
    """TopK: the axis is whole, in both results."""
    draft.tie_same((0, -1, -2), whole=(draft.axis("axis", -1),))


def _trailing_norm(*, skip: bool) -> Draw:
    """For LayerNormalization, RMSNormalization and the like: dimensions from the axis on are whole, in scale and bias too; all
    results have the others. ``skip``: the axis is the last one; operand 1 is added first, and the sum may be the last
    result."""

    def draw(draft: Draft) -> None:
        rank = draft.rank(0)
        results = [-1 - i for i in range(len(draft.results)) if draft.present(-1 - i) and draft.rank(-1 - i) > 0]
        for dim in range(rank - 1 if skip else draft.axis("axis", -1)):
            others = [i for i in range(1, len(draft.operands)) if draft.present(i) and draft.rank(i) >= rank - dim]
            draft.tie(f"d{dim}", (0, dim), *((i, dim - rank) for i in others), *((i, dim) for i in results))
        draft.no_gradient.update({-2, -3})

    return draw


def batch_norm(draft: Draft) -> None:
    """BatchNormalization(x, scale, bias, mean, variance): all dimensions are parallel; in training the statistics are over
    samples and positions, so only channels are."""
    trains = draft.get("training_mode", 0) or (draft.opset < 7 and not draft.get("is_test", 0))
    if not draft.get("spatial", 1) or (len(draft.results) > 1 and not trains):
        raise UnfitError("a form of before opset 9")
    channel: list[Place] = [(i, 0) for i in (1, 2, 3, 4)] + [(-1 - i, 0) for i in range(1, len(draft.results))]
    draft.tie("channel", (0, 1), (-1, 1), *channel)
    if not trains:
        for dim in range(draft.rank(0)):
            if dim != 1:
                draft.tie(f"d{dim}", (0, dim), (-1, dim))
    else:
        draft.no_gradient.update({3, 4, -2, -3})


def instance_norm(draft: Draft) -> None:
    """InstanceNormalization: statistics of each sample and channel."""
    draft.tie("batch", (0, 0), (-1, 0))
    draft.tie("channel", (0, 1), (1, 0), (2, 0), (-1, 1))


def group_norm(draft: Draft) -> None:
    """GroupNormalization: statistics of each sample and group of channels; scale and bias are per channel, or, before opset
    21, per group."""
    groups = int(draft.get("num_groups"))
    draft.tie("batch", (0, 0), (-1, 0))
    draft.tie("group", (0, 1), (1, 0), (2, 0), (-1, 1), size=groups, adapt=(LocalAttribute("num_groups"),))


def local_response(draft: Draft) -> None:
    """LRN: an element depends on neighbouring channels, which are whole."""
    draft.tie_same((0, -1), whole=(1,))


def mean_variance(draft: Draft) -> None:
    """MeanVarianceNormalization: its axes are whole."""
    rank = draft.rank(0)
    axes: Iterable[int] = draft.get("axes", (0, 2, 3))
    draft.tie_same((0, -1), whole=[draft.dim(axis, rank) for axis in axes])


_LAST = _trailing_norm(skip=False)
_SKIP = _trailing_norm(skip=True)

RULES: dict[str, Draw] = {
    "onnx.ArgMax": arg_extreme,
    "onnx.ArgMin": arg_extreme,
    "onnx.BatchNormalization": batch_norm,
    "onnx.CumSum": cumulative,
    "onnx.DFT": fourier,
    "onnx.GroupNormalization": group_norm,
    "onnx.Hardmax": softmax,
    "onnx.InstanceNormalization": instance_norm,
    "onnx.LRN": local_response,
    "onnx.LayerNormalization": _LAST,
    "onnx.LogSoftmax": softmax,
    "onnx.LpNormalization": along_axis,
    "onnx.MeanVarianceNormalization": mean_variance,
    "onnx.RMSNormalization": _LAST,
    "onnx.ReduceL1": _reduce(Kind.SUM),
    "onnx.ReduceL2": _reduce(Kind.WHOLE),
    "onnx.ReduceLogSum": _reduce(Kind.WHOLE),
    "onnx.ReduceLogSumExp": _reduce(Kind.WHOLE),
    "onnx.ReduceMax": _reduce(Kind.MAX, linear=True),
    "onnx.ReduceMean": _reduce(Kind.SUM, linear=True, mean=True),
    "onnx.ReduceMin": _reduce(Kind.WHOLE),
    "onnx.ReduceProd": _reduce(Kind.WHOLE),
    "onnx.ReduceSum": _reduce(Kind.SUM, linear=True),
    "onnx.ReduceSumSquare": _reduce(Kind.SUM),
    "onnx.SimplifiedLayerNormalization": _LAST,
    "onnx.Softmax": softmax,
    "onnx.TopK": top_k,
    "onnx.com.microsoft.SkipLayerNormalization": _SKIP,
    "onnx.com.microsoft.SkipSimplifiedLayerNormalization": _SKIP,
}
"""By the op's full name."""
