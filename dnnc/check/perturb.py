"""Copies of a model with its float weights moved by one unit in the last place, to measure how sensitive it is to rounding.

A weight is moved if its last place is arbitrary: if only linear ops and normalisations read it, or if it is the scale of a
quantisation. Other constants may be exact by intention (an exponent, a size, a bound), and so may short ones that are added or
multiplied (the dims of an image).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from dnnc.check.faults import WeightTruncated
from dnnc.check.reference import Reference, reads_of
from ir.core.diagnostics import InvalidInput

if TYPE_CHECKING:
    import onnx

_LINEAR = frozenset(
    {
        *("Conv", "ConvTranspose", "Gemm", "MatMul", "Gather", "LSTM", "GRU", "RNN", "Add", "Mul"),
        *("BatchNormalization", "GroupNormalization", "InstanceNormalization", "LayerNormalization", "RMSNormalization"),
    }
)
_SCALED = frozenset({"QuantizeLinear", "DequantizeLinear"})
FEWEST = 8
"""Fewest elements of a weight that is moved; a list of dims has fewer."""
MOST_BYTES = 256 << 20
"""Most bytes of weights that are moved, the smallest weights first: copies are held in memory beside the model."""
FLOATS = ("float16", "bfloat16", "float32", "float64")
"""Names of the element types that are moved."""


def perturbed_models(reference: Reference, count: int) -> Iterator[bytes]:
    """``count`` copies of the reference with weights moved at random. Equal references give equal copies."""
    import onnx

    model = onnx.load_model_from_string(reference.model)
    weights, held = [], 0
    for tensor in sorted(_inexact(model.graph), key=_size):
        held += _size(tensor)
        if held > MOST_BYTES:
            break
        weights.append((tensor, _array(tensor, reference)))
    for seed in range(count):
        generator = np.random.Generator(np.random.Philox(seed))
        for tensor, value in weights:
            tensor.CopyFrom(onnx.numpy_helper.from_array(moved(value, generator), tensor.name))
        yield model.SerializeToString()


def moved(array: np.ndarray[Any, Any], generator: np.random.Generator) -> np.ndarray[Any, Any]:
    """Each float replaced by its neighbour, up or down at random. Zeros stay, whose neighbours have another magnitude, and so
    do NaN and infinities."""
    towards = np.where(generator.random(array.shape) < 0.5, -np.inf, np.inf).astype(array.dtype)
    with np.errstate(over="ignore", under="ignore"):
        neighbour = np.nextafter(array, towards)
    return np.where(np.isfinite(array) & np.isfinite(neighbour) & (array != 0), neighbour, array).astype(array.dtype)


def _array(tensor: onnx.TensorProto, reference: Reference) -> np.ndarray[Any, Any]:
    """The elements of a weight of the reference; external ones are read from its open files."""
    import onnx

    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return onnx.numpy_helper.to_array(tensor)
    place = {entry.key: entry.value for entry in tensor.external_data}
    size = _size(tensor)
    data = os.pread(reference.files[place["location"]].descriptor, size, int(place.get("offset", 0)))
    if len(data) != size:
        raise InvalidInput(WeightTruncated(len(data), size), where=tensor.name)
    bare = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, raw_data=data)
    return onnx.numpy_helper.to_array(bare)


def _size(tensor: onnx.TensorProto) -> int:
    """Bytes of a tensor."""
    from onnx import helper

    elements: int = math.prod(tensor.dims)
    return elements * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize


def _inexact(graph: onnx.GraphProto) -> list[onnx.TensorProto]:
    """The float weights to move."""
    from onnx import helper

    exact: set[str] = set()
    scales: set[str] = set()
    for node in graph.node:
        if node.op_type in _SCALED:
            scales.update(node.input[1:2])
            exact.update((*node.input[:1], *node.input[2:]))
        elif node.op_type not in _LINEAR:
            exact.update(node.input)
        exact.update(set(reads_of(node)) - set(node.input))  # values that a subgraph reads
    return [
        tensor
        for tensor in graph.initializer
        if helper.tensor_dtype_to_np_dtype(tensor.data_type).name in FLOATS
        and tensor.name not in exact
        and (tensor.name in scales or math.prod(tensor.dims) >= FEWEST)
    ]
