"""What the collectives of lowered stages cost, counted from the ops alone: the oracle of what a plan was charged.

It reads the ops of each stage with their types, the mesh and the topology, and nothing of the search, the layout rules or the
decisions. It sends each message of all groups of an axis over its route and adds up the bytes that cross each medium: a
collective takes as long as the busiest medium or member.

Rings (Thakur, Rabenseifner, Gropp 2005): n members take ``n-1`` steps, twice as many for an all-reduce, each of which waits for
the largest part that any of them passes on and takes the latency; in an all-to-all each step goes to another member. Parts are
counted from the boxes that members hold: of an all-gather what they have, of a reduce-scatter what they get, of an all-to-all
what one has and another gets; an all-reduce passes on n-ths.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from ir.core.diagnostics import InvalidInput
from ir.core.module import Mesh, Module, Stage
from ir.core.ops import Op
from ir.core.topology import Topology
from ir.core.types import Placement, Replicate, TensorType
from ir.ops.boxes import Placements, axis_number, box, members_along, placements_of
from ir.ops.opdefs import COLLECTIVES, ReshardStep, is_collective
from passes.costs.network import Network, Path, Unreachable, network
from passes.graph.faults import NoMeshAxis, NoSize, NoStages, NoTopology


@dataclass(frozen=True, slots=True)
class Counted:
    """One collective of a stage. ``value``: what it makes; ``size``: bytes of the tensor as the other axes leave it, of the
    largest where these differ; ``sent``: bytes that a member sends at most."""

    stage: int
    channel: int
    kind: str
    axis: str
    value: str
    size: float
    sent: float
    seconds: float


def count(module: Module) -> tuple[Counted, ...]:
    """Every collective of every lowered stage, by stage, then by place. Raises InvalidInput for a module that is not lowered
    or without a topology, and where members cannot reach each other."""
    topology = module.first(Topology)
    if topology is None:
        raise InvalidInput(NoTopology(), where=module.name)
    if module.first(Stage) is None:
        raise InvalidInput(NoStages(), where=module.name)
    meshes = {mesh.name: mesh for mesh in module.of_type(Mesh)}
    net = network(topology)
    found: list[Counted] = []
    for stage in module.of_type(Stage):
        mesh = meshes.get(stage.mesh)
        if mesh is not None:
            found += _of_stage(stage, mesh, {axis: _Traffic.of(topology, net, mesh, axis) for axis, _ in mesh.axes}, net)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Traffic:
    """Along one axis, routes of what members send in a ``ring``, in an exchange of ``all`` with all, and in rings that part the
    data (``parted``, ring by ring)."""

    ring: list[Path]
    all: list[Path]
    parted: list[list[Path]]

    @classmethod
    def of(cls, topology: Topology, net: Network, mesh: Mesh, axis: str) -> _Traffic:
        ring, every = (_messages(topology, net, mesh, axis, spread) for spread in (False, True))
        return cls(ring, every, _parted(topology, net, mesh, axis))

    def seconds(self, step: ReshardStep, net: Network, steps: int, part: float) -> float:
        return _seconds(self.all, net, steps, part) if step.spreads else _seconds(self.ring, net, steps, part, self.parted)


def _of_stage(stage: Stage, mesh: Mesh, axes: Mapping[str, _Traffic], net: Network) -> list[Counted]:
    found = []
    for op in stage.ops:
        if is_collective(op):
            kind = op.name.removeprefix("comm.")
            axis = op.get("axis")
            members = dict(mesh.axes)[axis]
            size, passed = _bytes(op, COLLECTIVES[kind], mesh, axis_number(mesh, axis))
            steps = COLLECTIVES[kind].rounds * (members - 1)
            seconds = axes[axis].seconds(COLLECTIVES[kind], net, steps, passed)
            found.append(Counted(stage.index, op.get("channel"), kind, axis, op.results[0].name, size, steps * passed, seconds))
    return found


def _bytes(op: Op, step: ReshardStep, mesh: Mesh, axis: int) -> tuple[float, float]:
    """Bytes of the tensor as it would be without its axis, and of the largest part that a member passes on."""
    type_ = op.results[0].type
    if not isinstance(type_, TensorType) or type_.nbytes is None:
        raise InvalidInput(NoSize(op.results[0].name), where=op.id)
    whole = replace(type_, layout=None)
    after = placements_of(type_, mesh)

    def along(placement: Placement) -> Placements:
        return (*after[:axis], placement, *after[axis + 1 :])

    size = _largest(whole, mesh, along(Replicate()))
    if step.cuts_anew:
        return size, size / mesh.axes[axis][1]
    one, other = step.placements(op)
    if step.join and step.split:
        return size, _largest_piece(whole, mesh, axis, along(one), along(other))
    return size, _largest(whole, mesh, along(one if step.join else other))


@lru_cache(maxsize=1 << 10)
def _largest(type_: TensorType, mesh: Mesh, lies: Placements) -> float:
    """Bytes of the largest part of a value."""
    boxes = (box(type_, lies, mesh, member) for member in range(len(mesh.devices)))
    return _bytes_of(type_, max(math.prod(length for _, length in one) for one in boxes))


@lru_cache(maxsize=1 << 10)
def _largest_piece(type_: TensorType, mesh: Mesh, axis: int, before: Placements, after: Placements) -> float:
    """Bytes of the largest piece that a member gives another along an axis: what it has and the other gets."""
    most = 0
    for member in range(len(mesh.devices)):
        mine = box(type_, before, mesh, member)
        for other in members_along(mesh, member, mesh.axes[axis][0]):
            if other == member:
                continue  # it keeps that
            theirs = box(type_, after, mesh, other)
            both = (min(a + m, b + n) - max(a, b) for (a, m), (b, n) in zip(mine, theirs, strict=True))
            most = max(most, math.prod(max(0, length) for length in both))
    return _bytes_of(type_, most)


def _bytes_of(type_: TensorType, elements: int) -> float:
    return (type_.nbytes or 0) * elements / (type_.elements or 1)


def _messages(topology: Topology, net: Network, mesh: Mesh, axis: str, spread: bool) -> list[Path]:
    """Routes of what members send in all steps of a ring, of which each is the same (one is told), or of an all-to-all."""
    free = {type_.name for type_ in topology.types if type_.free_transfers}
    types = {device.name: device.type for device in topology.devices}
    found = []
    for member in range(len(mesh.devices)):
        group = members_along(mesh, member, axis)
        after = [group[(group.index(member) + step) % len(group)] for step in range(1, len(group) if spread else 2)]
        for source, target in ((mesh.devices[member], mesh.devices[other]) for other in after):
            if source == target or (types[source] in free and types[target] in free):
                continue
            try:
                found.append(net.path(source, target))
            except Unreachable as error:
                raise InvalidInput(NoMeshAxis(error.diagnostics[0].message, f" {axis}"), where=mesh.name) from error
    return found


def _seconds(messages: Sequence[Path], net: Network, steps: int, part: float, parted: Sequence[Sequence[Path]] = ()) -> float:
    """Of a collective of so many steps in which members pass on ``part`` bytes; ``parted``: rings that might share the data."""
    if not messages:
        return 0.0
    ring = len({(path.source, path.target) for path in messages}) == len({path.source for path in messages})
    moving = _moving(messages, steps * part if ring else part)
    moving = max(moving, steps * part / min(path.bandwidth for path in messages))
    if parted:
        every = [path for ring_ in parted for path in ring_]
        quicker = _moving(every, steps * part / len(parted), net)
        quicker = max(quicker, steps * part / min(net.port(path.source).bandwidth for path in every))
        if quicker < moving:
            moving, messages = quicker, every
    links = [net.links[name] for path in messages for name in path.links]
    seconds = max(link.start for link in links) + steps * max(path.latency for path in messages) + moving
    quick = min((link.small for link in links if link.small), default=0.0)
    more = max(link.switch for link in links)
    if part and more and quick and steps * part / quick > moving:
        # Two protocols: the one for small messages would take so much longer.
        longer = steps * part / quick - moving
        seconds += more * longer / (longer + more)
    return seconds


def _moving(messages: Sequence[Path], each: float, net: Network | None = None) -> float:
    """Seconds until the busiest medium, and with ``net`` the busiest link in the direction of a message, has let all messages
    of ``each`` bytes pass."""
    busy: dict[object, float] = {}
    for path in messages:
        for medium, bandwidth in path.media:
            busy[medium] = busy.get(medium, 0.0) + each / bandwidth
        if net is not None:
            for hop in path.hops:
                busy[hop] = busy.get(hop, 0.0) + each / net.links[hop[0]].bandwidth
    return max(busy.values(), default=0.0)


def _parted(topology: Topology, net: Network, mesh: Mesh, axis: str) -> list[list[Path]]:
    """The same of the rings that part the data among as many members as each host has of each group, ring by ring; none where
    hosts have unequally many, or one, or a group is on one host."""
    free = {type_.name for type_ in topology.types if type_.free_transfers}
    found: dict[int, list[Path]] = {}
    for member in range(len(mesh.devices)):
        group = members_along(mesh, member, axis)
        devices = [topology.device(mesh.devices[other]) for other in group]
        borders = [0, *(i for i in range(1, len(group)) if devices[i].host != devices[i - 1].host), len(group)]
        lengths = {behind - first for first, behind in itertools.pairwise(borders)}
        if len(borders) == 2 or len(lengths) > 1 or lengths == {1}:
            return []
        (length,) = lengths
        at = group.index(member)
        for by in range(length):
            # A ring that is turned by so many places within each host leaves a host behind the member before ``by``.
            place = at % length
            leaves = (place - by) % length == length - 1
            after = (at // length + 1) * length + by if leaves else at // length * length + (place + 1) % length
            source, target = devices[at], devices[after % len(group)]
            if source.type not in free or target.type not in free:
                found.setdefault(by, []).append(net.path(source.name, target.name))
    return list(found.values())
