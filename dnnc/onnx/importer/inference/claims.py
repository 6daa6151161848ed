"""Types that a model states of its own values, compared with the inferred ones.

A wrong shape is ignored with a warning, and a wrong element type refused, as onnxruntime does. A stated type is used where
inference proves nothing: for sizes that depend on data, and for results of unknown operators (``opaque``). A stated name of a
dimension is used where an input has the same name. Two kinds of stated sizes are never used. Sizes of an output that no node
reads, where they depend on data: no other value confirms them, and a run may make others. Sizes that control flow leaves open,
and sizes computed from these: another iteration or branch may have others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from onnx import GraphProto, ModelProto, NodeProto

from dnnc.onnx.importer.checks import node_reads
from dnnc.onnx.importer.graphs import graphs, subgraphs
from dnnc.onnx.importer.inference.faults import DefaultOfAnotherType, StatedShapesIgnored, StatedTypeWrong
from dnnc.onnx.importer.inference.loops import body_of, carried_inputs, is_loop
from dnnc.onnx.importer.inference.opaque import opaque_values, open_values
from dnnc.onnx.importer.inference.value_types import (
    better,
    contradicts,
    graph_types,
    with_names,
    without_shape,
)
from dnnc.onnx.importer.model_dims import input_symbols
from dnnc.onnx.types import type_of, type_proto
from ir.core.diagnostics import DiagnosticSink
from ir.core.types import UNKNOWN, Type, UnknownType

_SHOWN = 3
"""Contradictions that one warning spells out."""

Claims = list[dict[str, Type]]
"""Types by value, for each graph of a model in the order of ``graphs``."""


def claims_of(model: ModelProto, inferred: ModelProto, first: ModelProto, where: str, sink: DiagnosticSink) -> Claims:
    """What the model states beyond what is ``inferred``; ``first``: what is of the first iterations of its loops. Emits one
    warning for all shapes that cannot be, and an error for each value that is stated to have other elements than it has."""
    names = frozenset(input_symbols(model))
    wrong: list[str] = []
    claims: Claims = []
    every = [graph_types(graph) for graph in graphs(inferred.graph)]
    opaque = opaque_values(model, every)
    left_open = open_values(model, every, opaque)
    stages = zip(graphs(model.graph), graphs(inferred.graph), graphs(first.graph), every, left_open, strict=True)
    for mine, proven, begun, known, left in stages:
        own: dict[str, Type] = {}
        last = _of_data_alone(model, opaque[0]) if mine is model.graph else frozenset()
        possible = [_possible(proven, known), _possible(begun, known)]
        at_first = graph_types(begun)
        for name, stated in _stated(mine, inner=mine is not model.graph):
            types = [known.get(name, UNKNOWN), at_first.get(name, UNKNOWN)]
            types += [type_ for of_name in possible for type_ in of_name.get(name, ())]
            other = next((type_ for type_ in types if contradicts(stated, type_)), None)
            if other is None:
                usable = without_shape(stated) if name in last or name in left else with_names(stated, names)
                claim = better(types[0], usable)
                if claim != types[0]:
                    own[name] = claim
            elif not contradicts(without_shape(stated), without_shape(other)):
                wrong.append(f"{stated} for '{name}', which is {other}")
            else:
                sink.error(StatedTypeWrong(name, str(stated), str(other)), where=where)
        claims.append(own)
    if wrong:
        wrong = list(dict.fromkeys(wrong))
        sink.warn(StatedShapesIgnored("; ".join(wrong[:_SHOWN]), max(0, len(wrong) - _SHOWN)), where=where)
    return claims


def state(claims: Claims, model: ModelProto) -> None:
    """Writes the claims into the graphs of a model."""
    for own, graph in zip(claims, graphs(model.graph), strict=True):
        places = {value.name: value.type for value in (*graph.value_info, *graph.output, *graph.input)}
        for name, type_ in own.items():
            place = places[name] if name in places else graph.value_info.add(name=name).type
            place.CopyFrom(type_proto(type_))


def _stated(graph: GraphProto, *, inner: bool) -> Iterator[tuple[str, Type]]:
    """What a graph states of values that it makes; of what enters a body the elements alone, for shapes may change from
    iteration to iteration."""
    for value in (*graph.value_info, *graph.output):
        yield value.name, type_of(value.type)
    for value in graph.input if inner else ():
        yield value.name, without_shape(type_of(value.type))


def _of_data_alone(model: ModelProto, opaque: frozenset[str]) -> frozenset[str]:
    """Outputs that no node reads and whose shape would be known if it did not depend on data: no operator on the way to them is
    one that inference knows nothing of."""
    read = {name for node in model.graph.node for name in node_reads(node)}
    return frozenset(value.name for value in model.graph.output) - opaque - read


def _possible(graph: GraphProto, known: Mapping[str, Type]) -> dict[str, list[Type]]:
    """Types that a value has in some runs, of what branches and loops make."""
    types: dict[str, list[Type]] = {}
    for node in graph.node:
        for ends in _ends(node, known):
            for name, type_ in zip(node.output, ends, strict=False):
                if not isinstance(type_, UnknownType):
                    types.setdefault(name, []).append(type_)
    return types


def _ends(node: NodeProto, known: Mapping[str, Type]) -> Iterator[list[Type]]:
    if node.domain == "" and node.op_type == "If":
        for _, branch in subgraphs(node):
            yield [type_of(value.type) for value in branch.output]
    elif is_loop(node):
        entering = carried_inputs(node)
        yield [known.get(name, UNKNOWN) for name in entering]
        yield [type_of(value.type) for value in body_of(node).output[1:]][: len(entering)]


def refuse_defaults(model: ModelProto, where: str, sink: DiagnosticSink) -> None:
    """Emits an error for each input that is stated to be something else than its default."""
    types = graph_types(model.graph)
    defaults = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        stated = type_of(value.type)
        if value.name in defaults and contradicts(stated, types[value.name]):
            sink.error(DefaultOfAnotherType(value.name, str(stated), str(types[value.name])), where=where)
