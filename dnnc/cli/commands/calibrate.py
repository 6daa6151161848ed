"""``dnnc calibrate``: numbers of machines, fitted to measured runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dnnc.cli.commands.machine import write_topology
from dnnc.cli.console import progress, put, put_json, show_warnings
from dnnc.cli.options import shared as opt
from ir.core.diagnostics import DiagnosticSink

if TYPE_CHECKING:
    from dnnc.machines.topology.writer import Notes
    from dnnc.study.calibrate import Calibration, Number


def calibrate(
    type_: Annotated[str, typer.Argument(metavar="TYPE", help="A device type of the machines that the runs are of.")],
    runs: Annotated[
        Path, typer.Argument(metavar="RUNS.csv", help="Measured runs, as 'dnnc run --runs' and 'dnnc train --runs' write them.")
    ],
    topology: Annotated[
        str | None,
        typer.Option(
            "-t",
            "--topology",
            metavar="TOPOLOGY",
            help="Machines whose numbers to replace (default: those of the plan with the most devices).",
            autocompletion=opt.complete_topology,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            metavar="FILE.toml",
            help="Write the machines with the fitted numbers, for -t of other commands (default: print the numbers only).",
        ),
    ] = None,
    json: opt.JsonOption = False,
    quiet: opt.QuietOption = False,
) -> None:
    """Fit the numbers of device type TYPE, and of the links that the plans use, to measured runs: rates, efficiencies, memory
    bandwidth, overheads, link bandwidths and latencies.

    Runs of at least 3 plans are needed. A number on which the runs hardly depend stays as it is. The error on plans left out
    of the fit is the error to expect on new plans; if the fit does not reduce it, all numbers stay as they are."""
    from dnnc.machines import machines_of
    from dnnc.study.calibrate import calibrated

    sink = DiagnosticSink()
    try:
        with progress(not quiet) as report:
            base = machines_of(topology, sink, report) if topology is not None else None
            calibration = calibrated(type_, runs, base, report)
    finally:
        show_warnings(sink.diagnostics, quiet)
    if json:
        put_json("calibrate", calibration_json(calibration))
    elif not quiet:
        _print(calibration)
    if out is not None:
        write_topology(calibration.topology, _notes(calibration, type_), out, quiet)


def calibration_json(calibration: Calibration) -> dict[str, object]:
    """``--json``: ``numbers`` in SI units; ``error``: mean relative ones."""
    return {
        "plans": calibration.plans,
        "rows": [
            {"build": str(row.build), "measured": row.seconds, "before": before, "after": after}
            for row, before, after in zip(calibration.rows, calibration.before, calibration.after, strict=True)
        ],
        "numbers": [
            {"of": one.number.of, "key": one.number.key, "from": one.number.value, "to": one.value, "share": one.share}
            for one in calibration.fitted
        ],
        "error": {
            "before": calibration.error(calibration.before),
            "after": calibration.error(calibration.after),
            "left_out": calibration.held_out,
        },
    }


def _print(calibration: Calibration) -> None:
    from dnnc.report import Table, columns, percent_text, print_table, ratio_text, seconds_text

    runs = [
        (
            os.path.relpath(row.build),
            seconds_text(row.seconds),
            seconds_text(before),
            ratio_text(before / row.seconds),
            seconds_text(after),
            ratio_text(after / row.seconds),
        )
        for row, before, after in zip(calibration.rows, calibration.before, calibration.after, strict=True)
    ]
    print_table(Table(columns("<build measured before ratio now ratio"), tuple(runs)))
    put("")
    if calibration.fitted:
        numbers = [
            (one.number.of, one.number.key, *(number_text(one.number, value) for value in (one.number.value, one.value)))
            for one in calibration.fitted
        ]
        shares = (percent_text(one.share) for one in calibration.fitted)
        rows = tuple((*row, share) for row, share in zip(numbers, shares, strict=True))
        print_table(Table(columns("<of <number from to share"), rows))
        put("")
    put(_verdict(calibration))


def _verdict(calibration: Calibration) -> str:
    from dnnc.report import percent_text

    before, left_out = percent_text(calibration.error(calibration.before)), percent_text(calibration.held_out)
    rows = f"{len(calibration.rows)} rows of {calibration.plans} plans"
    if not calibration.fitted:
        return f"{rows} err by {before} in the mean and tell no better numbers: the present ones are kept"
    after = percent_text(calibration.error(calibration.after))
    return f"mean error of {rows}: before {before}, now {after}; on plans left out of the fit {left_out}"


def number_text(number: Number, value: float) -> str:
    """As a topology file writes it."""
    from dnnc.machines.topology.quantities import Quantity, quantity_text
    from dnnc.study.calibrate import EFFICIENCY, RATES

    if number.key.startswith(EFFICIENCY):
        return f"{value:g}"
    kind = Quantity.TIME if number.is_time else Quantity.RATE if number.key == RATES else Quantity.BANDWIDTH
    return quantity_text(value, kind)


def _notes(calibration: Calibration, type_: str) -> Notes:
    """Comments: what was fitted to what, and what each number was."""
    from dnnc.study.calibrate import EFFICIENCY

    notes = {("", ""): f"Calibrated: {_verdict(calibration)}."}
    for one in calibration.fitted:
        number, was = one.number, number_text(one.number, one.number.value)
        table = f"types.{type_}" if number.kind is None else f"links.{number.of}"
        key, _, of = number.key.partition(".")
        before = notes.get((table, key), "calibrated; was")
        separator = " " if before.endswith("was") else ", "
        notes[table, key] = f"{before}{separator}{f'{of} {was}' if number.key.startswith(EFFICIENCY) else was}"
    return notes
