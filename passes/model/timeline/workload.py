"""A plan as the seconds that a schedule is made of: what each stage computes, what each channel costs, which links it crosses.

``workload`` reads a placed plan; a stage costs what the plan says, a channel what its route says (``stages.placement`` between
single devices, ``spmd.cross_mesh`` between meshes).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from ir.diagnostics import InvalidInput
from ir.module import Mesh, Module, Plan
from ir.rows import Channel, Flow
from ir.topology import Topology
from passes.model.graph import Cut, cuts_of
from passes.model.liveness import SLOTS
from passes.model.network import network
from passes.model.spmd.cross_mesh import Crossing, Party, message_bytes, parties
from passes.model.stages.placement import PlacementProblem, shared_loads, turns
from passes.model.stages.placement_from_ir import fixed_devices, messages_of


@dataclass(frozen=True, slots=True)
class Wire:
    """What one channel costs. ``source`` and ``target`` are stages; ``send`` and ``receive`` seconds at the two ends;
    ``media``: the shared links it crosses, each with the seconds it is busy with one message; a row for each turn of replicas,
    of which message m takes row m modulo their number (no row: it crosses none). ``learning``: in training, its gradient comes
    back, over the links of ``back``."""

    source: int
    target: int
    send: float
    receive: float
    media: tuple[tuple[tuple[str, float], ...], ...] = ()
    learning: bool = False
    back: tuple[tuple[tuple[str, float], ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Workload:
    """All that the simulation needs besides the rows. ``compute[stage]`` in seconds per microbatch; ``replicas[stage]`` its
    devices; ``wires[channel]``; ``slots`` between neighbours. ``together``: stages whose devices are a mesh; their ``compute``
    holds their collectives too. Of a training step ``compute`` is that of the forward pass; ``backward[stage]`` per microbatch,
    ``sync[stage]`` seconds once a step. Both are empty of inference."""

    compute: tuple[float, ...]
    replicas: tuple[tuple[str, ...], ...]
    wires: tuple[Wire, ...]
    comm: str = "sum"
    slots: int = 2
    together: frozenset[int] = frozenset()
    backward: tuple[float, ...] = ()
    sync: tuple[float, ...] = ()

    @property
    def flow(self) -> Flow:
        """What rows of it are about, without the seconds."""
        channels = {c: Channel(wire.source, wire.target, wire.learning) for c, wire in enumerate(self.wires)}
        return Flow(self.replicas, channels, self.comm, self.slots, self.together, bool(self.backward))


def workload(module: Module) -> Workload:
    """What the simulator runs: the placed plan's seconds on the routes between its devices. Raises InvalidInput when the plan
    is not placed."""
    plan, topology = module.first(Plan), module.first(Topology)
    if plan is None or topology is None or not all(stage.devices for stage in plan.stages):
        raise InvalidInput("the module has no placed plan", where=module.name, hint="run 'partition' and 'place' first")
    if plan.flushes or any(stage.mesh for stage in plan.stages):
        return sharded_workload(module, plan, topology)
    cuts = cuts_of(module.entry)
    chosen = fixed_devices(plan, topology, len(plan.stages))
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
    return max((*shared_loads(load.comm, parts, load.flow.takers), *media.values()), default=0.0)


def sharded_workload(module: Module, plan: Plan, topology: Topology) -> Workload:
    """What the simulator runs of a plan in which stages are meshes, or of a training step (``workload`` for any)."""
    sides = parties(plan, {mesh.name: mesh for mesh in module.of_type(Mesh)})
    crossing = Crossing(topology, network(topology))
    training = plan.flushes
    later = [stage.backward + stage.sync * stage.replicas / max(1, plan.microbatches) for stage in plan.stages]
    return Workload(
        compute=tuple(max(0.0, stage.working - behind) for stage, behind in zip(plan.stages, later, strict=True)),
        replicas=tuple(stage.devices for stage in plan.stages),
        wires=tuple(
            _wire(crossing, cut, sides, learning=cut.name in plan.stages[cut.target].learning) for cut in cuts_of(module.entry)
        ),
        comm=plan.comm,
        slots=SLOTS,
        together=frozenset(stage.index for stage in plan.stages if stage.mesh),
        backward=tuple(stage.backward for stage in plan.stages) if training else (),
        sync=tuple(stage.sync for stage in plan.stages) if training else (),
    )


def _wire(crossing: Crossing, cut: Cut, sides: Sequence[Party], *, learning: bool) -> Wire:
    """The channel of a tensor between two stages, each on its party of ``sides``; ``learning``: its gradient comes back."""
    maker, reader = sides[cut.source], sides[cut.target]
    size = message_bytes(cut.tensor.type, maker, reader)
    media = crossing.media(size, maker, reader)
    back = crossing.media(size, maker, reader, back=True) if learning else ()
    return Wire(
        cut.source,
        cut.target,
        crossing.send(size, maker, reader),
        crossing.receive(size, maker, reader),
        (media,),
        learning,
        (back,) if learning else (),
    )
