"""Scaled dot-product attention as the primitive ops that exporters write, with masks, grouped queries and rotary positions.

Samples, heads and positions are separate dimensions of every value, so that a layout can shard each. Query heads that share
a key head (grouped queries, Ainslie et al. 2023) are two dimensions, ``[kv_heads, group]``; keys broadcast along the second
one, so they are not copied, and sharding ``kv_heads`` keeps a key head with its group.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dnnc.zoo.graph import ELEMENT, Graph
from ir.core.types import DType

MASKED = -10000.0
"""Added to a masked score: representable in half precision, and its exponential is 0."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """Names of cosines and sines of the angles, ``[seq, 1, width]`` (``[seq, 1, 1, width]`` for grouped heads)."""

    cos: str
    sin: str


def attention(
    graph: Graph,
    name: str,
    query: str,
    key: str,
    value: str,
    heads: int,
    mask: str = "",
    *,
    kv_heads: int = 0,
    scaled: bool = True,
    rotation: Rotation | None = None,
) -> str:
    """Attention of queries ``[batch, seq, heads * width]`` to keys and values ``[batch, other, kv_heads * width]``.

    ``mask`` is added to the scores ``[batch, heads, seq, other]`` (``[batch, kv_heads, group, seq, other]`` when grouped);
    ``scaled`` divides the scores by sqrt(width); ``rotation`` rotates queries and keys by their positions."""
    heads_of = _Heads(graph, name, graph.shape(query), heads, kv_heads or heads)
    queries = heads_of.split("q", query, heads_of.lead, "rows", rotation)
    keys = heads_of.split("k", key, heads_of.shared, "columns", rotation)
    values = heads_of.split("v", value, heads_of.shared, "rows", None)
    return heads_of.mix(queries, keys, values, mask, scaled=scaled)


def cached_attention(
    graph: Graph,
    name: str,
    query: str,
    keys: str,
    values: str,
    mask: str = "",
    *,
    scaled: bool = True,
    rotation: Rotation | None = None,
) -> str:
    """As ``attention``, to keys and values of a cache, ``[batch, kv_heads, positions, width]``, rotated already."""
    batch, kv_heads, positions, width = graph.shape(keys)
    heads_of = _Heads(graph, name, graph.shape(query), graph.shape(query)[2] // width, kv_heads)
    queries = heads_of.split("q", query, heads_of.lead, "rows", rotation)
    if len(heads_of.shared) > 1:
        spread = (batch, *heads_of.shared, positions, width)
        axis = graph.integers("axis.2", [2])
        keys = graph.op("Unsqueeze", f"{name}.k.grouped", [keys, axis], spread)
        values = graph.op("Unsqueeze", f"{name}.v.grouped", [values, axis], spread)
    rank = len(graph.shape(keys))
    columns = graph.transpose(f"{name}.k.columns", keys, [*range(rank - 2), rank - 1, rank - 2])
    return heads_of.mix(queries, columns, values, mask, scaled=scaled)


class _Heads:
    """Splits ``[batch, seq, heads * width]`` by heads, and merges them: ``lead`` are the dimensions of query heads, ``shared``
    those of key heads that broadcast to them."""

    def __init__(self, graph: Graph, name: str, query: tuple[int, ...], heads: int, kv_heads: int) -> None:
        self.graph, self.name = graph, name
        self.batch, self.seq, self.hidden = query
        self.width = self.hidden // heads
        grouped = kv_heads < heads
        self.lead = (kv_heads, heads // kv_heads) if grouped else (heads,)
        self.shared = (kv_heads, 1) if grouped else (heads,)

    def split(self, part: str, x: str, by: tuple[int, ...], order: str, rotation: Rotation | None) -> str:
        """``[batch, *by, length, width]``; with ``order`` "columns" the last two are swapped."""
        name, length = f"{self.name}.{part}", self.graph.shape(x)[1]
        inner = range(2, 2 + len(by))
        x = self.graph.reshape(f"{name}.heads", x, (self.batch, length, *by, self.width))
        x = rotated(self.graph, name, x, rotation) if rotation else x
        last = 2 + len(by)
        return self.graph.transpose(name, x, [0, *inner, *((1, last) if order == "rows" else (last, 1))])

    def mix(self, queries: str, keys: str, values: str, mask: str, *, scaled: bool) -> str:
        """``softmax(queries @ keys + mask) @ values``, ``[batch, seq, heads * width]``."""
        graph, name, width = self.graph, self.name, self.width
        square = (self.batch, *self.lead, self.seq, graph.shape(keys)[-1])
        scores = graph.op("MatMul", f"{name}.scores", [queries, keys], square)
        if scaled:
            scale = graph.fill(f"attention.scale.{width}", 1.0 / math.sqrt(width))
            scores = graph.op("Mul", f"{name}.scaled", [scores, scale], square)
        if mask:
            scores = graph.op("Add", f"{name}.masked", [scores, mask], square)
        weights = graph.op("Softmax", f"{name}.weights", [scores], square, axis=-1)
        mixed = graph.op("MatMul", f"{name}.mixed", [weights, values], (self.batch, *self.lead, self.seq, width))
        last = 2 + len(self.lead)
        swapped = graph.transpose(f"{name}.swapped", mixed, [0, last - 1, *range(1, last - 1), last])
        return graph.reshape(f"{name}.merged", swapped, (self.batch, self.seq, self.hidden))


def rotated(graph: Graph, name: str, value: str, rotation: Rotation) -> str:
    """``value * cos + turned * sin``, where ``turned = concat(-second half, first half)`` of the last dimension."""
    shape = graph.shape(value)
    half = (*shape[:-1], shape[-1] // 2)
    sizes = graph.integers(f"halves.{shape[-1]}", [half[-1]] * 2)
    parts = [(f"{name}.first", half), (f"{name}.second", half)]
    first, second = graph.ops("Split", f"{name}.split", [value, sizes], parts, axis=len(shape) - 1)
    negated = graph.op("Neg", f"{name}.negated", [second], half)
    turned = graph.op("Concat", f"{name}.turned", [negated, first], shape, axis=len(shape) - 1)
    turned_by_cos = graph.op("Mul", f"{name}.cos", [value, rotation.cos], shape)
    moved = graph.op("Mul", f"{name}.sin", [turned, rotation.sin], shape)
    return graph.op("Add", f"{name}.rotated", [turned_by_cos, moved], shape)


def rotation_of(graph: Graph, seq: int, width: int, theta: float, *, grouped: bool, position_ids: str = "") -> Rotation:
    """Rotary position embedding (Su et al. 2021): the angle of pair ``i`` of ``width / 2`` at a position is
    ``position * theta ** (-2 i / width)``, in single precision. The positions are ``0, 1, ..``, or the integers
    ``position_ids``, ``[batch, seq]``."""
    ones = (1, 1) if grouped else (1,)
    if position_ids:
        rows = (*graph.shape(position_ids), *ones)
        places = graph.cast("rotary.positions", position_ids, DType.F32)
        places = graph.reshape("rotary.places", places, (*rows, 1))
    else:
        rows = (seq, *ones)
        places = graph.floats("rotary.places", [float(place) for place in range(seq)], (*rows, 1))
    speeds = graph.floats("rotary.speeds", _speeds(width, theta) * 2, (width,))
    angles = graph.op("Mul", "rotary.angles", [places, speeds], (*rows, width), DType.F32)
    return Rotation(*_waves(graph, angles))


def rotary_tables(graph: Graph, positions: int, width: int, theta: float) -> Rotation:
    """Cosines and sines of ``rotation_of``, of each position and pair: ``[positions, width / 2]``."""
    places = graph.floats("rotary.places", [float(place) for place in range(positions)], (positions, 1))
    speeds = graph.floats("rotary.speeds", _speeds(width, theta), (width // 2,))
    angles = graph.op("Mul", "rotary.angles", [places, speeds], (positions, width // 2), DType.F32)
    return Rotation(*_waves(graph, angles))


def _speeds(width: int, theta: float) -> list[float]:
    return [theta ** (-2 * i / width) for i in range(width // 2)]


def _waves(graph: Graph, angles: str) -> tuple[str, str]:
    shape = graph.shape(angles)
    cos, sin = (graph.op(kind, f"rotary.{kind.lower()}.f32", [angles], shape, DType.F32) for kind in ("Cos", "Sin"))
    return graph.cast("rotary.cos", cos, graph.dtype), graph.cast("rotary.sin", sin, graph.dtype)


def causal_mask(graph: Graph, seq: int, past: int = 0) -> str:
    """``[seq, past + seq]``: a position attends to itself and to earlier positions."""
    shape = (seq, past + seq)
    diagonal = graph.integers(f"diagonal.{past + 1}" if past else "one", [past + 1], scalar=True)
    return graph.op("Trilu", "causal_mask", [graph.fill("masked", MASKED, shape), diagonal], shape, upper=1)


def padding_mask(graph: Graph, is_token: str, ranks: int = 2, name: str = "mask") -> str:
    """``[batch, 1, 1, seq]`` from integers ``[batch, seq]``, 1 for a token and 0 for padding: no position attends to
    padding. ``ranks``: how many dimensions of 1 there are."""
    batch, seq = graph.shape(is_token)
    shape = (batch, *(1,) * ranks, seq)
    spread = graph.reshape(f"{name}.spread", is_token, shape)
    real = graph.op("Cast", f"{name}.cast", [spread], shape, to=ELEMENT[graph.dtype])
    absent = graph.op("Sub", f"{name}.absent", [graph.fill("mask.one", 1.0), real], shape)
    return graph.op("Mul", name, [absent, graph.fill("mask.masked", MASKED)], shape)
