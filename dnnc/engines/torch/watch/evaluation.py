"""The loss and the metrics of the model on data of their own: a pass over all of them, in the mode of inference.

The ranks compute it together, each the forward passes of its stages on what it holds (``forward_step``): batch normalisation
uses its running averages, dropouts drop nothing. Each sums what it computed, and the sums are added up in the end, so no rank
needs more memory than for a step. Of a cross entropy the metrics are ``accuracy``, the fraction of labels that count whose
class has the highest score, and ``perplexity``, exp(loss). The loss is the mean over all samples (over labels that count), so
it does not depend on how samples are dealt to microbatches. A loss that the model computes itself is the mean over whole
microbatches; ``left_out`` is then the number of samples behind the last of them, where there are any.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist

from dnnc.build.training import Step, tensor_type
from dnnc.data.faults import RanksEvaluateOtherSamples
from dnnc.data.repeated import digest_of
from dnnc.data.samples import Pass, data_inputs, verify_pass
from dnnc.engines.torch.faults import NothingEvaluated
from dnnc.engines.torch.trainer import Running, Trainer
from dnnc.engines.torch.watch.forward_step import ForwardStep
from ir.core.diagnostics import InvalidInput
from passes.costs.learning import CROSS_ENTROPY, IGNORED, samples_of

Metrics = dict[str, float]
"""``loss``, and for a cross entropy ``accuracy`` and ``perplexity``; ``left_out``, samples that were not evaluated."""
_LOSS, _COUNT, _RIGHT = range(3)
"""Places in the sums: of losses, how many they are, and labels with the highest score."""


class _Forward(Trainer):
    """Runs forward passes; ``sums``: of what this rank computed."""

    def __init__(self, forward: ForwardStep, of: Trainer, mark: Callable[[str], None]) -> None:
        network = replace(of.network, step=forward.step, outgoing=[], here={}, rows={}, most=0)
        super().__init__(forward.step, of.rank, forward.functions, of.weights, network, mark)
        self.forward, self.every = forward, self.row
        self.totals, self.counting = torch.zeros(3, dtype=torch.float64), dict[int, float]()

    def pass_over(self, data: Pass, numbers: range, place: int) -> None:
        """The forward passes of these microbatches, as batch ``place``."""
        self.row = tuple(action for action in self.every if (action.microbatch or 0) < len(numbers))
        self.counting = {number: data.counting(number) for number in numbers}
        for _ in self.run(place, 1, data):
            pass

    def made(self, running: Running, number: int, outputs: Mapping[str, torch.Tensor]) -> None:
        losses = self.forward.losses
        name = losses.func.results[0].name[1:]
        first = self.forward.first_rows(running.stage, self.rank, number % self.microbatches) if name in outputs else None
        if first is None:
            return
        each, counting = outputs[name], self.counting[number]
        if not losses.known:
            if counting == 1.0:
                self.totals[_LOSS] += float(each)
                self.totals[_COUNT] += 1
        elif not losses.loss.counted:
            (whole, *_) = tensor_type(losses.func.results[0].type).shape or ()
            assert isinstance(whole, int)
            rows = each[: max(0, round(counting * whole) - first)]
            self.totals[_LOSS] += float(rows.double().sum())
            self.totals[_COUNT] += rows.numel()
        elif self.forward.scored:
            scores, labels = (outputs[value] for value in running.results[1:])
            counts = labels != IGNORED
            self.totals[_LOSS] += float(each.double().sum())
            self.totals[_COUNT] += int(counts.sum())
            self.totals[_RIGHT] += int(((scores.argmax(1) == labels) & counts).sum())


@dataclass(frozen=True)
class Evaluation:
    """Of one rank; all ranks call it together. ``source``: the data; ``parts``: the rows that the rank reads."""

    step: Step
    source: str
    seed: int
    forward: ForwardStep
    trainer: Trainer
    parts: Mapping[str, tuple[int, int] | None]

    @classmethod
    def of(cls, step: Step, trainer: Trainer, source: str, seed: int) -> Evaluation:
        """Of the model that ``trainer`` trains, on the data ``source``, which are opened and verified now. Raises UsageError,
        InvalidInput."""
        forward = ForwardStep.of(step)
        parts = forward.step.rows_read(trainer.rank)
        identity = verify_pass(source, step.module, seed, trainer.rank, len(step.devices), parts)
        if identity is not None:
            require_same(identity.hex(), len(step.devices), source)
        return cls(step, source, seed, forward, trainer, parts)

    def __call__(self, mark: Callable[[str], None]) -> Metrics:
        """The metrics, on each rank. ``mark``: is told what is done. Raises InvalidInput for data that do not fit the model."""

        def marked(doing: str) -> None:
            mark(f"evaluation: {doing.replace(' in step ', ' of batch ')}")

        runs = _Forward(self.forward, self.trainer, marked)
        data = Pass.of(self.source, self.step.module, self.seed, self.parts)
        done, left_out, place = 0, 0.0, 0
        with torch.no_grad():
            while True:
                numbers = data.coming(done, runs.microbatches)
                if data.streams:
                    self._agree(data, numbers)
                if not numbers:
                    break
                runs.pass_over(data, numbers, place)
                left_out += sum(counting for counting in runs.counting.values() if counting < 1.0)
                done, place = numbers.stop, place + 1
        if len(self.step.devices) > 1:
            dist.all_reduce(runs.totals)
        return self._metrics(runs.totals.tolist(), round(left_out * samples_of(self.step.module.entry)))

    def _metrics(self, totals: list[float], left_out: int) -> Metrics:
        losses, count = self.forward.losses, totals[_COUNT]
        if not count:
            raise InvalidInput(NothingEvaluated(), where=self.source)
        loss = totals[_LOSS] / count
        if losses.loss.kind != CROSS_ENTROPY:
            return {"loss": loss, **({"left_out": float(left_out)} if left_out and not losses.known else {})}
        accuracy = {"accuracy": totals[_RIGHT] / count} if self.forward.scored else {}
        return {"loss": loss, **accuracy, "perplexity": math.exp(min(loss, 700.0))}

    def _agree(self, data: Pass, numbers: range) -> None:
        """Raises InvalidInput where a function gave ranks other samples, or another number of them."""
        names = [port.name for port in data_inputs(self.step.module)]
        read = [digest_of({name: data.microbatch(number)[name] for name in names}) for number in numbers]
        require_same(" ".join(read), len(self.step.devices), self.source)


def require_same(told: str, ranks: int, source: str) -> None:
    """Raises InvalidInput where another rank calls this with another text, since it reads other samples. All ranks call
    this."""
    if ranks == 1:
        return
    own = torch.frombuffer(bytearray(hashlib.sha256(told.encode()).digest()), dtype=torch.uint8)
    others = [torch.empty_like(own) for _ in range(ranks)]
    dist.all_gather(others, own)
    if any(not torch.equal(own, other) for other in others):
        raise InvalidInput(RanksEvaluateOtherSamples(source), where=source)
