"""Attributes of ONNX nodes as attributes of the IR, and back.

An attribute's kind is kept, so ``1`` and ``1.0`` and an empty list survive. A string is text when it is UTF-8, else bytes.
Subgraphs are no attributes but regions (``onnx_import``, ``dnnc.engines.onnxruntime.write.export``). A sparse constant becomes
the dense tensor that it stands for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from dnnc.onnx.arrays import numpy_dtype, to_array, to_data
from dnnc.onnx.types import dense_of, tensor_proto, tensor_type, type_of, type_proto
from ir.core.attributes import Attribute, AttrKind, Dense
from ir.core.limits import LIMITS, Limits

_A = onnx.AttributeProto


def attribute_of(proto: onnx.AttributeProto, limits: Limits = LIMITS) -> Attribute | None:
    """The attribute of the IR; None for graphs. Raises ValueError for a value that does not fit its type."""
    match proto.type or _guess(proto):
        case _A.INT:
            return Attribute(AttrKind.INT, proto.i)
        case _A.FLOAT:
            return Attribute(AttrKind.FLOAT, proto.f)
        case _A.STRING:
            try:
                return Attribute(AttrKind.STRING, proto.s.decode())
            except UnicodeDecodeError:
                return Attribute(AttrKind.BYTES, proto.s)
        case _A.TENSOR:
            return Attribute(AttrKind.TENSOR, dense_of(proto.t))
        case _A.SPARSE_TENSOR:
            return Attribute(AttrKind.TENSOR, densify(proto.sparse_tensor, limits))
        case _A.TYPE_PROTO:
            return Attribute(AttrKind.TYPE, type_of(proto.tp))
        case _A.INTS:
            return Attribute(AttrKind.INTS, tuple(proto.ints))
        case _A.FLOATS:
            return Attribute(AttrKind.FLOATS, tuple(proto.floats))
        case _A.STRINGS:
            try:
                return Attribute(AttrKind.STRINGS, tuple(text.decode() for text in proto.strings))
            except UnicodeDecodeError:
                raise ValueError("a list of strings holds one that is not UTF-8") from None
        case _A.TENSORS:
            return Attribute(AttrKind.TENSORS, tuple(map(dense_of, proto.tensors)))
        case _A.SPARSE_TENSORS:
            return Attribute(AttrKind.TENSORS, tuple(densify(sparse, limits) for sparse in proto.sparse_tensors))
        case _A.TYPE_PROTOS:
            return Attribute(AttrKind.TYPES, tuple(map(type_of, proto.type_protos)))
        case _A.GRAPH | _A.GRAPHS:
            return None
    raise ValueError(f"its type {proto.type} is not one of ONNX")


def _guess(proto: onnx.AttributeProto) -> int:
    """The type of an attribute that does not state it (IR versions before 2)."""
    singles = (("f", _A.FLOAT), ("i", _A.INT), ("s", _A.STRING), ("t", _A.TENSOR), ("g", _A.GRAPH))
    lists = (("floats", _A.FLOATS), ("ints", _A.INTS), ("strings", _A.STRINGS), ("tensors", _A.TENSORS), ("graphs", _A.GRAPHS))
    for name, kind in singles:
        if proto.HasField(name):
            return int(kind)
    for name, kind in lists:
        if getattr(proto, name):
            return int(kind)
    return 0


def densify(sparse: onnx.SparseTensorProto, limits: Limits = LIMITS) -> Dense:
    """The dense tensor of a sparse one; its indices are linear or one row per value. Raises ValueError where they leave the
    shape, and for a shape over ``limits.sparse_bytes``."""
    if sparse.values.data_type == onnx.TensorProto.STRING:
        raise ValueError("sparse strings have no value for what is left out, and onnxruntime takes none")
    values, indices = dense_of(sparse.values), dense_of(sparse.indices)
    type_ = tensor_type(onnx.TensorProto(data_type=sparse.values.data_type, dims=sparse.dims))
    shape = tuple(sparse.dims)
    if max(type_.nbytes or 0, type_.elements or 0) > limits.sparse_bytes:
        message = f"its shape {list(shape)} does not fit a dense tensor of at most {limits.sparse_bytes} bytes"
        raise ValueError(f"{message} (--limit sparse-bytes=NUMBER allows more)")
    dense = np.zeros(shape, dtype=numpy_dtype(type_.dtype))
    at = to_array(indices.type, indices.data)
    try:
        if at.size and at.min() < 0:
            raise ValueError(f"index {at.min()} is negative")
        if at.ndim == 2:
            dense[tuple(at.T)] = to_array(values.type, values.data)
        else:
            dense.reshape(-1)[at] = to_array(values.type, values.data)
    except (IndexError, TypeError, ValueError) as error:
        raise ValueError(f"its sparse indices do not fit the shape {list(shape)}: {error}") from None
    return Dense(type_, to_data(dense, type_.dtype))


def attribute_proto(name: str, attribute: Attribute) -> onnx.AttributeProto:
    """The ONNX attribute. Raises ValueError for a symbol, which ONNX does not have."""
    proto = onnx.AttributeProto(name=name)
    value: Any = attribute.value
    match attribute.kind:
        case AttrKind.INT:
            proto.type, proto.i = _A.INT, value
        case AttrKind.FLOAT:
            proto.type, proto.f = _A.FLOAT, value
        case AttrKind.STRING:
            proto.type, proto.s = _A.STRING, value.encode()
        case AttrKind.BYTES:
            proto.type, proto.s = _A.STRING, value
        case AttrKind.TENSOR:
            proto.type = _A.TENSOR
            proto.t.CopyFrom(tensor_proto(value))
        case AttrKind.TYPE:
            proto.type = _A.TYPE_PROTO
            proto.tp.CopyFrom(type_proto(value))
        case AttrKind.INTS:
            proto.type = _A.INTS
            proto.ints.extend(value)
        case AttrKind.FLOATS:
            proto.type = _A.FLOATS
            proto.floats.extend(value)
        case AttrKind.STRINGS:
            proto.type = _A.STRINGS
            proto.strings.extend(text.encode() for text in value)
        case AttrKind.TENSORS:
            proto.type = _A.TENSORS
            proto.tensors.extend(map(tensor_proto, value))
        case AttrKind.TYPES:
            proto.type = _A.TYPE_PROTOS
            proto.type_protos.extend(map(type_proto, value))
        case AttrKind.SYMBOL:
            raise ValueError(f"attribute '{name}' is a symbol of the module; ONNX has none")
    return proto
