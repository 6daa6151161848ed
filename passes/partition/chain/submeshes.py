"""On what devices the stages of a plan may be: blocks, each a mesh of one or two axes or replicas, and who may follow whom.

The devices of a *mesh* work on each microbatch together. *Replicas* are devices that take microbatches in turn, each with the
whole stage: r of them need a r-th of the seconds per microbatch, and each as much memory as one device alone. They are of one
type, with as much memory, and may lie in several hosts.

``taking`` says which devices a stage may take after those before it. A mesh lies within one host or covers whole hosts, so that
none straddles a host without need; its members stand host by host, in a host fast ones first. Meshes that differ in nothing but
the names of their devices (same axes, shares and links, same types and memory of the devices that may be busiest) are one
*form*: they are searched once. Where the devices of a mesh differ in type, there is one with equal parts and one for each of
some unequal ``shares``.

A *block* is a form, a number of replicas, and the best links to devices that may be before it, and behind it: to all, and to
those that are *apart*, on none of its hosts.

Of many devices (``few``) there are fewer blocks, and a second axis lies within a host.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ir.core.diagnostics import InvalidInput
from ir.core.shares import Shares
from ir.core.topology import Device, Topology
from passes.costs.network import Network
from passes.meshes.costs.cross_mesh import Party, alone
from passes.meshes.mesh import IN_FEW_SHAPES, DeviceMesh, few, mesh_of, shapes_on
from passes.meshes.notation import Along
from passes.partition.chain.crossings import Link, Links
from passes.partition.chain.taking import Asked, Move, Take, Taking, size_of, taking

FEW = f"each beginning at a multiple of its size, {IN_FEW_SHAPES}"
"""Which blocks there are of many devices (``passes.meshes.mesh.few``)."""
Shape: TypeAlias = tuple[tuple[int, ...], tuple[Shares, ...]]
"""Sizes of the axes of a mesh, and the shares along each, none where all are equal."""
BestLinks: TypeAlias = tuple[tuple[Link, Link], tuple[Link, Link]]
"""To devices before a block, and to those behind it: of all of these, and of those that are on none of its hosts, or of all
where there are no such."""
SharesOf: TypeAlias = Callable[[tuple[int, ...], Sequence[Device]], Iterable[Along]]


@dataclass(frozen=True, slots=True)
class Block:
    """Devices as ``mesh``; or one of them as ``mesh``, the ``others`` as further replicas. ``number``: of those that differ in
    names alone."""

    number: int
    form: int
    mesh: DeviceMesh = field(compare=False)
    others: tuple[str, ...] = field(default=(), compare=False)
    links: BestLinks = field(default=((Link(0.0, math.inf),) * 2,) * 2, compare=False)

    @property
    def shape(self) -> Shape:
        """Values cross between blocks of one shape as they lie."""
        return self.mesh.sizes, self.mesh.shares

    def receives(self, apart: bool) -> tuple[Link, Link]:
        """The best links from an earlier stage, and from the one before; ``apart``: which is on none of its hosts."""
        every, others = self.links[0]
        return every, others if apart else every

    def sends(self, apart: bool) -> tuple[Link, Link]:
        """The best links to a later stage, and to the next; ``apart``: which is on none of its hosts."""
        every, others = self.links[1]
        return every, others if apart else every

    @property
    def comes(self) -> bool:
        """Whether links from a stage before it that is apart are others than from one that may be near."""
        return self.links[0][0] != self.links[0][1]

    @property
    def goes(self) -> bool:
        """The same of links to a stage behind it."""
        return self.links[1][0] != self.links[1][1]

    @property
    def size(self) -> int:
        """How many devices it has."""
        return len(self.mesh.devices) + len(self.others)

    @property
    def replicas(self) -> int:
        return 1 + len(self.others)

    @property
    def parties(self) -> tuple[Party, ...]:
        """Each replica."""
        if len(self.mesh.devices) > 1:
            return (Party(self.mesh.devices, self.mesh.sizes, self.mesh.shares),)
        return tuple(map(alone, (*self.mesh.devices, *self.others)))

    def on(self, devices: Sequence[Device]) -> Block:
        """The block on other devices."""
        names = tuple(device.name for device in devices)
        count = len(self.mesh.devices)
        return replace(self, mesh=replace(self.mesh, devices=names[:count]), others=names[count:])


@dataclass(frozen=True)
class Submeshes:
    """All blocks; ``forms``: one mesh of each form; ``moves[m]``: source, target and block of a stage that takes
    ``takes[m]``, and the places that it enters and leaves (``kernels.Moves``), by source; ``links``: of the topology."""

    devices: int
    blocks: tuple[Block, ...]
    forms: tuple[DeviceMesh, ...]
    moves: NDArray[np.int32]
    takes: tuple[Move, ...]
    taking: Taking
    links: Links

    def among(self, blocks: Collection[Block]) -> Submeshes:
        """With these blocks alone."""
        if len(blocks) == len(self.blocks):
            return self
        kept = np.isin(self.moves[:, 2], [block.number for block in blocks])
        takes = tuple(take for take, is_kept in zip(self.takes, kept.tolist(), strict=True) if is_kept)
        return replace(self, blocks=tuple(blocks), moves=self.moves[kept], takes=takes)

    @cached_property
    def idle(self) -> NDArray[np.int32]:
        """Pairs of states of which the second has more devices idle."""
        return np.array(self.taking.idle, np.int32).reshape(-1, 2)

    def realised(self, numbers: Sequence[int]) -> list[Block]:
        """The blocks of stages that make these moves."""
        by_number = {block.number: block for block in self.blocks}
        devices = self.taking.realised([self.takes[number] for number in numbers])
        return [by_number[int(self.moves[number, 2])].on(own) for number, own in zip(numbers, devices, strict=True)]


def submeshes(
    topology: Topology,
    net: Network,
    sizes: tuple[int, ...] = (),
    *,
    whole: bool = True,
    stages: int = 0,
    replicas: int = 1,
    groups: int = 0,
    one_kind: bool = False,
    training: bool = False,
    shares: SharesOf = lambda shape, devices: ((),),
) -> Submeshes:
    """The blocks of ``topology`` for so many stages (0: any number); with ``sizes``: meshes of that shape; ``whole``: with the
    meshes of all devices; ``replicas``: of a stage at most, where ``sizes`` are not given, numbers that share
    ``groups`` of a decoder evenly; ``one_kind``: meshes of devices of one type and memory alone; ``training``: gradients come
    back; ``shares``: along the axes of a shape over some devices, empty for equal ones."""
    steps = taking(topology, net, Asked(math.prod(sizes) if sizes else 0, 1 if sizes else replicas, stages, groups, one_kind))
    makes = _Makes(topology, net, steps, sizes, whole, shares, Links(topology, net, steps.devices, returns=training))
    rows, takes = list[tuple[int, int, int, int, int]](), list[Move]()
    for move in steps.moves:
        for block in makes.blocks_of(move):
            rows.append((move.source, move.target, block, *steps.places_of(move.take)))
            takes.append(move)
    moves = np.array(rows, np.int32).reshape(-1, 5)
    return Submeshes(
        len(topology.devices), tuple(makes.blocks), tuple(makes.forms_made), moves, tuple(takes), steps, makes.links
    )


class _Makes:
    """Makes the blocks of moves."""

    def __init__(
        self,
        topology: Topology,
        net: Network,
        steps: Taking,
        sizes: tuple[int, ...],
        whole: bool,
        shares: SharesOf,
        links: Links,
    ) -> None:
        self.topology, self.net, self.steps, self.sizes, self.whole = topology, net, steps, sizes, whole
        self.shares, self.links = shares, links
        self.forms: dict[DeviceMesh, int] = {}
        self.forms_made: list[DeviceMesh] = []
        self.known: dict[object, list[tuple[int, DeviceMesh]]] = {}
        self.blocks: list[Block] = []
        self.numbers: dict[object, int] = {}
        self.linked: dict[object, BestLinks] = {}

    def blocks_of(self, move: Move) -> Iterator[int]:
        """Numbers of the blocks that a stage may be that makes the move."""
        size = size_of(move.take)
        if size == len(self.topology.devices) and not self.whole and move.mesh and not move.replicas:
            return
        state = self.steps.states[move.source]
        hosts = self.steps.hosts_of(state, move.take)
        own = self.steps.of_hosts(move.take, hosts)
        devices = [self.steps.devices[number] for number in own]
        if move.mesh and (size < len(self.topology.devices) or self.whole):
            for form, mesh in self.meshes(move.take, devices):
                yield self.number(form, mesh, (), self.best_links(move, own, alone=False))
        if move.replicas:
            for form, mesh in self.meshes((), devices[:1]):
                others = tuple(device.name for device in devices[1:])
                yield self.number(form, mesh, others, self.best_links(move, own, alone=True))

    def number(self, form: int, mesh: DeviceMesh, others: tuple[str, ...], links: BestLinks) -> int:
        key = form, len(others), links
        if key not in self.numbers:
            self.numbers[key] = len(self.blocks)
            self.blocks.append(Block(len(self.blocks), form, mesh, others, links))
        return self.numbers[key]

    def best_links(self, move: Move, own: Sequence[int], *, alone: bool) -> BestLinks:
        """The best links of a block of these devices (``Block``); ``alone``: replicas."""
        before, hosts = self.steps.taken(self.steps.states[move.source]), self.links.hosts
        behind = sorted(set(range(len(self.steps.devices))).difference(before, own))
        touched = {hosts[number] for number in own}
        earlier, later = ([number for number in some if hosts[number] not in touched] or some for some in (before, behind))
        key = tuple(own), *map(self.links.seen, (before, earlier, behind, later)), alone
        if key not in self.linked:
            receives = self.links.before(own, before, alone), self.links.before(own, earlier, alone)
            self.linked[key] = receives, (self.links.behind(own, behind, alone), self.links.behind(own, later, alone))
        return self.linked[key]

    def meshes(self, take: Take, devices: Sequence[Device]) -> list[tuple[int, DeviceMesh]]:
        """The meshes of a take, each with its form; without a take of one device."""
        key = self.steps.signature(take) if take else (devices[0].type, self.topology.memory(devices[0]))
        if key not in self.known:
            self.known[key] = [(self.form(mesh), mesh) for mesh in self.made(devices)]
        return self.known[key]

    def form(self, mesh: DeviceMesh) -> int:
        form = self.forms.setdefault(replace(mesh, devices=()), len(self.forms))
        if form == len(self.forms_made):
            self.forms_made.append(mesh)
        return form

    def made(self, devices: Sequence[Device]) -> Iterator[DeviceMesh]:
        every_shape = [self.sizes] if self.sizes else shapes_on(self.topology, devices)
        for shape in every_shape:
            for along in self.shares(shape, devices):
                try:
                    mesh = mesh_of(self.topology, self.net, shape, 0, along, devices)
                except InvalidInput:
                    if self.sizes:
                        raise
                    continue
                yield mesh


def of_shape(meshes: Submeshes, sizes: tuple[int, ...]) -> Submeshes:
    """Those blocks that are meshes of one shape."""
    kept = [block for block in meshes.blocks if block.mesh.sizes == sizes]
    numbers = {form: number for number, form in enumerate(sorted({block.form for block in kept}))}
    blocks = tuple(replace(block, form=numbers[block.form]) for block in kept)
    return replace(meshes.among(kept), blocks=blocks, forms=tuple(meshes.forms[form] for form in numbers))


def searched_sizes(
    topology: Topology, net: Network, *, stages: int = 0, replicas: int = 1, one_kind: bool = False
) -> tuple[list[int], str]:
    """How many devices a mesh of a stage may have, and what of these is not searched (empty: all is)."""
    steps = taking(topology, net, Asked(0, replicas, stages, one_kind=one_kind))
    told = [steps.told] if steps.told else []
    return steps.sizes, ", ".join([*told, *([FEW] if few(topology) else [])])
