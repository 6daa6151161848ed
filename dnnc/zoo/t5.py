"""T5: an encoder and a decoder; all layers of each share its relative position biases."""

from __future__ import annotations

import math

from dnnc.zoo.attention import attention, causal_mask, padding_mask
from dnnc.zoo.dimensions import feed_forward
from dnnc.zoo.graph import Graph
from dnnc.zoo.spec import Complete, Options, Value
from ir.core.diagnostics import Fault
from ir.core.types import DType

EPSILON = 1e-6
BUCKETS, FARTHEST = 32, 128
"""Each head has 32 biases for relative positions; all distances from 128 on share the last one."""


def widths(values: dict[str, Value], gated: Complete) -> list[Fault]:
    """``ffn``: version 1.1 has two up-projections, each about two thirds as wide as the one of version 1.0."""
    return (gated if values["version"] == "1.1" else feed_forward(4, 1))(values)


def lengths(values: dict[str, Value]) -> list[Fault]:
    """``target_seq``: if 0, ``seq``."""
    values["target_seq"] = values["target_seq"] or values["seq"]
    return []


def t5(graph: Graph, o: Options) -> list[str]:
    """T5 (Raffel et al. 2019, section 3.1.2 and the released checkpoints): pre-norm without biases, scores that are not
    scaled. Version 1.0 has ReLU and a head tied to the embedding, which scales its input by ``hidden ** -0.5``; version 1.1
    (Shazeer 2020; released later) gates with GELU and has a head of its own."""
    batch, hidden, vocab = o["batch"], o["hidden"], o["vocab"]
    ids = graph.input("input_ids", (batch, o["seq"]), DType.I64)
    mask = graph.input("attention_mask", (batch, o["seq"]), DType.I64)
    targets = graph.input("decoder_input_ids", (batch, o["target_seq"]), DType.I64)
    shared = graph.weight("shared.weight", (vocab, hidden), 1.0)
    padding = padding_mask(graph, mask)

    value = graph.op("Gather", "encoder.embed", [shared, ids], (batch, o["seq"], hidden), axis=0)
    bias = _position_bias(graph, "encoder", o["seq"], o["heads"], both_ways=True)
    shape = (batch, o["heads"], o["seq"], o["seq"])
    bias = graph.op("Add", "encoder.bias", [bias, padding], shape)
    for number in range(o["layers"]):
        name = f"encoder.block.{number}"
        value = _attend(graph, f"{name}.self", value, "", o, bias)
        value = _feed_forward(graph, f"{name}.ff", value, o)
    memory = graph.rms_norm("encoder.final_layer_norm", value, EPSILON)

    value = graph.op("Gather", "decoder.embed", [shared, targets], (batch, o["target_seq"], hidden), axis=0)
    bias = _position_bias(graph, "decoder", o["target_seq"], o["heads"], both_ways=False)
    bias = graph.add("decoder.bias", bias, causal_mask(graph, o["target_seq"]))
    for number in range(o["layers"]):
        name = f"decoder.block.{number}"
        value = _attend(graph, f"{name}.self", value, "", o, bias)
        value = _attend(graph, f"{name}.cross", value, memory, o, padding)
        value = _feed_forward(graph, f"{name}.ff", value, o)
    value = graph.rms_norm("decoder.final_layer_norm", value, EPSILON)
    if o.word("version") == "1.1":
        return [graph.linear("logits", value, vocab, bias=False)]
    scale = graph.fill("lm_head.scale", hidden**-0.5)
    value = graph.op("Mul", "lm_head.scaled", [value, scale], graph.shape(value))
    return [graph.tied("lm_head", value, shared)]


def _attend(graph: Graph, name: str, value: str, memory: str, o: Options, mask: str) -> str:
    """Norm, attention to ``memory`` (empty: to ``value`` itself) and residual. The initial query weights are smaller by
    sqrt(width of a head), which replaces the scaling of scores."""
    hidden, heads = o["hidden"], o["heads"]
    normed = graph.rms_norm(f"{name}.layer_norm", value, EPSILON)
    q = graph.linear(f"{name}.q", normed, hidden, 1 / math.sqrt(hidden // heads), bias=False)
    k, v = (graph.linear(f"{name}.{part}", memory or normed, hidden, bias=False) for part in "kv")
    mixed = attention(graph, f"{name}.attention", q, k, v, heads, mask, scaled=False)
    return graph.add(f"{name}.residual", value, graph.linear(f"{name}.o", mixed, hidden, bias=False))


def _feed_forward(graph: Graph, name: str, value: str, o: Options) -> str:
    normed = graph.rms_norm(f"{name}.layer_norm", value, EPSILON)
    if o.word("version") == "1.1":
        gate, wide = (graph.linear(f"{name}.wi_{part}", normed, o["ffn"], bias=False) for part in (0, 1))
        gate = graph.op("Gelu", f"{name}.act", [gate], graph.shape(gate), approximate="tanh")
        wide = graph.op("Mul", f"{name}.gated", [gate, wide], graph.shape(wide))
    else:
        wide = graph.linear(f"{name}.wi", normed, o["ffn"], bias=False)
        wide = graph.op("Relu", f"{name}.act", [wide], graph.shape(wide))
    return graph.add(f"{name}.residual", value, graph.linear(f"{name}.wo", wide, o["hidden"], bias=False))


def _position_bias(graph: Graph, name: str, seq: int, heads: int, *, both_ways: bool) -> str:
    """``[heads, seq, seq]``: each head's learned bias for the distance from query to key. The biases of the 2 seq - 1 distances
    are gathered first, then copied to all pairs of positions."""
    weight = graph.weight(f"{name}.relative_attention_bias.weight", (BUCKETS, heads), 0.5)
    buckets = [bucket(distance, both_ways=both_ways) for distance in range(1 - seq, seq)]
    numbers = graph.integers(f"{name}.buckets", buckets)
    picked = graph.op("Gather", f"{name}.biases", [weight, numbers], (2 * seq - 1, heads), axis=0)
    by_head = graph.transpose(f"{name}.biases.by_head", picked, [1, 0])
    keys = graph.integers(f"keys.{seq}", list(range(seq - 1, 2 * seq - 1)))
    queries = graph.integers(f"queries.{seq}", list(range(seq)))
    column = graph.op("Unsqueeze", f"{name}.queries", [queries, graph.integers("axis.1", [1])], (seq, 1), DType.I64)
    distance = graph.op("Sub", f"{name}.distances", [keys, column], (seq, seq), DType.I64)
    return graph.op("Gather", f"{name}.position_bias", [by_head, distance], (heads, seq, seq), axis=1)


def bucket(distance: int, *, both_ways: bool) -> int:
    """The index of the bias of a distance (position of the key minus that of the query): near distances have one each, far ones
    share them on a logarithmic scale. ``both_ways`` (encoder): half of the biases are for later keys, which a decoder
    ignores."""
    buckets, first = BUCKETS, 0
    if both_ways:
        buckets //= 2
        first = buckets if distance > 0 else 0
        distance = abs(distance)
    else:
        distance = max(-distance, 0)
    near = buckets // 2
    if distance < near:
        return first + distance
    far = math.log(distance / near) / math.log(FARTHEST / near) * (buckets - near)
    return first + min(near + int(far + 1e-9), buckets - 1)
