"""Encoder-decoders: the Transformer of "Attention Is All You Need", and Whisper, whose encoder reads sound."""

from __future__ import annotations

import math
from typing import Any

from dnnc.zoo.attention import attention, causal_mask, padding_mask
from dnnc.zoo.convolutions import convolution
from dnnc.zoo.faults import OddFrames, OddWidth
from dnnc.zoo.graph import Graph
from dnnc.zoo.spec import Options, Value
from ir.core.diagnostics import Fault
from ir.core.types import DType

EPSILON = 1e-5


def even_width(values: dict[str, Value]) -> list[Fault]:
    """``hidden`` must be even and at least 4: a position has as many sines as cosines."""
    hidden = int(values["hidden"])
    return [] if hidden % 2 == 0 and hidden > 2 else [OddWidth(hidden)]


def even_frames(values: dict[str, Value]) -> list[Fault]:
    """``frames`` must be even, since the second convolution halves it."""
    frames = int(values["frames"])
    return [] if frames % 2 == 0 else [OddFrames(frames)]


def transformer(graph: Graph, o: Options) -> list[str]:
    """The Transformer (Vaswani et al. 2017): post-norm, ReLU, sinusoidal positions, and one embedding table for encoder,
    decoder and head; embeddings are multiplied by sqrt(hidden). Its dropout is left out."""
    batch, hidden, vocab = o["batch"], o["hidden"], o["vocab"]
    ids = graph.input("input_ids", (batch, o["seq"]), DType.I64)
    is_token = graph.input("attention_mask", (batch, o["seq"]), DType.I64)
    targets = graph.input("decoder_input_ids", (batch, o["target_seq"]), DType.I64)
    words = graph.weight("embedding.weight", (vocab, hidden), 1 / math.sqrt(hidden))
    padding, root = padding_mask(graph, is_token), graph.fill("embedding.root", math.sqrt(hidden))

    def embedded(side: str, tokens: str, length: int) -> str:
        value = graph.op("Gather", f"{side}.words", [words, tokens], (batch, length, hidden), axis=0)
        value = graph.op("Mul", f"{side}.scaled", [value, root], graph.shape(value))
        return graph.add(f"{side}.embedding", value, _positions(graph, f"{side}.positions", length, hidden, hidden // 2))

    value = embedded("encoder", ids, o["seq"])
    for number in range(o["layers"]):
        name = f"encoder.layers.{number}"
        value = _add_norm(graph, f"{name}.self", value, _attend(graph, f"{name}.self", value, value, o, padding))
        value = _add_norm(graph, f"{name}.ffn", value, _feed_forward(graph, f"{name}.ffn", value, o, "Relu"))
    memory, mask = value, causal_mask(graph, o["target_seq"])
    value = embedded("decoder", targets, o["target_seq"])
    for number in range(o["layers"]):
        name = f"decoder.layers.{number}"
        value = _add_norm(graph, f"{name}.self", value, _attend(graph, f"{name}.self", value, value, o, mask))
        value = _add_norm(graph, f"{name}.cross", value, _attend(graph, f"{name}.cross", value, memory, o, padding))
        value = _add_norm(graph, f"{name}.ffn", value, _feed_forward(graph, f"{name}.ffn", value, o, "Relu"))
    return [graph.tied("head", value, words)]


def whisper(graph: Graph, o: Options) -> list[str]:
    """Whisper (Radford et al. 2022): two convolutions over the frames of a spectrum, of which the second halves their number,
    then encoder and decoder with pre-norm and exact GELU; the head is tied to the embedding."""
    batch, hidden, seq = o["batch"], o["hidden"], o["seq"]
    spectrum = graph.input("input_features", (batch, o["mels"], o["frames"]))
    targets = graph.input("decoder_input_ids", (batch, seq), DType.I64)
    value = spectrum
    for number, stride in ((1, 1), (2, 2)):
        value = convolution(graph, f"encoder.conv{number}", value, hidden, 3, stride=stride, pad=1)
        value = graph.op("Gelu", f"encoder.gelu{number}", [value], graph.shape(value), approximate="none")
    value = graph.transpose("encoder.rows", value, [0, 2, 1])
    length = graph.shape(value)[1]
    value = graph.add("encoder.embedding", value, _positions(graph, "encoder.positions", length, hidden, hidden // 2 - 1))
    for number in range(o["layers"]):
        name = f"encoder.layers.{number}"
        normed = graph.layer_norm(f"{name}.self.norm", value, EPSILON)
        value = graph.add(f"{name}.self", value, _attend(graph, f"{name}.self", normed, normed, o, "", key_bias=False))
        normed = graph.layer_norm(f"{name}.ffn.norm", value, EPSILON)
        value = graph.add(f"{name}.ffn", value, _feed_forward(graph, f"{name}.ffn", normed, o, "Gelu"))
    memory, mask = graph.layer_norm("encoder.norm", value, EPSILON), causal_mask(graph, seq)
    words = graph.weight("decoder.embedding.weight", (o["vocab"], hidden), 1 / math.sqrt(hidden))
    value = graph.op("Gather", "decoder.words", [words, targets], (batch, seq, hidden), axis=0)
    table = graph.weight("decoder.positions.weight", (o["positions"], hidden), 0.3)
    places = graph.integers("decoder.places", list(range(seq)))
    value = graph.add(
        "decoder.embedding", value, graph.op("Gather", "decoder.positions", [table, places], (seq, hidden), axis=0)
    )
    for number in range(o["layers"]):
        name = f"decoder.layers.{number}"
        normed = graph.layer_norm(f"{name}.self.norm", value, EPSILON)
        value = graph.add(f"{name}.self", value, _attend(graph, f"{name}.self", normed, normed, o, mask, key_bias=False))
        normed = graph.layer_norm(f"{name}.cross.norm", value, EPSILON)
        value = graph.add(f"{name}.cross", value, _attend(graph, f"{name}.cross", normed, memory, o, "", key_bias=False))
        normed = graph.layer_norm(f"{name}.ffn.norm", value, EPSILON)
        value = graph.add(f"{name}.ffn", value, _feed_forward(graph, f"{name}.ffn", normed, o, "Gelu"))
    return [graph.tied("head", graph.layer_norm("decoder.norm", value, EPSILON), words)]


def _attend(graph: Graph, name: str, value: str, memory: str, o: Options, mask: str, *, key_bias: bool = True) -> str:
    """Multi-head attention of ``value`` to ``memory`` with its four projections."""
    q, k, v = (
        graph.linear(f"{name}.{part}", source, o["hidden"], bias=key_bias or part != "k")
        for part, source in (("q", value), ("k", memory), ("v", memory))
    )
    return graph.linear(f"{name}.out", attention(graph, f"{name}.attention", q, k, v, o["heads"], mask), o["hidden"])


def _feed_forward(graph: Graph, name: str, value: str, o: Options, kind: str) -> str:
    wide = graph.linear(f"{name}.fc1", value, o["ffn"])
    exact: dict[str, Any] = {"approximate": "none"} if kind == "Gelu" else {}
    wide = graph.op(kind, f"{name}.act", [wide], graph.shape(wide), **exact)
    return graph.linear(f"{name}.fc2", wide, o["hidden"])


def _add_norm(graph: Graph, name: str, value: str, part: str) -> str:
    return graph.layer_norm(f"{name}.norm", graph.add(f"{name}.sum", value, part), EPSILON)


def _positions(graph: Graph, name: str, length: int, hidden: int, last: int) -> str:
    """``[length, hidden]``: for each position p, sin(p * s_i) for all i, then cos(p * s_i), where s_i = 10,000 ** (-i / last),
    in single precision. ``last``: hidden / 2 in the Transformer, hidden / 2 - 1 in Whisper."""
    half = hidden // 2
    places = graph.floats(f"{name}.places", [float(place) for place in range(length)], (length, 1))
    speeds = graph.floats(f"{name}.speeds", [10_000 ** (-i / last) for i in range(half)], (half,))
    angles = graph.op("Mul", f"{name}.angles", [places, speeds], (length, half), DType.F32)
    waves = [graph.op(kind, f"{name}.{kind.lower()}", [angles], (length, half), DType.F32) for kind in ("Sin", "Cos")]
    return graph.cast(name, graph.op("Concat", f"{name}.f32", waves, (length, hidden), DType.F32, axis=1), graph.dtype)
