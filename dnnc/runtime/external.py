"""External data of an ONNX model whose files are open already: onnxruntime reads the files that were opened, whatever has
happened to their paths since.

onnxruntime takes external data by path only. So the locations in the model are rewritten to ``/proc/self/fd/N``: that opens
the same file again, mapped and shared between processes like any weights file. Where no path leads to the file (it was
deleted, or there is no ``/proc``), onnxruntime copies the weights out of a memory map instead.

A model is walked on the protobuf wire (https://protobuf.dev/programming-guides/encoding; field numbers are those of
``onnx.proto``), since a stage process has no ONNX library. Imports the standard library only.
"""

from __future__ import annotations

import bisect
import mmap
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

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
    found: dict[str, None] = {}
    if not _MARK.search(model):
        return ()

    def note(name: str) -> str:
        found[name] = None
        return name

    relocated(model, note)
    return tuple(found)


def open_path(descriptor: int) -> str:
    """A path that opens the file behind ``descriptor`` again; empty where there is none."""
    path = f"/proc/self/fd/{descriptor}"
    try:
        reached = os.stat(os.path.realpath(path))  # of a deleted file, a path that leads nowhere
        return path if os.path.samestat(reached, os.fstat(descriptor)) else ""
    except OSError:
        return ""


def session_on(model: bytes, weights: Mapping[str, int], options: Callable[[], Any], start: Callable[[bytes, Any], Any]) -> Any:
    """An onnxruntime session of a model whose external data is in open files. ``weights``: descriptors by the locations that
    the model names; ``options`` makes session options, ``start`` a session. Raises ValueError for another location, and what
    onnxruntime raises."""
    names = locations(model)
    if unknown := [name for name in names if name not in weights]:
        raise ValueError(f"the model refers to '{unknown[0]}', which is no weights file of the build")
    if not names:
        return start(model, options())
    paths = {name: open_path(weights[name]) for name in names}
    if all(paths.values()):
        by_path = options()
        # The files must lie below the folder that is given, so that is the root.
        by_path.add_session_config_entry("session.model_external_initializers_file_folder_path", "/")
        try:
            return start(relocated(model, lambda name: paths[name][1:]), by_path)
        except Exception:  # onnxruntime's own; a file that was deleted meanwhile is no fault of the model
            if all(open_path(weights[name]) for name in names):
                raise
    from_memory = options()
    maps = [_mapped(weights[name]) for name in names]
    from_memory.add_external_initializers_from_files_in_memory(list(names), maps, [len(data) for data in maps])
    return start(model, from_memory)


def _mapped(descriptor: int) -> mmap.mmap | bytes:
    return mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) if os.fstat(descriptor).st_size else b""


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
            pieces += (data[kept_from:field_start], _varint(number << 3 | 2), _varint(len(inner)), inner)
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
    return b"\x0a\x08location\x12" + _varint(len(value)) + value


def _field(data: bytes, at: int, end: int) -> tuple[int, int, int]:
    """The field at ``at``: its number, where its bytes start (-1: it is a number, no bytes) and where it ends."""
    key, at = _read_varint(data, at, end)
    body = -1
    match key & 7:
        case 0:
            _, at = _read_varint(data, at, end)
        case 1:
            at += 8
        case 2:
            length, body = _read_varint(data, at, end)
            at = body + length
        case 5:
            at += 4
        case wire:
            raise ValueError(f"wire type {wire} at byte {at}")
    if at > end:
        raise ValueError(f"a field ends at byte {at}, its message at byte {end}")
    return key >> 3, body, at


def _read_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError(f"a number ends nowhere at byte {at}")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


__all__ = ["locations", "open_path", "relocated", "session_on"]
