"""Who sends what to whom: the edges of a build between its stages, and the links between their places.

A *place* is where a stage is worked on: one, or one for each of its replicas (which take microbatches in turn), or one for each
member of its mesh (which work on each microbatch together). A device has one process, for all places on it. An *edge* holds all
that goes from one stage to another; a *link* what goes from one place to another, so replicas a and b share a link where they
have a microbatch in common. Between stages of which one is a mesh, member ``i mod n`` of the n of the maker sends to member i
of the reader: all run on this machine, where nothing is gained by passing values on, as ``passes.model.spmd.cross_mesh`` has
it. The starter feeds every member and collects from those that deliver.
"""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd

from dnnc.build.build import Build, Channel, StageProgram, ValueInfo
from dnnc.build.collective import Collective
from dnnc.build.members import Part
from dnnc.engines.onnxruntime.transport.edges import FEEDER, Edge, ValueSpec
from dnnc.engines.onnxruntime.transport.sharing import NEVER, Uses
from dnnc.onnx.elements import BY_NAME
from ir.ops.rows import edge_slots


@dataclass(frozen=True, slots=True)
class Place:
    """Of stage ``stage`` the replica or member ``position``, on ``device``. It has microbatches ``first``, ``first + step`` and
    so on."""

    stage: int
    position: int
    device: str
    first: int = 0
    step: int = 1


@dataclass(frozen=True, slots=True)
class Link:
    """What one place (its number, or ``FEEDER``) hands to another: ``sent`` under the sender's names, ``received`` under the
    receiver's. It carries microbatches ``first``, ``first + step`` and so on."""

    source: int
    target: int
    sent: Edge
    received: Edge
    first: int = 0
    step: int = 1


def value_spec(port: ValueInfo | Channel) -> ValueSpec:
    """How a value of the build crosses a process border."""
    name = port.tensor if isinstance(port, Channel) else port.name
    element = BY_NAME[port.dtype].number if port.dtype in BY_NAME else 0
    numbers = tuple(dim for dim in port.shape if isinstance(dim, int)) if port.shape is not None else None
    return ValueSpec(name, element, numbers if numbers is not None and numbers == port.shape else None)


def output_specs(build: Build, stage: int) -> tuple[ValueSpec, ...]:
    """What leaves a stage, each value once: outputs of the whole model first, then what it sends."""
    program = build.stages[stage]
    specs = [value_spec(port) for port in program.outputs] + [value_spec(channel) for channel in program.sends]
    return tuple({spec.name: spec for spec in reversed(specs)}.values())[::-1]


def build_edges(build: Build) -> tuple[Edge, ...]:
    """Edges in (producer, consumer) order. Each stage has at least one to be triggered by and one to be noticed by."""
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
    """The places of a run, in order of stage."""
    return tuple(
        Place(stage.index, position, device, *((0, 1) if stage.members else (position, len(stage.devices))))
        for stage in build.stages
        for position, device in enumerate(stage.devices)
    )


def links(build: Build) -> tuple[Link, ...]:
    """All links, in order of sender and receiver."""
    numbers: dict[int, list[int]] = {FEEDER: [FEEDER]}
    for number, place in enumerate(stage_places(build)):
        numbers.setdefault(place.stage, []).append(number)
    every = []
    for edge in build_edges(build):
        maker, reader = (build.stages[end] if end != FEEDER else None for end in (edge.producer, edge.consumer))
        if (maker and maker.members) or (reader and reader.members):
            pairs = _mesh_pairs(maker, reader)
        else:
            sources, targets = len(numbers[edge.producer]), len(numbers[edge.consumer])
            common = gcd(sources, targets)
            pairs = [(a, b) for a in range(sources) for b in range(a % common, targets, common)]
        for a, b in pairs:
            first, step = _common(a, b, maker, reader)
            sent, received = _sides(edge, maker, reader, a, b)
            every.append(Link(numbers[edge.producer][a], numbers[edge.consumer][b], sent, received, first, step))
    needed = [link for link in every if link.sent.values or not _idle(link, every)]
    return tuple(sorted(needed, key=lambda link: (link.source, link.target)))


def _idle(link: Link, every: Sequence[Link]) -> bool:
    """Whether a link that carries nothing is not needed to trigger its receiver or to notice its sender either."""
    end = link.target if link.source == FEEDER else link.source
    others = [x for x in every if x is not link and x.sent.values]
    return any(x.target == end for x in others) if link.source == FEEDER else any(x.source == end for x in others)


def _mesh_pairs(maker: StageProgram | None, reader: StageProgram | None) -> list[tuple[int, int]]:
    """Who of the maker sends to whom of the reader, one of which is a mesh."""
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


def _common(a: int, b: int, maker: StageProgram | None, reader: StageProgram | None) -> tuple[int, int]:
    """Which microbatches two processes have in common: of replicas r and s each lcm(r, s)-th."""
    first, step = 0, 1
    for position, stage in ((a, maker), (b, reader)):
        if stage is not None and not stage.members and len(stage.devices) > 1:
            width = len(stage.devices)
            while first % width != position:
                first += step
            step = step * width // gcd(step, width)
    return first, step


def _sides(edge: Edge, maker: StageProgram | None, reader: StageProgram | None, a: int, b: int) -> tuple[Edge, Edge]:
    """An edge as its two ends see it: members know parts of tensors, under names of their own."""
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
    return ValueSpec(name, whole.element, None if whole.shape is None else part.shape)


def peers_of(collectives: Sequence[Collective], member: int) -> tuple[int, ...]:
    """The other members in groups of a member, ascending."""
    peers = {peer for collective in collectives for peer in collective.group_of(member)}
    return tuple(sorted(peers - {member}))


def uses_of(stage: StageProgram) -> dict[str, Uses]:
    """When each value of a stage on a mesh is made and read, over all its members."""
    made: dict[str, int] = {}
    level: dict[str, int] = {}
    number = {collective.operand: n for n, collective in enumerate(stage.collectives)}
    for member in stage.members:
        for segment in member.segments:
            for value in segment.outputs:
                made[value.name] = min(made.get(value.name, segment.level), segment.level)
            for name in segment.inputs:
                level[name] = max(level.get(name, -1), segment.level)
        for part in (*member.sends, *member.outputs):
            level[part.value] = NEVER
    names = {*made, *level, *number, *(collective.result for collective in stage.collectives)}
    return {name: Uses(made.get(name), level.get(name, -1), number.get(name, -1)) for name in names}


def assign_cores(threads: Sequence[int], pin: bool = True) -> tuple[list[list[int]], bool]:
    """Cores of each device, which has so many ``threads``, and whether they are its own. Empty lists where the system has no
    affinity or ``pin`` is off."""
    if not pin or not hasattr(os, "sched_getaffinity"):
        return [[] for _ in threads], sum(threads) <= (os.cpu_count() or 1)
    cores = sorted(os.sched_getaffinity(0))
    if sum(threads) <= len(cores):
        return [cores[end - count : end] for count, end in zip(threads, itertools.accumulate(threads), strict=True)], True
    return [cores for _ in threads], False


__all__ = [
    "Link",
    "Place",
    "assign_cores",
    "build_edges",
    "links",
    "output_specs",
    "peers_of",
    "stage_places",
    "uses_of",
    "value_spec",
]
