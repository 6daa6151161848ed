"""Shapes: symbolic dimensions bound first, then every value's type inferred.

Order of authority: onnx's own inference over the exporter's annotations; where these contradict it, without them (a warning
says so); then arithmetic on shapes, folded node by node with the reference implementation and inferred again until nothing
changes; last, and only while some value of the main graph has no complete shape, onnxruntime's symbolic inference, whose import
alone takes seconds. All of this works on a model without its large tensors.

The result is annotations (``value_info``) on every graph of the model, subgraphs included; nodes stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto

from dnnc.frontends.arrays import to_array, to_dense
from dnnc.frontends.checks import node_reads
from dnnc.frontends.evaluate import evaluate_node
from dnnc.frontends.functions import subgraphs
from dnnc.frontends.model_dims import graphs, model_symbols, tensor_dims
from dnnc.frontends.onnx_types import dense_of, tensor_proto, tensor_type, type_of, type_proto
from dnnc.frontends.shape_inference import Inference, InferenceFailed
from ir import dims as dimensions
from ir.diagnostics import DiagnosticSink
from ir.limits import LIMITS, Limits
from ir.types import SeqType, TensorType, Type, UnknownType

_ROUNDS = 32
"""Folding and inference alternate at most so often; each round folds at least one node, chains rarely need more than four."""


def is_complete(type_: Type) -> bool:
    """Whether the type says element type, rank, and a number or name for every dimension."""
    if isinstance(type_, TensorType):
        return type_.shape is not None and None not in type_.shape
    return not isinstance(type_, UnknownType) and not (isinstance(type_, SeqType) and isinstance(type_.element, UnknownType))


def is_static(type_: Type) -> bool:
    """Whether every dimension is a number."""
    return is_complete(type_) and (not isinstance(type_, TensorType) or type_.elements is not None)


def graph_types(graph: GraphProto) -> dict[str, Type]:
    """Known types of a graph's values. Annotations that say nothing are left out."""
    types = {value.name: type_of(value.type) for value in (*graph.value_info, *graph.output, *graph.input)}
    for tensor in graph.initializer:
        types[tensor.name] = tensor_type(tensor)
    return {name: type_ for name, type_ in types.items() if not isinstance(type_, UnknownType)}


def incomplete(graph: GraphProto) -> list[str]:
    """Node outputs of the graph itself that something reads and whose type is not complete, in order."""
    types = graph_types(graph)
    used = {name for node in graph.node for name in node_reads(node)} | {value.name for value in graph.output}
    names = (name for name in _outputs(graph) if name in used)
    return [name for name in names if name not in types or not is_complete(types[name])]


def infer_shapes(model: ModelProto, where: str, sink: DiagnosticSink, limits: Limits = LIMITS) -> str:
    """Annotates every value that inference reaches, in place. What stays unknown is reported by the import.

    Returns the first node that inference failed at and why; empty where it failed at none. Raises InvalidInput where inference
    would take more memory or time than ``limits`` say."""
    known = frozenset(model_symbols(model))
    inference = Inference(where, limits)
    inferred, fault = _infer(model, inference, sink)
    _forget(inferred, known)
    types = graph_types(inferred.graph)
    if any(not is_static(types.get(name, UnknownType())) for name in _outputs(inferred.graph)):
        inferred, folded_fault = _fold(inferred, known, inference, limits)
        fault = fault or folded_fault
    if incomplete(inferred.graph):
        inferred = _infer_symbolic(inferred, inference)
    _annotate(model.graph, inferred.graph)
    return fault


def _outputs(graph: GraphProto) -> Iterator[str]:
    return (name for node in graph.node for name in node.output)


def _infer(model: ModelProto, inference: Inference, sink: DiagnosticSink) -> tuple[ModelProto, str]:
    """The model inferred strictly; without its own annotations where these contradict inference; else leniently, with the
    fault."""
    try:
        return inference.infer(model, strict=True), ""
    except InferenceFailed as error:
        first = error
    bare = ModelProto()
    bare.CopyFrom(model)
    for graph in graphs(bare.graph):
        del graph.value_info[:]
    try:
        inferred = inference.infer(bare, strict=True)
        message = f"the model's own shape annotations contradict inference and are ignored: {first}"
        sink.warn(message, where=inference.where)
        for graph in graphs(model.graph):
            del graph.value_info[:]
        return inferred, ""
    except InferenceFailed as error:
        fault = str(error)
    sink.warn(f"shape inference failed at a node: {fault}", where=inference.where)
    return _infer_leniently(model, inference), fault


def _infer_leniently(model: ModelProto, inference: Inference) -> ModelProto:
    """Inference that passes over nodes it cannot do; the model as it is where even that fails."""
    try:
        return inference.infer(model, strict=False)
    except InferenceFailed:
        copy = ModelProto()
        copy.CopyFrom(model)
        return copy


def _forget(model: ModelProto, known: frozenset[str]) -> None:
    """Removes the names (``unk__0``) that onnx invents for dimensions it does not know: they would stand in the way of what a
    later round finds out."""
    for graph in graphs(model.graph):
        for value in (*graph.output, *graph.value_info):
            for dim in tensor_dims(value.type):
                if dim.dim_param and not known.issuperset(dimensions.symbols(dim.dim_param)):
                    dim.Clear()


def _fold(model: ModelProto, known: frozenset[str], inference: Inference, limits: Limits) -> tuple[ModelProto, str]:
    """Replaces shape arithmetic on known shapes by constants and infers again, until nothing changes. Returns the last fault
    of inference too."""
    fault = ""
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    constants: dict[str, NDArray[Any]] = {}
    for tensor in model.graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            dense = dense_of(tensor)
            constants[tensor.name] = to_array(dense.type, dense.data)
    for _ in range(_ROUNDS):
        if not _fold_once(model.graph, opsets, constants, limits):
            break
        model, fault = _infer_quietly(model, inference)
        _forget(model, known)
    return model, fault


def _infer_quietly(model: ModelProto, inference: Inference) -> tuple[ModelProto, str]:
    """Inference, with its fault told to nobody else: arithmetic that was folded may show what stayed hidden before."""
    try:
        return inference.infer(model, strict=True), ""
    except InferenceFailed as error:
        return _infer_leniently(model, inference), str(error)


def _fold_once(graph: GraphProto, opsets: dict[str, int], constants: dict[str, NDArray[Any]], limits: Limits) -> bool:
    types = graph_types(graph)
    kept, folded = [], []
    made = 0  # bytes
    for node in graph.node:
        arrays: list[NDArray[Any]] | None = None
        if made <= limits.all_shape_bytes and not any(True for _ in subgraphs(node)):
            if node.op_type in ("Shape", "Size") and node.domain == "" and node.input[0] not in constants:
                type_ = types.get(node.input[0])
                if isinstance(type_, TensorType) and type_.elements is not None:
                    arrays = _measure(node, type_)
            elif all(not name or name in constants for name in node.input):
                arrays = evaluate_node(node, [constants.get(name) for name in node.input], opsets, limits.shape_bytes)
        if arrays is None:
            kept.append(node)
            continue
        for name, array in zip(node.output, arrays, strict=True):
            made += array.nbytes
            constants[name] = array
            try:
                folded.append(tensor_proto(to_dense(array), name))
            except KeyError:
                kept.append(node)
                break
    if not folded:
        return False
    copies = []
    for node in kept:
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


def _infer_symbolic(model: ModelProto, inference: Inference) -> ModelProto:
    """onnxruntime's inference; the model unchanged where it gives up."""
    result = inference.infer_symbolic(model)
    if result is None:
        return model
    # What it found may be what onnx missed; the names it made up are as good as any.
    known = frozenset(model_symbols(result))
    completed = _infer_leniently(result, inference)
    _forget(completed, known)
    return completed


def _annotate(target: GraphProto, source: GraphProto) -> None:
    """Moves what is known in ``source`` (some nodes of which may have been folded) into ``target``."""
    types = graph_types(target)
    for name, type_ in graph_types(source).items():
        if name not in types or not is_static(types[name]):
            types[name] = _better(types.get(name), type_)
    declared = {value.name for value in target.input} | {tensor.name for tensor in target.initializer}
    outputs = {value.name: value for value in target.output}
    del target.value_info[:]
    for name, type_ in types.items():
        if name in outputs:
            outputs[name].type.CopyFrom(type_proto(type_))
        elif name not in declared:
            target.value_info.add(name=name, type=type_proto(type_))
    others = {tuple(node.output): node for node in source.node if any(True for _ in subgraphs(node))}
    for node in target.node:
        match = others.get(tuple(node.output))
        if match is not None:
            for (_, mine), (_, theirs) in zip(subgraphs(node), subgraphs(match), strict=True):
                _annotate(mine, theirs)


def _better(known: Type | None, inferred: Type) -> Type:
    """The more precise of two types, dimension by dimension, numbers before names before nothing."""
    if not isinstance(known, TensorType) or not isinstance(inferred, TensorType):
        return inferred if known is None or not is_complete(known) else known
    if known.shape is None or inferred.shape is None or len(known.shape) != len(inferred.shape):
        return inferred if inferred.shape is not None else known
    shape = tuple(
        new if isinstance(new, int) or old is None else old for old, new in zip(known.shape, inferred.shape, strict=True)
    )
    return TensorType(inferred.dtype, shape, sparse=inferred.sparse)


__all__ = [
    "graph_types",
    "incomplete",
    "infer_shapes",
    "is_complete",
    "is_static",
]
