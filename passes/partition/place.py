"""Place: stages onto concrete devices, and the plan's value on the real links.

``partition`` decides with the port model (each transfer at the best its device can do). Here every stage gets a device of its
type, each channel the route between its two devices, and the plan the numbers that the runtime will see:

- a stage's seconds: compute (with the hand-over of its type, where there are several devices) + receives + sends, combined by
  the plan's ``comm``: latency + bytes / bandwidth of the route for each tensor that arrives; for one that leaves, bytes /
  bandwidth of each route and the longest latency once. A device with free transfers pays nothing for its own part; what carries
  a ``Transfer`` facet costs that;
- a shared or half-duplex link is busy for the bytes of all that crosses it;
- the value (throughput) is the largest of all these, a replicated stage counting for each r-th sample. It is never below what
  the port model says of the same devices, hence not below the bound, which stays as it is and is of all devices. It may be
  below what the search counted for the plan, which may take a stage for one on a slower port of its type. Of a decoder's
  groups a replica counts for those that it serves; planned for tokens the value is at least what a group takes through all
  stages, shared by the groups in flight, and counts each sequence of a group.

The value of a training step is what the pipeline takes to fill, run and drain when every stage is as slow as the slowest;
seconds per microbatch are then of both passes, with the part of the update that falls to one (``passes.costs.learning``), and
a value whose gradient comes back crosses twice.

The value of a latency plan is the time of one sample alone (``PlacementProblem.latency``); its stages have their devices.

Which device: stages that a plan or a pin put on devices stay there; the others are chosen to minimise the value. Of placements
of one value those with fewer seconds of transfers are preferred where the search meets them, which is not proven. The start is
the better of two greedy placements, improved by exchanging and moving stages; if that does not reach the least value that
ports allow, a branch and bound proves or improves it, trying one device of those that can be exchanged (``device_classes``);
not where stages have replicas, which the exchanges alone place. It ends after ``NODES`` nodes (``placement_search``).

Stages that a plan puts on one device (the pieces of a split that is not contiguous) take turns there: their seconds and their
bytes add up, and what passes between them costs nothing.

Invariants: stages share all their devices or none; they fit the device's memory, else Infeasible says by how many bytes not.
What ``partition`` found to fit fits here too: buffers that it does not know of lead to a warning at most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ir.core.diagnostics import Infeasible, InvalidInput
from ir.core.module import Module, Plan, PlanStage
from ir.core.outcomes import TIGHT
from ir.core.topology import Device, Topology
from passes.costs.learning import ASYNCHRONOUS, InFlight, learning_seconds, step_seconds
from passes.costs.memory.footprint import Footprint
from passes.costs.network import network
from passes.framework.base import Pass, PassContext, needed
from passes.framework.expanded import on_expanded
from passes.framework.faults import FalseBound, FewerBuffers, OtherStages, StagesCrowded
from passes.framework.registry import PLANNERS
from passes.graph.graph import cuts_of, listing, stage_members
from passes.graph.serving import groups_of, most_groups
from passes.graph.sizes import assessed
from passes.solvers.anytime import Limits
from passes.stages.placement import Placement, PlacementProblem, turns
from passes.stages.placement_from_ir import placement_problem, replica_speed, serving_of, settled, stage_memory, updates
from passes.stages.placement_search import PlacementSearch
from passes.timeline.families import stages_in_flight

STATED = "plan"
"""The entry of a certificate that says that nobody searched for the plan."""


@dataclass(frozen=True)
class PlacePass(Pass):
    """Put stages on concrete devices and evaluate the plan on the real links.

    ``time_limit``: seconds of counted work (``passes.solvers.work``). ``family``: the order of a training step, as of
    ``schedule``: how much a stage holds depends on it.
    """

    name: ClassVar[str] = "place"
    time_limit: float = 10.0
    family: str = ""

    @on_expanded
    def run(self, module: Module, context: PassContext) -> Module:
        """Raises Infeasible when a stage fits no free device, InvalidInput for stages or a bound that contradict it."""
        plan, topology = needed(module, Plan), needed(module, Topology)
        if plan.on_meshes:
            return module  # the search on meshes chose the devices, and counted their links
        own = stage_ops(module, plan)
        flight = self.in_flight(module, plan, own) if plan.in_steps else None
        groups = [most_groups(groups_of(module), stage.replicas, stage.serves) for stage in plan.stages]
        serving = () if module.states else serving_of(module, plan)
        memory = stage_memory(module, own, cuts_of(module.entry), plan.comm, flight, groups, serving)
        try:
            problem = placement_problem(module, plan, topology, context.analyses.get(network, topology), own, memory)
        except Infeasible as error:
            error.proven, error.bound = False, plan.bound  # of other stages
            raise
        search = PlacementSearch(problem, Limits(seconds=self.time_limit), progress=context.progress)
        chosen = search.run()
        if chosen is None:
            raise _crowded(problem, plan, topology)
        if plan.in_steps:
            problem = settled(module, plan, problem, own, chosen)
        stages = []
        steps = steps_of(module, plan, problem, own, chosen) if plan.in_steps else [{}] * len(own)
        link = busiest(problem.busy(chosen), [dict(row.get("shared", ())) for row in steps])
        for stage, devices in enumerate(chosen):
            compute, receive, send = problem.parts(stage, chosen)
            serves, each = plan.stages[stage].serves, problem.steps(stage, chosen)
            unlike = bool(serves) and (max(each) > min(each) * (1 + TIGHT) or not module.states)
            types = {topology.devices[device].type for device in devices}
            stages.append(
                PlanStage(
                    index=stage,
                    device_type=types.pop() if len(types) == 1 else "",
                    devices=tuple(problem.names[device] for device in devices),
                    ops=len(own[stage]),
                    compute=compute,
                    receive=receive,
                    send=send,
                    weights=memory[stage].weights,
                    workspace=memory[stage].workspace,
                    buffers=memory[stage].buffers,
                    replicas=len(devices),
                    serves=serves,
                    steps=tuple(each) if unlike else (),
                    **steps[stage],
                )
            )
            if not serves:
                _warn_of_spare(context, stage, memory[stage], [topology.devices[device] for device in devices], topology)
        alone = plan.minimises.alone
        if plan.minimises.decodes:
            trip = problem.round_trip(chosen)
            value = trip if alone else max(problem.value(chosen), link, trip / groups_of(module)) / plan.tokens
            of_ports = value
        else:
            value = problem.latency(chosen) if alone else max(problem.value(chosen), link)
            of_ports = problem.latency(chosen, ports=True) if alone else problem.port_value(chosen)
        if plan.in_steps:
            shared = [len(devices) for devices in chosen]
            value, of_ports = (
                step_seconds(period, plan.microbatches, shared, flush=plan.flush) for period in (value, of_ports)
            )
        port_value = plan.port_value if math.isfinite(plan.port_value) else of_ports
        bound = plan.bound
        if value < bound * (1 - TIGHT) and plan.in_steps:
            # The search on meshes counts the update of a weight in each stage that reads it; the trainer makes it in one.
            once = math.fsum(row["sync"] for row in steps)
            bound = max(0.0, bound - once * (plan.microbatches + len(stages) - 1) / plan.microbatches)
        if value < bound * (1 - TIGHT) and not _searched(plan, context):
            raise InvalidInput(FalseBound(bound, value), where=plan.name)
        placed = replace(plan, stages=tuple(stages), port_value=port_value)
        placed = assessed(placed, module.entry, value, bound)
        context.count(self.name, value=placed.value, port_value=port_value, interrupted=int(search.interrupted))
        return module.replace(plan, placed)

    def in_flight(self, module: Module, plan: Plan, own: Sequence[Sequence[int]]) -> InFlight:
        """What stages hold of the microbatches of a training step."""
        on = [stage.devices or tuple(f"{stage.index}.{r}" for r in range(stage.replicas)) for stage in plan.stages]
        family = self.family or ("" if plan.flush else ASYNCHRONOUS[0])
        return stages_in_flight(module, own, on, plan.microbatches, family)


def steps_of(
    module: Module, plan: Plan, problem: PlacementProblem, own: Sequence[Sequence[int]], chosen: Placement
) -> list[dict[str, Any]]:
    """What the rows of a training plan say beside their seconds per microbatch: of these the backward pass, the seconds of the
    update once a step, on the slowest device, and of the sums that its last backward pass hides; the values whose gradients a
    stage returns; and the links that its sums of gradients share with others."""
    found: list[dict[str, Any]] = []
    learned = updates(module, own)
    speeds = [replica_speed(problem, devices) for devices in chosen]
    busy = [update.busy(speed, len(on)) for update, speed, on in zip(learned, speeds, chosen, strict=True)]
    for stage, (positions, update, speed) in enumerate(zip(own, learned, speeds, strict=True)):
        row = problem.compute[stage]
        device = problem.topology.devices[max(chosen[stage], key=lambda position: row[position])]
        type_ = problem.topology.type(device.type)
        others = {link for number, its in enumerate(busy) if number != stage for link in its}
        for channel, message in enumerate(problem.messages):
            if stage not in (message.source, message.target):
                pairs = turns(chosen[message.source], chosen[message.target])
                others.update(link for pair in pairs for link, _ in problem.media(channel, *pair))
        every = learning_seconds(module, type_)
        works = [every[i] for i in positions]
        found.append(
            {
                "backward": math.fsum(one.backward for one in works),
                "sync": update.seconds(type_, speed, len(chosen[stage]), works),
                "hidden": update.hidden(type_, speed, len(chosen[stage]), works),
                "learning": tuple(sorted(m.tensor for m in problem.messages if m.target == stage and m.times > 1)),
                "shared": tuple(
                    sorted((link, seconds / plan.microbatches) for link, seconds in busy[stage].items() if link in others)
                ),
            }
        )
    return found


def busiest(passing: Mapping[str, float], summed: Sequence[Mapping[str, float]]) -> float:
    """Seconds per sample of the link that is busy longest with what passes between stages and with sums of gradients."""
    total = dict(passing)
    for busy in summed:
        for link, seconds in busy.items():
            total[link] = total.get(link, 0.0) + seconds
    return max(total.values(), default=0.0)


def stage_ops(module: Module, plan: Plan) -> tuple[tuple[int, ...], ...]:
    """Positions of each stage's ops in the entry function. Raises InvalidInput when plan and ops disagree on the stages."""
    members = stage_members(module.entry)
    count = 1 + max((s for stages in members for s in stages), default=0)
    if [stage.index for stage in plan.stages] != list(range(count)):
        listed = ", ".join(str(stage.index) for stage in plan.stages)
        raise InvalidInput(OtherStages(listed, count), where=module.name)
    return tuple(tuple(i for i, stages in enumerate(members) if stage in stages) for stage in range(count))


def _searched(plan: Plan, context: PassContext) -> bool:
    """Whether a search of this run made the plan. Else it was read, as text or by ``assign``, and what its bound was proven of,
    or the bound itself, may have been edited since."""
    return any(name in context.statistics for name in PLANNERS) and STATED not in dict(plan.certificate)


def _warn_of_spare(context: PassContext, stage: int, memory: Footprint, devices: Sequence[Device], topology: Topology) -> None:
    for device in devices:
        limit = topology.memory(device)
        if limit is not None and memory.total > limit:
            context.sink.warn(FewerBuffers(memory.spare, memory.total, device.name, limit), where=f"stage {stage}")


def _crowded(problem: PlacementProblem, plan: Plan, topology: Topology) -> Infeasible:
    wanted = [
        f"stage {s.index} ({s.device_type or 'any type'}: {len(problem.candidates(s.index))} devices)" for s in plan.stages
    ]
    error = Infeasible(StagesCrowded(problem.size, listing(wanted)), where=topology.name)
    error.proven, error.bound = False, plan.bound  # of other stages
    return error
