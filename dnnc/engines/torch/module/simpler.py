"""Functions of torch that its exporter cannot write, or writes with sizes that depend on values, in simpler operators.

Each takes the arguments of the function that it stands for, as torch calls them, and computes the same with the same gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from dnnc.engines.torch.module.faults import ChangesRows, FormRefused
from ir.core.diagnostics import InvalidInput


def smoothed(
    input: torch.Tensor,  # as torch calls its arguments
    target: torch.Tensor,
    weight: torch.Tensor | None,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    **_: Any,
) -> torch.Tensor:
    """``cross_entropy`` with label smoothing s: (1 - s) times the loss of the labels plus s times the mean over all classes.
    A target of floats holds the share of each class."""
    along = min(1, input.dim() - 1)
    classes = input.shape[along]
    logs = functional.log_softmax(input, along)
    shape = [classes if dim == along else 1 for dim in range(input.dim())]
    weighed = logs if weight is None else logs * weight.reshape(shape)
    if target.is_floating_point():
        losses = -(weighed * (target * (1 - label_smoothing) + label_smoothing / classes)).sum(along)
        return {"mean": losses.mean(), "sum": losses.sum(), "none": losses}[reduction]
    counted = (target != ignore_index).to(logs.dtype)
    likely = functional.nll_loss(logs, target, weight, ignore_index=ignore_index, reduction=reduction)
    even = -weighed.sum(along) * counted
    if reduction != "none":
        even = even.sum()
    if reduction == "mean":
        each = counted if weight is None else counted * weight[torch.where(target == ignore_index, 0, target)]
        even = even / each.sum()
    return likely * (1 - label_smoothing) + even * (label_smoothing / classes)


def takes_bags(
    input: torch.Tensor, offsets: torch.Tensor | None, mode: str, per_sample_weights: torch.Tensor | None, **_: Any
) -> bool:
    """Whether ``embedding_bag`` takes these arguments, as far as their shapes tell; if not, its own error says why."""
    if per_sample_weights is not None and (mode != "sum" or per_sample_weights.shape != input.shape):
        return False
    bags = input.dim() == 2 if offsets is None else input.dim() == offsets.dim() == 1
    return bags and mode in ("sum", "mean", "max")


def bagged(
    input: torch.Tensor,
    weight: torch.Tensor,
    offsets: torch.Tensor | None,
    max_norm: float | None,
    mode: str,
    per_sample_weights: torch.Tensor | None,
    include_last_offset: bool,
    padding_idx: int | None,
    **_: Any,
) -> torch.Tensor:
    """``embedding_bag``, whose export has sizes that depend on values: sum, mean or maximum of each bag's rows but the padding,
    and 0 for a bag without any. Raises InvalidInput for ``max_norm``."""
    if max_norm is not None:
        raise InvalidInput(ChangesRows())
    rows = functional.embedding(input, weight, padding_idx)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    counted = torch.ones_like(input) if padding_idx is None else (input != padding_idx % weight.shape[0]).to(input.dtype)
    if offsets is not None:
        bags = offsets.shape[0] - include_last_offset
        places = torch.arange(input.shape[0], device=input.device)
        bag = (places.unsqueeze(1) >= offsets).sum(1) - 1
        counted = counted * (torch.arange(bags, device=input.device).unsqueeze(1) == bag).to(input.dtype)
    present = counted.to(rows.dtype)  # [bags, places]; rows are [places, width] with offsets, [bags, places, width] without
    if mode == "max":
        low = torch.where(counted.unsqueeze(-1) != 0, rows, torch.finfo(rows.dtype).min)
        return torch.where(counted.sum(1, keepdim=True) != 0, low.amax(1), 0.0)
    total = present @ rows if offsets is not None else (rows * present.unsqueeze(-1)).sum(1)
    return total if mode == "sum" else total / present.sum(1, keepdim=True).clamp(min=1)


def _distances(x1: torch.Tensor, x2: torch.Tensor, p: float = 2.0, compute_mode: str = "") -> torch.Tensor:
    """``torch.cdist``."""
    found: torch.Tensor = torch.linalg.vector_norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), p, -1)
    return found


def _products(input: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """``torch.cumprod``: after k rounds each element is the product of itself and up to 2^k - 1 before it."""
    made, reach = input.to(dtype or input.dtype).transpose(dim, -1), 1
    while reach < made.shape[-1]:
        made = made * torch.cat([torch.ones_like(made[..., :reach]), made[..., :-reach]], -1)
        reach *= 2
    return made.transpose(dim, -1)


def _gaussian(
    input: torch.Tensor,
    target: torch.Tensor,
    var: torch.Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> torch.Tensor:
    """``gaussian_nll_loss``, which asks first whether a variance is negative. No gradient passes the bound of the variance."""
    wide = var if isinstance(var, torch.Tensor) else torch.full_like(input, var)
    if wide.shape != input.shape and wide.dim() < input.dim():
        wide = wide.unsqueeze(-1)
    bounded = wide + (wide.clamp(min=eps) - wide).detach()
    losses = 0.5 * (torch.log(bounded) + (input - target) ** 2 / bounded) + (0.5 * math.log(2 * math.pi) if full else 0.0)
    return reduced(losses, reduction)


def _ctc(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> torch.Tensor:
    """``ctc_loss``: the forward algorithm (Graves et al., "Connectionist Temporal Classification", ICML 2006, section 4.1) over
    the labels with blanks around each, in one round for each frame; behind the end of a sequence nothing changes."""
    alone = log_probs.dim() == 2
    if targets.dim() == 1 and not alone:
        advice = "give them as [samples, longest], padded"
        raise InvalidInput(
            FormRefused("ctc_loss of targets one behind the other", "their places depend on the lengths", advice)
        )
    logs, labels = (log_probs.unsqueeze(1), targets.reshape(1, -1)) if alone else (log_probs, targets)
    frames = logs.shape[0]
    ends, counts = (torch.as_tensor(one).reshape(-1, 1).to(torch.int64) for one in (input_lengths, target_lengths))
    blanks = torch.full_like(labels[:, :1], blank, dtype=torch.int64)
    pairs = torch.stack([blanks.expand(-1, labels.shape[1]), labels.to(torch.int64)], 2).flatten(1)
    around = torch.cat([pairs, blanks], 1)
    places = torch.arange(around.shape[1])
    around = torch.where(places < 2 * counts, around, blank)  # behind its end a target may hold anything
    before = torch.cat([blanks, blanks, around[:, :-2]], 1)
    skipped = torch.where((around != blank) & (around != before), 0.0, _NEVER)
    never = torch.full_like(logs[0, :, :1], _NEVER)
    chances = torch.where(places < 2, 0.0, _NEVER) + logs[0].gather(1, around)
    for frame in range(1, frames):
        one, two = torch.cat([never, chances[:, :-1]], 1), torch.cat([never, never, chances[:, :-2]], 1) + skipped
        moved = torch.logsumexp(torch.stack([chances, one, two[:, : chances.shape[1]]]), 0) + logs[frame].gather(1, around)
        chances = torch.where(frame < ends, moved, chances)
    last = chances.gather(1, (2 * counts - 1).clamp(min=0)) + torch.where(counts > 0, 0.0, _NEVER)
    losses = -torch.logaddexp(chances.gather(1, 2 * counts), last).squeeze(1)
    losses = torch.where(losses < -_NEVER / 10, losses, 0.0 if zero_infinity else float("inf"))
    if reduction == "mean":
        losses = losses / counts.squeeze(1).clamp(min=1)
    return reduced(losses.reshape(()) if alone else losses, reduction)


def _maxima(rank: int) -> Callable[..., torch.Tensor]:
    """``adaptive_max_pool1d`` or ``2d``: cell i of n cells over a length L is the maximum from i L / n, rounded down, to
    (i + 1) L / n, rounded up. Raises InvalidInput for ``return_indices``."""
    pool: Callable[..., torch.Tensor] = functional.max_pool1d if rank == 1 else functional.max_pool2d

    def pooled(input: torch.Tensor, output_size: Any, return_indices: bool = False) -> torch.Tensor:
        if return_indices:
            reason, advice = "no operator of ONNX gives the places in uneven windows", "leave return_indices out"
            raise InvalidInput(FormRefused("adaptive max pooling with indices", reason, advice))
        lengths = input.shape[-rank:]
        asked = [output_size] * rank if isinstance(output_size, int) else output_size
        counts = [length if count is None else count for length, count in zip(lengths, asked, strict=True)]
        if not any(length % count for length, count in zip(lengths, counts, strict=True)):
            return pool(input, [length // count for length, count in zip(lengths, counts, strict=True)])

        def along(part: torch.Tensor, axis: int) -> torch.Tensor:
            if axis == rank:
                return pool(part, part.shape[-rank:])
            length, count, dim = lengths[axis], counts[axis], axis - rank
            cells = [(i * length // count, -(-(i + 1) * length // count)) for i in range(count)]
            return torch.cat([along(part.narrow(dim, start, end - start), axis + 1) for start, end in cells], dim)

        return along(input, 0)

    return pooled


_SHIFT = 5
"""The series of Stirling is taken so far above the argument: what it leaves out is about 1e-8 there."""


def _in_float32(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """The function of numbers of at least 32 bits, as torch computes it: in a series 16 bits cancel each other."""

    def of(input: torch.Tensor) -> torch.Tensor:
        made = input.dtype if input.is_floating_point() else torch.get_default_dtype()
        wide = input.to(torch.promote_types(made, torch.float32))
        return function(wide[None, None]).squeeze(0).squeeze(0).to(made)

    return of


def _parts(input: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A number above 0 by which the function of each element is known, and the element itself where it is not above 0. The
    one has the two dimensions of ``_in_float32``, so autocast takes it for no scalar and widens what is computed with it."""
    one = input.new_ones([1] * input.dim())
    return torch.where(input > 0, input, one - input), torch.where(input > 0, one / 2, input)


@_in_float32
def _log_gamma(input: torch.Tensor) -> torch.Tensor:
    """``torch.lgamma``: the series of Stirling, the recurrence down from it, and the reflection of numbers that are not above 0
    (Abramowitz and Stegun, "Handbook of Mathematical Functions", 6.1.41, 6.1.15 and 6.1.17)."""
    x, below = _parts(input)
    z = x + _SHIFT
    series = (1 / 12 - (1 / 360 - 1 / (1260 * z * z)) / (z * z)) / z
    found = (z - 0.5) * torch.log(z) - z + 0.5 * math.log(2 * math.pi) + series
    found = found - sum(torch.log(x + k) for k in range(_SHIFT))
    return torch.where(input > 0, found, math.log(math.pi) - torch.log(torch.sin(math.pi * below).abs()) - found)


@_in_float32
def _digamma(input: torch.Tensor) -> torch.Tensor:
    """``torch.digamma``, likewise (6.3.18, 6.3.5 and 6.3.7)."""
    x, below = _parts(input)
    z = x + _SHIFT
    square = z * z
    found = torch.log(z) - 0.5 / z - (1 / 12 - (1 / 120 - 1 / (252 * square)) / square) / square
    found = found - sum(1 / (x + k) for k in range(_SHIFT))
    return torch.where(input > 0, found, found - math.pi / torch.tan(math.pi * below))


_NEVER = -1e30
"""The logarithm of a probability of 0 that sums and differences leave a number."""


def reduced(losses: torch.Tensor, reduction: str) -> torch.Tensor:
    return losses if reduction == "none" else losses.mean() if reduction == "mean" else losses.sum()


SIMPLER: dict[str, Callable[..., torch.Tensor]] = {
    "adaptive_max_pool1d": _maxima(1),
    "adaptive_max_pool1d_with_indices": _maxima(1),
    "adaptive_max_pool2d": _maxima(2),
    "adaptive_max_pool2d_with_indices": _maxima(2),
    "cdist": _distances,
    "ctc_loss": _ctc,
    "cumprod": _products,
    "digamma": _digamma,
    "gaussian_nll_loss": _gaussian,
    "lgamma": _log_gamma,
    "special_digamma": _digamma,
    "special_gammaln": _log_gamma,
}
"""By the name of a function of torch."""
