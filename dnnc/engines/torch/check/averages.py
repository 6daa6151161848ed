"""The running averages of batch normalisation in the unsplit step: each microbatch moves them, in order. A layer
that the model calls twice moves them twice.

Replicas of a stage take microbatches in turn, and each moves averages of its own, by the momentum of as many microbatches as
there are replicas; behind the step all go on from the mean of these (phase U of ``plan.ir``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from dnnc.build.training import Step
from ir.core.facets import StageSet
from ir.core.module import Func
from ir.core.ops import Op, Value
from ir.ops.grads import BATCH_NORMALIZATION, averages_in_order


@dataclass(frozen=True)
class Averages:
    """``new[average]``: what a microbatch makes of it; ``held[average]``: those of each replica of its stage."""

    new: Mapping[str, Value]
    held: Mapping[str, list[torch.Tensor]]

    @classmethod
    def of(cls, step: Step, forward: Func, weights: Mapping[str, torch.Tensor]) -> Averages:
        """Those that the ops of ``forward`` move, beginning as ``weights`` have them."""
        new, held = dict[str, Value](), dict[str, list[torch.Tensor]]()
        for op, average, made in _moves(forward):
            stage = step.stages[op.facet(StageSet, StageSet((0,))).stages[0]]
            new[average] = made
            held[average] = [weights[average].clone() for _ in range(1 if stage.mesh else len(stage.devices))]
        return cls(new, held)

    def shown(self, forward: Func) -> Func:
        """``forward`` with what averages become as further results, in the order of ``new``."""
        return replace(forward, ops=averages_in_order(forward.ops), results=(*forward.results, *self.new.values()))

    def read(self, microbatch: int) -> dict[str, torch.Tensor]:
        """What a microbatch, counted from 0 in its step, finds."""
        return {average: held[microbatch % len(held)] for average, held in self.held.items()}

    def move(self, microbatch: int, made: Sequence[torch.Tensor]) -> None:
        """``made``: what the microbatch made of the averages, in the order of ``new``."""
        for held, tensor in zip(self.held.values(), made, strict=True):
            held[microbatch % len(held)] = tensor.detach()

    def settle(self, weights: dict[str, torch.Tensor]) -> None:
        """End a step: what the averages are then goes into ``weights``."""
        for average, held in self.held.items():
            mean = torch.stack([*held]).mean(0) if len(held) > 1 else held[0]
            weights[average] = mean
            held[:] = [mean] * len(held)


def _moves(forward: Func) -> Iterator[tuple[Op, str, Value]]:
    for op in forward.ops:
        if op.name == BATCH_NORMALIZATION and op.get("training_mode", 0):
            pairs = zip(op.operands[3:5], op.results[1:3], strict=False)
            yield from ((op, average, made) for average, made in pairs if made.name and average[:1] == "@")
