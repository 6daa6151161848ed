"""What stages on several devices reach on hosts that links join: rings of their replicas, and hosts that they fill or send to.

All of it is at best, for bounds, but for ``slowest``. Ways are pairs of a bandwidth and a latency.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from ir.core.topology import Topology
from passes.costs.network import Network, Unreachable
from passes.stages.problem import Kind

MOST_ALONE = 64
"""Devices on a host each of which every route is looked at."""

Way: TypeAlias = tuple[float, float]


@dataclass(frozen=True)
class Leaving:
    """From the devices of one type on a host to those on others: the most bandwidth of one route and the least latency;
    ``together``: the least bandwidth of what all routes cross, inf where they have nothing in common."""

    bandwidth: float
    latency: float
    together: float

    def of(self, rails: int) -> float:
        """The bandwidth at most where so many rings leave the host and each carries its part (``exchange.rings``)."""
        return max(self.bandwidth, min(rails * self.bandwidth, self.together))


@dataclass(frozen=True)
class Filling:
    """Devices of one type that fill a host: how many they are, and the most bandwidth and the least latency on the ``way`` from
    them to any device of another host."""

    count: int
    way: Way


@dataclass(frozen=True, eq=False)
class Hosts:
    """The hosts of a topology."""

    topology: Topology
    network: Network

    def best_ring(self, kind: Kind) -> Way:
        """At most the bandwidth, and at least the latency, of a ring of the replicas of a stage: those of the port of its kind
        and, where no host has as many devices, those with which the ring leaves each of its hosts, the slowest of as many as it
        needs. With as many devices on each of its hosts it may be as many rings. A stage that could fill a host, but does not
        (``Kind.fills``), is on several."""
        counts, port = self._on_hosts(kind), self.network.port(kind.devices[0])
        if not kind.fills and self.may_fill(kind):
            counts = Counter({host: min(count, kind.replicas - 1) for host, count in counts.items()})
        leaving = self._leaving.get(kind.type, {})
        if max(counts.values()) >= kind.replicas or not leaving:
            return port.bandwidth, port.latency

        def slowest(rails: int) -> float:
            """The bandwidth on the host that is the last needed."""
            each = {host: count if rails == 1 else rails * (count >= rails) for host, count in counts.items()}
            order = sorted(each, key=lambda host: -leaving[host].of(rails))
            return leaving[_needed(order, each, kind.replicas)].of(rails)

        every = [r for r in range(2, kind.replicas) if kind.replicas % r == 0]
        parted = [r for r in every if sum(count >= r for count in counts.values()) * r >= kind.replicas]
        widest = max(map(slowest, (1, *parted)))
        latest = leaving[_needed(sorted(counts, key=lambda host: leaving[host].latency), counts, kind.replicas)].latency
        return min(port.bandwidth, widest), max(port.latency, latest)

    @cached_property
    def _leaving(self) -> dict[str, dict[str, Leaving]]:
        """By type of device and host, from there to such devices of other hosts; without hosts where these are too many, or do
        not reach each other."""
        found = {}
        for type_ in self.topology.types:
            names = [device.name for device in self.topology.devices if device.type == type_.name]
            hosts = {self.network.host(name) for name in names}
            if not len(hosts) > 1 or len(names) > MOST_ALONE:
                continue
            with suppress(Unreachable):
                found[type_.name] = {host: self._best_from(host, names) for host in sorted(hosts)}
        return found

    @cached_property
    def filling(self) -> dict[str, Filling]:
        """By type of device; without types of which a host with most has other devices beside them."""
        devices, found = self.topology.devices, {}
        hosts, every = Counter(device.host for device in devices), [device.name for device in devices]
        for type_ in {device.type: None for device in devices} if len(hosts) > 1 and len(devices) <= MOST_ALONE else ():
            own = Counter(device.host for device in devices if device.type == type_)
            most = max(own.values())
            full = [host for host, count in own.items() if count == most]
            if most > 1 and all(hosts[host] == most for host in full):
                with suppress(Unreachable):
                    ways = [self._best_from(host, every) for host in full]
                    far = max(way.bandwidth for way in ways), min(way.latency for way in ways)
                    found[type_] = Filling(most, far)
        return found

    @property
    def are_far(self) -> bool:
        """Whether some device reaches another host more slowly than its port."""
        ports = [(self.slowest.get(device.type), self.network.port(device.name)) for device in self.topology.devices]
        return any(way is not None and (way[0] < port.bandwidth or way[1] > port.latency) for way, port in ports)

    @cached_property
    def slowest(self) -> dict[str, Way]:
        """By type of device: the least bandwidth and the most latency between such a device and one of another host."""
        first = {(device.type, device.host): device for device in reversed(self.topology.devices)}.values()
        found: dict[str, Way] = {}
        for one, other in itertools.permutations(first if len(first) <= MOST_ALONE else (), 2):
            if one.host != other.host:
                with suppress(Unreachable):
                    path, (bandwidth, latency) = self.network.path(one.name, other.name), found.get(one.type, (math.inf, 0.0))
                    found[one.type] = min(bandwidth, path.bandwidth), max(latency, path.latency)
        return found

    def _best_from(self, host: str, names: Sequence[str]) -> Leaving:
        own = [name for name in names if self.network.host(name) == host]
        paths = [self.network.path(one, two) for one in own for two in names if self.network.host(two) != host]
        crossed = [{**{hop: self.network.links[hop[0]].bandwidth for hop in path.hops}, **dict(path.media)} for path in paths]
        common = set.intersection(*map(set, crossed))
        together = min((crossed[0][one] for one in common), default=math.inf)
        return Leaving(max(path.bandwidth for path in paths), min(path.latency for path in paths), together)

    def may_fill(self, kind: Kind) -> bool:
        """Whether a stage of this kind may fill a host."""
        filling = self.filling.get(kind.type)
        return filling is not None and filling.count == kind.replicas and max(self._on_hosts(kind).values()) >= kind.replicas

    def _on_hosts(self, kind: Kind) -> Counter[str]:
        """Devices that a stage of this kind may have, by host."""
        return Counter(map(self.network.host, (*kind.devices, *itertools.chain(*kind.better))))

    def may_spread(self, kind: Kind) -> bool:
        """Whether a stage of this kind may be elsewhere than on all devices of one host."""
        return not self.may_fill(kind) or len(self._on_hosts(kind)) > 1


def _needed(order: Sequence[str], counts: Mapping[str, int], replicas: int) -> str:
    """The last host of the first in ``order`` that together have enough devices; the last of all where they have too few."""
    reached = itertools.accumulate(counts[host] for host in order)
    return next((host for host, count in zip(order, reached, strict=True) if count >= replicas), order[-1])
