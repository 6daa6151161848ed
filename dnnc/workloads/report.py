"""Shows a split: which nodes run on which device, its value, and the bound. Times are in the unit of the workload file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dnnc.report.tables import Table, columns
from ir.core.objectives import objective_of
from ir.text.units import bytes_text, outcome_text, percent_text, seconds_text

if TYPE_CHECKING:
    from dnnc.workloads.methods import Boundaries
    from dnnc.workloads.solve import SolveResult


def number_text(value: float) -> str:
    """A time in the unit of the file, with nine digits."""
    return f"{value:.9g}"


def solve_table(result: SolveResult) -> Table:
    """One row per stage: its devices (several if it has replicas), their type on a topology, and the load of each."""
    rows = []
    typed = "topology" in result.machines
    names_of: dict[int, list[str]] = {}
    for device in result.devices:
        if device.stage is not None:
            names_of.setdefault(device.stage, []).append(device.name)
    for device in result.devices:
        names = [] if device.stage is None else names_of[device.stage]
        if names and device.name == names[0]:
            limit = "-" if device.limit is None else percent_text(device.memory / device.limit) if device.limit else "-"
            rows.append(
                (
                    names[0] if len(names) == 1 else f"{names[0]}..{names[-1]}",
                    *([device.kind] if typed else []),
                    str(len(device.nodes)),
                    number_text(device.load),
                    number_text(device.compute),
                    number_text(device.transfer),
                    bytes_text(device.memory),
                    limit,
                    percent_text(device.load / result.objective) if result.objective > 0 else "-",
                )
            )
    titles = f"<device {'<type ' if typed else ''}nodes load compute transfer memory of_limit share"
    return Table(columns(titles), tuple(rows))


def solve_headline(result: SolveResult) -> str:
    """A line each for the objective, bound and gap, how they were found, whose seconds the devices use, and the search."""
    used = sum(1 for device in result.devices if device.nodes)
    idle = len(result.devices) - used
    devices = f"{used} device{'s' if used != 1 else ''}" + (f", {idle} of {len(result.devices)} unused" if idle else "")
    chosen = [_option_text(name, value) for name, value in result.options.items() if value and name != "inner_bandwidth"]
    told = ", ".join(
        [
            *([] if result.method == "exact" else [result.method]),
            result.split,
            *([result.comm] if objective_of(result.kind).streams else []),
            *chosen,
        ]
    )
    gap = f", gap {percent_text(result.gap)}" if result.status == "optimal" else ""
    searched = f"{result.nodes} nodes, {result.ideals} ideals, {result.transitions} transitions"
    timed = ", ".join(f"{name} {seconds_text(result.seconds[name])}" for name in _told(result))
    return "\n".join(
        [
            f"{result.kind} ({told}): {number_text(result.objective)} {result.unit} on {devices}",
            f"  {outcome_text(result.status, result.gap)}: lower bound {number_text(result.bound)} {result.unit}{gap}",
            f"  {result.reason}",
            *([f"  {result.machines['seconds']}"] if result.machines.get("seconds") else []),
            *([_boundaries_text(result.boundaries)] if result.boundaries is not None else []),
            f"  {searched}; {timed}",
        ]
    )


def _boundaries_text(boundaries: Boundaries) -> str:
    """Transfers of a split that need not be contiguous, compared with the best contiguous split."""

    def told(pairs: int, transfers: int) -> str:
        return f"{transfers} transfer{'s' * (transfers != 1)} per sample between {pairs} pair{'s' * (pairs != 1)} of devices"

    text = f"  {told(boundaries.pairs, boundaries.transfers)}"
    if boundaries.contiguous is None:
        return text
    known = told(boundaries.contiguous_pairs, boundaries.contiguous_transfers)
    return f"{text}; contiguous: {number_text(boundaries.contiguous)} with {known}"


def compare_table(result: SolveResult) -> Table:
    """One row per method, the exact one first: the value of its plan, and whether the plan fits."""
    rows = []
    for row in result.compare:
        found = math.isfinite(row.objective)
        fits = "-" if row.fits is None else "yes" if row.fits else "no"
        why = f": its plan breaks a limit: {row.why}" if row.why and found else f": {row.why}" if row.why else ""
        rows.append(
            (
                row.method,
                number_text(row.objective) if found else "-",
                f"{row.ratio:.4f}" if found and math.isfinite(row.ratio) else "-",
                seconds_text(row.seconds),
                row.split or "-",
                fits,
                row.status + why,
            )
        )
    return Table(columns(f"<method objective_({result.unit}) ratio time <split <fits <status"), tuple(rows))


def compare_note(result: SolveResult) -> str:
    """A sentence if baselines beat the exact method, since these are not restricted to contiguous splits; else empty."""
    usable = [row for row in result.compare if row.status in ("optimal", "within-gap")]
    better = [row.method for row in usable if row.split != result.split and row.ratio < 1 - 1e-9]
    if not better:
        return ""
    return f"{' and '.join(better)}: better, with splits that are not contiguous; --split any lets the exact method use these\n"


def _option_text(name: str, value: object) -> str:
    return name if value is True else value if isinstance(value, str) else f"{name} {value}"


def _told(result: SolveResult) -> Sequence[str]:
    return [name for name in ("read", "load", "search", "total") if name in result.seconds]
