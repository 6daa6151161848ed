"""``dnnc train``: runs the steps of a training build, or compares them with the unsplit model."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dnnc.cli import options as opt
from dnnc.cli.console import put, put_json, show_warnings, talk
from ir.core.diagnostics import UsageError

if TYPE_CHECKING:
    from dnnc.engines.torch.checkpoint import Checkpoint
    from dnnc.engines.torch.launch.training import Progressed, TrainingBuild, TrainOptions

LEAST_STEPS = 3
"""For ``--runs``."""


def train(
    build: opt.BuildArgument,
    steps: Annotated[
        int, typer.Option(min=1, max=opt.MOST, metavar="N", help="Steps to train, from the first or from --resume.")
    ] = 1,
    data: Annotated[
        str,
        typer.Option(
            metavar="SOURCE",
            help="synthetic; FILE.npz, samples by input name; or module:function, called with the seed, that yields a dict "
            "of arrays for each microbatch.",
        ),
    ] = "synthetic",
    seed: Annotated[
        int | None,
        typer.Option(
            min=0, max=opt.MOST, metavar="N", help="Seed of the data and of its order (default: 0, or that of --resume)."
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option("--checkpoint", metavar="DIR", help="Write stepN.safetensors there: weights and optimizer state."),
    ] = None,
    every: Annotated[
        int, typer.Option(min=0, max=opt.MOST, metavar="K", help="Steps between checkpoints (0: the last step alone).")
    ] = 0,
    resume: Annotated[
        Path | None,
        typer.Option("--resume", metavar="FILE", help="Go on from a checkpoint, of this or another plan of the model."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Write losses.json and trace.json there (default: where checkpoints are)."),
    ] = None,
    runs: opt.RunsOption = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Compare every step with the unsplit model under torch's autograd and torch.optim."),
    ] = False,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1, max=opt.MOST_CORES, metavar="N", help="Threads of each rank (default: as many as its device has cores)."
        ),
    ] = None,
    slow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DEVICE=K",
            help="The device waits K seconds for each one that it computes, in place of a slower machine; repeat for others.",
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(
            min=0.1, max=opt.MOST_SECONDS, callback=opt.finite, metavar="SECONDS", help="Longest that a rank waits for another."
        ),
    ] = 300.0,
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=1 << 16, metavar="N", help="Hosts; each runs this command.")] = 1,
    node: Annotated[
        int,
        typer.Option(
            "--node", min=0, max=1 << 16, metavar="I", help="Which host of the plan this is, from 0 in the order of its stages."
        ),
    ] = 0,
    meet: Annotated[str, typer.Option("--meet", metavar="HOST:PORT", help="Where the hosts meet: an address of host 0.")] = "",
    secret: Annotated[
        Path | None,
        typer.Option(
            "--secret",
            metavar="FILE",
            help="What hosts prove to each other that they share: the same file on each (or its text in DNNC_SECRET).",
        ),
    ] = None,
    emulate: opt.EmulateOption = False,
    json: opt.JsonOption = False,
    quiet: opt.QuietOption = False,
) -> None:
    """Train the build DIR, one process per device, on this host or on several.

    When a rank dies, hangs or raises, all end, and its stage and its message are told: exit 2 or 3 for options and inputs, 3
    for a signal, the time-out or the machine, 1 for a fault of a program. Checkpoints are whole or not there.
    --check: exit 5 names the first weight that differs, and its stage.
    """
    from dnnc.build.elsewhere import require_here, require_row
    from dnnc.engines.torch.launch.training import TrainingBuild, TrainOptions, resumption
    from dnnc.engines.torch.launch.training import train as launch
    from dnnc.engines.torch.slowed import slow_devices
    from dnnc.study.runs import append_row, require_appendable

    if every and checkpoint is None:
        raise UsageError("there is no folder for checkpoints", where="--every", hint="name one with --checkpoint")
    for name, folder in (("--checkpoint", checkpoint), ("--out", out)):
        if folder is not None and folder.exists() and not folder.is_dir():
            raise UsageError("it is no folder", where=f"{name} {folder}", hint="name a folder, which may be new")
    if runs is not None and steps < LEAST_STEPS:
        raise UsageError(f"a row needs {LEAST_STEPS} steps: the first is slower than the others", where="--runs")
    if runs is not None:
        require_appendable(runs)
    opened = TrainingBuild.open(build)
    if runs is not None:
        require_row(opened.files, hosts=nodes, trains=True, emulate=emulate)
    require_here(opened.files, hosts=nodes, trains=True, emulate=emulate)
    machines = (threads or 0, nodes, node, meet, secret, tuple(slow or ()), False, emulate)
    resumed = _opened(resume) if resume is not None else None
    options = TrainOptions(steps, data, seed or 0, checkpoint, every, resumed, out or checkpoint, timeout, *machines)
    slow_devices(options.slow)
    losses: list[float] = []
    steps_seconds: list[float] = []

    def told(progressed: Progressed) -> None:
        losses.append(progressed.loss)
        steps_seconds.append(progressed.seconds)
        if not json and not quiet:
            put(f"step {progressed.step}  loss {progressed.loss:.6g}  {progressed.pace:.4g} samples/s")
            sys.stdout.flush()  # steps take long

    if check:
        if checkpoint is not None or resume is not None or out is not None or runs is not None or nodes > 1:
            hint = "leave out --checkpoint, --resume, --out, --runs and --nodes"
            raise UsageError("it trains from the build's weights on this host", where="--check", hint=hint)
        _check(opened, options, told, json=json, quiet=quiet)
        return
    if resumed is not None:
        if seed is not None and seed != resumed.position.seed:
            hint = f"leave it out: the checkpoint goes on with the data of seed {resumed.position.seed}"
            raise UsageError(f"the data of {resumed.where} are of another seed", where=f"--seed {seed}", hint=hint)
        resumed.verify()
        show_warnings(resumption(opened, resumed).diagnostics, quiet)
    if nodes > 1 and not emulate:
        talk(f"this is host '{opened.host(opened.ranks_of(options)[0])}' of the plan", quiet)
    seconds = launch(opened, options, told, lambda warning: show_warnings([warning], quiet))
    later = steps_seconds[1:] or steps_seconds  # the first is slower than the others
    measured = statistics.median(later) if later else None  # other hosts than the first hear of no step
    if json:
        fields = {"build": str(build), "steps": steps, "losses": losses, "seconds": seconds}
        put_json("train", {**fields, "seconds_per_step": {"measured": measured, "predicted": opened.predicted}})
    elif not quiet and measured is not None:
        from dnnc.report import seconds_text

        put(f"a step takes {seconds_text(measured)} (predicted {seconds_text(opened.predicted)})")
    if runs is not None and measured is not None:
        append_row(runs, opened.files, measured)
    if options.out is not None and not node:
        talk(f"losses and the measured timeline are in {options.out}", quiet)


def _opened(checkpoint: Path) -> Checkpoint:
    from dnnc.engines.torch.checkpoint import Checkpoint

    return Checkpoint.open(checkpoint)


def _check(
    opened: TrainingBuild, options: TrainOptions, told: Callable[[Progressed], None], *, json: bool, quiet: bool
) -> None:
    from dnnc.engines.torch.check.check import check_training
    from passes.model.graph import listing

    found = check_training(opened, options, told)
    if json:
        put_json("train-check", found.to_json())
        return
    if quiet:
        return
    if found.noisy:
        put(f"allowed more, for rounding alone changes them as much: {listing(found.noisy)}")
    if found.loose:
        put(f"not compared, for rounding alone changes them: {listing(found.loose)}")
    when = f"each of {found.steps}" if not found.late else f"{found.steps}"
    model = "the unsplit model" + (f" with weights up to {found.late} updates old" if found.late else "")
    batch = "each batch in one piece" if not found.apart else f"microbatches one by one: {found.apart}"
    put(
        f"passed: {found.weights} weights after {when} steps are those of {model}; largest difference "
        f"{found.worst[0]:.1e} of a weight's range ({found.worst[1] or 'none'}), {found.loss:.1e} of a loss"
    )
    put(f"the unsplit model took {batch}")


__all__ = ["train"]
