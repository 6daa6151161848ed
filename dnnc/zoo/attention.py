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
    batch, seq, hidden = graph.shape(query)
    other, width = graph.shape(key)[1], hidden // heads
    grouped = 0 < kv_heads < heads
    lead = (kv_heads, heads // kv_heads) if grouped else (heads,)
    shared = (kv_heads, 1) if grouped else (heads,)
    inner = tuple(range(2, 2 + len(lead)))
    last = inner[-1] + 1
    outer = (0, *inner)

    def by_head(part: str, x: str, length: int, split: tuple[int, ...], perm: tuple[int, ...], turns: bool) -> str:
        x = graph.reshape(f"{name}.{part}.heads", x, (batch, length, *split, width))
        x = rotated(graph, f"{name}.{part}", x, rotation) if turns and rotation else x
        return graph.transpose(f"{name}.{part}", x, list(perm))

    queries = by_head("q", query, seq, lead, (*outer, 1, last), True)
    keys = by_head("k", key, other, shared, (*outer, last, 1), True)
    values = by_head("v", value, other, shared, (*outer, 1, last), False)
    square = (batch, *lead, seq, other)
    scores = graph.op("MatMul", f"{name}.scores", [queries, keys], square)
    if scaled:
        scale = graph.fill(f"attention.scale.{width}", 1.0 / math.sqrt(width))
        scores = graph.op("Mul", f"{name}.scaled", [scores, scale], square)
    if mask:
        scores = graph.op("Add", f"{name}.masked", [scores, mask], square)
    weights = graph.op("Softmax", f"{name}.weights", [scores], square, axis=-1)
    mixed = graph.op("MatMul", f"{name}.mixed", [weights, values], (batch, *lead, seq, width))
    swapped = graph.transpose(f"{name}.swapped", mixed, [0, last - 1, *(axis - 1 for axis in inner), last])
    return graph.reshape(f"{name}.merged", swapped, (batch, seq, hidden))


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


def rotation_of(graph: Graph, seq: int, width: int, theta: float, *, grouped: bool) -> Rotation:
    """Rotary position embedding (Su et al. 2021): the angle of pair ``i`` of ``width / 2`` at a position is
    ``position * theta ** (-2 i / width)``, in single precision."""
    ones = (1, 1) if grouped else (1,)
    places = graph.floats("rotary.places", [float(place) for place in range(seq)], (seq, *ones, 1))
    pairs = [theta ** (-2 * i / width) for i in range(width // 2)]
    speeds = graph.floats("rotary.speeds", pairs * 2, (width,))
    shape = (seq, *ones, width)
    angles = graph.op("Mul", "rotary.angles", [places, speeds], shape, DType.F32)
    cos, sin = (graph.op(kind, f"rotary.{kind.lower()}.f32", [angles], shape, DType.F32) for kind in ("Cos", "Sin"))
    return Rotation(graph.cast("rotary.cos", cos, graph.dtype), graph.cast("rotary.sin", sin, graph.dtype))


def causal_mask(graph: Graph, seq: int) -> str:
    """``[seq, seq]``: a position attends to itself and to earlier positions."""
    full = graph.fill("masked", MASKED, (seq, seq))
    return graph.op("Trilu", "causal_mask", [full, graph.integers("one", [1], scalar=True)], (seq, seq), upper=1)


def padding_mask(graph: Graph, is_token: str) -> str:
    """``[batch, 1, 1, seq]`` from integers ``[batch, seq]``, 1 for a token and 0 for padding: no position attends to
    padding."""
    batch, seq = graph.shape(is_token)
    shape = (batch, 1, 1, seq)
    spread = graph.reshape("mask.spread", is_token, shape)
    real = graph.op("Cast", "mask.cast", [spread], shape, to=ELEMENT[graph.dtype])
    absent = graph.op("Sub", "mask.absent", [graph.fill("mask.one", 1.0), real], shape)
    return graph.op("Mul", "mask", [absent, graph.fill("mask.masked", MASKED)], shape)
