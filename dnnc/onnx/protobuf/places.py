"""Where a serialised ONNX model says that its external data lies, and the model with other places in their stead.

A model is walked on the protobuf wire (https://protobuf.dev/programming-guides/encoding; field numbers are those of
``onnx.proto``), since a stage process has no ONNX library. Imports the standard library only.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable

from dnnc.onnx.protobuf.varint import read_varint, varint

_MARK = re.compile(rb"\x0a\x08location")
"""How the key of an external location is written; messages without one are copied as they are."""
# message -> {field number: the message it holds}: the ways that lead to a location.
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
"""Protobuf itself reads no deeper."""


def relocated(model: bytes, place: Callable[[str], str]) -> bytes:
    """The serialised model with every external location replaced by what ``place`` gives for it. Raises ValueError where the
    bytes are no model."""
    marks = [match.start() for match in _MARK.finditer(model)]
    return _rewritten(model, 0, len(model), "Model", marks, place, 0)


def locations(model: bytes) -> tuple[str, ...]:
    """The external locations that the model names, each once, in order. Raises ValueError as ``relocated``."""
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
    """The message in ``data[start:end]`` with its locations replaced."""
    if depth > _DEPTH_LIMIT:
        raise ValueError(f"nested more than {_DEPTH_LIMIT} levels deep")
    if message == "Entry":
        return _rewritten_entry(data, start, end, place)
    pieces: list[bytes] = []
    kept_from = at = start  # bytes kept_from .. at go out as they are
    children = _CHILDREN[message]
    while at < end:
        field_start = at
        number, body, at = _field(data, at, end)
        child = children.get(number) if body >= 0 else None
        if child and (first := bisect.bisect_left(marks, body)) < len(marks) and marks[first] < at:
            inner = _rewritten(data, body, at, child, marks, place, depth + 1)
            pieces += (data[kept_from:field_start], varint(number << 3 | 2), varint(len(inner)), inner)
            kept_from = at
    pieces.append(data[kept_from:end])
    return b"".join(pieces)


def _rewritten_entry(data: bytes, start: int, end: int, place: Callable[[str], str]) -> bytes:
    """A key and its value (``StringStringEntryProto``), of which the value changes where the key is ``location``."""
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
    """The field at ``at``: its number, where its bytes start (-1: it is a number, no bytes) and where it ends."""
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


__all__ = ["locations", "relocated"]
