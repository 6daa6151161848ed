"""Emitters of ops that move elements, select them by index, or create them.

Shapes come from result types and are written as numbers: an operand that holds the shape (of Reshape, Expand) is not read.
"""

from __future__ import annotations

from collections.abc import Sequence

from dnnc.engines.torch.statements.call import Call, Emitter, listed, number_text
from dnnc.engines.torch.statements.faults import AttributeNotWritten, ComputedSlice, ConstantNotWritten
from ir.core.attributes import Dense
from ir.core.types import DType
from ir.layout_rules import numbers_of
from ir.ops.operators import padded_places


def _reshape(call: Call) -> str:
    return f"{call.arg(0)}.reshape({listed(call.shape(-1))})"


def _transpose(call: Call) -> str:
    perm = call.get("perm") or tuple(reversed(range(call.rank(0))))
    return f"{call.arg(0)}.permute({listed(perm)})"


def _expand(call: Call) -> str:
    return f"{call.arg(0)}.expand({listed(call.shape(-1))})"


def _concat(call: Call) -> str:
    return f"torch.cat([{', '.join(call.args)}], dim={call.axis(0, number=-1)})"


def _split(call: Call) -> str:
    axis = call.axis(0)
    lengths = [call.shape(-1 - i)[axis] for i in range(len(call.op.results))]
    text = f"torch.split({call.arg(0)}, {lengths}, dim={axis})"
    return text if len(lengths) > 1 else f"{text}[0]"


def _slice(call: Call) -> str:
    rank, shape = call.rank(0), call.shape(0)
    if call.present(1) and call.numbers(1) is None:
        return _slice_at_computed_start(call, rank)
    starts, ends = call.integers(1, "starts"), call.integers(2, "ends")
    assert starts is not None
    assert ends is not None
    axes = call.axes(3, rank) or tuple(range(len(starts)))
    steps = call.integers(4) or (1,) * len(starts)
    ranges = [":"] * rank
    flipped = []
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        indices = range(*slice(start, _end(end, step), step).indices(shape[axis]))
        if step < 0:  # torch has no negative steps: take the same indices in increasing order, then flip
            indices = indices[::-1]
            flipped.append(axis)
        ranges[axis] = _range_text(indices, shape[axis])
    while ranges and ranges[-1] == ":":
        ranges.pop()
    text = f"{call.arg(0)}[{', '.join(ranges)}]" if ranges else call.arg(0)
    return f"torch.flip({text}, {listed(flipped)})" if flipped else text


def _slice_at_computed_start(call: Call, rank: int) -> str:
    """A slice whose starts are computed, as for the part of a mesh member; its lengths come from the result type."""
    axes, steps = call.axes(3, rank), call.integers(4) or ()
    if not axes or any(step != 1 for step in steps):
        raise call.fault(ComputedSlice(call.op.name))
    lengths = call.shape(-1)
    text = call.arg(0)
    for i, axis in enumerate(axes):
        text = f"{text}.narrow({axis}, int({call.arg(1)}[{i}]), {lengths[axis]})"
    return text


def _end(end: int, step: int) -> int | None:
    """The end for Python's ``slice``: with a negative step, an ONNX end far below 0 includes element 0, which is None in
    Python."""
    return None if step < 0 and end < -(1 << 30) else end


def _range_text(indices: range, length: int) -> str:
    if indices == range(length):
        return ":"
    if not indices:
        return "0:0"
    text = f"{indices[0]}:{indices[-1] + 1}"
    return text if indices.step == 1 or len(indices) == 1 else f"{text}:{indices.step}"


def _pad(call: Call) -> str:
    rank = call.rank(0)
    pads = call.integers(1, "pads")
    assert pads is not None
    axes = call.axes(3, rank) or tuple(range(rank))
    sides = [(0, 0)] * rank
    for i, axis in enumerate(axes):
        sides[axis] = pads[i], pads[i + len(axes)]
    mode = call.get("mode", "constant")
    if mode == "constant":
        padding, x = listed(_backwards(sides)), call.arg(0)
        if call.present(2) and call.numbers(2) is None:  # F.pad takes a Python number: the tensor would get no gradient
            inside = f"F.pad(torch.ones_like({x}, dtype=torch.bool), {padding})"
            return f"torch.where({inside}, F.pad({x}, {padding}), {call.arg(2)})"
        return f"F.pad({x}, {padding}{_pad_value(call)})"
    text = call.arg(0)
    for axis, (before, after) in enumerate(sides):
        if (before, after) != (0, 0):
            text = f"torch.index_select({text}, {axis}, {_source_indices(call, mode, before, after, axis)})"
    return text


def _pad_value(call: Call) -> str:
    if call.get("value") is not None:
        return f", value={call.float('value', 0.0)}"
    if not call.present(2):
        return ""
    numbers = call.numbers(2)
    assert numbers is not None
    return f", value={_number(call, numbers[0], 0)}"


def _backwards(sides: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Pads in torch's order: last dimension first."""
    return tuple(side for pair in reversed(sides) for side in pair)


def _source_indices(call: Call, mode: str, before: int, after: int, axis: int) -> str:
    """For each index along ``axis`` of the padded tensor, the index in the operand that its element is copied from."""
    indices = padded_places(mode, call.shape(0)[axis], before, after)
    if indices is None:
        raise call.fault(AttributeNotWritten(call.op.name, "mode", mode, ("constant", "edge", "reflect", "wrap")))
    return f"torch.tensor({indices}, device={call.arg(0)}.device)"


def _tile(call: Call) -> str:
    repeats = call.integers(1)
    assert repeats is not None
    return f"{call.arg(0)}.repeat({listed(repeats)})"


def _gather(call: Call) -> str:
    axis, data, indices = call.axis(0), call.arg(0), call.arg(1)
    numbers = call.numbers(1)
    if numbers is not None and call.rank(1) == 0:
        return f"torch.select({data}, {axis}, {int(numbers[0])})"
    if axis == 0 and call.rank(0) == 2 and _known_non_negative(call, 1):
        return f"F.embedding({indices}, {data})"
    flat = _index(call, 1, call.shape(0)[axis])
    if call.rank(1) == 1:
        return f"torch.index_select({data}, {axis}, {flat})"
    flat = f"{flat}.reshape(-1)" if flat == indices else f"({flat}).reshape(-1)"
    return f"torch.index_select({data}, {axis}, {flat}).reshape({listed(call.shape(-1))})"


def _known_non_negative(call: Call, number: int) -> bool:
    numbers = call.numbers(number)
    return numbers is not None and all(item >= 0 for item in numbers)


def _index(call: Call, number: int, length: int) -> str:
    """Operand ``number``, indices along a dimension of this length, with negative ones replaced by index + length."""
    name = call.arg(number)
    return name if _known_non_negative(call, number) else f"torch.where({name} < 0, {name} + {length}, {name})"


def _wide(call: Call, number: int, text: str) -> str:
    """Indices as int64, the type that torch's gather and scatter take."""
    if call.type(number).dtype is DType.I64:
        return text
    return f"{text}.long()" if text.isidentifier() else f"({text}).long()"


def _gather_elements(call: Call) -> str:
    axis = call.axis(0)
    index = _wide(call, 1, _index(call, 1, call.shape(0)[axis]))
    return f"torch.gather({call.arg(0)}, {axis}, {index})"


def _gather_nd(call: Call) -> str:
    """data[batch.., i, j, ..], where (i, j, ..) is the last dimension of the indices. torch too takes negative ones."""
    shape, rank = call.shape(1), call.rank(1) - 1
    batch_indices = []
    for dim in range(int(call.get("batch_dims", 0))):
        view = tuple(shape[dim] if i == dim else 1 for i in range(rank))
        batch_indices.append(f"torch.arange({shape[dim]}, device={call.arg(0)}.device).reshape({listed(view)})")
    indices = [f"{call.arg(1)}[..., {i}]" for i in range(shape[-1])]
    return f"{call.arg(0)}[{', '.join([*batch_indices, *indices])}]"


_REDUCE = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _scatter_elements(call: Call) -> str:
    axis = call.axis(0)
    index = _wide(call, 1, _index(call, 1, call.shape(0)[axis]))
    reduction = call.word("reduction", "none", "none", *_REDUCE).strip('"')
    head = f"{call.arg(0)}, {axis}, {index}, {call.arg(2)}"
    if reduction == "none":
        return f"torch.scatter({head})"
    if reduction == "add":
        return f"torch.scatter_add({head})"
    return f'torch.scatter_reduce({head}, "{_REDUCE[reduction]}")'


def _scatter_nd(call: Call) -> str:
    reduction = call.get("reduction", "none")
    if reduction not in ("none", "add"):
        raise call.fault(AttributeNotWritten(call.op.name, "reduction", reduction, ("none", "add")))
    indices = ", ".join(_wide(call, 1, f"{call.arg(1)}[..., {i}]") for i in range(call.shape(1)[-1]))
    accumulate = ", accumulate=True" if reduction == "add" else ""
    return f"{call.arg(0)}.index_put(({indices},), {call.arg(2)}{accumulate})"


def _one_hot(call: Call) -> str:
    """A negative index counts from the end; an index outside the range gives the off value everywhere."""
    rank, depth = call.rank(0), call.shape(-1)[int(call.get("axis", -1)) % call.rank(-1)]
    axis = int(call.get("axis", -1)) % (rank + 1)
    view = tuple(depth if i == axis else 1 for i in range(rank + 1))
    indices = call.arg(0)
    natural = f"torch.where({indices} < 0, {indices} + {depth}, {indices}).unsqueeze({axis})"
    hot = f"{natural} == torch.arange({depth}, device={indices}.device).reshape({listed(view)})"
    return f"torch.where({hot}, {call.arg(2)}[1], {call.arg(2)}[0])"


def _trilu(call: Call) -> str:
    numbers = call.numbers(1)
    k = "0" if not call.present(1) else f"int({call.arg(1)})" if numbers is None else str(int(numbers[0]))
    return f"torch.{'triu' if call.get('upper', 1) else 'tril'}({call.arg(0)}, {k})"


def _depth_to_space(call: Call) -> str:
    n, c, h, w = call.shape(0)
    b = int(call.get("blocksize"))
    if call.get("mode", "DCR") == "CRD":
        return f"F.pixel_shuffle({call.arg(0)}, {b})"
    view = f"{call.arg(0)}.reshape({listed((n, b, b, c // (b * b), h, w))}).permute((0, 3, 4, 1, 5, 2))"
    return f"{view}.reshape({listed(call.shape(-1))})"


def _space_to_depth(call: Call) -> str:
    n, c, h, w = call.shape(0)
    b = int(call.get("blocksize"))
    view = f"{call.arg(0)}.reshape({listed((n, c, h // b, b, w // b, b))}).permute((0, 3, 5, 1, 2, 4))"
    return f"{view}.reshape({listed(call.shape(-1))})"


def _number(call: Call, value: float, number: int) -> str:
    """``value`` as Python text of the element type of tensor ``number``."""
    type_ = call.type(number)
    return (
        number_text(float(value))
        if type_.dtype is DType.F32
        else (
            repr(float(value)) if type_.dtype.is_float else str(bool(value)) if type_.dtype is DType.BOOL else str(int(value))
        )
    )


def _dtype_and_device(call: Call) -> str:
    """Arguments of torch's factory functions; ``device`` is a global of the program."""
    return f", dtype={call.dtype(-1)}, device=device"


def _range(call: Call) -> str:
    bounds = [
        f"{call.arg(i)}.item()" if (numbers := call.numbers(i)) is None else _number(call, numbers[0], i) for i in range(3)
    ]
    return f"torch.arange({', '.join(bounds)}{_dtype_and_device(call)})"


def _constant_of_shape(call: Call) -> str:
    value = call.get("value")
    numbers = numbers_of(value) if isinstance(value, Dense) else (0,)
    if numbers is None:
        return f"{_data(call, value)}.reshape([]).expand({listed(call.shape(-1))}).contiguous()"
    return f"torch.full({listed(call.shape(-1))}, {_number(call, numbers[0], -1)}{_dtype_and_device(call)})"


def _constant(call: Call) -> str:
    (key, attribute), *_ = call.op.attributes
    value = attribute.value
    if isinstance(value, Dense):
        return _dense(call, value)
    if key in ("value_string", "value_strings"):
        raise call.fault(ConstantNotWritten(call.op.name, "strings"))
    values = list(value) if isinstance(value, tuple) else value
    return f"torch.tensor({values!r}{_dtype_and_device(call)})".replace("inf", 'float("inf")').replace("nan", 'float("nan")')


def _dense(call: Call, value: Dense) -> str:
    numbers, shape = numbers_of(value), call.shape(-1)
    if numbers is not None:
        items = ", ".join(_number(call, item, -1) for item in numbers)
        text = f"torch.tensor([{items}]{_dtype_and_device(call)})"
        return text if len(shape) == 1 else f"{text}.reshape({listed(shape)})"
    return f"{_data(call, value)}.reshape({listed(shape)})"


def _data(call: Call, value: Dense) -> str:
    """The elements in a row, from their bytes."""
    if not isinstance(value.data, bytes) or value.type.dtype.bits < 8:
        raise call.fault(ConstantNotWritten(call.op.name, str(value.type)))
    return f"torch.frombuffer(bytearray({value.data!r}), dtype={call.dtype(-1)}).to(device)"


def _shape(call: Call) -> str:
    shape = call.shape(0)[slice(call.get("start", 0), call.get("end"))]
    return f"torch.tensor({list(shape)}{_dtype_and_device(call)})"


def _size(call: Call) -> str:
    return f"torch.tensor({call.arg(0)}.numel(){_dtype_and_device(call)})"


def _eye_like(call: Call) -> str:
    k, ones = int(call.get("k", 0)), f"torch.ones({listed(call.shape(-1))}{_dtype_and_device(call)})"
    return f"torch.triu(torch.tril({ones}, {k}), {k})"


def _non_zero(call: Call) -> str:
    return f"torch.nonzero({call.arg(0)}).t()"


EMITTERS: dict[str, Emitter] = {
    "onnx.Concat": _concat,
    "onnx.Constant": _constant,
    "onnx.ConstantOfShape": _constant_of_shape,
    "onnx.DepthToSpace": _depth_to_space,
    "onnx.Expand": _expand,
    "onnx.EyeLike": _eye_like,
    "onnx.Flatten": _reshape,
    "onnx.Gather": _gather,
    "onnx.GatherElements": _gather_elements,
    "onnx.GatherND": _gather_nd,
    "onnx.NonZero": _non_zero,
    "onnx.OneHot": _one_hot,
    "onnx.Pad": _pad,
    "onnx.Range": _range,
    "onnx.Reshape": _reshape,
    "onnx.Scatter": _scatter_elements,
    "onnx.ScatterElements": _scatter_elements,
    "onnx.ScatterND": _scatter_nd,
    "onnx.Shape": _shape,
    "onnx.Size": _size,
    "onnx.Slice": _slice,
    "onnx.SpaceToDepth": _space_to_depth,
    "onnx.Split": _split,
    "onnx.Squeeze": _reshape,
    "onnx.Tile": _tile,
    "onnx.Transpose": _transpose,
    "onnx.Trilu": _trilu,
    "onnx.Unsqueeze": _reshape,
}
"""Full name of an op -> its emitter."""
