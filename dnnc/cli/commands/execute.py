"""``dnnc run`` and ``check``: what a build computes, how fast, and whether it is right."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dnnc.cli.console import print_proof, progress, put, put_json, show_warnings, talk, write_whole
from dnnc.cli.faults import ProvesAllInputs
from dnnc.cli.options import shared as opt
from ir.core.diagnostics import UsageError
from ir.core.limits import MOST, MOST_CORES, MOST_SECONDS
from ir.core.ranges import MOST_MICROBATCHES

if TYPE_CHECKING:
    from dnnc.check.verdict import CheckReport
    from dnnc.engines.onnxruntime.run import RunReport

InputsOption = Annotated[
    Path | None,
    typer.Option(
        "--inputs", metavar="FILE.npz", help="Arrays by input name (default: those of 'compile --inputs', or random)."
    ),
]
SeedOption = Annotated[
    int | None,
    typer.Option(
        "--seed",
        min=0,
        max=MOST,
        metavar="N",
        help="Seed of random inputs (default: 0), in the place too of those that the build keeps.",
    ),
]
ThreadsOption = Annotated[int, typer.Option(min=1, max=MOST_CORES, metavar="N", help="Cores of each device (default: 1).")]
CoresOption = Annotated[
    int | None,
    typer.Option(
        "--threads", min=1, max=MOST_CORES, metavar="N", help="Cores of each device (default: as its type says, else 1)."
    ),
]
TimeoutOption = Annotated[
    float,
    typer.Option(
        min=0.0,
        max=MOST_SECONDS,
        callback=opt.finite,
        metavar="SECONDS",
        help="Longest that a stage may spend on one microbatch.",
    ),
]


def run(
    build: opt.BuildArgument,
    inputs: InputsOption = None,
    outputs: Annotated[Path | None, typer.Option("--outputs", metavar="FILE.npz", help="Write the outputs there.")] = None,
    microbatches: Annotated[
        int | None,
        typer.Option(
            "--microbatches",
            "-m",
            min=1,
            max=MOST_MICROBATCHES,
            metavar="M",
            help="How many to make, or to split the inputs into.",
        ),
    ] = None,
    repeat: Annotated[
        int, typer.Option(min=1, max=MOST, metavar="N", help="Run all of them N times in the same processes.")
    ] = 1,
    warmup: Annotated[int, typer.Option(min=0, max=MOST, metavar="N", help="Rounds before the ones that count.")] = 0,
    threads: CoresOption = None,
    timeout: TimeoutOption = 600.0,
    seed: SeedOption = None,
    runs: opt.RunsOption = None,
    cluster: opt.ClusterOption = "",
    host: opt.HostNodesOption = None,
    ports: opt.PortsOption = opt.PORTS,
    wait: opt.WaitOption = opt.WAIT,
    emulate: opt.EmulateOption = False,
    trace: Annotated[bool, typer.Option("--trace", help="Add the measured timeline to DIR/trace.json (Perfetto).")] = False,
    json: opt.JsonOption = False,
    quiet: opt.QuietOption = False,
) -> None:
    """Run the stage programs of DIR, one process per device, several microbatches in flight.

    --cluster: on the hosts of the plan, by Ray. Each gets the bytes that its stages read, once; values between hosts are
    encrypted by keys of the run. Where a process or a host is lost, the run goes on once it is back (--wait).
    """
    from dnnc.engines.onnxruntime import RunCommand, RunOptions, run_command
    from dnnc.study.runs import append_row, require_appendable
    from ir.system.scratch import remove_dead_scratch

    remove_dead_scratch()
    command = RunCommand(
        build=build,
        inputs=inputs,
        outputs=outputs,
        microbatches=microbatches,
        repeat=repeat,
        warmup=warmup,
        seed=seed,
        options=RunOptions(threads=threads or 0, timeout=timeout or None),
        measures=runs is not None,
        emulate=emulate,
        cluster=opt.cluster_options(cluster, host, ports, wait, emulate=emulate),
    )
    if runs is not None:
        require_appendable(runs)
    with progress(not quiet) as report:
        done = run_command(command, lambda diagnostic: show_warnings([diagnostic], quiet), report)
    if runs is not None:
        append_row(runs, done.build.files, done.measured)
    if trace:
        _write_trace(build / "trace.json", done)
    if json:
        fields = done.to_json()
        del fields["schema"]
        put_json("run", fields)
    elif not quiet:
        _print_run(done)
    if trace:
        talk(f"the measured timeline is in {build / 'trace.json'}; open it at https://ui.perfetto.dev", quiet)


def _write_trace(path: Path, done: RunReport) -> None:
    """Writes the trace file anew: the runtime's events beside the predicted timeline of the plan."""
    import json

    from dnnc.build.timeline import predicted
    from dnnc.build.trace import TraceEvent, to_perfetto

    tensors = {channel.id: channel.tensor for channel in done.build.channels}
    timeline = []
    for event in done.result.events:
        name = f"{event.title or event.action} {event.stage}.{event.microbatch}"
        args: tuple[tuple[str, int | float | str], ...] = (("stage", event.stage), ("microbatch", event.microbatch))
        if event.channel is not None:
            name, args = f"{name} {tensors[event.channel]}", (*args, ("tensor", tensors[event.channel]))
        timeline.append(TraceEvent(event.device, name, event.action, event.start, event.end, args))
    data = to_perfetto({"predicted": predicted(done.build.program()), "measured": timeline})
    write_whole(path, json.dumps(data, ensure_ascii=False, allow_nan=False) + "\n")


def _print_run(done: RunReport) -> None:
    """Outputs, predicted against measured, and the pace."""
    from dnnc.report import compare_table, key_values, print_table, seconds_text
    from ir.text.units import count_text

    fields = done.to_json()
    print_table(compare_table(fields["stages"]))
    put("")
    on = f" on {', '.join(fields['predicted_for'])}" if fields["predicted_for"] else ""
    pairs = [
        ("microbatches", f"{done.microbatches} ({fields['inputs']} inputs) in {seconds_text(fields['seconds'])}"),
        (
            "pace",
            f"{seconds_text(1 / done.throughput)} per microbatch, {count_text(done.throughput)} a second "
            f"(predicted {seconds_text(done.predicted)}{on})",
        ),
        ("latency", f"{seconds_text(fields['latency'])} from a microbatch's first compute to its last output"),
        *(("output", f"{name} : {o['dtype']}{o['shape']}") for name, o in fields["outputs"].items()),
    ]
    put(key_values(pairs))


def check(
    build: opt.BuildArgument,
    inputs: InputsOption = None,
    seed: SeedOption = None,
    samples: Annotated[int, typer.Option(min=1, max=MOST_MICROBATCHES, metavar="N", help="How many random microbatches.")] = 1,
    threads: ThreadsOption = 1,
    tolerance: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            callback=opt.finite,
            metavar="SHARE",
            help="Difference that passes, as a share of each tensor's range. Without it, 1e-5 for 32-bit floats, 1e-3 for "
            "16-bit ones, 1/255 behind a quantisation; or 3 times what rounding alone does to this model, at most 0.1.",
        ),
    ] = None,
    cluster: opt.ClusterOption = "",
    host: opt.HostNodesOption = None,
    ports: opt.PortsOption = opt.PORTS,
    wait: opt.WaitOption = opt.WAIT,
    prove: Annotated[
        bool, typer.Option("--prove", help="Show for all inputs that the programs compute the model; nothing is run.")
    ] = False,
    emulate: opt.EmulateOption = False,
    json: opt.JsonOption = False,
    quiet: opt.QuietOption = False,
) -> None:
    """Compare the stage programs of DIR with the unsplit model, at every cut; exit 5 names the first stage that differs.

    A pass proves that on these inputs every tensor that was compared is that of the unsplit model, within its tolerance.
    What was not compared is listed: random numbers, absent or empty tensors, and tensors that rounding alone changes by more
    than the tolerance can be. Nothing compared is exit 5 too. Where the original model is gone or has changed, the reference is
    the build's own copy (annotated.onnx); the last line says so, for a fault that both share is not seen.

    --cluster: compare the outputs of a run on the hosts of the plan.

    Of a language model that was compiled with --context, what the stages answer to random prompts is compared: the logits of
    64 tokens, each within 1e-4 of their range (1e-3 in f16, 1e-2 in bf16, 1/255 with weights of few bits), and the tokens.

    With --prove no input is drawn: each op, message and collective of all programs, and each part of a weight, must follow from
    the model by a rule. Exit 5 names the first op that does not.
    """
    stated = opt.cluster_options(cluster, host, ports, wait, emulate=emulate)
    if prove:
        given = {"--inputs": inputs, "--seed": seed, "--samples": samples > 1, "--tolerance": tolerance, "--cluster": cluster}
        _prove(build, [name for name, value in given.items() if value not in (None, False, "")], json, quiet)
        return
    from dnnc.build.build import Build
    from dnnc.build.elsewhere import require_here
    from dnnc.check.check import CheckOptions, check_build

    options = CheckOptions(inputs, seed, samples, threads, tolerance=tolerance, cluster=stated)
    with progress(not quiet) as say:
        opened = Build.open(build, say)
        require_here(opened.files, hosts=1 if stated is None else None, emulate=emulate)
        report = check_build(opened, options, progress=say, warn=lambda diagnostic: show_warnings([diagnostic], quiet))
    for note in report.notes:
        talk(f"note: {note}", quiet)
    if json:
        fields = report.to_json()
        put_json(fields.pop("schema").removeprefix("dnnc.").partition("/")[0], fields)
    elif not quiet:
        _print_check(report)
    if (error := report.error()) is not None:
        raise error


def _prove(build: Path, other: list[str], json: bool, quiet: bool) -> None:
    """``check --prove``; ``other``: options that it does not take."""
    from dnnc.check.proof import prove

    if other:
        raise UsageError(ProvesAllInputs(), where=other[0])
    with progress(not quiet) as say:
        report = prove(build, say)
    if json:
        fields = report.to_json()
        put_json(fields.pop("schema").removeprefix("dnnc.").partition("/")[0], fields)
    elif not quiet:
        print_proof(report)
    if (error := report.error()) is not None:
        raise error


def _print_check(report: CheckReport) -> None:
    """Every compared tensor with its difference and what is allowed, then the verdict."""
    from dnnc.report import Table, columns, print_table

    rows = []
    for c in report.comparisons:
        alone, chained = ("-" if value is None else f"{value:.1e}" for value in (c.alone, c.chained))
        verdict = f"{c.verdict} on {', '.join(device for _, device in c.members)}" if c.members else c.verdict
        rows.append((str(c.stage), c.device, c.kind, alone, chained, f"{c.allowed_chained:.0e}", verdict, c.tensor))
    print_table(Table(columns("stage <device <kind alone chained allowed <verdict <tensor"), tuple(rows)))
    put("\nlargest difference over the range of each tensor; alone: on the unsplit model's own values, chained: on the stages'")
    if report.random:
        put(f"random: {', '.join(report.random)}")
    if report.noisy:
        put(f"allowed more, for rounding alone changes them as much: {report.noisy}")
    if report.left_out:
        put(f"not compared: {report.left_out}")
    if report.passed:
        put(report.verdict)
