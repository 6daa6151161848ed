"""Who sends what to whom: the edges between the stages of a build, and the links between the places of stages.

A *place* is a device at work on a stage. A stage has one place, one per replica (replicas take microbatches in turn, a fast one
perhaps more often than a slow one), or one per member of its mesh (members work on each microbatch together). While a build
generates tokens, replicas do not take turns: each works on the steps of the groups that it serves. A device has one process for
all its places.

An *edge* has all values that go from one stage to another; a *link* has those that go from one place to another. Two replicas
have a link if they work on a common microbatch. Where their stages have r and s turns, a link carries k of each lcm(r, s)
microbatches, and has k times the slots of the edge. So microbatch m waits for the slot of microbatch m - lcm(r, s) * slots on
every link, as ``ir.ops.rows.Flow.window`` says. Links from and to the starter have the slots of the edge: it attends to each of
them as soon as a slot is free.

Member i of a mesh receives from member i mod n of the n members of the producer, as ``passes.meshes.costs.cross_mesh`` plans it
on one host: there, forwarding values between members gains nothing. The starter feeds all members and collects outputs from
those that deliver them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from math import lcm

from dnnc.build.build import Build, Channel, StageProgram, ValueInfo
from dnnc.build.collective import Collective
from dnnc.build.members import Part
from dnnc.engines.onnxruntime.transport.edges import FEEDER, Edge, ValueSpec
from dnnc.engines.onnxruntime.transport.sharing import NEVER, Uses
from dnnc.engines.onnxruntime.transport.turns import ALWAYS, Turns
from dnnc.onnx.elements import BY_NAME
from ir.ops.rows import by_turn, edge_slots


@dataclass(frozen=True, slots=True)
class Place:
    """Replica or member ``position`` of ``stage``, on ``device``. ``turns``: the microbatches that it works on."""

    stage: int
    position: int
    device: str
    turns: Turns = ALWAYS


@dataclass(frozen=True, slots=True)
class Link:
    """What place ``source`` sends to place ``target`` (numbers, or ``FEEDER``). ``sent`` and ``received`` are the same edge,
    with the values' names at each end and the slots of the link. ``turns``: the microbatches that it carries."""

    source: int
    target: int
    sent: Edge
    received: Edge
    turns: Turns = ALWAYS


def value_spec(port: ValueInfo | Channel) -> ValueSpec:
    """The form in which a value of the build crosses an edge."""
    name = port.tensor if isinstance(port, Channel) else port.name
    element = BY_NAME[port.dtype].number if port.dtype in BY_NAME else 0
    numbers = tuple(dim for dim in port.shape if isinstance(dim, int)) if port.shape is not None else None
    return ValueSpec(name, element, numbers if numbers is not None and numbers == port.shape else None, port.parts)


def output_specs(build: Build, stage: int) -> tuple[ValueSpec, ...]:
    """The values that leave a stage, each once: outputs of the model first, then sent values."""
    program = build.stages[stage]
    specs = [value_spec(port) for port in program.outputs] + [value_spec(channel) for channel in program.sends]
    return tuple({spec.name: spec for spec in reversed(specs)}.values())[::-1]


def build_edges(build: Build) -> tuple[Edge, ...]:
    """The edges, ordered by (producer, consumer). Each stage has at least one incoming edge, which tells it that a microbatch
    is there, and one outgoing edge, which tells that it is done; without values they join it to the starter."""
    values: dict[tuple[int, int], dict[str, ValueSpec]] = defaultdict(dict)
    channels: dict[tuple[int, int], list[int]] = defaultdict(list)
    for stage in build.stages:
        for port in stage.inputs:
            values[FEEDER, stage.index][port.name] = value_spec(port)
        for port in stage.outputs:
            values[stage.index, FEEDER][port.name] = value_spec(port)
        for channel in stage.receives:
            values[channel.source, stage.index][channel.tensor] = value_spec(channel)
            channels[channel.source, stage.index].append(channel.id)
    for stage in build.stages:
        if not any(consumer == stage.index for _, consumer in values):
            values[FEEDER, stage.index] = {}
        if not any(producer == stage.index for producer, _ in values):
            values[stage.index, FEEDER] = {}
    flow, edges = build.flow, []
    for (p, c), specs in sorted(values.items()):
        slots = flow.slots if FEEDER in (p, c) else edge_slots(flow.comm, p, c, flow.slots)
        edges.append(Edge(p, c, tuple(specs.values()), slots, channels=tuple(channels[p, c])))
    return tuple(edges)


def stage_places(build: Build) -> tuple[Place, ...]:
    """All places, ordered by stage and position."""
    return tuple(
        Place(stage.index, position, device, turns)
        for stage in build.stages
        for position, (device, turns) in enumerate(zip(stage.devices, _turns(stage), strict=True))
    )


def _turns(stage: StageProgram) -> list[Turns]:
    """The microbatches that each replica or member of a stage works on."""
    if stage.members or stage.serves:
        return [ALWAYS] * len(stage.devices)
    alone = _meetings(stage, None)
    return [alone[position, 0] for position in range(len(stage.devices))]


def links(build: Build) -> tuple[Link, ...]:
    """All links, ordered by sender and receiver."""
    numbers: dict[int, list[int]] = {FEEDER: [FEEDER]}
    for number, place in enumerate(stage_places(build)):
        numbers.setdefault(place.stage, []).append(number)
    every = []
    for edge in build_edges(build):
        maker, reader = (build.stages[end] if end != FEEDER else None for end in (edge.producer, edge.consumer))
        for (a, b), turns in _exchanges(maker, reader).items():
            wide = 1 if FEEDER in (edge.producer, edge.consumer) else len(turns.numbers)
            sent, received = _sides(replace(edge, slots=edge.slots * wide), maker, reader, a, b)
            every.append(Link(numbers[edge.producer][a], numbers[edge.consumer][b], sent, received, turns))
    needed = [link for link in every if link.sent.values or not _redundant(link, every)]
    return tuple(sorted(needed, key=lambda link: (link.source, link.target)))


def _redundant(link: Link, every: Sequence[Link]) -> bool:
    """Whether a link without values can go: its place has another link, which tells when a microbatch is there (or is done)."""
    end = link.target if link.source == FEEDER else link.source
    others = [x for x in every if x is not link and x.sent.values]
    return any(x.target == end for x in others) if link.source == FEEDER else any(x.source == end for x in others)


def _exchanges(maker: StageProgram | None, reader: StageProgram | None) -> Mapping[tuple[int, int], Turns]:
    """The pairs of positions (a, b) where a of ``maker`` sends to b of ``reader``, and which microbatches. None is the
    starter."""
    if (maker and maker.members) or (reader and reader.members):
        making, reading = (_turns(stage) if stage else [ALWAYS] for stage in (maker, reader))
        return {(a, b): reading[b] if making[a] == ALWAYS else making[a] for a, b in _mesh_pairs(maker, reader)}
    if (maker and maker.serves) or (reader and reader.serves):
        pairs = set(zip(maker.serves if maker else repeat(0), reader.serves if reader else repeat(0), strict=False))
        return dict.fromkeys(sorted(pairs), ALWAYS)
    return _meetings(maker, reader)


def _meetings(maker: StageProgram | None, reader: StageProgram | None) -> dict[tuple[int, int], Turns]:
    """As ``_exchanges``, of stages whose replicas take microbatches in turn."""
    makers, readers = (by_turn(range(len(stage.devices)), stage.turns) if stage else (0,) for stage in (maker, reader))
    together, numbers = lcm(len(makers), len(readers)), defaultdict[tuple[int, int], list[int]](list)
    for microbatch in range(together):
        numbers[makers[microbatch % len(makers)], readers[microbatch % len(readers)]].append(microbatch)
    return {pair: Turns(tuple(met), together) for pair, met in numbers.items()}


def _mesh_pairs(maker: StageProgram | None, reader: StageProgram | None) -> list[tuple[int, int]]:
    """Pairs of positions (a, b): a of ``maker`` sends to b of ``reader``. None is the starter; at least one of them is a
    mesh."""
    if maker is None or reader is None:
        side = reader if maker is None else maker
        assert side is not None
        every = range(len(side.devices))
        return [(0, i) for i in every] if maker is None else [(i, 0) for i in every]
    if not maker.members:
        return [(a, b) for a in range(len(maker.devices)) for b in range(len(reader.devices))]
    return (
        [(b % len(maker.devices), b) for b in range(len(reader.devices))]
        if reader.members
        else [(0, b) for b in range(len(reader.devices))]
    )


def _sides(edge: Edge, maker: StageProgram | None, reader: StageProgram | None, a: int, b: int) -> tuple[Edge, Edge]:
    """The edge as position a of ``maker`` and as position b of ``reader`` see it: members have parts of tensors, under names of
    their own."""
    if not (maker and maker.members) and not (reader and reader.members):
        return edge, edge
    if maker is None:
        assert reader is not None
        values = tuple(value for value in edge.values if value.name in reader.members[b].inputs)
        return (replace(edge, values=values),) * 2
    if reader is None:
        delivered = [part for part in maker.members[a].outputs if part.delivers]
        values = tuple({part.value: _of_part(edge, part, part.value) for part in delivered}.values())
        return (replace(edge, values=values),) * 2
    outgoing = {part.channel: part for part in (maker.members[a].sends if maker.members else ())}
    incoming = {part.channel: part for part in (reader.members[b].receives if reader.members else ())}
    sent, received, channels = [], [], []
    for channel in (c for c in reader.receives if c.source == maker.index):
        out, into = outgoing.get(channel.id), incoming.get(channel.id)
        if (reader.members and into is None) or (maker.members and out is None):
            continue
        some = out or into
        assert some is not None
        sent.append(_of_part(edge, some, out.value if out else channel.tensor))
        received.append(_of_part(edge, some, into.value if into else channel.tensor))
        channels.append(channel.id)
    edge = replace(edge, channels=tuple(channels))
    return replace(edge, values=tuple(sent)), replace(edge, values=tuple(received))


def _of_part(edge: Edge, part: Part, name: str) -> ValueSpec:
    whole = next(value for value in edge.values if value.name == part.name)
    return replace(whole, name=name, shape=None if whole.shape is None else part.shape)


def peers_of(collectives: Sequence[Collective], member: int) -> tuple[int, ...]:
    """The other members of all groups of a member, ascending."""
    peers = {peer for collective in collectives for peer in collective.group_of(member)}
    return tuple(sorted(peers - {member}))


def uses_of(stage: StageProgram) -> dict[str, Uses]:
    """When the members of a stage on a mesh write and read each value, by name."""
    made: dict[str, int] = {}
    level: dict[str, int] = {}
    number = {collective.operand: n for n, collective in enumerate(stage.collectives)}
    for member in stage.members:
        for segment in member.segments:
            for value in segment.outputs:
                made[value.name] = min(made.get(value.name, segment.level), segment.level)
            for name in segment.inputs:
                level[name] = max(level.get(name, -1), segment.level)
        for part in (*member.sends, *member.outputs, *member.states):
            level[part.value] = NEVER
    names = {*made, *level, *number, *(collective.result for collective in stage.collectives)}
    return {name: Uses(made.get(name), level.get(name, -1), number.get(name, -1)) for name in names}
