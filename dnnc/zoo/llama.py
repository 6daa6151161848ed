"""LLaMA: decoders with root mean square norms, rotary positions, grouped queries and gated feed-forward parts."""

from __future__ import annotations

import math
from collections.abc import Callable

from dnnc.zoo.cache import FORMATS
from dnnc.zoo.graph import Graph
from dnnc.zoo.spec import Options
from ir.core.types import DType

EPSILON = 1e-5


def llama(graph: Graph, o: Options) -> list[str]:
    """LLaMA 2 (Touvron et al. 2023; dimensions of the released ``params.json``): SwiGLU, no biases, an untied head."""

    def feed_forward(name: str, value: str) -> str:
        wide = graph.linear(f"{name}.mlp.up_proj", value, o["ffn"], bias=False)
        gate = graph.silu(f"{name}.mlp.act", graph.linear(f"{name}.mlp.gate_proj", value, o["ffn"], bias=False))
        wide = graph.op("Mul", f"{name}.mlp.gated", [gate, wide], graph.shape(wide))
        return graph.linear(f"{name}.mlp.down_proj", wide, o["hidden"], bias=False)

    return decoder(graph, o, 10_000.0, feed_forward)


def decoder(graph: Graph, o: Options, theta: float, feed_forward: Callable[[str, str], str]) -> list[str]:
    """A decoder of LLaMA's form: embedding, layers whose feed-forward part is ``feed_forward(name, value)``, norm and head.
    ``theta``: the base of the rotary embedding."""
    batch, seq, hidden, heads, kv_heads = o["batch"], o["seq"], o["hidden"], o["heads"], o["kv_heads"]
    width = hidden // heads
    ids = graph.input("input_ids", (batch, seq), DType.I64)
    tokens = graph.weight("model.embed_tokens.weight", (o["vocab"], hidden), 1.0)
    value = graph.op("Gather", "model.embed_tokens", [tokens, ids], (batch, seq, hidden), axis=0)
    itself = FORMATS[o.word("cache")](
        graph, o, layers=o["layers"], heads=heads, kv_heads=kv_heads, width=width, rows=seq, theta=theta
    )
    gain = 1 / math.sqrt(2 * o["layers"])
    for number in range(o["layers"]):
        name = f"model.layers.{number}"
        normed = graph.rms_norm(f"{name}.input_layernorm", value, EPSILON)
        q = graph.linear(f"{name}.self_attn.q_proj", normed, hidden, bias=False)
        k, v = (graph.linear(f"{name}.self_attn.{part}_proj", normed, kv_heads * width, bias=False) for part in "kv")
        mixed = itself.attend(f"{name}.self_attn", number, q, k, v)
        projected = graph.linear(f"{name}.self_attn.o_proj", mixed, hidden, gain, bias=False)
        value = graph.add(f"{name}.self_attn.residual", value, projected)
        normed = graph.rms_norm(f"{name}.post_attention_layernorm", value, EPSILON)
        value = graph.add(f"{name}.residual", value, feed_forward(name, normed))
    logits = graph.linear("logits", graph.rms_norm("model.norm", value, EPSILON), o["vocab"], bias=False)
    return [logits, *itself.presents]
