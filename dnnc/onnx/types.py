"""ONNX types, element types and attribute values as those of the IR, and back.

Both directions stand here so that they stay inverse: the import (``dnnc.compile``) and the export
(``dnnc.engines.onnxruntime.write``) use them.
"""

from __future__ import annotations

import math
from typing import Any

import onnx

from dnnc.onnx.arrays import to_data
from ir.core.attributes import Dense
from ir.core.types import UNKNOWN, Dim, DType, MapType, OptionalType, SeqType, TensorType, Type

RANK_LIMIT = 64
"""Dimensions of a constant: numpy, which evaluates and checks it, has arrays of no more."""

ELEMENT_NUMBERS: dict[DType, int] = {dtype: dtype.onnx_number for dtype in DType}
ELEMENT_TYPES: dict[int, DType] = {number: dtype for dtype, number in ELEMENT_NUMBERS.items()}
"""By their numbers in ``onnx.TensorProto.DataType``."""
SCHEMA_NAMES: dict[DType, str] = {
    dtype: {"float32": "float", "float64": "double"}.get(dtype.numpy_name, dtype.numpy_name)
    for dtype, number in ELEMENT_NUMBERS.items()
    if number <= ELEMENT_NUMBERS[DType.BF16]
}
"""Names in onnx's schemas of the element types up to bfloat16. Schemas of older opsets do not name the later ones."""


def _dim_of(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    if dim.HasField("dim_value"):
        return dim.dim_value if dim.dim_value >= 0 else None
    return dim.dim_param or None


def type_of(proto: onnx.TypeProto) -> Type:
    """The IR type of an ONNX type; UNKNOWN for an absent, opaque or element-less one."""
    kind = proto.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        tensor = getattr(proto, kind)
        dtype = ELEMENT_TYPES.get(tensor.elem_type)
        if dtype is None:
            return UNKNOWN
        shape = tuple(map(_dim_of, tensor.shape.dim)) if tensor.HasField("shape") else None
        return TensorType(dtype, shape, sparse=kind == "sparse_tensor_type")
    if kind == "sequence_type":
        return SeqType(type_of(proto.sequence_type.elem_type))
    if kind == "optional_type":
        return OptionalType(type_of(proto.optional_type.elem_type))
    if kind == "map_type" and proto.map_type.key_type in ELEMENT_TYPES:
        return MapType(ELEMENT_TYPES[proto.map_type.key_type], type_of(proto.map_type.value_type))
    return UNKNOWN


def type_proto(type_: Type) -> onnx.TypeProto:
    """The ONNX type of an IR type; an empty message where ONNX has no such type."""
    proto = onnx.TypeProto()
    match type_:
        case TensorType():
            tensor = proto.sparse_tensor_type if type_.sparse else proto.tensor_type
            tensor.elem_type = ELEMENT_NUMBERS[type_.dtype]
            if type_.shape is not None:
                tensor.shape.SetInParent()
                for dim in type_.shape:
                    added = tensor.shape.dim.add()
                    if isinstance(dim, int):
                        added.dim_value = dim
                    elif dim is not None:
                        added.dim_param = dim
        case SeqType():
            proto.sequence_type.elem_type.CopyFrom(type_proto(type_.element))
        case OptionalType():
            proto.optional_type.elem_type.CopyFrom(type_proto(type_.element))
        case MapType():
            proto.map_type.key_type = ELEMENT_NUMBERS[type_.key]
            proto.map_type.value_type.CopyFrom(type_proto(type_.value))
    return proto


def tensor_type(tensor: onnx.TensorProto) -> TensorType:
    """The type of a constant. Raises ValueError for an unknown element type, a negative dimension, and a shape that no array
    can have (a dimension of 0 does not make the others small)."""
    dtype = ELEMENT_TYPES.get(tensor.data_type)
    if dtype is None:
        raise ValueError(f"element type {tensor.data_type} is not one of ONNX")
    if any(dim < 0 for dim in tensor.dims):
        raise ValueError(f"shape {list(tensor.dims)} has a negative dimension")
    if len(tensor.dims) > RANK_LIMIT or math.prod(dim or 1 for dim in tensor.dims) >= 1 << 59:
        raise ValueError(f"its shape {list(tensor.dims[:RANK_LIMIT])} is too large for any array")
    return TensorType(dtype, tuple(tensor.dims))


def dense_of(tensor: onnx.TensorProto) -> Dense:
    """The constant of a tensor that holds its own data. Raises ValueError when data and shape do not match."""
    type_ = tensor_type(tensor)
    if type_.dtype is DType.STRING:
        if len(tensor.string_data) != type_.elements:
            raise ValueError(f"{type_} needs {type_.elements} strings, {len(tensor.string_data)} are given")
        return Dense(type_, tuple(tensor.string_data))
    data: Any
    if tensor.HasField("raw_data"):
        data = tensor.raw_data
    elif type_.elements == 0:
        data = b""
    else:
        from onnx import numpy_helper

        try:
            data = to_data(numpy_helper.to_array(tensor), type_.dtype)
        except Exception as error:  # numpy's, and those of onnx for a field that its element type does not use
            raise ValueError(f"its data do not fit {type_}: {error}") from None
    if len(data) != type_.nbytes:
        raise ValueError(f"{type_} needs {type_.nbytes} bytes, {len(data)} are given")
    return Dense(type_, data)


def tensor_proto(dense: Dense, name: str = "") -> onnx.TensorProto:
    """The ONNX tensor of a constant."""
    tensor = onnx.TensorProto(name=name, data_type=ELEMENT_NUMBERS[dense.type.dtype])
    tensor.dims.extend(dim for dim in dense.type.shape or () if isinstance(dim, int))
    if isinstance(dense.data, tuple):
        tensor.string_data.extend(dense.data)
    else:
        tensor.raw_data = dense.data
    return tensor
