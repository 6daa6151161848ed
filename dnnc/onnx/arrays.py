"""Constants of the IR as numpy arrays and back: the one place that knows how elements are packed.

``Dense.data`` is little-endian and row-major; elements of 2, 4 and 6 bits form one stream, least significant bit first, padded
with zeros to a byte, as in ONNX's ``raw_data``. The numpy types of what numpy lacks come from ``ml_dtypes``; strings are object
arrays of ``bytes``.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dnnc.onnx.elements import user_dtype
from ir.core.attributes import Dense
from ir.core.types import DType, TensorType


@cache
def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """The numpy type of one element of ``dtype``."""
    return user_dtype(dtype.numpy_name)


def dtype_of_array(array: NDArray[Any]) -> DType:
    """The element type of an array. Raises KeyError where ONNX has none."""
    if array.dtype.kind in "OSU":
        return DType.STRING
    return _dtypes()[array.dtype.name]


@cache
def _dtypes() -> dict[str, DType]:
    return {numpy_dtype(dtype).name: dtype for dtype in DType if dtype is not DType.STRING}


def to_array(type_: TensorType, data: bytes | tuple[bytes, ...]) -> NDArray[Any]:
    """The array of a constant of static shape; read-only where it shares memory with ``data``. Raises ValueError when the data
    does not have the length that the type asks for."""
    shape = tuple(dim if isinstance(dim, int) else -1 for dim in type_.shape or ())
    if isinstance(data, tuple):
        array = np.empty(len(data), dtype=object)
        array[:] = data
        return array.reshape(shape)
    if type_.nbytes != len(data):
        raise ValueError(f"{type_} needs {type_.nbytes} bytes, {len(data)} are given")
    bits, dtype = type_.dtype.bits, numpy_dtype(type_.dtype)
    if bits % 8 == 0:
        return np.frombuffer(data, dtype=dtype).reshape(shape)
    stream = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")[: math.prod(shape) * bits]
    elements = np.packbits(stream.reshape(-1, bits), axis=1, bitorder="little")
    return elements.view(dtype).reshape(shape)


def to_data(array: NDArray[Any], dtype: DType | None = None) -> bytes | tuple[bytes, ...]:
    """The data of an array as ``Dense`` and ``Inline`` hold it."""
    dtype = dtype or dtype_of_array(array)
    if dtype is DType.STRING:
        return tuple(item if isinstance(item, bytes) else str(item).encode() for item in array.reshape(-1).tolist())
    array = np.ascontiguousarray(array, dtype=numpy_dtype(dtype))
    if dtype.bits % 8 == 0:
        return array.tobytes()
    stream = np.unpackbits(array.view(np.uint8).reshape(-1, 1), axis=1, bitorder="little")[:, : dtype.bits]
    return np.packbits(stream.reshape(-1), bitorder="little").tobytes()


def to_dense(array: NDArray[Any]) -> Dense:
    """The constant that holds an array. Raises KeyError for an element type that ONNX lacks."""
    dtype = dtype_of_array(array)
    return Dense(TensorType(dtype, tuple(array.shape)), to_data(array, dtype))
