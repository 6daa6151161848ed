"""Reads and replaces the locations of external data in a serialised ONNX model.

Works on the protobuf wire format (https://protobuf.dev/programming-guides/encoding; field numbers are those of ``onnx.proto``),
since a stage process does not import the ONNX library. Imports the standard library only.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable

from dnnc.onnx.protobuf.varint import read_varint, varint

_MARK = re.compile(rb"\x0a\x08location")
"""The entry key ``location`` as it is serialised; a message without these bytes has no location and is copied unchanged."""
# message -> {field number: message in that field}, for all paths that lead to a location.
_CHILDREN: dict[str, dict[int, str]] = {
    "Model": {7: "Graph", 25: "Function"},
    "Graph": {1: "Node", 5: "Tensor", 15: "Sparse"},
    "Function": {7: "Node", 11: "Attribute"},
    "Node": {5: "Attribute"},
    "Attribute": {5: "Tensor", 6: "Graph", 10: "Tensor", 11: "Graph", 22: "Sparse", 23: "Sparse"},
    "Sparse": {1: "Tensor", 2: "Tensor"},
    "Tensor": {13: "Entry"},
}
_DEPTH_LIMIT = 100
"""The most levels of nested messages that protobuf itself reads."""


def relocated(model: bytes, place: Callable[[str], str]) -> bytes:
    """The serialised model with every external location L replaced by ``place(L)``, called once per tensor, in order. Raises
    ValueError for a malformed message on the way to a location; messages without a location are not looked into."""
    marks = [match.start() for match in _MARK.finditer(model)]
    return _rewritten(model, 0, len(model), "Model", marks, place, 0)


def locations(model: bytes) -> tuple[str, ...]:
    """The distinct external locations in the model, by first occurrence. Raises ValueError as ``relocated``."""
    names: dict[str, None] = {}
    if not _MARK.search(model):
        return ()

    def note(name: str) -> str:
        names[name] = None
        return name

    relocated(model, note)
    return tuple(names)


def _rewritten(
    data: bytes, start: int, end: int, message: str, marks: list[int], place: Callable[[str], str], depth: int
) -> bytes:
    """The message in ``data[start:end]`` with its locations replaced. ``message``: its kind, a key of ``_CHILDREN`` or
    ``Entry``; ``marks``: ascending offsets of ``_MARK`` in ``data``; ``depth``: how many messages are around it."""
    if depth > _DEPTH_LIMIT:
        raise ValueError(f"nested more than {_DEPTH_LIMIT} levels deep")
    if message == "Entry":
        return _rewritten_entry(data, start, end, place)
    pieces: list[bytes] = []
    copied_from = at = start  # bytes copied_from .. at are copied unchanged
    children = _CHILDREN[message]
    while at < end:
        field_start = at
        number, body, at = _field(data, at, end)
        child = children.get(number) if body >= 0 else None
        if child and (first := bisect.bisect_left(marks, body)) < len(marks) and marks[first] < at:
            inner = _rewritten(data, body, at, child, marks, place, depth + 1)
            pieces += (data[copied_from:field_start], varint(number << 3 | 2), varint(len(inner)), inner)
            copied_from = at
    pieces.append(data[copied_from:end])
    return b"".join(pieces)


def _rewritten_entry(data: bytes, start: int, end: int, place: Callable[[str], str]) -> bytes:
    """A ``StringStringEntryProto``, with its value replaced if its key is ``location``."""
    fields: dict[int, bytes] = {}
    at = start
    while at < end:
        number, body, at = _field(data, at, end)
        fields[number] = data[body:at] if body >= 0 else b""
    if fields.get(1) != b"location":
        return data[start:end]
    value = place(fields.get(2, b"").decode()).encode()
    return b"\x0a\x08location\x12" + varint(len(value)) + value


def _field(data: bytes, at: int, end: int) -> tuple[int, int, int]:
    """Of the field at offset ``at``: its number; the offset of its bytes, -1 for a field of a fixed or variable-length number,
    which holds no message; the offset of its end."""
    key, at = read_varint(data, at, end)
    body = -1
    match key & 7:
        case 0:
            _, at = read_varint(data, at, end)
        case 1:
            at += 8
        case 2:
            length, body = read_varint(data, at, end)
            at = body + length
        case 5:
            at += 4
        case wire:
            raise ValueError(f"wire type {wire} at byte {at}")
    if at > end:
        raise ValueError(f"a field ends at byte {at}, its message at byte {end}")
    return key >> 3, body, at
