"""Meshes that are worth a search: which devices take part, in what shape, with which shares.

On one host, devices of one type all take part. Else whole sets may stay idle (``passes.costs.parts``): slow ones, or those
behind a slow link. Which sets are searched is decided by an estimate of a batch split over a mesh of one axis: the seconds of
the ops (``speeds``), in training also the sums of gradients that outlast the backward pass. All devices together are searched
in any case, in all shapes that there are (``shapes_on``): last, and in equal shares alone, those in which rows share a host
with others. A set that is not searched has a bound for which nothing is built, its ops divided as the speeds are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from ir.core.module import Module
from ir.core.topology import Device, Topology
from ir.core.types import type_bytes
from passes.costs.exchange import LAST, rings
from passes.costs.learning import trained
from passes.costs.network import Network, Unreachable
from passes.costs.parts import ordered, sets_of, whole_parts
from passes.meshes.mesh import shapes_on
from passes.meshes.notation import Along
from passes.partition.layouts.mesh.speeds import Speeds

MOST_PARTS = 64
"""Sets of devices that are searched beside all of them. What is left out is bounded without transfers: a GPT-2 of 4 layers in
training on six unlike devices of three hosts, of 56 sets 14 searched: 5.3 ms in 5.6 s, all of them: 12 ms in 6.4 s."""
BACKWARD = 2 / 3
"""The part of a run of a training step that its backward pass takes, in estimates."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A mesh over ``devices``, row by row. ``least``: seconds of a run that no plan on these devices is below; ``estimate``:
    about what a split batch takes; ``splits``: whether its shares divide the samples of a batch."""

    devices: tuple[Device, ...]
    sizes: tuple[int, ...]
    shares: Along = ()
    least: float = 0.0
    estimate: float = 0.0
    splits: bool = True

    @property
    def order(self) -> tuple[bool, float]:
        """What is searched first."""
        return not self.splits, self.estimate


@dataclass(frozen=True, slots=True)
class Candidates:
    """Those to search, the most promising first, and the least ``bound`` of sets of devices that are not, inf where all are."""

    searched: tuple[Candidate, ...]
    bound: float = math.inf


def candidates(
    module: Module, topology: Topology, net: Network, *, training: bool, microbatches: int, every: bool = False
) -> Candidates:
    """Of a topology whose devices are of several types or on several hosts. ``microbatches``: of a training step; ``every``:
    all devices take part. Raises Unreachable where the devices of no set reach each other."""
    speeds = Speeds(module, topology, training=training)
    estimates = _Estimates(module, topology, net, speeds, training, microbatches)
    found: list[Candidate] = []
    across: list[Candidate] = []
    for sizes in shapes_on(topology, topology.devices):
        if _rows_share_hosts(topology.devices, sizes):
            across += [one for one in estimates.meshes(topology.devices, sizes) if not one.shares]
        else:
            found += estimates.meshes(topology.devices, sizes)
    parts: list[Candidate] = []
    for names in () if every else whole_parts(topology):
        if 1 < len(names) < len(topology.devices):
            parts += estimates.meshes([topology.device(name) for name in names], (len(names),))[:1]
    if not (found or across or parts):
        estimates.sums(topology.devices)  # raises
    best = _best(parts)
    in_order = sorted([*found, *best.searched], key=lambda candidate: candidate.order)
    return Candidates((*in_order, *across), best.bound)


def some_devices(
    module: Module,
    topology: Topology,
    net: Network,
    sizes: tuple[int, ...],
    *,
    training: bool,
    microbatches: int,
    shares: Along | None = None,
) -> Candidates:
    """Meshes of one shape over fewer devices than there are, on the sets of these that do best by the estimate, host by host
    and fast ones first; ``shares``: with these alone. Raises Unreachable where the devices of no set reach each other."""
    speeds = Speeds(module, topology, training=training)
    estimates = _Estimates(module, topology, net, speeds, training, microbatches)
    devices, found = ordered(topology, net), list[Candidate]()
    for names in sets_of(topology, math.prod(sizes)):
        own = [device for device in devices if device.name in names]
        found += estimates.meshes(own, sizes, None if shares is None else (shares,))
    if not found:
        estimates.sums(devices)  # raises
    return _best(found)


def _best(found: Sequence[Candidate]) -> Candidates:
    """The most promising, and the bound of the others."""
    ranked = sorted(found, key=lambda candidate: candidate.order)
    return Candidates(tuple(ranked[:MOST_PARTS]), min((one.least for one in ranked[MOST_PARTS:]), default=math.inf))


def _rows_share_hosts(devices: Sequence[Device], sizes: Sequence[int]) -> bool:
    """Whether a row of the mesh has members on several hosts, one of which has members of another row."""
    rows = [devices[first : first + sizes[-1]] for first in range(0, len(devices), sizes[-1])]
    hosts = [{device.host for device in row} for row in rows]
    return any(len(one) > 1 and not one.isdisjoint(other) for one, other in itertools.permutations(hosts, 2))


class _Estimates:
    """What meshes take, before anything is built."""

    def __init__(
        self,
        module: Module,
        topology: Topology,
        net: Network,
        speeds: Speeds,
        training: bool,
        microbatches: int,
    ) -> None:
        self.net, self.speeds, self.microbatches = net, speeds, microbatches
        self.free = {device.name for device in topology.devices if topology.type(device.type).free_transfers}
        self.beside = {type_.name: type_.beside for type_ in topology.types}
        weights = trained(module.resources) if training else {}
        self.summed = sum(type_bytes(module.resources[name].type) or 0 for name in weights)

    def meshes(
        self, devices: Sequence[Device], sizes: tuple[int, ...], every: Sequence[Along] | None = None
    ) -> list[Candidate]:
        """Those over all of the devices in one shape, with ``every`` one of these shares, of those to try unless given, the
        best first; none where some do not reach each other."""
        try:
            sums, last = self.sums(devices)
        except Unreachable:
            return []
        members, found = self.speeds.members(devices), list[Candidate]()
        for along in every or self.speeds.candidates(sizes, devices=devices):
            shares = along or tuple((1,) * size for size in sizes)
            run = self.speeds.estimate(shares, members)
            least = self.speeds.least(devices, shares)
            beside = min(self.beside[device.type] for device in devices)
            exposed = max(sums - beside * BACKWARD * run, last)
            estimate, splits = run + exposed / self.microbatches, self.speeds.splits(shares)
            found.append(Candidate(tuple(devices), sizes, along, least, estimate, splits))
        return sorted(found, key=lambda candidate: candidate.order)

    def sums(self, devices: Sequence[Device]) -> tuple[float, float]:
        """Seconds of the sums of all gradients over a ring of the devices, and of the last bucket. Raises Unreachable."""
        names = [device.name for device in devices]
        speed, count = rings(self.net, [names], self.free), len(names)
        if not self.summed:
            return 0.0, 0.0
        return speed.reduce_seconds(count, self.summed), speed.seconds(2 * (count - 1), LAST / count)
