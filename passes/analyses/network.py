"""The network between devices: which route a transfer takes, what it costs, what each device's port can do at best.

A route crosses links between points; it is the explicit one of the topology where there is one, else that of least latency,
then of greatest bottleneck bandwidth, then first by the names of its links. Its latency is the sum of its links', its
bandwidth the least of theirs. Latencies are compared in whole femtoseconds, so that no tie hangs on rounding. Devices
and hosts forward like switches do: what they forward costs them nothing here.

*Port model* (the objective of ``partition``): a device pays ``latency + bytes / bandwidth`` of its port for each tensor that it
sends or receives. ``Port`` holds the least latency and the greatest bandwidth over all routes from and to the device, so no
route of it is faster: a bound that uses ports holds on the real links.

Seconds, bytes, bytes per second. Pure functions of the immutable topology; ``context.analyses.get(network, topology)`` keeps
it.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from ir.topology import Device, Link, Topology


@dataclass(frozen=True, slots=True)
class Port:
    """What a device can do at best. A device alone, or one with free transfers: no latency and no limit."""

    latency: float
    bandwidth: float

    def seconds(self, size: int | float) -> float:
        """Seconds that sending or receiving ``size`` bytes takes at least."""
        return self.latency + size / self.bandwidth

    def best(self, other: Port) -> Port:
        """The better of both in each respect."""
        return Port(min(self.latency, other.latency), max(self.bandwidth, other.bandwidth))


FREE = Port(0.0, math.inf)
ALONE = Port(math.inf, 0.0)
"""Of a device that no route reaches: what ``best`` starts from."""


@dataclass(frozen=True, slots=True)
class Path:
    """A route with its cost. ``hops``: links in order, each with the point it is entered from and left to."""

    source: str
    target: str
    hops: tuple[tuple[str, str, str], ...]
    latency: float
    bandwidth: float

    @property
    def links(self) -> tuple[str, ...]:
        return tuple(link for link, _, _ in self.hops)

    def seconds(self, size: int | float) -> float:
        """Seconds of one transfer of ``size`` bytes while nothing else crosses the route."""
        return self.latency + size / self.bandwidth


class Unreachable(ValueError):
    """No route joins two devices; the frontend refuses such a topology."""


@dataclass(slots=True)
class _Tree:
    """Best routes from one point: per point its latency (femtoseconds), bandwidth, and the last hop."""

    latency: dict[str, int] = field(default_factory=dict)
    bandwidth: dict[str, float] = field(default_factory=dict)
    hop: dict[str, tuple[str, str]] = field(default_factory=dict)


class Network:
    """Routes and ports of a topology. Routes are found when first asked for and kept."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.links: dict[str, Link] = {link.name: link for link in topology.links}
        self._at: dict[str, list[Link]] = {}
        for link in topology.links:
            for end in link.ends:
                self._at.setdefault(end, []).append(link)
        self._explicit = {(route.source, route.target): route.links for route in topology.routes}
        self._trees: dict[str, _Tree] = {}
        self._paths: dict[tuple[str, str], Path] = {}
        self._ports: dict[str, Port] = {}
        self._devices = {device.name: device for device in topology.devices}

    def path(self, source: str, target: str) -> Path:
        """The route from one device to another; from a device to itself: no links, no time. Raises Unreachable, KeyError."""
        found = self._paths.get((source, target))
        if found is None:
            found = self._paths[source, target] = self._find(source, target)
        return found

    def port(self, device: str) -> Port:
        """The best case over all routes from and to ``device``."""
        if not self._ports:
            self._ports = self._find_ports()
        return self._ports[device]

    def seconds(self, source: str, target: str, size: int | float) -> float:
        """Seconds of a transfer on its route; 0 within a device."""
        return self.path(source, target).seconds(size)

    def _find(self, source: str, target: str) -> Path:
        if source not in self._devices or target not in self._devices:
            raise KeyError(source if source not in self._devices else target)
        if source == target:
            return Path(source, target, (), 0.0, math.inf)
        explicit = self._explicit.get((source, target))
        hops = self._follow(source, target, explicit) if explicit else self._trace(source, target)
        links = [self.links[link] for link, _, _ in hops]
        latency = sum(_femtoseconds(link) for link in links) / 1e15
        return Path(source, target, hops, latency, min(link.bandwidth for link in links))

    def _trace(self, source: str, target: str) -> tuple[tuple[str, str, str], ...]:
        tree = self._tree(source)
        hops: list[tuple[str, str, str]] = []
        point = target
        while point != source:
            if point not in tree.hop:
                raise Unreachable(f"no links lead from {source} to {target}")
            link, before = tree.hop[point]
            hops.append((link, before, point))
            point = before
        return tuple(reversed(hops))

    def _follow(self, source: str, target: str, names: tuple[str, ...]) -> tuple[tuple[str, str, str], ...]:
        """Hops of an explicit route: of a link with several ends, it leaves by the one the next link has too."""
        hops = []
        point = source
        for number, name in enumerate(names):
            ends = [end for end in self.links[name].ends if end != point]
            ahead = self.links[names[number + 1]].ends if number + 1 < len(names) else (target,)
            onward = [end for end in ends if end in ahead]
            if point not in self.links[name].ends or not onward:
                raise Unreachable(f"the route from {source} to {target} breaks at the link {name}")
            hops.append((name, point, onward[0]))
            point = onward[0]
        return tuple(hops)

    def _tree(self, source: str) -> _Tree:
        """Dijkstra over (latency, -bandwidth, names of links)."""
        tree = self._trees.get(source)
        if tree is not None:
            return tree
        tree = self._trees[source] = _Tree()
        start: tuple[int, float, tuple[str, ...], str, str] = (0, -math.inf, (), source, "")
        heap = [start]
        while heap:
            latency, narrow, names, point, before = heapq.heappop(heap)
            if point in tree.latency:
                continue
            tree.latency[point], tree.bandwidth[point] = latency, -narrow
            if names:
                tree.hop[point] = (names[-1], before)
            for link in self._at.get(point, ()):
                if names and link.name == names[-1]:
                    continue  # back onto the medium that led here: never better
                reach = latency + _femtoseconds(link)
                width = max(narrow, -link.bandwidth)
                for end in link.ends:
                    if end not in tree.latency:
                        heapq.heappush(heap, (reach, width, (*names, link.name), end, point))
        return tree

    def _find_ports(self) -> dict[str, Port]:
        if not self.links and not self._explicit:
            return dict.fromkeys(self._devices, FREE)
        ports = dict.fromkeys(self._devices, ALONE)
        # Without explicit routes, both ways cost the same, and devices that can be exchanged have equal ports.
        for names in device_classes(self.topology):
            tree = self._tree(names[0])
            best = ALONE
            for target in self._devices:
                ways = {(names[0], target), (target, names[0])}
                if target != names[0] and target in tree.latency and not ways <= self._explicit.keys():
                    best = best.best(Port(tree.latency[target] / 1e15, tree.bandwidth[target]))
            ports |= dict.fromkeys(names, best)
        for source, target in self._explicit:
            path = self.path(source, target)
            for end in (source, target):
                ports[end] = ports[end].best(Port(path.latency, path.bandwidth))
        free = {type_.name for type_ in self.topology.types if type_.free_transfers}
        return {name: FREE if self._devices[name].type in free or port == ALONE else port for name, port in ports.items()}

    def busy(self, transfers: Iterable[tuple[str, str, int | float]]) -> dict[str, float]:
        """Seconds per sample that each shared or half-duplex link is occupied by ``transfers`` (source, target, bytes), by link
        name; the largest bounds the period of a stream from below.

        A ``shared`` link carries all that crosses it at once on one bandwidth, each direction of a full-duplex one with two
        ends on its own; a half-duplex link adds both directions. Other links limit one transfer at a time, which its route's
        bandwidth says already."""
        loads: dict[tuple[str, str], float] = {}
        for source, target, size in transfers:
            for name, entered, _ in self.path(source, target).hops:
                link = self.links[name]
                if not link.shared and link.duplex == "full":
                    continue
                one_way = link.duplex == "full" and len(link.ends) == 2
                key = (name, entered if one_way else "")
                loads[key] = loads.get(key, 0.0) + size / link.bandwidth
        seconds: dict[str, float] = {}
        for (name, _), load in loads.items():
            seconds[name] = max(seconds.get(name, 0.0), load)
        return {name: seconds[name] for name in sorted(seconds)}


def _femtoseconds(link: Link) -> int:
    return round(link.latency * 1e15)


def network(topology: Topology) -> Network:
    """The network of a topology, as an analysis."""
    return Network(topology)


def device_classes(topology: Topology) -> tuple[tuple[str, ...], ...]:
    """Devices in classes such that exchanging any two of one class changes nothing but names: same type, memory and host,
    and links alike under the exchange. Classes and their members in order of devices.

    So a search over assignments needs to try one device of a class for the first use of it. Devices that an explicit route
    names stand alone."""
    routed = {end for route in topology.routes for end in (route.source, route.target)}
    at: dict[str, list[Link]] = {device.name: [] for device in topology.devices}
    for link in topology.links:
        for end in set(link.ends):
            if end in at:
                at[end].append(link)
    classes: list[list[Device]] = []
    for device in topology.devices:
        for known in classes:
            if device.name not in routed and _exchangeable(device, known[0], at, routed):
                known.append(device)
                break
        else:
            classes.append([device])
    return tuple(tuple(device.name for device in known) for known in classes)


def _exchangeable(one: Device, other: Device, at: dict[str, list[Link]], routed: set[str]) -> bool:
    """Whether swapping the two names maps the links onto themselves (but for the links' names)."""
    if other.name in routed or replace(one, name=other.name) != other or len(at[one.name]) != len(at[other.name]):
        return False
    swap = {one.name: other.name, other.name: one.name}

    def shape(link: Link, ends: Iterable[str]) -> tuple[object, ...]:
        return (tuple(sorted(ends)), link.bandwidth, link.latency, link.duplex, link.shared)

    swapped = Counter(shape(link, (swap.get(end, end) for end in link.ends)) for link in at[one.name])
    return swapped == Counter(shape(link, link.ends) for link in at[other.name])


__all__ = ["FREE", "Network", "Path", "Port", "Unreachable", "device_classes", "network"]
