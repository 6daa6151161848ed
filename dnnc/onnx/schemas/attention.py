"""Result types of ONNX Runtime's own attention ops.

In the shapes, B is the batch, S the length of the query, L of the keys, P of the past, T a number of tokens, H heads (Hkv of
keys and values), D the width of a head (Dv of values), I the input width.
"""

from __future__ import annotations

from dnnc.onnx.schemas.node import Node, Rule, Shape, UnknownError, part, plus, ranked, times
from ir.core.types import Dim


def _packed_attention(past: int) -> Rule:
    """Attention and QAttention(input [B, S, I], weights [I, 3 H D], ..): [B, S, H D], and the cache [2, B, H, P + S, D]."""

    def rule(node: Node) -> list[Shape]:
        batch, length, _ = ranked(node.shape(0), 3)
        sizes = node.listed("qkv_hidden_sizes")
        width = ranked(node.shape(1), 2)[1]
        hidden = sizes[2] if sizes else part(width, 3)
        heads = node.number("num_heads")
        if node.present(past) and node.number("past_present_share_buffer", 0):
            return [(batch, length, hidden), node.shape(past)]
        total = plus(ranked(node.shape(past), 5)[3], length) if node.present(past) else length
        return [(batch, length, hidden), (2, batch, heads, total, part(sizes[0] if sizes else hidden, heads))]

    return rule


def _tokens_attention(node: Node) -> list[Shape]:
    """PackedAttention(input [T, I], weights [I, 3 H D], ..): [T, H D]."""
    sizes = node.listed("qkv_hidden_sizes")
    return [(ranked(node.shape(0), 2)[0], sizes[2] if sizes else part(node.shape(1)[1], 3))]


def _tokens_multi_head(node: Node) -> list[Shape]:
    """PackedMultiHeadAttention(query [T, H D], key, value) or ([T, H, 3, D]): [T, H Dv]."""
    query = ranked(node.shape(0), 2, 4)
    if len(query) == 4:
        return [(query[0], times(query[3], node.number("num_heads")))]
    return [(query[0], node.shape(2)[1])]


def _multi_head(node: Node) -> list[Shape]:
    """MultiHeadAttention(query [B, S, H D], key, value [B, L, H D] or [B, H, L, D], .., past key [B, H, P, D], ..); all three
    may be packed [B, S, H, 3, D], or key and value [B, L, H, 2, D]."""
    heads = node.number("num_heads")
    query = ranked(node.shape(0), 3, 5)
    if len(query) == 5:
        length, width, value_width = query[1], query[4], query[4]
    else:
        width = part(query[2], heads)
        key = node.shape(1)
        if len(key) == 5:
            length, value_width = key[1], key[4]
        else:
            value = ranked(node.shape(2), 3, 4)
            value_width = value[3] if len(value) == 4 else part(value[2], heads)
            length = key[2] if len(key) == 4 else key[1]
    output = (query[0], query[1], times(value_width, heads))
    if node.present(6) and node.present(8):  # the cache has its final length and is written in place
        keys, values = node.shape(6), node.shape(7)
        return [output, keys, values, (query[0], heads, query[1], None)]
    total = plus(ranked(node.shape(6), 4)[2], length) if node.present(6) else length
    cached = (query[0], heads, total)
    return [output, (*cached, width), (*cached, value_width), (query[0], heads, query[1], total)]


def _masked_multi_head(node: Node) -> list[Shape]:
    """DecoderMaskedMultiHeadAttention(query [B, 1, H D], key, value, .., past key (5), past value, ..)."""
    query = ranked(node.shape(0), 3)
    value = node.shape(2) if node.present(2) else ()
    hidden = value[2] if len(value) == 3 else query[2] if node.present(2) else part(query[2], 3)
    output = (*query[:2], hidden)
    if not node.present(5):
        return [output]
    keys, values = node.shape(5), node.shape(6)
    if not node.number("past_present_share_buffer", 0):
        keys, values = ((*past[:2], plus(past[2], query[1]), *past[3:]) for past in (keys, values))
    return [output, keys, values]


def _linear_attention(node: Node) -> list[Shape]:
    """LinearAttention(query [B, L, H D], key, value [B, L, Hkv Dv], ..): [B, L, H Dv], and the state [B, Hkv, D, Dv]."""
    heads, kv_heads = node.number("q_num_heads"), node.number("kv_num_heads")
    batch, length, hidden = ranked(node.shape(0), 3)
    width, value_width = part(hidden, heads), part(node.shape(2)[2], kv_heads)
    if not node.present(3):
        node.set_element(1, node.element(0))
    return [(batch, length, times(value_width, max(heads, kv_heads))), (batch, kv_heads, width, value_width)]


def _causal_conv(node: Node) -> list[Shape]:
    """CausalConvWithState(input [B, C, L], weight [C, 1, K], ..): the input's shape, and its last elements [B, C, K - 1]."""
    if node.number("channels_last", 0) or node.number("dilation", 1) != 1 or node.present(3):
        return [node.shape(0), *([node.shape(3)] if node.present(3) else [])]
    x, kernel = ranked(node.shape(0), 3), node.shape(1)[-1]
    return [x, (*x[:2], plus(kernel, -1))]


def _grouped_query(node: Node) -> list[Shape]:
    """GroupQueryAttention(query [B, S, H D], key, value, past key [B, Hkv, P, D], past value, lengths, total length, ..), or
    all three packed [B, S, (H + 2 Hkv) D]. The new cache has length max(P, total length)."""
    heads, kv_heads = node.number("num_heads"), node.number("kv_num_heads")
    batch, length, hidden = ranked(node.shape(0), 3)
    width = part(hidden, heads) if node.present(1) else part(hidden, heads + 2 * kv_heads)
    past = ranked(node.shape(3), 4) if node.present(3) else ()
    total = _cache_length(past[2] if past else 0, length, _total(node, 6))
    if not past:
        for result in (1, 2):
            node.set_element(result, node.element(0))
    cached = (batch, kv_heads, total, past[3] if past else width)
    return [(batch, length, times(width, heads)), cached, cached, (batch, heads, length, total)]


def _total(node: Node, operand: int) -> Dim:
    """The value of the operand that holds the total length, or its symbol; None where neither is known."""
    try:
        return node.numbers(operand)[0]
    except UnknownError:
        symbolic = node.context.get_symbolic_input(operand)
    if symbolic is None or len(symbolic.dim) != 1:
        return None
    return symbolic.dim[0].dim_value if symbolic.dim[0].HasField("dim_value") else symbolic.dim[0].dim_param or None


def _cache_length(past: Dim, length: Dim, total: Dim) -> Dim:
    """The length of a cache of length ``past`` after ``length`` more tokens, ``total`` in all: max(past, total); None if
    unknown."""
    if isinstance(past, int) and isinstance(total, int):
        return max(past, total)
    if total is not None and not isinstance(past, int):
        return total  # a cache of symbolic length is assumed to grow
    return length if past == 0 else None


def _sparse_attention(node: Node) -> list[Shape]:
    """SparseAttention(query, key, value, past key, past value, ..); the caches have their final length."""
    heads, kv_heads = node.number("num_heads"), node.number("kv_num_heads")
    batch, length, hidden = ranked(node.shape(0), 3)
    width = part(hidden, heads) if node.present(1) else part(hidden, heads + 2 * kv_heads)
    return [(batch, length, times(width, heads)), node.shape(3), node.shape(4)]


RULES: dict[str, Rule] = {
    "com.microsoft.Attention": _packed_attention(4),
    "com.microsoft.CausalConvWithState": _causal_conv,
    "com.microsoft.DecoderMaskedMultiHeadAttention": _masked_multi_head,
    "com.microsoft.GroupQueryAttention": _grouped_query,
    "com.microsoft.LinearAttention": _linear_attention,
    "com.microsoft.MultiHeadAttention": _multi_head,
    "com.microsoft.PackedAttention": _tokens_attention,
    "com.microsoft.PackedMultiHeadAttention": _tokens_multi_head,
    "com.microsoft.QAttention": _packed_attention(8),
    "com.microsoft.SparseAttention": _sparse_attention,
}
"""``DOMAIN.OPERATOR`` -> the rule of its result types."""
