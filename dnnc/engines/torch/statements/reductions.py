"""Emitters of ops that combine elements along axes: reductions, Softmax, scans, normalisations."""

from __future__ import annotations

import math

from dnnc.engines.torch.statements.call import Call, Emitter, listed
from dnnc.engines.torch.statements.faults import MomentsNotWritten
from ir.core.facets import UPDATE, phase_of
from ir.ops.grads import UNBIASED


def _reduced_axes(call: Call) -> tuple[int, ...] | None:
    """The axes of a reduction; None for the identity (no axes, ``noop_with_empty_axes``)."""
    rank = call.rank(0)
    axes = call.axes(1, rank)
    if axes:
        return tuple(sorted(axes))
    return None if call.get("noop_with_empty_axes", 0) else tuple(range(rank))


def _reduction(template: str, without_axes: str = "{x}") -> Emitter:
    """Fills ``template``: ``{x}`` the operand, ``{axes}``, ``{keep}`` the keepdim argument, ``{dtype}`` of the result.
    ``without_axes``: the template for a scalar, or where no axis is reduced."""

    def emit(call: Call) -> str:
        axes = _reduced_axes(call)
        if not axes:
            return without_axes.format(x=call.arg(0))
        keep = ", keepdim=True" if call.get("keepdims", 1) else ""
        return template.format(x=call.arg(0), axes=listed(axes), keep=keep, dtype=call.dtype(-1))

    return emit


def _mean(call: Call) -> str:
    """torch has no mean of integers; that of ONNX truncates towards zero."""
    axes = _reduced_axes(call)
    if call.is_float(0) or not axes:
        return _reduction("torch.mean({x}, dim={axes}{keep})")(call)
    count = math.prod(call.shape(0)[axis] for axis in axes)
    total = _reduction("torch.sum({x}, dim={axes}{keep}, dtype={dtype})")(call)
    return f'torch.div({total}, {count}, rounding_mode="trunc")'


def _sum_square(call: Call) -> str:
    """Of a gradient, in the update of a step: as torch's ``clip_grad_norm_`` sums it, which of large tensors is a few times as
    fast as a sum and has its rounding errors."""
    axes = _reduced_axes(call)
    if phase_of(call.op.facets) == UPDATE and axes is not None and len(axes) == call.rank(0) and not call.get("keepdims", 1):
        return f"torch.linalg.vector_norm({call.arg(0)}).square()"
    return _reduction("torch.sum({x} * {x}, dim={axes}{keep}, dtype={dtype})", "{x} * {x}")(call)


def _prod(call: Call) -> str:
    axes = _reduced_axes(call)
    text = call.arg(0)
    for axis in reversed(axes or ()):  # torch multiplies along one dimension at a time
        text = f"torch.prod({text}, dim={axis}, keepdim={bool(call.get('keepdims', 1))}, dtype={call.dtype(-1)})"
    return text


def _arg_extreme(name: str) -> Emitter:
    """ArgMax, ArgMin. Of equal elements the first counts, or the last with ``select_last_index``."""

    def emit(call: Call) -> str:
        axis, keep = call.axis(0), bool(call.get("keepdims", 1))
        if not call.get("select_last_index", 0):
            return f"torch.{name}({call.arg(0)}, dim={axis}, keepdim={keep})"
        last = call.shape(0)[axis] - 1
        return f"{last} - torch.{name}(torch.flip({call.arg(0)}, ({axis},)), dim={axis}, keepdim={keep})"

    return emit


def _cumulative(function: str, neutral: int) -> Emitter:
    """CumSum, CumProd. An exclusive scan is the plain one of the elements moved by one, with ``neutral`` first."""

    def emit(call: Call) -> str:
        (axis,) = call.axes(1, call.rank(0)) or (0,)
        x, length = call.arg(0), call.shape(0)[axis]
        reverse = bool(call.get("reverse", 0))
        text = f"torch.flip({x}, ({axis},))" if reverse else x
        if call.get("exclusive", 0):
            pads = [0] * (2 * call.rank(0))
            pads[2 * (call.rank(0) - 1 - axis)] = 1
            text = f"F.pad(torch.narrow({text}, {axis}, 0, {length - 1}), {listed(pads)}, value={neutral})"
        text = f"torch.{function}({text}, dim={axis}, dtype={call.dtype(-1)})"
        return f"torch.flip({text}, ({axis},))" if reverse else text

    return emit


def _top_k(call: Call) -> str:
    axis = call.axis(-1)
    k = call.shape(-1)[axis]
    return (
        f"torch.topk({call.arg(0)}, {k}, dim={axis}, largest={bool(call.get('largest', 1))}, "
        f"sorted={bool(call.get('sorted', 1))})"
    )


def _softmax(function: str) -> Emitter:
    """From opset 13 on, along one axis; before, along all axes from that one on together."""

    def emit(call: Call) -> str:
        axis = call.axis(-1 if call.opset >= 13 else 1)
        if call.opset >= 13 or axis == call.rank(0) - 1:
            return f"torch.{function}({call.arg(0)}, dim={axis})"
        flat = f"torch.{function}({call.arg(0)}.flatten({axis}), dim={axis})"
        return f"{flat}.reshape({listed(call.shape(0))})"

    return emit


def _hardmax(call: Call) -> str:
    axis, x = call.axis(-1 if call.opset >= 13 else 1), call.arg(0)
    index = f"torch.argmax({x}, dim={axis}, keepdim=True)"
    return f"torch.zeros_like({x}).scatter({axis}, {index}, 1.0)"


def _layer_norm(call: Call) -> str:
    """Results: the normalised tensor and, where they are asked for, each row's mean and 1 / standard deviation."""
    axis = call.axis(-1)
    inner = listed(call.shape(0)[axis:])
    scale, bias, epsilon = _expanded(call, 1, axis), _expanded(call, 2, axis), call.float("epsilon", 1e-5)
    if len(call.op.results) == 1:
        return f"F.layer_norm({call.arg(0)}, {inner}, {scale}, {bias}, {epsilon})"
    text = f"layer_norm({call.arg(0)}, {inner}, {scale}, {bias}, {epsilon})"
    return text if len(call.op.results) == 3 else f"{text}[:{len(call.op.results)}]"


def _expanded(call: Call, number: int, axis: int) -> str:
    """Operand ``number``, a scale or bias, expanded to the shape of the normalised dimensions, as torch wants it."""
    inner = call.shape(0)[axis:]
    if not call.present(number) or call.shape(number) == inner:
        return call.arg(number)
    return f"{call.arg(number)}.expand({listed(inner)})"


def _rms_norm(call: Call) -> str:
    axis = call.axis(-1)
    inner, epsilon = call.shape(0)[axis:], call.float("epsilon", 1e-5)
    if call.present(1) and call.shape(1) != inner and call.rank(1) > len(inner):
        return f"F.rms_norm({call.arg(0)}, {listed(inner)}, None, {epsilon}) * {call.arg(1)}"
    if len(call.op.results) == 1:
        return f"F.rms_norm({call.arg(0)}, {listed(inner)}, {_expanded(call, 1, axis)}, {epsilon})"
    raise call.fault(MomentsNotWritten(call.op.name))


def _batch_norm(call: Call) -> str:
    """Results in training mode: the normalised tensor, and the updated running mean and variance."""
    x, scale, bias, mean, variance = (call.arg(i) for i in range(5))
    epsilon = call.float("epsilon", 1e-5)
    if not call.get("training_mode", 0):
        if any(
            name[:1] != "@" for name in call.op.operands[3:5]
        ):  # F.batch_norm gives no gradient to a computed mean or variance
            shape = listed(tuple(size if i == 1 else 1 for i, size in enumerate(call.shape(0))))
            slope, bias, mean = (
                f"({factor}).reshape({shape})" for factor in (f"{scale} * torch.rsqrt({variance} + {epsilon})", bias, mean)
            )
            return f"({x} - {mean}) * {slope} + {bias}"
        data, others = call.dtype(0), {call.dtype(i) for i in range(1, 5)}
        if others != {data} and (others != {"torch.float32"} or data == "torch.float64"):  # torch takes no others together
            taken = f"batch_norm_type({x}, {scale}, {bias}, {mean}, {variance})"
            mean, variance, scale, bias = (f"{one}.to({taken})" for one in (mean, variance, scale, bias))
        return f"F.batch_norm({x}, {mean}, {variance}, {scale}, {bias}, False, 0.0, {epsilon})"
    unbiased = bool(call.get(UNBIASED, 0))
    return (
        f"batch_norm_train({x}, {scale}, {bias}, {mean}, {variance}, {call.float('momentum', 0.9)}, {epsilon}, {unbiased})"
        + ("[0]" if len(call.op.results) == 1 else "")
    )


def _instance_norm(call: Call) -> str:
    epsilon = call.float("epsilon", 1e-5)
    return f"F.instance_norm({call.arg(0)}, None, None, {call.arg(1)}, {call.arg(2)}, True, 0.0, {epsilon})"


def _group_norm(call: Call) -> str:
    """Scale and bias have an element per channel; before opset 21, per group."""
    groups, channels = int(call.get("num_groups")), call.shape(0)[1]
    scale, bias = (
        call.arg(i) if call.shape(i) == (channels,) else f"{call.arg(i)}.repeat_interleave({channels // groups})"
        for i in (1, 2)
    )
    return f"F.group_norm({call.arg(0)}, {groups}, {scale}, {bias}, {call.float('epsilon', 1e-5)})"


def _lp_normalization(call: Call) -> str:
    """ONNX has no epsilon and maps a row of zeros to zeros: an epsilon of 1e-30 does the same."""
    return f"F.normalize({call.arg(0)}, p={int(call.get('p', 2))}, dim={call.axis(-1)}, eps=1e-30)"


def _mean_variance(call: Call) -> str:
    axes = listed(tuple(axis % call.rank(0) for axis in call.get("axes", (0, 2, 3))))
    centred = f"({call.arg(0)} - torch.mean({call.arg(0)}, dim={axes}, keepdim=True))"
    return f"{centred} / (torch.sqrt(torch.mean({centred} ** 2, dim={axes}, keepdim=True)) + 1e-9)"


def _local_response(call: Call) -> str:
    size, alpha, beta = int(call.get("size")), call.float("alpha", 1e-4), call.float("beta", 0.75)
    bias = call.float("bias", 1.0)
    return f"local_response({call.arg(0)}, {size}, {alpha}, {beta}, {bias})"


def _skip_norm(layer: bool) -> Emitter:
    """Normalises operand 0 + operand 1 + bias: layer norm if ``layer``, else RMS norm. Result 3, if present, is that sum."""

    def emit(call: Call) -> str:
        bias = 4 if layer else 3
        total = f"{call.arg(0)} + {call.arg(1)}" + (f" + {call.arg(bias)}" if call.present(bias) else "")
        inner, epsilon = listed(call.shape(0)[-1:]), call.float("epsilon", 1e-12)
        shift = f", {call.arg(3)}" if layer else ""
        text = f"F.{'layer' if layer else 'rms'}_norm({total}, {inner}, {call.arg(2)}{shift}, {epsilon})"
        if len(call.op.results) == 1:
            return text
        if len(call.op.results) < 4 or any(call.wanted[1:3]):
            raise call.fault(MomentsNotWritten(call.op.name))
        return f"{text}, None, None, {total}"

    return emit


EMITTERS: dict[str, Emitter] = {
    "onnx.ArgMax": _arg_extreme("argmax"),
    "onnx.ArgMin": _arg_extreme("argmin"),
    "onnx.BatchNormalization": _batch_norm,
    "onnx.CumProd": _cumulative("cumprod", 1),
    "onnx.CumSum": _cumulative("cumsum", 0),
    "onnx.GroupNormalization": _group_norm,
    "onnx.Hardmax": _hardmax,
    "onnx.InstanceNormalization": _instance_norm,
    "onnx.LRN": _local_response,
    "onnx.LayerNormalization": _layer_norm,
    "onnx.LogSoftmax": _softmax("log_softmax"),
    "onnx.LpNormalization": _lp_normalization,
    "onnx.MeanVarianceNormalization": _mean_variance,
    "onnx.RMSNormalization": _rms_norm,
    "onnx.ReduceL1": _reduction("torch.sum(torch.abs({x}), dim={axes}{keep}, dtype={dtype})", "torch.abs({x})"),
    "onnx.ReduceL2": _reduction("torch.linalg.vector_norm({x}, dim={axes}{keep})", "torch.abs({x})"),
    "onnx.ReduceLogSum": _reduction("torch.log(torch.sum({x}, dim={axes}{keep}))", "torch.log({x})"),
    "onnx.ReduceLogSumExp": _reduction("torch.logsumexp({x}, dim={axes}{keep})"),
    "onnx.ReduceMax": _reduction("torch.amax({x}, dim={axes}{keep})"),
    "onnx.ReduceMean": _mean,
    "onnx.ReduceMin": _reduction("torch.amin({x}, dim={axes}{keep})"),
    "onnx.ReduceProd": _prod,
    "onnx.ReduceSum": _reduction("torch.sum({x}, dim={axes}{keep}, dtype={dtype})"),
    "onnx.ReduceSumSquare": _sum_square,
    "onnx.SimplifiedLayerNormalization": _rms_norm,
    "onnx.Softmax": _softmax("softmax"),
    "onnx.TopK": _top_k,
    "onnx.com.microsoft.SkipLayerNormalization": _skip_norm(True),
    "onnx.com.microsoft.SkipSimplifiedLayerNormalization": _skip_norm(False),
}
"""Full name of an op -> its emitter."""
