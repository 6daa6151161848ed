"""Writes the schedule of a training step as CSV for torch.distributed.pipelining: ``_PipelineScheduleRuntime._load_csv`` reads
it with ``format="compute_only"``.

One line per rank, in the order of the rows; the cell ``2F0`` is action ``F`` of stage 2 for microbatch 0. Transfers are left
out, since PyTorch adds them, and so are updates, which its schedules do not contain. A mesh has one line, since each of its
members is in a pipeline of its own. PyTorch's runtime sends only to the next stage, so it cannot run a plan in which a value
skips stages.
"""

from __future__ import annotations

from dnnc.engines.torch.faults import ReplicasNotInSchedule, StreamWithoutPasses
from ir.core.diagnostics import UsageError
from ir.core.module import Schedule
from ir.ops.rows import BACKWARD, COMPUTE, INPUT_GRADIENT, WEIGHT_GRADIENT, Flow

PASSES = (COMPUTE, BACKWARD, INPUT_GRADIENT, WEIGHT_GRADIENT)
"""Kinds of actions that PyTorch's schedules have, under the same names."""


def schedule_csv(schedule: Schedule, flow: Flow) -> str:
    """The CSV of a schedule. Raises UsageError for a periodic schedule and for stages with replicas, which PyTorch lacks."""
    if schedule.periodic:
        raise UsageError(StreamWithoutPasses(), where=schedule.name)
    for stage, takers in enumerate(flow.takers):
        if len(takers) > 1:
            raise UsageError(ReplicasNotInSchedule(stage, len(takers)), where=schedule.name)
    lines = [
        ",".join(f"{action.stage}{action.kind}{action.microbatch}" for action in row if action.kind in PASSES)
        for device, row in schedule.rows
        if device not in flow.leads
    ]
    return "\n".join(lines) + "\n"
