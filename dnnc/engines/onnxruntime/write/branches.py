"""Removes dimensions from models with branches: onnxruntime refuses a model if they contradict a branch, even one never taken.

A model may have branches for different sizes (``If`` the sample rate is 8 kHz, ``If`` there is a cache). Once its dimensions
are bound to numbers, only the branches for these sizes can run. onnxruntime infers the shapes of every branch when it loads a
model, and would refuse the others. So the annotations of a model with branches state element types and ranks only.
"""

from __future__ import annotations

import onnx

from dnnc.onnx.importer.graphs import all_nodes, graphs
from dnnc.onnx.importer.model_dims import tensor_dims

BRANCHING = ("If", "Loop")
"""Operators with a body that a run may skip."""


def forget_shapes(model: onnx.ModelProto) -> None:
    """Removes the dimensions from all type annotations of ``model`` in place; a model without branches stays as it is."""
    if not any(node.op_type in BRANCHING and node.domain == "" for node in all_nodes(model.graph)):
        return
    for graph in graphs(model.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            for dim in tensor_dims(value.type):
                dim.Clear()
