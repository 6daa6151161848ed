"""Timelines: a trace file holds the predicted and the measured one, and their summaries add up."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnc.build.trace import TraceEvent, to_perfetto
from dnnc.report import compare_table, summarize_timeline, table_text, timeline_table, timeline_text
from dnnc.report.gantt import gantt_svg, gantt_text
from dnnc.report.timeline import DeviceTime, TimelineSummary, covered


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


def test_each_timeline_is_a_process_of_its_own() -> None:
    twice = to_perfetto({"predicted": TIMELINE, "measured": TIMELINE[:1]})
    assert titles(twice) == ["predicted", "measured"]
    assert len({event["pid"] for event in twice["traceEvents"]}) == 2
    assert sum(event["ph"] == "X" for event in twice["traceEvents"]) == len(TIMELINE) + 1
    assert json.loads(json.dumps(twice)) == twice


def test_summary_counts_compute_transfers_and_waiting() -> None:
    summary = summarize_timeline(TIMELINE, 2)
    assert (summary.makespan, summary.first, summary.interval) == pytest.approx((6.5, 4.0, 2.5))
    assert [(d.device, d.compute, d.transfers) for d in summary.devices] == [("cpu0", 4.0, 0.5), ("cpu1", 3.0, 0.0)]
    rows = table_text(timeline_table(summary)).splitlines()
    assert rows[1].split() == ["cpu0", "4.00", "s", "500", "ms", "30.8", "%"]
    assert summary.bubble == pytest.approx((2.0 / 6.5 + 3.5 / 6.5) / 2)
    assert timeline_text(summary) == "a step of 2 microbatches in 6.50 s; the devices wait 42.3 % of it (bubble)"


def test_filling_a_stream_is_no_bubble() -> None:
    """Of a stream the devices' time is that of its period, whatever the timeline begins with."""
    summary = summarize_timeline(TIMELINE, 2, period=2.5, memory={"cpu0": 2 << 20})
    assert [round(summary.waiting(device), 9) for device in summary.devices] == [0.1, 0.4]
    assert timeline_text(summary).splitlines() == [
        "2 microbatches in 6.50 s, the first after 4.00 s",
        "a long stream has one every 2.50 s; the devices then wait 25.0 % (bubble)",
    ]
    rows = table_text(timeline_table(summary)).splitlines()
    assert (rows[1].split()[-2:], rows[2].split()[-1]) == (["2", "MiB"], "-")


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)).map(lambda ends: (float(min(ends)), float(max(ends))))))
def test_what_spans_cover_is_counted_once(spans: list[tuple[float, float]]) -> None:
    assert covered(spans) == sum(any(start <= x and x + 1 <= end for start, end in spans) for x in range(20))


def test_a_line_has_what_a_device_does_and_when() -> None:
    lines = gantt_text([*TIMELINE, bar("cpu1", "U", 0, 6.5, 6.75)], 40).splitlines()
    assert lines[:2] == ["cpu0  |F0fffffff---F1ffffffff..........|", "cpu1  |............F0fffff....F1ffffffU|"]
    assert lines[3].strip() == "F forward, U update, - transfers, . waiting"


def test_an_svg_has_each_event_and_escapes_names() -> None:
    held = {"cpu0": [(0.0, 5), (2.0, 9)]}
    text = gantt_svg([*TIMELINE, bar('a<b>"', "B", 0, 0.0, 1.0)], "a & b", held)
    root = ElementTree.fromstring(text)
    told = [title.text for title in root.iter("{http://www.w3.org/2000/svg}title")]
    assert len(told) == len(TIMELINE) + 1
    assert told[0] == "F 0: 0 s to 2.00 s"
    words = [found.text for found in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"a & b", 'a<b>"', "at most 9 B", "6.50 s"} <= set(words)


def test_nothing_is_a_picture_too() -> None:
    assert "waiting" in gantt_text([], 80)
    ElementTree.fromstring(gantt_svg([], ""))


def test_rounding_of_a_sum_is_no_waiting() -> None:
    """It had been told as 0.00 ns and < 0.1 %."""
    summary = TimelineSummary(1, 0.1 + 0.2, 0.3, 0.3, (DeviceTime("cpu0", 0.2, 0.1, 0.0, 0.2 + 0.1),))
    assert summary.makespan > 0.3
    rows = table_text(timeline_table(summary)).splitlines()
    assert rows[1].split()[-2:] == ["0.0", "%"]


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
