"""Small models in ONNX as exporters could write them: a decoder whose caches lie in any order of dimensions, and a stack of
recurrent layers; and what onnxruntime computes of them unsplit, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

LAYERS, HEADS, WIDTH, VOCABULARY, CONTEXT = 2, 4, 32, 61, 24


class Graph:
    """Nodes, inputs, outputs and weights that are drawn as they are named."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(3)
        self.nodes: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.weights: dict[str, Any] = {}

    def op(self, kind: str, *inputs: str, to: str = "", **attributes: Any) -> str:
        name = to or f"made{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=f"{kind}.{name}", **attributes))
        return name

    def weight(self, name: str, *shape: int) -> str:
        self.weights[name] = self.random.normal(0, 0.5, shape).astype(np.float32)
        return name

    def constant(self, name: str, value: Any) -> str:
        self.weights[name] = np.asarray(value)
        return name

    def port(self, name: str, dims: Sequence[Any], element: int = TensorProto.FLOAT) -> Any:
        return helper.make_tensor_value_info(name, element, dims)

    def transposed(self, value: str, order: str, wanted: str) -> str:
        return value if order == wanted else self.op("Transpose", value, perm=[order.index(dim) for dim in wanted])

    def model(self) -> onnx.ModelProto:
        weights = [numpy_helper.from_array(value, name) for name, value in self.weights.items()]
        graph = helper.make_graph(self.nodes, "g", self.inputs, self.outputs, weights)
        return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])


def decoder(keys: str, values: str) -> onnx.ModelProto:
    """A decoder that appends to caches with dimensions in this order, of B(atch), H(eads), T (positions), D (width)."""
    graph, width = Graph(), WIDTH // HEADS
    graph.inputs += [graph.port(name, ("batch", "seq"), TensorProto.INT64) for name in ("input_ids", "position_ids")]
    graph.outputs.append(graph.port("logits", ("batch", "seq", VOCABULARY)))
    words = graph.op("Gather", graph.weight("words", VOCABULARY, WIDTH), "input_ids")
    x = graph.op("Add", words, graph.op("Gather", graph.weight("places", CONTEXT, WIDTH), "position_ids"))
    split, join = graph.constant("split", [0, 0, HEADS, width]), graph.constant("join", [0, 0, WIDTH])
    for layer in range(LAYERS):
        query, *new = (
            graph.op("Reshape", graph.op("MatMul", x, graph.weight(f"{name}{layer}", WIDTH, WIDTH)), split) for name in "qkv"
        )
        whole = []
        for kind, order, value in (("key", keys, new[0]), ("value", values, new[1])):
            dims = {"B": "batch", "H": HEADS, "D": width}
            past, present = f"past_key_values.{layer}.{kind}", f"present.{layer}.{kind}"
            graph.inputs.append(graph.port(past, [{**dims, "T": "past"}[dim] for dim in order]))
            graph.outputs.append(graph.port(present, [{**dims, "T": "total"}[dim] for dim in order]))
            appended = graph.transposed(value, "BTHD", order)
            whole.append(graph.op("Concat", past, appended, to=present, axis=order.index("T")))
        scores = graph.op("MatMul", graph.transposed(query, "BTHD", "BHTD"), graph.transposed(whole[0], keys, "BHDT"))
        shares = graph.op("Softmax", graph.op("Div", scores, graph.constant("scale", np.float32(3))), axis=-1)
        mixed = graph.op("MatMul", shares, graph.transposed(whole[1], values, "BHTD"))
        joined = graph.op("Reshape", graph.transposed(mixed, "BHTD", "BTHD"), join)
        x = graph.op("Add", x, graph.op("Tanh", graph.op("MatMul", joined, graph.weight(f"o{layer}", WIDTH, WIDTH))))
    graph.op("MatMul", x, graph.weight("head", WIDTH, VOCABULARY), to="logits")
    return graph.model()


def greedy(model: onnx.ModelProto, prompt: Sequence[int], count: int) -> list[int]:
    """The most likely tokens behind a prompt: one sequence, one token at a time, caches that grow."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    dims = {"batch": 1, "past": 0}
    caches = {
        port.name: np.zeros([dims.get(dim, dim) for dim in port.shape], np.float32)
        for port in session.get_inputs()
        if port.name.startswith("past")
    }
    kept = list(prompt)
    for place in range(len(prompt) + count - 1):
        ids, positions = np.array([[kept[place]]]), np.array([[place]])
        logits, *grown = session.run(None, {"input_ids": ids, "position_ids": positions, **caches})
        caches = dict(zip(caches, grown, strict=True))
        if place + 1 == len(kept):
            kept.append(int(logits[0, -1].argmax()))
    return kept[len(prompt) :]


def greedy_in_place(path: Path, prompt: Sequence[int], count: int, context: int) -> list[int]:
    """The same of a model of the zoo with caches in place, for one sequence and one token a step."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    shapes = {port.name: port.shape for port in session.get_inputs()}
    caches = {name: np.zeros(shape, np.float32) for name, shape in shapes.items() if name.startswith("past")}
    kept = list(prompt)
    for place in range(len(prompt) + count - 1):
        mask = (np.arange(context) <= place).astype(np.int64)[None]
        values = {"input_ids": [[kept[place]]], "position_ids": [[place]], "attention_mask": mask}
        given = {name: np.asarray(value, np.int64) for name, value in values.items() if name in shapes}
        found = dict(zip((port.name for port in session.get_outputs()), session.run(None, given | caches), strict=True))
        caches = {name: found[name.replace("past_key_values", "present")] for name in caches}
        if place + 1 == len(kept):
            kept.append(int(found["logits"][0, -1].argmax()))
    return kept[len(prompt) :]


def recurrent() -> onnx.ModelProto:
    """Layers ``h = tanh(x + U h0)``, each of which reads what the one before it keeps; ``x`` ``[batch, WIDTH]``."""
    graph = Graph()
    graph.inputs.append(graph.port("x", ("batch", WIDTH)))
    graph.outputs.append(graph.port("y", ("batch", VOCABULARY)))
    x = "x"
    for layer in range(3):
        graph.inputs.append(graph.port(f"h{layer}", ("batch", WIDTH)))
        graph.outputs.append(graph.port(f"h{layer}.next", ("batch", WIDTH)))
        kept = graph.op("MatMul", f"h{layer}", graph.weight(f"u{layer}", WIDTH, WIDTH))
        x = graph.op("Tanh", graph.op("Add", x, kept), to=f"h{layer}.next")
    graph.op("MatMul", x, graph.weight("head", WIDTH, VOCABULARY), to="y")
    return graph.model()


def remembered(model: onnx.ModelProto, inputs: Sequence[Any]) -> list[Any]:
    """What ``recurrent`` computes of each of ``inputs``, from states that begin with zeros."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    states = {port.name: np.zeros_like(inputs[0]) for port in session.get_inputs()[1:]}
    found = []
    for x in inputs:
        y, *kept = session.run(None, {"x": x, **states})
        states = dict(zip(states, kept, strict=True))
        found.append(y)
    return found
