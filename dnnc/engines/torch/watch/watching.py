"""How a rank takes part in evaluations: rank 0 gathers the weights, computes and decides, the others wait for what it
decides."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
import torch.distributed as dist

from dnnc.build.training import Step, tensor_type
from dnnc.engines.torch.check.unsplit import forward_only, held_weights
from dnnc.engines.torch.exchange import torch_dtype
from dnnc.engines.torch.files import TrainingFiles
from dnnc.engines.torch.launch.faults import EvaluationTooLarge
from dnnc.engines.torch.launch.telling import Progressed, Telling
from dnnc.engines.torch.watch.best import Best
from dnnc.engines.torch.watch.evaluation import Evaluation
from ir.core.diagnostics import InvalidInput
from ir.core.topology import Topology
from ir.core.types import type_bytes

_TICK = 1.0
"""Seconds after which rank 0 tells the others that it still evaluates: they wait ``--timeout`` for each message."""
_GOES_ON, _DONE, _BETTER, _STOPS = 0, 1, 2, 4
"""What rank 0 tells: that it evaluates, that it has, and of that whether it is the best so far and whether training stops."""


@dataclass
class Watching:
    """``begin``, ``end``: the step after which training begins, and its last; ``evaluation``, ``best``: of rank 0; ``held``:
    the step that rank 0 tells of once it is evaluated."""

    step: Step
    telling: Telling
    rank: int
    every: int
    begin: int
    end: int
    evaluates: bool
    evaluation: Evaluation | None = None
    best: Best | None = None
    held: list[Progressed] = field(default_factory=list)

    @classmethod
    def of(cls, files: TrainingFiles, options: argparse.Namespace, telling: Telling, rank: int, begin: int) -> Watching:
        """Raises InvalidInput for data of an evaluation that do not fit the model, and for a model that does not fit the memory
        of rank 0; UsageError where there are no such data."""
        step, evaluates = files.step, bool(options.eval_data)
        watching = cls(step, telling, rank, options.eval_every, begin, begin + options.steps, evaluates)
        if evaluates and not rank:
            if not options.emulate:
                require_memory(step)
            held = held_weights(step, files.initial, files.resumed)
            watching.evaluation = Evaluation.of(step, forward_only(step.module), held, options.eval_data, options.seed)
            watching.best = Best.open(options.patience, options.checkpoint or options.out, begin)
        return watching

    def due(self, number: int) -> bool:
        """Whether the model is evaluated after so many steps."""
        return self.evaluates and (number == self.end or bool(self.every and not number % self.every))

    def until(self, number: int, end: int) -> int:
        """The next step after ``number`` behind which it is evaluated, at most ``end``."""
        return min(end, number + self.every - number % self.every) if self.evaluates and self.every else end

    def told(self, done: Progressed) -> None:
        """Tells of a step, once it is evaluated if it is."""
        if self.due(done.step):
            self.held.append(done)
        else:
            self.telling.step(done)

    def evaluate(
        self, number: int, weights: Callable[[], dict[str, torch.Tensor]], mark: Callable[[str], None]
    ) -> tuple[bool, bool]:
        """Whether the weights after so many steps are the best so far, and whether training stops. All ranks call this.
        ``weights``: gathers those that training changes on rank 0."""
        mark("gathering weights for an evaluation")
        whole = weights()
        mark("waiting for an evaluation")
        if self.evaluation is None or self.best is None:
            while (said := self._agreed(_GOES_ON)) == _GOES_ON:
                pass
            return bool(said & _BETTER), bool(said & _STOPS)
        last = time.monotonic()

        def marked(words: str) -> None:
            nonlocal last
            mark(words)
            if time.monotonic() - last > _TICK:
                last = time.monotonic()
                self._agreed(_GOES_ON)

        metrics = self.evaluation(whole, marked)
        better = self.best.add(number, metrics)
        stops = self.best.stops
        for done in self.held:
            self.telling.step(replace(done, metrics=metrics, best=better, stops=stops and number < self.end))
        self.held.clear()
        self._agreed(_DONE | _BETTER * better | _STOPS * stops)
        return better, stops

    def _agreed(self, said: int) -> int:
        """What rank 0 says, on each rank."""
        tensor = torch.tensor([said])
        if len(self.step.devices) > 1:
            dist.broadcast(tensor, 0)
        return int(tensor)


def require_memory(step: Step) -> None:
    """Raises InvalidInput where the memory of rank 0 cannot hold the weights of the whole model beside its own. A model that it
    accepts may still be too large: values of the forward pass are not counted."""
    topology = step.module.first(Topology)
    limit = topology.memory(topology.device(step.devices[0])) if topology is not None else None
    if limit is None:
        return
    read = {name for op in forward_only(step.module).ops for name in op.operands}
    whole = sum(type_bytes(tensor_type(resource.type)) or 0 for name, resource in step.resources.items() if name in read)
    own = sum(
        math.prod(length for _, length in box) * torch_dtype(tensor_type(step.resources[name].type).dtype).itemsize
        for name, box in step.held(0).items()
    )
    if whole + own > limit:
        raise InvalidInput(EvaluationTooLarge(step.devices[0], whole, own, limit), where="--eval-data")


__all__ = ["Watching", "require_memory"]
