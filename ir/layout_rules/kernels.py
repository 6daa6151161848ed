"""Layout rules of losses and of the backward kernels of ``grad``.

A kernel is split like its forward op: a dimension that is parallel there is parallel in the gradient of the input, and a sum in
the gradient of a weight that lacks it. All kernels are linear in their first operand, the incoming gradient.
"""

from __future__ import annotations

from ir.layout_rules.adapt import LocalAttribute
from ir.layout_rules.draft import Draft, Draw, Place, UnfitError
from ir.layout_rules.products import patches
from ir.layout_rules.rule import Kind


def conv_input(draft: Draft) -> None:
    """``dY [N, M, ..], W [M, C / group, kernel..]`` to ``dX [N, C, ..]``."""
    draft.tie("batch", (0, 0), (-1, 0))
    group = int(draft.get("group", 1))
    if group > 1:
        draft.tie("group", (0, 1), (1, 0), (-1, 1), size=group, adapt=(LocalAttribute("group"),))
    else:
        draft.tie("in", (1, 1), (-1, 1))
        draft.tie("out", (0, 1), (1, 0), kind=Kind.SUM)
    patches(draft, draft.numbers(1)[2:], (-1,), 0)
    draft.passes((0,), (1,))


def conv_weight(draft: Draft) -> None:
    """``dY [N, M, ..], X [N, C, ..]`` to ``dW [M, C / group, kernel..]``."""
    draft.tie("batch", (0, 0), (1, 0), kind=Kind.SUM)
    group = int(draft.get("group", 1))
    if group > 1:
        draft.tie("group", (0, 1), (1, 1), (-1, 0), size=group, adapt=(LocalAttribute("group"),))
    else:
        draft.tie("in", (1, 1), (-1, 1))
        draft.tie("out", (0, 1), (-1, 0))
    patches(draft, draft.numbers(-1)[2:], (1,), 0, Kind.SUM)
    draft.passes((0,), (1,))


def pool(draft: Draft) -> None:
    """``dY`` and, for MaxPool, ``X`` to ``dX``: samples and channels are parallel."""
    sources = (1, -1) if draft.present(1) else (-1,)
    for dim, name in enumerate(("batch", "channel")):
        draft.tie(name, (0, dim), *((i, dim) for i in sources))
    patches(draft, draft.get("kernel_shape"), sources, 0)
    draft.passes((0,))


def batch_norm(draft: Draft) -> None:
    """``dY, X, scale`` to ``dX, dscale, dbias``: the statistics are over samples and positions, which are whole."""
    draft.tie("channel", (0, 1), (1, 1), (2, 0), (-1, 1), (-2, 0), (-3, 0))
    draft.passes((0,))


def _rows(*, sums: bool) -> Draw:
    """For LayerNormalization (``dY, X, mean, inverse deviation``) and RMSNormalization (``dY, X``): with the operand ``scale``
    to ``dX``; ``sums``: to ``dscale, dbias``, which sum over the dimensions before the axis."""

    def draw(draft: Draft) -> None:
        rank = draft.rank(0)
        layered = len(draft.operands) > 3  # mean and inverse deviation are operands 2 and 3
        rows = [0, 1, 2, 3] if layered else [0, 1]
        scale = None if sums else 4 if layered else 2
        for dim in range(draft.axis("axis", -1)):
            places: list[Place] = [(i, dim) for i in rows]
            if scale is not None and draft.present(scale) and draft.rank(scale) >= rank - dim:
                places.append((scale, dim - rank))
            if sums:
                draft.tie(f"d{dim}", *places, kind=Kind.SUM)
            else:
                draft.tie(f"d{dim}", *places, (-1, dim))
        draft.passes((0,))

    return draw


def group_norm_input(draft: Draft) -> None:
    """``dY, X, scale`` to ``dX``: statistics of each sample and group of channels."""
    draft.tie("batch", (0, 0), (1, 0), (-1, 0))
    groups = int(draft.get("num_groups"))
    draft.tie("group", (0, 1), (1, 1), (2, 0), (-1, 1), size=groups, adapt=(LocalAttribute("num_groups"),))
    draft.passes((0,))


def group_norm_weight(draft: Draft) -> None:
    """``dY, X`` to ``dscale, dbias``, per channel."""
    draft.tie("batch", (0, 0), (1, 0), kind=Kind.SUM)
    groups = int(draft.get("num_groups"))
    draft.tie("group", (0, 1), (1, 1), (-1, 0), (-2, 0), size=groups, adapt=(LocalAttribute("num_groups"),))
    draft.passes((0,))


def softmax(draft: Draft) -> None:
    """``dY, Y`` to ``dX``: the axis is whole."""
    draft.tie_same((0, 1, -1), whole=(draft.axis("axis", -1),))
    draft.passes((0,))


def pointwise(draft: Draft) -> None:
    """``dY`` and ``X`` or ``Y`` to ``dX`` of one shape."""
    draft.tie_same((0, 1, -1))
    draft.passes((0,))


def resize(draft: Draft) -> None:
    """``dY`` to ``dX``: dimensions whose length changes are whole."""
    changed = [dim for dim, (a, b) in enumerate(zip(draft.shape(0), draft.shape(-1), strict=True)) if a != b]
    draft.tie_same((0, -1), whole=changed)
    draft.passes((0,))


def loss(draft: Draft) -> None:
    """Losses of scores ``[N, C, ..]`` and labels ``[N, ..]``: samples and positions are parallel, or a sum if the losses are
    summed. A mean has no rule: the number of labels that count in a shard is not known."""
    reduction = draft.get("reduction", "mean")
    if reduction == "mean":
        raise UnfitError("a mean of the labels that count")
    kind = Kind.PARALLEL if reduction == "none" else Kind.SUM
    if kind is Kind.SUM and draft.present(-2):
        raise UnfitError("a sum beside probabilities that are apart")
    for dim in range(draft.rank(1)):
        results: list[Place] = [(-1, dim), (-2, _score(dim))] if kind is Kind.PARALLEL else []
        draft.tie(f"d{dim}", (0, _score(dim)), (1, dim), *results, kind=kind)
    draft.no_gradient.update({1, 2, -2})


def loss_gradient(draft: Draft) -> None:
    """``dL [N, ..]``, scores (of a cross-entropy) and labels ``[N, ..]`` to the gradient of the scores ``[N, C, ..]``."""
    by_scores = draft.rank(1) == draft.rank(-1)
    for dim in range(draft.rank(0)):
        scores: list[Place] = [(1, _score(dim))] if by_scores else []
        draft.tie(f"d{dim}", (0, dim), *scores, (2 if by_scores else 1, dim), (-1, _score(dim)))
    draft.passes((0,))


def _score(dim: int) -> int:
    """The dimension of the scores for dimension ``dim`` of the labels."""
    return dim + 1 if dim else 0


def attention(draft: Draft) -> None:
    """``dY, Q, K, V, mask`` to ``dQ, dK, dV``: samples and heads are parallel; heads are split by those of K and V."""
    split = draft.rank(1) == 4
    count = draft.numbers(2)[1] if split else int(draft.get("kv_num_heads"))
    masks = draft.rank(4) if draft.present(4) else 0
    batch, heads = ([(4, -back)] if masks >= back else [] for back in (4, 3))
    tensors = (0, 1, 2, 3, -1, -2, -3)
    draft.tie("batch", *((i, 0) for i in tensors), *batch)
    adapt = tuple(LocalAttribute(key) for key in ("q_num_heads", "kv_num_heads") if draft.get(key))
    draft.tie("heads", *((i, 1 if split else 2) for i in tensors), *heads, size=count, adapt=adapt)
    draft.passes((0,))


def col2im(draft: Draft) -> None:
    """``dY [N, C, image..]`` to ``dX [N, C * block.., windows]``: samples and channels are parallel."""
    draft.tie("batch", (0, 0), (-1, 0))
    draft.tie("channel", (0, 1), (-1, 1), size=draft.numbers(0)[1])
    draft.passes((0,))


def grid_sample(draft: Draft) -> None:
    """``dY [N, C, places..], X [N, C, lengths..], grid [N, places.., axes]`` to ``dX, dgrid``: samples are parallel."""
    draft.tie("batch", (0, 0), (1, 0), (2, 0), (-1, 0), (-2, 0))
    draft.passes((0,))


def recurrent(draft: Draft) -> None:
    """``dY [T, D, B, H], dh [D, B, H], dc, X [T, B, I], W, R, B, h [D, B, H], c, Y [T, D, B, H]`` to the gradients of gates
    ``[T, D, B, G H]`` (twice), states ``[T, D, B, H]``, dh and dc: samples are parallel."""
    at = {0: 2, 1: 1, 2: 1, 3: 1, 7: 1, 8: 1, 9: 2, -1: 2, -2: 2, -3: 2, -4: 1, -5: 1}
    draft.tie("batch", *at.items())


RULES: dict[str, Draw] = {
    "grad.Attention": attention,
    "grad.AveragePool": pool,
    "grad.BatchNormalization": batch_norm,
    "grad.Col2Im": col2im,
    "grad.ConvInput": conv_input,
    "grad.ConvWeight": conv_weight,
    "grad.GRU": recurrent,
    "grad.Gelu": pointwise,
    "grad.GridSample": grid_sample,
    "grad.GroupNormalizationInput": group_norm_input,
    "grad.GroupNormalizationWeight": group_norm_weight,
    "grad.LSTM": recurrent,
    "grad.LayerNormalizationInput": _rows(sums=False),
    "grad.LayerNormalizationWeight": _rows(sums=True),
    "grad.LogSoftmax": softmax,
    "grad.MaxPool": pool,
    "grad.NegativeLogLikelihoodLoss": loss_gradient,
    "grad.RNN": recurrent,
    "grad.RMSNormalizationInput": _rows(sums=False),
    "grad.RMSNormalizationWeight": _rows(sums=True),
    "grad.Relu": pointwise,
    "grad.Resize": resize,
    "grad.Softmax": softmax,
    "grad.SoftmaxCrossEntropyLoss": loss_gradient,
    "onnx.NegativeLogLikelihoodLoss": loss,
    "onnx.SoftmaxCrossEntropyLoss": loss,
}
"""By the op's full name."""
