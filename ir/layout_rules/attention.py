"""Layout rules of fused attention and rotary embedding, ONNX's own and ONNX Runtime's.

Samples and heads are parallel. The factor ``heads`` has the number of key and value heads as its size: query heads that share
a key head (grouped queries) stay together. In a dimension ``H D`` a unit is one head, and the attribute that counts heads is
adapted.
"""

from __future__ import annotations

from ir.layout_rules.adapt import LocalAttribute
from ir.layout_rules.draft import Draft, Draw, Place, UnfitError


def attention(draft: Draft) -> None:
    """Attention(Q, K, V, mask, past key, past value): ``[B, H, L, D]``, or ``[B, L, H D]`` with the numbers of heads as
    attributes. Queries are parallel too, unless the mask is causal, which depends on their positions."""
    split = draft.rank(0) == 4
    count = draft.numbers(1)[1] if split else int(draft.get("kv_num_heads"))
    caches: list[Place] = [(4, 0), (5, 0), (-2, 0), (-3, 0), (-4, 0)]
    masks = draft.rank(3) if draft.present(3) else 0
    batch, heads, query = ([(3, -back)] if masks >= back else [] for back in (4, 3, 2))
    draft.tie("batch", (0, 0), (1, 0), (2, 0), *batch, (6, 0), (-1, 0), *caches)
    where = 1 if split else 2
    adapt = tuple(LocalAttribute(key) for key in ("q_num_heads", "kv_num_heads") if draft.get(key))
    cached = [(tensor, 1) for tensor, _ in caches]
    draft.tie("heads", *((i, where) for i in (0, 1, 2, -1)), *heads, *cached, size=count, adapt=adapt)
    if not draft.get("is_causal", 0):
        rows = 2 if split else 1
        draft.tie("query", (0, rows), *query, (-1, rows), (-4, 2))
    if split:
        draft.tie("width", (2, 3), (5, 3), (-1, 3), (-3, 3))
    draft.no_gradient.update({3})


def multi_head(draft: Draft) -> None:
    """com.microsoft.MultiHeadAttention(query [B, L, H D], key, value, bias, padding mask, attention bias [B, H, L, T], past key
    [B, H, P, D], past value, past length); key and value may be [B, H, L, D]. Heads are whole if there is a bias: it is one
    vector for all three projections, in which the heads of a shard are not contiguous."""
    _multi_head(draft, bias=3, mask=4, added=5, past=6)


def masked_multi_head(draft: Draft) -> None:
    """com.microsoft.DecoderMaskedMultiHeadAttention(query [B, 1, H D], key, value, mask, attention bias, past key, past value,
    past length, beam width, beams, bias): as above."""
    if draft.present(9):
        raise UnfitError("beams pick samples")
    _multi_head(draft, bias=10, mask=3, added=4, past=5)


def _multi_head(draft: Draft, *, bias: int, mask: int, added: int, past: int) -> None:
    if draft.present(9) or not draft.present(2) or draft.rank(0) != 3:
        raise UnfitError("beams pick samples, or one operand holds several")
    caches: list[Place] = [(past, 0), (past + 1, 0), (-2, 0), (-3, 0), (-4, 0)]
    draft.tie("batch", (0, 0), (1, 0), (2, 0), *_samples(draft, mask), (added, 0), (-1, 0), *caches)
    if not draft.present(bias):
        given: list[Place] = [(i, 1 if draft.rank(i) == 4 else 2) for i in (0, 1, 2)]
        heads = int(draft.get("num_heads"))
        cached = [(tensor, 1) for tensor, _ in caches]
        adapt = (LocalAttribute("num_heads"),)
        draft.tie("heads", *given, (added, 1), *cached, (-1, 2), size=heads, adapt=adapt)


def _samples(draft: Draft, mask: int) -> list[Place]:
    """The dimension of samples in a mask [B, ..]. Raises UnfitError for a mask of starts and lengths, which is longer than
    B."""
    if draft.present(mask) and draft.rank(mask) == 1 and draft.shape(mask) != draft.shape(0)[:1]:
        raise UnfitError("masked by starts and lengths")
    return [(mask, 0)]


def packed_attention(draft: Draft) -> None:
    """com.microsoft.Attention(input [B, L, I], weights [I, 3 H D], bias, mask, past [2, B, H, P, D], attention bias): samples
    are parallel; heads are whole, since those of a shard are not contiguous in the packed weights."""
    draft.tie("batch", (0, 0), *_samples(draft, 3), (4, 1), (5, 0), (-1, 0), (-2, 1))


def quantised_attention(draft: Draft) -> None:
    """com.microsoft.QAttention(input [B, L, I], weights, bias, scale, scale, mask, zero, zero, past): as above."""
    draft.tie("batch", (0, 0), *_samples(draft, 5), (8, 1), (-1, 0), (-2, 1))


def grouped_query(draft: Draft) -> None:
    """com.microsoft.GroupQueryAttention(query [B, L, H D], key, value [B, L, Hkv D], past key [B, Hkv, P, D], past value,
    lengths [B], total length, cos, sin, positions [B, L], attention bias [B, H, L, T], head sink [H], ..). Heads are
    whole if one operand holds query, key and value, or the cache has scales. A key head that all query heads share is whole,
    with its cache, beside query heads that are not."""
    caches: list[Place] = [(3, 0), (4, 0), (-2, 0), (-3, 0), (-4, 0)]
    draft.tie("batch", (0, 0), (1, 0), (2, 0), (5, 0), (9, 0), (10, 0), (16, 0), (-1, 0), *caches)
    if draft.present(1) and not draft.present(12) and not draft.present(13):
        cached = [(tensor, 1) for tensor, _ in caches]
        adapt = (LocalAttribute("num_heads"), LocalAttribute("kv_num_heads"))
        queries: list[Place] = [(0, 2), (10, 1), (11, 0), (-1, 2)]
        shared = int(draft.get("kv_num_heads"))
        if shared > 1:
            draft.tie("heads", *queries, (1, 2), (2, 2), *cached, size=shared, adapt=adapt)
        else:
            draft.tie("heads", *queries, (-4, 1), size=int(draft.get("num_heads")), adapt=adapt[:1])


def tensor_scatter(draft: Draft) -> None:
    """TensorScatter(cache, update, positions [B]): all dimensions but the axis, along which each sample has a position of its
    own, are parallel."""
    rank = draft.rank(0)
    axis = draft.axis("axis", -2)
    for dim in range(rank):
        if dim != axis:
            positions: list[Place] = [(2, 0)] if dim == 0 else []
            draft.tie("batch" if dim == 0 else f"d{dim}", (0, dim), (1, dim), *positions, (-1, dim))


def linear_attention(draft: Draft) -> None:
    """com.microsoft.LinearAttention(query [B, L, H D], key, value, state [B, Hkv, D, Dv], decay, rate): samples are
    parallel."""
    draft.tie("batch", *((i, 0) for i in range(6)), (-1, 0), (-2, 0))


def causal_conv(draft: Draft) -> None:
    """com.microsoft.CausalConvWithState(input [B, C, L], weight [C, 1, K], bias [C], state [B, C, K - 1]): samples and channels
    are parallel."""
    if draft.get("channels_last", 0) or draft.get("state_channels_last", 0) or draft.get("ndim", 1) != 1 or draft.present(-3):
        raise UnfitError("channels last")
    draft.tie("batch", (0, 0), (3, 0), (-1, 0), (-2, 0))
    draft.tie("channel", (0, 1), (1, 0), (2, 0), (3, 1), (-1, 1), (-2, 1))


def rotary(draft: Draft) -> None:
    """RotaryEmbedding(X [B, H, L, D] or [B, L, H D], cos, sin, positions [B, L]): cos and sin are ``[B, L, D/2]`` without
    positions."""
    _rotary(draft, (1, 2), 3)


def microsoft_rotary(draft: Draft) -> None:
    """com.microsoft.RotaryEmbedding(X, positions [1] or [B, L], cos, sin)."""
    _rotary(draft, (2, 3), 1)


def _rotary(draft: Draft, caches: tuple[int, int], positions: int) -> None:
    if draft.get("is_packed_batching", 0):
        raise UnfitError("samples are packed")
    split = draft.rank(0) == 4
    rows = 2 if split else 1
    by_position = draft.present(positions)
    each: list[int] = [positions] if by_position and draft.rank(positions) == 2 else [] if by_position else list(caches)
    draft.tie("batch", (0, 0), (-1, 0), *((i, 0) for i in each))
    stated = int(draft.get("num_heads", 0))
    adapt = (LocalAttribute("num_heads"),) if stated else ()
    if split:
        draft.tie("heads", (0, 1), (-1, 1), adapt=adapt)
    else:  # cos has D / 2 columns
        count = stated or draft.numbers(0)[2] // (2 * draft.numbers(caches[0])[-1])
        draft.tie("heads", (0, 2), (-1, 2), size=count, adapt=adapt)
    if each:
        draft.tie("place", (0, rows), (-1, rows), *((i, 1) for i in each))


RULES: dict[str, Draw] = {
    "onnx.Attention": attention,
    "onnx.RotaryEmbedding": rotary,
    "onnx.TensorScatter": tensor_scatter,
    "onnx.com.microsoft.Attention": packed_attention,
    "onnx.com.microsoft.CausalConvWithState": causal_conv,
    "onnx.com.microsoft.DecoderMaskedMultiHeadAttention": masked_multi_head,
    "onnx.com.microsoft.GroupQueryAttention": grouped_query,
    "onnx.com.microsoft.LinearAttention": linear_attention,
    "onnx.com.microsoft.MultiHeadAttention": multi_head,
    "onnx.com.microsoft.QAttention": quantised_attention,
    "onnx.com.microsoft.RotaryEmbedding": microsoft_rotary,
}
"""By the op's full name."""
