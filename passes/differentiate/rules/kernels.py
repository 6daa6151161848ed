"""Rules of ops whose gradients are kernels of ``grad``: convolutions, pools, normalisations, Softmax, losses, attention.

Gradients of inputs and of weights are ops of their own. What a kernel can take from the forward op it does not compute again:
a layer normalisation is asked for its mean and inverse deviation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from ir.core.types import DType, TensorType
from ir.ops.grad_kernels import CONV_ATTRIBUTES, GRID_ATTRIBUTES, POOL_ATTRIBUTES, RESIZE_ATTRIBUTES
from passes.differentiate.rules.moves import slice_of
from passes.differentiate.site import ZERO, Rule, Site

Gradients = Sequence[str | None]


def stated(site: Site, keys: Iterable[str]) -> dict[str, Any]:
    """These attributes of the forward op, those that it has."""
    return {key: site.op.get(key) for key in keys if site.op.get(key) is not None}


def spread(site: Site) -> tuple[int, ...]:
    """All dimensions but that of channels."""
    return tuple(i for i in range(len(site.shape(-1))) if i != 1)


def conv(site: Site) -> Gradients:
    attributes = stated(site, CONV_ATTRIBUTES)
    given = site.given
    x = site.emit("grad.ConvInput", (given, site.operand(1)), site.type(0), **attributes) if site.wants(0) else None
    w = site.emit("grad.ConvWeight", (given, site.operand(0)), site.type(1), **attributes) if site.wants(1) else None
    return x, w, site.sum(given, spread(site)) if site.wants(2) else None


def conv_transpose(site: Site) -> Gradients:
    """It is the gradient of X of a convolution: that is its own gradient, and the two have one weight."""
    if site.op.get("auto_pad", "NOTSET") != "NOTSET" or site.op.get("output_shape"):
        raise site.fault("pads that follow from the shape of the result have no rule", "state them as pads")
    attributes = stated(site, (key for key in CONV_ATTRIBUTES if key != "auto_pad"))
    given = site.given
    x = site.emit("onnx.Conv", (given, site.operand(1)), site.type(0), **attributes) if site.wants(0) else None
    w = site.emit("grad.ConvWeight", (site.operand(0), given), site.type(1), **attributes) if site.wants(1) else None
    return x, w, site.sum(given, spread(site)) if site.wants(2) else None


def max_pool(site: Site) -> Gradients:
    return [site.emit("grad.MaxPool", (site.given, site.operand(0)), site.type(0), **stated(site, POOL_ATTRIBUTES))]


def average_pool(site: Site) -> Gradients:
    return [site.emit("grad.AveragePool", (site.given,), site.type(0), **stated(site, POOL_ATTRIBUTES))]


def global_max_pool(site: Site) -> Gradients:
    """Equal elements share the gradient equally, as torch's amax does."""
    axes = tuple(range(2, len(site.shape(0))))
    reached = site.cast(site.compare("Equal", site.operand(0), site.result()), site.type(0).dtype)
    return [site.mul(reached, site.div(site.given, site.sum(reached, axes, keep=True)))]


def batch_norm(site: Site) -> Gradients:
    return _batch_norm_trains(site) if site.op.get("training_mode", 0) else _batch_norm_frozen(site)


def _batch_norm_trains(site: Site) -> Gradients:
    types = [site.type(i) if site.wants(i) else None for i in range(3)]
    operands = (site.given, site.operand(0), site.operand(1))
    found = site.multi("grad.BatchNormalization", operands, types, **stated(site, ("epsilon",)))
    return [*(name or None for name in found), ZERO, ZERO]  # the running averages before are read for those after alone


def _batch_norm_frozen(site: Site) -> Gradients:
    """(x - mean) scale / sqrt(variance + epsilon) + bias, per channel; in the wider type of data and averages."""
    shape = tuple(size if i == 1 else 1 for i, size in enumerate(site.shape(0)))
    wide = max(site.type(0).dtype, site.type(4).dtype, key=lambda dtype: dtype.bits)
    given, scale, mean, variance = (site.cast(name, wide) for name in (site.given, *map(site.operand, (1, 3, 4))))
    deviation = site.unary("Sqrt", site.add(variance, site.op.get("epsilon", 1e-5)))
    inverse = site.unary("Reciprocal", deviation)
    slope = site.mul(scale, inverse)
    found: list[str | None] = [None] * 5
    if site.wants(0):
        found[0] = site.mul(given, site.reshape(slope, shape))
    if site.wants(2) or site.wants(3):
        found[2] = total = site.sum(given, spread(site))
        found[3] = site.unary("Neg", site.mul(total, slope)) if site.wants(3) else None
    if site.wants(1) or site.wants(4):
        centred = site.sub(site.cast(site.operand(0), wide), site.reshape(mean, shape))
        found[1] = weighted = site.mul(site.sum(site.mul(given, centred), spread(site)), inverse)
        found[4] = site.mul(weighted, site.mul(site.mul(slope, inverse), -0.5))
    return [None if name is None else site.cast(name, site.type(i).dtype) for i, name in enumerate(found)]


def layer_norm(site: Site) -> Gradients:
    """That of Y by kernels; those of the mean and the inverse deviation of each row, which are results as well, by hand."""
    rank = len(site.shape(0))
    axis = int(site.op.get("axis", -1)) % rank
    rows = TensorType(DType.F32, tuple(1 if i >= axis else size for i, size in enumerate(site.shape(0))))
    if site.type(0).dtype is DType.F64:
        rows = TensorType(DType.F64, rows.shape)
    mean, inverse, given = site.result(1, rows), site.result(2, rows), site.gradient(0)
    x = _through_statistics(site, mean, inverse, axis) if site.wants(0) else []
    if given is None:
        return site.total(x) if x else None, ZERO, ZERO
    read = (given, site.operand(0), mean, inverse)
    attributes: dict[str, Any] = {**stated(site, ("epsilon",)), "axis": axis}
    scale = bias = None
    if site.wants(0):
        x.insert(0, site.emit("grad.LayerNormalizationInput", (*read, site.operand(1)), site.type(0), **attributes))
    if site.wants(1) or site.wants(2):
        wide = TensorType(site.type(0).dtype, site.shape(0)[axis:])
        types = [wide if site.wants(i) else None for i in (1, 2)][: 2 if site.wants(2) else 1]
        found = site.multi("grad.LayerNormalizationWeight", read, types, **attributes)
        scale, bias = ((*found, "")[i] for i in (0, 1))
        scale = site.summed(scale, 1) if site.wants(1) else None
        bias = site.summed(bias, 2) if site.wants(2) else None
    return site.total(x) if x else None, scale, bias


def _through_statistics(site: Site, mean: str, inverse: str, axis: int) -> list[str]:
    """What reaches X through the mean m, 1 / n each, and through the inverse deviation r, - r^3 (x - m) / n."""
    shape, dtype, found = site.shape(0), site.type(0).dtype, []
    part = 1.0 / max(1, math.prod(shape[axis:]))
    if (given := site.gradient(1)) is not None:
        found.append(site.cast(site.expand(site.mul(given, part), shape), dtype))
    if (given := site.gradient(2)) is not None:
        slope = site.mul(site.mul(given, site.mul(inverse, site.mul(inverse, inverse))), -part)
        centred = site.sub(site.cast(site.operand(0), site.type_of(mean).dtype), mean)
        found.append(site.cast(site.mul(centred, slope), dtype))
    return found


def rms_norm(site: Site) -> Gradients:
    axis = int(site.op.get("axis", -1)) % len(site.shape(0))
    attributes: dict[str, Any] = {**stated(site, ("epsilon",)), "axis": axis}
    read = (site.given, site.operand(0))
    x = scale = None
    if site.wants(0):
        x = site.emit("grad.RMSNormalizationInput", (*read, site.operand(1)), site.type(0), **attributes)
    if site.wants(1):
        wide = TensorType(site.type(0).dtype, site.shape(0)[axis:])
        scale = site.summed(site.emit("grad.RMSNormalizationWeight", read, wide, **attributes), 1)
    return x, scale


def group_norm(site: Site) -> Gradients:
    """GroupNormalization, and InstanceNormalization, whose groups are channels. Scale and bias are per channel, or
    (before opset 21) per group."""
    channels = site.shape(0)[1]
    groups = int(site.op.get("num_groups", channels))
    attributes: dict[str, Any] = {**stated(site, ("epsilon",)), "num_groups": groups}
    read = (site.given, site.operand(0))
    per_group = site.shape(1) != (channels,)
    x = scale = bias = None
    if site.wants(0):
        wide = site.operand(1)
        if per_group:
            wide = site.reshape(site.expand(site.reshape(wide, (groups, 1)), (groups, channels // groups)), (channels,))
        x = site.emit("grad.GroupNormalizationInput", (*read, wide), site.type(0), **attributes)
    if site.wants(1) or site.wants(2):
        type_ = TensorType(site.type(0).dtype, (channels,))
        types = [type_ if site.wants(i) else None for i in (1, 2)][: 2 if site.wants(2) else 1]
        found = (*site.multi("grad.GroupNormalizationWeight", read, types, **attributes), "")
        scale, bias = (found[i] or None for i in (0, 1))
        if per_group:
            scale, bias = (name and site.sum(site.reshape(name, (groups, channels // groups)), (1,)) for name in (scale, bias))
    return x, scale, bias


def softmax(site: Site) -> Gradients:
    """Softmax and LogSoftmax; before opset 13 along all dimensions from the axis on."""
    name = f"grad.{site.op.name.removeprefix('onnx.')}"
    shape, rank = site.shape(0), len(site.shape(0))
    newer = site.has_opset(13)
    axis = int(site.op.get("axis", -1 if newer else 1)) % max(1, rank)
    if newer or axis == rank - 1:
        return [site.emit(name, (site.given, site.result()), site.type(0), axis=axis)]
    flat = (*shape[:axis], math.prod(shape[axis:]))
    read = (site.reshape(site.given, flat), site.reshape(site.result(), flat))
    return [site.reshape(site.emit(name, read, TensorType(site.type(0).dtype, flat), axis=axis), shape)]


def gelu(site: Site) -> Gradients:
    return [site.emit("grad.Gelu", (site.given, site.operand(0)), site.type(0), **stated(site, ("approximate",)))]


def relu(site: Site) -> Gradients:
    return [site.emit("grad.Relu", (site.given, site.result()), site.type(0))]


def cross_entropy(site: Site) -> Gradients:
    read = (_loss_gradient(site), site.operand(0), site.operand(1), *_class_weights(site))
    return [site.emit("grad.SoftmaxCrossEntropyLoss", read, site.type(0), **stated(site, ("ignore_index",))), None, None]


def likelihood(site: Site) -> Gradients:
    read = (_loss_gradient(site), site.operand(1), *_class_weights(site))
    return [site.emit("grad.NegativeLogLikelihoodLoss", read, site.type(0), **stated(site, ("ignore_index",))), None, None]


def _class_weights(site: Site) -> tuple[str, ...]:
    """Raises InvalidInput where a gradient of them is wanted: torch has none either."""
    if site.wants(2):
        raise site.fault("its class weights depend on weights that are trained, and their gradient has no rule")
    return (site.operand(2),) if site.present(2) else ()


def _loss_gradient(site: Site) -> str:
    """The gradient of each label's loss: that of the sum, or of the mean by the labels that count or by their weights."""
    reduction, labels = site.op.get("reduction", "mean"), site.shape(1)
    given = site.given
    if reduction == "none":
        return given
    if reduction == "mean":
        given = site.div(given, _counted(site))
    return site.expand(given, labels)


def _counted(site: Site) -> str:
    """The sum of the weights of the labels that are not ignored."""
    dtype, ignored = site.type(0).dtype, site.op.get("ignore_index")
    labels = site.operand(1)
    counts = None
    if ignored is not None:
        equal = site.compare("Equal", labels, site.scalar(ignored, site.type(1).dtype))
        counts = site.emit("onnx.Not", (equal,), TensorType(DType.BOOL, site.shape(1)))
    axes = tuple(range(len(site.shape(1))))
    if not site.present(2):
        if counts is None:
            return site.scalar(float(math.prod(site.shape(1))), dtype)
        return site.sum(site.cast(counts, dtype), axes)
    known = labels if counts is None else site.where(counts, labels, site.scalar(0, site.type(1).dtype))
    weights = site.emit("onnx.Gather", (site.operand(2), known), TensorType(dtype, site.shape(1)), axis=0)
    return site.sum(weights if counts is None else site.where(counts, weights, 0.0), axes)


def resize(site: Site) -> Gradients:
    if site.op.get("antialias") or site.op.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        raise site.fault("resizing by crops, or with a filter, has no rule")
    return [site.emit("grad.Resize", (site.given,), site.type(0), **stated(site, RESIZE_ATTRIBUTES)), None, None, None]


def col2im(site: Site) -> Gradients:
    """Overlapping windows are added up: each element of a window has the gradient of its place."""
    image, block = site.integers(1), site.integers(2)
    if image is None or block is None:
        raise site.fault("its image and its block are not given")
    attributes = stated(site, ("dilations", "pads", "strides"))
    return [site.emit("grad.Col2Im", (site.given,), site.type(0), kernel_shape=block, **attributes), None, None]


def grid_sample(site: Site) -> Gradients:
    types = [site.type(i) if site.wants(i) else None for i in (0, 1)]
    read = (site.given, site.operand(0), site.operand(1))
    found = site.multi("grad.GridSample", read, types, **stated(site, GRID_ATTRIBUTES))
    return [name or None for name in found]


def attention(site: Site) -> Gradients:
    if site.present(6) or site.op.get("softcap") or site.gradient(3) is not None:
        return ()  # lengths of padding, soft caps and scores: through its body
    if site.present(4) or site.gradient(1) is not None or site.gradient(2) is not None:
        return _attention_with_past(site)
    keys = ("is_causal", "kv_num_heads", "q_num_heads", "scale")
    read = (site.given, *(site.operand(i) for i in range(3)), *((site.operand(3),) if site.present(3) else ()))
    found = site.multi("grad.Attention", read, [site.type(i) for i in range(3)], **stated(site, keys))
    return [*found, None]


def _attention_with_past(site: Site) -> Gradients:
    """Past keys and values stand before the new ones, and together they are results: they get the sum of what reaches them as
    results and as what is attended to, and divide it."""
    dtype, (queries, keys, values) = site.type(0).dtype, (site.shape(i) for i in range(3))
    heads, shared = int(site.op.get("q_num_heads", 0)), int(site.op.get("kv_num_heads", 0))
    past = site.shape(4)[2] if site.present(4) else 0

    def apart(name: str, count: int) -> str:
        """``[B, L, H D]`` as ``[B, H, L, D]``."""
        shape = site.shape_of(name)
        if len(shape) == 4:
            return name
        return site.transpose(site.reshape(name, (*shape[:2], count, shape[2] // count)), (0, 2, 1, 3))

    def joined(name: str, shape: tuple[int, ...]) -> str:
        return site.reshape(site.transpose(name, (0, 2, 1, 3)) if len(shape) == 3 else name, shape)

    present = []
    for number, shape in ((1, keys), (2, values)):
        batch, count, length, width = shape if len(shape) == 4 else (shape[0], shared, shape[1], shape[2] // shared)
        present.append(site.result(number, TensorType(dtype, (batch, count, past + length, width))))
    query = apart(site.operand(0), heads)
    found: tuple[str, ...] = ()
    if site.gradient(0) is not None:
        read = (apart(site.given, heads), query, *present, *((site.operand(3),) if site.present(3) else ()))
        types = [site.type_of(name) for name in (query, *present)]
        found = site.multi("grad.Attention", read, types, past=past or None, **stated(site, ("is_causal", "scale")))
    gradients: list[str | None] = [joined(found[0], queries) if found else ZERO, None, None, None, None, None]
    for number, shape in ((1, keys), (2, values)):
        parts = [*found[number : number + 1], *filter(None, (site.gradient(number),))]
        if not parts:
            gradients[number] = gradients[number + 3] = ZERO
            continue
        total = site.total(parts)
        if site.wants(number):
            gradients[number] = joined(slice_of(site, total, 2, past, site.shape_of(total)[2]), shape)
        if site.wants(number + 3):
            gradients[number + 3] = slice_of(site, total, 2, 0, past)
    return gradients


RULES: dict[str, Rule] = {
    "onnx.Attention": attention,
    "onnx.AveragePool": average_pool,
    "onnx.BatchNormalization": batch_norm,
    "onnx.Col2Im": col2im,
    "onnx.Conv": conv,
    "onnx.ConvTranspose": conv_transpose,
    "onnx.Gelu": gelu,
    "onnx.GlobalMaxPool": global_max_pool,
    "onnx.GridSample": grid_sample,
    "onnx.GroupNormalization": group_norm,
    "onnx.InstanceNormalization": group_norm,
    "onnx.LayerNormalization": layer_norm,
    "onnx.LogSoftmax": softmax,
    "onnx.MaxPool": max_pool,
    "onnx.NegativeLogLikelihoodLoss": likelihood,
    "onnx.RMSNormalization": rms_norm,
    "onnx.Relu": relu,
    "onnx.Resize": resize,
    "onnx.Softmax": softmax,
    "onnx.SoftmaxCrossEntropyLoss": cross_entropy,
}
"""By the op's full name."""
