"""Miniatures of what ONNX Runtime's tools write: a decoder of onnxruntime-genai, a BERT of the transformer optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

Array = NDArray[Any]
MICROSOFT = "com.microsoft"


class Graph:
    """Nodes and weights of a model, appended one by one."""

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[TensorProto] = []

    def weight(self, name: str, *shape: int, scale: float = 0.1, center: float = 0.0) -> str:
        return self.constant(name, np.asarray(center + scale * self.random.standard_normal(shape), np.float32))

    def constant(self, name: str, array: Array) -> str:
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def add(self, op_type: str, *operands: str, results: Sequence[str] = (), domain: str = "", **attributes: Any) -> str:
        names = list(results) or [f"v{len(self.nodes)}"]
        self.nodes.append(helper.make_node(op_type, operands, names, f"n{len(self.nodes)}", domain=domain, **attributes))
        return names[0]

    def fused(self, op_type: str, *operands: str, results: Sequence[str] = (), **attributes: Any) -> str:
        return self.add(op_type, *operands, results=results, domain=MICROSOFT, **attributes)

    def packed_product(self, x: str, name: str, inner: int, outer: int, block: int = 32) -> str:
        """``x`` times a weight of 4 bits per element, in blocks of ``block``."""
        blocks = inner // block
        packed = self.random.integers(0, 256, (outer, blocks, block // 2)).astype(np.uint8)
        scales = np.asarray(self.random.uniform(0.01, 0.03, (outer, blocks)), np.float32)
        operands = [self.constant(f"{name}.qweight", packed), self.constant(f"{name}.scales", scales)]
        return self.fused("MatMulNBits", x, *operands, K=inner, N=outer, bits=4, block_size=block, accuracy_level=0)

    def model(self, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto], opset: int) -> ModelProto:
        graph = helper.make_graph(self.nodes, "g", inputs, outputs, self.weights)
        opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name="onnxruntime-genai")


def decoder(
    *, layers: int = 4, heads: int = 4, shared: int = 2, width: int = 16, inner: int = 128, words: int = 96
) -> ModelProto:
    """Grouped queries over a growing cache, packed weights, skip normalisation, SwiGLU: as onnxruntime-genai builds Llama."""
    g = Graph()
    hidden = heads * width
    cos, sin = g.weight("cos_cache", 64, width // 2), g.weight("sin_cache", 64, width // 2)
    ones = g.add("ReduceSum", "attention_mask", g.constant("one", np.array([1], np.int64)), keepdims=1)
    lengths = g.add("Cast", g.add("Sub", ones, "one"), to=TensorProto.INT32)
    shape = g.add("Shape", "attention_mask")
    total = g.add("Cast", g.add("Gather", shape, g.constant("second", np.array(1, np.int64)), axis=0), to=TensorProto.INT32)
    residual = g.add("Gather", g.weight("embed_tokens", words, hidden), "input_ids")
    x = g.add("SimplifiedLayerNormalization", residual, g.weight("norm", hidden, center=1), epsilon=1e-5, axis=-1, stash_type=1)
    for layer in range(layers):
        name = f"layers.{layer}"
        q, k, v = (
            g.packed_product(x, f"{name}.{part}_proj", hidden, count * width)
            for part, count in zip("qkv", (heads, shared, shared), strict=True)
        )
        past = [f"past_key_values.{layer}.{part}" for part in ("key", "value")]
        present = [f"present.{layer}.{part}" for part in ("key", "value")]
        attended = g.fused(
            *("GroupQueryAttention", q, k, v, *past, lengths, total, cos, sin),
            results=[f"{name}.attention", *present],
            num_heads=heads,
            kv_num_heads=shared,
            do_rotary=1,
            scale=width**-0.5,
        )
        x, residual = _skip_norm(
            g, residual, g.packed_product(attended, f"{name}.o_proj", hidden, hidden), f"{name}.post", hidden
        )
        gate, up = (g.packed_product(x, f"{name}.{part}_proj", hidden, inner) for part in ("gate", "up"))
        activated = g.add("Mul", g.add("Mul", gate, g.add("Sigmoid", gate)), up)
        down = g.packed_product(activated, f"{name}.down_proj", inner, hidden)
        x, residual = _skip_norm(g, residual, down, f"{name}.next", hidden, last=layer == layers - 1)
    logits = g.packed_product(x, "lm_head", hidden, words)
    g.nodes[-1].output[0] = "logits"
    assert logits
    inputs = [_value("input_ids", TensorProto.INT64, "batch_size", "sequence_length")]
    inputs += [_value("attention_mask", TensorProto.INT64, "batch_size", "total_sequence_length")]
    outputs = [_value("logits", TensorProto.FLOAT, "batch_size", "sequence_length", words)]
    for layer in range(layers):
        for part in ("key", "value"):
            cached = ("batch_size", shared)
            inputs += [_value(f"past_key_values.{layer}.{part}", TensorProto.FLOAT, *cached, "past_sequence_length", width)]
            outputs += [_value(f"present.{layer}.{part}", TensorProto.FLOAT, *cached, "total_sequence_length", width)]
    return g.model(inputs, outputs, 21)


def _skip_norm(g: Graph, residual: str, x: str, name: str, hidden: int, *, last: bool = False) -> tuple[str, str]:
    """The normalised sum, and the sum, which the last norm does not give."""
    results = [f"{name}.norm", *([] if last else ["", "", f"{name}.sum"])]
    weight = g.weight(f"{name}.weight", hidden, center=1)
    g.fused("SkipSimplifiedLayerNormalization", residual, x, weight, results=results, epsilon=1e-5)
    return results[0], results[-1]


def bert(
    *, layers: int = 4, heads: int = 4, width: int = 16, inner: int = 256, words: int = 96, places: int = 32
) -> ModelProto:
    """Fused embedding, attention, biases and norms: as the transformer optimizer writes BERT."""
    g = Graph(1)
    hidden = heads * width
    tables = [
        g.weight(f"{kind}_embeddings", rows, hidden) for kind, rows in (("word", words), ("position", places), ("type", 2))
    ]
    norm = [g.weight("embeddings.scale", hidden, center=1), g.weight("embeddings.shift", hidden)]
    operands = ["input_ids", "token_type_ids", *tables, *norm, "attention_mask"]
    x = g.fused("EmbedLayerNormalization", *operands, results=["embedded", "mask_index"], epsilon=1e-12)
    for layer in range(layers):
        name = f"layer.{layer}"
        projection = [g.weight(f"{name}.qkv.weight", hidden, 3 * hidden), g.weight(f"{name}.qkv.bias", 3 * hidden)]
        attended = g.fused("Attention", x, *projection, "mask_index", num_heads=heads)
        attended = g.add("MatMul", attended, g.weight(f"{name}.out.weight", hidden, hidden))
        x = _biased_norm(g, attended, x, f"{name}.attention", hidden)
        wide = g.add("MatMul", x, g.weight(f"{name}.up.weight", hidden, inner))
        bias = g.weight(f"{name}.up.bias", inner)
        wide = g.fused("BiasGelu", wide, bias) if layer % 2 else g.fused("FastGelu", wide, bias)
        narrow = g.add("MatMul", wide, g.weight(f"{name}.down.weight", inner, hidden))
        x = _biased_norm(g, narrow, x, f"{name}.output", hidden)
    g.nodes[-1].output[0] = "last_hidden_state"
    names = ("input_ids", "token_type_ids", "attention_mask")
    inputs = [_value(name, TensorProto.INT32, "batch_size", "sequence_length") for name in names]
    return g.model(inputs, [_value("last_hidden_state", TensorProto.FLOAT, "batch_size", "sequence_length", hidden)], 14)


def _biased_norm(g: Graph, x: str, skip: str, name: str, hidden: int) -> str:
    vectors = [g.weight(f"{name}.{part}", hidden, center=float(part == "scale")) for part in ("scale", "shift", "bias")]
    return g.fused("SkipLayerNormalization", x, skip, *vectors, epsilon=1e-12)


def _value(name: str, kind: int, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)
