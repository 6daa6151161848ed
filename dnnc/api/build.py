"""``Build``: a build directory, which can be started, checked and trained."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dnnc.api.faults import ForInference, ForTraining, StepsAreCompared
from dnnc.api.feeding import Data, evaluation_source, scratch_of, source_of
from dnnc.api.options import PathLike, numbers, one_of, time_span
from dnnc.api.terms import python_terms, translate, warn
from ir.core.diagnostics import Diagnostic, UsageError

if TYPE_CHECKING:
    from dnnc.api.session import Argument, Session
    from dnnc.build.snapshot import Snapshot
    from dnnc.engines.hosts.options import ClusterOptions
    from dnnc.engines.torch.launch.telling import Progressed
    from ir.core.module import Plan as PlanSymbol


@dataclass(frozen=True)
class CheckResult:
    """What a check showed. ``passed``: every tensor that was compared is that of the unsplit model, and some were;
    ``verdict``: that as a sentence; ``error``: what ``dnnc check`` would end with; ``report``: all comparisons."""

    passed: bool
    verdict: str
    error: Exception | None
    report: Any

    def __str__(self) -> str:
        return self.verdict


@dataclass(frozen=True)
class Training:
    """The steps of a training. ``losses``: of each step; ``seconds``: of all, the start of the processes included;
    ``evaluations``: ``step``, ``loss`` and metrics of each; ``stopped``: it ended early, since they became no better."""

    losses: list[float] = field(default_factory=list)
    seconds: float = 0.0
    evaluations: list[dict[str, float]] = field(default_factory=list)
    stopped: bool = False

    def _add(self, done: Progressed) -> None:
        self.losses.append(done.loss)
        if done.metrics:
            self.evaluations.append({"step": done.step, **done.metrics})


@dataclass(frozen=True)
class Build:
    """A directory that ``dnnc compile`` or ``Plan.write`` wrote."""

    folder: Path

    def __fspath__(self) -> str:
        return str(self.folder)

    def _text(self) -> Snapshot:
        """``plan.ir`` alone: to verify all files takes long where weights are large, and who runs them does it."""
        from dnnc.build.build import PROGRAM
        from dnnc.build.snapshot import Snapshot

        return Snapshot.open(self.folder, only=(PROGRAM,))

    @property
    def plan(self) -> PlanSymbol:
        """The plan in the IR."""
        from dnnc.build.build import plan_of

        with python_terms():
            return plan_of(self._text())

    @property
    def inputs(self) -> list[Argument]:
        """The inputs of the model; of training those that the data have: of the loss too, not those that each step counts or
        draws itself."""
        if not self.trains:
            return self._arguments("args")
        from dnnc.api.session import Argument
        from dnnc.build.build import read_program
        from dnnc.data.samples import data_inputs

        with python_terms():
            return list(map(Argument.of, data_inputs(read_program(self._text()))))

    @property
    def outputs(self) -> list[Argument]:
        """The outputs of the model."""
        return self._arguments("results")

    def _arguments(self, which: str) -> list[Argument]:
        from dnnc.api.session import Argument
        from dnnc.build.build import ValueInfo, outline

        with python_terms():
            values = getattr(outline(self._text()).entry, which)
        return [Argument.of(ValueInfo.of(value.name[1:], value.type)) for value in values]

    @property
    def trains(self) -> bool:
        """Whether it is of a training step."""
        return self.plan.minimises.trains

    def start(
        self,
        *,
        threads: int = 0,
        timeout: float | None = 600.0,
        in_flight: int = 0,
        emulate: bool = False,
        cluster: str = "",
        hosts: Mapping[str, str] | None = None,
        ports: str = "26000-26999",
        wait: float = 60.0,
    ) -> Session:
        """The running processes of a build of inference, which stay up until the session is closed.

        ``threads``: cores of each device, 0 for as many as its type has; ``timeout``: seconds that a stage may spend on one
        microbatch; ``in_flight``: the most microbatches under way, 0 for a number by the devices; ``emulate``: run here what is
        for other machines. ``cluster``: HOST:PORT of the head of a Ray cluster, on whose nodes the hosts of the plan are;
        ``hosts``: the nodes of hosts, by name; ``ports``: FIRST-LAST, which hosts listen on; ``wait``: seconds that a host or
        process that was lost may take to be back, while callers wait. Raises InvalidInput for what is no such build or cluster,
        UsageError for numbers out of range, RuntimeFailure where a process does not start."""
        from dnnc.api.session import Session
        from dnnc.build.build import Build as Programs
        from dnnc.build.elsewhere import require_here
        from dnnc.engines.onnxruntime.starter.starting import RunOptions

        threads, in_flight, wait = numbers("start", threads=threads, in_flight=in_flight, wait=wait)
        timeout = None if timeout is None else time_span("start", "timeout", timeout)
        with python_terms():
            stated = _cluster(cluster, hosts, ports, wait, emulate=emulate)
            if self.trains:
                raise UsageError(ForTraining(), where=str(self.folder))
            files = Programs.open(self.folder)
            require_here(files.files, hosts=None if cluster else 1, emulate=emulate)
            return Session(files, RunOptions(threads=threads, timeout=timeout), in_flight, stated)

    def report(self, out: PathLike | None = None, *, trace: PathLike | None = None) -> Path:
        """Writes the plan as a web page to ``out``, or into the build, and returns its path. ``trace``: a file with a measured
        timeline; without it, that of the build, if it has one."""
        from dnnc.api.reporting import write_page

        with python_terms():
            return write_page(self.folder, Path(out) if out else None, Path(trace) if trace else None)

    def check(
        self,
        inputs: PathLike | Mapping[str, Any] | None = None,
        *,
        seed: int | None = None,
        samples: int = 1,
        threads: int = 1,
        tolerance: float | None = None,
        steps: int = 3,
        data: Data = "synthetic",
        emulate: bool = False,
        cluster: str = "",
        hosts: Mapping[str, str] | None = None,
        ports: str = "26000-26999",
        wait: float = 60.0,
    ) -> CheckResult:
        """Compares the programs with the unsplit model: of inference each tensor that leaves a stage, on ``inputs`` (an
        ``.npz``, or arrays by name) or ``samples`` random microbatches; of training the losses and weights after each of
        ``steps`` steps on ``data``. ``cluster``, ``hosts``, ``ports``, ``wait``: as of ``start``, to compare the outputs
        of a run there. Raises InvalidInput for inputs that the model does not take, UsageError for numbers out of range."""
        seed, samples, threads, tolerance, steps, wait = numbers(
            "check", seed=seed, samples=samples, threads=threads, tolerance=tolerance, steps=steps, wait=wait
        )
        with python_terms():
            stated = _cluster(cluster, hosts, ports, wait, emulate=emulate)
            if self.trains and stated is None:
                of_inference = {"inputs": inputs is not None, "samples": samples != 1, "tolerance": tolerance is not None}
                if given_name := next((name for name, given in of_inference.items() if given), ""):
                    raise UsageError(StepsAreCompared(), where=given_name)
                return self._check_training(steps, data, seed, threads, emulate)
            from dnnc.build.build import Build as Programs
            from dnnc.build.elsewhere import require_here
            from dnnc.check.check import CheckOptions, check_build

            programs = Programs.open(self.folder)
            require_here(programs.files, hosts=None if cluster else 1, emulate=emulate)
            given = Path(inputs) if isinstance(inputs, str | os.PathLike) else inputs
            options = CheckOptions(given, seed, samples, threads, tolerance=tolerance, cluster=stated)
            report = check_build(programs, options, warn=lambda diagnostic: warn([diagnostic]))
        return _result(report)

    def prove(self) -> CheckResult:
        """Shows for all inputs that the programs compute the model, of training that each step is that of the model; nothing is
        run. ``passed``: it is proven; ``report.verdict`` says ``proven``, ``refuted`` or ``not proven``."""
        with python_terms():
            from dnnc.check.proof import prove

            report = prove(self.folder)
        return _result(report)

    def _check_training(self, steps: int, data: Data, seed: int | None, threads: int, emulate: bool) -> CheckResult:
        from dnnc.build.build import read_program
        from dnnc.engines.torch.check.check import check_training
        from dnnc.engines.torch.launch.training import TrainingBuild, TrainOptions
        from ir.core.diagnostics import CheckFailed

        opened = TrainingBuild.open(self.folder)
        with ExitStack() as stack:
            options = TrainOptions(steps=steps, seed=seed or 0, threads=threads, emulate=emulate)
            source, _ = source_of(stack, data, read_program(opened.files), options, whole=True, kept=True)
            try:
                with python_terms(scratch_of(data, source), "data"):
                    verdict = check_training(opened, replace(options, data=source))
            except CheckFailed as error:
                return CheckResult(False, str(error), error, None)
        return CheckResult(True, verdict.text, None, verdict)

    def train(
        self,
        data: Data = "synthetic",
        *,
        steps: int = 1,
        last_batch: str = "",
        seed: int | None = None,
        checkpoint: PathLike | None = None,
        every: int = 0,
        resume: PathLike | None = None,
        out: PathLike | None = None,
        threads: int = 0,
        timeout: float = 300.0,
        emulate: bool = False,
        cluster: str = "",
        hosts: Mapping[str, str] | None = None,
        ports: str = "26000-26999",
        retries: int = 0,
        eval_data: Data | None = None,
        eval_every: int = 0,
        patience: int = 0,
        log: PathLike | Sequence[PathLike] = (),
        tensorboard: PathLike | None = None,
        on_step: Callable[[Progressed], None] | None = None,
    ) -> Training:
        """Trains for so many steps, one process per device. ``data``: arrays of samples by input name, an ``.npz`` of them, or
        a folder of such files, or of ``.npy``; a dataset or ``DataLoader`` of PyTorch; ``"module:function"``; or an iterable
        of batches, of a microbatch or a step each, by input name or in the order of ``inputs``. Samples are shuffled in each
        epoch, those of a loader as it says. ``last_batch``: ``"drop"`` or ``"use"`` the last batch of an epoch, which the
        samples do not fill (default: drop, or as a loader says). ``checkpoint``: a folder for weights and optimizer state
        after each ``every`` steps and the last; ``resume``: one of them; ``out``: a folder for losses and the measured
        timeline. ``cluster``: HOST:PORT of the head of a Ray cluster, on whose nodes the hosts of the plan are; ``hosts`` and
        ``ports``: as of ``start``; checkpoints are written here. ``retries``: how often it may go on from the last checkpoint
        where a process or a host was lost. ``eval_data``: what the model is evaluated on after each ``eval_every`` steps (0:
        the last), of the kinds of ``data``; ``patience``: evaluations without a better loss before it stops, 0 for never. With
        ``checkpoint`` the best weights are kept in the folder ``best`` there. ``log``: files ``.csv`` or ``.jsonl`` of each
        step's numbers; ``tensorboard``: a folder for its files. ``on_step`` is called after each step.

        Raises InvalidInput for data that do not fit the model, UsageError for numbers out of range, RuntimeFailure where a
        process ends."""
        from dnnc.build.build import read_program
        from dnnc.build.elsewhere import require_here
        from dnnc.engines.torch.launch.retries import launched_on, train_with_retries
        from dnnc.engines.torch.launch.training import (
            TrainingBuild,
            TrainOptions,
            doubts,
            require_evaluable,
            require_folders,
            require_own_seed,
        )
        from dnnc.engines.torch.watch.logs import opened_logs

        steps, seed, every, threads, retries = numbers(
            "train", steps=steps, seed=seed, every=every, threads=threads, retries=retries
        )
        eval_every, patience = numbers("train", eval_every=eval_every, patience=patience)
        timeout = time_span("train", "timeout", timeout)
        one_of("train", "last_batch", last_batch, ("", "drop", "use"))
        training, warnings, stopped = Training(), list[Diagnostic](), False

        def done(step: Progressed) -> None:
            nonlocal stopped
            used(step.step)
            training._add(step)
            logged(step)
            stopped = step.stops
            if on_step is not None:
                on_step(step)

        with python_terms(), ExitStack() as stack:
            stated = _cluster(cluster, hosts, ports, emulate=emulate)
            if not self.trains:
                raise UsageError(ForInference(), where=str(self.folder))
            opened = TrainingBuild.open(self.folder)
            require_here(opened.files, hosts=None if cluster else 1, trains=True, emulate=emulate)
            resumed = None
            if resume is not None:
                from dnnc.engines.torch.checkpoint import Checkpoint

                resumed = Checkpoint.open(Path(resume))
                resumed.verify()
                require_own_seed(resumed, seed)
            options = TrainOptions(
                steps=steps,
                last_batch=last_batch,
                seed=(seed or 0) if resumed is None else resumed.position.seed if seed is None else seed,
                checkpoint=None if checkpoint is None else Path(checkpoint),
                every=every,
                resume=resumed,
                out=Path(out) if out is not None else None if checkpoint is None else Path(checkpoint),
                timeout=timeout,
                threads=threads,
                emulate=emulate,
                eval_every=eval_every,
                patience=patience,
            )
            require_folders(options)
            warnings += doubts(opened, options).diagnostics
            module = read_program(opened.files)
            options = replace(options, eval_data=evaluation_source(stack, eval_data, module))
            require_evaluable(options, stated)
            logs = [Path(one) for one in ([log] if isinstance(log, str | os.PathLike) else log)]
            logged = stack.enter_context(
                opened_logs(logs, Path(tensorboard) if tensorboard is not None else None, options.begin)
            )
            source, used = source_of(stack, data, module, options, whole=stated is not None, kept=retries > 0)
            of_scratch = python_terms(scratch_of(eval_data, options.eval_data), "eval_data")
            with of_scratch, python_terms(scratch_of(data, source), "data"):
                launch = launched_on(stated)
                given = replace(options, data=source)
                seconds = train_with_retries(launch, opened, given, retries, done, warnings.append)
        warn(warnings)
        return replace(training, seconds=seconds, stopped=stopped)


def _result(report: Any) -> CheckResult:
    """What the report of a check shows, its error in Python's terms."""
    error = report.error()
    if error is not None:
        translate(error)
    return CheckResult(error is None, report.verdict if error is None else str(error), error, report)


def _cluster(
    address: str, hosts: Mapping[str, str] | None, ports: str, wait: float = 60.0, *, emulate: bool
) -> ClusterOptions | None:
    """What is stated of a cluster; None without an address. Raises UsageError."""
    from dnnc.engines.hosts.options import stated_cluster

    return stated_cluster(address, hosts or {}, ports, wait, emulate=emulate)


def load(folder: PathLike) -> Build:
    """The build in ``folder``. Raises InvalidInput where a file is missing or is not the one that was written."""
    from dnnc.build.snapshot import Snapshot

    with python_terms():
        Snapshot.open(Path(folder))
    return Build(Path(folder))
