"""A mesh: named axes over the devices of a topology, and what a collective along an axis costs.

The groups of an axis do their collectives at once, over the links they share (``passes.costs.exchange``). Devices are numbered
row by row, so the last axis joins neighbours.

A collective over the n members of an axis takes n-1 steps, each of which waits for the largest part that a member passes on: of
an all-gather or reduce-scatter, what a member has of the tensor or gets of it; of an all-reduce, which cuts the tensor anew, an
n-th, and there are two rounds; of an all-to-all, what one member gives another. Where parts are equal and b are the bytes of
the tensor as it would be without this axis, they are ``b / n``, ``b / n``, ``b / n^2``. A local slice is free.

An axis has *shares* (``ir.core.shares``): devices that work faster get more of what is split. Each op takes as long as the
member that takes longest for its own part, on its own type of device.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field, replace

from ir.core.diagnostics import Infeasible, InvalidInput, UsageError
from ir.core.module import Mesh
from ir.core.shares import Shares, equal, foremost
from ir.core.topology import Device, DeviceType, Topology
from ir.ops.opdefs import ReshardStep
from passes.costs.exchange import Speed, exchanges, rings, through
from passes.costs.network import Network, Unreachable
from passes.graph.faults import EmptyAxis, MeshTooLarge, NoDeviceOfMesh, NoMeshAxis, NoMeshShape, TooManyAxes

AXIS_NAMES = ("x", "y", "z")
MOST_DEVICES = 64
"""Devices of a topology up to which meshes of every shape are searched."""


class Servers:
    """The speeds of sums that go through one member of an axis (``exchange.through``), found when first asked for."""

    def __init__(self, net: Network, groups: Sequence[Sequence[str]], free: Container[str]) -> None:
        self._net, self._groups, self._free = net, groups, free
        self._speeds: dict[int, Speed] = {}

    def speed(self, place: int) -> Speed:
        """Through the member at ``place``."""
        if place not in self._speeds:
            self._speeds[place] = through(self._net, self._groups, place, self._free)
        return self._speeds[place]


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis: the speed of ``rings`` of all its groups at once, and of ``exchanges`` of all members with all, that of rings
    unless given; ``shares`` of its members, all 1 unless given; ``servers``: of sums that one member makes."""

    name: str
    size: int
    rings: Speed
    exchanges: Speed | None = None
    shares: Shares = ()
    servers: Servers | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.shares:
            object.__setattr__(self, "shares", equal(self.size))

    def seconds(self, step: ReshardStep, part: float, *, together: bool = False) -> float:
        """Seconds of a collective whose members pass on at most ``part`` bytes at once. An all-reduce ``together`` with others
        takes its part of a bucket (``passes.costs.exchange``)."""
        if together and step.cuts_anew:
            return self.rings.reduce_seconds(self.size, part * self.size)
        speed = self.exchanges if step.spreads and self.exchanges is not None else self.rings
        return speed.seconds(step.rounds * (self.size - 1), part) if step.moves else 0.0

    def served(self, size: float, place: int) -> float:
        """Seconds of a sum of gradients of ``size`` bytes, its part of a bucket, that the member at ``place`` makes; inf where
        the axis does not say."""
        return self.servers.speed(place).served_seconds(size) if self.servers is not None else math.inf

    def busy(self, step: ReshardStep, size: float) -> dict[str, float]:
        """Seconds that a collective of all groups keeps each medium busy. ``size``: bytes of the tensor of one group."""
        spread = step.spreads and self.exchanges is not None
        speed = self.exchanges if spread and self.exchanges is not None else self.rings
        moved = step.rounds * (self.size - 1) * size / (self.size**2 if step.spreads else self.size) if step.moves else 0.0
        return {name: moved / bandwidth for name, bandwidth in speed.media}


@dataclass(frozen=True, slots=True)
class Member:
    """A member by its place along each axis, the type of its device, and the memory of that over that of the smallest."""

    place: tuple[int, ...]
    type: DeviceType
    room: float = 1.0


@dataclass(frozen=True, slots=True)
class DeviceMesh:
    """``devices`` row by row; ``types`` those of its devices. ``memory``: bytes of the smallest device, None without a limit.

    ``members``: those that may be the busiest or the fullest. Of members alike in type and room others are left out that have
    no larger part of anything. Unless given, the one with the largest parts, on a device of each type."""

    axes: tuple[Axis, ...]
    devices: tuple[str, ...] = ()
    types: tuple[DeviceType, ...] = ()
    memory: int | None = None
    members: tuple[Member, ...] = ()

    def __post_init__(self) -> None:
        if not self.members:
            object.__setattr__(self, "members", tuple(Member(self.foremost, type_) for type_ in self.types))

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(axis.size for axis in self.axes)

    @property
    def foremost(self) -> tuple[int, ...]:
        """The place with the largest parts of everything."""
        return tuple(foremost(axis.shares) for axis in self.axes)

    @property
    def shares(self) -> tuple[Shares, ...]:
        """Those along each axis; empty where all are equal."""
        found = tuple(axis.shares for axis in self.axes)
        return found if any(max(shares) > 1 for shares in found) else ()

    def limited(self, memory: int) -> DeviceMesh:
        """The mesh with that many bytes on every device; 0: with those that it has, -1: without a limit."""
        if not memory:
            return self
        members = tuple(dict.fromkeys(replace(member, room=1.0) for member in self.members))
        return replace(self, memory=memory if memory > 0 else None, members=members)

    def __str__(self) -> str:
        return "x".join(map(str, self.sizes))


def read_shape(text: str, devices: int) -> tuple[int, ...]:
    """``8`` or ``2x4``. Raises UsageError for anything else, and for an axis of 1 beside others; Infeasible for more places
    than devices."""
    parts = text.lower().split("x")
    if not all(part.isdecimal() and part.isascii() and len(part) < 10 for part in parts):
        raise UsageError(NoMeshShape(text), where="partition")
    sizes = tuple(map(int, parts))
    if len(sizes) > len(AXIS_NAMES):
        raise UsageError(TooManyAxes(text, len(sizes), len(AXIS_NAMES)), where="partition")
    if min(sizes) < 1 or (len(sizes) > 1 and min(sizes) < 2):
        raise UsageError(EmptyAxis(text, min(sizes)), where="partition")
    if math.prod(sizes) > devices:
        raise Infeasible(MeshTooLarge(text, math.prod(sizes), devices), where="partition")
    return sizes


def shapes(devices: int) -> tuple[tuple[int, ...], ...]:
    """Every shape of that many devices with one axis or two of at least 2, one axis first."""
    two = [(first, devices // first) for first in range(2, devices // 2 + 1) if devices % first == 0]
    return ((devices,), *two)


IN_FEW_SHAPES = "as one axis or with a second one inside the hosts"
"""Of a topology of many devices the meshes that are searched."""


def few(topology: Topology) -> bool:
    """Whether there are so many devices that few of the meshes over them are searched."""
    return len(topology.devices) > MOST_DEVICES


def shapes_on(topology: Topology, devices: Sequence[Device]) -> tuple[tuple[int, ...], ...]:
    """The shapes that are searched of a mesh over these devices: every one; of a topology of many devices (``few``) one axis,
    or a second one inside the hosts."""

    def inside(sizes: tuple[int, ...]) -> bool:
        rows = (devices[first : first + sizes[-1]] for first in range(0, len(devices), sizes[-1]))
        return all(len({device.host for device in row}) == 1 for row in rows)

    return tuple(sizes for sizes in shapes(len(devices)) if len(sizes) == 1 or not few(topology) or inside(sizes))


def mesh_of(
    topology: Topology,
    net: Network,
    sizes: tuple[int, ...],
    first: int = 0,
    shares: Sequence[Shares] = (),
    devices: Sequence[Device] = (),
) -> DeviceMesh:
    """The mesh over consecutive devices, of ``topology`` unless given, from number ``first`` on; ``shares`` along each axis,
    equal ones unless given. Raises InvalidInput where two of an axis cannot reach each other."""
    axes = tuple(zip(AXIS_NAMES, sizes, strict=False))
    used = (devices or topology.devices)[first : first + math.prod(sizes)]
    return _mesh(topology, net, axes, shares or [equal(size) for size in sizes], used)


def mesh_over(topology: Topology, net: Network, mesh: Mesh) -> DeviceMesh:
    """That of a ``mesh`` symbol. Raises as ``mesh_of``, and for a device that the topology does not have."""
    known = {device.name: device for device in topology.devices}
    for device in mesh.devices:
        if device not in known:
            raise InvalidInput(NoDeviceOfMesh(device, topology.name), where=mesh.name)
    return _mesh(topology, net, mesh.axes, mesh.cuts, tuple(known[device] for device in mesh.devices))


def _mesh(
    topology: Topology, net: Network, named: Sequence[tuple[str, int]], shares: Sequence[Shares], devices: Sequence[Device]
) -> DeviceMesh:
    axes = []
    sizes = tuple(size for _, size in named)
    free = {device.name for device in devices if topology.type(device.type).free_transfers}
    for number, (name, size) in enumerate(named):
        stride = math.prod(sizes[number + 1 :])
        starts = _ring_starts(sizes, number)
        groups = [[devices[start + stride * member].name for member in range(size)] for start in starts]
        try:
            speeds = rings(net, groups, free), exchanges(net, groups, free)
        except Unreachable as error:
            raise InvalidInput(NoMeshAxis(error.diagnostics[0].message), where=topology.name) from error
        axes.append(Axis(name, size, *speeds, shares[number], Servers(net, groups, free)))
    least = min((limit for device in devices if (limit := topology.memory(device)) is not None), default=None)
    used = {device.type for device in devices}
    types = tuple(type_ for type_ in topology.types if type_.name in used)
    places = itertools.product(*map(range, sizes))
    members = [
        Member(place, topology.type(device.type), _room(topology.memory(device), least))
        for place, device in zip(places, devices, strict=True)
    ]
    return DeviceMesh(tuple(axes), tuple(device.name for device in devices), types, least, foremost_members(members, shares))


def _room(memory: int | None, least: int | None) -> float:
    if memory is None:
        return 1.0 if least is None else math.inf
    return memory / least if least else 1.0


def foremost_members(members: Iterable[Member], shares: Sequence[Shares]) -> tuple[Member, ...]:
    """Members without those that another of their type and room leaves behind: along each axis it has the greater share, or of
    equal ones comes first (``ir.core.shares``)."""

    def ranks(member: Member) -> tuple[tuple[int, int], ...]:
        return tuple((-along[place], place) for along, place in zip(shares, member.place, strict=True))

    found: list[Member] = []
    for member in sorted(members, key=ranks):
        mine = ranks(member)
        alike = (other for other in found if (other.type, other.room) == (member.type, member.room))
        if not any(all(map(operator.le, ranks(other), mine)) for other in alike):
            found.append(member)
    return tuple(found)


def _ring_starts(sizes: tuple[int, ...], axis: int) -> list[int]:
    """Number of the first device of each ring along ``axis``."""
    strides = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
    others = [range(size) if i != axis else range(1) for i, size in enumerate(sizes)]
    return [sum(p * s for p, s in zip(place, strides, strict=True)) for place in itertools.product(*others)]
