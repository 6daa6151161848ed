"""``dnnc whatif``: what some of the machines would give, and more of them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dnnc.cli.console import progress, put, put_json, show_warnings
from dnnc.cli.faults import NotAnAddition
from dnnc.cli.options import compile as planned
from dnnc.cli.options import shared as opt
from ir.core.diagnostics import DiagnosticSink, UsageError

if TYPE_CHECKING:
    from dnnc.study.whatif import WhatIf

_MOST = 64
"""Copies of a device that may be added at a time."""


def whatif(
    model: opt.ModelArgument,
    topology: opt.TopologyOption,
    add: Annotated[
        list[str] | None,
        typer.Option(
            "--add",
            metavar="TYPE[:N]",
            help="Plan with N more devices of a type, on the host of its last one, with links like its links (default: one of "
            "each type). Repeatable: each is a row of its own.",
        ),
    ] = None,
    rows: Annotated[
        int,
        typer.Option(
            "--rows", metavar="N", min=1, max=1000, help="List at most N sets of the present devices, the smallest first."
        ),
    ] = 16,
    dim: opt.DimOption = None,
    limit: opt.LimitOption = None,
    objective: opt.CompileObjective = None,
    stages: planned.Stages = None,
    mesh: planned.Mesh = None,
    replicas: planned.Replicas = None,
    microbatches: planned.Microbatches = None,
    context: planned.Context = None,
    batch: planned.Batch = None,
    groups: planned.Groups = None,
    time_limit: Annotated[
        float | None,
        opt.time_limit(
            "End the search of each kind of plan in each row after this time (default: after a counted amount of work)."
        ),
    ] = None,
    json: opt.JsonOption = False,
    quiet: opt.QuietOption = False,
) -> None:
    """Plan MODEL on each set of the devices of TOPOLOGY, and with more devices: will another machine help?

    Each row is a set of devices, planned as 'dnnc compile --plan-only' plans it, with a lower bound of all plans on these
    devices. Of sets that differ only in the names of devices, one is listed. A plan may leave devices idle, so no row is
    slower than a row with some of its devices."""
    given = locals()
    from dnnc.study.whatif import what_if

    options = planned.options_of(
        given,
        out=Path(),
        dims=opt.parse_dims(dim),
        limits=opt.parse_limits(limit),
        stages=opt.parse_stages(stages, mesh not in (None, "", "none")),
    )
    sink = DiagnosticSink()
    try:
        with progress(not quiet) as report:
            result = what_if(options, [_added(text) for text in add or ()], rows=rows, sink=sink, progress=report)
    finally:
        show_warnings(sink.diagnostics, quiet)
    if json:
        put_json("whatif", whatif_json(result, options.model, options.topology))
    else:
        _print(result)


def _added(text: str) -> tuple[str, int]:
    """``TYPE`` or ``TYPE:N``. Raises UsageError."""
    type_, _, number = text.rpartition(":") if ":" in text else (text, "", "1")
    if not type_ or not number.isdecimal() or not 1 <= int(number[:9]) <= _MOST or len(number) > 9:
        raise UsageError(NotAnAddition(text, _MOST), where="--add")
    return type_, int(number)


def whatif_json(result: WhatIf, model: str, topology: str) -> dict[str, Any]:
    """``--json``: ``rows`` are sets of the devices, the last one all of them; ``more`` has devices added. ``value`` and
    ``bound`` in seconds, null for infinite, 0 for a bound that is not known; ``factor``: how many times as fast as all devices
    as they are."""

    def rows(every: Any) -> list[dict[str, Any]]:
        return [{**asdict(row), "factor": result.factor(row)} for row in every]

    return {
        "model": model,
        "topology": topology,
        "objective": result.objective,
        "rows": rows(result.rows),
        "more": rows(result.more),
        "left_out": result.left_out,
        "answer": result.answer,
    }


def _print(result: WhatIf) -> None:
    from dnnc.report import Table, columns, print_table, ratio_text, seconds_text
    from dnnc.study.whatif import labels

    table = []
    for label, row in zip(labels(result), (*result.rows, *result.more), strict=True):
        fits = bool(row.kind)
        table.append(
            (
                label,
                row.kind or "no plan",
                seconds_text(row.value) if fits else "-",
                seconds_text(row.bound) if fits and row.bound else "-",
                ratio_text(result.factor(row)) if fits else "-",
            )
        )
    print_table(Table(columns("<devices <plan value bound factor"), tuple(table)))
    for label, row in zip(labels(result), (*result.rows, *result.more), strict=True):
        if not row.kind:
            put(f"  {label}: {row.why}")
    if result.left_out:
        put(f"  more sets than {len(result.rows)}: --rows lists others")
    put(result.answer)
