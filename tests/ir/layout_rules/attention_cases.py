"""Instances of fused attention and rotary embedding."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.ir.layout_rules.harness import Array, Case
from tests.ir.layout_rules.making import Maker


def trained_attention(m: Maker) -> Case:
    """Attention as it trains: without a cap of scores and caches, which inference has."""
    return attention(m, ("plain",), ({},))


def attention(
    m: Maker,
    forms: tuple[str, ...] = ("plain", "plain", "past", "lengths"),
    caps: tuple[dict[str, Any], ...] = ({}, {"softcap": 5.0}),
) -> Case:
    batch, shared, repeat, rows, keys, width = (
        m.length(1, 2, 4),
        m.pick(1, 2, 4),
        m.pick(1, 2),
        m.length(1, 2, 4),
        m.length(2, 3),
        4,
    )
    shapes = [(batch, shared * repeat, rows, width), (batch, shared, keys, width), (batch, shared, keys, width)]
    form = m.pick(*forms)
    attributes: dict[str, Any] = dict(m.pick(*caps))
    past = 3 if form == "past" else 0
    masked = m.floats(*m.broadcast((batch, shared * repeat)), rows, keys + past) if m.flag() else None
    caches = [m.floats(batch, shared, past, width) if past else None for _ in range(2)]
    more = [*caches, m.random.integers(1, keys + 1, batch)] if form == "lengths" else caches if past else []
    results, opset = (3 if past else 1), (24 if form == "lengths" else 23)
    if m.flag():
        attributes |= {"is_causal": int(m.flag() and form != "lengths")}
        operands = [*(m.floats(*shape) for shape in shapes), masked, *more]
        return Case("onnx.Attention", operands, attributes, results=results, opset=opset)
    flat = [m.floats(b, length, heads * width) for b, heads, length, width in shapes]
    attributes |= {"q_num_heads": shared * repeat, "kv_num_heads": shared}
    return Case("onnx.Attention", [*flat, masked, *more], attributes, results=results, opset=opset)


def multi_head(m: Maker) -> Case:
    batch, heads, rows, keys, width = m.length(1, 2, 4), m.pick(1, 2, 4), m.length(2, 3), m.length(2, 3), 4
    hidden = heads * width
    added = m.floats(m.pick(1, batch), m.pick(1, heads), rows, keys) if m.flag() else None
    form = m.pick("flat", "flat", "keys by heads", "cached")
    q = m.floats(batch, rows, hidden)
    if form == "keys by heads":
        k, v = (m.floats(batch, heads, keys, width) for _ in range(2))
        return Case("onnx.com.microsoft.MultiHeadAttention", [q, k, v, None, None, added], {"num_heads": heads})
    if form == "cached":
        k, v = (m.floats(batch, rows, hidden) for _ in range(2))
        past = [m.floats(batch, heads, 3, width) for _ in range(2)]
        operands: list[Array | None] = [q, k, v, None, None, None, *past]
        return Case("onnx.com.microsoft.MultiHeadAttention", operands, {"num_heads": heads}, results=3)
    k, v = m.floats(batch, keys, hidden), m.floats(batch, keys, hidden)
    bias = m.floats(3 * hidden) if m.flag() else None
    mask = m.random.integers(1, keys + 1, batch).astype(np.int32) if m.flag() else None
    return Case("onnx.com.microsoft.MultiHeadAttention", [q, k, v, bias, mask, added], {"num_heads": heads})


def masked_multi_head(m: Maker) -> Case:
    batch, heads, width, past = m.length(1, 2, 4), m.pick(2, 4), 4, 5
    token = [m.floats(batch, 1, heads * width) for _ in range(3)]
    caches = [m.floats(batch, heads, past, width) for _ in range(2)]
    given = {"num_heads": heads, "past_present_share_buffer": 1}
    operands = [*token, None, None, *caches, np.array([3], np.int32)]
    return Case("onnx.com.microsoft.DecoderMaskedMultiHeadAttention", [*operands], given, results=3)


def packed_attention(m: Maker) -> Case:
    batch, heads, rows, width = m.length(1, 2, 4), m.pick(1, 2), 3, 4
    hidden = heads * width
    kept, lengths = m.random.integers(0, 2, (batch, rows)), m.random.integers(1, rows + 1, batch)
    masks = (None, kept.astype(np.int32), lengths.astype(np.int32))
    operands = [m.floats(batch, rows, 5), m.floats(5, 3 * hidden), m.floats(3 * hidden)]
    if m.flag():
        return Case("onnx.com.microsoft.Attention", [*operands, m.pick(*masks)], {"num_heads": heads})
    past = m.floats(2, batch, heads, 4, width)
    return Case("onnx.com.microsoft.Attention", [*operands, None, past], {"num_heads": heads, "unidirectional": 1}, results=2)


def quantised_attention(m: Maker) -> Case:
    batch, heads, rows, width = m.length(1, 2, 4), m.pick(1, 2), 3, 4
    hidden = heads * width
    scale, point = np.asarray(np.float32(0.02)), np.asarray(np.uint8(128))
    x, w = (np.asarray(m.random.integers(0, 256, shape), np.uint8) for shape in ((batch, rows, 5), (5, 3 * hidden)))
    past = [m.floats(2, batch, heads, 4, width)] if m.flag() else []
    operands = [x, w, m.floats(3 * hidden), scale, scale, None, point, point, *past]
    given = {"num_heads": heads, "unidirectional": len(past)}
    return Case("onnx.com.microsoft.QAttention", [*operands], given, results=1 + len(past))


def grouped_query(m: Maker) -> Case:
    """A prompt without a past, one token behind a past, or several tokens of each sample behind pasts of unlike lengths, in
    caches of final length."""
    shared, repeat, width = m.pick(1, 2, 4), m.pick(1, 2, 4), 16
    form = m.pick("prompt", "appended", "in place")
    batch, heads = m.length(1, 2, 4), shared * repeat
    rows = {"prompt": m.pick(2, 3), "appended": 1, "in place": m.pick(1, 2)}[form]
    past = {"prompt": 0, "appended": 3, "in place": 7}[form]
    total = past if form == "in place" else rows + past
    if m.pick("apart", "apart", "packed") == "packed":
        given: list[Array | None] = [m.floats(batch, rows, (heads + 2 * shared) * width), None, None]
    else:
        given = [m.floats(batch, rows, heads * width), *(m.floats(batch, rows, shared * width) for _ in range(2))]
    caches = [m.floats(batch, shared, past, width) if past else None for _ in range(2)]
    lasts = m.random.integers(rows - 1, total, batch) if form == "in place" else np.full(batch, total - 1)
    lengths = [lasts.astype(np.int32), np.asarray(np.int32(total))]
    rotary = m.flag()
    angles: list[Array | None] = [m.floats(9, width // 2), m.floats(9, width // 2)] if rotary else [None, None]
    added = m.floats(m.pick(1, batch), m.pick(1, heads), rows, total) if m.flag() else None
    sink = m.floats(heads) if m.flag() else None
    attributes: dict[str, Any] = {"num_heads": heads, "kv_num_heads": shared, "do_rotary": int(rotary)}
    attributes |= m.pick({}, {"local_window_size": 2}, {"softcap": 5.0})
    operands = [*given, *caches, *lengths, *angles, None, added, sink]
    if form == "in place":
        operands += [None] * 4 + [np.full(batch, rows, np.int32)]
    return Case("onnx.com.microsoft.GroupQueryAttention", operands, attributes, results=3)


def tensor_scatter(m: Maker) -> Case:
    batch, heads, room, rows, width = m.length(1, 2, 4), m.length(1, 2, 4), 6, m.pick(1, 2, 3), m.length(1, 2, 4)
    shape = [batch, heads, width]
    axis = m.pick(1, 2, 3)
    before, after = [*shape], [*shape]
    before.insert(axis, room)
    after.insert(axis, rows)
    mode = m.pick("linear", "circular")
    positions = m.random.integers(0, room - rows + 1 if mode == "linear" else room, batch)
    attributes = {"axis": axis - m.pick(0, 4), "mode": mode}
    return Case("onnx.TensorScatter", [m.floats(*before), m.floats(*after), positions], attributes, opset=24)


def linear_attention(m: Maker) -> Case:
    batch, rows, heads, width = m.length(), 3, m.pick(1, 2), 4
    operands: list[Array | None] = [m.floats(batch, rows, heads * width) for _ in range(3)]
    operands += [m.floats(batch, heads, width, width)] if m.flag() else []
    given = {"q_num_heads": heads, "kv_num_heads": heads, "update_rule": "linear"}
    return Case("onnx.com.microsoft.LinearAttention", operands, given, results=2)


def causal_conv(m: Maker) -> Case:
    batch, channels, length = m.length(), m.length(), 5
    operands: list[Array | None] = [m.floats(batch, channels, length), m.floats(channels, 1, 3)]
    operands += [m.floats(channels) if m.flag() else None, m.floats(batch, channels, 2) if m.flag() else None]
    return Case("onnx.com.microsoft.CausalConvWithState", operands, {"activation": m.pick("none", "silu")}, results=2)


def rotary(m: Maker) -> Case:
    batch, heads, rows, width = m.length(1, 2, 4), m.pick(1, 2, 4), m.length(2, 3, 4), 4
    split, by_position = m.flag(), m.flag()
    x = m.floats(batch, heads, rows, width) if split else m.floats(batch, rows, heads * width)
    caches = [m.floats(*((9,) if by_position else (batch, rows)), width // 2) for _ in range(2)]
    positions = [m.indices(9, batch, rows, low=0)] if by_position else []
    return Case("onnx.RotaryEmbedding", [x, *caches, *positions], {} if split else {"num_heads": heads}, opset=23)


def microsoft_rotary(m: Maker) -> Case:
    batch, heads, rows, width = m.length(1, 2, 4), m.pick(1, 2, 4), m.length(2, 3, 4), 4
    split = m.flag()
    x = m.floats(batch, heads, rows, width) if split else m.floats(batch, rows, heads * width)
    positions = m.pick(np.array([2]), m.indices(9, batch, rows, low=0))
    return Case(
        "onnx.com.microsoft.RotaryEmbedding",
        [x, positions, m.floats(9, 2), m.floats(9, 2)],
        {} if split or m.flag() else {"num_heads": heads},
    )
