"""Timelines for Perfetto and chrome://tracing: the JSON form of the Trace Event Format.

One process per timeline (``predicted``, ``measured``), one track per device; times in the file are microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One bar: what ``track`` (a device) did from ``start`` to ``end``, in seconds. ``kind`` is ``F``, ``recv``, ``send``...,
    and colours the bar; ``args`` is shown when it is clicked."""

    track: str
    name: str
    kind: str
    start: float
    end: float
    args: tuple[tuple[str, int | float | str], ...] = ()


def to_perfetto(timelines: Mapping[str, Iterable[TraceEvent]]) -> dict[str, Any]:
    """The trace of the timelines, by their names. Tracks stand in order of their first event's place in the list."""
    events: list[dict[str, Any]] = []
    for pid, (title, timeline) in enumerate(timelines.items(), start=1):
        events.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": title}})
        tracks: dict[str, int] = {}
        bars = []
        for event in timeline:
            tid = tracks.setdefault(event.track, len(tracks) + 1)
            bars.append(
                {
                    "ph": "X",
                    "name": event.name,
                    "cat": event.kind,
                    "pid": pid,
                    "tid": tid,
                    "ts": round(event.start * 1e6, 3),
                    "dur": round((event.end - event.start) * 1e6, 3),
                    "args": dict(event.args),
                }
            )
        for name, tid in tracks.items():
            events.append({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}})
            events.append({"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}})
        events += sorted(bars, key=lambda bar: (bar["ts"], bar["tid"], bar["name"]))
    return {"traceEvents": events, "displayTimeUnit": "ms"}
