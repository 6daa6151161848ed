"""A staged module as a ``PlacementProblem``: the memory of stages, the messages between them, the devices each may run on."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

from ir.core.diagnostics import Diagnostic, Infeasible, InvalidInput
from ir.core.facets import Transfer
from ir.core.module import Func, Module, Plan
from ir.core.topology import DeviceType, Topology
from ir.core.types import type_bytes
from passes.costs.exchange import GradientSum, Speed, hidden, rings
from passes.costs.learning import (
    InFlight,
    Learning,
    Passes,
    learning,
    learning_seconds,
    update_seconds,
)
from passes.costs.memory.footprint import Footprint, buffer_bytes
from passes.costs.memory.liveness import resource_bytes, stated_bytes
from passes.costs.memory.stage import parts_of, stage_bytes
from passes.costs.network import Network
from passes.costs.op_time import body_seconds
from passes.graph.faults import CannotRunOp, DeviceTaken, NoDeviceOfType, OverMemory, UnknownDevice
from passes.graph.graph import Cut, cuts_of, listing, reads
from passes.graph.serving import groups_of
from passes.stages.load import hands_over
from passes.stages.placement import Message, Placement, PlacementProblem


@dataclass(frozen=True, slots=True)
class Update:
    """What a stage does once a step: ``moved`` bytes of weights and state, and gradients of so many bytes each to add up.
    ``makers``: of each gradient the op of the stage, by its place there, that makes its last term in a backward pass, the first
    that reads the weight; -1 of a weight of several stages, whose sum waits for what the others send."""

    moved: int
    gradients: tuple[int, ...]
    makers: tuple[int, ...]

    def seconds(self, device_type: DeviceType, speed: Speed, replicas: int, passes: Sequence[Passes]) -> float:
        """Behind the last backward pass. ``speed``: of a ring of the replicas, which add up gradients in buckets;
        ``passes``: of each op of the stage."""
        sums = self.sums(device_type, speed, replicas)
        return math.fsum(sums) - self.hidden(device_type, speed, replicas, passes) + update_seconds(self.moved, device_type)

    def hidden(self, device_type: DeviceType, speed: Speed, replicas: int, passes: Sequence[Passes]) -> float:
        """Seconds of the sums that travel beside the last backward pass."""
        seconds = self.sums(device_type, speed, replicas)
        backs = [one.beside for one in passes]
        made = list(itertools.accumulate(reversed(backs)))[::-1]
        rows = zip(self.makers, self.gradients, seconds, strict=True)
        return hidden([[GradientSum(made[op], size, one) for op, size, one in rows if op >= 0]], math.fsum(backs))

    def sums(self, device_type: DeviceType, speed: Speed, replicas: int) -> list[float]:
        """Seconds of the sum of each gradient."""
        if replicas == 1 or device_type.free_transfers:
            return [0.0] * len(self.gradients)
        return [speed.reduce_seconds(replicas, size) for size in self.gradients]

    def busy(self, speed: Speed, replicas: int) -> dict[str, float]:
        """Seconds that the sums keep each medium busy, once a step."""
        passed = 2 * (replicas - 1) / replicas * sum(self.gradients)
        return {name: passed / bandwidth for name, bandwidth in speed.media} if replicas > 1 else {}


def updates(module: Module, own: Sequence[Sequence[int]]) -> tuple[Update, ...]:
    """The updates of each stage. A weight of several stages is updated by the first."""
    learned, sizes, ops = learning(module), resource_bytes(module), module.entry.ops
    stages = Counter(name for positions in own for name in {name for i in positions for name in reads(ops[i])})
    found, done = [], set[str]()
    for positions in own:
        first: dict[str, int] = {}
        for place, i in enumerate(positions):
            for name in reads(ops[i]):
                if name in learned.state and name not in done:
                    first.setdefault(name, place)
        done.update(first)
        makers = tuple(place if stages[name] == 1 else -1 for name, place in first.items())
        found.append(Update(sum(learned.update[name] for name in first), tuple(sizes[name] for name in first), makers))
    return tuple(found)


def placement_problem(
    module: Module,
    plan: Plan,
    topology: Topology,
    net: Network,
    own: Sequence[Sequence[int]],
    memory: Sequence[Footprint],
) -> PlacementProblem:
    """The numbers of a partitioned module; ``own``: its ``stage_ops``, ``memory``: its ``stage_memory``. Raises InvalidInput
    for an unknown or doubled device, Infeasible for a stage that no device it may use can hold."""
    entry = module.entry
    fixed = fixed_devices(plan, topology, len(own))
    replicas = tuple(len(given) or stage.replicas for given, stage in zip(fixed, plan.stages, strict=True))
    least = [sum(memory[o].least for o in range(len(own)) if o == s or fixed[o] == fixed[s] != ()) for s in range(len(own))]
    by_type, passes = dict[str, list[float]](), dict[str, list[Passes]]()
    woken = hands_over(len(own), replicas[0], training=plan.in_steps)
    for type_ in topology.types if plan.in_steps else ():
        handover = type_.handover if woken else 0.0
        works = learning_seconds(module, type_)
        by_type[type_.name] = [handover + math.fsum(works[i].both for i in ops) for ops in own]
        passes[type_.name] = works
    by_type = by_type or computing(entry, own, topology, woken=woken)
    updated = updates(module, own) if plan.in_steps else ()
    compute = []
    problems: list[Diagnostic] = []
    unheld = states_not_held(module, plan, own)
    for stage, needed in enumerate(memory):
        row = []
        for i, device in enumerate(topology.devices):
            limit = topology.memory(device)
            allowed = i in fixed[stage] if fixed[stage] else plan.stages[stage].device_type in ("", device.type)
            fits = limit is None or least[stage] - unheld[stage].get(device.name, 0) <= limit
            later = 0.0
            if plan.in_steps:
                shared = plan.stages[stage].replicas
                port = net.port(device.name)
                speed = Speed(port.bandwidth, port.latency)  # at best: ``settled`` knows which devices share the stage
                works = [passes[device.type][i] for i in own[stage]]
                once = updated[stage].seconds(topology.type(device.type), speed, shared, works)
                later = once * shared / plan.microbatches  # a replica handles so many fewer microbatches
            row.append(by_type[device.type][stage] + later if allowed and fits else math.inf)
        compute.append(tuple(row))
        wanted = fixed[stage] or [i for i, d in enumerate(topology.devices) if plan.stages[stage].device_type in ("", d.type)]
        good = [i for i in wanted if math.isfinite(row[i])]
        if not good or (fixed[stage] and len(good) < len(wanted)):
            seconds_of = {i: by_type[topology.devices[i].type][stage] for i in wanted}
            spared, type_name = unheld[stage], plan.stages[stage].device_type
            others = least[stage] - needed.least
            lacking = [i for i in wanted if i not in good] if fixed[stage] else wanted
            problems.append(_misfit(stage, needed, spared, others, lacking, seconds_of, type_name, topology))
    if problems:
        error, faults = Infeasible(problems), [dict(one.values) for one in problems if one.code == OverMemory.code]
        error.needs = {str(one["device"]): (int(str(one["needed"])), int(str(one["limit"]))) for one in faults}
        raise error
    learned = learning(module).values if plan.in_steps else frozenset()
    messages = messages_of(entry, cuts_of(entry), learned)
    return PlacementProblem(topology, net, plan.comm, tuple(compute), messages, fixed, replicas, serving_of(module, plan))


def computing(entry: Func, own: Sequence[Sequence[int]], topology: Topology, *, woken: bool) -> dict[str, list[float]]:
    """Of each type of device the seconds in which it computes a sample of each stage; ``woken``: as ``hands_over`` says."""
    bodies = [([entry.ops[i] for i in positions], outputs) for positions, outputs in zip(own, leaving(entry, own), strict=True)]
    return {
        type_.name: [
            (type_.handover if woken else 0.0) + math.fsum(body_seconds(ops, type_, outputs)) for ops, outputs in bodies
        ]
        for type_ in topology.types
    }


def serving_of(module: Module, plan: Plan) -> tuple[tuple[int, ...], ...]:
    """Of each stage the replica that has each turn, or of a decoder the one that serves each group; empty where no stage of the
    plan says it."""
    if not any(stage.serves for stage in plan.stages):
        return ()
    groups = groups_of(module)
    return tuple(
        stage.serves or tuple(turn % stage.replicas for turn in range(groups or stage.replicas)) for stage in plan.stages
    )


def states_not_held(module: Module, plan: Plan, own: Sequence[Sequence[int]]) -> list[dict[str, int]]:
    """Of each stage whose replicas hold unlike numbers of groups, and by device: bytes of states that the replica that holds
    most has and it has not."""
    states, resources, ops, found = module.states, module.resources, module.entry.ops, []
    for stage, positions in zip(plan.stages, own, strict=True):
        counts = {name: stage.serves.count(replica) for replica, name in enumerate(stage.devices) if stage.serves}
        names = {name for i in positions for name in reads(ops[i]) if name in states}
        size = sum(type_bytes(resources[name].type) or 0 for name in names)
        found.append({name: (max(counts.values()) - count) * size for name, count in counts.items()})
    return found


def settled(
    module: Module, plan: Plan, problem: PlacementProblem, own: Sequence[Sequence[int]], chosen: Placement
) -> PlacementProblem:
    """The problem of a training step with the seconds in which the chosen replicas of a stage really add up their gradients."""
    compute = list(problem.compute)
    for stage, update in enumerate(updates(module, own)):
        devices, row = chosen[stage], list(compute[stage])
        real = replica_speed(problem, devices)
        for device in devices if len(devices) > 1 else ():
            port = problem.network.port(problem.names[device])
            type_ = problem.topology.type(problem.topology.devices[device].type)
            works = learning_seconds(module, type_)
            own_works = [works[i] for i in own[stage]]
            speeds = (real, Speed(port.bandwidth, port.latency))
            once, least = (update.seconds(type_, by, len(devices), own_works) for by in speeds)
            row[device] += max(0.0, once - least) * len(devices) / plan.microbatches
        compute[stage] = tuple(row)
    return replace(problem, compute=tuple(compute))


def replica_speed(problem: PlacementProblem, devices: Sequence[int]) -> Speed:
    """Of a ring of the devices of a stage."""
    return rings(problem.network, [[problem.names[device] for device in devices]])


def leaving(entry: Func, own: Sequence[Sequence[int]]) -> list[list[str]]:
    """Of each stage what it makes for others: results of the function, and what ops of another stage read."""
    readers: dict[str, set[int]] = {value.name: {-1} for value in entry.results}
    for stage, positions in enumerate(own):
        for i in positions:
            for name in reads(entry.ops[i]):
                readers.setdefault(name, set()).add(stage)
    return [
        [value.name for i in positions for value in entry.ops[i].results if readers.get(value.name, set()) - {stage}]
        for stage, positions in enumerate(own)
    ]


def messages_of(entry: Func, cuts: Sequence[Cut], learned: Container[str] = ()) -> tuple[Message, ...]:
    """What each channel carries; a value of unknown size counts as empty. ``learned``: values whose gradients come back."""
    stated = {value.name: (op.facet(Transfer), i) for op in entry.ops for i, value in enumerate(op.results)}
    messages = []
    for cut in cuts:
        facet, position = stated[cut.tensor.name]
        seconds_stated = facet.seconds[position] if facet is not None else None
        times = 2 if cut.tensor.name in learned else 1
        messages.append(Message(cut.name, cut.source, cut.target, cut.nbytes or 0, seconds_stated, times))
    return tuple(messages)


def stage_memory(
    module: Module,
    own: Sequence[Sequence[int]],
    cuts: Sequence[Cut],
    comm: str,
    flight: InFlight | None = None,
    groups: Sequence[int] = (),
    serving: Sequence[Sequence[int]] = (),
) -> tuple[Footprint, ...]:
    """What each stage needs of each of its devices, given the positions of its ops in the entry function; ``flight``: of a
    training step; ``groups``: of sequences that a device of each stage serves (all where there are none given); ``serving``: of
    each stage the replica that has each turn, for which its device has buffers of its own (none given: replicas have one)."""
    entry, stated = module.entry, stated_bytes(module.entry)
    if stated is not None:
        return tuple(Footprint(sum(stated[i] for i in positions), 0) for positions in own)
    learned = learning(module) if flight is not None else None
    parts = parts_of(entry, own, cuts)
    if flight is not None:
        parts = [replace(part, replicas=replicas) for part, replicas in zip(parts, flight.replicas, strict=True)]
    homes = _homes(entry, own, learned) if learned is not None else {}
    found = []
    for stage, of_passes in enumerate(stage_bytes(module, parts, flight.step if flight is not None else 0)):
        sizes = resource_bytes(module, groups[stage] if groups else 0)
        names = {name for i in own[stage] for name in reads(entry.ops[i]) if name in sizes}
        if stage == 0:
            names |= {value.name for value in entry.results if value.name in sizes}
        arriving = [cut for cut in cuts if cut.target == stage]
        often = [most_turns(serving[cut.source], serving[stage]) if serving else 1 for cut in arriving]
        sizes_of = [times * (cut.nbytes or 0) for times, cut in zip(often, arriving, strict=True)]
        buffers = sum(buffer_bytes(comm, cut.source, stage, size) for cut, size in zip(arriving, sizes_of, strict=True))
        least = sum(buffer_bytes(comm, stage - 1, stage, size) for size in sizes_of)
        weights, workspace = sum(sizes[name] for name in names), of_passes.workspace(0)
        if learned is not None and flight is not None:
            weights = sum(learned.held(name, sizes[name]) for name in names)
            weights -= sum(learned.state.get(name, 0) for name in names if homes.get(name, stage) != stage)
            workspace = of_passes.workspace(flight.microbatches[stage], flight.versions[stage])
            sent = (cut for cut in cuts if cut.source == stage and cut.tensor.name in learned.values)
            returned = sum(buffer_bytes(comm, cut.target, stage, cut.nbytes or 0, returns=True) for cut in sent)
            buffers, least = buffers + returned, least + returned
        found.append(Footprint(weights, workspace, buffers, buffers - least))
    return tuple(found)


def most_turns(source: Sequence[int], target: Sequence[int]) -> int:
    """How many turns the busiest replica of stage ``target`` has until it and stage ``source`` are both back at their first
    ones. Either: the replica of each turn."""
    return max(map(target.count, target)) * math.lcm(len(source), len(target)) // len(target)


def on_one_device(module: Module, topology: Topology, microbatches: int = 0, memory: int = 0) -> float:
    """Seconds of the whole model, its ops undecided, per microbatch on the best single device that holds it; inf where none
    does. ``microbatches``: of a training step, whose seconds are told then. ``memory``: as ``device_memory`` of
    ``partition``."""
    entry = module.entry
    whole, outputs = [range(len(entry.ops))], {value.name for value in entry.results}
    (needed,) = stage_memory(module, whole, (), "sum", InFlight.of(microbatches, (1,)) if microbatches else None)
    (update,) = updates(module, whole) if microbatches else (None,)
    seconds: dict[str, float] = {}
    for device in topology.devices:
        limit = (memory or topology.memory(device)) if memory >= 0 else None
        if device.type in seconds or (limit is not None and needed.least > limit):
            continue
        type_ = topology.type(device.type)
        if update is None:
            seconds[type_.name] = math.fsum(body_seconds(entry.ops, type_, outputs))
        else:
            step = math.fsum(one.both for one in learning_seconds(module, type_))
            seconds[type_.name] = microbatches * step + update_seconds(update.moved, type_)
    return min(seconds.values(), default=math.inf)


def _homes(entry: Func, own: Sequence[Sequence[int]], learned: Learning) -> dict[str, int]:
    """The first stage that makes a gradient of each weight: it updates the weight, and alone holds the optimizer's state."""
    homes = dict[str, int]()
    for stage, positions in enumerate(own):
        for op in (entry.ops[i] for i in positions):
            if any(value.name in learned.values for value in op.results):
                for name in reads(op):
                    homes.setdefault(name, stage)
    return homes


def fixed_devices(plan: Plan, topology: Topology, count: int) -> Placement:
    """Devices that the plan gives its stages. Raises InvalidInput for an unknown one, and for one of several that stages
    share."""
    positions = {device.name: i for i, device in enumerate(topology.devices)}
    fixed: list[tuple[int, ...]] = [()] * count
    holder: dict[str, int] = {}
    for stage in plan.stages:
        for name in stage.devices:
            if name not in positions:
                hint = f"{topology.name} has {listing(positions)}"
                raise InvalidInput(UnknownDevice(name, hint), where=f"stage {stage.index}")
            other = holder.setdefault(name, stage.index)
            if plan.stages[other].devices != stage.devices:
                raise InvalidInput(DeviceTaken(name, other), where=f"stage {stage.index}")
        fixed[stage.index] = tuple(positions[name] for name in stage.devices)
    return tuple(fixed)


def _misfit(
    stage: int,
    memory: Footprint,
    spared: Mapping[str, int],
    others: int,
    wanted: Sequence[int],
    seconds: Mapping[int, float],
    type_: str,
    topology: Topology,
) -> Diagnostic:
    """Why none of the devices ``wanted`` will do: each lacks memory, or cannot run an op. ``spared``: bytes of states that one
    does not hold."""
    where = f"stage {stage}"
    if not wanted:
        return NoDeviceOfType(type_).at(where)
    able = [i for i in wanted if math.isfinite(seconds[i])]
    if not able:
        names = listing(topology.devices[i].name for i in wanted)
        return CannotRunOp(names).at(where)
    device = max((topology.devices[i] for i in able), key=lambda d: (topology.memory(d) or 0) + spared.get(d.name, 0))
    limit, unheld = topology.memory(device) or 0, spared.get(device.name, 0)
    needed, buffers = memory.least + others - unheld, memory.buffers - memory.spare
    return OverMemory(needed, device.name, limit, memory.weights - unheld, memory.workspace, buffers, others).at(where)
