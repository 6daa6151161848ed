"""What a rank knows of the scale of the loss: whether the scale excuses gradients that are not finite, or training ends.

The ranks whose update moves the scale decide (``Scale.decided``). A rank that does not hold the scale moves a copy of its own:
its update receives whether the step is taken, all that the next scale depends on. So each rank that updates weights knows when
the scale is too small to be the reason for a gradient that is not finite, and names the op. Where no rank can name one, since
the norm of finite gradients overflows or the rank updates no weight, the deciding rank ends the training behind the step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from dnnc.build.training import Step
from dnnc.engines.torch.faults import GradientsNotFinite
from dnnc.engines.torch.statements.update_helpers import moved_loss_scale
from ir.core.diagnostics import InvalidInput
from ir.ops.loss_scale import LOSS_SCALE, moved_by

LEAST_SCALE = 2.0**-14
"""The scale of the loss below which gradients that are not finite are no longer put down to the scale: what made them is
named. It is the least normal number of half precision."""


@dataclass(slots=True)
class Scale:
    """``scale``, ``steps``, ``skipped``: names of weights, empty where the loss has no scale; ``known``: whether the rank holds
    the scale or can move a copy; ``flag``: the channel that tells a rank with a copy whether the step is taken, None on others;
    ``before``: what was decided of the last step."""

    weights: Mapping[str, torch.Tensor]
    scale: str = ""
    steps: str = ""
    skipped: str = ""
    moves: tuple[float, float, int] = (1.0, 1.0, 1)
    known: bool = False
    flag: int | None = None
    before: tuple[float, int] | None = None

    @classmethod
    def of(cls, step: Step, rank: int, weights: Mapping[str, torch.Tensor]) -> Scale:
        """Of a rank with these weights (``Step.loaded``)."""
        op = next((op for op in step.module.entry.ops if op.name == LOSS_SCALE), None)
        if op is None:
            return cls(weights)
        mine, held = step.stages_of(rank), step.held(rank)
        flags = [n for n, one in step.channels.items() if one.target in mine and one.sent == op.results[3].name]
        scale, steps, skipped = (name[1:] for name in op.operands[:3])
        holds, decides = op.operands[0] in held, op.operands[2] in held
        flag = None if holds else min(flags, default=None)
        known = holds or flag is not None
        found = cls(weights, scale, steps, skipped if decides else "", moved_by(op), known, flag)
        found.before = found.decided
        return found

    @property
    def decided(self) -> tuple[float, int] | None:
        """The scale behind the last step, and how many steps were skipped, where this rank decides on it."""
        return (float(self.weights[self.scale]), int(self.weights[self.skipped])) if self.skipped else None

    @property
    def excuses(self) -> bool:
        """Whether gradients that are not finite are put down to the scale, as on a rank that does not know it. Then the update
        skips the step."""
        return bool(self.scale) and (not self.known or float(self.weights[self.scale]) >= LEAST_SCALE)

    def arrived(self, channel: int, tensor: torch.Tensor) -> None:
        """Moves this rank's copy where what an update received is whether the step is taken."""
        if channel == self.flag:
            growth, backoff, interval = self.moves
            scale, steps = self.weights[self.scale], self.weights[self.steps]
            squares = torch.tensor(0.0 if bool(tensor) else math.inf)
            moved = moved_loss_scale(scale, steps, steps, squares, growth=growth, backoff=backoff, interval=interval)
            scale.copy_(moved[0])
            steps.copy_(moved[1])

    def require_taken(self, number: int) -> None:
        """Raises InvalidInput where this rank has decided to skip step ``number``, counted from 0, though the scale was below
        the least."""
        before, self.before = self.before, self.decided
        if before is not None and self.before is not None and before[0] < LEAST_SCALE and self.before[1] > before[1]:
            raise InvalidInput(GradientsNotFinite(f"{before[0]:g}"), where=f"step {number + 1}")
