"""Statements of ops that multiply and add along inner dimensions, of pools and of resizing."""

from __future__ import annotations

from dnnc.engines.torch.statements.call import Call, Emitter, listed
from dnnc.engines.torch.statements.faults import (
    AttributeNotWritten,
    DilationsNotWritten,
    IndicesNotWritten,
    PadsNotWritten,
    ResizeNotWritten,
    TooManyDimensions,
)
from dnnc.engines.torch.statements.windows import Windows, windows
from ir.core.diagnostics import Fault


def _matmul(call: Call) -> str:
    return f"torch.matmul({call.arg(0)}, {call.arg(1)})"


def _gemm(call: Call) -> str:
    """alpha A' B' + beta C."""
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
    functions = {"Relu": "torch.relu({})", "Tanh": "torch.tanh({})", "Sigmoid": "torch.sigmoid({})", "": "{}"}

    def emitter(call: Call) -> str:
        name = call.get("activation", "")
        if name not in functions:
            raise call.fault(AttributeNotWritten(call.op.name, "activation", name, tuple(functions)))
        return functions[name].format(emit(call))

    return emitter


def _einsum(call: Call) -> str:
    equation = str(call.get("equation")).replace(" ", "")
    return f"torch.einsum({equation!r}, {', '.join(call.args)})"


def conv_windows(call: Call, x: int = 0, weight: int = 1, y: int = -1) -> Windows:
    """The windows of a convolution that makes ``y`` of ``x``."""
    kernel = tuple(call.get("kernel_shape") or call.shape(weight)[2:])
    return windows(call, kernel, call.shape(x)[2:], call.shape(y)[2:])


def _conv(call: Call) -> str:
    place, x = conv_windows(call), call.arg(0)
    if place.spatial > 3:
        raise call.fault(TooManyDimensions(call.op.name, place.spatial))
    padding = place.numbers("before")
    if place.before != place.after:
        x, padding = f"F.pad({x}, {place.pad(extra=False)})", "0"
    numbers = f"{place.numbers('strides')}, {padding}, {place.numbers('dilations')}, {int(call.get('group', 1))}"
    return f"F.conv{place.spatial}d({x}, {call.arg(1)}, {call.arg(2)}, {numbers})"


def transposed_padding(call: Call, x: int, kernel: tuple[int, ...], y: int) -> tuple[Windows, tuple[int, ...]]:
    """The windows of a transposed convolution, which are those of the convolution from ``y`` back to ``x``, and how much longer
    than the least its result is. Raises InvalidInput where pads differ so that torch has no numbers for them."""
    place = windows(call, kernel, call.shape(y)[2:], call.shape(x)[2:])
    count, shape, made = place.spatial, call.shape(x)[2:], call.shape(y)[2:]
    auto = call.get("auto_pad", "NOTSET")
    pads = call.get("pads") if auto == "NOTSET" and not call.get("output_shape") else None
    reach = [(place.kernel[i] - 1) * place.dilations[i] + 1 for i in range(count)]
    low, more = [], []
    for i in range(count):
        full = (shape[i] - 1) * place.strides[i] + reach[i]
        first = pads[i] if pads else _first_pad(call, full - made[i])
        low.append(first)
        more.append(made[i] - (full - 2 * first))
    found = Windows(place.kernel, place.strides, place.dilations, tuple(low), tuple(low), (0,) * count)
    if any(not 0 <= item < max(place.strides[i], place.dilations[i]) and item != 0 for i, item in enumerate(more)):
        raise call.fault(PadsNotWritten(call.op.name, str(more)))
    return found, tuple(more)


def _first_pad(call: Call, total: int) -> int:
    """What is cut before the result, of all that is cut."""
    if total <= 0 or (call.get("auto_pad", "NOTSET") == "NOTSET" and not call.get("output_shape")):
        return 0
    return total - total // 2 if call.get("auto_pad") == "SAME_LOWER" else total // 2


def _conv_transpose(call: Call) -> str:
    kernel = tuple(call.get("kernel_shape") or call.shape(1)[2:])
    place, more = transposed_padding(call, 0, kernel, -1)
    if place.spatial > 3:
        raise call.fault(TooManyDimensions(call.op.name, place.spatial))
    output = str(more[0]) if len(set(more)) == 1 else listed(more)
    numbers = f"{place.numbers('strides')}, {place.numbers('before')}, {output}, {int(call.get('group', 1))}"
    return (
        f"F.conv_transpose{place.spatial}d({call.arg(0)}, {call.arg(1)}, {call.arg(2)}, {numbers}, "
        f"{place.numbers('dilations')})"
    )


def pool_windows(call: Call, x: int = 0, y: int = -1) -> Windows:
    """The windows of a pool that makes ``y`` of ``x``."""
    place = windows(call, tuple(call.get("kernel_shape")), call.shape(x)[2:], call.shape(y)[2:])
    if place.spatial > 3:
        raise call.fault(TooManyDimensions(call.op.name, place.spatial))
    return place


def max_pool_input(place: Windows, x: str) -> tuple[str, str]:
    """What torch pools, and by which padding: pads that torch's pools have not are put before."""
    if place.even and place.small:
        return x, place.numbers("before")
    return f'F.pad({x}, {place.pad()}, value=float("-inf"))', "0"


def _max_pool(call: Call) -> str:
    if any(call.wanted[1:]):
        raise call.fault(IndicesNotWritten(call.op.name))
    place = pool_windows(call)
    x, padding = max_pool_input(place, call.arg(0))
    numbers = f"{place.numbers('kernel')}, {place.numbers('strides')}, {padding}, {place.numbers('dilations')}"
    text = f"F.max_pool{place.spatial}d({x}, {numbers})"
    return text if len(call.op.results) == 1 else f"{text}, None"


def _averaged(call: Call, place: Windows, x: str) -> str:
    """The mean of each window of ``x``. ``count_include_pad``: whether pads count as elements; places beyond them never do."""
    if set(place.dilations) - {1}:
        raise call.fault(DilationsNotWritten(call.op.name))
    included = bool(call.get("count_include_pad", 0))
    numbers = f"{place.numbers('kernel')}, {place.numbers('strides')}"
    function = f"F.avg_pool{place.spatial}d"
    if place.even and place.small:
        if not any(place.before):
            return f"{function}({x}, {numbers})"
        return f"{function}({x}, {numbers}, {place.numbers('before')}, count_include_pad={included})"
    counts = average_padding(call, place, x, call.shape(0))
    return f"{function}(F.pad({x}, {place.pad()}), {numbers})" + (f" / {counts}" if counts else "")


def average_padding(call: Call, place: Windows, like: str, shape: tuple[int, ...]) -> str | None:
    """What a mean over all places of each window is divided by to be that of the elements that count: their part of the places.
    None where all count."""
    if set(place.dilations) - {1}:
        raise call.fault(DilationsNotWritten(call.op.name))
    included = bool(call.get("count_include_pad", 0))
    if not any(place.extra) and (included or not any(place.before + place.after)):
        return None
    count = place.spatial
    none = (0,) * count
    inner = (place.before, place.after) if included else (none, none)
    ends = zip(shape[2:], *inner, strict=True)
    ones = listed((1, 1, *(length + low + high for length, low, high in ends)))
    before, after = (none, none) if included else (place.before, place.after)
    pads = Windows(place.kernel, place.strides, place.dilations, before, after, place.extra).pad()
    text = f"F.pad(torch.ones({ones}, dtype={like}.dtype, device={like}.device), {pads})"
    return f"F.avg_pool{count}d({text}, {place.numbers('kernel')}, {place.numbers('strides')})"


def _average_pool(call: Call) -> str:
    return _averaged(call, pool_windows(call), call.arg(0))


def _lp_pool(call: Call) -> str:
    """The p-norm of each window."""
    place, p = pool_windows(call), int(call.get("p", 2))
    if set(place.dilations) - {1}:
        raise call.fault(DilationsNotWritten(call.op.name))
    count = 1
    for length in place.kernel:
        count *= length
    powers = f"torch.abs({call.arg(0)}) ** {p}"
    x = f"F.pad({powers}, {place.pad()})" if any(place.before + place.after + place.extra) else powers
    pooled = f"F.avg_pool{place.spatial}d({x}, {place.numbers('kernel')}, {place.numbers('strides')})"
    return f"({pooled} * {count}) ** {1 / p!r}"


def _global_pool(template: str) -> Emitter:
    def emit(call: Call) -> str:
        axes = tuple(range(2, call.rank(0)))
        return template.format(x=call.arg(0), axes=listed(axes), p=int(call.get("p", 2)))

    return emit


def is_plain_resize(call: Call, x: int, y: int) -> str:
    """The mode of ``F.interpolate`` that this Resize is; empty where none is.

    torch has nearest by floor of an asymmetric coordinate, and linear by half a pixel, over all spatial dimensions."""
    before, after = call.shape(x), call.shape(y)
    if call.op.name.endswith("Upsample"):
        coordinates = "asymmetric"
    else:
        coordinates = call.get("coordinate_transformation_mode", "half_pixel")
    mode = call.get("mode", "nearest")
    spatial = len(before) - 2
    if before[:2] != after[:2] or not 1 <= spatial <= 3 or call.get("antialias", 0) or call.get("axes"):
        return ""
    whole = all(b % a == 0 for a, b in zip(before[2:], after[2:], strict=True))
    if mode == "nearest" and coordinates == "asymmetric":
        return "nearest" if whole or call.get("nearest_mode", "round_prefer_floor") == "floor" else ""
    if mode == "nearest" and coordinates == "half_pixel":
        return "nearest" if whole and call.get("nearest_mode", "round_prefer_floor") == "round_prefer_floor" else ""
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
    """Whether a length becomes 1: torch takes the first element then, and ONNX the middle."""
    return any(b == 1 != a for a, b in zip(before, after, strict=True))


def resize_fault(call: Call, result: int) -> Fault:
    """The fault of a resizing to the shape of tensor ``result`` that torch cannot do."""
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
    """Whether the scales, where they are given, are the quotients of the lengths: only then torch may count by sizes."""
    number = 1 if call.op.name.endswith("Upsample") else 2
    scales = call.get("scales") or (call.numbers(number) if call.present(number) else None)
    if not scales:
        return not call.present(number) or call.present(3) or not call.shape(number)[0]
    pairs = zip(call.shape(0), call.shape(-1), strict=True)
    return all(abs(b / a - scale) < 1e-6 * scale for (a, b), scale in zip(pairs, scales, strict=True))


EMITTERS: dict[str, Emitter] = {
    "onnx.AveragePool": _average_pool,
    "onnx.Conv": _conv,
    "onnx.ConvTranspose": _conv_transpose,
    "onnx.Einsum": _einsum,
    "onnx.Gemm": _gemm,
    "onnx.GlobalAveragePool": _global_pool("torch.mean({x}, dim={axes}, keepdim=True)"),
    "onnx.GlobalLpPool": _global_pool("torch.linalg.vector_norm({x}, {p}, dim={axes}, keepdim=True)"),
    "onnx.GlobalMaxPool": _global_pool("torch.amax({x}, dim={axes}, keepdim=True)"),
    "onnx.LpPool": _lp_pool,
    "onnx.MatMul": _matmul,
    "onnx.MaxPool": _max_pool,
    "onnx.Resize": _resize,
    "onnx.Upsample": _resize,
    "onnx.com.microsoft.FusedConv": _activated(_conv),
    "onnx.com.microsoft.FusedGemm": _activated(_gemm),
    "onnx.com.microsoft.FusedMatMul": _fused_matmul,
}
"""By the op's full name."""

__all__ = [
    "EMITTERS",
    "average_padding",
    "conv_windows",
    "is_plain_resize",
    "max_pool_input",
    "pool_windows",
    "transposed_padding",
]
