"""Shapes that a branch never taken would contradict are left out of the models that onnxruntime reads.

A model holds branches for the sizes it was made for (``If`` the sample rate is 8 kHz, ``If`` there is a cache). Once its
dimensions are numbers, the branch for another size cannot be run on them, which harms nobody, since it is never taken; but
onnxruntime infers the shapes of every branch when it loads a model, and refuses the model. So the program of a stage with
branches states element types and ranks alone, as the source did before its dimensions were bound.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from dnnc.onnx.importer.graphs import graphs, subgraphs
from dnnc.onnx.importer.model_dims import tensor_dims

BRANCHING = ("If", "Loop")
"""Operators whose bodies a run may pass by."""


def forget_shapes(model: onnx.ModelProto) -> None:
    """Takes the dimensions out of every annotation of a model with branches, in place; another one stays as it is."""
    if not any(node.op_type in BRANCHING and node.domain == "" for node in _nodes(model.graph)):
        return
    for graph in graphs(model.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            for dim in tensor_dims(value.type):
                dim.Clear()


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for _, inner in subgraphs(node):
            yield from _nodes(inner)


__all__ = ["forget_shapes"]
