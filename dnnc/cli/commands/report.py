"""``dnnc report``: the plan of a build as a web page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dnnc.cli.console import progress, put, put_json
from dnnc.cli.options import shared as opt


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
    check: Annotated[
        Path | None,
        typer.Option("--check", metavar="FILE", help="What 'dnnc check DIR --json' printed: show its differences too."),
    ] = None,
    json: opt.JsonOption = False,
    quiet: opt.QuietOption = False,
) -> None:
    """Write the plan of DIR as a web page, one file that needs no network: how good the plan is, what limits it, the model on
    its stages, timelines, memory, machines and operators. A folder beside it, report.nodes, has the stage, device, seconds and
    bytes of each operator for Model Explorer, as JSON. --json prints what the page shows instead."""
    from dnnc.api.reporting import checked, measured, planned, write_page
    from dnnc.report.page import page_data

    with progress(not quiet) as say:
        say("write the page", None)
        if json:
            put_json("report", page_data(planned(build), measured(build, trace), checked(check)))
            return
        target = write_page(build, out, trace, check)
    if not quiet:
        put(f"wrote {target}; open it in a browser")
