"""Values that an operator of onnxruntime writes over, copied before it: what it is given stays as it was.

BatchNormalization that trains puts its new running averages in the place of the old ones, whoever else reads these and whoever
they belong to: a weight, so that each run goes on where the last one ended, or an array of the caller. The copy is a difference
to zeros that are drawn: of anything that follows from weights alone onnxruntime would make another weight, and of what moves
nothing no copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

from dnnc.onnx.importer.graphs import graphs, subgraphs
from ir.core.names import unique

_AVERAGES = (3, 4)
"""Operands of a BatchNormalization that it writes over."""


def copy_overwritten(model: ModelProto) -> None:
    """Gives each node that writes over its operands copies of its own, in place, functions included."""
    functions = [body for function in model.functions for body in (function, *_inside(function))]
    bodies = [*graphs(model.graph), *functions]
    taken = {name for body in bodies for name in _names(body)}
    # Inner bodies first: an outer one is made anew of copies of its nodes.
    for body in reversed(bodies):
        if any(map(_writes_over, body.node)):
            nodes = [made for node in body.node for made in (*_copies(node, taken), node)]
            kept = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
            del body.node[:]
            body.node.extend(kept)


def _inside(function: FunctionProto) -> Iterator[GraphProto]:
    """The graphs in the body of a function."""
    for node in function.node:
        for _, graph in subgraphs(node):
            yield from graphs(graph)


def _writes_over(node: NodeProto) -> bool:
    trains = any(attribute.name == "training_mode" and attribute.i for attribute in node.attribute)
    return node.op_type == "BatchNormalization" and node.domain in ("", "ai.onnx") and trains


def _copies(node: NodeProto, taken: set[str]) -> Iterator[NodeProto]:
    """Nodes that copy what the node writes over, which reads the copies from now on."""
    for index in _AVERAGES if _writes_over(node) else ():
        zeros, copy = (unique(f"{node.input[index]}.{kind}", taken) for kind in ("zeros", "copy"))
        yield onnx.helper.make_node("RandomUniformLike", [node.input[index]], [zeros], low=0.0, high=0.0)
        yield onnx.helper.make_node("Sub", [node.input[index], zeros], [copy])
        node.input[index] = copy


def _names(body: Any) -> Iterator[str]:
    """Names of the values of a graph or function."""
    yield from (value if isinstance(value, str) else value.name for value in (*body.input, *body.output))
    yield from (tensor.name for tensor in getattr(body, "initializer", ()))
    for node in body.node:
        yield from (*node.input, *node.output)


__all__ = ["copy_overwritten"]
