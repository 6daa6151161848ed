"""What crosses between stages, from below: bytes by run, and the best link that a block can have to those before and behind it.

Where the mesh beside it has the same shape, a member of n receives at least one n-th of each value that enters, over at best
the fastest route from any earlier device; as much it sends. Where it has another, values cross whole, once at least: one member
receives, and one sends, all of it. In either case a medium that every route between the block and those beside it crosses
(``Path.media``) is busy with the whole value. Replicas get, and send, whole values, each those of its microbatches. These are
what every plan pays, whatever the layouts at its borders.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ir.core.topology import Device, Topology
from ir.core.types import type_bytes
from passes.costs.network import FREE, Network, device_classes
from passes.partition.layouts.problem.build import ShardInput
from passes.partition.layouts.problem.problem import Floats

MOST_PAIRS = 256
"""Devices up to which every route is looked at; of more, the ports are."""


@dataclass(frozen=True, slots=True)
class Volumes:
    """``[i, j]``: bytes and number of values that enter, and that leave, the run of units i .. j - 1; ``close_``: those that
    come from unit i - 1, hence from the stage before, and those that unit j reads, hence the stage behind."""

    enter: Floats
    enters: Floats
    leave: Floats
    leaves: Floats
    close_enter: Floats
    close_leave: Floats

    def receive(self, devices: int, links: tuple[Link, Link], alike: bool) -> Floats:
        """What a run on so many devices spends at least on what enters; ``links``: from an earlier stage, and from the one
        before; ``alike``: which is of the same shape."""
        return self.spent(devices, links, alike, self.enter, self.enters, self.close_enter)

    def send(self, devices: int, links: tuple[Link, Link], alike: bool) -> Floats:
        """What it spends at least on sending; ``links``: to a later stage, and to the next."""
        return self.spent(devices, links, alike, self.leave, self.leaves, self.close_leave)

    @staticmethod
    def spent(devices: int, links: tuple[Link, Link], alike: bool, size: Floats, values: Floats, close: Floats) -> Floats:
        """What so many devices spend at least on values of so many bytes, of which the ``close`` ones cross the second link."""
        rate, (part, once) = links[0].rates(devices)[0], links[1].rates(devices)
        return size / rate + values * links[0].latency + close * max(1 / (part if alike else once) - 1 / rate, 0.0)


@dataclass(frozen=True, slots=True)
class Link:
    """A best case: the least latency and the greatest bandwidth, of a member while all send; ``alone``: the bandwidth while one
    member sends, 0 where it is the same."""

    latency: float
    bandwidth: float
    alone: float = 0.0

    def rates(self, devices: int) -> tuple[float, float]:
        """At most so many bytes of a value cross a second: where each of the members carries its part or one carries all of it,
        and where one carries all."""
        once = self.alone or self.bandwidth
        return max(devices * self.bandwidth, once), once


def volumes_of(given: ShardInput, units: Sequence[Sequence[int]]) -> Volumes:
    """``given``: the problem of the whole function on any mesh. Of a value that several stages read one message counts."""
    unit_of = {op: unit for unit, ops in enumerate(units) for op in ops}
    count = len(units)
    tables = [np.zeros((count, count + 1)) for _ in range(6)]
    for value in given.problem.values:
        node, result = value.maker
        if node not in unit_of:
            continue
        made = given.func.ops[node].results[result]
        times = 2 if made.name in given.trained else 1  # its gradient comes back
        size = times * (type_bytes(made.type) or 0)
        home = unit_of[node]
        readers = sorted({unit_of[reader] for reader, _ in value.readers if reader in unit_of})
        # It enters runs that begin behind its maker, from the first of their units that reads it on.
        for before, reader in pairwise([home, *(unit for unit in readers if unit > home)]):
            for table, amount in ((tables[0], size), (tables[1], times)):
                table[before + 1 : reader + 1, reader + 1 :] += amount
        if readers and readers[-1] > home:
            for table, amount in ((tables[2], size), (tables[3], times)):
                table[: home + 1, home + 1 : readers[-1] + 1] += amount
            nearest = next(unit for unit in readers if unit > home)
            tables[4][home + 1, nearest + 1 :] += size
            for reader in readers:
                if reader > home:
                    tables[5][: home + 1, reader] += size
    return Volumes(*tables)


class Links:
    """Best links of a topology, of whose ``devices`` blocks have some, by number; ``returns``: what crosses comes back, so of
    two directions the better one counts."""

    def __init__(self, topology: Topology, net: Network, devices: Sequence[Device], *, returns: bool) -> None:
        self.returns = returns
        ports = [net.port(device.name) for device in devices]
        paid = [port for port in ports if port != FREE]
        self.best = Link(min((p.latency for p in paid), default=0.0), max((p.bandwidth for p in paid), default=np.inf))
        if len(paid) < len(ports):
            self.best = Link(0.0, np.inf)
        self.latency: Floats | None = None
        class_of = {name: number for number, names in enumerate(device_classes(topology)) for name in names}
        self.classes = [class_of[device.name] for device in devices]
        self.hosts = [device.host for device in devices]
        if 1 < len(devices) <= MOST_PAIRS:
            count = len(devices)
            self.latency, self.bandwidth = np.zeros((count, count)), np.full((count, count), np.inf)
            crossing: dict[str, tuple[float, list[tuple[int, int]]]] = {}
            for a, one in enumerate(devices):
                for b, two in enumerate(devices):
                    if a != b:
                        path = net.path(one.name, two.name)
                        self.latency[a, b], self.bandwidth[a, b] = path.latency, path.bandwidth
                        for name, bandwidth in path.media:
                            crossing.setdefault(name, (bandwidth, []))[1].append((a, b))
            self.crosses, self.media = np.zeros((len(crossing), count, count), bool), np.zeros(len(crossing))
            for number, (bandwidth, pairs) in enumerate(crossing.values()):
                self.media[number] = bandwidth
                senders, receivers = zip(*pairs, strict=True)
                self.crosses[number, senders, receivers] = True
            if returns:
                self.latency = np.minimum(self.latency, self.latency.T)
                self.bandwidth = np.maximum(self.bandwidth, self.bandwidth.T)
            self.paying = np.array([port != FREE for port in ports])

    def seen(self, others: Iterable[int]) -> frozenset[int]:
        """What of the devices beside a block the links to them depend on."""
        return frozenset(self.classes[number] for number in others) if self.latency is not None else frozenset()

    def before(self, own: Sequence[int], earlier: Sequence[int], replicas: bool) -> Link:
        """From earlier devices. The bandwidth is that of the member whose best link is the slowest, since every member receives
        its part; ``alone`` that of the member with the fastest, which may receive for all and pass it on."""
        if self.latency is None or not earlier or not self.paying[own].all():
            return self.best
        pairs = np.ix_(earlier, own)
        latency, reached = float(self.latency[pairs].min()), self.bandwidth[pairs].max(axis=0)
        if replicas:  # each receives all of its microbatches; the slowest counts
            return Link(latency, float(reached.min()))
        alone = float(min(reached.max(), self.shared(earlier, own)))
        return Link(latency, float(min(reached.min(), self.part(own, earlier))), alone)

    def behind(self, own: Sequence[int], later: Sequence[int], replicas: bool) -> Link:
        """The best link of any member to a later device: one member may send for all."""
        if self.latency is None or not later or not self.paying[own].all():
            return self.best
        pairs = np.ix_(own, later)
        latency, reached = float(self.latency[pairs].min()), self.bandwidth[pairs].max(axis=0)
        part = math.inf if replicas else self.part(own, later)
        alone = 0.0 if replicas else float(min(reached.max(), self.shared(own, later)))
        return Link(latency, float(min(reached.max(), part)), alone)

    def part(self, own: Sequence[int], others: Sequence[int]) -> float:
        """The bandwidth of a member of ``own`` while all pass on equal parts: that of the members on one host, which share what
        all their routes to ``others`` cross, where it is least."""
        by_host: dict[str, list[int]] = {}
        for number in own:
            by_host.setdefault(self.hosts[number], []).append(number)
        return min(self.shared(members, others) / len(members) for members in (own, *by_host.values()))

    def shared(self, senders: Sequence[int], receivers: Sequence[int]) -> float:
        """The bandwidth of the narrowest medium that all routes between the two sides cross; inf where there is none."""
        ways = ((senders, receivers), (receivers, senders)) if self.returns else ((senders, receivers),)
        return max(self.narrowest(*way) for way in ways)

    def narrowest(self, senders: Sequence[int], receivers: Sequence[int]) -> float:
        """As ``shared``, of routes in this direction."""
        media = np.flatnonzero(self.crosses[:, senders[0], receivers[0]])  # no other can be on all of the routes
        crossed = self.crosses[np.ix_(media, np.array(senders), np.array(receivers))].all(axis=(1, 2))
        return float(self.media[media[crossed]].min(initial=np.inf))
