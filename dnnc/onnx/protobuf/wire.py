"""Cuts the tensor data out of a serialised ONNX model, by walking the protobuf wire format without reading the data.

``skeleton`` copies a serialised ``ModelProto`` and replaces every large tensor payload by ONNX's external-data form, with
location ``SELF`` and the payload's offset and length in the file. So a model of any size (even over protobuf's 2 GB) opens in
milliseconds, and embedded weights are addressed like external ones.

Invariants: no payload of ``INLINE_LIMIT`` bytes or more is copied or read; time and memory are bounded by the number of fields
before the first fault, so a file of another format fails at once; every length is checked against the remaining bytes.

The format is that of https://protobuf.dev/programming-guides/encoding; field numbers are those of ``onnx.proto``.
"""

from __future__ import annotations

from dnnc.onnx.protobuf.varint import Buffer, VarintError, read_varint, varint

SELF = "\x00self"
"""External-data location that means the model file itself; no real path can contain a NUL."""

INLINE_LIMIT = 1024
"""Payloads of this many bytes or more are cut out."""

_METADATA_LIMIT = 64 << 20
"""A file with a longer top-level field other than graph, functions and training_info is refused: it is no model."""

_DEPTH_LIMIT = 100
"""Protobuf itself refuses deeper nesting."""

_MODEL_FIELDS = {
    1: "ir_version",
    2: "producer_name",
    3: "producer_version",
    4: "domain",
    5: "model_version",
    6: "doc_string",
    7: "graph",
    8: "opset_import",
    14: "metadata_props",
    20: "training_info",
    25: "functions",
    26: "configuration",
}
_MODEL_VARINTS = (1, 5)
# message -> {field number: (name, message in that field)}, for all paths that lead to a tensor.
_CHILDREN: dict[str, dict[int, tuple[str, str]]] = {
    "Model": {7: ("graph", "Graph"), 25: ("functions", "Function")},
    "Graph": {1: ("node", "Node"), 5: ("initializer", "Tensor"), 15: ("sparse_initializer", "Sparse")},
    "Function": {7: ("node", "Node"), 11: ("attribute_proto", "Attribute")},
    "Node": {5: ("attribute", "Attribute")},
    "Attribute": {
        5: ("t", "Tensor"),
        6: ("g", "Graph"),
        10: ("tensors", "Tensor"),
        11: ("graphs", "Graph"),
    },
    "Sparse": {},
    "Tensor": {},
}
_RAW, _FLOATS, _DOUBLES, _TYPE = 9, 4, 10, 2
_PACKED = {_FLOATS: (1, 14), _DOUBLES: (11, 15)}  # field -> element types that it stores as packed little-endian bytes


class WireError(Exception):
    """The bytes are not a serialised model. ``offset``: of the fault; ``truncated``: the data ends too early."""

    def __init__(self, message: str, offset: int, *, truncated: bool = False) -> None:
        super().__init__(message)
        self.offset = offset
        self.truncated = truncated


def skeleton(buffer: Buffer) -> bytes:
    """The model without its large payloads. Raises WireError."""
    pieces: list[bytes] = []
    _walk(buffer, 0, len(buffer), "Model", "model", pieces, 0)
    return b"".join(pieces)


def _read(buffer: Buffer, at: int, end: int, where: str) -> tuple[int, int]:
    try:
        return read_varint(buffer, at, end)
    except VarintError as error:
        problem = "the data ends inside a number of" if error.truncated else "a number of more than 10 bytes in"
        raise WireError(f"{problem} '{where}'", error.at, truncated=error.truncated) from None


def _walk(buffer: Buffer, start: int, end: int, message: str, where: str, out: list[bytes], depth: int) -> int:
    """Appends the message in ``buffer[start:end]``, without large payloads, to ``out``. Returns its new length."""
    if depth > _DEPTH_LIMIT:
        raise WireError(f"'{where}' is nested more than {_DEPTH_LIMIT} levels deep", start)
    children = _CHILDREN[message]
    is_tensor, is_model = message == "Tensor", message == "Model"
    size = 0
    copied_from = at = start  # bytes copied_from .. at are copied unchanged
    cut: list[tuple[int, int, int, int]] = []  # (field, its offset, offset and length of the payload) of large payloads
    element_type = fields_of_data = 0
    graphs = 0
    while at < end:
        field_start = at
        key, at = _read(buffer, at, end, where)
        number, wire = key >> 3, key & 7
        if number == 0 or wire in (3, 4, 6, 7):
            raise WireError(f"field {number} of '{where}' has wire type {wire}", field_start)
        if is_model and (number not in _MODEL_FIELDS or wire != (0 if number in _MODEL_VARINTS else 2)):
            raise WireError(f"a model has no field {number} of wire type {wire}", field_start)
        if wire == 0:
            value, at = _read(buffer, at, end, where)
            if is_tensor and number == _TYPE:
                element_type = value
            continue
        if wire in (1, 5):
            length, body = (8 if wire == 1 else 4), at
        else:
            length, body = _read(buffer, at, end, where)
        at = body + length
        child = children.get(number)
        if at > end:
            name = child[0] if child else _MODEL_FIELDS.get(number, f"field {number}") if is_model else f"field {number}"
            inside = f"'{name}'" if is_model else f"'{name}' of '{where}'"
            raise WireError(f"{inside} announces {length} bytes, {end - body} are left", field_start, truncated=True)
        if wire != 2:
            continue
        graphs += is_model and number == 7
        if is_model and child is None and number != 20 and length > _METADATA_LIMIT:
            raise WireError(f"'{_MODEL_FIELDS[number]}' of {length} bytes", field_start)
        if is_tensor:
            fields_of_data += number in (_RAW, _FLOATS, _DOUBLES)
            if number in (_RAW, _FLOATS, _DOUBLES) and length >= INLINE_LIMIT:
                cut.append((number, field_start, body, length))
        elif child and (length >= INLINE_LIMIT or is_model):
            inner: list[bytes] = []
            inner_size = _walk(buffer, body, at, child[1], child[0], inner, depth + 1)
            head = buffer[copied_from:field_start] + varint(key) + varint(inner_size)
            out.append(head)
            out.extend(inner)
            size += len(head) + inner_size
            copied_from = at
    if is_model and not graphs:
        raise WireError("there is no graph in it", end, truncated=True)
    if len(cut) == 1 and fields_of_data == 1 and element_type in _PACKED.get(cut[0][0], (element_type,)):
        number, field_start, body, length = cut[0]
        # The reference comes last because the last `data_location` of a message counts.
        pieces = [buffer[copied_from:field_start], buffer[body + length : end], _reference(body, length)]
    else:
        pieces = [buffer[copied_from:end]]
    out.extend(pieces)
    return size + sum(map(len, pieces))


def _reference(offset: int, length: int) -> bytes:
    """Fields ``external_data`` (13) and ``data_location`` (14) of a TensorProto whose data is in the model file itself."""
    parts = []
    for key, value in (("location", SELF), ("offset", str(offset)), ("length", str(length))):
        entry = b"\x0a" + varint(len(key)) + key.encode() + b"\x12" + varint(len(value)) + value.encode()
        parts.append(b"\x6a" + varint(len(entry)) + entry)
    return b"".join(parts) + b"\x70\x01"
