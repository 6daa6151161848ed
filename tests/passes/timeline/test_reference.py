"""The simulator against makespans, device spans and peaks that were computed apart, for schedules of the literature.

``../shared/spec/schedule_reference.json`` has all of them; a few stand here, for those who lack it. Orders of families that we
have are ours; others are those of torch.distributed.pipelining, as far as it is installed. Stages are equal and take F = I = W
= 1 for a device's whole work; what is in flight counts that as one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from passes.timeline.families import FAMILIES
from passes.timeline.families.base import Orders, Pass, rows_of
from passes.timeline.simulate import run_rows
from passes.timeline.workload import Workload
from tests.passes.timeline.test_families import chunked, peaks, spans_of

OURS = {"GPipe": "gpipe", "1F1B": "1f1b", "Interleaved1F1B": "interleaved", "LoopedBFS": "gpipe", "ZBVZeroBubble": "zb-v"}
SOME = [
    # schedule, chunks, devices, microbatches, makespan, longest span of a device, most in flight by device
    ("GPipe", 1, 4, 8, 33.0, 33.0, [8.0] * 4),
    ("1F1B", 1, 8, 32, 117.0, 117.0, [8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0]),
    ("Interleaved1F1B", 4, 4, 8, 26.25, 26.25, [4.75, 4.25, 3.75, 3.25]),
    ("LoopedBFS", 2, 8, 16, 58.5, 58.5, [16.0] * 8),
    ("InterleavedZeroBubble", 2, 4, 16, 49.5, 49.5, [4.0] * 4),
    ("ZBVZeroBubble", 2, 8, 32, 99.5, 96.0, [8.0] * 8),
    ("DualPipeV", 2, 8, 16, 51.5, 51.5, [8.5] * 8),
]


def test_schedules_of_the_literature() -> None:
    for row in SOME:
        if row[0] not in OURS:
            pytest.importorskip("torch.distributed.pipelining")
        assert measured(*row[:4]) == row[4:], row


def test_every_schedule_of_the_reference(shared_dir: Path) -> None:
    pytest.importorskip("torch.distributed.pipelining")
    rows = json.loads((shared_dir / "spec" / "schedule_reference.json").read_text())
    assert len(rows) == 32
    for row in rows:
        wanted = row["makespan"], row["max_device_span"], row["peak_inflight_device_units"]
        assert measured(row["schedule"], row["v"], row["p"], row["m"]) == wanted, row


@pytest.mark.parametrize(("name", "each"), [("Interleaved1F1B", 2), ("Interleaved1F1B", 3), ("ZBVZeroBubble", 2)])
def test_orders_are_those_of_pytorch(name: str, each: int) -> None:
    pytest.importorskip("torch.distributed.pipelining")
    for devices, microbatches in ((2, 4), (4, 8), (4, 12)):
        load = placed_for(name, each, devices)
        assert FAMILIES[OURS[name]](load, microbatches) == of_pytorch(name, each, devices, microbatches)


def placed_for(name: str, each: int, devices: int) -> Workload:
    return chunked(devices, each, "v" if "V" in name else "loop")


def measured(name: str, each: int, devices: int, microbatches: int) -> tuple[float, float, list[float]]:
    """Makespan, longest span of a device, and most in flight by device."""
    load = placed_for(name, each, devices)
    own = OURS.get(name)
    rows = rows_of(load, FAMILIES[own](load, microbatches) if own else of_pytorch(name, each, devices, microbatches))
    events = run_rows(load, rows)
    return max(event.end for event in events), max(spans_of(events)), [peak / each for peak in peaks(rows)]


def of_pytorch(name: str, each: int, devices: int, microbatches: int) -> Orders:
    """The order of a schedule of PyTorch. A stage of DualPipeV has passes that are split and passes that are not: all are."""
    from torch.distributed.pipelining import schedules

    shape: dict[str, Any] = {"group_size": devices, "group_rank": 0, "num_stages": devices * each, "submod": None}
    stages = [SimpleNamespace(stage_index=stage, **shape) for stage in range(each)]
    order = getattr(schedules, f"Schedule{name}")(stages, microbatches).pipeline_order
    return {f"d{rank}": list(_passes(actions, split=name == "DualPipeV")) for rank, actions in order.items()}


def _passes(actions: Iterable[Any], *, split: bool) -> Iterator[Pass]:
    for action in actions:
        if action is not None and action.sub_actions:
            yield from _passes(action.sub_actions, split=split)
        elif action is not None:
            kind = action.computation_type.value
            for one in "IW" if kind == "B" and split else kind:
                yield one, action.stage_index, action.microbatch_index
