"""A mesh: named axes over the devices of a topology, and what a collective along an axis costs.

An axis is as fast as its slowest link: the least bandwidth and the greatest latency of the routes between neighbours on the
rings that lie along it. Devices are numbered row by row, so the last axis joins neighbours. Collectives of different rings of
an axis run at once and are taken not to disturb each other, on shared links too.

Seconds of a collective over the n members of an axis, b the bytes of the tensor as it would be without this axis, B bandwidth,
L latency, rings (Thakur, Rabenseifner, Gropp 2005): ``(n-1) (b / (n B) + L)`` for all-gather and reduce-scatter, twice that for
all-reduce, ``(n-1) (b / (n^2 B) + L)`` for all-to-all; a local slice is free.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ir.diagnostics import Infeasible, InvalidInput, UsageError
from ir.module import Mesh
from ir.topology import Device, DeviceType, Topology
from passes.analyses.network import Network, Unreachable

AXIS_NAMES = ("x", "y", "z")


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis: bytes per second and seconds of its slowest link."""

    name: str
    size: int
    bandwidth: float
    latency: float = 0.0

    def gather(self, size: float) -> float:
        """Seconds of an all-gather or reduce-scatter of ``size`` bytes."""
        return (self.size - 1) * (size / (self.size * self.bandwidth) + self.latency)

    def reduce(self, size: float) -> float:
        """Seconds of an all-reduce."""
        return 2.0 * self.gather(size)

    def exchange(self, size: float) -> float:
        """Seconds of an all-to-all."""
        return (self.size - 1) * (size / (self.size**2 * self.bandwidth) + self.latency)


@dataclass(frozen=True, slots=True)
class DeviceMesh:
    """``devices`` row by row; ``types`` those of its devices: seconds are those of the slowest. ``memory``: bytes of the
    smallest device, None without a limit."""

    axes: tuple[Axis, ...]
    devices: tuple[str, ...] = ()
    types: tuple[DeviceType, ...] = ()
    memory: int | None = None

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(axis.size for axis in self.axes)

    def __str__(self) -> str:
        return "x".join(map(str, self.sizes))


def read_shape(text: str, devices: int) -> tuple[int, ...]:
    """``8`` or ``2x4``. Raises UsageError for anything else, and for an axis of 1 beside others; Infeasible for more places
    than devices."""
    parts = text.lower().split("x")
    if not all(part.isdecimal() and part.isascii() and len(part) < 10 for part in parts):
        raise UsageError(f"mesh is '{text}', expected sizes of axes such as 8 or 2x4", where="shard")
    sizes = tuple(map(int, parts))
    if len(sizes) > len(AXIS_NAMES):
        raise UsageError(f"mesh {text} has {len(sizes)} axes, expected at most {len(AXIS_NAMES)}", where="shard")
    if min(sizes) < 1 or (len(sizes) > 1 and min(sizes) < 2):
        raise UsageError(f"mesh {text} has an axis of {min(sizes)}, expected at least 2 members", where="shard")
    if math.prod(sizes) > devices:
        raise Infeasible(
            f"mesh {text} has {math.prod(sizes)} places, the topology {devices} device{'s' if devices != 1 else ''}",
            where="shard",
            hint="use a smaller mesh or more devices",
        )
    return sizes


def shapes(devices: int, most_axes: int = 2) -> tuple[tuple[int, ...], ...]:
    """Every shape of that many devices with axes of at least 2, fewest axes first; ``(1,)`` for one device."""

    def ways(rest: int, axes: int) -> Iterator[tuple[int, ...]]:
        if axes == 1:
            yield (rest,)
            return
        for first in range(2, rest // 2 + 1):
            if rest % first == 0:
                yield from ((first, *others) for others in ways(rest // first, axes - 1))

    found = [shape for axes in range(1, most_axes + 1) for shape in ways(devices, axes)]
    return tuple(found)


def mesh_of(topology: Topology, net: Network, sizes: tuple[int, ...], first: int = 0) -> DeviceMesh:
    """The mesh over consecutive devices of ``topology``, from number ``first`` on. Raises InvalidInput where two of an axis
    cannot reach each other."""
    axes = tuple(zip(AXIS_NAMES, sizes, strict=False))
    return _mesh(topology, net, axes, topology.devices[first : first + math.prod(sizes)])


def mesh_over(topology: Topology, net: Network, mesh: Mesh) -> DeviceMesh:
    """That of a ``mesh`` symbol. Raises as ``mesh_of``, and for a device that the topology does not have."""
    known = {device.name: device for device in topology.devices}
    for device in mesh.devices:
        if device not in known:
            raise InvalidInput(f"'{device}' is not a device of the topology {topology.name}", where=mesh.name)
    return _mesh(topology, net, mesh.axes, tuple(known[device] for device in mesh.devices))


def _mesh(topology: Topology, net: Network, named: Sequence[tuple[str, int]], devices: Sequence[Device]) -> DeviceMesh:
    axes = []
    sizes = tuple(size for _, size in named)
    for number, (name, size) in enumerate(named):
        stride = math.prod(sizes[number + 1 :])
        bandwidth, latency = math.inf, 0.0
        for start in _ring_starts(sizes, number):
            ring = [devices[start + stride * member] for member in range(size)]
            for source, target in zip(ring, [*ring[1:], ring[0]], strict=True):
                if source is target or all(topology.type(end.type).free_transfers for end in (source, target)):
                    continue
                try:
                    path = net.path(source.name, target.name)
                except Unreachable as error:
                    raise InvalidInput(f"no mesh axis: {error}", where=topology.name) from error
                bandwidth, latency = min(bandwidth, path.bandwidth), max(latency, path.latency)
        axes.append(Axis(name, size, bandwidth, latency))
    limits = [limit for device in devices if (limit := topology.memory(device)) is not None]
    used = {device.type for device in devices}
    types = tuple(type_ for type_ in topology.types if type_.name in used)
    return DeviceMesh(tuple(axes), tuple(device.name for device in devices), types, min(limits, default=None))


def _ring_starts(sizes: tuple[int, ...], axis: int) -> list[int]:
    """Number of the first device of each ring along ``axis``."""
    strides = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
    others = [range(size) if i != axis else range(1) for i, size in enumerate(sizes)]
    return [sum(p * s for p, s in zip(place, strides, strict=True)) for place in itertools.product(*others)]


__all__ = ["AXIS_NAMES", "Axis", "DeviceMesh", "mesh_of", "mesh_over", "read_shape", "shapes"]
