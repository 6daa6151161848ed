"""One step of a training with products of 16 bits, compared by itself: both sides begin with the weights that the ranks had.

In 16 bits rounding changes a gradient by a percent of its range, and Adam divides each of its elements by the element's own
size: one that is rounding alone moves its weight as far as any other. So right weights drift apart, by as much as they move.
In place of them are compared, in each step,

- the gradients. The ranks' own follow from what a step changed, as precisely as float32 is: from the average of gradients of
  Adam, the momentum, or of plain SGD the weight;
- the weights and the state: those that torch.optim makes of the ranks' gradients, in float32.

Then the oracle goes on from what the ranks have, so no difference of a step reaches the next. How far rounding may take a
gradient is measured (``noise``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch

from dnnc.build.training import Step
from dnnc.engines.torch.check.optimizers import move_averages, optimizer_of
from dnnc.engines.torch.check.oracle import Oracle
from ir.core.ops import Op
from ir.ops.optimizers import NESTEROV, STATE, UpdateOperands, hyperparameters

SHAKEN = 3
"""Gradients from weights that are rounded otherwise: what one of them changes is a matter of chance."""
TOLD_BY = {"sgd": "", "momentum": "momentum", "adam": "exp_avg", "adamw": "exp_avg"}
"""Optimizers after a step of which its gradient is known, with the state that tells it; empty for the weight itself."""
_IN_TORCH = {"momentum": "momentum_buffer"}
"""Names of states in torch.optim, where they differ."""

Tensors = Mapping[str, torch.Tensor]


@dataclass
class SingleSteps:
    """``oracle``: has done the step that is compared; ``other``: makes one more; ``narrow``: the type of 16 bits; ``before``:
    what the ranks had before the step, by name in the IR."""

    step: Step
    oracle: Oracle
    other: Callable[[], Oracle]
    narrow: torch.dtype
    before: dict[str, torch.Tensor]
    shaken: Oracle | None = None
    changes: list[dict[str, float]] = field(default_factory=list)

    def mine(self, name: str) -> torch.Tensor:
        """The gradient of a weight in the unsplit model, as its optimizer gets it."""
        gradient = self.oracle.weights[name].grad
        return torch.zeros_like(self.before[name]) if gradient is None else gradient

    def theirs(self, name: str, after: Tensors) -> tuple[torch.Tensor, float]:
        """That of the ranks, and how far float32 may have rounded it. ``after``: what they have behind the step."""
        numbers, op = self.numbers(name), self.oracle.trained[name]
        weight, decay = self.before[name], numbers["weight_decay"] if op.name != "grad.adamw" else 0.0
        told = self.states(op).get(TOLD_BY[op.name.removeprefix("grad.")], name)
        old, new = self.before[told], after[told]
        kept, factor = 1.0, -numbers["learning_rate"]
        if told != name:
            kept = numbers.get("momentum", numbers.get("beta1", 0.0))
            factor = 1.0 if "momentum" in numbers else 1.0 - kept
        if not factor:
            return self.mine(name), 0.0
        gradient = ((new.double() - kept * old.double()) / factor - decay * weight.double()).float()
        largest = max(float(one.abs().max()) if one.numel() else 0.0 for one in (old, new))
        return gradient, 4 * torch.finfo(new.dtype).eps * largest / abs(factor)

    def following(self, name: str, gradient: torch.Tensor, after: Tensors) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
        """The weight and its state that torch.optim makes of this gradient, each with its name and that of the ranks."""
        op, states = self.oracle.trained[name], self.states(self.oracle.trained[name])
        expected = {other: self.before[other].clone() for other in (name, *states.values())}
        if self.oracle.taken:
            weight = expected[name].requires_grad_(True)
            weight.grad = gradient.to(weight.dtype, copy=True)
            nesterov = bool(op.get(NESTEROV, 0))
            optimizer = optimizer_of(op.name.removeprefix("grad."), self.numbers(name), [weight], nesterov=nesterov)
            count = torch.tensor(float(self.oracle.done - 1 - self.oracle.scaler.skipped))
            held = {_IN_TORCH.get(suffix, suffix): expected[state] for suffix, state in states.items()}
            optimizer.state[weight] = {"step": count, **held}
            optimizer.step()
        yield from ((other, value.detach(), after[other]) for other, value in expected.items())
        moved = {average: self.before[average].clone() for average, of in self.step.averages.items() if of == name}
        if moved and self.oracle.recipe.ema is not None:
            averages = {average: name for average in moved}
            move_averages({**moved, name: after[name]}, averages, self.oracle.recipe.ema, self.oracle.done)
            yield from ((average, value, after[average]) for average, value in moved.items())

    def noise(self, name: str) -> float:
        """The most by which an element of a gradient changes where weights are rounded otherwise: each is half a unit in the
        last place of the 16 bits larger or smaller."""
        for number in range(SHAKEN if not self.changes else 0):
            shaken = self.shaken = self.shaken or self.other()
            generator = torch.Generator().manual_seed(self.oracle.done * SHAKEN + number)
            with torch.no_grad():
                for trained in shaken.trained:
                    weight = self.before[trained]
                    signs = torch.randint(0, 2, weight.shape, generator=generator).to(weight.dtype) * 2 - 1
                    shaken.weights[trained].copy_(weight * (1 + signs * torch.finfo(self.narrow).eps / 2))
            shaken.done = self.oracle.done - 1
            shaken.scaler.scale = self.oracle.scale_before.clone()
            shaken.backward()
            shaken.judge()
            gradients = {one: shaken.weights[one].grad for one in shaken.trained}
            there = {one: gradient for one, gradient in gradients.items() if gradient is not None and gradient.numel()}
            self.changes.append({one: float((gradient - self.mine(one)).abs().max()) for one, gradient in there.items()})
        return max((change[name] for change in self.changes if name in change), default=0.0)

    def go_on(self, after: Tensors) -> None:
        """The oracle's next step begins with what the ranks have."""
        self.changes.clear()
        state = {id(weight): held for optimizer in self.oracle.optimizers for weight, held in optimizer.state.items()}
        with torch.no_grad():
            for name, op in self.oracle.trained.items():
                weight = self.oracle.weights[name]
                weight.copy_(after[name])
                for suffix, of in self.states(op).items():
                    held = state.get(id(weight), {}).get(_IN_TORCH.get(suffix, suffix))
                    if held is not None:
                        held.copy_(after[of])
            for average in self.step.averages:
                self.oracle.weights[average].copy_(after[average])
        self.before.update((name, tensor.clone()) for name, tensor in after.items())

    def numbers(self, name: str) -> dict[str, float]:
        """Those of the optimizer in this step."""
        numbers = hyperparameters(self.oracle.trained[name])
        return {**numbers, "learning_rate": numbers["learning_rate"] * self.oracle.recipe.schedule.at(self.oracle.done - 1)}

    @staticmethod
    def states(op: Op) -> dict[str, str]:
        """The resources that are the state of a weight, by their names in ``ir.ops.optimizers.STATE``."""
        return dict(zip(STATE[op.name.removeprefix("grad.")], UpdateOperands.of(op).states, strict=True))
