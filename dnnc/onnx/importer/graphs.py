"""Walks over the graphs of an ONNX model: a node may hold graphs (branches, loop bodies), whose nodes may hold others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count

from onnx import GraphProto, NodeProto, TensorProto, helper

from dnnc.onnx.model import CHOOSES_CACHES


def subgraphs(node: NodeProto) -> Iterator[tuple[str, GraphProto]]:
    """Graph attributes of a node with their keys; the i-th of a list is ``name.i``."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.name, attribute.g
        for index, graph in enumerate(attribute.graphs):
            yield f"{attribute.name}.{index}", graph


def graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """The graph and every graph inside it, each before those that it holds."""
    yield graph
    for node in graph.node:
        for _, inner in subgraphs(node):
            yield from graphs(inner)


def all_nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """The nodes of the graph and of every graph inside it."""
    for one in graphs(graph):
        yield from one.node


def take_caches(graph: GraphProto) -> bool:
    """Puts the branch with caches in the place of an ``If`` on ``use_cache_branch``, in a valid graph whose nodes are in order:
    that input becomes true, and results that are then computed from no input are left out. Returns whether there was such an
    ``If``."""
    at = next((n for n, node in enumerate(graph.node) if node.op_type == "If" and node.input[0] == CHOOSES_CACHES), None)
    chosen = next((value for value in graph.input if value.name == CHOOSES_CACHES), None)
    if at is None or chosen is None:
        return False
    node, nodes = graph.node[at], list(graph.node)
    branch = dict(subgraphs(node))["then_branch"]
    made = {name for one in branch.node for name in one.output} | {one.name for one in branch.initializer}
    names, copies = dict[str, str](), list[NodeProto]()
    for given, name in zip((value.name for value in branch.output), node.output, strict=True):
        if given in made and given not in names:
            names[given] = name
        elif name:  # it is of the graph around, or given twice
            copies.append(helper.make_node("Identity", [names.get(given, given)], [name]))
    _rename(branch, {before: after for before, after in names.items() if after})
    nodes[at : at + 1] = [*branch.node, *copies]
    graph.initializer.extend(branch.initializer)
    graph.value_info.extend(value for value in branch.value_info if value.name not in node.output)
    graph.initializer.append(helper.make_tensor(CHOOSES_CACHES, TensorProto.BOOL, [1], [True]))
    graph.input.remove(chosen)
    varying = {value.name for value in graph.input} - {one.name for one in graph.initializer}
    for one in nodes:
        read = {*one.input, *(name for inner in all_nodes_of(one) for name in inner.input)}
        varying.update(one.output if varying & read else ())
    results = [value for value in graph.output if value.name in varying]
    del graph.node[:], graph.output[:]
    graph.node.extend(nodes)
    graph.output.extend(results)
    return True


def part_averages(graph: GraphProto) -> None:
    """Gives each reader an initializer of its own where one stands for running averages and for other weights: exporters store
    equal tensors once, such as the zeros and ones that a new BatchNormalization begins with, and training moves an average.
    Which readers are to share a weight cannot be told then: none does. Else two nodes share averages where all four of their
    tensors are the same, as of one module that is run twice. Nodes of inner graphs keep what they read."""
    stored = {tensor.name: tensor for tensor in graph.initializer}
    places: dict[str, list[tuple[NodeProto, int]]] = {}
    for node in graph.node:
        for place, name in enumerate(node.input):
            if name in stored:
                places.setdefault(name, []).append((node, place))
    kinds = {name: {_is_average(*one) for one in found} for name, found in places.items()}
    mixed = {name for name, kind in kinds.items() if len(kind) > 1}
    taken = {name for node in all_nodes(graph) for name in (*node.input, *node.output)} | stored.keys()
    taken |= {value.name for value in graph.input}
    parts: list[tuple[list[tuple[NodeProto, int]], str]] = []
    for name, found in places.items():
        groups: dict[object, list[tuple[NodeProto, int]]] = {}
        for node, place in sorted(found, key=lambda one: _is_average(*one)):
            module = tuple(node.input[1:5])
            apart = name in mixed or bool(mixed.intersection(module))
            groups.setdefault((id(node) if apart else module, place), []).append((node, place))
        if True in kinds[name]:
            parts += [(group, name) for group in [*groups.values()][1:]]
    for group, name in parts:
        number = next(n for n in count(1) if f"{name}.{n}" not in taken)
        taken.add(own := f"{name}.{number}")
        copy = graph.initializer.add()
        copy.CopyFrom(stored[name])
        copy.name = own
        for node, place in group:
            node.input[place] = own


def _is_average(node: NodeProto, place: int) -> bool:
    return node.op_type == "BatchNormalization" and not node.domain and place > 2


def all_nodes_of(node: NodeProto) -> Iterator[NodeProto]:
    """The nodes of the graphs that a node holds."""
    for _, inner in subgraphs(node):
        yield from all_nodes(inner)


def _rename(graph: GraphProto, names: Mapping[str, str]) -> None:
    """Renames values wherever the graph, or one inside it, makes or reads them."""
    for inner in graphs(graph):
        for one in inner.node:
            one.input[:] = [names.get(name, name) for name in one.input]
            one.output[:] = [names.get(name, name) for name in one.output]
        for value in (*inner.initializer, *inner.output, *inner.value_info):
            value.name = names.get(value.name, value.name)
