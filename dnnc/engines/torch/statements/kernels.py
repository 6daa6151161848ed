"""Emitters of the backward kernels of the dialect ``grad``: they call torch's own backward functions where one call does, else
``helpers``."""

from __future__ import annotations

from dnnc.engines.torch.statements.call import Call, Emitter, listed
from dnnc.engines.torch.statements.faults import TooManyDimensions
from dnnc.engines.torch.statements.products import (
    block_windows,
    conv_windows,
    counted_fraction,
    grid_words,
    is_plain_resize,
    pool_windows,
    resize_fault,
)
from dnnc.engines.torch.statements.windows import Windows


def _convolved(call: Call, weight: int, x: int) -> tuple[Windows, str, tuple[int, ...]]:
    """The windows of a convolution, torch's arguments for them, and the shape of X, padded where the two ends' pads differ:
    torch's ``padding`` cannot say that."""
    window = conv_windows(call, x, weight, 0)
    if window.spatial > 3:
        raise call.fault(TooManyDimensions(call.op.name, window.spatial))
    shape, padding = call.shape(x), window.numbers("before")
    if window.before != window.after:
        ends = zip(shape[2:], window.before, window.after, strict=True)
        shape, padding = (*shape[:2], *(length + low + high for length, low, high in ends)), "0"
    numbers = f"{window.numbers('strides')}, {padding}, {window.numbers('dilations')}, {int(call.get('group', 1))}"
    return window, numbers, shape


def _conv_input(call: Call) -> str:
    window, numbers, shape = _convolved(call, 1, -1)
    text = f"torch.nn.grad.conv{window.spatial}d_input({listed(shape)}, {call.arg(1)}, {call.arg(0)}, {numbers})"
    return text if shape == call.shape(-1) else _cropped(window, text)


def _cropped(window: Windows, text: str) -> str:
    """The gradient of X from that of the padded X."""
    pads = [int(pad) for pad in window.pad()[1:-1].split(",") if pad.strip()]
    return f"F.pad({text}, {listed([-pad for pad in pads])})"


def _conv_weight(call: Call) -> str:
    window, numbers, shape = _convolved(call, -1, 1)
    x = call.arg(1) if shape == call.shape(1) else f"F.pad({call.arg(1)}, {window.pad(extra=False)})"
    return f"torch.nn.grad.conv{window.spatial}d_weight({x}, {listed(call.shape(-1))}, {call.arg(0)}, {numbers})"


def _max_pool(call: Call) -> str:
    window = pool_windows(call, -1, 0)
    if window.symmetric and window.at_most_half:
        x, padding = call.arg(1), window.before
    else:
        x, padding = f'F.pad({call.arg(1)}, {window.pad()}, value=float("-inf"))', (0,) * window.spatial
    numbers = f"{listed(window.kernel)}, {listed(window.strides)}, {listed(padding)}, {listed(window.dilations)}"
    text = f"max_pool_backward({call.arg(0)}, {x}, {numbers})"
    return text if x == call.arg(1) else _cropped(window, text)


def _average_pool(call: Call) -> str:
    """Each result's gradient, divided by the number of elements that its window averages, added to each of these."""
    window = pool_windows(call, -1, 0)
    fraction = counted_fraction(call, window, call.arg(0), call.shape(-1))
    ends = zip(call.shape(-1)[2:], window.before, window.after, window.extra, strict=True)
    padded = (*call.shape(-1)[:2], *(length + low + high + more for length, low, high, more in ends))
    grad = call.arg(0) if fraction is None else f"{call.arg(0)} / {fraction}"
    numbers = f"{listed(window.kernel)}, {listed(window.strides)}, {listed(window.dilations)}"
    text = f"avg_pool_backward({grad}, {listed(padded)}, {numbers})"
    return text if padded == call.shape(-1) else _cropped(window, text)


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


def _col2im(call: Call) -> str:
    window, _ = block_windows(call, call.shape(0)[2:], tuple(call.get("kernel_shape")))
    x = f"F.pad({call.arg(0)}, {window.pad(extra=False)})" if any(window.before + window.after) else call.arg(0)
    return f"unfold({x}, {listed(window.kernel)}, {listed(window.dilations)}, {listed(window.strides)})"


def _grid_sample(call: Call) -> str:
    mode, padding, corners = grid_words(call)
    numbers = (("bilinear", "nearest", "bicubic").index(mode), ("zeros", "border", "reflection").index(padding), corners)
    wanted = [*call.wanted, False][:2]
    spatial = call.rank(0) - 2
    operands = f"{call.arg(0)}, {call.arg(1)}, {call.arg(2)}"
    text = f"torch.ops.aten.grid_sampler_{spatial}d_backward({operands}, {', '.join(map(str, numbers))}, {wanted})"
    return text if len(call.op.results) == 2 else f"{text}[0]"


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
    return f"attention_backward({operands}, {scale}, {bool(call.get('is_causal', 0))}, {heads}, {int(call.get('past', 0))})"


EMITTERS: dict[str, Emitter] = {
    "grad.Attention": _attention,
    "grad.AveragePool": _average_pool,
    "grad.BatchNormalization": _batch_norm,
    "grad.Col2Im": _col2im,
    "grad.ConvInput": _conv_input,
    "grad.ConvWeight": _conv_weight,
    "grad.Gelu": _gelu,
    "grad.GridSample": _grid_sample,
    "grad.GroupNormalizationInput": _group_norm_input,
    "grad.GroupNormalizationWeight": _group_norm_weight,
    "grad.LayerNormalizationInput": _layer_norm_input,
    "grad.LayerNormalizationWeight": _layer_norm_weight,
    "grad.LogSoftmax": _softmax("_log_softmax_backward_data"),
    "grad.MaxPool": _max_pool,
    "grad.NegativeLogLikelihoodLoss": _likelihood,
    "grad.RMSNormalizationInput": _rms_norm_input,
    "grad.RMSNormalizationWeight": _rms_norm_weight,
    "grad.Relu": lambda call: f"torch.ops.aten.threshold_backward({call.arg(0)}, {call.arg(1)}, 0)",
    "grad.Resize": _resize,
    "grad.Softmax": _softmax("_softmax_backward_data"),
    "grad.SoftmaxCrossEntropyLoss": _cross_entropy,
}
"""Full name of an op -> its emitter."""

HELPERS: dict[str, tuple[str, ...]] = {
    "grad.Attention": ("attention", "attention_backward"),
    "grad.AveragePool": ("avg_pool_backward", "dilated_average"),
    "grad.BatchNormalization": ("batch_norm_backward", "batch_norm_type"),
    "grad.Col2Im": ("unfold",),
    "grad.GroupNormalizationInput": ("group_norm_backward",),
    "grad.GroupNormalizationWeight": ("group_norm_weight_backward",),
    "grad.LayerNormalizationWeight": ("layer_norm_weight_backward",),
    "grad.MaxPool": ("max_pool_backward",),
    "grad.NegativeLogLikelihoodLoss": ("nll_loss_backward",),
    "grad.RMSNormalizationInput": ("rms_norm_backward",),
    "grad.RMSNormalizationWeight": ("rms_norm_weight_backward",),
    "grad.SoftmaxCrossEntropyLoss": ("cross_entropy_backward",),
    "onnx.AveragePool": ("dilated_average",),
    "onnx.Col2Im": ("fold",),
    "onnx.LpPool": ("dilated_average",),
    "onnx.MaxPool": ("max_pool_indices",),
}
"""Full name of an op -> the functions of ``helpers`` that its statement calls."""
