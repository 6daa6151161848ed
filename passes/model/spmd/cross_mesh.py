"""What passes between stages that are meshes: who sends what to whom, and what it costs.

A stage with a mesh is one program on all its devices; each sample is work of all of them. A value that crosses from a stage to
another of the same mesh shape and shares goes as it lies: member i sends its part to member i. Between stages of different
shape (a single device is one of its own) it goes whole: member i of the reader gets it from member ``i mod n`` of the n of the
maker, which brings it to all its members first.

Cost, as everywhere (``place``): bytes over the bandwidth of the route plus its latency, at both ends; a member that sends to
several members of one stage pays the bytes for each and the longest latency once; a device with free transfers pays
nothing. All members send at once: where their routes share a medium, that is busy with all that they send (``Path.media``). A
stage is as slow as its slowest member.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ir.module import Mesh, Plan
from ir.shares import Shares, equal, largest
from ir.topology import Topology
from ir.types import Shard, TensorType, Type, type_bytes
from passes.model.network import Network


@dataclass(frozen=True, slots=True)
class Party:
    """The devices of a stage and the sizes of its mesh's axes (none for a single device); ``shares`` along each, none where all
    are equal."""

    devices: tuple[str, ...]
    sizes: tuple[int, ...] = ()
    shares: tuple[Shares, ...] = ()

    def matches(self, other: Party) -> bool:
        """Whether values cross to ``other`` as they lie."""
        return (self.sizes, self.shares) == (other.sizes, other.shares)


def pairs(maker: Party, reader: Party) -> tuple[tuple[int, int], ...]:
    """Which member of the maker sends to which of the reader, in the reader's order."""
    count = len(maker.devices)
    return tuple((member % count, member) for member in range(len(reader.devices)))


def part_bytes(type_: Type, party: Party) -> int:
    """Bytes of the largest part of a value that lies as its type says on the mesh of ``party``."""
    size = type_bytes(type_) or 0
    if not isinstance(type_, TensorType) or type_.layout is None or type_.shape is None:
        return size
    cuts: dict[int, list[Shares]] = {}
    for placement, shares in zip(type_.layout.placements, party.shares or map(equal, party.sizes), strict=True):
        if isinstance(placement, Shard):
            cuts.setdefault(placement.dim, []).append(shares)
    for dim, axes in cuts.items():
        length = type_.shape[dim]
        if isinstance(length, int) and length:
            size = size // length * largest(length, axes)
    return size


def message_bytes(type_: Type, maker: Party, reader: Party) -> int:
    """Bytes of one message of a value between two parties."""
    return part_bytes(type_, maker) if maker.matches(reader) else type_bytes(type_) or 0


class Crossing:
    """Seconds of values between parties of one topology."""

    def __init__(self, topology: Topology, net: Network) -> None:
        self.net = net
        free = {type_.name for type_ in topology.types if type_.free_transfers}
        self.free = {device.name for device in topology.devices if device.type in free}

    def send(self, size: float, maker: Party, reader: Party) -> float:
        """Of the slowest member of ``maker``, for a value of which each message has ``size`` bytes."""
        slowest = 0.0
        targets: dict[int, list[int]] = {}
        for source, target in pairs(maker, reader):
            targets.setdefault(source, []).append(target)
        for source, members in targets.items():
            device = maker.devices[source]
            if device not in self.free:
                paths = [self.net.path(device, reader.devices[member]) for member in members]
                latency = max(path.latency for path in paths)
                slowest = max(slowest, latency + math.fsum(size / path.bandwidth for path in paths))
        return max(slowest, self.shared(size, maker, reader)) if slowest else slowest

    def receive(self, size: float, maker: Party, reader: Party) -> float:
        """Of the slowest member of ``reader``."""
        ends = [(maker.devices[a], reader.devices[b]) for a, b in pairs(maker, reader)]
        slowest = max((self.net.seconds(a, b, size) for a, b in ends if b not in self.free), default=0.0)
        return max(slowest, self.shared(size, maker, reader)) if slowest else slowest

    def shared(self, size: float, maker: Party, reader: Party) -> float:
        """Of the medium that is busy longest."""
        return max((seconds for _, seconds in self.media(size, maker, reader)), default=0.0)

    def media(self, size: float, maker: Party, reader: Party, *, back: bool = False) -> tuple[tuple[str, float], ...]:
        """Media with the seconds that all members' messages occupy them, or (``back``) the gradients that are returned."""
        found: dict[str, float] = {}
        for source, target in pairs(maker, reader):
            one, two = maker.devices[source], reader.devices[target]
            for name, bandwidth in self.net.path(*((two, one) if back else (one, two))).media:
                found[name] = found.get(name, 0.0) + size / bandwidth
        return tuple(sorted(found.items()))


def parties(plan: Plan, meshes: dict[str, Mesh]) -> list[Party]:
    """Of each stage of a plan."""
    on = [meshes.get(stage.mesh, Mesh("", (), ())) for stage in plan.stages]
    return [
        Party(stage.devices, tuple(size for _, size in mesh.axes), mesh.shares)
        for stage, mesh in zip(plan.stages, on, strict=True)
    ]


__all__ = ["Crossing", "Party", "message_bytes", "pairs", "part_bytes", "parties"]
