"""Reshapes that no run can do. onnx's inference takes a Reshape to a known shape without a look at its operand, and
onnxruntime refuses it only when it runs. The number of elements must stay (ONNX, operator Reshape)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from onnx import GraphProto, NodeProto, TensorProto

from dnnc.onnx.arrays import to_array
from dnnc.onnx.importer.inference.value_types import graph_types
from dnnc.onnx.types import dense_of
from ir.core.types import Dim, TensorType, Type


def misfits(graph: GraphProto) -> Iterator[tuple[NodeProto, str]]:
    """Each Reshape of ``graph`` whose operand has other elements than its target, and why it cannot run. ``graph``: as it is
    inferred, without types that the model only states. What is not known of a shape fits."""
    types = graph_types(graph)
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Reshape" and node.domain == "" and (reason := _misfit(node, types, constants)):
            yield node, reason


def _misfit(node: NodeProto, types: Mapping[str, Type], constants: Mapping[str, TensorProto]) -> str:
    operand, result = types.get(node.input[0]), types.get(node.output[0])
    if not isinstance(operand, TensorType) or operand.elements is None:
        return ""
    found = f"'{node.input[0]}' has the shape {_text(operand.shape or ())}, {operand.elements} elements"
    if isinstance(result, TensorType) and result.elements is not None:
        if result.elements == operand.elements:
            return ""
        return f"{found}; its target {_text(result.shape or ())} has {result.elements}"
    target = constants.get(node.input[1])
    if target is None or target.data_location == TensorProto.EXTERNAL:
        return ""
    dense = dense_of(target)
    shape = [int(dim) for dim in to_array(dense.type, dense.data).reshape(-1)]
    copies = not any(attribute.name == "allowzero" and attribute.i for attribute in node.attribute)
    for axis, dim in enumerate(operand.shape or ()):
        if copies and axis < len(shape) and shape[axis] == 0 and isinstance(dim, int):
            shape[axis] = dim
    stated = math.prod(dim for dim in shape if dim != -1)
    if shape.count(-1) != 1 or stated <= 0 or operand.elements % stated == 0:
        return ""
    return f"{found}, no multiple of the {stated} that its target {_text(shape)} states"


def _text(shape: tuple[Dim, ...] | list[int]) -> str:
    return f"[{', '.join(map(str, shape))}]"
