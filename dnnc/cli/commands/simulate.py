"""``dnnc simulate``: the predicted timeline of a build, of a plan alone or of a split."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dnnc.cli.console import put, put_json, show_warnings, write_whole
from dnnc.cli.faults import NeedsSolvedSplit, NotTheStep, NotWholeSteps
from dnnc.cli.options import shared as opt
from ir.core.diagnostics import DiagnosticSink, UsageError
from ir.core.ranges import MOST_MICROBATCHES

if TYPE_CHECKING:
    from ir.core.module import Module, Schedule

Subject = Annotated[
    Path,
    typer.Argument(
        metavar="DIR|RESULT", help="A directory that 'dnnc compile' wrote, or a split that 'dnnc solve' wrote (-o, --json)."
    ),
]
Microbatches = Annotated[
    int | None,
    typer.Option(
        "--microbatches",
        "-m",
        min=1,
        max=MOST_MICROBATCHES,
        metavar="M",
        help="Samples to follow (default: 8; of a training step with a flush all that it has).",
        show_default=False,
    ),
]
Workload = Annotated[
    Path | None,
    typer.Option("--workload", metavar="FILE", help="The workload of RESULT, in place of the file that it names."),
]
Topology = Annotated[
    str | None,
    typer.Option(
        "-t",
        "--topology",
        metavar="TOPOLOGY",
        help="The topology of RESULT, in place of the one that it names.",
        autocompletion=opt.complete_topology,
        show_default=False,
    ),
]
Csv = Annotated[
    Path | None,
    typer.Option(
        "--csv", metavar="FILE", help="Write the rows of a training step there as torch.distributed.pipelining's CSV."
    ),
]
Svg = Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Draw the timeline there.")]


def simulate(
    subject: Subject,
    microbatches: Microbatches = None,
    workload: Workload = None,
    topology: Topology = None,
    csv: Csv = None,
    svg: Svg = None,
    json: opt.JsonOption = False,
    quiet: opt.QuietOption = False,
) -> None:
    """Predict the timeline of a build, of a plan alone or of a solved workload: what each device does while M microbatches
    flow through, how long it waits, and what it holds."""
    from dnnc.workloads.scheduled import scheduled
    from ir.core.module import Schedule
    from ir.ops.rows import shown

    for flag, value in (("--workload", workload), ("-t", topology)):
        if value is not None and not subject.is_file():
            raise UsageError(NeedsSolvedSplit(flag), where=str(subject))
    sink = DiagnosticSink()
    try:
        module = scheduled(subject, str(workload or ""), sink, topology or "")
    finally:
        show_warnings(sink.diagnostics, quiet)
    schedule = module.first(Schedule)
    assert schedule is not None, "what is scheduled has a schedule"
    if csv is not None:
        _write_csv(module, schedule, csv)
    _require_whole_steps(schedule, microbatches, str(subject))
    _simulate(module, schedule, microbatches or shown(schedule), str(subject), svg, json=json, quiet=quiet)


def _write_csv(module: Module, schedule: Schedule, path: Path) -> None:
    from dnnc.engines.torch.write.schedule_csv import schedule_csv
    from passes.timeline.workload import workload

    write_whole(path, schedule_csv(schedule, workload(module).flow))


def _require_whole_steps(schedule: Schedule, microbatches: int | None, where: str) -> None:
    """Raises UsageError for a part of a training step, and for several where the schedule is of one."""
    step = schedule.microbatches
    if microbatches is None or (microbatches % step == 0 and (microbatches == step or schedule.periodic)):
        return
    fault = NotWholeSteps(microbatches, step) if schedule.periodic else NotTheStep(microbatches, step)
    raise UsageError(fault, where=where)


def _simulate(
    module: Module, schedule: Schedule, count: int, subject: str, svg: Path | None, *, json: bool, quiet: bool
) -> None:
    """Predicts ``count`` microbatches, and shows and draws what is asked for."""
    from dataclasses import asdict

    from dnnc.build.timeline import predicted
    from dnnc.report import print_table, summarize_timeline, timeline_table, timeline_text
    from dnnc.report.gantt import gantt_svg, print_gantt
    from passes.timeline.memory import memory_over_time
    from passes.timeline.simulate import simulate as simulated

    events = predicted(module, count)
    memory = memory_over_time(module, simulated(module, count))
    summary = summarize_timeline(
        events,
        count,
        period=schedule.period / schedule.microbatches if schedule.periodic else None,
        memory={device: curve.peak for device, curve in memory.items()},
    )
    if svg is not None:
        steps = {device: curve.steps for device, curve in memory.items()}
        write_whole(svg, gantt_svg(events, f"{subject}: {timeline_text(summary)}", steps))
    if json:
        put_json("simulate", {"build": subject, **asdict(summary)})
    elif not quiet:
        print_gantt(events)
        put("")
        print_table(timeline_table(summary))
        put("")
        put(timeline_text(summary))
