"""T5: an encoder and a decoder; all layers of each share its relative position biases."""

from __future__ import annotations

import math

from dnnc.zoo.attention import attention, cached_attention, padding_mask
from dnnc.zoo.cache import FORMATS, step_length
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


def step_lengths(values: dict[str, Value]) -> list[Fault]:
    """``target_seq``: if 0, ``seq``, or 1 with caches; ``context``: if 0, ``seq``."""
    return step_length(int(values["seq"]), int(values["seq"]), "target_seq")(values)


def t5(graph: Graph, o: Options) -> list[str]:
    """T5 (Raffel et al. 2019, section 3.1.2 and the released checkpoints): pre-norm without biases, scores that are not
    scaled. Version 1.0 has ReLU and a head tied to the embedding, which scales its input by ``hidden ** -0.5``; version 1.1
    (Shazeer 2020; released later) gates with GELU and has a head of its own.

    With caches it is two models over the same weights. ``cache=cross``: the encoder, whose outputs are the keys and values that
    the decoder's cross-attention reads, ``present.{i}.encoder.key`` and ``.value``, ``[batch, heads, seq, width]``.
    ``cache=concat|inplace``: the decoder, which reads them as ``past_key_values.{i}.encoder.key`` and ``.value`` and never
    writes them; its own caches are called ``{i}.decoder.key`` and ``.value``."""
    shared = graph.weight("shared.weight", (o["vocab"], o["hidden"]), 1.0)
    kind = o.word("cache")
    if kind in ("none", "cross"):
        ids = graph.input("input_ids", (o["batch"], o["seq"]), DType.I64)
        mask = graph.input("attention_mask", (o["batch"], o["seq"]), DType.I64)
        targets = "" if kind == "cross" else graph.input("decoder_input_ids", (o["batch"], o["target_seq"]), DType.I64)
        padding = padding_mask(graph, mask)
        memory = _encoder(graph, o, shared, ids, padding)
        if kind == "cross":
            return [_cross(graph, o, memory, number, part) for number in range(o["layers"]) for part in ("key", "value")]
        return _decoder(graph, o, shared, targets, padding, memory)
    targets = graph.input("input_ids", (o["batch"], o["target_seq"]), DType.I64)
    padding = padding_mask(graph, graph.input("encoder_attention_mask", (o["batch"], o["seq"]), DType.I64), name="cross_mask")
    return _decoder(graph, o, shared, targets, padding, "")


def _encoder(graph: Graph, o: Options, shared: str, ids: str, padding: str) -> str:
    """``[batch, seq, hidden]``."""
    batch, seq = o["batch"], o["seq"]
    value = graph.op("Gather", "encoder.embed", [shared, ids], (batch, seq, o["hidden"]), axis=0)
    bias = _position_bias(graph, "encoder", seq, o["heads"], both_ways=True)
    bias = graph.op("Add", "encoder.bias", [bias, padding], (batch, o["heads"], seq, seq))
    for number in range(o["layers"]):
        name = f"encoder.block.{number}"
        q, k, v = _projected(graph, f"{name}.self", value, o)
        mixed = attention(graph, f"{name}.self.attention", q, k, v, o["heads"], bias, scaled=False)
        value = _added(graph, f"{name}.self", value, mixed)
        value = _feed_forward(graph, f"{name}.ff", value, o)
    return graph.rms_norm("encoder.final_layer_norm", value, EPSILON)


def _decoder(graph: Graph, o: Options, shared: str, ids: str, padding: str, memory: str) -> list[str]:
    """The logits, and the decoder's caches after the step. ``memory``: the encoder's result; without it the caches of
    cross-attention are inputs."""
    batch, hidden, heads, rows = o["batch"], o["hidden"], o["heads"], o["target_seq"]
    width = hidden // heads
    value = graph.op("Gather", "decoder.embed", [shared, ids], (batch, rows, hidden), axis=0)
    itself = FORMATS[o.word("cache")](
        graph, o, layers=o["layers"], heads=heads, kv_heads=heads, width=width, rows=rows,
        scaled=False, positions=True, prefix="" if memory else "decoder.",
    )  # fmt: skip
    crosses = [] if memory else [
        [graph.input(f"past_key_values.{number}.encoder.{part}", (batch, heads, o["seq"], width)) for part in ("key", "value")]
        for number in range(o["layers"])
    ]  # fmt: skip
    if itself.position_ids:
        itself.bias("decoder.bias", _step_bias(graph, "decoder", o["context"], itself.position_ids, heads))
    else:
        itself.bias("decoder.bias", _position_bias(graph, "decoder", rows, heads, both_ways=False))
    for number in range(o["layers"]):
        name = f"decoder.block.{number}"
        mixed = itself.attend(f"{name}.self.attention", number, *_projected(graph, f"{name}.self", value, o))
        value = _added(graph, f"{name}.self", value, mixed)
        if memory:
            q, k, v = _projected(graph, f"{name}.cross", value, o, memory)
            mixed = attention(graph, f"{name}.cross.attention", q, k, v, heads, padding, scaled=False)
        else:
            q = _query(graph, f"{name}.cross", value, o)[0]
            keys, values = crosses[number]
            mixed = cached_attention(graph, f"{name}.cross.attention", q, keys, values, padding, scaled=False)
        value = _added(graph, f"{name}.cross", value, mixed)
        value = _feed_forward(graph, f"{name}.ff", value, o)
    value = graph.rms_norm("decoder.final_layer_norm", value, EPSILON)
    if o.word("version") == "1.1":
        return [graph.linear("logits", value, o["vocab"], bias=False), *itself.presents]
    scale = graph.fill("lm_head.scale", hidden**-0.5)
    value = graph.op("Mul", "lm_head.scaled", [value, scale], graph.shape(value))
    return [graph.tied("lm_head", value, shared), *itself.presents]


def _query(graph: Graph, name: str, value: str, o: Options) -> tuple[str, str]:
    """The query of the norm of ``value``, and the norm. The initial query weights are smaller by sqrt(width of a head), which
    replaces the scaling of scores."""
    normed = graph.rms_norm(f"{name}.layer_norm", value, EPSILON)
    return graph.linear(f"{name}.q", normed, o["hidden"], 1 / math.sqrt(o["hidden"] // o["heads"]), bias=False), normed


def _projected(graph: Graph, name: str, value: str, o: Options, memory: str = "") -> tuple[str, str, str]:
    """Query, key and value of the norm of ``value``; key and value of ``memory`` if there is one."""
    query, normed = _query(graph, name, value, o)
    key, other = (graph.linear(f"{name}.{part}", memory or normed, o["hidden"], bias=False) for part in "kv")
    return query, key, other


def _cross(graph: Graph, o: Options, memory: str, number: int, part: str) -> str:
    """A cache of cross-attention: keys or values of the encoder's result for layer ``number`` of the decoder."""
    projected = graph.linear(f"decoder.block.{number}.cross.{part[0]}", memory, o["hidden"], bias=False)
    split = (o["batch"], o["seq"], o["heads"], o["hidden"] // o["heads"])
    by_head = graph.reshape(f"decoder.block.{number}.cross.{part}.heads", projected, split)
    return graph.transpose(f"present.{number}.encoder.{part}", by_head, [0, 2, 1, 3])


def _added(graph: Graph, name: str, value: str, mixed: str) -> str:
    return graph.add(f"{name}.residual", value, graph.linear(f"{name}.o", mixed, graph.shape(value)[-1], bias=False))


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


def _step_bias(graph: Graph, name: str, context: int, position_ids: str, heads: int) -> str:
    """``[batch, heads, rows, context]``: the biases of a step whose tokens have these positions, for all positions of a cache.
    Of keys behind the query, which a mask hides, it is that of distance 0."""
    weight = graph.weight(f"{name}.relative_attention_bias.weight", (BUCKETS, heads), 0.5)
    batch, rows = graph.shape(position_ids)
    numbers = graph.integers(f"{name}.buckets", [bucket(-back, both_ways=False) for back in range(context)])
    picked = graph.op("Gather", f"{name}.biases", [weight, numbers], (context, heads), axis=0)
    column = graph.op(
        "Unsqueeze", f"{name}.queries", [position_ids, graph.integers("axis.2", [2])], (batch, rows, 1), DType.I64
    )
    keys = graph.integers(f"places.{context}", list(range(context)))
    shape = (batch, rows, context)
    back = graph.op("Sub", f"{name}.distances", [column, keys], shape, DType.I64)
    back = graph.op("Max", f"{name}.back", [back, graph.integers("zero", [0], scalar=True)], shape, DType.I64)
    biases = graph.op("Gather", f"{name}.by_place", [picked, back], (*shape, heads), axis=0)
    return graph.transpose(f"{name}.position_bias", biases, [0, 3, 1, 2])


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
