"""Statements of the backward kernels of ``grad``: calls of torch's own backward functions where it has them in a stable form,
else of ``helpers``."""

from __future__ import annotations

from dnnc.engines.torch.statements.call import Call, Emitter, listed
from dnnc.engines.torch.statements.faults import TooManyDimensions
from dnnc.engines.torch.statements.products import average_padding, conv_windows, is_plain_resize, pool_windows, resize_fault
from dnnc.engines.torch.statements.windows import Windows


def _convolved(call: Call, weight: int, x: int) -> tuple[Windows, str, tuple[int, ...]]:
    """The windows, torch's numbers of them, and the shape of X with pads that torch's own are not."""
    place = conv_windows(call, x, weight, 0)
    if place.spatial > 3:
        raise call.fault(TooManyDimensions(call.op.name, place.spatial))
    shape, padding = call.shape(x), place.numbers("before")
    if place.before != place.after:
        ends = zip(shape[2:], place.before, place.after, strict=True)
        shape, padding = (*shape[:2], *(length + low + high for length, low, high in ends)), "0"
    numbers = f"{place.numbers('strides')}, {padding}, {place.numbers('dilations')}, {int(call.get('group', 1))}"
    return place, numbers, shape


def _conv_input(call: Call) -> str:
    place, numbers, shape = _convolved(call, 1, -1)
    text = f"torch.nn.grad.conv{place.spatial}d_input({listed(shape)}, {call.arg(1)}, {call.arg(0)}, {numbers})"
    return text if shape == call.shape(-1) else _cropped(place, text)


def _cropped(place: Windows, text: str) -> str:
    """Without the pads that were put before."""
    pads = [int(pad) for pad in place.pad()[1:-1].split(",") if pad.strip()]
    return f"F.pad({text}, {listed([-pad for pad in pads])})"


def _conv_weight(call: Call) -> str:
    place, numbers, shape = _convolved(call, -1, 1)
    x = call.arg(1) if shape == call.shape(1) else f"F.pad({call.arg(1)}, {place.pad(extra=False)})"
    return f"torch.nn.grad.conv{place.spatial}d_weight({x}, {listed(call.shape(-1))}, {call.arg(0)}, {numbers})"


def _max_pool(call: Call) -> str:
    place = pool_windows(call, -1, 0)
    if place.even and place.small:
        x, padding = call.arg(1), place.before
    else:
        x, padding = f'F.pad({call.arg(1)}, {place.pad()}, value=float("-inf"))', (0,) * place.spatial
    numbers = f"{listed(place.kernel)}, {listed(place.strides)}, {listed(padding)}, {listed(place.dilations)}"
    text = f"max_pool_backward({call.arg(0)}, {x}, {numbers})"
    return text if x == call.arg(1) else _cropped(place, text)


def _average_pool(call: Call) -> str:
    """The gradient, over the number of elements of its window, at each of these."""
    place = pool_windows(call, -1, 0)
    counts = average_padding(call, place, call.arg(0), call.shape(-1))
    ends = zip(call.shape(-1)[2:], place.before, place.after, place.extra, strict=True)
    padded = (*call.shape(-1)[:2], *(length + low + high + more for length, low, high, more in ends))
    grad = call.arg(0) if counts is None else f"{call.arg(0)} / {counts}"
    text = f"avg_pool_backward({grad}, {listed(padded)}, {listed(place.kernel)}, {listed(place.strides)})"
    return text if padded == call.shape(-1) else _cropped(place, text)


def _batch_norm(call: Call) -> str:
    dy, x, scale = (call.arg(i) for i in range(3))
    mask = [*call.wanted, False, False][:3]
    text = f"batch_norm_backward({dy}, {x}, {scale}, {call.float('epsilon', 1e-5)}, {mask})"
    return text if len(call.op.results) == 3 else f"{text}[0]" if len(call.op.results) == 1 else f"{text}[:2]"


def _layer_norm_input(call: Call) -> str:
    dy, x, mean, inverse = (call.arg(i) for i in range(4))
    inner = call.shape(1)[call.axis(-1) :]
    scale = call.arg(4)
    if call.present(4) and call.shape(4) != inner:
        scale = f"{scale}.expand({listed(inner)})"
    head = f"{dy}, {x}, {listed(inner)}, {mean}, {inverse}"
    return f"torch.ops.aten.native_layer_norm_backward({head}, {scale}, None, [True, False, False])[0]"


def _layer_norm_weight(call: Call) -> str:
    dy, x, mean, inverse = (call.arg(i) for i in range(4))
    inner = listed(call.shape(1)[call.axis(-1) :])
    mask = [*call.wanted, False][:2]
    text = f"layer_norm_weight_backward({dy}, {x}, {inner}, {mean}, {inverse}, {mask})"
    return text if len(call.op.results) == 2 else f"{text}[0]"


def _group_norm_input(call: Call) -> str:
    dy, x, scale = (call.arg(i) for i in range(3))
    return f"group_norm_backward({dy}, {x}, {scale}, {int(call.get('num_groups'))}, {call.float('epsilon', 1e-5)})"


def _group_norm_weight(call: Call) -> str:
    numbers = f"{int(call.get('num_groups'))}, {call.float('epsilon', 1e-5)}"
    text = f"group_norm_weight_backward({call.arg(0)}, {call.arg(1)}, {numbers})"
    return text if len(call.op.results) == 2 else f"{text}[0]"


def _rms_norm_input(call: Call) -> str:
    count = call.rank(1) - call.axis(-1, number=1)
    numbers = f"{count}, {call.float('epsilon', 1e-5)}"
    return f"rms_norm_backward({call.arg(0)}, {call.arg(1)}, {call.arg(2)}, {numbers})"


def _rms_norm_weight(call: Call) -> str:
    count = call.rank(1) - call.axis(-1, number=1)
    return f"rms_norm_weight_backward({call.arg(0)}, {call.arg(1)}, {count}, {call.float('epsilon', 1e-5)})"


def _softmax(function: str) -> Emitter:
    def emit(call: Call) -> str:
        return f"torch.{function}({call.arg(0)}, {call.arg(1)}, {call.axis(-1)}, {call.dtype(-1)})"

    return emit


def _gelu(call: Call) -> str:
    approximate = call.word("approximate", "none", "none", "tanh")
    return f"torch.ops.aten.gelu_backward({call.arg(0)}, {call.arg(1)}, approximate={approximate})"


def _cross_entropy(call: Call) -> str:
    operands = ", ".join(call.arg(i) for i in range(4))
    return f"cross_entropy_backward({operands}, {_ignored(call)})"


def _likelihood(call: Call) -> str:
    operands = ", ".join(call.arg(i) for i in range(3))
    return f"nll_loss_backward({operands}, {_ignored(call)}, {call.shape(-1)[1]})"


def _ignored(call: Call) -> str:
    ignored = call.get("ignore_index")
    return "None" if ignored is None else str(int(ignored))


def _resize(call: Call) -> str:
    mode = is_plain_resize(call, -1, 0)
    if not mode:
        raise call.fault(resize_fault(call, 0))
    spatial = call.rank(0) - 2
    name = mode if mode != "nearest" else f"nearest{spatial}d"
    name = f"{name}{spatial}d" if mode in ("linear", "bilinear", "trilinear", "bicubic") else name
    sizes = f"{call.arg(0)}, {list(call.shape(0)[2:])}, {list(call.shape(-1))}"
    corners = call.get("coordinate_transformation_mode", "half_pixel") == "align_corners"
    return f"torch.ops.aten.upsample_{name}_backward({sizes}{'' if mode == 'nearest' else f', {corners}'})"


def _attention(call: Call) -> str:
    scale = call.float("scale", 0.0) if call.get("scale") is not None else "None"
    heads = (int(call.get("q_num_heads", 0)), int(call.get("kv_num_heads", 0))) if call.rank(1) == 3 else None
    operands = ", ".join(call.arg(i) for i in range(5))
    return f"attention_backward({operands}, {scale}, {bool(call.get('is_causal', 0))}, {heads})"


EMITTERS: dict[str, Emitter] = {
    "grad.Attention": _attention,
    "grad.AveragePool": _average_pool,
    "grad.BatchNormalization": _batch_norm,
    "grad.ConvInput": _conv_input,
    "grad.ConvWeight": _conv_weight,
    "grad.Gelu": _gelu,
    "grad.GroupNormalizationInput": _group_norm_input,
    "grad.GroupNormalizationWeight": _group_norm_weight,
    "grad.LayerNormalizationInput": _layer_norm_input,
    "grad.LayerNormalizationWeight": _layer_norm_weight,
    "grad.LogSoftmax": _softmax("_log_softmax_backward_data"),
    "grad.MaxPool": _max_pool,
    "grad.NegativeLogLikelihoodLoss": _likelihood,
    "grad.RMSNormalizationInput": _rms_norm_input,
    "grad.RMSNormalizationWeight": _rms_norm_weight,
    "grad.Resize": _resize,
    "grad.Softmax": _softmax("_softmax_backward_data"),
    "grad.SoftmaxCrossEntropyLoss": _cross_entropy,
}
"""By the op's full name."""

HELPERS: dict[str, tuple[str, ...]] = {
    "grad.Attention": ("attention", "attention_backward"),
    "grad.AveragePool": ("avg_pool_backward",),
    "grad.BatchNormalization": ("batch_norm_backward",),
    "grad.GroupNormalizationInput": ("group_norm_backward",),
    "grad.GroupNormalizationWeight": ("group_norm_weight_backward",),
    "grad.LayerNormalizationWeight": ("layer_norm_weight_backward",),
    "grad.MaxPool": ("max_pool_backward",),
    "grad.NegativeLogLikelihoodLoss": ("nll_loss_backward",),
    "grad.RMSNormalizationInput": ("rms_norm_backward",),
    "grad.RMSNormalizationWeight": ("rms_norm_weight_backward",),
    "grad.SoftmaxCrossEntropyLoss": ("cross_entropy_backward",),
}
"""The functions of ``helpers`` that a kernel calls."""

__all__ = ["EMITTERS", "HELPERS"]
