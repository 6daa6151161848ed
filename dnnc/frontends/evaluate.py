"""Constant evaluation: one operator on constants, by ONNX's own reference implementation.

Refused (None, never an exception): operators that draw random numbers, carry subgraphs or stand outside the standard domains;
results larger than ``RESULT_LIMIT`` bytes, estimated before anything is allocated; whatever the reference cannot do.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from dnnc.frontends.arrays import to_array, to_dense
from dnnc.frontends.attributes import attribute_proto
from dnnc.frontends.opdefs import RANDOM_OPERATORS, operator_of
from ir.attributes import Dense
from ir.ops import Op
from ir.types import TensorType

RESULT_LIMIT = 16 << 20
"""Bytes that one evaluation may make; larger constants are better computed at run time."""

_DOMAINS = ("", "ai.onnx", "ai.onnx.ml")

_KNOWN_SINCE = {"Softmax": 13, "LogSoftmax": 13, "Hardmax": 13, "Resize": 13, "Upsample": 1 << 30, "GroupNormalization": 21}
"""Operators whose meaning changed, of which the reference knows only the newer one: not evaluated in opsets before."""


class OnnxEvaluator:
    """The ``ConstantEvaluator`` of ``passes.base`` for ONNX operators."""

    def __init__(self, limit: int = RESULT_LIMIT) -> None:
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
    node: onnx.NodeProto, inputs: Sequence[NDArray[Any] | None], opsets: Mapping[str, int], limit: int = RESULT_LIMIT
) -> list[NDArray[Any]] | None:
    """Results of a node for these inputs (None for an absent one), or None where it cannot be evaluated."""
    if node.domain not in _DOMAINS or node.op_type in RANDOM_OPERATORS or _too_large(node, inputs, limit):
        return None
    domain = "" if node.domain == "ai.onnx" else node.domain
    version = opsets.get(domain)
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
    """Whether the results may exceed ``limit`` bytes: by the operator's own arithmetic where its result grows with *values*
    of its inputs, else by the product of the inputs' sizes (which bounds broadcasting, gathering and products)."""

    def numbers(index: int) -> list[float]:
        array = inputs[index] if index < len(inputs) else None
        return [] if array is None or array.dtype == object else [float(value) for value in array.reshape(-1)[:64].tolist()]

    given = [array for array in inputs if array is not None]
    first = given[0].size if given else 1
    match node.op_type:
        case "Constant" | "Shape" | "Size" | "Reshape" | "Identity" | "Cast" | "Slice" | "Transpose" | "Split" | "Squeeze":
            elements: float = sum(array.size for array in given[:1])
        case "ConstantOfShape":
            elements = math.prod(numbers(0))
        case "Expand":
            elements = max(first, 1) * math.prod(max(value, 1) for value in numbers(1))
        case "Range":
            start, stop, step = (numbers(index)[0] if numbers(index) else 0.0 for index in range(3))
            elements = abs((stop - start) / step) if step else 0
        case "Tile":
            elements = first * math.prod(max(value, 1) for value in numbers(1))
        case "OneHot":
            elements = first * max([*numbers(1), 1])
        case "Pad":
            elements = _padded(given[0].shape, numbers(1)) if given and numbers(1) else math.inf
        case "Concat" | "EyeLike":
            elements = sum(array.size for array in given)
        case "Resize" | "Upsample" | "MaxUnpool" | "Col2Im" | "CenterCropPad":
            elements = math.inf
        case _:
            elements = math.prod(max(array.size, 1) for array in given)
    return not elements * 8 <= limit  # true for NaN too


def _padded(shape: Sequence[int], pads: Sequence[float]) -> float:
    half = len(pads) // 2
    extra = [max(pads[i] + pads[i + half], 0) for i in range(half)]
    total = 1.0
    for index, dim in enumerate(shape):
        total *= dim + (extra[index] if index < half else max(extra, default=0))
    return total


__all__ = ["RESULT_LIMIT", "OnnxEvaluator", "evaluate_node"]
