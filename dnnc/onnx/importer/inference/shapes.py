"""Shapes: symbolic dimensions bound first, then every value's type inferred.

Three steps on a model without its large tensors: onnx infers the model without the model's own annotations, with fixpoints of
loops (``loops``); nodes that compute shapes are evaluated by the reference implementation, and the model is inferred again,
until nothing changes; the model's own annotations fill what is still open, and are ignored with one warning where they
contradict inference.

The result is annotations (``value_info``) on every graph of the model, subgraphs included. No node changes.
"""

from __future__ import annotations

from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto

from dnnc.onnx.arrays import to_array, to_dense
from dnnc.onnx.importer.checks import node_label
from dnnc.onnx.importer.evaluate import evaluate_node
from dnnc.onnx.importer.faults import NodeCannotRun
from dnnc.onnx.importer.graphs import graphs, subgraphs
from dnnc.onnx.importer.inference.claims import claims_of, state
from dnnc.onnx.importer.inference.faults import InferenceFailedAtNode
from dnnc.onnx.importer.inference.loops import in_first_iterations, is_loop, with_carried_types
from dnnc.onnx.importer.inference.process import Inference, InferenceFailed
from dnnc.onnx.importer.inference.reshapes import misfits
from dnnc.onnx.importer.inference.value_types import graph_types, is_static
from dnnc.onnx.importer.model_dims import input_symbols, tensor_dims
from dnnc.onnx.types import dense_of, tensor_proto, tensor_type, type_proto
from ir.core import dims as dimensions
from ir.core.diagnostics import DiagnosticSink
from ir.core.limits import LIMITS, Limits
from ir.core.types import TensorType, UnknownType

_ROUNDS = 32
"""Folding and inference alternate at most so often; each round folds at least one node, chains rarely need more than four."""


def infer_shapes(model: ModelProto, where: str, sink: DiagnosticSink, limits: Limits = LIMITS) -> str:
    """Annotates every value that inference reaches, in place. What stays unknown is reported by the import.

    Emits an error for a value that is stated to have other elements than it has, and for a Reshape that cannot run. Returns
    the first node that inference failed at, or that cannot run, and why; empty where there is none. Raises InvalidInput where
    inference would take more memory or time than ``limits`` say."""
    shapes = _Shapes(Inference(where, limits), frozenset(input_symbols(model)), limits)
    inferred, fault = shapes.settled(_bare(model))
    if fault:
        sink.warn(InferenceFailedAtNode(fault), where=where)
    places = {name: node_label(node, index) for index, node in enumerate(model.graph.node) for name in node.output}
    for node, reason in misfits(inferred.graph):
        place = places[node.output[0]]
        sink.error(NodeCannotRun(node.op_type, reason), where=f"{where}: {place}")
        fault = fault or f"{place}: {reason}"
    claims = claims_of(model, inferred, in_first_iterations(inferred, shapes.leniently), where, sink)
    if any(claims):
        state(claims, inferred)
        inferred, _ = shapes.settled(inferred)
    for mine, proven in zip(graphs(model.graph), graphs(inferred.graph), strict=True):
        _annotate(mine, proven)
    return fault


def _bare(model: ModelProto) -> ModelProto:
    """A copy of the model that states no types but those of its inputs, and of a loop's number and condition."""
    bare = ModelProto()
    bare.CopyFrom(model)
    for graph in graphs(bare.graph):
        del graph.value_info[:]
        held = {tensor.name: tensor for tensor in graph.initializer}
        for value in graph.output:
            value.ClearField("type")
            if value.name in held:  # inference looks for the node that makes an output, and there is none
                value.CopyFrom(
                    onnx.helper.make_tensor_value_info(value.name, held[value.name].data_type, held[value.name].dims)
                )
        for node in graph.node:
            for _, body in subgraphs(node):
                for value in body.input[2 if is_loop(node) else 0 :]:
                    value.ClearField("type")
    return bare


class _Shapes:
    """The inference of one model. ``names``: of dimensions of its inputs, which stand for one number each."""

    def __init__(self, inference: Inference, names: frozenset[str], limits: Limits) -> None:
        self.inference, self.names, self.limits = inference, names, limits

    def settled(self, model: ModelProto) -> tuple[ModelProto, str]:
        """The model inferred, with shape arithmetic on known shapes replaced by constants, until nothing changes; and the first
        fault of inference."""
        opsets = {entry.domain: entry.version for entry in model.opset_import}
        constants: dict[str, NDArray[Any]] = {}
        for tensor in model.graph.initializer:
            if tensor.data_location != onnx.TensorProto.EXTERNAL:
                dense = dense_of(tensor)
                constants[tensor.name] = to_array(dense.type, dense.data)
        model, fault = self.inferred(model)
        for _ in range(_ROUNDS):
            types = graph_types(model.graph)
            if all(is_static(types.get(name, UnknownType())) for node in model.graph.node for name in node.output):
                break
            if not _fold_once(model.graph, opsets, constants, self.limits):
                break
            model, folded_fault = self.inferred(model)
            fault = fault or folded_fault
        return model, fault

    def inferred(self, model: ModelProto) -> tuple[ModelProto, str]:
        """The model inferred strictly, else leniently, with the fault."""
        try:
            strict = self.forget(self.inference.infer(model, strict=True))
        except InferenceFailed as error:
            return with_carried_types(model, self.leniently), str(error)
        if any(is_loop(node) for graph in graphs(model.graph) for node in graph.node):
            return with_carried_types(model, self.leniently), ""
        return strict, ""

    def leniently(self, model: ModelProto) -> ModelProto:
        """Inference that passes over nodes it cannot do; the model as it is where even that fails."""
        try:
            return self.forget(self.inference.infer(model, strict=False))
        except InferenceFailed:
            copy = ModelProto()
            copy.CopyFrom(model)
            return copy

    def forget(self, model: ModelProto) -> ModelProto:
        """Removes names that are not of the inputs: those that onnx invents (``unk__0``) would stand in the way of what a later
        round finds out, and of those that a model states nothing says that they stand for one number."""
        for graph in graphs(model.graph):
            for value in (*graph.output, *graph.value_info, *(graph.input if graph is not model.graph else ())):
                for dim in tensor_dims(value.type):
                    if dim.dim_param and not self.names.issuperset(dimensions.symbols(dim.dim_param)):
                        dim.Clear()
        return model


def _fold_once(graph: GraphProto, opsets: dict[str, int], constants: dict[str, NDArray[Any]], limits: Limits) -> bool:
    types = graph_types(graph)
    remaining, folded = [], []
    spent = 0  # bytes
    for node in graph.node:
        arrays: list[NDArray[Any]] | None = None
        if spent <= limits.all_shape_bytes and not any(True for _ in subgraphs(node)):
            if node.op_type in ("Shape", "Size") and node.domain == "" and node.input[0] not in constants:
                type_ = types.get(node.input[0])
                if isinstance(type_, TensorType) and type_.elements is not None:
                    arrays = _measure(node, type_)
            elif all(not name or name in constants for name in node.input):
                arrays = evaluate_node(node, [constants.get(name) for name in node.input], opsets, limits.shape_bytes)
        if arrays is None:
            remaining.append(node)
            continue
        for name, array in zip(node.output, arrays, strict=True):
            spent += array.nbytes
            constants[name] = array
            try:
                folded.append(tensor_proto(to_dense(array), name))
            except KeyError:
                remaining.append(node)
                break
    if not folded:
        return False
    copies = []
    for node in remaining:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copies.append(copy)
    del graph.node[:]
    graph.node.extend(copies)
    graph.initializer.extend(folded)
    # Annotations made while the constants were not known would hide what is known now.
    now = {tensor.name: type_proto(tensor_type(tensor)) for tensor in folded}
    for value in graph.value_info:
        if value.name in now:
            value.type.CopyFrom(now[value.name])
    return True


def _measure(node: onnx.NodeProto, type_: TensorType) -> list[NDArray[Any]] | None:
    """What Shape and Size make of a value of this type; None for a size that no integer holds."""
    import numpy as np

    shape = [dim for dim in type_.shape or () if isinstance(dim, int)]
    if node.op_type == "Size":
        return [np.array(type_.elements, np.int64)] if (type_.elements or 0) < 1 << 63 else None
    bounds = {attribute.name: attribute.i for attribute in node.attribute}
    return [np.array(shape[bounds.get("start", 0) : bounds.get("end", len(shape))], np.int64)]


def _annotate(target: GraphProto, source: GraphProto) -> None:
    """Moves what is known in ``source`` (some nodes of which may have been folded) into ``target``."""
    types = {**graph_types(source), **{tensor.name: tensor_type(tensor) for tensor in target.initializer}}
    declared = {value.name for value in target.input} | {tensor.name for tensor in target.initializer}
    outputs = {value.name: value for value in target.output}
    bodies = {value.name: value for value in target.input if value.name not in {*outputs}}
    del target.value_info[:]
    for name, type_ in types.items():
        if name in outputs:
            outputs[name].type.CopyFrom(type_proto(type_))
        elif name in bodies:
            bodies[name].type.CopyFrom(type_proto(type_))
        elif name not in declared:
            target.value_info.add(name=name, type=type_proto(type_))
