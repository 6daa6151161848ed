"""Copies the operands that an operator of onnxruntime overwrites, so that the originals keep their values.

onnxruntime's BatchNormalization with ``training_mode = 1`` writes the new running mean and variance over the old ones, even
where these are a weight (the next run would start from changed weights), an array of the caller, or read by other nodes.

The copy of x is x - zeros, where the zeros are random numbers between 0 and 0. onnxruntime would remove an ``Identity``, and
would compute a sum of a weight and constants once, as another weight, which is overwritten again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

from dnnc.onnx.importer.graphs import graphs, subgraphs
from ir.core.names import unique

_AVERAGES = (3, 4)
"""Operands that a BatchNormalization overwrites: running mean and variance."""


def copy_overwritten(model: ModelProto) -> None:
    """Changes ``model`` in place: each node that overwrites operands reads copies of them. Includes the model's functions."""
    functions = [body for function in model.functions for body in (function, *_subgraphs(function))]
    bodies = [*graphs(model.graph), *functions]
    taken = {name for body in bodies for name in _names(body)}
    # Inner bodies first, because the nodes of an outer body are replaced by copies, with the bodies inside them.
    for body in reversed(bodies):
        if any(map(_overwrites, body.node)):
            nodes = [inserted for node in body.node for inserted in (*_copies(node, taken), node)]
            detached = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
            del body.node[:]
            body.node.extend(detached)


def _subgraphs(function: FunctionProto) -> Iterator[GraphProto]:
    """All graphs inside a function, each before those that it holds."""
    for node in function.node:
        for _, graph in subgraphs(node):
            yield from graphs(graph)


def _overwrites(node: NodeProto) -> bool:
    trains = any(attribute.name == "training_mode" and attribute.i for attribute in node.attribute)
    return node.op_type == "BatchNormalization" and node.domain in ("", "ai.onnx") and trains


def _copies(node: NodeProto, taken: set[str]) -> Iterator[NodeProto]:
    """Nodes that copy the operands that ``node`` overwrites; changes ``node`` to read the copies."""
    for index in _AVERAGES if _overwrites(node) else ():
        zeros, copy = (unique(f"{node.input[index]}.{kind}", taken) for kind in ("zeros", "copy"))
        yield onnx.helper.make_node("RandomUniformLike", [node.input[index]], [zeros], low=0.0, high=0.0)
        yield onnx.helper.make_node("Sub", [node.input[index], zeros], [copy])
        node.input[index] = copy


def _names(body: Any) -> Iterator[str]:
    """Names of the values of a graph or function, those of inner graphs excepted."""
    yield from (value if isinstance(value, str) else value.name for value in (*body.input, *body.output))
    yield from (tensor.name for tensor in getattr(body, "initializer", ()))
    for node in body.node:
        yield from (*node.input, *node.output)
