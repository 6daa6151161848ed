"""Functions that generated programs call to update weights, as torch's optimizers and schedules do: see ``helpers``, to which
this file belongs.
"""

from __future__ import annotations

import torch
from torch import Tensor


def learning_rate_factor(
    step: int,
    kind: str,
    *,
    warmup: int,
    start: float,
    steps: int = 0,
    end: float = 0.0,
    every: int = 1,
    factor: float = 1.0,
) -> float:
    """The factor of the learning rate in step number ``step``, from 1: linear from ``start`` to 1 for ``warmup`` steps, then by
    the schedule ``kind``; ``steps`` count the warm-up, ``every`` does not."""
    done = int(step) - 1
    if done < warmup:
        return start + (1.0 - start) * done / warmup
    passed = min(1.0, (done - warmup) / max(1, steps - warmup))
    if kind == "linear":
        return 1.0 + (end - 1.0) * passed
    if kind == "cosine":
        return end + (1.0 - end) * (1.0 + float(torch.cos(torch.tensor(passed * torch.pi, dtype=torch.float64)))) / 2.0
    if kind == "step":
        return float(factor ** ((done - warmup) // every))
    return 1.0


def table_rate(step: int, factors: tuple[float, ...]) -> float:
    """The factor of the learning rate in step number ``step``, from 1; the last one stays."""
    return factors[min(int(step), len(factors)) - 1]


def sgd(weight: Tensor, grad: Tensor, *, learning_rate: float, weight_decay: float, scale: Tensor | None = None) -> Tensor:
    """One step of torch.optim.SGD, in place. ``scale``: a factor of the gradient."""
    if scale is not None:
        grad = grad * scale
    if weight_decay:
        grad = grad.add(weight, alpha=weight_decay)
    return weight.add_(grad, alpha=-learning_rate)


def momentum(
    weight: Tensor,
    grad: Tensor,
    average: Tensor,
    *,
    learning_rate: float,
    momentum: float,
    weight_decay: float,
    nesterov: bool = False,
    scale: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One step of torch.optim.SGD with momentum, in place. ``average``: the momentum buffer, zeros before the first step;
    ``scale``: a factor of the gradient."""
    if scale is not None:
        grad = grad * scale
    if weight_decay:
        grad = grad.add(weight, alpha=weight_decay)
    average.mul_(momentum).add_(grad)
    grad = grad.add(average, alpha=momentum) if nesterov else average
    return weight.add_(grad, alpha=-learning_rate), average


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
    scale: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """One step of torch.optim.Adam, in place. ``average``, ``squares``: moving averages of the gradient and of its square,
    zeros before the first step; ``step`` counts from 1; ``scale``: a factor of the gradient."""
    if scale is not None:
        grad = grad * scale
    if all(one.dtype == torch.float32 and one.is_contiguous() for one in (weight, grad, average, squares)):
        number = torch.tensor(float(step), device=weight.device)
        numbers = {"lr": learning_rate, "beta1": beta1, "beta2": beta2, "eps": epsilon, "weight_decay": weight_decay}
        fused = torch.ops.aten._fused_adam_  # moves a third of the bytes
        fused([weight], [grad], [average], [squares], [], [number], **numbers, amsgrad=False, maximize=False)
        return weight, average, squares
    if weight_decay:
        grad = grad.add(weight, alpha=weight_decay)
    average.lerp_(grad, 1.0 - beta1)
    squares.mul_(beta2).addcmul_(grad, grad, value=1.0 - beta2)
    count = int(step)
    size = learning_rate / (1.0 - beta1**count)
    deviation = squares.sqrt().div_((1.0 - beta2**count) ** 0.5).add_(epsilon)
    return weight.addcdiv_(average, deviation, value=-size), average, squares


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
    scale: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """One step of torch.optim.AdamW, in place: the weight decays by itself, then one step of Adam without weight decay."""
    weight.mul_(1.0 - learning_rate * weight_decay)
    numbers = {"learning_rate": learning_rate, "beta1": beta1, "beta2": beta2, "epsilon": epsilon}
    return adam(weight, grad, average, squares, step, weight_decay=0.0, scale=scale, **numbers)


def adafactor(
    weight: Tensor,
    grad: Tensor,
    rows: Tensor,
    columns: Tensor | None,
    step: Tensor,
    *,
    learning_rate: float,
    beta2_decay: float,
    epsilon1: float,
    epsilon2: float,
    threshold: float,
    weight_decay: float,
    scale: Tensor | None = None,
    shape: tuple[int, ...] = (),
    sums: tuple[Tensor, ...] = (),
) -> tuple[Tensor, ...]:
    """One step of torch.optim.Adafactor, in place. ``rows``, ``columns``: moving averages of the mean square of each row and
    column of the gradient, ``[.., n, 1]`` and ``[.., 1, m]``; without columns ``rows`` is that of each square. Zeros before the
    first step; ``step`` counts from 1; ``scale``: a factor of the gradient. ``shape``: of the whole weight, of which the
    tensors may be parts; ``sums``: over the whole weight, the squares of the weight and ``adafactor_squares``, then, with
    columns, what ``adafactor_averages`` reads. Without sums tensors are whole."""
    numbers = {"beta2_decay": beta2_decay, "epsilon1": epsilon1}
    if not sums:  # of a program that was written before there were sums
        shape, squares = tuple(weight.shape), grad * grad
        factored: tuple[Tensor, ...] = ()
        if columns is not None:
            along = (squares.sum(-1, keepdim=True), squares.sum(-2, keepdim=True), squares.sum((-2, -1), keepdim=True))
            factored = (*along, rows.sum(-2, keepdim=True))
        change = adafactor_squares(grad, rows, columns, step, factored, shape=shape, scale=scale, **numbers)
        sums = (weight.square().sum(), change, *factored)
    new_rows, new_columns, variance = adafactor_averages(grad, rows, columns, step, sums[2:], shape, scale, **numbers)
    size = 1.0
    for length in shape:
        size *= length**0.5
    rate = max(epsilon2, float(sums[0]) ** 0.5 / size) * min(learning_rate, int(step) ** -0.5)
    if scale is not None:
        grad = grad * scale
    if weight_decay:
        weight.mul_(1.0 - learning_rate * weight_decay)
    update = variance.rsqrt_().mul_(grad)
    weight.add_(update, alpha=-rate / max(1.0, float(sums[1]) ** 0.5 / (size * threshold)))
    rows.copy_(new_rows)
    if columns is None or new_columns is None:
        return weight, rows
    return weight, rows, columns.copy_(new_columns)


def adafactor_squares(
    grad: Tensor,
    rows: Tensor,
    columns: Tensor | None,
    step: Tensor,
    sums: tuple[Tensor, ...],
    *,
    beta2_decay: float,
    epsilon1: float,
    shape: tuple[int, ...],
    scale: Tensor | None = None,
) -> Tensor:
    """The sum of the squares of the gradient over the root of its new averages. Arguments: see ``adafactor``; ``sums``: what
    ``adafactor_averages`` reads."""
    numbers = {"beta2_decay": beta2_decay, "epsilon1": epsilon1}
    variance = adafactor_averages(grad, rows, columns, step, sums, shape, scale, **numbers)[2]
    wide = grad if grad.dtype == torch.float64 else grad.float()
    total = (wide * wide).div_(variance).sum()
    return total if scale is None else total * (scale * scale)


def adafactor_averages(
    grad: Tensor,
    rows: Tensor,
    columns: Tensor | None,
    step: Tensor,
    sums: tuple[Tensor, ...],
    shape: tuple[int, ...],
    scale: Tensor | None,
    *,
    beta2_decay: float,
    epsilon1: float,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """The new averages, and the variance of each element that follows from them. ``sums``, with columns: the squares of the
    gradient of each row, each column, and both, and the averages of rows; shapes are those of ``rows``, ``columns``, ``[.., 1,
    1]`` and ``[.., 1, 1]``."""
    fresh = int(step) ** beta2_decay
    factor = 1.0 if scale is None else scale * scale
    if columns is None:
        rows = rows.lerp(grad * grad * factor, fresh)
        return rows, None, rows.clamp(min=epsilon1 * epsilon1)
    n, m = shape[-2:]
    rows, columns = (
        old.lerp((new * factor / length).to(old.dtype), fresh)
        for old, new, length in ((rows, sums[0], m), (columns, sums[1], n))
    )
    mean = (sums[3] * (1.0 - fresh) + sums[2] * (factor * (fresh / m))) / n
    variance = (rows @ columns).div_(mean.clamp(min=epsilon1)).clamp_(min=epsilon1 * epsilon1)
    return rows, columns, variance


def ema(average: Tensor, weight: Tensor, step: int, *, decay: float) -> Tensor:
    """One step of the exponential moving average of a weight, in place: in step 1 it is the weight."""
    return average.copy_(weight) if int(step) == 1 else average.lerp_(weight, 1.0 - decay)


def moved_loss_scale(
    scale: Tensor, steps: Tensor, skipped: Tensor, squares: Tensor, *, growth: float, backoff: float, interval: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What the scale of the loss, the steps since it changed and the skipped steps become, as torch.amp.GradScaler moves the
    scale; and whether the step is taken: ``squares``, the sum of the squares of all gradients, is finite."""
    taken = torch.isfinite(squares)
    if not taken:
        return scale * backoff, torch.zeros_like(steps), skipped + 1, taken
    if int(steps) + 1 < interval:
        return scale.clone(), steps + 1, skipped.clone(), taken
    grown = scale * growth
    return grown if torch.isfinite(grown) else scale.clone(), torch.zeros_like(steps), skipped.clone(), taken
