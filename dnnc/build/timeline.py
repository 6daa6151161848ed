"""The predicted timeline of a planned module, as bars of a trace.

Collectives of a stage on a mesh are drawn one after the other behind its compute: the model adds up both, and says nothing of
how they alternate. So are the backward nodes of a profile's stage behind its forward ones.
"""

from __future__ import annotations

from dnnc.build.plan_json import bare
from dnnc.build.trace import TraceEvent
from ir.core.facets import Direction, StageSet, Time
from ir.core.module import Module, Plan, Stage
from ir.core.topology import Topology
from ir.ops.rows import BACKWARD, COMPUTE, lane_of
from passes.model.graph import cuts_of
from passes.model.op_time import op_seconds
from passes.model.timeline.simulate import simulate
from passes.model.timeline.workload import learned_channels

COLLECTIVE = "collective"
"""Kind of the bars of collectives."""


def predicted(module: Module, microbatches: int = 0) -> list[TraceEvent]:
    """What each device does while ``microbatches`` samples flow through, or in the training step that the schedule is of:
    simulated; devices in stage order."""
    plan = module.first(Plan)
    comm = plan.comm if plan else "sum"
    tensors = [bare(cut.name) for cut in cuts_of(module.entry)]
    tensors += [f"{tensors[channel]}.grad" for channel in (learned_channels(module, plan) if plan else ())]
    exchanged, returning = _collectives(module), _backward(module)
    found = []
    for event in simulate(module, microbatches):
        action = event.action
        number = "" if action.microbatch is None else f".{action.microbatch}"
        back = returning.get(action.stage, 0.0) if action.kind == COMPUTE else 0.0
        kind = BACKWARD if back == 1 else action.kind
        name = f"{kind} {action.stage}{number}"
        args: tuple[tuple[str, int | float | str], ...] = (("stage", action.stage), ("microbatch", action.microbatch or 0))
        if action.channel is not None:
            name += f" {tensors[action.channel]}"
            args = (*args, ("tensor", tensors[action.channel]))
        lane = lane_of(action.kind, comm)
        collectives = exchanged.get(action.stage, ()) if action.kind == COMPUTE else ()
        end = max(event.start, event.end - sum(seconds for _, seconds in collectives))
        turn = end - (end - event.start) * back if back < 1 else end
        found.append(TraceEvent(event.device, name, kind, event.start, turn, args, "" if lane == "compute" else lane))
        if turn < end:
            found.append(TraceEvent(event.device, f"{BACKWARD} {action.stage}{number}", BACKWARD, turn, end, args))
        for title, seconds in collectives:
            label = f"{title} {action.stage}.{action.microbatch}"
            found.append(TraceEvent(event.device, label, COLLECTIVE, end, end + seconds, (*args, ("collective", title))))
            end += seconds
    return found


def _backward(module: Module) -> dict[int, float]:
    """Of each stage of a profile, the part of its seconds that its backward nodes take, drawn behind those of the forward ones;
    1 where it has no others."""
    plan, topology = module.first(Plan), module.first(Topology)
    if plan is None or topology is None:
        return {}
    seconds: dict[int, list[float]] = {}
    for op in module.entry.ops:
        stages, direction = op.facet(StageSet), op.facet(Direction)
        for stage in stages.stages if stages is not None and op.facet(Time) is not None else ():
            row = plan.stages[stage]
            type_ = row.device_type or topology.device(row.devices[0]).type
            back = direction is not None and direction.direction == "bw"
            seconds.setdefault(stage, [0.0, 0.0])[back] += op_seconds(op, topology.type(type_))
    return {stage: back / (forward + back) for stage, (forward, back) in seconds.items() if back > 0}


def _collectives(module: Module) -> dict[int, list[tuple[str, float]]]:
    """Title and seconds of each collective of each stage on a mesh."""
    found: dict[int, list[tuple[str, float]]] = {}
    if any(stage.mesh for stage in module.of_type(Stage)):
        from passes.model.spmd.count import count

        for one in count(module):
            found.setdefault(one.stage, []).append((f"{one.kind} {bare(one.value)}", one.seconds))
    return found
