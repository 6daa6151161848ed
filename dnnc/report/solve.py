"""A split for a person: what runs where, how good it is, and how that was proven. Times are in the file's own unit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dnnc.report.tables import Table, columns
from dnnc.report.units import bytes_text, percent_text, seconds_text

if TYPE_CHECKING:
    from dnnc.solve import SolveResult


def number_text(value: float) -> str:
    """A time in the file's unit: nine digits, which tell any two plans apart that a person would."""
    return f"{value:.9g}"


def solve_table(result: SolveResult) -> Table:
    """One row per stage: its devices (several when it is replicated) and what each of them does."""
    rows = []
    for device in result.devices:
        names = [other.name for other in result.devices if other.stage == device.stage]
        if device.stage is not None and device.name == names[0]:
            limit = "-" if device.limit is None else percent_text(device.memory / device.limit) if device.limit else "-"
            rows.append(
                (
                    names[0] if len(names) == 1 else f"{names[0]}..{names[-1]}",
                    str(len(device.nodes)),
                    number_text(device.load),
                    number_text(device.compute),
                    number_text(device.transfer),
                    bytes_text(device.memory),
                    limit,
                    percent_text(device.load / result.objective) if result.objective > 0 else "-",
                )
            )
    return Table(columns("<device nodes load compute transfer memory of_limit share"), tuple(rows))


def solve_headline(result: SolveResult) -> str:
    """Objective, bound, gap and what the search did, in four lines."""
    used = sum(1 for device in result.devices if device.nodes)
    idle = len(result.devices) - used
    devices = f"{used} device{'s' if used != 1 else ''}" + (f", {idle} of {len(result.devices)} unused" if idle else "")
    chosen = [_option_text(name, value) for name, value in result.options.items() if value]
    told = ", ".join([result.split, *([result.comm] if result.kind == "throughput" else []), *chosen])
    searched = f"{result.nodes} nodes, {result.ideals} ideals, {result.transitions} transitions"
    timed = ", ".join(f"{name} {seconds_text(result.seconds[name])}" for name in _told(result))
    return "\n".join(
        [
            f"{result.kind} ({told}): {number_text(result.objective)} {result.unit} on {devices}",
            f"  {result.status}: lower bound {number_text(result.bound)} {result.unit}, gap {gap_text(result.gap)}",
            f"  {result.reason}",
            f"  {searched}; {timed}",
        ]
    )


def _option_text(name: str, value: object) -> str:
    return name if value is True else value if isinstance(value, str) else f"{name} {value}"


def gap_text(gap: float) -> str:
    return percent_text(gap) if math.isfinite(gap) else "unknown"


def _told(result: SolveResult) -> Sequence[str]:
    return [name for name in ("read", "load", "search", "total") if name in result.seconds]


__all__ = ["solve_headline", "solve_table"]
