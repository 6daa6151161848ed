"""The unsplit training step, by torch's autograd and torch.optim, on the samples that the ranks read."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

import torch

from dnnc.build.training import Step
from dnnc.data.samples import Data
from dnnc.engines.torch.check.averages import Averages
from dnnc.engines.torch.check.batch import SampleLosses, WholeBatch
from dnnc.engines.torch.check.optimizers import Scaler, move_averages, optimizer_of
from dnnc.engines.torch.check.unsplit import forward_only, initial_weights
from dnnc.engines.torch.checkpoint import Checkpoint, from_array
from dnnc.engines.torch.statements.run import compiled
from ir.core.ops import Op
from ir.ops.optimizers import NESTEROV, OPTIMIZERS, hyperparameters
from ir.ops.recipe import Recipe
from passes.meshes.reshard_ops import without_reshards


class Oracle:
    """The unsplit training step. ``weights``: of all resources, by name in the IR; ``done``: steps so far; ``batch``: that of a
    step in one piece, where there is no reason to keep microbatches ``apart``."""

    def __init__(self, step: Step, initial: Checkpoint, data: Data, *, shaken: int = 0) -> None:
        """``shaken``: trained weights begin one unit in the last place off, at random by this seed; 0: they do not."""
        self.step, self.data, self.done = step, data, 0
        self.weights = initial_weights(step, initial)
        self.trained = {op.operands[0]: op for op in update_ops(step)}
        forward = forward_only(step.module)
        self.averages = Averages.of(step, forward, self.weights)
        self.each = SampleLosses.of(step, forward)
        self.run = compiled(step.module, self.averages.shown(self.each.func))
        self.batch, self.apart = WholeBatch.of(step, self.each, data, self.weights)
        generator = torch.Generator().manual_seed(shaken)
        groups: dict[tuple[str, tuple[tuple[str, float], ...], bool], list[torch.Tensor]] = {}
        for name, op in self.trained.items():
            weight = self.weights[name]
            if shaken:
                signs = torch.randint(0, 2, weight.shape, generator=generator).to(weight.dtype) * 2 - 1
                weight.mul_(1 + signs * torch.finfo(weight.dtype).eps / 2)
            weight.requires_grad_(True)
            key = op.name.removeprefix("grad."), tuple(hyperparameters(op).items()), bool(op.get(NESTEROV, 0))
            groups.setdefault(key, []).append(weight)
        self.versions = {
            name: deque([self.weights[name].detach().clone()], maxlen=1 + late)
            for name, late in step.delays.items()
            if name in self.trained
        }
        self.recipe = Recipe.of(step.module.entry)
        self.optimizers = [optimizer_of(name, dict(numbers), own, nesterov=n) for (name, numbers, n), own in groups.items()]
        rates = self.recipe.schedule.at
        self.schedulers = [torch.optim.lr_scheduler.LambdaLR(optimizer, rates) for optimizer in self.optimizers]
        self.moving, self.scaler = step.averages, Scaler(self.recipe.loss_scale)
        self.taken, self.scale_before = True, self.scaler.scale.clone()

    def advance(self) -> float:
        """Do a step, and return its loss."""
        total = self.backward()
        self.judge()
        for optimizer, scheduler in zip(self.optimizers, self.schedulers, strict=True):
            if self.taken:
                optimizer.step()
            with warnings.catch_warnings(action="ignore"):  # where the first step is skipped, the rate moves first
                scheduler.step()
        if self.recipe.ema is not None:
            move_averages(self.weights, self.moving, self.recipe.ema, self.done + 1)
        for name, versions in self.versions.items():
            versions.append(self.weights[name].detach().clone())
        self.done += 1
        return total

    def backward(self) -> float:
        """Compute the gradients of the next step, of a scaled loss if it has a scale, and return its loss."""
        read = {**self.weights, **{name: versions[0].requires_grad_(True) for name, versions in self.versions.items()}}
        trained, weights = [read[name] for name in self.trained], [self.weights[name] for name in self.trained]
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        total = 0.0
        for loss in self.losses(read):
            add_gradients(weights, torch.autograd.grad(loss * self.scaler.scale, trained, allow_unused=True))
            total += loss.item()
        self.averages.settle(self.weights)
        return total

    def judge(self) -> None:
        """Undo the scale of the gradients and clip their norm; ``taken``: whether they and their norm are finite."""
        weights, self.scale_before = [self.weights[name] for name in self.trained], self.scaler.scale.clone()
        self.taken = self.scaler.unscale(weights, self.step.microbatches)
        if self.recipe.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(weights, self.recipe.clip_norm)

    def losses(self, read: Mapping[str, torch.Tensor]) -> Iterator[torch.Tensor]:
        """What adds up to the loss of the next step: that of its batch, or the share of each of its microbatches."""
        count = self.step.microbatches
        if self.batch is not None:
            yield self.batch.loss_of(read, self.done)
            return
        labels = self.each.labels(self.data, range(self.done * count, (self.done + 1) * count))
        for number in range(count):
            arrays = self.data.microbatch(self.done * count + number)
            inputs = {f"%{name}": from_array(array) for name, array in arrays.items()}
            each, *averages = self.run({**read, **self.averages.read(number), **inputs}, torch.device("cpu"))
            self.averages.move(number, averages)
            yield self.each.share(each, labels or each.numel() * count)


def add_gradients(weights: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]) -> None:
    """Add a microbatch's gradients to those of the weights.

    ``torch.autograd.backward`` would add in place, and to gradients that are views of one tensor (of biases that are reshaped
    and added): these would hold each other's sums."""
    for weight, gradient in zip(weights, gradients, strict=True):
        if gradient is None:
            continue
        if weight.grad is None:
            weight.grad = gradient.clone(memory_format=torch.contiguous_format)
        else:
            weight.grad.add_(gradient)


def update_ops(step: Step) -> list[Op]:
    """The ops that update weights; the weight is the first operand, as its resource."""
    entry = without_reshards(step.module.entry).func
    return [op for op in entry.ops if op.name in OPTIMIZERS]
