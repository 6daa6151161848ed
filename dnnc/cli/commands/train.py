"""``dnnc train``: runs the steps of a training build, or compares them with the unsplit model."""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dnnc.cli.console import Report, progress, put, put_json, show_warnings, talk
from dnnc.cli.faults import (
    NotWithCheck,
    OnlyWithNodes,
    TooFewSteps,
)
from dnnc.cli.options import shared as opt
from dnnc.cli.options import train as arguments
from ir.core.diagnostics import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from dnnc.engines.hosts.options import ClusterOptions
    from dnnc.engines.torch.checkpoint import Checkpoint
    from dnnc.engines.torch.launch.telling import Progressed
    from dnnc.engines.torch.launch.training import TrainingBuild, TrainOptions

LEAST_STEPS = 3
"""For ``--runs``."""


def train(
    build: opt.BuildArgument,
    steps: arguments.Steps = 1,
    data: arguments.Data = "synthetic",
    last_batch: arguments.LastBatch = None,
    seed: arguments.Seed = None,
    checkpoint: arguments.Checkpoint = None,
    every: arguments.Every = 0,
    resume: arguments.Resume = None,
    out: arguments.Out = None,
    eval_data: arguments.EvalData = "",
    eval_every: arguments.EvalEvery = 0,
    patience: arguments.Patience = 0,
    log: arguments.Log = None,
    tensorboard: arguments.TensorBoard = None,
    runs: opt.RunsOption = None,
    check: arguments.Check = False,
    threads: arguments.Threads = None,
    slow: arguments.Slow = None,
    timeout: arguments.Timeout = 300.0,
    nodes: arguments.Nodes = 1,
    node: arguments.Node = 0,
    meet: arguments.Meet = "",
    secret: arguments.Secret = None,
    cluster: opt.ClusterOption = "",
    host: opt.HostNodesOption = None,
    ports: opt.PortsOption = opt.PORTS,
    retries: arguments.Retries = 0,
    emulate: opt.EmulateOption = False,
    json: opt.JsonOption = False,
    quiet: opt.QuietOption = False,
) -> None:
    """Train the build DIR, one process per device, on this host or on several.

    If a rank dies, hangs or raises, all ranks end, and its stage and message are shown: exit 2 or 3 for options and inputs, 3
    for a signal, the time-out or the machine, 1 for a fault of a program. A checkpoint is written whole or not at all.
    --check: exit 5 names the first weight that differs, and its stage.

    --cluster: on the hosts of the plan, by Ray. Each gets the bytes that its ranks read, once; checkpoints are written here.
    --retries goes on by itself where a process or a host is lost, from the last checkpoint, with the same result.
    """
    given = locals()
    from dnnc.build.elsewhere import require_here, require_row
    from dnnc.engines.hosts.faults import NotWithCluster
    from dnnc.engines.torch.launch.training import (
        TrainingBuild,
        TrainOptions,
        require_evaluable,
        require_folders,
        require_own_seed,
    )
    from dnnc.engines.torch.slowed import slow_devices
    from dnnc.engines.torch.watch.logs import opened_logs
    from dnnc.study.runs import require_appendable

    on_cluster = opt.cluster_options(cluster, host, ports)
    by_hand = {"--nodes": nodes > 1, "--node": node, "--meet": meet, "--secret": secret, "--emulate": emulate}
    if on_cluster is not None and (clash := tuple(flag for flag, value in by_hand.items() if value)):
        raise UsageError(NotWithCluster(clash), where="--cluster")
    for flag in ("--meet", "--secret") if nodes == 1 else ():
        if by_hand[flag]:
            raise UsageError(OnlyWithNodes(), where=flag)
    if runs is not None:
        if steps < LEAST_STEPS:
            raise UsageError(TooFewSteps(LEAST_STEPS), where="--runs")
        require_appendable(runs)
    opened = TrainingBuild.open(build)
    if runs is not None:
        require_row(opened.files, hosts=nodes, trains=True, emulate=emulate)
    require_here(opened.files, hosts=nodes if on_cluster is None else None, trains=True, emulate=emulate)
    opened_state = _opened(resume) if resume is not None else None
    options = opt.named(TrainOptions, given, resume=opened_state, out=out or checkpoint, meeting=meet)
    require_folders(options)
    require_evaluable(options, on_cluster)
    slow_devices(options.slow)
    opt.parse_pairs(options.slow, "--slow", "DEVICE=K")
    if check:
        writes: dict[str, object] = {
            "--checkpoint": checkpoint,
            "--resume": resume,
            "--out": out,
            "--runs": runs,
            "--nodes": nodes > 1,
        }
        writes |= {"--cluster": cluster, "--retries": retries, "--eval-data": eval_data, "--log": log}
        writes |= {"--tensorboard": tensorboard}
        if clash := tuple(flag for flag, value in writes.items() if value):
            raise UsageError(NotWithCheck(clash), where="--check")
        _check(opened, options, json=json, quiet=quiet)
        return
    require_own_seed(options.resume, seed)
    with opened_logs(log or [], tensorboard, options.begin) as logged:
        _train(opened, options, on_cluster, retries, runs, logged, json=json, quiet=quiet)


@dataclass
class _Steps:
    """The steps that are done: their losses and seconds. ``shown``: a line is printed for each; ``report``: the bar."""

    total: int
    shown: bool
    report: Report
    logged: Callable[[Progressed], None] = lambda done: None
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    evaluations: list[dict[str, float]] = field(default_factory=list)
    stopped: bool = False

    def __call__(self, done: Progressed) -> None:
        self.losses.append(done.loss)
        self.seconds.append(done.seconds)
        self.logged(done)
        if done.metrics:
            self.evaluations.append({"step": done.step, **done.metrics})
            self.stopped = done.stops
        if self.shown:
            put(f"step {done.step}  loss {done.loss:.6g}  {done.pace:.4g} samples/s{done.scaling}")
            if done.metrics:
                told = "  ".join(f"{name} {value:.6g}" for name, value in done.metrics.items())
                put(f"evaluation after step {done.step}  {told}{'  best so far' if done.best else ''}")
            sys.stdout.flush()  # steps take long
        count = len(self.losses)
        self.report(f"step {count} of {self.total}, loss {done.loss:.4g}, {done.pace:.4g} samples/s", count / self.total)

    @property
    def median(self) -> float | None:
        """Seconds of a step, without the first, which is slower than the others; None where this host was told of no step."""
        later = self.seconds[1:] or self.seconds
        return statistics.median(later) if later else None


def _train(
    opened: TrainingBuild,
    options: TrainOptions,
    cluster: ClusterOptions | None,
    retries: int,
    runs: Path | None,
    logged: Callable[[Progressed], None],
    *,
    json: bool,
    quiet: bool,
) -> None:
    """Trains, and shows and writes what is asked for."""
    from dnnc.engines.torch.launch.retries import launched_on, train_with_retries
    from dnnc.engines.torch.launch.training import doubts
    from dnnc.report import seconds_text
    from dnnc.study.runs import append_row

    if options.resume is not None:
        options.resume.verify()
    show_warnings(doubts(opened, options).diagnostics, quiet)
    if options.nodes > 1 and not options.emulate:
        talk(f"this is host '{opened.host(opened.ranks_of(options)[0])}' of the plan", quiet)
    with progress(not quiet) as report:
        report("start the ranks", None)
        steps = _Steps(options.steps, not json and not quiet, report, logged)
        launch = launched_on(cluster)
        seconds = train_with_retries(launch, opened, options, retries, steps, lambda warning: show_warnings([warning], quiet))
    if json:
        fields = {"build": str(opened.files.folder), "steps": options.steps, "losses": steps.losses, "seconds": seconds}
        fields |= {"evaluations": steps.evaluations} if options.eval_data else {}
        put_json("train", {**fields, "seconds_per_step": {"measured": steps.median, "predicted": opened.predicted}})
    elif not quiet and steps.median is not None:
        put(f"a step takes {seconds_text(steps.median)} (predicted {seconds_text(opened.predicted)})")
    if steps.stopped:
        talk(f"training stopped after {len(steps.losses)} steps: {options.patience} evaluations without a better loss", quiet)
    if runs is not None and steps.median is not None:
        append_row(runs, opened.files, steps.median)
    if options.out is not None and not options.node:
        talk(f"losses and the measured timeline are in {options.out}", quiet)


def _opened(checkpoint: Path) -> Checkpoint:
    from dnnc.engines.torch.checkpoint import Checkpoint

    return Checkpoint.open(checkpoint)


def _check(opened: TrainingBuild, options: TrainOptions, *, json: bool, quiet: bool) -> None:
    """Compares the steps with the unsplit model, and prints the verdict."""
    from dnnc.engines.torch.check.check import check_training
    from passes.graph.graph import listing

    with progress(not quiet) as report:
        report("start the ranks", None)
        verdict = check_training(opened, options, _Steps(options.steps, not json and not quiet, report))
    if json:
        put_json("train-check", verdict.to_json())
        return
    if quiet:
        return
    if verdict.noisy:
        put(f"compared with a wider tolerance, because rounding alone changes them as much: {listing(verdict.noisy)}")
    if verdict.loose:
        put(f"not compared, because rounding alone changes them: {listing(verdict.loose)}")
    put(verdict.text)
