"""Timelines: a trace file holds the predicted and the measured one, and their summaries add up."""

from __future__ import annotations

import json

import pytest

from dnnc.report import TraceEvent, summarize_timeline, table_text, timeline_table, to_perfetto, with_timeline


def bar(track: str, kind: str, microbatch: int, start: float, end: float) -> TraceEvent:
    return TraceEvent(track, f"{kind} {microbatch}", kind, start, end, (("stage", 0), ("microbatch", microbatch)))


TIMELINE = [
    bar("cpu0", "F", 0, 0.0, 2.0),
    bar("cpu0", "send", 0, 2.0, 2.5),
    bar("cpu0", "F", 1, 2.5, 4.5),
    bar("cpu1", "F", 0, 2.5, 4.0),
    bar("cpu1", "F", 1, 5.0, 6.5),
]


def titles(trace: dict[str, list[dict[str, object]]]) -> list[object]:
    return [event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"]  # type: ignore[index]


def test_a_timeline_is_added_beside_the_others_and_replaces_its_former_self() -> None:
    trace = to_perfetto({"predicted": TIMELINE})
    twice = with_timeline(with_timeline(trace, "measured", TIMELINE), "measured", TIMELINE[:1])
    assert titles(twice) == ["predicted", "measured"]
    assert len({event["pid"] for event in twice["traceEvents"]}) == 2
    assert sum(event["ph"] == "X" for event in twice["traceEvents"]) == len(TIMELINE) + 1
    assert json.loads(json.dumps(twice)) == twice


def test_a_device_called_like_a_timeline_stays() -> None:
    trace = to_perfetto({"predicted": [bar("measured", "F", 0, 0.0, 1.0)]})
    assert titles(with_timeline(trace, "measured", TIMELINE)) == ["predicted", "measured"]


def test_summary_counts_compute_transfers_and_waiting() -> None:
    summary = summarize_timeline(TIMELINE, 2)
    assert (summary.makespan, summary.first, summary.interval) == pytest.approx((6.5, 4.0, 2.5))
    assert [(d.device, d.compute, d.transfers) for d in summary.devices] == [("cpu0", 4.0, 0.5), ("cpu1", 3.0, 0.0)]
    rows = table_text(timeline_table(summary)).splitlines()
    assert rows[1].split() == ["cpu0", "4.00", "s", "500", "ms", "2.00", "s", "30.8", "%"]


def test_one_microbatch_has_its_makespan_as_interval() -> None:
    assert summarize_timeline(TIMELINE[:2], 1).interval == 2.5
