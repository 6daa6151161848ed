"""What passes between stages that are meshes: who sends what to whom, and what it costs.

A stage with a mesh is one program on all its devices; each sample is work of all of them. A value that crosses from a stage to
another of the same mesh shape and shares goes as it lies: member i sends its part to member i. Between stages of different
shape (a single device is one of its own) it goes whole: the maker brings it to all its members first, one of them sends it to a
member of the reader, and that one passes it on to the next, host by host; on a host of the maker, each of its members there
sends it to one (``messages``). So what many members read enters each host once. With makers a, b and readers c, d, e on one
host: a to c, b to d, c to e.

A stage on one device may have replicas, which take microbatches in turn: each is a party of its own, and what crosses goes
between those whose turn it is (``meetings``). A stage pays for the slowest of these messages.

Cost, as everywhere (``place``): bytes over the bandwidth of the route plus its latency, at both ends; a member that sends to
several pays the bytes for each and the longest latency once; a device with free transfers pays nothing. All members send at
once: where their routes share a medium, that is busy with all that they send (``Path.media``), and the last byte arrives a
latency later. A stage is as slow as its slowest member. In training the gradient of what crosses comes back the same way, maker
and reader changing places.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ir.core.module import Mesh, Plan
from ir.core.shares import Shares, equal, largest
from ir.core.topology import Topology
from ir.core.types import Layout, Shard, TensorType, Type, type_bytes
from ir.ops.boxes import Placements
from passes.costs.network import Network


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


class Message(NamedTuple):
    """From ``source`` to ``target``, devices; ``on``: the source is itself of the reader, and has got what it passes on."""

    source: str
    target: str
    on: bool = False


def messages(maker: Party, reader: Party, host_of: Mapping[str, str]) -> tuple[Message, ...]:
    """What brings a value to each member of the reader, once."""
    if maker.matches(reader):
        return tuple(map(Message, maker.devices, reader.devices))
    found: list[Message] = []
    shared = {host_of[device] for device in maker.devices}
    hosts = dict.fromkeys(host_of[device] for device in reader.devices)
    for host in sorted(hosts, key=lambda host: host not in shared):
        members = [device for device in reader.devices if host_of[device] == host]
        near = [device for device in maker.devices if host_of[device] == host]
        if near:
            found += [Message(source, target) for source, target in zip(near, members, strict=False)]
        else:
            found.append(Message(found[-1].target, members[0], on=True) if found else Message(maker.devices[0], members[0]))
        found += [Message(*pair, on=True) for pair in zip(members, members[max(len(near), 1) :], strict=False)]
    return tuple(found)


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


def laid_bytes(type_: Type, lies: Placements, maker: Party, reader: Party) -> int:
    """The same of a value that the maker has in the layout ``lies``."""
    if isinstance(type_, TensorType) and maker.sizes:
        type_ = replace(type_, layout=Layout("@mesh", lies))
    return message_bytes(type_, maker, reader)


class Crossing:
    """Seconds of values between parties of one topology, each message of which has ``size`` bytes."""

    def __init__(self, topology: Topology, net: Network) -> None:
        self.net = net
        free = {type_.name for type_ in topology.types if type_.free_transfers}
        self.free = {device.name for device in topology.devices if device.type in free}
        self.host_of = {device.name: device.host for device in topology.devices}
        self.known: dict[tuple[Party, Party], tuple[Message, ...]] = {}

    def messages(self, maker: Party, reader: Party) -> tuple[Message, ...]:
        """Those of any value between the two."""
        if (maker, reader) not in self.known:
            self.known[maker, reader] = messages(maker, reader, self.host_of)
        return self.known[maker, reader]

    def ends(self, size: float, makers: Sequence[Party], readers: Sequence[Party], *, returns: bool) -> tuple[float, float]:
        """At the maker and at the reader of a message between stages of these replicas, the slowest of each; ``returns``: with
        the gradient, which comes back."""
        pairs = meetings(makers, readers)
        back = [(self.receive(size, two, one), self.send(size, two, one)) if returns else (0.0, 0.0) for one, two in pairs]
        made, read = zip(*back, strict=True)
        return (
            max(self.send(size, *pair) + more for pair, more in zip(pairs, made, strict=True)),
            max(self.receive(size, *pair) + more for pair, more in zip(pairs, read, strict=True)),
        )

    def send(self, size: float, maker: Party, reader: Party) -> float:
        """Of the slowest member of ``maker``, the way to the reader alone."""
        sent = [message for message in self.messages(maker, reader) if not message.on]
        slowest = max((self.sending(size, device, sent) for device in maker.devices), default=0.0)
        return max(slowest, self.together(size, maker, reader)) if slowest else slowest

    def receive(self, size: float, maker: Party, reader: Party) -> float:
        """Of the slowest member of ``reader``, what it passes on included."""
        found = self.messages(maker, reader)
        passed = [message for message in found if message.on]
        slowest = max(
            (
                self.net.seconds(message.source, message.target, size) + self.sending(size, message.target, passed)
                for message in found
                if message.target not in self.free
            ),
            default=0.0,
        )
        return max(slowest, self.together(size, maker, reader)) if slowest else slowest

    def sending(self, size: float, device: str, sent: Sequence[Message]) -> float:
        """Of one device, for those of the messages that are its own."""
        paths = [self.net.path(device, message.target) for message in sent if message.source == device]
        if not paths or device in self.free:
            return 0.0
        return max(path.latency for path in paths) + math.fsum(size / path.bandwidth for path in paths)

    def together(self, size: float, maker: Party, reader: Party) -> float:
        """Until the medium that is busy longest is done with all messages, and the last of them has arrived."""
        sent = (message for message in self.messages(maker, reader) if not message.on)
        latency = min((self.net.path(message.source, message.target).latency for message in sent), default=0.0)
        return max((latency + seconds for _, seconds in self.media(size, maker, reader)), default=0.0)

    def media(self, size: float, maker: Party, reader: Party) -> tuple[tuple[str, float], ...]:
        """Media with the seconds that all messages occupy them."""
        found: dict[str, float] = {}
        for message in self.messages(maker, reader):
            for name, bandwidth in self.net.path(message.source, message.target).media:
                found[name] = found.get(name, 0.0) + size / bandwidth
        return tuple(sorted(found.items()))


def party(devices: tuple[str, ...], mesh: Mesh) -> Party:
    """A stage on these devices; of a single one ``mesh`` has no axes."""
    return Party(devices, tuple(size for _, size in mesh.axes), mesh.shares)


def parties(plan: Plan, meshes: Mapping[str, Mesh]) -> list[tuple[Party, ...]]:
    """The replicas of each stage of a plan: its mesh, or each of its devices."""
    return [
        (party(stage.devices, meshes[stage.mesh]),) if stage.mesh in meshes else tuple(map(alone, stage.devices))
        for stage in plan.stages
    ]


def alone(device: str) -> Party:
    """A single device."""
    return Party((device,))


def meetings(makers: Sequence[Party], readers: Sequence[Party]) -> list[tuple[Party, Party]]:
    """The replicas of two stages that work on a common microbatch, one pair after another until they begin anew: microbatch m
    goes from replica m modulo their number to replica m modulo theirs."""
    turns = range(math.lcm(len(makers), len(readers)))
    return [(makers[turn % len(makers)], readers[turn % len(readers)]) for turn in turns]
