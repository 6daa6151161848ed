"""The predicted timeline of a planned module, as bars of a trace.

Collectives of a stage on a mesh are drawn one after the other behind its compute: the model adds up both, and says nothing of
how they alternate.
"""

from __future__ import annotations

from dnnc.program.plan_json import bare
from dnnc.program.trace import TraceEvent
from ir.facets import Direction, StageSet
from ir.module import Module, Plan, Stage
from ir.rows import BACKWARD, COMPUTE, lane_of
from passes.model.graph import cuts_of
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
        kind = BACKWARD if action.kind == COMPUTE and action.stage in returning else action.kind
        name = f"{kind} {action.stage}{number}"
        args: tuple[tuple[str, int | float | str], ...] = (("stage", action.stage), ("microbatch", action.microbatch or 0))
        if action.channel is not None:
            name += f" {tensors[action.channel]}"
            args = (*args, ("tensor", tensors[action.channel]))
        lane = lane_of(action.kind, comm)
        collectives = exchanged.get(action.stage, ()) if action.kind == COMPUTE else ()
        end = max(event.start, event.end - sum(seconds for _, seconds in collectives))
        found.append(TraceEvent(event.device, name, kind, event.start, end, args, "" if lane == "compute" else lane))
        for title, seconds in collectives:
            label = f"{title} {action.stage}.{action.microbatch}"
            found.append(TraceEvent(event.device, label, COLLECTIVE, end, end + seconds, (*args, ("collective", title))))
            end += seconds
    return found


def _backward(module: Module) -> set[int]:
    """The stages of a profile that run backward nodes alone."""
    forward, every = set(), set()
    for op in module.entry.ops:
        stages, direction = op.facet(StageSet), op.facet(Direction)
        for stage in stages.stages if stages is not None else ():
            every.add(stage)
            if direction is None or direction.direction != "bw":
                forward.add(stage)
    return every - forward


def _collectives(module: Module) -> dict[int, list[tuple[str, float]]]:
    """Title and seconds of each collective of each stage on a mesh."""
    found: dict[int, list[tuple[str, float]]] = {}
    if any(stage.mesh for stage in module.of_type(Stage)):
        from passes.model.spmd.count import count

        for one in count(module):
            found.setdefault(one.stage, []).append((f"{one.kind} {bare(one.value)}", one.seconds))
    return found
