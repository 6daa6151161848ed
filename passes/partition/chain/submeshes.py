"""Where the stages of a plan may lie: blocks of consecutive devices, each as a mesh of one or two axes, or as replicas.

The devices of a *mesh* work on each microbatch together. *Replicas* are devices that take microbatches in turn, each with the
whole stage: r of them need a r-th of the seconds per microbatch, and each as much memory as one device alone. They are of one
type, with as much memory, and may lie in several hosts.

A mesh lies within one host or covers whole hosts, so that none straddles a host without need. Two axes of like links are taken
in ascending order only. Meshes that differ in nothing but the names of their devices (same axes, shares and links, same types
and memory of the devices that may be busiest) are one *form*: they are searched once. Where the devices of a mesh differ in
type, there is one with equal parts and one for each of some unequal ``shares``.

Of many devices (``few``) there are fewer blocks, and a second axis lies within a host; of more than ``MOST_ANYWHERE`` there are
replicas only where there is a mesh of as many devices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TypeAlias

from ir.core.diagnostics import InvalidInput
from ir.core.shares import Shares
from ir.core.topology import Device, Topology
from passes.costs.network import Network
from passes.meshes.costs.cross_mesh import Party, alone
from passes.meshes.mesh import IN_FEW_SHAPES, MOST_DEVICES, DeviceMesh, few, mesh_of, shapes_on
from passes.meshes.notation import Along

FEW = f"each beginning at a multiple of its size, {IN_FEW_SHAPES}"
"""Which blocks there are of many devices (``passes.meshes.mesh.few``)."""
Shape: TypeAlias = tuple[tuple[int, ...], tuple[Shares, ...]]
"""Sizes of the axes of a mesh, and the shares along each, none where all are equal."""
SharesOf: TypeAlias = Callable[[tuple[int, ...], Sequence[Device]], Iterable[Along]]
MOST_ANYWHERE = 16
"""Devices up to which any that follow each other may be replicas of a stage."""


@dataclass(frozen=True, slots=True)
class Block:
    """Devices ``first .. behind - 1`` as ``mesh``, which these and the number of its form say already; or the first of them as
    ``mesh``, the ``others`` as further replicas."""

    first: int
    behind: int
    form: int
    mesh: DeviceMesh = field(compare=False)
    others: tuple[str, ...] = field(default=(), compare=False)

    @property
    def shape(self) -> Shape:
        """Values cross between blocks of one shape as they lie."""
        return self.mesh.sizes, self.mesh.shares

    @property
    def size(self) -> int:
        """How many devices it has."""
        return self.behind - self.first

    @property
    def replicas(self) -> int:
        return 1 + len(self.others)

    @property
    def parties(self) -> tuple[Party, ...]:
        """Each replica."""
        if len(self.mesh.devices) > 1:
            return (Party(self.mesh.devices, self.mesh.sizes, self.mesh.shares),)
        return tuple(map(alone, (*self.mesh.devices, *self.others)))


@dataclass(frozen=True, slots=True)
class Submeshes:
    """All blocks, by ``behind``, then ``first``; ``forms``: one mesh of each form."""

    devices: int
    blocks: tuple[Block, ...]
    forms: tuple[DeviceMesh, ...]


def submeshes(
    topology: Topology,
    net: Network,
    sizes: tuple[int, ...] = (),
    *,
    whole: bool = True,
    stages: int = 0,
    replicas: int = 1,
    shares: SharesOf = lambda shape, devices: ((),),
) -> Submeshes:
    """The blocks of ``topology`` for so many stages (0: any number); with ``sizes``: meshes of that shape, one behind the other
    from the first device on; ``whole``: with the meshes of all devices; ``replicas``: of a stage at most, where ``sizes`` are
    not given; ``shares``: along the axes of a shape over some devices, empty for equal ones."""
    count = len(topology.devices)
    forms: dict[DeviceMesh, int] = {}
    blocks = []
    if sizes:
        every = math.prod(sizes)
        places = [(first, every) for first in range(0, count - every + 1, every)]
    else:
        places = block_places(topology, stages)
    for first, size in places:
        if size == count and not whole:
            continue
        devices = topology.devices[first : first + size]
        every_shape = [sizes] if sizes else shapes_on(topology, devices)
        for shape in every_shape:
            for along in shares(shape, devices):
                try:
                    mesh = mesh_of(topology, net, shape, first, along)
                except InvalidInput:
                    if sizes:
                        raise
                    continue
                turned = len(shape) == 2 and shape[0] > shape[1] and shape[::-1] in every_shape
                if not sizes and turned and not along and _alike(mesh):
                    continue
                form = forms.setdefault(replace(mesh, devices=()), len(forms))
                blocks.append(Block(first, first + size, form, mesh))
    if not sizes and replicas > 1:
        blocks += _replicated(topology, {block.first: block for block in blocks if block.size == 1}, replicas, stages)
    blocks.sort(key=lambda block: (block.behind, block.first, block.form))
    known = {block.form: block.mesh for block in reversed(blocks)}
    return Submeshes(count, tuple(blocks), tuple(known[form] for form in range(len(forms))))


def of_shape(meshes: Submeshes, sizes: tuple[int, ...]) -> Submeshes:
    """Those blocks that are meshes of one shape."""
    kept = [block for block in meshes.blocks if block.mesh.sizes == sizes]
    numbers = {form: number for number, form in enumerate(sorted({block.form for block in kept}))}
    blocks = tuple(replace(block, form=numbers[block.form]) for block in kept)
    return Submeshes(meshes.devices, blocks, tuple(meshes.forms[form] for form in numbers))


def _replicated(topology: Topology, singles: Mapping[int, Block], most: int, stages: int) -> list[Block]:
    """The blocks of replicas; ``singles``: blocks of one device, by its number; ``most``: replicas of a stage."""
    count = len(topology.devices)
    places = [(first, size) for first in range(count) for size in range(2, count - first + 1)]
    if count > MOST_ANYWHERE:
        places = block_places(topology, stages)
    found = []
    for first, size in places:
        own = [singles[number] for number in range(first, first + size) if number in singles]
        if 1 < size == len(own) <= most and len({block.form for block in own}) == 1:
            others = tuple(device for block in own[1:] for device in block.mesh.devices)
            found.append(Block(first, first + size, own[0].form, own[0].mesh, others))
    return found


def block_places(topology: Topology, stages: int = 0) -> list[tuple[int, int]]:
    """First device and size of every mesh: any within a host, and any of neighbouring whole hosts. Of many devices: those whose
    size divides that of the host, or the number of hosts, that begin, in their host or among the hosts, at a multiple of their
    size, and hold a whole host or one in ``MOST_DEVICES`` of all devices; for exactly so many ``stages`` of any such size,
    since larger ones may be too few."""
    hosts: list[tuple[int, int]] = []
    first = 0
    for _, members in groupby(topology.devices, key=lambda device: device.host):
        size = len(list(members))
        hosts.append((first, size))
        first += size
    aligned, least = few(topology), 0.0 if stages else first / MOST_DEVICES
    found: set[tuple[int, int]] = set()
    for start, size in hosts:
        for part in range(1, size + 1):
            if not aligned or (size % part == 0 and part >= min(least, size)):
                found.update((start + offset, part) for offset in range(0, size - part + 1, part if aligned else 1))
    for some in range(2, len(hosts) + 1):
        if not aligned or len(hosts) % some == 0:
            for i in range(0, len(hosts) - some + 1, some if aligned else 1):
                size = sum(size for _, size in hosts[i : i + some])
                if not (aligned and size < least):
                    found.add((hosts[i][0], size))
    return sorted(found)


def _alike(mesh: DeviceMesh) -> bool:
    one, two = mesh.axes
    return (one.rings, one.exchanges) == (two.rings, two.exchanges)


__all__ = ["FEW", "Block", "Shape", "SharesOf", "Submeshes", "block_places", "of_shape", "submeshes"]
