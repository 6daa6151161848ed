"""The predicted timeline of a planned module, as bars of a trace."""

from __future__ import annotations

from dnnc.backend.plan_json import bare
from dnnc.report.trace import TraceEvent
from ir.module import Module, Plan
from passes.lower import cuts_of
from passes.simulate import lane_of, simulate


def predicted(module: Module, microbatches: int) -> list[TraceEvent]:
    """What each device does while ``microbatches`` samples flow through: simulated from the schedule; devices in stage
    order."""
    plan = module.first(Plan)
    comm = plan.comm if plan else "sum"
    tensors = [bare(cut.tensor.name) for cut in cuts_of(module.entry)]
    found = []
    for event in simulate(module, microbatches):
        action = event.action
        name = f"{action.kind} {action.stage}.{action.microbatch}"
        args: tuple[tuple[str, int | float | str], ...] = (("stage", action.stage), ("microbatch", action.microbatch or 0))
        if action.channel is not None:
            name += f" {tensors[action.channel]}"
            args = (*args, ("tensor", tensors[action.channel]))
        lane = lane_of(action, comm)
        found.append(
            TraceEvent(event.device, name, action.kind, event.start, event.end, args, "" if lane == "compute" else lane)
        )
    return found
