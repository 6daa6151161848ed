"""Encodes values of any ONNX type as bytes, to send values of unknown size to another process.

A message is the length of the header (u64), the header (JSON), then payloads at multiples of 64 bytes. The header maps the name
of each value to its description, with offsets from the first payload: ``["tensor", element, shape, offset]``, ``["strings",
shape, offset of the lengths, offset of the text, bytes of the text]``, ``["list", items]``, ``["map", keys, values]`` or
``["none"]``. Decoding runs no code from the message, and copies no tensor: tensors are views into the buffer.

In memory a tensor is a ``Raw``, a tensor of strings an object array, a sequence a list, a map a dict, an absent optional None.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from dnnc.onnx.elements import BY_NAME, BY_NUMBER, Array, from_carrier, nbytes, to_carrier

ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Raw:
    """A tensor with ONNX's number of its element type. ``data`` has the carrier dtype (``dnnc.onnx.elements``) and ``shape``;
    it is flat if several elements share a byte."""

    element: int
    shape: tuple[int, ...]
    data: Array


Message: TypeAlias = Mapping[str, Any]


def aligned(size: int) -> int:
    """``size`` rounded up to a multiple of ``ALIGNMENT``."""
    return -(-size // ALIGNMENT) * ALIGNMENT


class _Payloads:
    """The payloads of a message, in order."""

    def __init__(self) -> None:
        self.pieces: list[memoryview] = []
        self.position = 0

    def append(self, data: Array | bytes) -> int:
        """Appends the bytes of ``data``, padded; returns their offset."""
        view = data.reshape(-1).view(np.uint8).data if isinstance(data, np.ndarray) else memoryview(data)
        offset, padding = self.position, aligned(view.nbytes) - view.nbytes
        self.pieces.append(view)
        if padding:
            self.pieces.append(memoryview(bytes(padding)))
        self.position += view.nbytes + padding
        return offset


def encode(values: Message) -> list[memoryview]:
    """The bytes of a message, in pieces; contiguous tensors are not copied. Raises TypeError for a value of no ONNX type."""
    payloads = _Payloads()
    header = json.dumps({name: _describe(value, payloads) for name, value in values.items()}).encode()
    start = struct.pack("<Q", len(header)) + header
    return [memoryview(start.ljust(aligned(len(start)), b"\0")), *payloads.pieces]


def _describe(value: Any, payloads: _Payloads) -> list[Any]:
    """The header's description of ``value``; appends its data to ``payloads``."""
    if value is None:
        return ["none"]
    if isinstance(value, Raw):
        return ["tensor", value.element, list(value.shape), payloads.append(np.ascontiguousarray(value.data))]
    if isinstance(value, np.ndarray) and value.dtype.kind in "OUS":
        texts = [t if isinstance(t, bytes) else str(t).encode(errors="surrogateescape") for t in value.reshape(-1).tolist()]
        lengths = np.array([len(t) for t in texts], np.int64)
        offsets = [payloads.append(lengths), payloads.append(b"".join(texts))]
        return ["strings", list(value.shape), *offsets, int(lengths.sum())]
    if isinstance(value, np.ndarray):
        return _describe(to_raw(value), payloads)
    if isinstance(value, Mapping):
        return ["map", _describe(_column(list(value)), payloads), _describe(_column(list(value.values())), payloads)]
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return ["list", [_describe(item, payloads) for item in value]]
    raise TypeError(f"a value of type {type(value).__name__} cannot be sent to another process")


def decode(buffer: Array) -> dict[str, Any]:
    """The values of the message at the start of ``buffer`` (uint8); tensors are views into it. Raises ValueError for bytes that
    ``encode`` has not made."""
    try:
        (length,) = struct.unpack("<Q", buffer[:8].tobytes())
        header = json.loads(buffer[8 : 8 + length].tobytes())
        payload = buffer[aligned(8 + length) :]
        return {name: _restore(description, payload) for name, description in header.items()}
    except (KeyError, IndexError, TypeError, AttributeError, OverflowError, RecursionError, struct.error) as error:
        raise ValueError(f"a damaged value: {type(error).__name__}: {error}") from None


def _restore(node: list[Any], payload: Array) -> Any:
    """The value that ``node``, a description in the header, stands for."""
    kind = node[0]
    if kind == "none":
        return None
    if kind == "tensor":
        element, shape = BY_NUMBER[node[1]], _shape(node[2])
        return raw_view(element.number, shape, _bytes(payload, node[3], nbytes(element, shape)))
    if kind == "strings":
        shape = _shape(node[1])
        count = math.prod(shape)
        lengths = _bytes(payload, node[2], 8 * count).view(np.int64)
        text = _bytes(payload, node[3], node[4]).tobytes()
        if count and (lengths.min() < 0 or lengths.max() > len(text)):
            raise ValueError("lengths of strings that are not there")
        ends = [0, *np.cumsum(lengths).tolist()]
        result = np.empty(count, object)
        for i in range(count):
            result[i] = text[ends[i] : ends[i + 1]].decode(errors="surrogateescape")
        return result.reshape(shape)
    if kind == "map":
        return dict(zip(_items(_restore(node[1], payload)), _items(_restore(node[2], payload)), strict=True))
    if kind == "list":
        return [_restore(item, payload) for item in node[1]]
    raise ValueError(f"a value of kind {kind!r}")


def _shape(node: Any) -> tuple[int, ...]:
    shape = tuple(node)
    if not all(type(dim) is int and dim >= 0 for dim in shape):
        raise ValueError(f"the shape {shape}")
    return shape


def _bytes(payload: Array, first: Any, count: int) -> Array:
    """So many bytes of the payload, all of which are there."""
    if type(first) is not int or not 0 <= first <= first + count <= payload.size:
        raise ValueError(f"{count} bytes from {first} on, of {payload.size}")
    return payload[first : first + count]


def raw_view(element: int, shape: tuple[int, ...], data: Array) -> Raw:
    """A tensor as a view of its bytes ``data`` (flat, uint8)."""
    kind = BY_NUMBER[element]
    typed = data.view(np.dtype(kind.carrier))
    return Raw(element, shape, typed if kind.bits in (2, 4) else typed.reshape(shape))


def to_raw(array: Array) -> Raw:
    """A user's array as a ``Raw``. Raises TypeError for a dtype that ONNX lacks."""
    element = BY_NAME.get(array.dtype.name)
    if element is None:
        raise TypeError(f"ONNX has no element type for numpy's {array.dtype.name}")
    return Raw(element.number, array.shape, to_carrier(array, element))


def to_user(value: Any) -> Any:
    """A value as users see it: tensors are arrays of the user dtype (``dnnc.onnx.elements``), copied."""
    if isinstance(value, Raw):
        return from_carrier(value.data, BY_NUMBER[value.element], value.shape)
    return [to_user(item) for item in value] if isinstance(value, list) else value


def from_user(value: Any) -> Any:
    """The inverse of ``to_user``. Takes all that numpy makes an array of; strings become object arrays."""
    if isinstance(value, list | tuple):
        return [from_user(item) for item in value]
    if value is None or isinstance(value, Raw | Mapping):
        return value
    array = np.asarray(value)
    return array.astype(object) if array.dtype.kind in "OUS" else to_raw(array)


def _column(values: list[Any]) -> Array:
    """The keys or the values of an ONNX map (ints, floats or strings) as an array."""
    return np.array(values, object) if values and isinstance(values[0], str) else np.array(values)


def _items(column: Any) -> list[Any]:
    """The inverse of ``_column``."""
    array = column.data if isinstance(column, Raw) else column
    result: list[Any] = array.tolist()
    return result
