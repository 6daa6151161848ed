"""Functions that generated programs call for ops that torch cannot compute in one call.

``prelude`` copies the text of those that a program calls to its head, so that programs import torch alone: a function here may
use ``torch``, ``F``, ``Tensor`` and other functions of this file, nothing else of the module.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor


def generator_of(seed: Tensor, number: int) -> torch.Generator:
    """The generator of draw ``number`` in the microbatch with this seed.

    It draws on the CPU, so that numbers are the same on every kind of device. Its seed mixes ``seed`` and ``number`` as
    SplitMix64 does (Steele, Lea, Flood 2014)."""
    mixed = (int(seed) + (number + 1) * 0x9E3779B97F4A7C15) % 2**64
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB % 2**64
    return torch.Generator().manual_seed((mixed ^ mixed >> 31) >> 1)


def dropout_mask(seed: Tensor, number: int, ratio: float, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """The mask of dropout ``number`` in the microbatch with this seed: each element is 0 with probability ``ratio``, else
    1 / (1 - ratio)."""
    generator = generator_of(seed, number)
    kept = torch.rand(shape, generator=generator, dtype=torch.float32, device="cpu") >= ratio
    return kept.to(seed.device, dtype).div_(1.0 - ratio)


def batch_norm_train(
    x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, momentum: float, epsilon: float, unbiased: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Batch normalisation by the statistics of ``x``. Returns y and the updated running mean and variance; the latter averages
    the unbiased variance (divided by count - 1) if ``unbiased``, else the biased one."""
    taken = batch_norm_type(x, scale, bias, mean, variance)
    batch_mean, batch_variance = torch.zeros_like(mean, dtype=taken), torch.zeros_like(variance, dtype=taken)
    y = torch.native_batch_norm(x, scale.to(taken), bias.to(taken), batch_mean, batch_variance, True, 1.0, epsilon)[0]
    count = x.numel() // x.shape[1]
    if count == 1:
        batch_variance = torch.zeros_like(batch_variance)
    elif not unbiased:
        batch_variance = batch_variance * ((count - 1) / count)
    mean_after = (mean * momentum + batch_mean * (1.0 - momentum)).to(mean.dtype)
    variance_after = (variance * momentum + batch_variance * (1.0 - momentum)).to(variance.dtype)
    return y, mean_after, variance_after


def batch_norm_type(x: Tensor, *parameters: Tensor) -> torch.dtype:
    """The element type in which torch takes the parameters of a batch normalisation of ``x``: that of ``x``, or float32 beside
    a narrower ``x`` where they are not all as narrow."""
    narrow = x.dtype in (torch.float16, torch.bfloat16)
    return torch.float32 if narrow and any(one.dtype != x.dtype for one in parameters) else x.dtype


def layer_norm(
    x: Tensor, shape: tuple[int, ...], scale: Tensor, bias: Tensor | None, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Layer normalisation over the last dimensions, of lengths ``shape``. Returns y, and each row's mean and
    1 / sqrt(variance + epsilon).

    torch's function gives the mean and the last result no gradient; if ``x`` requires one, they are computed again."""
    y, mean, inverse = torch.native_layer_norm(x, shape, scale, bias, epsilon)
    if x.requires_grad:
        variance, mean = torch.var_mean(x.to(mean.dtype), tuple(range(-len(shape), 0)), correction=0, keepdim=True)
        inverse = torch.rsqrt(variance + epsilon)
    return y, mean, inverse


def local_response(x: Tensor, size: int, alpha: float, beta: float, bias: float) -> Tensor:
    """LRN: x / (bias + alpha / size * sum of squares of ``size`` neighbouring channels) ** beta."""
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
    """Scaled dot-product attention of q ``[batch, heads, rows, width]``; each head of k and v serves a group of heads of q.

    ``past_k``, ``past_v``: cached keys and values, put before k and v. ``causal``: row i sees all past keys and the new keys
    0 to i. Returns the attended values, and keys and values with the past ones."""
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
    """The results of ``attention``; if ``merged``, the first one as ``[batch, rows, heads * width]``."""
    first, k, v = results
    return (first.transpose(1, 2).flatten(2) if merged else first), k, v


def rotary(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None, heads: int, width: int, interleaved: bool) -> Tensor:
    """RotaryEmbedding of ``[batch, heads, rows, d]`` or ``[batch, rows, heads * d]``: rotates the first ``width`` elements of
    each head (0: all of them) in pairs.

    ``cos``, ``sin``: of the angles of each row, or, with ``positions``, tables of which ``positions`` gives the rows."""
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


def max_pool_backward(
    grad: Tensor,
    x: Tensor,
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    padding: tuple[int, ...],
    dilations: tuple[int, ...],
) -> Tensor:
    """The gradient of X of a max pool: each window's gradient is added to the first of its largest elements."""
    if len(kernel) == 1:
        numbers = (kernel, strides, padding, dilations)
        wide = ((fill, *number) for fill, number in zip((1, 1, 0, 1), numbers, strict=True))
        return max_pool_backward(grad.unsqueeze(2), x.unsqueeze(2), *wide).squeeze(2)
    aten = torch.ops.aten
    forward, backward = (
        (aten.max_pool2d_with_indices, aten.max_pool2d_with_indices_backward)
        if len(kernel) == 2
        else (aten.max_pool3d_with_indices, aten.max_pool3d_with_indices_backward)
    )
    indices = forward(x, kernel, strides, padding, dilations)[1]
    found: Tensor = backward(grad, x, kernel, strides, padding, dilations, False, indices)
    return found


def dilated_average(x: Tensor, kernel: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...]) -> Tensor:
    """The mean of each window of x, which torch's pools have without dilations only: a convolution of each channel by a
    constant."""
    convolution = (F.conv1d, F.conv2d, F.conv3d)[len(kernel) - 1]
    weight = x.new_ones(1, 1, *kernel)
    y = convolution(x.flatten(0, 1).unsqueeze(1), weight / weight.numel(), None, strides, 0, dilations)
    return y.reshape(*x.shape[:2], *y.shape[2:])


def max_pool_indices(
    y: Tensor,
    places: Tensor,
    shape: tuple[int, ...],
    lengths: tuple[int, ...],
    before: tuple[int, ...],
    columns: bool,
) -> tuple[Tensor, Tensor]:
    """The results of ONNX's MaxPool. torch's ``places`` count in each plane of these ``lengths``, ONNX's in all of X, of this
    ``shape``, with the first dimension of a plane as the fastest if ``columns``. ``before``: how many pads the planes begin
    with."""
    coordinates = []
    for length, pad in zip(reversed(lengths), reversed(before), strict=True):
        coordinates.append(places % length - pad)
        places = places // length
    size = 1
    planes = torch.arange(shape[0] * shape[1], device=y.device).reshape(shape[0], shape[1], *[1] * len(lengths))
    flat = planes * 1
    for length in shape[2:]:
        flat = flat * length
    order = (
        zip(reversed(coordinates), shape[2:], strict=True) if columns else zip(coordinates, reversed(shape[2:]), strict=True)
    )
    for coordinate, length in order:
        flat = flat + coordinate * size
        size *= length
    return y, flat


def fold(
    x: Tensor, image: tuple[int, ...], block: tuple[int, ...], dilations: tuple[int, ...], strides: tuple[int, ...]
) -> Tensor:
    """Col2Im ``[N, C * block.., windows]`` to ``[N, C, image..]``, without padding."""
    if len(block) == 1:
        return F.fold(x, (1, *image), (1, *block), (1, *dilations), 0, (1, *strides)).squeeze(2)
    return F.fold(x, image, block, dilations, 0, strides)


def unfold(x: Tensor, block: tuple[int, ...], dilations: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
    """The gradient of ``fold``."""
    if len(block) == 1:
        return F.unfold(x.unsqueeze(2), (1, *block), (1, *dilations), 0, (1, *strides))
    return F.unfold(x, block, dilations, 0, strides)


def avg_pool_backward(
    grad: Tensor, shape: tuple[int, ...], kernel: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...]
) -> Tensor:
    """The gradient of X, of this ``shape``, of an average pool without padding: grad / window size, added to each element."""
    if any(dilation > 1 for dilation in dilations):
        weight, count = grad.new_ones(1, 1, *kernel), len(kernel)
        planes, x = grad.flatten(0, 1).unsqueeze(1), grad.new_empty(1).expand(shape[0] * shape[1], 1, *shape[2:])
        numbers = (list(strides), [0] * count, list(dilations), False, [0] * count, 1, [True, False, False])
        one: Tensor = torch.ops.aten.convolution_backward(planes, x, weight / weight.numel(), None, *numbers)[0]
        return one.reshape(shape)
    if len(kernel) == 1:
        wide = (*shape[:2], 1, *shape[2:])
        return avg_pool_backward(grad.unsqueeze(2), wide, (1, *kernel), (1, *strides), (1, *dilations)).squeeze(2)
    backward = torch.ops.aten.avg_pool2d_backward if len(kernel) == 2 else torch.ops.aten.avg_pool3d_backward
    x = grad.new_empty(1).expand(shape)
    found: Tensor = backward(grad.contiguous(), x, kernel, strides, (0,) * len(kernel), False, True, None)
    return found


def batch_norm_backward(
    grad: Tensor, x: Tensor, scale: Tensor, epsilon: float, wanted: list[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of X, scale and bias of a batch normalisation by the statistics of ``x``; None where not ``wanted``."""
    given, scale = scale.dtype, scale.to(batch_norm_type(x, scale))
    still = (None, None) if scale.dtype == x.dtype else (torch.zeros_like(scale), torch.ones_like(scale))  # say the type
    mean, variance = torch.ops.aten.batch_norm_update_stats(x, *still, 0.0)  # a third of the time of torch.var_mean
    inverse = torch.rsqrt(variance + epsilon)
    backward = torch.ops.aten.native_batch_norm_backward
    one, two, three = backward(grad, x, scale, None, None, mean, inverse, True, epsilon, wanted)
    return one, *(None if found is None else found.to(given) for found in (two, three))


def layer_norm_weight_backward(
    grad: Tensor, x: Tensor, shape: tuple[int, ...], mean: Tensor, inverse: Tensor, wanted: list[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of scale and bias of a layer normalisation over the last dimensions, of lengths ``shape``; None where not
    ``wanted``. ``mean``, ``inverse``: each row's mean and 1 / standard deviation."""
    some = x.new_empty(shape)  # for the type of scale and bias; torch reads no elements
    backward = torch.ops.aten.native_layer_norm_backward
    _, one, two = backward(grad, x, shape, mean, inverse, some, some, [False, *wanted])
    return one, two


def group_norm_backward(grad: Tensor, x: Tensor, scale: Tensor, groups: int, epsilon: float) -> Tensor:
    """The gradient of X of a group normalisation."""
    shape = x.shape
    variance, mean = torch.var_mean(x.reshape(shape[0], groups, -1), dim=2, correction=0)
    inverse, places = torch.rsqrt(variance + epsilon), x[0, 0].numel()
    backward, mask = torch.ops.aten.native_group_norm_backward, [True, False, False]
    found: Tensor = backward(
        grad.contiguous(), x.contiguous(), mean, inverse, scale.contiguous(), shape[0], shape[1], places, groups, mask
    )[0]
    return found


def group_norm_weight_backward(grad: Tensor, x: Tensor, groups: int, epsilon: float) -> tuple[Tensor, Tensor]:
    """The gradients of scale and bias of a group normalisation, per channel."""
    rows = x.reshape(x.shape[0], groups, -1)
    variance, mean = torch.var_mean(rows, dim=2, keepdim=True, correction=0)
    normal = ((rows - mean) * torch.rsqrt(variance + epsilon)).reshape(x.shape)
    axes = [0, *range(2, x.dim())]
    return (grad * normal).sum(axes), grad.sum(axes)


def rms_norm_backward(grad: Tensor, x: Tensor, scale: Tensor, count: int, epsilon: float) -> Tensor:
    """The gradient of X of an RMS normalisation over the last ``count`` dimensions."""
    axes = tuple(range(-count, 0))
    inverse = torch.rsqrt((x * x).mean(axes, keepdim=True) + epsilon)
    normal, grad = x * inverse, grad * scale
    return inverse * (grad - normal * (grad * normal).mean(axes, keepdim=True))


def rms_norm_weight_backward(grad: Tensor, x: Tensor, count: int, epsilon: float) -> Tensor:
    """The gradient of scale of an RMS normalisation over the last ``count`` dimensions."""
    inverse = torch.rsqrt((x * x).mean(tuple(range(-count, 0)), keepdim=True) + epsilon)
    return (grad * x * inverse).sum(tuple(range(x.dim() - count)))


def cross_entropy_backward(grad: Tensor, scores: Tensor, labels: Tensor, weights: Tensor | None, ignored: int | None) -> Tensor:
    """The gradient of the scores ``[N, C, ..]`` of each label's cross entropy: (softmax(scores) - one-hot(label)) * grad,
    times the label's weight; 0 where the label is ``ignored``."""
    labels = labels.long()
    if ignored is not None:
        counts = labels != ignored
        labels, grad = torch.where(counts, labels, 0), torch.where(counts, grad, 0.0)
    if weights is not None:
        grad = grad * weights[labels]
    labels, grad = labels.unsqueeze(1), grad.unsqueeze(1)
    return torch.softmax(scores, 1).mul_(grad).scatter_add_(1, labels, -grad)


def nll_loss_backward(grad: Tensor, labels: Tensor, weights: Tensor | None, ignored: int | None, classes: int) -> Tensor:
    """The gradient of the input ``[N, classes, ..]`` of each label's negative log likelihood: -grad * weight at the label,
    0 elsewhere and where the label is ``ignored``."""
    labels = labels.long()
    if ignored is not None:
        counts = labels != ignored
        labels, grad = torch.where(counts, labels, 0), torch.where(counts, grad, 0.0)
    if weights is not None:
        grad = grad * weights[labels]
    zeros = grad.new_zeros(labels.shape[0], classes, *labels.shape[1:])
    return zeros.scatter_(1, labels.unsqueeze(1), -grad.unsqueeze(1))


def attention_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float | None,
    causal: bool,
    heads: tuple[int, int] | None,
    past: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of Q, K and V of ``attention``, whose probabilities are recomputed. ``heads``: the numbers of heads of q
    and of k, v, if these have shape ``[batch, rows, heads * width]``; None for ``[batch, heads, rows, width]``. ``past``: how
    many keys all queries see if ``causal``."""
    if heads is not None:
        count, shared = heads
        grad, q = (part.reshape(*part.shape[:2], count, -1).transpose(1, 2) for part in (grad, q))
        k, v = (part.reshape(*part.shape[:2], shared, -1).transpose(1, 2) for part in (k, v))
    group = q.shape[1] // k.shape[1]
    wide_k, wide_v = (part.repeat_interleave(group, dim=1) if group > 1 else part for part in (k, v))
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    scores = torch.matmul(q, wide_k.mT).mul_(factor)
    if mask is not None:
        scores = scores.masked_fill_(~mask, float("-inf")) if mask.dtype == torch.bool else scores.add_(mask)
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril(past)
        scores = scores.masked_fill_(~seen, float("-inf"))
    weights = torch.softmax(scores, dim=-1)
    grad_v = torch.matmul(weights.mT, grad)
    grad_scores = torch._softmax_backward_data(torch.matmul(grad, wide_v.mT), weights, -1, q.dtype).mul_(factor)
    grad_q, grad_k = torch.matmul(grad_scores, wide_k), torch.matmul(grad_scores.mT, q)
    if group > 1:
        grad_k, grad_v = (part.reshape(part.shape[0], -1, group, *part.shape[2:]).sum(2) for part in (grad_k, grad_v))
    if heads is None:
        return grad_q, grad_k, grad_v
    one, two, three = (part.transpose(1, 2).flatten(2) for part in (grad_q, grad_k, grad_v))
    return one, two, three
