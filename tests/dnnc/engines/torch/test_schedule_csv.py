"""Rows as PyTorch's CSV: loaded there, they are the same passes in the same order, and its own dry run completes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dnnc.engines.torch.write.schedule_csv import schedule_csv
from ir.core.diagnostics import UsageError
from ir.core.module import Schedule
from passes.timeline.families import ASYNCHRONOUS, FAMILIES, step
from passes.timeline.workload import Workload
from tests.passes.timeline.test_families import equal, placed


def loaded(path: Path, load: Workload, schedule: Schedule) -> Any:
    """PyTorch's schedule of these rows."""
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    path.write_text(schedule_csv(schedule, load.flow))
    shape = {"group_size": len(schedule.rows), "group_rank": 0, "num_stages": len(load.compute)}
    stages = [SimpleNamespace(stage_index=stage, **shape) for stage, on in enumerate(load.replicas) if on == load.replicas[0]]
    found = schedules._PipelineScheduleRuntime(stages, schedule.microbatches)
    found._load_csv(str(path))
    return found


@pytest.mark.parametrize("family", sorted({*FAMILIES} - {*ASYNCHRONOUS}))
def test_pytorch_reads_the_rows_of_every_family(family: str, tmp_path: Path) -> None:
    load = placed(family, 3)
    schedule = step(load, 6, family)
    found = loaded(tmp_path / "rows.csv", load, schedule)
    wanted = [[(a.stage, a.kind, a.microbatch) for a in row if a.kind in "FBIW"] for _, row in schedule.rows]
    order = found.pipeline_order
    assert [[(a.stage_index, a.computation_type.value, a.microbatch_index) for a in order[rank]] for rank in order] == wanted
    assert found.stage_index_to_group_rank == {stage: int(on[0][1:]) for stage, on in enumerate(load.replicas)}
    from torch.distributed.pipelining import schedules

    kinds = ("F", "B", "I", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B")  # its dry run knows no others
    followed = found.pipeline_order_with_comms.items()
    known = {rank: [a for a in actions if a.computation_type.value in kinds] for rank, actions in followed}
    done = schedules._simulate_comms_compute(known, found.stage_index_to_group_rank.__getitem__, len(load.compute))
    assert sum(action is not None for row in done.values() for action in row) == sum(map(len, known.values()))


def test_a_mesh_is_one_rank() -> None:
    load = replace(equal(2), replicas=(("a", "b"), ("c",)), together=frozenset({0}))
    assert schedule_csv(step(load, 2, "1f1b"), load.flow) == "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"


def test_what_pytorch_has_no_rows_for_is_refused() -> None:
    load = equal(2)
    with pytest.raises(UsageError, match=r"@schedule: error\[E0718\]: the schedule is a stream"):
        schedule_csv(Schedule("@schedule", "stream", (), periodic=True), load.flow)
    load = replace(load, replicas=(("a", "b"), ("c",)))
    with pytest.raises(UsageError, match="stage 0 is on 2 replicas, and PyTorch's schedules have one rank for each stage"):
        schedule_csv(step(load, 2, "1f1b"), load.flow)
