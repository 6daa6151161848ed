"""Element types: what ONNX Runtime calls them, what numpy calls them, and how their bytes travel.

Processes exchange tensors as raw bytes in ONNX's layout: row-major, sub-byte elements packed, low bits first. The *carrier*
of an element type is the numpy dtype in which a stage process holds those bytes: numpy's own type, or unsigned integers of the
same width where numpy has none, so that a stage process needs no ml_dtypes. A person's arrays have the *user* dtype: numpy's
own, or that of ml_dtypes for bfloat16, float8, int4...
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ir.core.types import DType

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Element:
    """One element type: ONNX's number, numpy's (or ml_dtypes') name, bits of one element, and the carrier's name."""

    number: int
    name: str
    bits: int
    carrier: str


STRING = 8
"""ONNX's number of the string type, which has no fixed width and no carrier."""


def _carrier(dtype: DType) -> str:
    """Numpy's own type where it has one, else unsigned integers of the same bytes."""
    own = dtype.bits >= 8 and not dtype.numpy_name.startswith(("bfloat", "float8"))
    return dtype.numpy_name if own else f"uint{max(8, dtype.bits)}"


_ELEMENTS = tuple(
    Element(dtype.onnx_number, dtype.numpy_name, dtype.bits, _carrier(dtype)) for dtype in DType if dtype is not DType.STRING
)
BFLOAT16 = 16
FLOAT16 = 10
BY_NUMBER = {element.number: element for element in _ELEMENTS}
BY_NAME = {element.name: element for element in _ELEMENTS}


@cache
def user_dtype(name: str) -> np.dtype[Any]:
    """The dtype that a person sees. ``string`` is an object array of str."""
    if name == "string":
        return np.dtype(object)
    if name in BY_NAME and (BY_NAME[name].carrier == name):
        return np.dtype(name)
    import ml_dtypes

    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return dtype


def packed(element: Element) -> bool:
    """Whether several elements share a byte in ONNX's layout. Six-bit floats are kept one a byte by ONNX Runtime and numpy."""
    return element.bits in (2, 4)


def to_carrier(array: Array, element: Element) -> Array:
    """A contiguous array of the carrier dtype with the same bytes; packed elements become a flat array of bytes."""
    if packed(element):
        return pack(array.astype(np.int8 if element.name.startswith(("i", "u")) else array.dtype), element.bits)
    contiguous = np.ascontiguousarray(array).reshape(array.shape)
    return contiguous if contiguous.dtype == np.dtype(element.carrier) else contiguous.view(np.dtype(element.carrier))


def from_carrier(array: Array, element: Element, shape: tuple[int, ...]) -> Array:
    """A copy with the user dtype and ``shape``; the inverse of ``to_carrier``."""
    dtype = user_dtype(element.name)
    if not packed(element):
        copied: Array = np.array(array, copy=True).reshape(shape)
        return copied if copied.dtype == dtype else copied.view(dtype)
    count = int(np.prod(shape, dtype=np.int64))
    codes = unpack(array.reshape(-1).view(np.uint8), element.bits, count)
    if element.name.startswith("int"):
        sign = 1 << (element.bits - 1)
        return ((codes.astype(np.int8) ^ sign) - sign).astype(dtype).reshape(shape)
    return (codes.astype(dtype) if element.name.startswith("uint") else codes.view(dtype)).reshape(shape)


def pack(array: Array, bits: int) -> Array:
    """Codes of ``bits`` (2 or 4) bits, one a byte, packed low bits first into bytes; the last byte is padded with zeros."""
    per_byte = 8 // bits
    codes = np.ascontiguousarray(array).reshape(-1).view(np.uint8) & ((1 << bits) - 1)
    padded = np.zeros(-(-codes.size // per_byte) * per_byte, np.uint8)
    padded[: codes.size] = codes
    result = np.zeros(padded.size // per_byte, np.uint8)
    for position in range(per_byte):
        result |= padded[position::per_byte] << (position * bits)
    return result


def unpack(array: Array, bits: int, count: int) -> Array:
    """The first ``count`` codes of a packed array, one a byte."""
    per_byte = 8 // bits
    codes = np.empty(array.size * per_byte, np.uint8)
    for position in range(per_byte):
        codes[position::per_byte] = (array >> (position * bits)) & ((1 << bits) - 1)
    return codes[:count]


def nbytes(element: Element, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor in ONNX's layout."""
    count = int(np.prod(shape, dtype=np.int64))
    return -(-count * element.bits // 8) if packed(element) else count * np.dtype(element.carrier).itemsize
