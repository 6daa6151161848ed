"""A plan as the seconds that a schedule is made of: what each stage computes, what each channel costs, which links it crosses.

``workload`` reads a placed plan; a stage costs what the plan says, a channel what its route says (``stages.placement`` between
single devices, ``meshes.costs.cross_mesh`` between meshes).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from ir.core.diagnostics import InvalidInput
from ir.core.facets import FORWARD, INPUT_GRADIENT, UPDATE, WEIGHT_GRADIENT, Cost, phase_of
from ir.core.module import Func, Mesh, Module, Plan
from ir.core.topology import Topology
from ir.ops.rows import BACKWARD, COMPUTE, Channel, Flow, by_turn, gradient_order
from passes.costs.exchange import hidden_beside
from passes.costs.memory.liveness import SLOTS
from passes.costs.memory.stage import StageBytes
from passes.costs.network import network
from passes.graph.faults import NoPlacedPlan
from passes.graph.graph import Cut, cuts_of, stage_members
from passes.meshes.costs.cross_mesh import Crossing, Party, meetings, message_bytes, parties
from passes.stages.load import hands_over, served_load
from passes.stages.load import load as combined
from passes.stages.placement import PlacementProblem, shared_loads
from passes.stages.placement_from_ir import computing, fixed_devices, messages_of, serving_of


@dataclass(frozen=True, slots=True)
class Wire:
    """What one channel costs. ``source`` and ``target`` are stages; ``send`` and ``receive`` seconds at the two ends;
    ``media``: the shared links it crosses, each with the seconds it is busy with one message; a row for each turn of replicas,
    of which message m takes row m modulo their number (no row: it crosses none). ``made`` and ``read``: the phases of a
    training step that make and first read it. What is made in ``U`` is part of the seconds of the update, and costs nothing
    here. ``sends``, ``receives``: ``send`` by turn of the source, and ``receive`` by turn of the target; empty where all are
    alike."""

    source: int
    target: int
    send: float
    receive: float
    media: tuple[tuple[tuple[str, float], ...], ...] = ()
    made: str = COMPUTE
    read: str = COMPUTE
    sends: tuple[float, ...] = ()
    receives: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Workload:
    """All that the simulation needs besides the rows. ``compute[stage]`` in seconds per microbatch; ``replicas[stage]`` its
    devices; ``wires[channel]``; ``slots`` between neighbours. ``together``: stages whose devices are a mesh; their ``compute``
    holds their collectives too. ``serves[stage]``: the number of the replica that has each turn, and ``paces[stage]`` the
    ``compute`` of each turn; both empty where each replica of every stage has one turn.

    Of a training step ``compute`` is that of the forward pass; ``backward[stage]`` per microbatch, of which ``weights[stage]``
    are those of gradients of weights alone; ``sync[stage]`` seconds once a step, behind the last backward pass of the stage,
    which hides ``hidden[stage]`` seconds of sums of gradients (no entry: none); ``updates`` the stages that have an update
    whatever its seconds. All are empty of inference. ``shared[stage]``: links that collectives of the stage share with others,
    each with the part of the stage's seconds that they keep it busy. ``holds[stage]``: what it holds on each of its
    devices, and ``memory``: bytes of devices (no entry: no limit); empty where nobody asked."""

    compute: tuple[float, ...]
    replicas: tuple[tuple[str, ...], ...]
    wires: tuple[Wire, ...]
    comm: str = "sum"
    slots: int = 2
    together: frozenset[int] = frozenset()
    backward: tuple[float, ...] = ()
    sync: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()
    updates: frozenset[int] = frozenset()
    shared: tuple[tuple[tuple[str, float], ...], ...] = ()
    holds: tuple[StageBytes, ...] = ()
    memory: tuple[tuple[str, int], ...] = ()
    hidden: tuple[float, ...] = ()
    serves: tuple[tuple[int, ...], ...] = ()
    paces: tuple[tuple[float, ...], ...] = ()

    def seconds(self, kind: str, stage: int, *, split: bool = False) -> float:
        """Of a pass of a stage, or its update; ``split``: of a stage that does ``I`` and ``W`` apart, whose update waits for
        the sums that ``W`` does not hide. Raises ValueError for a stage that there is none of, and for another kind."""
        if not 0 <= stage < len(self.compute):
            raise ValueError(f"no such stage: {stage}")
        if kind == COMPUTE:
            return self.compute[stage]
        if kind == UPDATE:
            hidden = self.hidden[stage] if split and self.hidden else 0.0
            part = self.weights[stage] / self.backward[stage] if hidden and self.backward[stage] else 0.0
            return self.sync[stage] + hidden - hidden_beside(hidden, part)
        if kind == BACKWARD:
            return self.backward[stage]
        if kind == WEIGHT_GRADIENT:
            return self.weights[stage]
        if kind == INPUT_GRADIENT:
            return self.backward[stage] - self.weights[stage]
        raise ValueError(f"{kind} is not done by a stage alone")

    @property
    def flow(self) -> Flow:
        """What rows of it are about, without the seconds."""
        channels = {c: Channel(wire.source, wire.target, wire.made, wire.read) for c, wire in enumerate(self.wires)}
        return Flow(
            self.replicas,
            channels,
            self.comm,
            self.slots,
            self.together,
            bool(self.backward),
            updates=self.updates,
            serves=self.serves,
        )


def workload(module: Module) -> Workload:
    """What the simulator runs: the placed plan's seconds on the routes between its devices. Raises InvalidInput when the plan
    is not placed."""
    plan, topology = module.first(Plan), module.first(Topology)
    if plan is None or topology is None or not all(stage.devices for stage in plan.stages):
        raise InvalidInput(NoPlacedPlan(), where=module.name)
    if plan.in_steps or plan.on_meshes:
        return sharded_workload(module, plan, topology)
    cuts = cuts_of(module.entry)
    chosen = fixed_devices(plan, topology, len(plan.stages))
    messages, replicas = messages_of(module.entry, cuts), tuple(len(devices) for devices in chosen)
    serves = () if module.states else serving_of(module, plan)
    compute = tuple((stage.compute,) * len(topology.devices) for stage in plan.stages)
    if serves:
        compute = _on_devices(module, plan, topology)
    problem = PlacementProblem(topology, network(topology), plan.comm, compute, messages, chosen, replicas, serves)
    sends: dict[int, list[float]] = {}  # of each channel, on each replica of its sender
    for channels in (channels for of_stage in problem.sent for channels in of_stage):
        rows = problem.slowest_sends(channels, chosen)
        sends.update((channel, [row[number] for row in rows]) for number, channel in enumerate(channels))
    wires = []
    for channel, message in enumerate(problem.messages):
        pairs = problem.pairs(message, chosen)
        slowest = dict.fromkeys(chosen[message.target], 0.0)
        for a, b in pairs:
            slowest[b] = max(slowest[b], problem.receive_seconds(channel, a, b))
        receives = list(slowest.values())
        wires.append(
            Wire(
                source=message.source,
                target=message.target,
                send=max(sends[channel]),
                receive=max(receives),
                media=tuple(problem.media(channel, a, b) for a, b in pairs),
                sends=by_turn(sends[channel], serves[message.source]) if serves else (),
                receives=by_turn(receives, serves[message.target]) if serves else (),
            )
        )
    return Workload(
        compute=tuple(stage.compute for stage in plan.stages),
        replicas=tuple(tuple(topology.devices[d].name for d in devices) for devices in chosen),
        wires=tuple(wires),
        comm=plan.comm,
        slots=SLOTS,
        serves=serves,
        paces=tuple(
            by_turn([row[device] for device in devices], turns)
            for row, devices, turns in zip(compute, chosen, serves, strict=False)
        ),
    )


def _on_devices(module: Module, plan: Plan, topology: Topology) -> tuple[tuple[float, ...], ...]:
    """``[stage][device]``: seconds in which each device computes a sample of each stage."""
    members = stage_members(module.entry)
    own = [[i for i, stages in enumerate(members) if stage.index in stages] for stage in plan.stages]
    woken = hands_over(len(own), plan.stages[0].replicas, training=plan.in_steps)
    by_type = computing(module.entry, own, topology, woken=woken)
    return tuple(tuple(by_type[device.type][stage] for device in topology.devices) for stage in range(len(own)))


def largest_load(load: Workload) -> float:
    """The largest load of a device or shared link under ``load``, in seconds per sample: the period of the stream."""
    receive, send = [0.0] * len(load.compute), [0.0] * len(load.compute)
    media: dict[str, float] = {}
    for wire in load.wires:
        receive[wire.target] += wire.receive
        send[wire.source] += wire.send
        for name, seconds in itertools.chain.from_iterable(wire.media):
            media[name] = media.get(name, 0.0) + seconds / len(wire.media)
    for compute, shared in zip(load.compute, load.shared, strict=False):
        for name, part in shared:
            media[name] = media.get(name, 0.0) + part * compute
    if load.serves:
        loads = [_served(load, stage) for stage in range(len(load.compute))]
    else:
        loads = shared_loads(load.comm, list(zip(load.compute, receive, send, strict=True)), load.flow.takers)
    return max((*loads, *media.values()), default=0.0)


def _served(load: Workload, stage: int) -> float:
    """Seconds per sample of the busiest replica of a stage whose replicas have unlike turns."""
    serves = load.serves[stage]
    arriving = [wire.receives for wire in load.wires if wire.target == stage]
    leaving = [wire.sends for wire in load.wires if wire.source == stage]
    first = [serves.index(replica) for replica in range(len(load.replicas[stage]))]  # a turn of each
    moved = [[math.fsum(row[turn] for row in rows) for turn in first] for rows in (arriving, leaving)]
    steps = [combined(load.comm, load.paces[stage][turn], *ends) for turn, *ends in zip(first, *moved, strict=True)]
    return served_load(steps, serves)


def sharded_workload(module: Module, plan: Plan, topology: Topology) -> Workload:
    """What the simulator runs of a plan in which stages are meshes, or of a training step (``workload`` for any)."""
    sides = parties(plan, {mesh.name: mesh for mesh in module.of_type(Mesh)})
    crossing = Crossing(topology, network(topology))
    training = plan.in_steps
    later = [stage.backward + stage.sync * stage.replicas / max(1, plan.microbatches) for stage in plan.stages]
    cuts = cuts_of(module.entry)
    wires = [_wire(crossing, cut, sides) for cut in cuts]
    wires += [_gradient(crossing, cuts[c], sides) for c in learned_channels(module, plan)]
    return Workload(
        compute=tuple(max(0.0, stage.working - behind) for stage, behind in zip(plan.stages, later, strict=True)),
        replicas=tuple(stage.devices for stage in plan.stages),
        wires=tuple(wires),
        comm=plan.comm,
        slots=SLOTS,
        together=frozenset(stage.index for stage in plan.stages if stage.mesh),
        backward=tuple(stage.backward for stage in plan.stages) if training else (),
        sync=tuple(stage.sync for stage in plan.stages) if training else (),
        hidden=tuple(stage.hidden for stage in plan.stages) if training else (),
        weights=weight_seconds(module, plan) if training else (),
        updates=updating(module.entry) if training else frozenset(),
        shared=tuple(tuple((name, seconds / stage.working) for name, seconds in stage.shared) for stage in plan.stages),
    )


def differentiated(entry: Func) -> bool:
    """Whether the backward ops of a training step are written out."""
    return any(phase_of(op.facets) != FORWARD for op in entry.ops)


def learned_channels(module: Module, plan: Plan) -> list[int]:
    """The channels whose tensor has a gradient, of a training step whose backward ops are not written out. The gradients have
    channels behind all others, in this order (``ir.ops.rows.with_gradients``)."""
    if not plan.in_steps or differentiated(module.entry):
        return []
    cuts = cuts_of(module.entry)
    learned = (c for c, cut in enumerate(cuts) if cut.name in plan.stages[cut.target].learning)
    return sorted(learned, key=lambda c: gradient_order(cuts[c].target, cuts[c].source))


def updating(entry: Func) -> frozenset[int]:
    """The stages that have ops of the update."""
    members = stage_members(entry) if differentiated(entry) else ()
    stages = (on for op, on in zip(entry.ops, members, strict=False) if phase_of(op.facets) == UPDATE)
    return frozenset(index for on in stages for index in on)


def _wire(crossing: Crossing, cut: Cut, sides: Sequence[Sequence[Party]]) -> Wire:
    """The channel of a tensor between two stages, whose replicas are ``sides``."""
    if cut.sent == UPDATE:
        return Wire(cut.source, cut.target, 0.0, 0.0, made=UPDATE, read=UPDATE)
    makers, readers = sides[cut.source], sides[cut.target]
    size = message_bytes(cut.tensor.type, makers[0], readers[0])
    return Wire(cut.source, cut.target, *_spent(crossing, size, makers, readers), cut.sent, cut.read)


def _gradient(crossing: Crossing, cut: Cut, sides: Sequence[Sequence[Party]]) -> Wire:
    """The way back of the gradient of a tensor, of as many bytes."""
    makers, readers = sides[cut.source], sides[cut.target]
    size = message_bytes(cut.tensor.type, makers[0], readers[0])
    spent = _spent(crossing, size, readers, makers)
    return Wire(cut.target, cut.source, *spent, INPUT_GRADIENT, INPUT_GRADIENT)


def _spent(
    crossing: Crossing, size: int, makers: Sequence[Party], readers: Sequence[Party]
) -> tuple[float, float, tuple[tuple[tuple[str, float], ...], ...]]:
    """Seconds of a message of ``size`` bytes at the sender and at the receiver, and its ``media``."""
    media = tuple(crossing.media(size, *pair) for pair in meetings(makers, readers))
    return *crossing.ends(size, makers, readers, returns=False), media


def weight_seconds(module: Module, plan: Plan) -> tuple[float, ...]:
    """Of each stage, the seconds of a microbatch's backward pass that make gradients of weights alone: its part of the
    flops."""
    both, weights = [0] * len(plan.stages), [0] * len(plan.stages)
    for op, stages in zip(module.entry.ops, stage_members(module.entry), strict=True):
        cost = op.facet(Cost)
        if cost is not None and phase_of(op.facets) == FORWARD:
            for stage in stages:
                both[stage] += cost.input_grad + cost.weight_grad
                weights[stage] += cost.weight_grad
    parts = zip(plan.stages, both, weights, strict=True)
    return tuple(stage.backward * own / every if every else 0.0 for stage, every, own in parts)
