"""Walks over the graphs of an ONNX model: a node may hold graphs (branches, loop bodies), whose nodes may hold others."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import GraphProto, NodeProto


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


__all__ = ["all_nodes", "graphs", "subgraphs"]
