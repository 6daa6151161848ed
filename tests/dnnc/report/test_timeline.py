"""Timelines: a trace file holds the predicted and the measured one, and their summaries add up."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnc.program.trace import TraceEvent, to_perfetto, with_timeline
from dnnc.report import compare_table, summarize_timeline, table_text, timeline_table
from dnnc.report.timeline import DeviceTime, TimelineSummary


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


def test_rounding_of_a_sum_is_no_waiting() -> None:
    """It had been told as 0.00 ns and < 0.1 %."""
    summary = TimelineSummary(1, 0.1 + 0.2, 0.3, 0.3, (DeviceTime("cpu0", 0.2, 0.1),))
    assert summary.makespan > 0.3
    rows = table_text(timeline_table(summary)).splitlines()
    assert rows[1].split()[-4:] == ["0", "s", "0.0", "%"]


def test_one_microbatch_has_its_makespan_as_interval() -> None:
    assert summarize_timeline(TIMELINE[:2], 1).interval == 2.5


def overlaps(trace: dict[str, Any]) -> list[tuple[Any, Any]]:
    """Neighbouring bars of one track of which the second begins before the first has ended, in whole nanoseconds as Perfetto
    reads them."""
    tracks = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            start = round(event["ts"] * 1000)
            tracks[event["pid"], event["tid"]].append((start, start + round(event["dur"] * 1000), event["name"]))
    return [(a, b) for bars in tracks.values() for a, b in pairwise(sorted(bars)) if a[1] > b[0]]


@given(st.lists(st.floats(0.0, 1e-3), min_size=2, max_size=30))
def test_bars_that_follow_each_other_do_not_overlap_in_the_file(seconds: list[float]) -> None:
    ends = [0.0]
    for length in seconds:
        ends.append(ends[-1] + length)
    trace = to_perfetto({"predicted": [bar("cpu0", "F", i, a, b) for i, (a, b) in enumerate(pairwise(ends))]})
    assert overlaps(trace) == []
    assert all(event["dur"] >= 0 for event in trace["traceEvents"] if event["ph"] == "X")


def test_what_a_device_does_at_the_same_time_has_a_track_of_its_own() -> None:
    beside = TraceEvent("cpu0", "recv 1", "recv", 0.5, 2.5, (("microbatch", 1),), "in")
    trace = to_perfetto({"predicted": [TIMELINE[0], beside, TIMELINE[2]]})
    assert overlaps(trace) == []
    named = {event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"}
    assert named == {"cpu0", "cpu0 in"}


def test_a_stage_is_compared_with_all_its_devices_and_its_collectives_in_a_line_of_their_own() -> None:
    rows = [
        {"index": 0, "devices": ["cpu0", "cpu3"], "predicted": 1.0, "measured": 2.0},
        {
            "index": 1,
            "devices": ["cpu1", "cpu2"],
            "predicted": 1.0,
            "measured": 1.5,
            "collectives": {"predicted": 0.5, "measured": 1.5},
        },
    ]
    lines = [line.split() for line in table_text(compare_table(rows)).splitlines()[1:]]
    assert lines[0] == ["0", "cpu0,cpu3", "1.00", "s", "2.00", "s", "2.00x"]
    assert lines[1] == ["1", "cpu1,cpu2", "1.00", "s", "1.50", "s", "1.50x"]
    assert lines[2] == ["collectives", "500", "ms", "1.50", "s", "3.00x"]
