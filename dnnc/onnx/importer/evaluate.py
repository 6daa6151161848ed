"""Constant evaluation: one operator on constants, by ONNX's own reference implementation.

Evaluated are operators whose result size and work ``_elements`` can bound before anything is allocated: elementwise
arithmetic, reductions, movement, products. The result is None, never an exception, for every other operator, for inputs or
results over the limit, and where the reference implementation fails.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from dnnc.onnx.arrays import to_array, to_dense
from dnnc.onnx.attributes import attribute_proto
from dnnc.onnx.opdefs import operator_of
from ir.core.attributes import Dense
from ir.core.limits import LIMITS
from ir.core.ops import Op
from ir.core.types import TensorType
from ir.ops.operators import ELEMENTWISE, TRAITS

_NO_LARGER = frozenset(
    {
        *("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Split", "Shape", "Size", "Trilu"),
        *("CumSum", "Softmax", "LogSoftmax", "Hardmax", "ArgMax", "ArgMin", "TopK", "Compress", "Unique", "ReverseSequence"),
        *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd"),
        *("ReduceSum", "ReduceSumSquare", "ScatterND", "ScatterElements", "DepthToSpace", "SpaceToDepth"),
    }
)
"""Operators whose results have no more elements than their first input."""

_PRODUCTS = frozenset({"Gather", "GatherND", "GatherElements", "MatMul", "MatMulInteger", "Gemm"})
"""Operators whose results, and whose work, are no more than the product of the sizes of their inputs."""

_KNOWN_SINCE = {"Softmax": 13, "LogSoftmax": 13, "Hardmax": 13, "Resize": 13, "Upsample": 1 << 30, "GroupNormalization": 21}
"""Operators whose meaning changed in this opset. The reference implements the newer meaning only, so older opsets are not
evaluated."""


class OnnxEvaluator:
    """The ``ConstantEvaluator`` of ``passes.framework.base`` for ONNX operators."""

    def __init__(self, limit: int = LIMITS.folded_bytes) -> None:
        self.limit = limit

    def __call__(self, op: Op, operands: tuple[Dense | None, ...], opsets: dict[str, int]) -> tuple[Dense, ...] | None:
        """``opsets``: version by domain, the default one as ``onnx`` (or empty)."""
        if op.dialect != "onnx" or op.regions:
            return None
        for result in op.results:
            if isinstance(result.type, TensorType) and (result.type.nbytes or 0) > self.limit:
                return None
        domain, op_type = operator_of(op.name)
        node = onnx.NodeProto(op_type=op_type, domain=domain)
        node.input.extend(f"i{index}" if operand else "" for index, operand in enumerate(operands))
        node.output.extend(f"o{index}" for index in range(len(op.results)))
        node.attribute.extend(attribute_proto(key, attribute) for key, attribute in op.attributes)
        arrays = [None if operand is None else to_array(operand.type, operand.data) for operand in operands]
        versions = {("" if name == "onnx" else name): version for name, version in opsets.items()}
        results = evaluate_node(node, arrays, versions, self.limit)
        if results is None:
            return None
        try:
            return tuple(map(to_dense, results))
        except KeyError:
            return None


def evaluate_node(
    node: onnx.NodeProto, inputs: Sequence[NDArray[Any] | None], opsets: Mapping[str, int], limit: int = LIMITS.folded_bytes
) -> list[NDArray[Any]] | None:
    """Results of a node for these inputs (None for an absent one), or None where it cannot be evaluated."""
    if node.domain not in ("", "ai.onnx") or _too_large(node, inputs, limit):
        return None
    version = opsets.get("")
    if version is None or version < _KNOWN_SINCE.get(node.op_type, 0):
        return None
    from onnx.reference import ReferenceEvaluator

    feeds = {name: _feed(array) for name, array in zip(node.input, inputs, strict=True) if name and array is not None}
    # A graph, since the evaluator takes a lone node for one of the newest opset.
    graph = onnx.GraphProto(node=[node], output=[onnx.ValueInfoProto(name=name) for name in node.output])
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            results: Any = ReferenceEvaluator(graph, opsets=dict(opsets)).run(None, feeds)
    except Exception:  # the reference raises whatever numpy and its own code raise
        return None
    if len(results) < len(node.output):
        return None
    arrays = []
    for result in results[: len(node.output)]:
        array = np.asarray(result)
        if isinstance(result, list) or result is None or array.nbytes > limit:
            return None
        arrays.append(array)
    return arrays


def _feed(array: NDArray[Any]) -> NDArray[Any]:
    """Strings are text to the reference and bytes to the IR."""
    if array.dtype == object:
        return np.array([item.decode() for item in array.reshape(-1).tolist()]).reshape(array.shape)
    return array


def _too_large(node: onnx.NodeProto, inputs: Sequence[NDArray[Any] | None], limit: int) -> bool:
    """Whether the inputs have, or the results may have, more than ``limit`` bytes."""
    present = [array for array in inputs if array is not None]
    if sum(map(_fed_bytes, present)) > limit:
        return True
    try:
        elements = _elements(node, inputs)
    except (ArithmeticError, IndexError, TypeError, ValueError):  # inputs that the operator does not take
        return True
    return not elements * 8 <= limit  # true for NaN too


def _fed_bytes(array: NDArray[Any]) -> int:
    """Bytes of an input as the reference gets it (``_feed``)."""
    return array.size * _width(array)


def _width(array: NDArray[Any]) -> int:
    """Bytes of an element; of a string those of the longest, which numpy gives to each."""
    if array.dtype != object:
        return array.itemsize
    return 4 * max((len(item) for item in array.reshape(-1).tolist()), default=0)


def _elements(node: onnx.NodeProto, inputs: Sequence[NDArray[Any] | None]) -> float:
    """An upper bound of the elements of all results and steps of work; infinity for an operator that is not evaluated."""

    def numbers(index: int) -> list[float]:
        array = inputs[index] if index < len(inputs) else None
        return [] if array is None else [float(value) for value in array.reshape(-1)[:256].tolist()]

    present = [array for array in inputs if array is not None]
    first = present[0].size if present else 1
    match node.op_type:
        case "Split" if any(a.name == "num_outputs" and a.i != len(node.output) for a in node.attribute):
            return math.inf
        case name if ELEMENTWISE in TRAITS.get(f"onnx.{name}", ()):
            return math.prod(np.broadcast_shapes(*(array.shape for array in present)))
        case "StringConcat":
            return math.prod(np.broadcast_shapes(*(array.shape for array in present))) * sum(map(_width, present))
        case name if name in _NO_LARGER:
            return first
        case name if name in _PRODUCTS:
            return math.prod(max(array.size, 1) for array in present)
        case "Constant":
            return 1.0  # what it makes is in the file
        case "NonZero":
            return first * present[0].ndim
        case "ConstantOfShape":
            return math.prod(numbers(0))
        case "Expand":
            return max(first, 1) * math.prod(max(value, 1) for value in numbers(1))
        case "Range":
            start, stop, step = (numbers(index)[0] for index in range(3))
            return abs((stop - start) / step)
        case "Tile":
            return first * math.prod(max(value, 1) for value in numbers(1))
        case "OneHot":
            return first * max([*numbers(1), 1])
        case "Pad" if numbers(1):
            return _padded(present[0].shape, numbers(1))
        case "Concat" | "EyeLike":
            return sum(array.size for array in present)
    return math.inf


def _padded(shape: Sequence[int], pads: Sequence[float]) -> float:
    half = len(pads) // 2
    extra = [max(pads[i] + pads[i + half], 0) for i in range(half)]
    total = 1.0
    for index, dim in enumerate(shape):
        total *= dim + (extra[index] if index < half else max(extra, default=0))
    return total
