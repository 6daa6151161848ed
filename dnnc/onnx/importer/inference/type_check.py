"""Checks of the inferred types: each operator takes its element types, and each value fits into a machine.

onnxruntime refuses to load a model with an element type that an operator does not take. This check names the node and both
types before anything is planned.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import onnx
from onnx import GraphProto, ModelProto, NodeProto

from dnnc.onnx.domains import STANDARD_DOMAINS
from dnnc.onnx.importer.checks import node_label
from dnnc.onnx.importer.graphs import subgraphs
from dnnc.onnx.importer.inference.faults import ElementTypeRefused, TooManyDimensions, ValueTooLarge
from dnnc.onnx.importer.inference.value_types import graph_types
from dnnc.onnx.types import RANK_LIMIT, SCHEMA_NAMES
from ir.core.diagnostics import DiagnosticSink, Fault
from ir.core.ranges import MOST_BYTES
from ir.core.types import TensorType, Type

_SHAPE_OPERANDS = {"ConstantOfShape": 0, "Expand": 1, "Reshape": 1, "Unsqueeze": 1}
"""Operators whose result has a dimension for each element of a vector; inference does not read long ones."""


def check_types(model: ModelProto, where: str, sink: DiagnosticSink) -> None:
    """Emits an error for each value that is too large and for each input whose element type its operator does not take."""
    versions = {entry.domain: entry.version for entry in model.opset_import}
    _Checker(versions, where, sink).graph(model.graph, {}, "")


class _Checker:
    def __init__(self, versions: dict[str, int], where: str, sink: DiagnosticSink) -> None:
        self.versions, self.where, self.sink = versions, where, sink

    def graph(self, graph: GraphProto, outer: Mapping[str, Type], place: str) -> None:
        own = graph_types(graph)
        results = [name for node in graph.node for name in node.output]
        for name in (*(value.name for value in graph.input), *results):
            type_ = own.get(name)
            if isinstance(type_, TensorType) and (fault := self._too_large(name, type_)):
                self.sink.error(fault, where=f"{self.where}{place}")
                break  # what reads it is as large
        types = {**outer, **own} if outer else own
        for index, node in enumerate(graph.node):
            self._node(node, index, types, place)
            for key, inner in subgraphs(node):
                self.graph(inner, types, f"{place}: {node_label(node, index)}, {key}")

    def _too_large(self, name: str, type_: TensorType) -> Fault | None:
        shape = type_.shape or ()
        if len(shape) > RANK_LIMIT:
            return TooManyDimensions(name, len(shape), RANK_LIMIT)
        size = 1
        for dim in shape:
            size *= dim if isinstance(dim, int) and dim else 1
        if size * max(type_.dtype.bits, 8) // 8 >= MOST_BYTES:
            numbers = "x".join("?" if dim is None else str(dim) for dim in shape)
            return ValueTooLarge(name, numbers, MOST_BYTES)
        return None

    def _node(self, node: NodeProto, index: int, types: Mapping[str, Type], place: str) -> None:
        version = self.versions.get(node.domain)
        if version is None or node.domain not in STANDARD_DOMAINS:
            return
        place = f"{self.where}{place}: {node_label(node, index)}"
        if (rank := _least_rank(node, types)) > RANK_LIMIT:
            self.sink.error(TooManyDimensions(node.output[0], rank, RANK_LIMIT), where=place)
        formals = _formals(node.op_type, version, node.domain)
        bound: dict[str, str] = {}
        for position, name in enumerate(node.input):
            type_ = types.get(name)
            element = SCHEMA_NAMES.get(type_.dtype, "") if isinstance(type_, TensorType) and not type_.sparse else ""
            if not element or not formals:
                continue
            variable, allowed, same = formals[min(position, len(formals) - 1)]
            expected = ""
            if f"tensor({element})" not in allowed:
                expected = ", ".join(sorted(text.removeprefix("tensor(").removesuffix(")") for text in allowed))
            elif same and bound.setdefault(variable, element) != element:
                expected = f"{bound[variable]}, as the input before it"
            if expected:
                self.sink.error(ElementTypeRefused(name, node.op_type, element, expected), where=place)


def _least_rank(node: NodeProto, types: Mapping[str, Type]) -> int:
    """The dimensions that the result has at least, by the length of the node's shape operand; 0 where that is not known."""
    operand = _SHAPE_OPERANDS.get(node.op_type)
    if node.domain or operand is None or operand >= len(node.input):
        return 0
    type_ = types.get(node.input[operand])
    return type_.elements or 0 if isinstance(type_, TensorType) else 0


@lru_cache(maxsize=4096)
def _formals(op_type: str, version: int, domain: str) -> tuple[tuple[str, frozenset[str], bool], ...]:
    """For each input of an operator: the variable of its type, the types allowed, whether all of that variable are equal."""
    try:
        schema = onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return ()
    constraints = {item.type_param_str: frozenset(item.allowed_type_strs) for item in schema.type_constraints}
    return tuple(
        (one.type_str, constraints.get(one.type_str, frozenset((one.type_str,))), one.is_homogeneous) for one in schema.inputs
    )
