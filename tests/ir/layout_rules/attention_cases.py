"""Instances of fused attention and rotary embedding."""

from __future__ import annotations

import numpy as np

from tests.ir.layout_rules.harness import Case
from tests.ir.layout_rules.making import Maker


def attention(m: Maker) -> Case:
    batch, shared, repeat, rows, keys, width = (
        m.length(1, 2, 4),
        m.pick(1, 2, 4),
        m.pick(1, 2),
        m.length(1, 2, 4),
        m.length(2, 3),
        4,
    )
    shapes = [(batch, shared * repeat, rows, width), (batch, shared, keys, width), (batch, shared, keys, width)]
    masked = [m.floats(*m.broadcast((batch, shared * repeat)), rows, keys)] if m.flag() else []
    if m.flag():
        return Case(
            "onnx.Attention", [*(m.floats(*shape) for shape in shapes), *masked], {"is_causal": int(m.flag())}, opset=23
        )
    flat = [m.floats(b, length, heads * width) for b, heads, length, width in shapes]
    return Case("onnx.Attention", [*flat, *masked], {"q_num_heads": shared * repeat, "kv_num_heads": shared}, opset=23)


def multi_head(m: Maker) -> Case:
    batch, heads, rows, keys, width = m.length(1, 2, 4), m.pick(1, 2, 4), m.length(2, 3), m.length(2, 3), 4
    q, k, v = m.floats(batch, rows, heads * width), m.floats(batch, keys, heads * width), m.floats(batch, keys, heads * width)
    bias = m.floats(3 * heads * width) if m.flag() else None
    added = m.floats(m.pick(1, batch), m.pick(1, heads), rows, keys) if m.flag() else None
    operands = [q, k, v, bias, None, added]
    return Case("onnx.com.microsoft.MultiHeadAttention", operands, {"num_heads": heads})


def packed_attention(m: Maker) -> Case:
    batch, heads, rows, width = m.length(1, 2, 4), m.pick(1, 2), 3, 4
    hidden = heads * width
    mask = [m.random.integers(0, 2, (batch, rows)).astype(np.int32)] if m.flag() else []
    operands = [m.floats(batch, rows, 5), m.floats(5, 3 * hidden), m.floats(3 * hidden), *mask]
    return Case("onnx.com.microsoft.Attention", [*operands], {"num_heads": heads})


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
