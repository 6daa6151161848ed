"""Rules of ops that move elements: the gradient moves back; what is read twice is summed, what is cut off gets zeros."""

from __future__ import annotations

from collections.abc import Sequence

from ir.core.types import DType, TensorType
from ir.ops.operators import padded_places
from passes.differentiate.site import Rule, Site

Gradients = Sequence[str | None]


def reshaped(site: Site) -> Gradients:
    """Reshape, Flatten, Squeeze, Unsqueeze."""
    return [site.reshape(site.given, site.shape(0))]


def transpose(site: Site) -> Gradients:
    rank = len(site.shape(0))
    perm = site.op.get("perm") or tuple(reversed(range(rank)))
    return [site.transpose(site.given, [perm.index(i) for i in range(rank)])]


def expand(site: Site) -> Gradients:
    return [site.summed(site.given, 0)]


def concat(site: Site) -> Gradients:
    """Each operand gets its part of the gradient."""
    shapes = [site.shape(i) for i in range(len(site.op.operands))]
    axis = int(site.op.get("axis", 1)) % len(shapes[0])
    if all(site.wants(i) for i in range(len(shapes))) and len(shapes) > 1:
        return split_into(site, site.given, axis, [shape[axis] for shape in shapes])
    starts = [sum(shape[axis] for shape in shapes[:i]) for i in range(len(shapes))]
    return [
        slice_of(site, site.given, axis, starts[i], starts[i] + shapes[i][axis]) if site.wants(i) else None
        for i in range(len(shapes))
    ]


def split_into(site: Site, name: str, axis: int, lengths: Sequence[int]) -> Gradients:
    """The parts of a tensor along ``axis``."""
    shape, dtype = site.shape_of(name), site.type_of(name).dtype
    types = [TensorType(dtype, (*shape[:axis], length, *shape[axis + 1 :])) for length in lengths]
    if not site.has_opset(13):
        return site.multi("onnx.Split", (name,), types, axis=axis, split=tuple(lengths))
    return site.multi("onnx.Split", (name, site.ints(lengths)), types, axis=axis)


def slice_of(site: Site, name: str, axis: int, start: int, end: int) -> str:
    """Elements ``start .. end`` along ``axis``."""
    shape = site.shape_of(name)
    if (start, end) == (0, shape[axis]):
        return name
    type_ = TensorType(site.type_of(name).dtype, (*shape[:axis], end - start, *shape[axis + 1 :]))
    if not site.has_opset(10):
        return site.emit("onnx.Slice", (name,), type_, axes=(axis,), starts=(start,), ends=(end,))
    return site.emit("onnx.Slice", (name, site.ints((start,)), site.ints((end,)), site.ints((axis,))), type_)


def zeros(site: Site, shape: Sequence[int], dtype: DType) -> str:
    """A tensor of zeros."""
    return site.expand(site.scalar(0.0, dtype), shape)


def padded(site: Site, name: str, before: Sequence[int], after: Sequence[int]) -> str:
    """``name`` with so many zeros around it along each dimension."""
    if not any((*before, *after)):
        return name
    type_ = site.type_of(name)
    shape = tuple(a + size + b for a, size, b in zip(before, site.shape_of(name), after, strict=True))
    result = TensorType(type_.dtype, shape)
    if not site.has_opset(11):
        return site.emit("onnx.Pad", (name,), result, pads=(*before, *after))
    return site.emit("onnx.Pad", (name, site.ints((*before, *after))), result)


def split(site: Site) -> Gradients:
    """The gradients of the parts, joined; of a part that nothing reads it is zero."""
    shape, dtype = site.shape(0), site.type(0).dtype
    axis = int(site.op.get("axis", 0)) % len(shape)
    parts = []
    for number in range(len(site.op.results)):
        gradient = site.gradient(number)
        parts.append(gradient if gradient is not None else zeros(site, site.shape(-1 - number), dtype))
    joined = parts[0] if len(parts) == 1 else site.emit("onnx.Concat", parts, TensorType(dtype, shape), axis=axis)
    return [joined]


def slicing(site: Site) -> Gradients:
    """Zeros around the gradient; of steps other than 1 it is scattered along each dimension."""
    shape = site.shape(0)
    starts, ends = site.integers(1, "starts"), site.integers(2, "ends")
    assert starts is not None
    assert ends is not None
    axes = site.integers(3, "axes") or tuple(range(len(starts)))
    steps = site.integers(4) or (1,) * len(starts)
    given = site.given
    before, after = [0] * len(shape), [0] * len(shape)
    for axis, start, end, step in zip((axis % len(shape) for axis in axes), starts, ends, steps, strict=True):
        places = range(*slice(start, end if end >= -shape[axis] or step > 0 else None, step).indices(shape[axis]))
        if step == 1 and len(places):
            before[axis], after[axis] = places[0], shape[axis] - 1 - places[-1]
        elif tuple(places) != tuple(range(shape[axis])):
            given = scattered(site, given, axis, shape[axis], places)
    return [padded(site, given, before, after)]


def scattered(site: Site, name: str, axis: int, length: int, places: Sequence[int]) -> str:
    """A tensor of ``length`` along ``axis``, zero but where ``places`` say that the elements of ``name`` lie."""
    shape = site.shape_of(name)
    dtype = site.type_of(name).dtype
    wide = (*shape[:axis], length, *shape[axis + 1 :])
    if not len(places):
        return zeros(site, wide, dtype)
    column = site.program.constant(DType.I64, tuple(len(places) if i == axis else 1 for i in range(len(shape))), list(places))
    indices = site.expand(column, shape)
    return site.emit("onnx.ScatterElements", (zeros(site, wide, dtype), indices, name), TensorType(dtype, wide), axis=axis)


def pad(site: Site) -> Gradients:
    """The part that was not padding; the gradient of a repeated edge, of a reflection or of a turn adds to it."""
    shape = site.shape(0)
    pads = site.integers(1, "pads")
    assert pads is not None
    axes = site.integers(3) or tuple(range(len(shape)))
    given, mode = site.given, site.op.get("mode", "constant")
    if mode != "constant":
        for i, axis in enumerate(axes):
            axis %= len(shape)
            places = padded_places(mode, shape[axis], pads[i], pads[i + len(axes)])
            if places is None:
                raise site.fault(f"padding of mode '{mode}' has no rule", "pad by constant, edge, reflect or wrap")
            given = gathered(site, given, axis, shape[axis], places)
        return [given, None, None]
    for i, axis in enumerate(axes):
        axis %= len(shape)
        before, after = pads[i], pads[i + len(axes)]
        length = site.shape_of(given)[axis]
        low, high = max(before, 0), length - max(after, 0)
        given = slice_of(site, given, axis, low, high)
        if before < 0 or after < 0:
            wide = ([0] * len(shape), [0] * len(shape))
            wide[0][axis], wide[1][axis] = max(-before, 0), max(-after, 0)
            given = padded(site, given, *wide)
    second = None
    if site.wants(2):
        everything = site.sum(site.given, tuple(range(len(shape))))
        inside = site.sum(given, tuple(range(len(shape))))
        second = site.reshape(site.sub(everything, inside), site.shape(2))
    return [given, None, second]


def gathered(site: Site, name: str, axis: int, length: int, places: Sequence[int]) -> str:
    """The gradient of an operand of ``length`` along ``axis``, whose elements ``places`` the result has: the sum of the runs of
    places that go up, go down or stay, each where it lies."""
    shape, parts, start = site.shape_of(name), list[str](), 0
    while start < len(places):
        step = places[start + 1] - places[start] if start + 1 < len(places) else 1
        step, end = step if abs(step) <= 1 else 1, start + 1
        while end < len(places) and places[end] - places[end - 1] == step:
            end += 1
        low, count = min(places[start:end]), end - start if step else 1
        if step < 0:
            indices = site.ints(range(end - 1, start - 1, -1))
            type_ = TensorType(site.type_of(name).dtype, (*shape[:axis], count, *shape[axis + 1 :]))
            part = site.emit("onnx.Gather", (name, indices), type_, axis=axis)
        else:
            part = slice_of(site, name, axis, start, end)
            part = part if step else site.sum(part, (axis,), keep=True)
        before, after = [0] * len(shape), [0] * len(shape)
        before[axis], after[axis] = low, length - low - count
        parts.append(padded(site, part, before, after))
        start = end
    if len(parts) < 2:
        return parts[0] if parts else zeros(site, (*shape[:axis], length, *shape[axis + 1 :]), site.type_of(name).dtype)
    return site.emit("onnx.Sum", parts, site.type_of(parts[0]))


def tile(site: Site) -> Gradients:
    """The sum over the copies: each dimension is cut into copies and elements."""
    shape, repeats = site.shape(0), site.integers(1)
    assert repeats is not None
    cut = [size for pair in zip(repeats, shape, strict=True) for size in pair]
    copies = site.reshape(site.given, cut)
    axes = tuple(2 * i for i, repeat in enumerate(repeats) if repeat != 1)
    return [site.reshape(site.sum(copies, axes), shape)]


def depth_to_space(site: Site) -> Gradients:
    """DepthToSpace and SpaceToDepth undo each other in mode DCR; in mode CRD by Reshape and Transpose."""
    block = int(site.op.get("blocksize"))
    shape, dtype = site.shape(0), site.type(0).dtype
    batch, channels, height, width = shape
    if site.op.name == "onnx.SpaceToDepth":
        return [site.emit("onnx.DepthToSpace", (site.given,), TensorType(dtype, shape), blocksize=block)]
    if site.op.get("mode", "DCR") == "DCR":
        return [site.emit("onnx.SpaceToDepth", (site.given,), TensorType(dtype, shape), blocksize=block)]
    cut = site.reshape(site.given, (batch, channels // block**2, height, block, width, block))
    return [site.reshape(site.transpose(cut, (0, 1, 3, 5, 2, 4)), shape)]


def trilu(site: Site) -> Gradients:
    """The same triangle of the gradient."""
    operands = (site.given, *site.op.operands[1:2])
    return [site.emit("onnx.Trilu", operands, site.type(0), upper=site.op.get("upper"))]


RULES: dict[str, Rule] = {
    "onnx.Concat": concat,
    "onnx.DepthToSpace": depth_to_space,
    "onnx.Expand": expand,
    "onnx.Flatten": reshaped,
    "onnx.Pad": pad,
    "onnx.Reshape": reshaped,
    "onnx.Slice": slicing,
    "onnx.SpaceToDepth": depth_to_space,
    "onnx.Split": split,
    "onnx.Squeeze": reshaped,
    "onnx.Tile": tile,
    "onnx.Transpose": transpose,
    "onnx.Trilu": trilu,
    "onnx.Unsqueeze": reshaped,
}
