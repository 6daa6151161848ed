"""LLaMA and Mixtral: decoders with root mean square norms, rotary positions, grouped queries and gated feed-forward parts.

Mixtral's experts are one product over a dimension of experts, ``[batch, 1, seq, hidden] x [experts, hidden, ffn]``: every
expert computes every token, and those that a token did not choose count with weight 0. That is the published function exactly
(no token is dropped), runs anywhere, and experts are a dimension that layout rules split: a member computes its own experts,
and the sum over experts is the one reduction. Its price is the work of all experts in place of the chosen ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from dnnc.zoo.attention import attention, causal_mask, rotation_of
from dnnc.zoo.graph import ELEMENT, Graph
from dnnc.zoo.spec import Options, Value
from ir.types import DType

EPSILON = 1e-5


def top_of_experts(values: dict[str, Value]) -> list[str]:
    """A token chooses among the experts there are."""
    experts, top = int(values["experts"]), int(values["top"])
    return [f"top={top} is more than experts={experts}"] if top > experts else []


def llama(graph: Graph, o: Options) -> list[str]:
    """LLaMA 2 (Touvron et al. 2023; dimensions of the released ``params.json``): SwiGLU, no biases, an untied head."""

    def feed_forward(name: str, value: str) -> str:
        wide = graph.linear(f"{name}.mlp.up_proj", value, o["ffn"], bias=False)
        gate = graph.silu(f"{name}.mlp.act", graph.linear(f"{name}.mlp.gate_proj", value, o["ffn"], bias=False))
        wide = graph.op("Mul", f"{name}.mlp.gated", [gate, wide], graph.shape(wide))
        return graph.linear(f"{name}.mlp.down_proj", wide, o["hidden"], bias=False)

    return _decoder(graph, o, 10_000.0, feed_forward)


def mixtral(graph: Graph, o: Options) -> list[str]:
    """Mixtral (Jiang et al. 2024, table 1): LLaMA's layers, each feed-forward part one of experts chosen per token."""
    return _decoder(graph, o, 1e6, lambda name, value: _experts(graph, f"{name}.moe", value, o))


def _decoder(graph: Graph, o: Options, theta: float, feed_forward: Callable[[str, str], str]) -> list[str]:
    """Embedding, layers with ``feed_forward(name, value)`` in each, norm and head."""
    batch, seq, hidden, heads, kv_heads = o["batch"], o["seq"], o["hidden"], o["heads"], o["kv_heads"]
    width = hidden // heads
    ids = graph.input("input_ids", (batch, seq), DType.I64)
    tokens = graph.weight("model.embed_tokens.weight", (o["vocab"], hidden), 1.0)
    value = graph.op("Gather", "model.embed_tokens", [tokens, ids], (batch, seq, hidden), axis=0)
    mask = causal_mask(graph, seq)
    rotation = rotation_of(graph, seq, width, theta, grouped=kv_heads < heads)
    gain = 1 / math.sqrt(2 * o["layers"])
    for number in range(o["layers"]):
        name = f"model.layers.{number}"
        normed = graph.rms_norm(f"{name}.input_layernorm", value, EPSILON)
        q = graph.linear(f"{name}.self_attn.q_proj", normed, hidden, bias=False)
        k, v = (graph.linear(f"{name}.self_attn.{part}_proj", normed, kv_heads * width, bias=False) for part in "kv")
        mixed = attention(graph, f"{name}.self_attn", q, k, v, heads, mask, kv_heads=kv_heads, rotation=rotation)
        projected = graph.linear(f"{name}.self_attn.o_proj", mixed, hidden, gain, bias=False)
        value = graph.add(f"{name}.self_attn.residual", value, projected)
        normed = graph.rms_norm(f"{name}.post_attention_layernorm", value, EPSILON)
        value = graph.add(f"{name}.residual", value, feed_forward(name, normed))
    return [graph.linear("logits", graph.rms_norm("model.norm", value, EPSILON), o["vocab"], bias=False)]


def _experts(graph: Graph, name: str, value: str, o: Options) -> str:
    """The sum of the chosen experts' results, each times its share."""
    (batch, seq, hidden), experts = graph.shape(value), o["experts"]
    wide, shape = (batch, experts, seq, o["ffn"]), (batch, experts, seq, hidden)
    one = graph.integers("axis.1", [1])
    tokens = graph.op("Unsqueeze", f"{name}.tokens", [value, one], (batch, 1, seq, hidden))
    up, gate = (_per_expert(graph, f"{name}.{part}", tokens, experts, wide) for part in ("up", "gate"))
    gated = graph.op("Mul", f"{name}.gated", [graph.silu(f"{name}.act", gate), up], wide)
    results = _per_expert(graph, f"{name}.down", gated, experts, shape)
    shares = graph.transpose(f"{name}.shares.by_expert", _shares(graph, name, value, experts, o["top"]), [0, 2, 1])
    shares = graph.op("Unsqueeze", f"{name}.shares.column", [shares, graph.integers("axis.3", [3])], (batch, experts, seq, 1))
    weighed = graph.op("Mul", f"{name}.weighed", [results, shares], shape)
    return graph.op("ReduceSum", f"{name}.sum", [weighed, one], (batch, seq, hidden), keepdims=0)


def _per_expert(graph: Graph, name: str, value: str, experts: int, shape: tuple[int, ...]) -> str:
    """``value @ W`` by every expert's own matrix."""
    inputs = graph.shape(value)[-1]
    weight = graph.weight(f"{name}.weight", (experts, inputs, shape[-1]), 1 / math.sqrt(inputs))
    return graph.op("MatMul", name, [value, weight], shape)


def _shares(graph: Graph, name: str, value: str, experts: int, top: int) -> str:
    """``[batch, seq, experts]``: the softmax over the ``top`` largest logits of the router, at their experts, else 0."""
    batch, seq, _ = graph.shape(value)
    logits = graph.linear(f"{name}.router", value, experts, bias=False)
    best = (batch, seq, top)
    largest, chosen = f"{name}.router.largest", f"{name}.router.chosen"
    largest, chosen = graph.top(largest, chosen, logits, graph.integers("experts.chosen", [top]), best)
    softmax = graph.op("Softmax", f"{name}.router.softmax", [largest], best, axis=-1)
    last = graph.integers("last_axis", [-1])
    softmax = graph.op("Unsqueeze", f"{name}.router.weights", [softmax, last], (*best, 1))
    column = graph.op("Unsqueeze", f"{name}.router.column", [chosen, last], (*best, 1), DType.I64)
    every = graph.integers("experts.every", list(range(experts)))
    spread = (*best, experts)
    marks = graph.op("Equal", f"{name}.router.equal", [column, every], spread, DType.BOOL)
    marks = graph.op("Cast", f"{name}.router.marks", [marks], spread, to=ELEMENT[graph.dtype])
    weighed = graph.op("Mul", f"{name}.router.spread", [marks, softmax], spread)
    return graph.op("ReduceSum", f"{name}.shares", [weighed, graph.integers("axis.2", [2])], (batch, seq, experts), keepdims=0)
