"""Summarises a timeline: busy seconds of each device, and the throughput of the pipeline once it is full."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dnnc.build.trace import TraceEvent
from dnnc.report.tables import Table, columns
from ir.text.units import bytes_text, percent_text, seconds_text

UPDATE = "U"
TRANSFERS = ("send", "recv", "collective")
"""Kinds of events that move data; all others are compute or updates of weights."""

ROUNDING = 1e-9
"""Share of the makespan below which waiting is a rounding error of a sum."""


@dataclass(frozen=True, slots=True)
class DeviceTime:
    """Seconds of a device in ``compute``, ``transfers`` and ``update`` (of weights, with its collectives). ``busy``: seconds in
    any of these. ``memory``: most bytes that it holds, None if unknown."""

    device: str
    compute: float
    transfers: float
    update: float
    busy: float
    memory: int | None = None


@dataclass(frozen=True, slots=True)
class TimelineSummary:
    """``makespan``: seconds from the first event to the last. ``interval``: mean seconds between two results; the makespan if
    there is one microbatch. ``first``: seconds until the first result. ``period``: seconds between two results of a stream
    once the pipeline is full, None for a training step."""

    microbatches: int
    makespan: float
    interval: float
    first: float
    devices: tuple[DeviceTime, ...]
    period: float | None = None

    @property
    def bubble(self) -> float:
        """Share of the time that devices wait, in the mean over devices; for a stream, once the pipeline is full."""
        parts = [self.waiting(device) for device in self.devices]
        return sum(parts) / len(parts) if parts else 0.0

    def waiting(self, device: DeviceTime) -> float:
        """Share of the time that a device waits; for a stream, once the pipeline is full."""
        whole = self.makespan if self.period is None else self.period * self.microbatches
        return max(0.0, 1 - device.busy / whole) if whole and device.busy < (1 - ROUNDING) * whole else 0.0


def summarize_timeline(
    events: Iterable[TraceEvent],
    microbatches: int,
    *,
    period: float | None = None,
    memory: Mapping[str, int] | None = None,
) -> TimelineSummary:
    """The summary of a timeline whose events have their microbatch in ``args``; devices in the order of events. ``period`` and
    ``memory`` (bytes by device) are copied into it."""
    compute: dict[str, float] = {}
    transfers: dict[str, float] = {}
    update: dict[str, float] = {}
    spans: dict[str, list[tuple[float, float]]] = {}
    done, end = [0.0] * microbatches, 0.0
    for event in events:
        for spent in (compute, transfers, update):
            spent.setdefault(event.track, 0.0)
        spent = transfers if event.kind in TRANSFERS else update if event.kind == UPDATE else compute
        spent[event.track] += event.end - event.start
        spans.setdefault(event.track, []).append((event.start, event.end))
        end = max(end, event.end)
        if event.kind != UPDATE:  # an update belongs to no microbatch
            number = int(dict(event.args)["microbatch"])
            done[number] = max(done[number], event.end)
    ends = sorted(done)
    interval = (ends[-1] - ends[0]) / (microbatches - 1) if microbatches > 1 else ends[-1]
    devices = tuple(
        DeviceTime(
            device, compute[device], transfers[device], update[device], covered(spans[device]), (memory or {}).get(device)
        )
        for device in compute
    )
    return TimelineSummary(microbatches, end, interval, ends[0], devices, period)


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Seconds that lie in any of the spans."""
    total, until = 0.0, 0.0
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def timeline_table(summary: TimelineSummary) -> Table:
    """One row per device; its bubble is the share of the time that it waits."""
    known, updated = any(one.memory is not None for one in summary.devices), any(one.update for one in summary.devices)
    rows = []
    for device in summary.devices:
        cells = [device.device, seconds_text(device.compute), seconds_text(device.transfers)]
        cells += [seconds_text(device.update)] if updated else []
        cells.append(percent_text(summary.waiting(device)) if summary.makespan else "-")
        cells += [bytes_text(device.memory) if device.memory is not None else "-"] if known else []
        rows.append(tuple(cells))
    head = "<device compute transfers" + " update" * updated + " bubble" + " memory" * known
    return Table(columns(head), tuple(rows))


def timeline_text(summary: TimelineSummary) -> str:
    """Makespan and share of waiting, in one or two lines."""
    count, end = summary.microbatches, seconds_text(summary.makespan)
    many = f"{count} microbatch{'es' if count != 1 else ''}"
    bubble = percent_text(summary.bubble)
    if summary.period is None:
        return f"a step of {many} in {end}; the devices wait {bubble} of it (bubble)"
    lines = [f"{many} in {end}, the first after {seconds_text(summary.first)}"]
    lines.append(f"a long stream has one every {seconds_text(summary.period)}; the devices then wait {bubble} (bubble)")
    return "\n".join(lines)


def compare_table(rows: Iterable[Mapping[str, Any]]) -> Table:
    """Predicted and measured seconds per stage. ``rows`` have ``index``, ``devices``, ``predicted``, ``measured``; for a stage
    on a mesh also ``collectives`` with ``predicted`` and ``measured``, shown in a line of their own."""
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
