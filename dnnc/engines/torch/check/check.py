"""``dnnc train --check``: the same steps of the unsplit model under torch's autograd and torch.optim, compared weight by
weight.

The oracle runs the forward ops of ``plan.ir``'s entry function on the same samples from the same weights: on all of a step in
one piece where the model allows it (``batch``), else microbatch by microbatch. Autograd and torch.optim do what the programs do
by their own ops, and the oracle itself counts the labels that the loss of a step is divided by. After each step every trained
weight is compared: its largest difference over its range is at most 1e-6 for SGD and 1e-5 for Adam, beside four units in the
last place of its largest element. Where products are computed in 16 bits, and each step has a flush, gradients are compared in
place of weights, step by step (``single_steps``); of Adafactor, and without a flush, weights to 5e-3 (``NARROW``).

Some weights follow rounding errors alone: Adam divides a gradient that should be zero by its own size (the bias of keys in
attention). So where a weight differs by more, the oracle is run again, ``SHAKEN`` times, from weights that differ in the last
place, and the most that this changes, times ``NOISE``, is allowed too. A weight of which that would be over ``LOOSE`` of its
range is not compared, and is named; of a loss no more than ``LOOSE`` is allowed.

Where rows have no flush, the oracle reads of each weight the version that its stage works with (``Step.delays``), and weights
are compared after the last step: a checkpoint empties the pipeline, and steps after it would find newer weights.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from dnnc.build.training import Step
from dnnc.data.faults import CheckReadOtherSamples
from dnnc.data.repeated import Digested, Repeated
from dnnc.data.samples import SYNTHETIC, open_data
from dnnc.engines.torch.check.oracle import Oracle, update_ops
from dnnc.engines.torch.check.single_steps import TOLD_BY, SingleSteps
from dnnc.engines.torch.checkpoint import Checkpoint
from dnnc.engines.torch.exchange import torch_dtype
from dnnc.engines.torch.faults import (
    GradientDiffers,
    LossDiffers,
    ModelLossNotFinite,
    ModelWeightNotFinite,
    NothingCompared,
    NothingTrained,
    WeightDiffers,
)
from dnnc.engines.torch.files import TrainingFiles
from dnnc.engines.torch.launch.telling import Progressed
from dnnc.engines.torch.launch.training import TrainingBuild, TrainOptions, train
from ir.core.diagnostics import CheckFailed, InvalidInput
from ir.core.ops import Op
from ir.core.types import DType, TensorType, without_layout
from ir.ops.grads import ASSIGN
from ir.system.scratch import scratch_folder

TOLERANCES = {"sgd": 1e-6, "momentum": 1e-6, "adam": 1e-5, "adamw": 1e-5, "adafactor": 1e-5}
"""By optimizer: the difference over the range of a weight that passes."""
AVERAGES = 1e-5
"""The same of running averages of batch normalisation."""
LOSS = 1e-5
"""The difference of losses that passes, over the loss where that is larger than 1."""
NARROW = 5e-3
"""The same of gradients and losses where products are computed in 16 bits: a number of bfloat16 is rounded by up to 4e-3, and
plans round other sums."""
ROUNDED = 2.0
"""How many times as far as rounding weights otherwise takes a gradient of 16 bits that of ranks may be; 0.62 times was seen."""
LOOSE_GRADIENT = 0.5
"""The most that is allowed for rounding of 16 bits, over the range of a gradient."""
NOISE = 50.0
"""How many times as far as two runs of the oracle a rank may be: each follows rounding errors of its own, and 15 times was
seen. A wrong gradient shows in the weights that do not follow rounding errors."""
SHAKEN = 3
"""Runs from weights that differ in the last place: what one of them changes is a matter of chance."""
LOOSE = 0.1
"""The most that is allowed for rounding, over the range of a weight, and over a loss where that is larger than 1."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was compared. ``late``: how many updates at most the weights lack that a stage works with. ``worst``: the largest
    difference over its range of a weight that was, and its name, or where steps were compared by themselves (``single``) of its
    gradient; ``loose``: weights that rounding alone changes too much;
    ``noisy``: those that were allowed more. ``apart``: why the unsplit model took its microbatches one by one; empty where it
    took the batch of each step in one piece."""

    steps: int
    weights: int
    late: int
    worst: tuple[float, str]
    loss: float
    noisy: tuple[str, ...]
    loose: tuple[str, ...]
    apart: str
    single: bool = False

    @property
    def text(self) -> str:
        """What was shown, as sentences."""
        when = f"each of {self.steps}" if not self.late else f"{self.steps}"
        model = "the unsplit model" + (f" with weights up to {self.late} updates old" if self.late else "")
        batch = "each batch in one piece" if not self.apart else f"microbatches one by one: {self.apart}"
        of, each = ("a gradient's range", ", each by itself,") if self.single else ("a weight's range", "")
        return (
            f"passed: {self.weights} weights after {when} steps{each} are those of {model}; largest difference "
            f"{self.worst[0]:.1e} of {of} ({self.worst[1] or 'none'}), {self.loss:.1e} of a loss\n"
            f"the unsplit model took {batch}"
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "weights": self.weights,
            "late": self.late,
            "worst": {"difference": self.worst[0], "weight": self.worst[1]},
            "loss_difference": self.loss,
            "noisy": list(self.noisy),
            "not_compared": list(self.loose),
            "batch": {"in_one_piece": not self.apart, "reason": self.apart},
        }


@dataclass
class Checker:
    """Compares the steps of ranks, as they are done, with those of the oracle."""

    files: TrainingFiles
    data: str
    seed: int
    last_batch: str = ""
    losses: list[float] = field(default_factory=list)
    worst: tuple[float, str] = (0.0, "")
    worst_loss: float = 0.0
    noisy: dict[str, None] = field(default_factory=dict)
    loose: dict[str, None] = field(default_factory=dict)
    shaken_losses: list[tuple[float, ...]] = field(default_factory=list)

    @property
    def step(self) -> Step:
        return self.files.step

    @property
    def folder(self) -> Path:
        return self.files.build.folder

    @cached_property
    def oracle(self) -> Oracle:
        return self._oracle(0)

    @cached_property
    def compared(self) -> dict[str, float]:
        """The weights that change, with the difference over its range that passes: those that are trained, and running averages
        (not of replicas without a flush, whose next steps move them before they are averaged)."""
        trained = {name: TOLERANCES[op.name.removeprefix("grad.")] for name, op in self.oracle.trained.items()}
        held = self.oracle.averages.held
        flush = not self.step.schedule.periodic
        averaged = {name: trained[of] for name, of in self.oracle.moving.items()}
        running = {name: AVERAGES for name, replicas in held.items() if flush or len(replicas) == 1}
        return {name: max(allowed, self.narrow) for name, allowed in (trained | averaged | running).items()}

    @cached_property
    def narrow(self) -> float:
        """``NARROW`` where the model computes in 16 bits, else 0."""
        return NARROW if self.sixteen is not None else 0.0

    @cached_property
    def sixteen(self) -> DType | None:
        """The type of 16 bits in which the model computes, if it does."""
        made = (without_layout(value.type) for op in self.step.module.entry.ops for value in op.results)
        types = {type_.dtype for type_ in made if isinstance(type_, TensorType)}
        return next((dtype for dtype in (DType.BF16, DType.F16) if dtype in types), None)

    @cached_property
    def single(self) -> SingleSteps | None:
        """What compares steps by themselves; None where weights are compared."""
        names = {op.name.removeprefix("grad.") for op in self.oracle.trained.values()}
        if self.sixteen is None or self.step.schedule.periodic or not names <= TOLD_BY.keys():
            return None
        before = {name: tensor.detach().clone() for name, tensor in self.oracle.weights.items()}
        return SingleSteps(self.step, self.oracle, lambda: self._oracle(0), torch_dtype(self.sixteen), before)

    @cached_property
    def shaken(self) -> list[Oracle]:
        return [self._oracle(seed) for seed in range(1, 1 + SHAKEN)]

    @cached_property
    def samples(self) -> Digested:
        """What all oracles read."""
        microbatches = self.step.microbatches
        data = open_data(self.data, self.step.module, self.seed, microbatches, last=self.last_batch)
        return Digested(Repeated(data, self.data), microbatches, 0)

    def _oracle(self, shaken: int) -> Oracle:
        return Oracle(self.step, self.files.initial, self.samples, shaken=shaken)

    def compare_samples(self, number: int, digest: str) -> None:
        """Those up to the end of step ``number``, counted from 0, by the digest that ranks tell of them, before the next step
        is read. Raises InvalidInput for others."""
        mine = self.samples.through(number)
        if self.data != SYNTHETIC and digest != mine.hex():
            raise InvalidInput(CheckReadOtherSamples(self.data, number + 1), where=self.data)

    def compare(self, weights: Mapping[str, torch.Tensor]) -> None:
        """The weights after the next step. Raises CheckFailed, which names the first weight that differs."""
        single = self.single
        self.advance()
        if single is not None:
            self._compare_single(single, {f"@{name}": tensor for name, tensor in weights.items()})
        for name, tolerance in self.compared.items():
            if name in self.loose or (single is not None and name not in self.oracle.averages.held):
                continue
            mine, theirs = self.oracle.weights[name].detach(), weights[name[1:]]
            scale = _range(mine)
            if not bool(torch.isfinite(mine).all()):
                raise CheckFailed(ModelWeightNotFinite(name[1:], self.oracle.done), where=str(self.folder))
            difference = _furthest(mine, theirs)
            allowed = tolerance * scale + _last_places(mine)
            if not difference <= allowed:  # also where it is no number
                noise = self._noise(name, mine)
                if NOISE * noise > LOOSE * scale and math.isfinite(difference):
                    self.loose[name] = None
                    continue
                if not difference <= allowed + NOISE * noise:
                    self._fail(name, difference, scale, allowed + NOISE * noise)
                self.noisy[name] = None
            beyond = max(0.0, difference - _last_places(mine)) / scale  # a range may be no more than rounding
            if beyond > self.worst[0]:
                self.worst = (beyond, name[1:])

    def _compare_single(self, single: SingleSteps, after: Mapping[str, torch.Tensor]) -> None:
        """Gradients of the step, and what follows from them; the next step then begins with what the ranks have."""
        for name, op in self.oracle.trained.items():
            gradient, places = single.theirs(name, after)
            for other, expected, found in single.following(name, gradient, after):
                if not bool(torch.isfinite(expected).all()):
                    raise CheckFailed(ModelWeightNotFinite(other[1:], self.oracle.done), where=str(self.folder))
                difference, scale = _furthest(expected, found), _range(expected)
                allowed = TOLERANCES[op.name.removeprefix("grad.")] * scale + _last_places(expected)
                if not difference <= allowed:
                    self._fail(other, difference, scale, allowed)
            if name in self.loose or not self.oracle.taken:
                continue
            mine = single.mine(name)
            scale, difference = _range(mine), _furthest(mine, gradient)
            allowed = NARROW * scale + places
            if not difference <= allowed:
                noise = ROUNDED * single.noise(name)
                if noise > LOOSE_GRADIENT * scale and math.isfinite(difference):
                    self.loose[name] = None
                    continue
                if not difference <= allowed + noise:
                    self._fail(name, difference, scale, allowed + noise, GradientDiffers)
                self.noisy[name] = None
            if (beyond := max(0.0, difference - places) / scale) > self.worst[0]:
                self.worst = (beyond, name[1:])
        single.go_on(after)

    def advance(self) -> None:
        """Do a step, whose loss can then be compared."""
        self.losses.append(self.oracle.advance())

    def compare_loss(self, number: int, loss: float) -> None:
        """The loss of step ``number``, counted from 0. Raises CheckFailed."""
        mine = self.losses[number]
        if not math.isfinite(mine):
            raise CheckFailed(ModelLossNotFinite(number + 1), where=str(self.folder))
        difference = abs(loss - mine) / max(1.0, abs(mine))
        allowed = max(LOSS, self.narrow)
        if not difference <= allowed:
            self._shake(number + 1)
            allowed += min(LOOSE, NOISE * max(self._loss_noise(step) for step in range(number + 1)))
        if not difference <= allowed:
            flush = not self.step.schedule.periodic
            raise CheckFailed(LossDiffers(number + 1, f"{loss:.9g}", f"{mine:.9g}", int(flush)), where=self._last_stage())
        self.worst_loss = max(self.worst_loss, difference)

    def verdict(self) -> Verdict:
        """Raises CheckFailed where nothing was compared."""
        compared = len(self.compared) - len(self.loose)
        if not compared or not self.losses:
            raise CheckFailed(NothingCompared(), where=str(self.folder))
        late = max(self.step.delays.values(), default=0)
        told = self.worst, self.worst_loss, _bare(self.noisy), _bare(self.loose), self.oracle.apart
        return Verdict(len(self.losses), compared, late, *told, self.single is not None)

    def _noise(self, name: str, mine: torch.Tensor) -> float:
        """How far rounding alone takes a weight."""
        self._shake(self.oracle.done)
        return max(_furthest(mine, shaken.weights[name].detach()) for shaken in self.shaken)

    def _loss_noise(self, number: int) -> float:
        """How far rounding alone takes the loss of a step, over the loss where that is larger than 1."""
        mine = self.losses[number]
        return max(abs(shaken - mine) for shaken in self.shaken_losses[number]) / max(1.0, abs(mine))

    def _shake(self, steps: int) -> None:
        while len(self.shaken_losses) < steps:
            self.shaken_losses.append(tuple(shaken.advance() for shaken in self.shaken))

    def _fail(
        self,
        name: str,
        difference: float,
        scale: float,
        allowed: float,
        fault: type[WeightDiffers | GradientDiffers] = WeightDiffers,
    ) -> None:
        stage = next((stage for stage in self.step.stages if any(_assigns(op, name) for op in stage.ops)), None)
        where = f"stage {stage.index} on {', '.join(stage.devices)}" if stage is not None else str(self.folder)
        parts = f"{difference / scale:.2g}", f"{allowed / scale:.2g}"
        raise CheckFailed(fault(name[1:], self.oracle.done, *parts), where=where)

    def _last_stage(self) -> str:
        stage = self.step.stages[-1]
        return f"stage {stage.index} on {', '.join(stage.devices)}"


def _assigns(op: Op, name: str) -> bool:
    return op.name == ASSIGN and op.operands[0] == name


def _furthest(one: torch.Tensor, other: torch.Tensor) -> float:
    if one.shape != other.shape:
        return math.inf
    return float((one.double() - other.double()).abs().max()) if one.numel() else 0.0


def _range(tensor: torch.Tensor) -> float:
    """Of the elements; of one alone its size."""
    if not tensor.numel():
        return 1.0
    return float(tensor.max() - tensor.min()) or float(tensor.abs().max()) or 1.0


def _last_places(tensor: torch.Tensor) -> float:
    kind = torch.finfo(tensor.dtype)  # below its least normal number they do not get smaller
    return 4 * kind.eps * max(float(tensor.abs().max()), kind.tiny) if tensor.numel() else 0.0


def _bare(names: Mapping[str, None]) -> tuple[str, ...]:
    return tuple(name[1:] for name in names)


def check_training(build: TrainingBuild, options: TrainOptions, told: Any = lambda progressed: None) -> Verdict:
    """Train ``options.steps`` from the build's weights, and compare each step with the unsplit model.

    Raises CheckFailed, and what ``train`` raises. Ranks run ahead of the comparison; what they wrote of a step is removed once
    it is compared."""
    files = TrainingFiles(build.files)
    step = files.step
    torch.set_num_threads(options.threads or max(map(step.cores, range(len(step.devices)))))
    if not update_ops(step):
        raise InvalidInput(NothingTrained(), where=str(files.build.folder))
    checker = Checker(files, options.data, options.seed, options.last_batch)
    with scratch_folder() as folder:

        def written(number: int) -> None:
            path = folder / f"step{number}"
            checker.compare(Checkpoint.open(path).tensors())
            shutil.rmtree(path)

        flush = not step.schedule.periodic
        before: Progressed | None = None

        def compare(done: Progressed, *, weights: bool) -> None:
            checker.compare_samples(done.step - 1, done.samples)
            written(done.step) if weights else checker.advance()
            checker.compare_loss(done.step - 1, done.loss)

        def step_done(progressed: Progressed) -> None:
            nonlocal before
            told(progressed)
            if before is not None:  # rank 0 tells of a step before it writes it
                compare(before, weights=flush)
            before = progressed

        train(build, replace(options, checkpoint=folder, every=int(flush), resume=None, compared=True), step_done)
        assert before is not None  # train does one step at least
        compare(before, weights=True)
    files.confirm()
    return checker.verdict()
