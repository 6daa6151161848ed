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

from ir.core.attributes import Dense
from ir.core.types import DType, TensorType

_NATIVE = {
    DType.F64: "<f8",
    DType.F32: "<f4",
    DType.F16: "<f2",
    DType.I64: "<i8",
    DType.I32: "<i4",
    DType.I16: "<i2",
    DType.I8: "i1",
    DType.U64: "<u8",
    DType.U32: "<u4",
    DType.U16: "<u2",
    DType.U8: "u1",
    DType.BOOL: "?",
    DType.C64: "<c8",
    DType.C128: "<c16",
    DType.STRING: "O",
}
_ML_DTYPES = {
    DType.BF16: "bfloat16",
    DType.F8E4M3FN: "float8_e4m3fn",
    DType.F8E4M3FNUZ: "float8_e4m3fnuz",
    DType.F8E5M2: "float8_e5m2",
    DType.F8E5M2FNUZ: "float8_e5m2fnuz",
    DType.F8E8M0: "float8_e8m0fnu",
    DType.F6E2M3: "float6_e2m3fn",
    DType.F6E3M2: "float6_e3m2fn",
    DType.F4E2M1: "float4_e2m1fn",
    DType.I4: "int4",
    DType.U4: "uint4",
    DType.I2: "int2",
    DType.U2: "uint2",
}


@cache
def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """The numpy type of one element of ``dtype``."""
    if dtype in _NATIVE:
        return np.dtype(_NATIVE[dtype])
    import ml_dtypes

    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, _ML_DTYPES[dtype]))
    return found


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


__all__ = ["dtype_of_array", "numpy_dtype", "to_array", "to_data", "to_dense"]
