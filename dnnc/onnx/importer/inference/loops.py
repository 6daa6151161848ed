"""Types of the values that a ``Loop`` carries from iteration to iteration.

onnx's inference leaves the shape of a carried value open, since an iteration may change it. Here a fixpoint is computed: the
body is inferred with the type that the value enters with; where the body returns another type, it is inferred again with the
join of both (``value_types.join``), until the returned type equals the assumed one. That is the type of the value in every
iteration and after the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from onnx import GraphProto, ModelProto, NodeProto, TypeProto

from dnnc.onnx.importer.graphs import subgraphs
from dnnc.onnx.importer.inference.value_types import better, graph_types, join
from dnnc.onnx.types import type_of, type_proto
from ir.core.types import UNKNOWN, TensorType, Type, UnknownType

_ROUNDS = 64
"""Each round opens a dimension, a shape or a type; real models need two or three."""


def with_carried_types(model: ModelProto, infer: Callable[[ModelProto], ModelProto]) -> ModelProto:
    """The model as ``infer`` leaves it, which is given types of carried values that are proven."""
    assumed: list[list[Type | None]] = [[None] * len(carried_inputs(loop)) for loop, _ in _loops(model.graph, {})]
    if not any(assumed):
        return infer(model)
    for _ in range(_ROUNDS):
        trial = ModelProto()
        trial.CopyFrom(model)
        _assume(trial.graph, iter(assumed))
        trial = infer(trial)
        opened = _opened(trial.graph, assumed)
        if opened == assumed:
            return trial
        assumed = opened
    return infer(model)


def in_first_iterations(model: ModelProto, infer: Callable[[ModelProto], ModelProto]) -> ModelProto:
    """An inferred model, whose bodies of loops tell the types of their first iteration: what they carry is what enters."""
    begun = ModelProto()
    begun.CopyFrom(model)
    loops = False
    for loop, types in _loops(begun.graph, {}):
        loops = True
        for value, name in zip(body_of(loop).input[2:], carried_inputs(loop), strict=False):
            if name in types:
                value.type.CopyFrom(type_proto(types[name]))
    return infer(begun) if loops else model


def carried_inputs(loop: NodeProto) -> list[str]:
    """What a ``Loop`` starts with: its operands behind the number of iterations and the condition."""
    return list(loop.input[2:])


def body_of(loop: NodeProto) -> GraphProto:
    """The graph that a ``Loop`` repeats."""
    return next(graph for _, graph in subgraphs(loop))


def is_loop(node: NodeProto) -> bool:
    """Whether the node is a ``Loop`` of ONNX with its body."""
    return node.op_type == "Loop" and node.domain == "" and any(True for _ in subgraphs(node))


def _loops(graph: GraphProto, outer: Mapping[str, Type]) -> Iterator[tuple[NodeProto, dict[str, Type]]]:
    """The loops of a graph and of the graphs in it, each with the types that are known where it stands."""
    types = {**outer, **graph_types(graph)}
    for node in graph.node:
        if is_loop(node):
            yield node, types
        for _, inner in subgraphs(node):
            yield from _loops(inner, types)


def _assume(graph: GraphProto, assumed: Iterator[list[Type | None]]) -> None:
    """Writes the types that are assumed into bodies and behind loops; in the order of ``_loops``."""
    stated = graph_types(graph)
    places = {value.name: value.type for value in (*graph.value_info, *graph.output)}
    for node in graph.node:
        if is_loop(node):
            types = next(assumed)
            for value, type_ in zip(body_of(node).input[2:], types, strict=False):
                if type_ is not None:
                    value.type.CopyFrom(type_proto(_or_element(type_, value.type)))
            for name, type_ in zip(node.output, types, strict=False):
                if name and type_ is not None and not isinstance(type_, UnknownType):
                    place = places[name] if name in places else graph.value_info.add(name=name).type
                    place.CopyFrom(type_proto(better(stated.get(name), type_)))
        for _, inner in subgraphs(node):
            _assume(inner, assumed)


def _or_element(type_: Type, before: TypeProto) -> Type:
    """The type; where nothing is known, the element type that was stated."""
    stated = type_of(before)
    return replace(stated, shape=None) if isinstance(type_, UnknownType) and isinstance(stated, TensorType) else type_


def _opened(graph: GraphProto, assumed: list[list[Type | None]]) -> list[list[Type | None]]:
    """What holds of every iteration, as far as this round shows: what was assumed, what the loop starts with, and what its body
    hands on have it in common. What enters a loop may not be known before an outer loop is."""
    opened = []
    for (loop, types), before in zip(_loops(graph, {}), assumed, strict=True):
        handed_on = [type_of(value.type) for value in body_of(loop).output[1:]]
        carried: list[Type | None] = []
        for index, name in enumerate(carried_inputs(loop)):
            entering, held = types.get(name, UNKNOWN), before[index]
            if held is None:
                carried.append(None if isinstance(entering, UnknownType) else entering)
            else:
                carried.append(join(held, join(entering, handed_on[index] if index < len(handed_on) else UNKNOWN)))
        opened.append(carried)
    return opened
