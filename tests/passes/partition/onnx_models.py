"""ONNX models whose lattices are too large to walk, op by op as exporters write them: cross attention, caches, experts."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Graph:
    """Builds a model node by node; weights are seeded, activations f32."""

    def __init__(self, hidden: int, heads: int) -> None:
        self.hidden, self.heads = hidden, heads
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.random = np.random.default_rng(0)

    def op(self, kind: str, *operands: str, **attributes: Any) -> str:
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(operands), [name], name, **attributes))
        return name

    def weight(self, *shape: int) -> str:
        values = (self.random.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
        return self.constant(values)

    def constant(self, values: Any) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(values), f"w{len(self.weights)}"))
        return str(self.weights[-1].name)

    def input(self, name: str, *shape: int) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        return name

    def output(self, value: str, name: str, *shape: int) -> None:
        self.nodes.append(helper.make_node("Identity", [value], [name], f"output_{name}"))
        self.outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))

    def linear(self, x: str, inner: int, outer: int) -> str:
        return self.op("Add", self.op("MatMul", x, self.weight(inner, outer)), self.weight(outer))

    def norm(self, x: str) -> str:
        scale, bias = self.constant(np.ones(self.hidden, np.float32)), self.constant(np.zeros(self.hidden, np.float32))
        return self.op("LayerNormalization", x, scale, bias, axis=-1)

    def split_heads(self, x: str) -> str:
        """[1, S, hidden] to [1, heads, S, hidden / heads]."""
        shape = self.constant(np.array([1, -1, self.heads, self.hidden // self.heads], np.int64))
        return self.op("Transpose", self.op("Reshape", x, shape), perm=[0, 2, 1, 3])

    def keys_values(self, memory: str) -> tuple[str, str]:
        keys, values = (self.split_heads(self.linear(memory, self.hidden, self.hidden)) for _ in range(2))
        return keys, values

    def attention(self, x: str, memory: tuple[str, str], mask: str) -> str:
        """Residual attention of x to the keys and values in ``memory``, ``mask`` added to the scores (empty: none)."""
        keys, values = memory
        query = self.split_heads(self.linear(self.norm(x), self.hidden, self.hidden))
        scores = self.op("MatMul", query, self.op("Transpose", keys, perm=[0, 1, 3, 2]))
        scores = self.op("Mul", scores, self.constant(np.float32((self.hidden // self.heads) ** -0.5)))
        scores = self.op("Add", scores, mask) if mask else scores
        mixed = self.op("MatMul", self.op("Softmax", scores, axis=-1), values)
        flat = self.constant(np.array([1, -1, self.hidden], np.int64))
        mixed = self.op("Reshape", self.op("Transpose", mixed, perm=[0, 2, 1, 3]), flat)
        return self.op("Add", x, self.linear(mixed, self.hidden, self.hidden))

    def feed(self, x: str) -> str:
        inner = self.op("Relu", self.linear(self.norm(x), self.hidden, 4 * self.hidden))
        return self.op("Add", x, self.linear(inner, 4 * self.hidden, self.hidden))

    def model(self) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, "g", self.inputs, self.outputs, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        onnx.checker.check_model(model)
        return model


def encoder_decoder(layers: int, hidden: int = 192, length: int = 64) -> onnx.ModelProto:
    """As many encoder as decoder layers; each decoder layer makes keys and values of its own from the one encoding."""
    graph = Graph(hidden, 4)
    x, y = graph.input("source", 1, length, hidden), graph.input("target", 1, length, hidden)
    padding, causal = graph.input("padding", 1, 1, 1, length), graph.input("causal", 1, 1, length, length)
    for _ in range(layers):
        x = graph.feed(graph.attention(x, graph.keys_values(graph.norm(x)), padding))
    encoding = graph.norm(x)
    for _ in range(layers):
        y = graph.attention(y, graph.keys_values(graph.norm(y)), causal)
        y = graph.feed(graph.attention(y, graph.keys_values(encoding), padding))
    graph.output(graph.norm(y), "decoded", 1, length, hidden)
    return graph.model()


def cached_decoder(layers: int, hidden: int = 192, past: int = 96, length: int = 16) -> onnx.ModelProto:
    """Each layer reads its past keys and values, appends its own, and gives them back; a mask made once serves all."""
    graph = Graph(hidden, 4)
    x, keep = graph.input("x", 1, length, hidden), graph.input("keep", 1, 1, length, past + length)
    mask = graph.op("Mul", graph.op("Sub", graph.constant(np.float32(1)), keep), graph.constant(np.float32(-1e4)))
    shape = (1, graph.heads, past, hidden // graph.heads)
    whole = (1, graph.heads, past + length, hidden // graph.heads)
    for layer in range(layers):
        joined = []
        for kind, own in zip(("key", "value"), graph.keys_values(graph.norm(x)), strict=True):
            joined.append(graph.op("Concat", graph.input(f"past_{kind}_{layer}", *shape), own, axis=2))
            graph.output(joined[-1], f"present_{kind}_{layer}", *whole)
        x = graph.feed(graph.attention(x, (joined[0], joined[1]), mask))
    graph.output(graph.norm(x), "y", 1, length, hidden)
    return graph.model()


def experts(count: int, hidden: int = 128, length: int = 64) -> onnx.ModelProto:
    """Self attention, a router, and ``count`` experts that all see every token, weighted and summed."""
    graph = Graph(hidden, 4)
    x = graph.input("x", 1, length, hidden)
    x = graph.attention(x, graph.keys_values(graph.norm(x)), "")
    routed = graph.norm(x)
    gates = graph.op("Softmax", graph.op("MatMul", routed, graph.weight(hidden, count)), axis=-1)
    parts = []
    for expert in range(count):
        gate = graph.op("Gather", gates, graph.constant(np.array([expert], np.int64)), axis=2)
        inner = graph.op("Relu", graph.op("MatMul", routed, graph.weight(hidden, 2 * hidden)))
        parts.append(graph.op("Mul", graph.op("MatMul", inner, graph.weight(2 * hidden, hidden)), gate))
    graph.output(graph.op("Add", x, graph.op("Sum", *parts)), "y", 1, length, hidden)
    return graph.model()
