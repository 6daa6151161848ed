"""A timeline for a person: how long each device is busy, and what a pipeline reaches once it is full."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dnnc.program.trace import TraceEvent
from dnnc.report.tables import Table, columns
from dnnc.units import percent_text, seconds_text

UPDATE = "U"
TRANSFERS = ("send", "recv", "collective", UPDATE)
"""Kinds of bars in which a device moves data; in all others it computes."""

ROUNDING = 1e-9
"""Share of the makespan below which waiting is the error of a sum."""


@dataclass(frozen=True, slots=True)
class DeviceTime:
    """Seconds that one device computed and moved tensors in a timeline."""

    device: str
    compute: float
    transfers: float


@dataclass(frozen=True, slots=True)
class TimelineSummary:
    """``makespan``: seconds from the first event to the last; ``interval``: mean seconds between two results (the
    whole makespan for one microbatch); ``first``: seconds until the first result."""

    microbatches: int
    makespan: float
    interval: float
    first: float
    devices: tuple[DeviceTime, ...]


def summarize_timeline(events: Iterable[TraceEvent], microbatches: int) -> TimelineSummary:
    """The numbers of a timeline whose events carry their microbatch in ``args``; devices in the order of the events."""
    compute: dict[str, float] = {}
    transfers: dict[str, float] = {}
    done, end = [0.0] * microbatches, 0.0
    for event in events:
        spent = transfers if event.kind in TRANSFERS else compute
        compute.setdefault(event.track, 0.0)
        transfers.setdefault(event.track, 0.0)
        spent[event.track] += event.end - event.start
        end = max(end, event.end)
        if event.kind != UPDATE:  # of all microbatches
            number = int(dict(event.args)["microbatch"])
            done[number] = max(done[number], event.end)
    ends = sorted(done)
    interval = (ends[-1] - ends[0]) / (microbatches - 1) if microbatches > 1 else ends[-1]
    devices = tuple(DeviceTime(device, compute[device], transfers[device]) for device in compute)
    return TimelineSummary(microbatches, end, interval, ends[0], devices)


def timeline_table(summary: TimelineSummary) -> Table:
    """One row per device; what is neither compute nor transfers is waiting (the bubble)."""
    rows = []
    for device in summary.devices:
        waiting = summary.makespan - device.compute - device.transfers
        waiting = waiting if waiting > ROUNDING * summary.makespan else 0.0
        share = percent_text(waiting / summary.makespan) if summary.makespan else "-"
        cells = (seconds_text(device.compute), seconds_text(device.transfers), seconds_text(waiting), share)
        rows.append((device.device, *cells))
    return Table(columns("<device compute transfers waiting bubble"), tuple(rows))


def compare_table(rows: Iterable[Mapping[str, Any]]) -> Table:
    """Predicted against measured seconds per stage: rows with ``index``, ``devices``, ``predicted``, ``measured``; of a stage
    on a mesh also ``collectives``, ``predicted`` and ``measured``, in a line of their own."""
    cells = []
    for row in rows:
        cells.append((str(row["index"]), ",".join(row["devices"]), *_compared(row)))
        if "collectives" in row:
            cells.append(("", "  collectives", *_compared(row["collectives"])))
    return Table(columns("stage <device predicted measured ratio"), tuple(cells))


def _compared(row: Mapping[str, Any]) -> tuple[str, str, str]:
    """Predicted and measured seconds, and their ratio."""
    predicted, measured = float(row["predicted"]), float(row["measured"])
    ratio = f"{measured / predicted:.2f}x" if predicted > 0 else "-"
    return seconds_text(predicted), seconds_text(measured), ratio
