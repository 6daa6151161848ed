"""How a rank takes part in evaluations: all compute them together, rank 0 decides what comes of it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
import torch.distributed as dist

from dnnc.build.training import Step
from dnnc.engines.torch.launch.telling import Progressed, Telling
from dnnc.engines.torch.trainer import Trainer
from dnnc.engines.torch.watch.best import Best
from dnnc.engines.torch.watch.evaluation import Evaluation

_BETTER, _STOPS = 1, 2
"""What rank 0 decides: that an evaluation is the best so far, and that training stops."""


@dataclass
class Watching:
    """``end``: the step with which training ends; ``evaluation``: None where nothing is evaluated; ``best``: of rank 0;
    ``held``: the step that rank 0 tells of once it is evaluated."""

    step: Step
    telling: Telling
    every: int
    end: int
    evaluation: Evaluation | None = None
    best: Best | None = None
    held: list[Progressed] = field(default_factory=list)

    @classmethod
    def of(cls, trainer: Trainer, options: argparse.Namespace, telling: Telling, begin: int) -> Watching:
        """All ranks call this. Raises InvalidInput for data of an evaluation that do not fit the model; UsageError where there
        are no such data."""
        step, rank = trainer.step, trainer.rank
        watching = cls(step, telling, options.eval_every, begin + options.steps)
        if options.eval_data:
            watching.evaluation = Evaluation.of(step, trainer, options.eval_data, options.seed)
            if not rank:
                watching.best = Best.open(options.patience, options.checkpoint or options.out, begin)
        return watching

    def due(self, number: int) -> bool:
        """Whether the model is evaluated after so many steps."""
        return self.evaluation is not None and (number == self.end or bool(self.every and not number % self.every))

    def until(self, number: int, end: int) -> int:
        """The next step after ``number`` behind which it is evaluated, at most ``end``."""
        return min(end, number + self.every - number % self.every) if self.evaluation is not None and self.every else end

    def told(self, done: Progressed) -> None:
        """Tells of a step, once it is evaluated if it is."""
        if self.due(done.step):
            self.held.append(done)
        else:
            self.telling.step(done)

    def evaluate(self, number: int, mark: Callable[[str], None]) -> tuple[bool, bool]:
        """Whether the weights after so many steps are the best so far, and whether training stops. All ranks call this."""
        assert self.evaluation is not None
        metrics = self.evaluation(mark)
        said = 0
        if self.best is not None:
            better, stops = self.best.add(number, metrics), self.best.stops
            for done in self.held:
                self.telling.step(replace(done, metrics=metrics, best=better, stops=stops and number < self.end))
            self.held.clear()
            said = _BETTER * better | _STOPS * stops
        mark("waiting for what rank 0 decides of an evaluation")
        told = torch.tensor([said])
        if len(self.step.devices) > 1:
            dist.broadcast(told, 0)
        return bool(int(told) & _BETTER), bool(int(told) & _STOPS)
