"""Layout rules of fused attention and rotary embedding, ONNX's own and ONNX Runtime's.

Samples and heads are apart. Heads that share keys and values (grouped queries) are split by these: the factor's size is the
number of key and value heads. Where heads lie inside a wider dimension, each is a unit of it, and the attribute that counts
them is adapted.
"""

from __future__ import annotations

from ir.layout_rules.adapt import LocalAttribute
from ir.layout_rules.draft import Draft, Draw, Place, UnfitError


def attention(draft: Draft) -> None:
    """Attention(Q, K, V, mask, past key, past value): ``[B, H, L, D]``, or ``[B, L, H D]`` with the heads' numbers as
    attributes. Queries are apart too unless a causal mask counts them."""
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
    """com.microsoft.MultiHeadAttention(query [B, L, H D], key, value, bias, padding mask, attention bias [B, H, L, T]), without
    caches. The bias of all three projections is one vector, in which no shard's heads are contiguous."""
    if any(draft.present(i) for i in (4, 6, 7)) or any(draft.rank(i) != 3 for i in (0, 1, 2)):
        raise UnfitError("packed, padded or cached")
    count = int(draft.get("num_heads"))
    draft.tie("batch", (0, 0), (1, 0), (2, 0), (5, 0), (-1, 0))
    if not draft.present(3):
        places: list[Place] = [(0, 2), (1, 2), (2, 2), (5, 1), (-1, 2)]
        draft.tie("heads", *places, size=count, adapt=(LocalAttribute("num_heads"),))


def packed_attention(draft: Draft) -> None:
    """com.microsoft.Attention(input [B, L, I], weights [I, 3 H D], bias, mask): samples are apart; no shard's heads are
    contiguous in the packed weights."""
    if any(draft.present(i) for i in (4, 6)) or (draft.present(3) and draft.rank(3) != 2):
        raise UnfitError("cached, or masked by lengths")
    draft.tie("batch", (0, 0), (3, 0), (5, 0), (-1, 0))


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
    else:  # heads are as wide as both halves that the caches rotate, unless their number is stated
        count = stated or draft.numbers(0)[2] // (2 * draft.numbers(caches[0])[-1])
        draft.tie("heads", (0, 2), (-1, 2), size=count, adapt=adapt)
    if each:
        draft.tie("place", (0, rows), (-1, rows), *((i, 1) for i in each))


RULES: dict[str, Draw] = {
    "onnx.Attention": attention,
    "onnx.RotaryEmbedding": rotary,
    "onnx.com.microsoft.Attention": packed_attention,
    "onnx.com.microsoft.MultiHeadAttention": multi_head,
    "onnx.com.microsoft.RotaryEmbedding": microsoft_rotary,
}
"""By the op's full name."""

__all__ = ["RULES"]
