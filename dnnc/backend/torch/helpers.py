"""Functions that generated programs call where torch has none that does an op in one call.

``prelude`` writes the ones that a program needs at its head, so a program imports torch only. Each is whole in itself but for
the others it names.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor


def batch_norm_train(
    x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, momentum: float, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Batch normalisation by the statistics of ``x``, and the running averages after it, of the biased variance."""
    batch_mean, batch_variance = torch.zeros_like(mean), torch.zeros_like(variance)
    y = torch.native_batch_norm(x, scale, bias, batch_mean, batch_variance, True, 1.0, epsilon)[0]
    count = x.numel() // x.shape[1]
    batch_variance = batch_variance * ((count - 1) / count) if count > 1 else torch.zeros_like(variance)
    return y, mean * momentum + batch_mean * (1.0 - momentum), variance * momentum + batch_variance * (1.0 - momentum)


def local_response(x: Tensor, size: int, alpha: float, beta: float, bias: float) -> Tensor:
    """LRN: each element over a power of the sum of squares of ``size`` neighbouring channels."""
    before = (size - 1) // 2
    squares = F.pad(x * x, [0, 0] * (x.dim() - 2) + [before, size - 1 - before])
    return x / (bias + alpha / size * squares.unfold(1, size, 1).sum(-1)) ** beta


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float | None,
    causal: bool,
    past_k: Tensor | None = None,
    past_v: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Attention of ``[batch, heads, rows, width]``; heads of k and v are shared by groups of those of q. ``causal``: row i sees
    keys up to i, after the past ones. Also gives the keys and values, past ones before them."""
    if past_k is not None and past_v is not None:
        k, v = torch.cat([past_k, k], dim=2), torch.cat([past_v, v], dim=2)
    present = k, v
    if k.shape[1] != q.shape[1]:
        k, v = (part.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for part in (k, v))
    if causal:
        rows, keys = q.shape[2], k.shape[2]
        past = 0 if past_k is None else past_k.shape[2]
        seen = torch.ones(rows, keys, dtype=torch.bool, device=q.device).tril(past)
        if mask is None:
            mask = seen
        elif mask.dtype == torch.bool:
            mask = mask & seen
        else:
            mask = mask.masked_fill(~seen, float("-inf"))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale), *present


def attention_results(results: tuple[Tensor, Tensor, Tensor], merged: bool) -> tuple[Tensor, Tensor, Tensor]:
    """What ``attention`` gives, its first result with the heads merged into the last dimension."""
    first, k, v = results
    return (first.transpose(1, 2).flatten(2) if merged else first), k, v


def rotary(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None, heads: int, width: int, interleaved: bool) -> Tensor:
    """RotaryEmbedding of ``[batch, heads, rows, d]``, or ``[batch, rows, heads * d]``: the first ``width`` of each head (0:
    all) are turned by angles that ``positions`` pick from the caches, or that the caches list."""
    given = x
    x = x.reshape(*x.shape[:2], heads, -1) if x.dim() == 3 else x.transpose(1, 2)
    if positions is not None:
        cos, sin = cos[positions], sin[positions]
    cos, sin = cos.unsqueeze(2), sin.unsqueeze(2)
    width = width or x.shape[-1]
    turned, rest = x[..., :width], x[..., width:]
    if interleaved:
        one, two = turned[..., 0::2], turned[..., 1::2]
        turned = torch.stack([cos * one - sin * two, sin * one + cos * two], dim=-1).flatten(-2)
    else:
        one, two = turned.chunk(2, dim=-1)
        turned = torch.cat([cos * one - sin * two, sin * one + cos * two], dim=-1)
    x = torch.cat([turned, rest], dim=-1) if rest.shape[-1] else turned
    return x.flatten(2) if given.dim() == 3 else x.transpose(1, 2)


def sgd(weight: Tensor, grad: Tensor, *, learning_rate: float, weight_decay: float) -> Tensor:
    """A step of torch.optim.SGD."""
    if weight_decay:
        grad = grad.add(weight, alpha=weight_decay)
    return weight.add(grad, alpha=-learning_rate)


def momentum(
    weight: Tensor, grad: Tensor, average: Tensor, *, learning_rate: float, momentum: float, weight_decay: float
) -> tuple[Tensor, Tensor]:
    """A step of torch.optim.SGD with momentum; ``average`` begins as zeros."""
    if weight_decay:
        grad = grad.add(weight, alpha=weight_decay)
    average = average.mul(momentum).add_(grad)
    return weight.add(average, alpha=-learning_rate), average


def adam(
    weight: Tensor,
    grad: Tensor,
    average: Tensor,
    squares: Tensor,
    step: Tensor,
    *,
    learning_rate: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """A step of torch.optim.Adam; ``average`` and ``squares`` begin as zeros, ``step`` counts from 1."""
    if weight_decay:
        grad = grad.add(weight, alpha=weight_decay)
    average = torch.lerp(average, grad, 1.0 - beta1)
    squares = squares.mul(beta2).addcmul_(grad, grad, value=1.0 - beta2)
    count = int(step)
    size = learning_rate / (1.0 - beta1**count)
    deviation = squares.sqrt().div_((1.0 - beta2**count) ** 0.5).add_(epsilon)
    return torch.addcdiv(weight, average, deviation, value=-size), average, squares


def adamw(
    weight: Tensor,
    grad: Tensor,
    average: Tensor,
    squares: Tensor,
    step: Tensor,
    *,
    learning_rate: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """A step of torch.optim.AdamW: as Adam, of a weight that decays apart from its gradient."""
    weight = weight.mul(1.0 - learning_rate * weight_decay)
    numbers = {"learning_rate": learning_rate, "beta1": beta1, "beta2": beta2, "epsilon": epsilon}
    return adam(weight, grad, average, squares, step, weight_decay=0.0, **numbers)
