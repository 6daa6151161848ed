"""Emitters of matrix products, convolutions, pools and resizing."""

from __future__ import annotations

from dnnc.engines.torch.statements.call import Call, Emitter, listed
from dnnc.engines.torch.statements.faults import (
    AttributeNotWritten,
    FormNotWritten,
    PadsNotWritten,
    ResizeNotWritten,
    TooManyDimensions,
)
from dnnc.engines.torch.statements.windows import Windows, windows
from ir.core.diagnostics import Fault


def _matmul(call: Call) -> str:
    return f"torch.matmul({call.arg(0)}, {call.arg(1)})"


def _gemm(call: Call) -> str:
    """alpha A' B' + beta C, where A' and B' are A and B, transposed if ``transA``, ``transB``."""
    a, b = (f"{call.arg(i)}.t()" if call.get(key, 0) else call.arg(i) for i, key in ((0, "transA"), (1, "transB")))
    alpha, beta = call.float("alpha", 1.0), call.float("beta", 1.0)
    if not call.present(2):
        return f"torch.mm({a}, {b})" if alpha == "1.0" else f"torch.mm({a}, {b}) * {alpha}"
    scaled = "" if (alpha, beta) == ("1.0", "1.0") else f", beta={beta}, alpha={alpha}"
    return f"torch.addmm({call.arg(2)}, {a}, {b}{scaled})"


def _fused_matmul(call: Call) -> str:
    for key in ("transBatchA", "transBatchB"):
        if call.get(key, 0):
            raise call.fault(AttributeNotWritten(call.op.name, key, str(call.get(key)), ("0",)))
    a, b = (f"{call.arg(i)}.mT" if call.get(key, 0) else call.arg(i) for i, key in ((0, "transA"), (1, "transB")))
    alpha = call.float("alpha", 1.0)
    return f"torch.matmul({a}, {b})" + ("" if alpha == "1.0" else f" * {alpha}")


def _activated(emit: Emitter) -> Emitter:
    """The op that ``emit`` writes, followed by the op that attribute ``activation`` names."""
    functions = {"Relu": "torch.relu({})", "Tanh": "torch.tanh({})", "Sigmoid": "torch.sigmoid({})", "": "{}"}

    def emitter(call: Call) -> str:
        name = call.get("activation", "")
        if name not in functions:
            raise call.fault(AttributeNotWritten(call.op.name, "activation", name, tuple(functions)))
        return functions[name].format(emit(call))

    return emitter


def _einsum(call: Call) -> str:
    """Where two operands share all dimensions but their last and all of these are summed, as in the gradient of a weight, one
    product of matrices: torch.einsum copies both and takes twice the time."""
    equation = str(call.get("equation")).replace(" ", "")
    first, _, rest = equation.partition(",")
    second, _, result = rest.partition("->")
    rows = first[:-1]
    if "." not in equation and rows and second[:-1] == rows and result == first[-1:] + second[-1:]:
        letters = {*rows, *result}
        if len(letters) == len(rows) + 2 and all(call.shape(0)[i] == call.shape(1)[i] for i in range(len(rows))):
            one, other = (f"{call.arg(i)}.flatten(0, -2)" if len(rows) > 1 else call.arg(i) for i in (0, 1))
            return f"torch.mm({one}.t(), {other})"
    return f"torch.einsum({equation!r}, {', '.join(call.args)})"


def conv_windows(call: Call, x: int = 0, weight: int = 1, y: int = -1) -> Windows:
    """The windows of the convolution that maps tensor ``x`` to tensor ``y``."""
    kernel = tuple(call.get("kernel_shape") or call.shape(weight)[2:])
    return windows(call, kernel, call.shape(x)[2:], call.shape(y)[2:])


def _conv(call: Call) -> str:
    window, x = conv_windows(call), call.arg(0)
    if window.spatial > 3:
        raise call.fault(TooManyDimensions(call.op.name, window.spatial))
    padding = window.numbers("before")
    if window.before != window.after:
        x, padding = f"F.pad({x}, {window.pad(extra=False)})", "0"
    numbers = f"{window.numbers('strides')}, {padding}, {window.numbers('dilations')}, {int(call.get('group', 1))}"
    return f"F.conv{window.spatial}d({x}, {call.arg(1)}, {call.arg(2)}, {numbers})"


def _transposed_windows(call: Call, x: int, kernel: tuple[int, ...], y: int) -> tuple[Windows, tuple[int, ...]]:
    """The windows of a transposed convolution from ``x`` to ``y``, and torch's ``output_padding`` for it.

    Its windows are those of the convolution from ``y`` to ``x``. torch has one pad per dimension for both ends, the first one
    here; a smaller second pad becomes ``output_padding``, which must be less than the stride or dilation. Raises InvalidInput
    for other pads."""
    inverse = windows(call, kernel, call.shape(y)[2:], call.shape(x)[2:])
    count, lengths, output_lengths = inverse.spatial, call.shape(x)[2:], call.shape(y)[2:]
    auto = call.get("auto_pad", "NOTSET")
    pads = call.get("pads") if auto == "NOTSET" and not call.get("output_shape") else None
    padding, output_padding = [], []
    for i in range(count):
        full = (lengths[i] - 1) * inverse.strides[i] + (inverse.kernel[i] - 1) * inverse.dilations[i] + 1
        first = pads[i] if pads else _first_pad(call, full - output_lengths[i])
        padding.append(first)
        output_padding.append(output_lengths[i] - (full - 2 * first))
    window = Windows(inverse.kernel, inverse.strides, inverse.dilations, tuple(padding), tuple(padding), (0,) * count)
    limits = map(max, inverse.strides, inverse.dilations)
    if any(item != 0 and not 0 <= item < limit for item, limit in zip(output_padding, limits, strict=True)):
        raise call.fault(PadsNotWritten(call.op.name, str(output_padding)))
    return window, tuple(output_padding)


def _first_pad(call: Call, total: int) -> int:
    """The pad at the first end, of ``total`` elements that a transposed convolution cuts off at both ends."""
    if total <= 0 or (call.get("auto_pad", "NOTSET") == "NOTSET" and not call.get("output_shape")):
        return 0
    return total - total // 2 if call.get("auto_pad") == "SAME_LOWER" else total // 2


def _conv_transpose(call: Call) -> str:
    kernel = tuple(call.get("kernel_shape") or call.shape(1)[2:])
    window, output_padding = _transposed_windows(call, 0, kernel, -1)
    if window.spatial > 3:
        raise call.fault(TooManyDimensions(call.op.name, window.spatial))
    output = str(output_padding[0]) if len(set(output_padding)) == 1 else listed(output_padding)
    numbers = f"{window.numbers('strides')}, {window.numbers('before')}, {output}, {int(call.get('group', 1))}"
    return (
        f"F.conv_transpose{window.spatial}d({call.arg(0)}, {call.arg(1)}, {call.arg(2)}, {numbers}, "
        f"{window.numbers('dilations')})"
    )


def pool_windows(call: Call, x: int = 0, y: int = -1) -> Windows:
    """The windows of the pool that maps tensor ``x`` to tensor ``y``."""
    window = windows(call, tuple(call.get("kernel_shape")), call.shape(x)[2:], call.shape(y)[2:])
    if window.spatial > 3:
        raise call.fault(TooManyDimensions(call.op.name, window.spatial))
    return window


def _max_pool_input(window: Windows, x: str) -> tuple[str, str]:
    """The operand and the ``padding`` argument of torch's max pool; ``F.pad`` applies pads that this argument cannot say."""
    if window.symmetric and window.at_most_half:
        return x, window.numbers("before")
    return f'F.pad({x}, {window.pad()}, value=float("-inf"))', "0"


def _max_pool(call: Call) -> str:
    window = pool_windows(call)
    x, padding = _max_pool_input(window, call.arg(0))
    numbers = f"{window.numbers('kernel')}, {window.numbers('strides')}, {padding}, {window.numbers('dilations')}"
    text = f"F.max_pool{window.spatial}d({x}, {numbers}"
    if not any(call.wanted[1:]):
        return f"{text})" if len(call.op.results) == 1 else f"{text}), None"
    before = window.before if padding == "0" else (0,) * window.spatial
    ends = zip(call.shape(0)[2:], window.before, window.after, window.extra, strict=True)
    lengths = tuple(length + low + high + more for length, low, high, more in ends) if padding == "0" else call.shape(0)[2:]
    where = f"{listed(call.shape(0))}, {listed(lengths)}, {listed(before)}, {bool(call.get('storage_order', 0))}"
    return f"max_pool_indices(*{text}, return_indices=True), {where})"


def mean_of_windows(window: Windows, x: str) -> str:
    """The mean of each window of ``x``, which has its pads."""
    if set(window.dilations) - {1}:
        return f"dilated_average({x}, {listed(window.kernel)}, {listed(window.strides)}, {listed(window.dilations)})"
    return f"F.avg_pool{window.spatial}d({x}, {window.numbers('kernel')}, {window.numbers('strides')})"


def _averaged(call: Call, window: Windows, x: str) -> str:
    """The mean of each window of ``x``. Pads count as elements if ``count_include_pad``; ``extra`` positions never do."""
    included = bool(call.get("count_include_pad", 0))
    numbers = f"{window.numbers('kernel')}, {window.numbers('strides')}"
    function = f"F.avg_pool{window.spatial}d"
    if window.symmetric and window.at_most_half and not set(window.dilations) - {1}:
        if not any(window.before):
            return f"{function}({x}, {numbers})"
        return f"{function}({x}, {numbers}, {window.numbers('before')}, count_include_pad={included})"
    fraction = counted_fraction(call, window, x, call.shape(0))
    padded = f"F.pad({x}, {window.pad()})" if any(window.before + window.after + window.extra) else x
    return mean_of_windows(window, padded) + (f" / {fraction}" if fraction else "")


def counted_fraction(call: Call, window: Windows, like: str, shape: tuple[int, ...]) -> str | None:
    """The fraction of each window's positions that count as elements, as a Python expression; None where all count.

    The mean of a padded window divided by this fraction is the mean of the elements that count. ``like``: a Python name of a
    tensor with the dtype and device; ``shape``: of the pooled tensor."""
    included = bool(call.get("count_include_pad", 0))
    if not any(window.extra) and (included or not any(window.before + window.after)):
        return None
    count = window.spatial
    none = (0,) * count
    counted_pads = (window.before, window.after) if included else (none, none)
    ends = zip(shape[2:], *counted_pads, strict=True)
    ones = listed((1, 1, *(length + low + high for length, low, high in ends)))
    before, after = (none, none) if included else (window.before, window.after)
    pads = Windows(window.kernel, window.strides, window.dilations, before, after, window.extra).pad()
    text = f"F.pad(torch.ones({ones}, dtype={like}.dtype, device={like}.device), {pads})"
    return mean_of_windows(window, text)


def _average_pool(call: Call) -> str:
    return _averaged(call, pool_windows(call), call.arg(0))


def _lp_pool(call: Call) -> str:
    """The p-norm of each window: (mean of |x| ** p, times the window's size) ** (1 / p)."""
    window, p = pool_windows(call), int(call.get("p", 2))
    count = 1
    for length in window.kernel:
        count *= length
    powers = f"torch.abs({call.arg(0)}) ** {p}"
    x = f"F.pad({powers}, {window.pad()})" if any(window.before + window.after + window.extra) else powers
    return f"({mean_of_windows(window, x)} * {count}) ** {1 / p!r}"


def _global_pool(template: str) -> Emitter:
    def emit(call: Call) -> str:
        axes = tuple(range(2, call.rank(0)))
        return template.format(x=call.arg(0), axes=listed(axes), p=int(call.get("p", 2)))

    return emit


def is_plain_resize(call: Call, x: int, y: int) -> str:
    """The mode of ``F.interpolate`` that computes this Resize; empty where none does.

    torch resizes all spatial dimensions and no others. Its nearest mode takes the floor of asymmetric coordinates; its linear
    and cubic modes have half-pixel coordinates or align corners."""
    before, after = call.shape(x), call.shape(y)
    if call.op.name.endswith("Upsample"):
        coordinates = "asymmetric"
    else:
        coordinates = call.get("coordinate_transformation_mode", "half_pixel")
    mode = call.get("mode", "nearest")
    spatial = len(before) - 2
    if before[:2] != after[:2] or not 1 <= spatial <= 3 or call.get("antialias", 0) or call.get("axes"):
        return ""
    integer_scales = all(b % a == 0 for a, b in zip(before[2:], after[2:], strict=True))
    if mode == "nearest" and coordinates == "asymmetric":
        return "nearest" if integer_scales or call.get("nearest_mode", "round_prefer_floor") == "floor" else ""
    if mode == "nearest" and coordinates == "half_pixel":
        return "nearest" if integer_scales and call.get("nearest_mode", "round_prefer_floor") == "round_prefer_floor" else ""
    if (
        mode == "linear"
        and coordinates in ("half_pixel", "pytorch_half_pixel", "align_corners")
        and not _shrinks_to_one(before, after)
    ):
        return ("linear", "bilinear", "trilinear")[spatial - 1]
    if (
        mode == "cubic"
        and spatial == 2
        and coordinates in ("half_pixel", "align_corners")
        and not _shrinks_to_one(before, after)
    ):
        return "bicubic" if call.float("cubic_coeff_a", -0.75) == "-0.75" else ""
    return ""


def _shrinks_to_one(before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """Whether a longer dimension becomes 1: torch then takes its first element, ONNX its middle."""
    return any(b == 1 != a for a, b in zip(before, after, strict=True))


def resize_fault(call: Call, result: int) -> Fault:
    """The fault of a Resize to the shape of tensor ``result`` that torch has no mode for."""
    coordinates = call.get("coordinate_transformation_mode", "half_pixel")
    return ResizeNotWritten(call.op.name, call.get("mode", "nearest"), coordinates, str(call.shape(result)))


def _resize(call: Call) -> str:
    mode = is_plain_resize(call, 0, -1)
    if not mode or not _scales_match(call):
        raise call.fault(resize_fault(call, -1))
    corners = call.get("coordinate_transformation_mode", "half_pixel") == "align_corners"
    align = f", align_corners={corners}" if mode != "nearest" else ""
    return f'F.interpolate({call.arg(0)}, size={listed(call.shape(-1)[2:])}, mode="{mode}"{align})'


def _scales_match(call: Call) -> bool:
    """Whether the stated scales, if any, are output length / length: torch gets the sizes and derives the scales from them."""
    number = 1 if call.op.name.endswith("Upsample") else 2
    scales = call.get("scales") or (call.numbers(number) if call.present(number) else None)
    if not scales:
        return not call.present(number) or call.present(3) or not call.shape(number)[0]
    pairs = zip(call.shape(0), call.shape(-1), strict=True)
    return all(abs(b / a - scale) < 1e-6 * scale for (a, b), scale in zip(pairs, scales, strict=True))


def _col2im(call: Call) -> str:
    window, image = block_windows(call, call.shape(-1)[2:], call.integers(2) or ())
    numbers = f"{listed(window.kernel)}, {listed(window.dilations)}, {listed(window.strides)}"
    ends = zip(image, window.before, window.after, strict=True)
    lengths = tuple(length + low + high for length, low, high in ends)
    text = f"fold({call.arg(0)}, {listed(lengths)}, {numbers})"
    if lengths == image:
        return text
    cut = window.pad(extra=False).replace("(", "").replace(")", "").split(",")
    return f"F.pad({text}, {listed([-int(pad) for pad in cut if pad.strip()])})"


def block_windows(call: Call, image: tuple[int, ...], block: tuple[int, ...]) -> tuple[Windows, tuple[int, ...]]:
    """The windows of Col2Im, and the lengths of its image. Raises InvalidInput for other than one or two dimensions."""
    if not 1 <= len(block) <= 2:
        raise call.fault(FormNotWritten(call.op.name, f"form of {len(block)} dimensions"))
    return windows(call, block, image, (1,) * len(block)), image


def grid_words(call: Call) -> tuple[str, str, bool]:
    """The mode and the padding of a GridSample in torch's words, and whether corners are aligned."""
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(str(call.get("mode", "linear")), str(call.get("mode")))
    if mode not in ("bilinear", "nearest", "bicubic") or (mode == "bicubic" and call.rank(0) != 4):
        raise call.fault(AttributeNotWritten(call.op.name, "mode", mode, ("linear", "nearest", "cubic")))
    padding = call.word("padding_mode", "zeros", "zeros", "border", "reflection")[1:-1]
    return mode, padding, bool(call.get("align_corners", 0))


def _grid_sample(call: Call) -> str:
    mode, padding, corners = grid_words(call)
    return f'F.grid_sample({call.arg(0)}, {call.arg(1)}, "{mode}", "{padding}", align_corners={corners})'


def _fourier(call: Call) -> str:
    """DFT: the last dimension holds real and imaginary parts, or real parts alone."""
    rank = call.rank(0)
    (axis,) = call.axes(2, rank, "axis") or ((rank - 2) if call.opset >= 20 else 1,)
    half, inverse = bool(call.get("onesided", 0)), bool(call.get("inverse", 0))
    (length,) = call.integers(1) or (2 * (call.shape(0)[axis] - 1) if half and inverse else call.shape(0)[axis],)
    x = f"torch.view_as_complex({call.arg(0)}.contiguous())" if call.shape(0)[-1] == 2 else f"{call.arg(0)}.squeeze(-1)"
    function = f"{'i' if inverse else ''}{'r' if half else ''}fft"
    found = f"torch.fft.{function}({x}, n={length}, dim={axis})"
    return f"{found}.unsqueeze(-1)" if half and inverse else f"torch.view_as_real({found})"


EMITTERS: dict[str, Emitter] = {
    "onnx.AveragePool": _average_pool,
    "onnx.Col2Im": _col2im,
    "onnx.Conv": _conv,
    "onnx.ConvTranspose": _conv_transpose,
    "onnx.DFT": _fourier,
    "onnx.Einsum": _einsum,
    "onnx.Gemm": _gemm,
    "onnx.GlobalAveragePool": _global_pool("torch.mean({x}, dim={axes}, keepdim=True)"),
    "onnx.GlobalLpPool": _global_pool("torch.linalg.vector_norm({x}, {p}, dim={axes}, keepdim=True)"),
    "onnx.GlobalMaxPool": _global_pool("torch.amax({x}, dim={axes}, keepdim=True)"),
    "onnx.GridSample": _grid_sample,
    "onnx.LpPool": _lp_pool,
    "onnx.MatMul": _matmul,
    "onnx.MaxPool": _max_pool,
    "onnx.Resize": _resize,
    "onnx.Upsample": _resize,
    "onnx.com.microsoft.FusedConv": _activated(_conv),
    "onnx.com.microsoft.FusedGemm": _activated(_gemm),
    "onnx.com.microsoft.FusedMatMul": _fused_matmul,
}
"""Full name of an op -> its emitter."""
