"""The oracle's updates: optimizers of torch.optim, averages as its ``swa_utils`` make them, the scale of a loss as
``torch.amp.GradScaler`` moves it, by what ops of a step say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ir.ops.loss_scale import LossScale

_OPTIMIZERS: dict[str, Any] = {
    "sgd": torch.optim.SGD,
    "momentum": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adafactor": torch.optim.Adafactor,
}


def optimizer_of(name: str, numbers: Mapping[str, float], weights: list[torch.Tensor], *, nesterov: bool = False) -> Any:
    """The optimizer of torch.optim with these numbers."""
    fields: dict[str, Any] = {"lr": numbers["learning_rate"], "weight_decay": numbers.get("weight_decay", 0.0)}
    if "momentum" in numbers:
        fields.update(momentum=numbers["momentum"], nesterov=nesterov)
    if "beta1" in numbers:
        fields.update(betas=(numbers["beta1"], numbers["beta2"]), eps=numbers["epsilon"])
    if "beta2_decay" in numbers:
        fields.update(beta2_decay=numbers["beta2_decay"], d=numbers["threshold"])
        fields.update(eps=(numbers["epsilon1"], numbers["epsilon2"]))
    return _OPTIMIZERS[name](weights, **fields)


def move_averages(weights: Mapping[str, torch.Tensor], averages: Mapping[str, str], decay: float, done: int) -> None:
    """The averages behind step ``done``, counted from 1. ``averages``: of each the name of its weight."""
    moved = [weights[name] for name in averages]
    current = [weights[of].detach() for of in averages.values()]
    if done == 1:
        for average, weight in zip(moved, current, strict=True):
            average.copy_(weight)
    elif moved:
        torch._foreach_lerp_(moved, current, 1 - decay)  # as get_ema_multi_avg_fn of torch.optim.swa_utils


@dataclass
class Scaler:
    """Scales losses, by what ``GradScaler`` calls: it decides for each optimizer alone, and an oracle has one for each group of
    weights. Without ``numbers`` nothing is scaled."""

    numbers: LossScale | None
    scale: torch.Tensor = field(init=False)
    steps: torch.Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.int32))
    skipped: int = 0

    def __post_init__(self) -> None:
        self.scale = torch.tensor(self.numbers.init if self.numbers is not None else 1.0)

    def unscale(self, weights: Sequence[torch.Tensor], microbatches: int) -> bool:
        """Undo the scale of the gradients of ``weights``, which are sums over the microbatches, and move it. Whether all are
        finite, and the sum of the squares of their means over the microbatches too, by which programs decide."""
        if self.numbers is None:
            return True
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        squares = sum(float((gradient.double() / microbatches).square().sum()) for gradient in gradients)
        wide = any(weight.dtype is torch.float64 for weight in weights)
        found = torch.tensor(float(not squares <= torch.finfo(torch.float64 if wide else torch.float32).max))
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, self.scale.double().reciprocal().float())
        numbers = self.numbers.growth, self.numbers.backoff, self.numbers.interval
        torch._amp_update_scale_(self.scale, self.steps, found, *numbers)
        self.skipped += int(found)
        return not found
