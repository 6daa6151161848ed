"""Timelines for Perfetto and chrome://tracing: the JSON form of the Trace Event Format.

One process per timeline (``predicted``, ``measured``), one track per device and lane of it; times in the file are
microseconds. Bars of one track that overlap by as little as a nanosecond are dropped by Perfetto: starts and ends are rounded
to nanoseconds, so that bars which follow each other still do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

LONGEST = 1e9
"""Seconds that a timeline may have."""


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One bar: what ``track`` (a device) did from ``start`` to ``end``, in seconds. ``kind`` (``F``, ``recv``, ``send``, ...)
    colours the bar; a click shows ``args``. Work in parallel on one device, such as a transfer, has its own ``lane``."""

    track: str
    name: str
    kind: str
    start: float
    end: float
    args: tuple[tuple[str, int | float | str], ...] = ()
    lane: str = ""


def to_perfetto(timelines: Mapping[str, Iterable[TraceEvent]]) -> dict[str, Any]:
    """The trace of the named timelines. Tracks are in the order of their first events."""
    events = [event for pid, timeline in enumerate(timelines.items(), 1) for event in _events(pid, *timeline)]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def from_perfetto(data: Any, title: str) -> list[TraceEvent]:
    """The bars of the timeline ``title`` of a trace that ``to_perfetto`` made; none where it has no such timeline. Raises
    ValueError for anything else."""
    rows = data.get("traceEvents") if isinstance(data, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("no list of events")
    try:
        named = {row["args"]["name"]: row["pid"] for row in rows if row["ph"] == "M" and row["name"] == "process_name"}
        own = [row for row in rows if title in named and row["pid"] == named[title]]
        tracks = {row["tid"]: str(row["args"]["name"]) for row in own if row["ph"] == "M" and row["name"] == "thread_name"}
        return [_event(row, tracks[row["tid"]]) for row in own if row["ph"] == "X"]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"an event without {error}") from None


def _event(row: Mapping[str, Any], track: str) -> TraceEvent:
    start, length = row["ts"], row["dur"]
    if not all(isinstance(time, int | float) and 0 <= time <= LONGEST * 1e6 for time in (start, length)):
        raise ValueError("an event whose time is no number of microseconds")
    start, length = start / 1e6, length / 1e6
    args = tuple((str(key), value) for key, value in row["args"].items() if isinstance(value, int | float | str))
    device, _, lane = track.partition(" ")
    return TraceEvent(device, str(row["name"]), str(row["cat"]), start, start + length, args, lane)


def _events(pid: int, title: str, timeline: Iterable[TraceEvent]) -> list[dict[str, Any]]:
    """One process of a trace."""
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": pid, "args": {"name": title}}]
    tracks: dict[str, int] = {}
    bars = []
    for event in timeline:
        tid = tracks.setdefault(f"{event.track} {event.lane}".rstrip(), len(tracks) + 1)
        start, end = round(event.start * 1e9), round(event.end * 1e9)
        bars.append(
            {
                "ph": "X",
                "name": event.name,
                "cat": event.kind,
                "pid": pid,
                "tid": tid,
                "ts": start / 1e3,
                "dur": (end - start) / 1e3,
                "args": dict(event.args),
            }
        )
    for name, tid in tracks.items():
        events.append({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}})
        events.append({"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}})
    return events + sorted(bars, key=lambda bar: (bar["ts"], bar["tid"], bar["name"]))
