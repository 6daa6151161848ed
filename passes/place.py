"""Place: stages onto concrete devices, and the plan's value on the real links.

``partition`` decides with the port model (each transfer at the best its device can do). Here every stage gets a device of its
type, each channel the route between its two devices, and the plan the numbers that the runtime will see:

- a stage's seconds: compute (with the hand-over of its type, where there are several stages) + receives + sends, combined by
  the plan's ``comm``: latency + bytes / bandwidth of the route for each tensor that arrives; for one that leaves, bytes /
  bandwidth of each route and the longest latency once. A device with free transfers pays nothing for its own part; what carries
  a ``Transfer`` facet costs that;
- a shared or half-duplex link is busy for the bytes of all that crosses it;
- the value (throughput) is the largest of all these, a replicated stage counting for each r-th sample. It is never below the
  port model's, hence not below the bound, which stays as it is.

The value of a latency plan is the time of one sample alone (``PlacementProblem.latency``); its stages have their devices.

Which device: stages that a plan or a pin put on devices stay there; the others are chosen to minimise the value. Of placements
of one value those with fewer seconds of transfers are preferred where the search meets them, which is not proven. The start is
the better of two greedy placements, improved by exchanging and moving stages; if that does not reach the least value that
ports allow, a branch and bound proves or improves it, trying one device of those that can be exchanged (``device_classes``);
not where stages have replicas, which the exchanges alone place. It ends after ``nodes`` nodes; statistics say
whether it was complete.

Stages that a plan puts on one device (the pieces of a split that is not contiguous) take turns there: their seconds and their
bytes add up, and what passes between them costs nothing.

Invariants: stages share all their devices or none; they fit the device's memory, else Infeasible says by how many bytes not.
What ``partition`` found to fit fits here too: buffers that it does not know of lead to a warning at most.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from ir.diagnostics import Diagnostic, Infeasible, InvalidInput
from ir.facets import Transfer
from ir.module import Func, Module, Plan, PlanStage
from ir.topology import Device, Topology
from passes.framework.base import Pass, PassContext
from passes.framework.expanded import on_expanded
from passes.model.graph import Cut, cuts_of, listing, reads, stage_members
from passes.model.liveness import SLOTS, edge_slots, resource_bytes, stage_workspace, stated_bytes
from passes.model.network import Network, network
from passes.model.op_time import func_seconds
from passes.model.sizes import assessed
from passes.placement import Message, Placement, PlacementProblem, search, shared_loads, turns
from passes.sharded import sharded_workload
from passes.simulate import Wire, Workload

TIGHT = 1e-9
"""Relative distance at which a value counts as equal to its bound: rounding of sums of seconds."""


@dataclass(frozen=True)
class PlacePass(Pass):
    """Put stages on concrete devices and evaluate the plan on the real links.

    ``nodes``: how many placements of 8 stages the search looks at in each of its two phases at most; of more stages
    proportionally fewer, so that the time stays alike. ``time_limit``: seconds of the search, for machines that are slower
    than that asks for.
    """

    name: ClassVar[str] = "place"
    nodes: int = 20_000
    time_limit: float = 10.0

    @on_expanded
    def run(self, module: Module, context: PassContext) -> Module:
        """Raises Infeasible when a stage fits no free device, InvalidInput when the module has no plan or topology."""
        plan, topology = module.first(Plan), module.first(Topology)
        if plan is None or topology is None:
            missing = "plan" if plan is None else "topology"
            raise InvalidInput(f"the module has no {missing}", where=module.name, hint="run 'partition' before 'place'")
        own = stage_ops(module, plan)
        memory = stage_memory(module, own, cuts_of(module.entry), plan.comm)
        problem = placement_problem(module, plan, topology, context.analyses.get(network, topology), own, memory)
        ends = time.perf_counter() + self.time_limit

        def keep_on() -> bool:
            context.progress("place", None)
            return time.perf_counter() < ends

        chosen, complete = search(problem, self.nodes * 8 // max(8, problem.size), keep_on)
        if chosen is None:
            raise Infeasible(_crowded(problem, plan), where=topology.name, hint="use fewer stages or more devices")
        stages = []
        for stage, devices in enumerate(chosen):
            compute, receive, send = problem.parts(stage, chosen)
            stages.append(
                PlanStage(
                    index=stage,
                    device_type=topology.devices[devices[0]].type,
                    devices=tuple(problem.names[device] for device in devices),
                    ops=len(own[stage]),
                    compute=compute,
                    receive=receive,
                    send=send,
                    weights=memory[stage].weights,
                    workspace=memory[stage].workspace,
                    buffers=memory[stage].buffers,
                    replicas=len(devices),
                )
            )
            _warn_of_spare(context, stage, memory[stage], [topology.devices[device] for device in devices], topology)
        alone = plan.objective == "latency"
        value = problem.latency(chosen) if alone else problem.value(chosen)
        of_ports = problem.latency(chosen, ports=True) if alone else problem.port_value(chosen)
        port_value = plan.port_value if math.isfinite(plan.port_value) else of_ports
        if value < plan.bound * (1 - TIGHT):
            found = f"the plan states that no plan is below {plan.bound!r} s, and takes {value!r} s itself"
            raise InvalidInput(found, where=plan.name, hint="a bound that was edited proves nothing: take it out")
        value = max(value, plan.bound)  # less by rounding only
        status = "optimal" if value <= plan.bound * (1 + TIGHT) else "feasible"
        placed = replace(plan, stages=tuple(stages), value=value, port_value=port_value, status=status)
        context.count(self.name, value=value, port_value=port_value, complete=int(complete))
        return module.replace(plan, assessed(placed, module.entry))


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that a stage needs on its device. ``spare``: the part of ``buffers`` that only tensors passing over other stages
    have, which ``partition`` does not plan with; without it the stage runs, but more slowly."""

    weights: int
    workspace: int
    buffers: int
    spare: int

    @property
    def total(self) -> int:
        return self.weights + self.workspace + self.buffers

    @property
    def least(self) -> int:
        """Bytes without which the stage cannot run at all."""
        return self.total - self.spare


def placement_problem(
    module: Module,
    plan: Plan,
    topology: Topology,
    net: Network,
    own: Sequence[Sequence[int]],
    memory: Sequence[Memory],
) -> PlacementProblem:
    """The numbers of a partitioned module; ``own``: its ``stage_ops``, ``memory``: its ``stage_memory``. Raises InvalidInput
    for an unknown or doubled device, Infeasible for a stage that no device it may use can hold."""
    entry = module.entry
    fixed = _fixed(plan, topology, len(own))
    least = [sum(memory[o].least for o in range(len(own)) if o == s or fixed[o] == fixed[s] != ()) for s in range(len(own))]
    by_type = {}
    for type_ in topology.types:
        seconds = func_seconds(entry, type_)
        handover = type_.handover if len(own) > 1 else 0.0
        by_type[type_.name] = [handover + math.fsum(seconds[entry.ops[i].id] for i in ops) for ops in own]
    compute = []
    problems: list[Diagnostic] = []
    for stage, needed in enumerate(memory):
        row = []
        for i, device in enumerate(topology.devices):
            limit = topology.memory(device)
            allowed = i in fixed[stage] if fixed[stage] else plan.stages[stage].device_type in ("", device.type)
            fits = limit is None or least[stage] <= limit
            row.append(by_type[device.type][stage] if allowed and fits else math.inf)
        compute.append(tuple(row))
        wanted = fixed[stage] or [i for i, d in enumerate(topology.devices) if plan.stages[stage].device_type in ("", d.type)]
        good = [i for i in wanted if math.isfinite(row[i])]
        if not good or (fixed[stage] and len(good) < len(wanted)):
            seconds_of = {i: by_type[topology.devices[i].type][stage] for i in wanted}
            others = least[stage] - needed.least
            problems.append(_misfit(stage, needed, others, wanted, seconds_of, plan.stages[stage].device_type, topology))
    if problems:
        raise Infeasible(problems)
    replicas = tuple(len(given) or stage.replicas for given, stage in zip(fixed, plan.stages, strict=True))
    return PlacementProblem(topology, net, plan.comm, tuple(compute), messages_of(entry, cuts_of(entry)), fixed, replicas)


def messages_of(entry: Func, cuts: Sequence[Cut]) -> tuple[Message, ...]:
    """What each channel carries; a value of unknown size counts as empty."""
    stated = {value.name: (op.facet(Transfer), i) for op in entry.ops for i, value in enumerate(op.results)}
    messages = []
    for cut in cuts:
        facet, position = stated[cut.tensor.name]
        seconds_stated = facet.seconds[position] if facet is not None else None
        messages.append(Message(cut.tensor.name, cut.source, cut.target, cut.nbytes or 0, seconds_stated))
    return tuple(messages)


def stage_ops(module: Module, plan: Plan) -> tuple[tuple[int, ...], ...]:
    """Positions of each stage's ops in the entry function. Raises InvalidInput when plan and ops disagree on the stages."""
    members = stage_members(module.entry)
    count = 1 + max((s for stages in members for s in stages), default=0)
    if [stage.index for stage in plan.stages] != list(range(count)):
        found = f"the plan has stages {[stage.index for stage in plan.stages]}, the ops are in {count}"
        raise InvalidInput(found, where=module.name, hint="run 'partition' again")
    return tuple(tuple(i for i, stages in enumerate(members) if stage in stages) for stage in range(count))


def stage_memory(module: Module, own: Sequence[Sequence[int]], cuts: Sequence[Cut], comm: str) -> tuple[Memory, ...]:
    """Memory of each stage, given the positions of its ops in the entry function. Buffers lie with the receiver, ``edge_slots``
    of them for each tensor."""
    entry, sizes = module.entry, resource_bytes(module)
    stated = stated_bytes(entry)
    if stated is not None:
        return tuple(Memory(sum(stated[i] for i in positions), 0, 0, 0) for positions in own)
    found = []
    for stage, positions in enumerate(own):
        names = {name for i in positions for name in reads(entry.ops[i]) if name in sizes}
        if stage == 0:
            names |= {value.name for value in entry.results if value.name in sizes}
        arriving = [cut for cut in cuts if cut.target == stage]
        buffers = sum(edge_slots(comm, cut.source, stage, SLOTS) * (cut.nbytes or 0) for cut in arriving)
        least = sum(edge_slots(comm, stage - 1, stage, SLOTS) * (cut.nbytes or 0) for cut in arriving)
        weights = sum(sizes[name] for name in names)
        found.append(Memory(weights, stage_workspace(entry, positions), buffers, buffers - least))
    return tuple(found)


def workload(module: Module) -> Workload:
    """What the simulator runs: the placed plan's seconds on the routes between its devices. Raises InvalidInput when the plan
    is not placed."""
    plan, topology = module.first(Plan), module.first(Topology)
    if plan is None or topology is None or not all(stage.devices for stage in plan.stages):
        raise InvalidInput("the module has no placed plan", where=module.name, hint="run 'partition' and 'place' first")
    if plan.objective == "training" or any(stage.mesh for stage in plan.stages):
        return sharded_workload(module, plan, topology)
    cuts = cuts_of(module.entry)
    chosen = _fixed(plan, topology, len(plan.stages))
    compute = tuple((stage.compute,) * len(topology.devices) for stage in plan.stages)
    messages, replicas = messages_of(module.entry, cuts), tuple(len(devices) for devices in chosen)
    problem = PlacementProblem(topology, network(topology), plan.comm, compute, messages, chosen, replicas)
    send = [0.0] * len(cuts)
    for channels in (channels for of_stage in problem.sent for channels in of_stage):
        for row in problem.slowest_sends(channels, chosen):
            for channel, seconds in zip(channels, row, strict=True):
                send[channel] = max(send[channel], seconds)
    wires = []
    for channel, message in enumerate(problem.messages):
        pairs = turns(chosen[message.source], chosen[message.target])
        wires.append(
            Wire(
                source=message.source,
                target=message.target,
                send=send[channel],
                receive=max(problem.receive_seconds(channel, a, b) for a, b in pairs),
                media=tuple(problem.media(channel, a, b) for a, b in pairs),
            )
        )
    return Workload(
        compute=tuple(stage.compute for stage in plan.stages),
        replicas=tuple(tuple(topology.devices[d].name for d in devices) for devices in chosen),
        wires=tuple(wires),
        comm=plan.comm,
        slots=SLOTS,
    )


def _fixed(plan: Plan, topology: Topology, count: int) -> Placement:
    """Devices that the plan gives its stages. Raises InvalidInput for an unknown one, and for one of several that stages
    share."""
    positions = {device.name: i for i, device in enumerate(topology.devices)}
    fixed: list[tuple[int, ...]] = [()] * count
    holder: dict[str, int] = {}
    for stage in plan.stages:
        for name in stage.devices:
            if name not in positions:
                hint = f"{topology.name} has {listing(positions)}"
                raise InvalidInput(f"no device is called '{name}'", where=f"stage {stage.index}", hint=hint)
            other = holder.setdefault(name, stage.index)
            if plan.stages[other].devices != stage.devices:
                message = f"device '{name}' already runs stage {other}"
                raise InvalidInput(message, where=f"stage {stage.index}", hint="stages share all their devices or none")
        fixed[stage.index] = tuple(positions[name] for name in stage.devices)
    return tuple(fixed)


def _misfit(
    stage: int, memory: Memory, others: int, wanted: Sequence[int], seconds: Mapping[int, float], type_: str, topology: Topology
) -> Diagnostic:
    """Why no device will do: each lacks memory, or cannot run an op."""
    where = f"stage {stage}"
    if not wanted:
        return Diagnostic(f"there is no device of type '{type_}'", where=where, hint="the plan is of another topology")
    able = [i for i in wanted if math.isfinite(seconds[i])]
    if not able:
        names = listing(topology.devices[i].name for i in wanted)
        return Diagnostic(
            f"it holds an op that {names} cannot run", where=where, hint="an op without a time for a type cannot run there"
        )
    device = max((topology.devices[i] for i in able), key=lambda d: topology.memory(d) or 0)
    limit = topology.memory(device) or 0
    shared = f", {others} of other stages there" if others else ""
    needed = memory.least + others
    return Diagnostic(
        f"it needs {needed} bytes on {device.name}, which has {limit}: {needed - limit} bytes too many "
        f"({memory.weights} of weights, {memory.workspace} of workspace, {memory.buffers - memory.spare} of buffers{shared})",
        where=where,
        hint="move ops to another stage, use more stages, or a device with more memory",
    )


def _warn_of_spare(context: PassContext, stage: int, memory: Memory, devices: Sequence[Device], topology: Topology) -> None:
    for device in devices:
        limit = topology.memory(device)
        if limit is not None and memory.total > limit:
            context.sink.warn(
                f"with {memory.spare} bytes of buffers for tensors that pass over stages it needs {memory.total} bytes on "
                f"{device.name}, which has {limit}: {memory.total - limit} bytes too many",
                where=f"stage {stage}",
                hint="it runs with fewer buffers, but the stages wait for each other more often than predicted",
            )


def _crowded(problem: PlacementProblem, plan: Plan) -> str:
    wanted = [
        f"stage {s.index} ({s.device_type or 'any type'}: {len(problem.candidates(s.index))} devices)" for s in plan.stages
    ]
    return f"the {problem.size} stages do not all find a device of their own: {listing(wanted)}"


def largest_load(load: Workload) -> float:
    """The largest load of a device or shared link under ``load``, in seconds per sample: the period of the stream."""
    receive, send = [0.0] * len(load.compute), [0.0] * len(load.compute)
    media: dict[str, float] = {}
    for wire in load.wires:
        receive[wire.target] += wire.receive
        send[wire.source] += wire.send
        for name, seconds in itertools.chain.from_iterable(wire.media):
            media[name] = media.get(name, 0.0) + seconds / len(wire.media)
    parts = list(zip(load.compute, receive, send, strict=True))
    return max((*shared_loads(load.comm, parts, load.takers), *media.values()), default=0.0)
