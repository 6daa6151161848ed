"""``dnnc report``: the plan of a build as a web page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dnnc.cli import options as opt
from dnnc.cli.console import progress, put, put_json, write_whole
from dnnc.cli.faults import NoTimeline
from ir.core.diagnostics import InvalidInput

if TYPE_CHECKING:
    from dnnc.build.trace import TraceEvent


def report(
    build: opt.BuildArgument,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FILE", help="The page to write (default: DIR/report.html).", show_default=False),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="FILE",
            help="A trace.json with the measured timeline (default: DIR/trace.json, if it has one).",
            show_default=False,
        ),
    ] = None,
    json: opt.JsonOption = False,
    quiet: opt.QuietOption = False,
) -> None:
    """Write the plan of DIR as a web page, one file that needs no network: how good the plan is, what limits it, the model on
    its stages, timelines, memory, machines and operators. --json prints what the page shows instead."""
    from dnnc.build.build import PROGRAM
    from dnnc.build.snapshot import Snapshot
    from dnnc.engines.onnxruntime.write.build import REPORT, TRACE
    from dnnc.report.page import page, page_data
    from dnnc.workloads.scheduled import written_plan

    with progress(not quiet) as say:
        say("read the plan", None)
        module = written_plan(Snapshot.open(build, say, only=(PROGRAM,)))
        measured = _measured(trace or build / TRACE, asked=trace is not None)
        say("write the page", None)
        if json:
            put_json("report", page_data(module, measured))
            return
        target = out or build / REPORT
        write_whole(target, page(module, measured))
    if not quiet:
        put(f"wrote {target}; open it in a browser")


def _measured(path: Path, *, asked: bool) -> list[TraceEvent]:
    """The measured timeline of a trace; none where it has none and nobody asked for one. Raises InvalidInput."""
    from dnnc.build.trace import from_perfetto
    from ir.core.limits import LIMITS
    from ir.system.files import read_input_text
    from ir.text.json_text import parse_json

    if not asked and not path.exists():
        return []
    data = parse_json(read_input_text(path, "a timeline of 'dnnc run --trace'", LIMITS.text_bytes), str(path))
    try:
        events = from_perfetto(data, "measured")
    except ValueError as error:
        raise InvalidInput(NoTimeline(str(error)), where=str(path)) from None
    if asked and not events:
        raise InvalidInput(NoTimeline("it has the predicted one alone"), where=str(path))
    return events


__all__ = ["report"]
