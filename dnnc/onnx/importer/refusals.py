"""Nodes that can never run: those at which shape inference fails and that onnxruntime refuses for the same reason.

A failure of inference is no proof: onnxruntime runs some models at which onnx's inference fails. So onnxruntime loads each
such node in a model of its own, with the inferred types of the node's inputs and its small constants. For a node with
subgraphs the shapes of its inputs are omitted: a branch that no run reaches may be of other shapes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import onnx
from onnx import GraphProto, ModelProto, TensorProto, TypeProto

from dnnc.onnx.importer.checks import node_label, node_reads
from dnnc.onnx.importer.faults import NodeCannotRun
from dnnc.onnx.importer.graphs import all_nodes, graphs, subgraphs
from dnnc.onnx.importer.inference.process import Inference, InferenceFailed
from dnnc.onnx.ort import load_onnxruntime, make_session, plain_words
from dnnc.onnx.types import tensor_type, type_proto
from ir.core.diagnostics import DiagnosticSink
from ir.core.limits import Limits
from ir.system.forked import CallFailedError, CallKilledError

_SMALL = 1 << 16
"""Bytes of a constant that onnxruntime is shown: lengths, axes, scales."""

_MARK = re.compile(r"node name: dnnc\.(\d+)\)")
_REASON = re.compile(r"^Node \(.*?\) Op \(\w+\) \[\w+InferenceError\] ")
_IR_VERSION = 10


def refuse_nodes(model: ModelProto, where: str, sink: DiagnosticSink, limits: Limits) -> None:
    """Emits an error for each node of the main graph that inference and onnxruntime both refuse. ``model``: after inference.
    Raises InvalidInput where inference takes more than ``limits``."""
    inference = Inference(where, limits)
    alone = {index: _alone(model, index) for index in _refused_by_inference(model, inference)}
    asked = {index: proto.SerializeToString() for index, proto in alone.items() if proto is not None}
    for index, reason in sorted(_refused_by_onnxruntime(asked, inference).items()):
        node = model.graph.node[index]
        sink.error(NodeCannotRun(node.op_type, reason), where=f"{where}: {node_label(node, index)}")


def _refused_by_inference(model: ModelProto, inference: Inference) -> list[int]:
    """Nodes of the main graph at which inference fails, or in whose subgraphs."""
    copy = ModelProto()
    copy.CopyFrom(model)
    for index, node in enumerate(copy.graph.node):
        for inner in (node, *(inner for _, graph in subgraphs(node) for inner in all_nodes(graph))):
            inner.name = f"dnnc.{index}"
    try:
        inference.infer(copy, strict=True)
    except InferenceFailed as error:
        return sorted({int(number) for number in _MARK.findall(error.whole)})
    return []


def _alone(model: ModelProto, index: int) -> ModelProto | None:
    """The model of this node alone; None where the type of an input is not known."""
    graph, node = model.graph, model.graph.node[index]
    constants = {tensor.name: tensor for tensor in graph.initializer}
    nodes = {name: other for other in graph.node for name in other.output if other.op_type == "Constant"}
    types = _types(graph)
    alone = GraphProto(name="alone")
    for name in dict.fromkeys(node_reads(node)):
        if name in constants and _is_small(constants[name]):
            alone.initializer.append(constants[name])
        elif name in nodes and nodes[name].ByteSize() <= _SMALL:
            alone.node.append(nodes[name])
        elif name in types:
            value = alone.input.add(name=name, type=types[name])
            if any(True for _ in subgraphs(node)) and value.type.HasField("tensor_type"):
                value.type.tensor_type.ClearField("shape")
        else:
            return None
    alone.node.append(node)
    for _, inner in subgraphs(alone.node[-1]):
        for graph_inside in graphs(inner):
            del graph_inside.value_info[:]
    alone.output.extend(onnx.ValueInfoProto(name=name) for name in node.output if name)
    return ModelProto(ir_version=_IR_VERSION, graph=alone, opset_import=model.opset_import)


def _types(graph: GraphProto) -> Mapping[str, TypeProto]:
    types = {value.name: value.type for value in (*graph.value_info, *graph.output, *graph.input)}
    types |= {tensor.name: type_proto(tensor_type(tensor)) for tensor in graph.initializer}
    return {name: type_ for name, type_ in types.items() if type_.WhichOneof("value")}


def _is_small(tensor: TensorProto) -> bool:
    return tensor.data_location != TensorProto.EXTERNAL and tensor.ByteSize() <= _SMALL


def _refused_by_onnxruntime(models: Mapping[int, bytes], inference: Inference) -> dict[int, str]:
    """Why onnxruntime does not load these models, by their keys; for those that its inference refuses alone, since a plan needs
    no kernels. Nothing where asking takes too much or ends it."""
    if not models:
        return {}
    ort = load_onnxruntime()

    def ask() -> bytes:
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        said = {}
        for index, data in models.items():
            try:
                make_session(data, options)
            except Exception as error:  # onnxruntime has a dozen classes of its own, of no common base
                said[index] = str(error)
        return json.dumps(said).encode()

    try:
        answer = inference.bounded(ask, sum(map(len, models.values())))
    except (CallFailedError, CallKilledError, MemoryError):
        return {}
    reasons = {int(index): plain_words(text) for index, text in json.loads(answer).items()}
    return {index: _REASON.sub("", reason) for index, reason in reasons.items() if _REASON.search(reason)}
