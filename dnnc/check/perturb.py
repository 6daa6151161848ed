"""Models whose float weights are moved by one unit in the last place: what tells how much rounding matters to a model.

Only weights whose last place is as good as any other are moved: those that nothing but linear ops and normalisations read, and
scales of quantisations. Other constants may be exact (an exponent, a size, a bound), and so may a few numbers that are added or
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
"""Elements of the smallest weight that is moved: no list of dims is as long."""
MOST_BYTES = 256 << 20
"""Weights that are moved in one model, the smallest first: they are held in memory beside the model."""
FLOATS = ("float16", "bfloat16", "float32", "float64")
"""Names of the element types that are moved."""


def perturbed_models(reference: Reference, count: int) -> Iterator[bytes]:
    """``count`` models like the reference, each with its weights moved at random; equal for equal references."""
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
    """The floats next to these, up or down at random. Zeros, for which the next is of another size, and what is not finite
    stay."""
    towards = np.where(generator.random(array.shape) < 0.5, -np.inf, np.inf).astype(array.dtype)
    with np.errstate(over="ignore", under="ignore"):
        found = np.nextafter(array, towards)
    return np.where(np.isfinite(array) & np.isfinite(found) & (array != 0), found, array).astype(array.dtype)


def _array(tensor: onnx.TensorProto, reference: Reference) -> np.ndarray[Any, Any]:
    """The elements of a weight of the reference, from its open files where they lie outside."""
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
        exact.update(set(reads_of(node)) - set(node.input))  # what a subgraph reads
    return [
        tensor
        for tensor in graph.initializer
        if helper.tensor_dtype_to_np_dtype(tensor.data_type).name in FLOATS
        and tensor.name not in exact
        and (tensor.name in scales or math.prod(tensor.dims) >= FEWEST)
    ]


__all__ = ["FLOATS", "moved", "perturbed_models"]
