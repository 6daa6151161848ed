"""The rows of a training step as the CSV of torch.distributed.pipelining: what ``_load_csv`` of its
``_PipelineScheduleRuntime`` reads with ``format="compute_only"``.

A line for each rank, in the order of the rows; a cell ``2F0`` is ``F`` of stage 2 for microbatch 0. Transfers are left out,
which PyTorch adds itself, and so are updates, which are no matter of its schedules. Of a mesh there is one line: each of its
members is in a pipeline of its own. PyTorch's runtime sends to the next stage alone, so it does not run stages whose values
skip some.
"""

from __future__ import annotations

from dnnc.engines.torch.faults import ReplicasNotInSchedule, StreamWithoutPasses
from ir.core.diagnostics import UsageError
from ir.core.module import Schedule
from ir.ops.rows import BACKWARD, COMPUTE, INPUT_GRADIENT, WEIGHT_GRADIENT, Flow

PASSES = (COMPUTE, BACKWARD, INPUT_GRADIENT, WEIGHT_GRADIENT)
"""Kinds of actions that PyTorch calls the same."""


def schedule_csv(schedule: Schedule, flow: Flow) -> str:
    """The CSV of a schedule. Raises UsageError for a stream and for replicated stages, which PyTorch's schedules lack."""
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


__all__ = ["schedule_csv"]
