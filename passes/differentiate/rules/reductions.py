"""Rules of reductions: the gradient of the result is spread over what was reduced, times the derivative there."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ir.core.types import TensorType
from passes.differentiate.site import Rule, Site

Gradients = Sequence[str | None]


def reduced_axes(site: Site) -> tuple[int, ...]:
    """The dimensions that a reduction sums over, ascending."""
    rank = len(site.shape(0))
    axes = site.axes(1, rank)
    if not axes:
        return () if site.op.get("noop_with_empty_axes", 0) else tuple(range(rank))
    return axes


def kept(site: Site, name: str) -> str:
    """A tensor of the result's shape, with dimensions of length 1 where it was reduced."""
    axes = reduced_axes(site)
    return site.reshape(name, [1 if i in axes else size for i, size in enumerate(site.shape(0))])


def spread(site: Site, name: str) -> str:
    """A tensor of the result's shape, the same all along what was reduced."""
    return site.expand(name if not site.shape_of(name) else kept(site, name), site.shape(0))


def reduce_sum(site: Site) -> Gradients:
    return [spread(site, site.given), None]


def reduce_mean(site: Site) -> Gradients:
    """ReduceMean and GlobalAveragePool."""
    count = math.prod(site.shape(0)) // max(1, math.prod(site.shape(-1)))
    scaled = site.mul(site.given, 1.0 / max(1, count)) if count != 1 else site.given
    if site.op.name == "onnx.GlobalAveragePool":
        return [site.expand(scaled, site.shape(0))]
    return [spread(site, scaled), None]


def reduce_extreme(site: Site) -> Gradients:
    """ReduceMax and ReduceMin: equal elements share the gradient equally, as torch's amax does."""
    axes, value = reduced_axes(site), site.operand(0)
    reached = site.cast(site.compare("Equal", value, kept(site, site.result())), site.type(0).dtype)
    count = site.sum(reached, axes, keep=True)
    return [site.mul(reached, site.div(kept(site, site.given), count)), None]


def reduce_l1(site: Site) -> Gradients:
    return [site.mul(site.unary("Sign", site.operand(0)), kept(site, site.given)), None]


def reduce_l2(site: Site) -> Gradients:
    """x / norm; 0 where the norm is 0."""
    norm = kept(site, site.result())
    positive = site.compare("Greater", norm, 0.0)
    scaled = site.div(kept(site, site.given), site.where(positive, norm, 1.0))
    return [site.mul(site.operand(0), site.where(positive, scaled, 0.0)), None]


def reduce_sum_square(site: Site) -> Gradients:
    return [site.mul(site.operand(0), site.mul(kept(site, site.given), 2.0)), None]


def reduce_log_sum(site: Site) -> Gradients:
    """1 / sum, the sum being the exponential of the result."""
    inverse = site.unary("Exp", site.unary("Neg", site.result()))
    return [spread(site, site.mul(site.given, inverse)), None]


def reduce_log_sum_exp(site: Site) -> Gradients:
    """exp(x - result)."""
    weights = site.unary("Exp", site.sub(site.operand(0), kept(site, site.result())))
    return [site.mul(weights, kept(site, site.given)), None]


def reduce_prod(site: Site) -> Gradients:
    """The product of the others: of all before times of all behind, along the dimensions that are reduced, laid out as one."""
    shape, axes = site.shape(0), reduced_axes(site)
    rest = [i for i in range(len(shape)) if i not in axes]
    perm = (*rest, *axes)
    count = math.prod(shape[i] for i in axes)
    outer = tuple(shape[i] for i in rest)
    rows = site.reshape(site.transpose(site.operand(0), perm), (*outer, count))
    type_ = TensorType(site.type(0).dtype, (*outer, count, count))
    # A matrix of the elements with ones on its diagonal, multiplied along rows: exact where elements are 0.
    diagonal = site.emit("onnx.EyeLike", (site.expand(site.scalar(0.0, type_.dtype), (count, count)),), _square(type_, count))
    matrix = site.where(site.compare("Greater", diagonal, 0.0), 1.0, site.reshape(rows, (*outer, 1, count)))
    product = TensorType(type_.dtype, (*outer, count))
    if site.has_opset(18):
        others = site.emit("onnx.ReduceProd", (matrix, site.ints((len(outer) + 1,))), product, keepdims=0)
    else:
        others = site.emit("onnx.ReduceProd", (matrix,), product, axes=(len(outer) + 1,), keepdims=0)
    given = site.reshape(site.given, (*outer, 1))
    found = site.reshape(site.mul(others, given), tuple(shape[i] for i in perm))
    return [site.transpose(found, [perm.index(i) for i in range(len(shape))]), None]


def _square(type_: TensorType, count: int) -> TensorType:
    return TensorType(type_.dtype, (count, count))


def cumsum(site: Site) -> Gradients:
    """The sum from the other end."""
    reverse = 1 - int(site.op.get("reverse", 0))
    exclusive = site.op.get("exclusive")
    operands = (site.given, site.operand(1))
    return [site.emit("onnx.CumSum", operands, site.type(0), reverse=reverse, exclusive=exclusive), None]


RULES: dict[str, Rule] = {
    "onnx.CumSum": cumsum,
    "onnx.GlobalAveragePool": reduce_mean,
    "onnx.ReduceL1": reduce_l1,
    "onnx.ReduceL2": reduce_l2,
    "onnx.ReduceLogSum": reduce_log_sum,
    "onnx.ReduceLogSumExp": reduce_log_sum_exp,
    "onnx.ReduceMax": reduce_extreme,
    "onnx.ReduceMean": reduce_mean,
    "onnx.ReduceMin": reduce_extreme,
    "onnx.ReduceProd": reduce_prod,
    "onnx.ReduceSum": reduce_sum,
    "onnx.ReduceSumSquare": reduce_sum_square,
}
