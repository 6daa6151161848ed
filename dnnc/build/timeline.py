"""The predicted timeline of a planned module, as bars of a trace.

Collectives of a stage on a mesh are drawn after its compute: the model adds their seconds, and does not say how they alternate.
For the same reason, backward nodes of a profile's stage are drawn after its forward nodes.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from dnnc.build.trace import TraceEvent
from ir.core.facets import Direction, StageSet, Time
from ir.core.module import Module, Plan, Stage
from ir.core.names import bare
from ir.core.topology import Topology
from ir.ops.rows import BACKWARD, COMPUTE, lane_of
from passes.costs.op_time import op_seconds
from passes.graph.graph import cuts_of
from passes.timeline.simulate import Event, simulate
from passes.timeline.workload import learned_channels

COLLECTIVE = "collective"
"""Kind of the bars of collectives."""


def predicted(
    module: Module, microbatches: int = 0, only: Container[str] | None = None, simulated: Iterable[Event] | None = None
) -> list[TraceEvent]:
    """The simulated actions of each device for ``microbatches`` samples, or for one training step; devices in stage order.
    ``only``: of these devices alone; ``simulated``: what ``simulate`` returned, where that is known."""
    plan = module.first(Plan)
    comm = plan.comm if plan else "sum"
    tensors = [bare(cut.name) for cut in cuts_of(module.entry)]
    tensors += [f"{tensors[channel]}.grad" for channel in (learned_channels(module, plan) if plan else ())]
    exchanged, returning = _collectives(module), _backward(module)
    events = []
    for event in simulate(module, microbatches) if simulated is None else simulated:
        if only is not None and event.device not in only:
            continue
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
        events.append(TraceEvent(event.device, name, kind, event.start, turn, args, "" if lane == "compute" else lane))
        if turn < end:
            events.append(TraceEvent(event.device, f"{BACKWARD} {action.stage}{number}", BACKWARD, turn, end, args))
        for title, seconds in collectives:
            label = f"{title} {action.stage}.{action.microbatch}"
            events.append(TraceEvent(event.device, label, COLLECTIVE, end, end + seconds, (*args, ("collective", title))))
            end += seconds
    return events


def _backward(module: Module) -> dict[int, float]:
    """Per stage of a profile, backward seconds / (forward seconds + backward seconds); stages without backward nodes are left
    out."""
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
    by_stage: dict[int, list[tuple[str, float]]] = {}
    if any(stage.mesh for stage in module.of_type(Stage)):
        from passes.meshes.costs.count import count

        for one in count(module):
            by_stage.setdefault(one.stage, []).append((f"{one.kind} {bare(one.value)}", one.seconds))
    return by_stage
