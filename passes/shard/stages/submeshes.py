"""Where the stages of a plan may lie: blocks of consecutive devices, each as a mesh of one or two axes.

A block lies within one host, of a size that divides the number of the host's devices, or covers whole hosts, of a number that
divides that of all hosts. So no mesh straddles a host without need. Two axes of like links are taken in ascending order only.
Meshes that differ in nothing but the names of their devices (same axes and links, same types and memory of the devices that may
be busiest) are one *form*: they are searched once. Members get equal parts, also where their devices differ in type.
Of many devices (``few``) there are fewer blocks, and a second axis lies within a host.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from itertools import groupby

from ir.core.diagnostics import InvalidInput
from ir.core.topology import Topology
from passes.model.network import Network
from passes.model.spmd.mesh import IN_FEW_SHAPES, MOST_DEVICES, DeviceMesh, few, mesh_of, shapes_on

FEW = f"each beginning at a multiple of its size, {IN_FEW_SHAPES}"
"""Which blocks there are of many devices (``passes.model.spmd.mesh.few``)."""


@dataclass(frozen=True, slots=True)
class Block:
    """Devices ``first .. behind - 1`` as ``mesh``, which these and the number of its form say already."""

    first: int
    behind: int
    form: int
    mesh: DeviceMesh = field(compare=False)


@dataclass(frozen=True, slots=True)
class Submeshes:
    """All blocks, by ``behind``, then ``first``; ``forms``: one mesh of each form."""

    devices: int
    blocks: tuple[Block, ...]
    forms: tuple[DeviceMesh, ...]


def submeshes(
    topology: Topology, net: Network, sizes: tuple[int, ...] = (), *, whole: bool = True, stages: int = 0
) -> Submeshes:
    """The blocks of ``topology`` for so many stages (0: any number); with ``sizes``: meshes of that shape, one behind the other
    from the first device on; ``whole``: with the one of all devices."""
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
        every_shape = [sizes] if sizes else shapes_on(topology, topology.devices[first : first + size])
        for shape in every_shape:
            try:
                mesh = mesh_of(topology, net, shape, first)
            except InvalidInput:
                if sizes:
                    raise
                continue
            turned = len(shape) == 2 and shape[0] > shape[1] and shape[::-1] in every_shape
            if not sizes and turned and _alike(mesh):
                continue
            form = forms.setdefault(replace(mesh, devices=()), len(forms))
            blocks.append(Block(first, first + size, form, mesh))
    blocks.sort(key=lambda block: (block.behind, block.first, block.form))
    known = {block.form: block.mesh for block in reversed(blocks)}
    return Submeshes(count, tuple(blocks), tuple(known[form] for form in range(len(forms))))


def of_shape(meshes: Submeshes, sizes: tuple[int, ...]) -> Submeshes:
    """Those blocks that are meshes of one shape."""
    kept = [block for block in meshes.blocks if block.mesh.sizes == sizes]
    numbers = {form: number for number, form in enumerate(sorted({block.form for block in kept}))}
    blocks = tuple(replace(block, form=numbers[block.form]) for block in kept)
    return Submeshes(meshes.devices, blocks, tuple(meshes.forms[form] for form in numbers))


def block_places(topology: Topology, stages: int = 0) -> list[tuple[int, int]]:
    """First device and size of every block. Of many devices: blocks that begin, in their host or among the hosts, at a multiple
    of their size, and hold a whole host or one in ``MOST_DEVICES`` of all devices; for exactly so many ``stages`` of any
    size, since larger ones may be too few."""
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
            if size % part == 0 and not (aligned and part < min(least, size)):
                found.update((start + offset, part) for offset in range(0, size - part + 1, part if aligned else 1))
    for some in range(2, len(hosts) + 1):
        if len(hosts) % some == 0:
            for i in range(0, len(hosts) - some + 1, some if aligned else 1):
                size = sum(size for _, size in hosts[i : i + some])
                if not (aligned and size < least):
                    found.add((hosts[i][0], size))
    return sorted(found)


def _alike(mesh: DeviceMesh) -> bool:
    one, two = mesh.axes
    return (one.rings, one.exchanges) == (two.rings, two.exchanges)


__all__ = ["FEW", "Block", "Submeshes", "block_places", "of_shape", "submeshes"]
