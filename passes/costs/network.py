"""The network between devices: which route a transfer takes, what it costs, what each device's port can do at best.

A route crosses links between points; it is the explicit one of the topology where there is one, else that of least latency,
then of greatest bottleneck bandwidth, then first by the names of its links. Its latency is the sum of its links', its
bandwidth the least of theirs. Latencies are compared in whole femtoseconds, so that no tie hangs on rounding. Devices
and hosts forward like switches do: what they forward costs them nothing here.

*Media.* What crosses a link at once shares its bandwidth. A link is one medium where it is half-duplex, or shared with more
than two ends (a bus); one for each direction where it has two ends; and one into and one out of each end where it has more and
is not shared (a crossbar). Of a link that is not shared, what is at the sender's or receiver's own end is its port, which the
model below counts; it is a medium where routes of others pass that device, too, and cross the link as well. A cable between two
devices is a medium. This is the one rule for what shares a link: collectives of a mesh, transfers between stages, placements
and the simulator all ask ``Path.media``.

*Port model* (the objective of ``partition``): a device pays ``latency + bytes / bandwidth`` of its port for each tensor that it
sends or receives. ``Port`` holds the least latency and the greatest bandwidth over all routes from and to the device, so no
route of it is faster: a bound that uses ports holds on the real links.

Seconds, bytes, bytes per second. Pure functions of the immutable topology; ``context.analyses.get(network, topology)`` keeps
it.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache

from ir.core.diagnostics import InvalidInput
from ir.core.limits import LIMITS
from ir.core.topology import Device, Link, Topology
from passes.costs.host_classes import host_classes
from passes.graph.faults import BrokenRoute, NoRoute, TooManyRoutes


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
    """A route with its cost. ``hops``: links in order, each with the point it is entered from and left to. ``media``: what
    other transfers may occupy at the same time, by name, with its bandwidth. ``start``, ``small``, ``switch``: of collectives
    over it (``exchange``), those of its links that slow them most, ``small`` 0 where no link states one."""

    source: str
    target: str
    hops: tuple[tuple[str, str, str], ...]
    latency: float
    bandwidth: float
    media: tuple[tuple[str, float], ...] = ()
    start: float = 0.0
    small: float = 0.0
    switch: float = 0.0

    @property
    def links(self) -> tuple[str, ...]:
        return tuple(link for link, _, _ in self.hops)

    def seconds(self, size: int | float) -> float:
        """Seconds of one transfer of ``size`` bytes while nothing else crosses the route."""
        return self.latency + size / self.bandwidth


class Unreachable(InvalidInput):
    """No route joins two devices that a transfer needs one between; topology files with such devices are refused."""


@dataclass(slots=True)
class _Tree:
    """Best routes from one point: per point its latency (femtoseconds), bandwidth, and the last hop. ``tied``: points to
    which another is as good, so that names of links decided."""

    latency: dict[str, int] = field(default_factory=dict)
    bandwidth: dict[str, float] = field(default_factory=dict)
    hop: dict[str, tuple[str, str]] = field(default_factory=dict)
    tied: set[str] = field(default_factory=set)


class Network:
    """Routes and ports of a topology. Routes are found when first asked for and kept."""

    def __init__(self, topology: Topology) -> None:
        self.topology = replace(topology)  # another object: a cache keeps this while that one lives (``AnalysisCache``)
        self.links: dict[str, Link] = {link.name: link for link in topology.links}
        self._names = sorted(self.links)
        numbers = {name: number for number, name in enumerate(self._names)}
        self._at: dict[str, list[tuple[int, int, float, tuple[str, ...]]]] = {}  # number, femtoseconds, bandwidth, ends
        for link in topology.links:
            for end in link.ends:
                told = numbers[link.name], _femtoseconds(link), link.bandwidth, link.ends
                self._at.setdefault(end, []).append(told)
        self._explicit = {(route.source, route.target): route.links for route in topology.routes}
        self._looked = 0
        self._trees: dict[str, _Tree] = {}
        self._paths: dict[tuple[str, str], Path] = {}
        self._ports: dict[str, Port] = {}
        self._alike: tuple[tuple[str, ...], ...] | None = None
        self._passed: frozenset[str] | None = None
        self._classes: dict[str, int] = {}
        self._places: dict[str, tuple[int, int]] = {}
        self._devices = {device.name: device for device in topology.devices}

    def path(self, source: str, target: str) -> Path:
        """The route from one device to another; from a device to itself: no links, no time. Raises Unreachable, KeyError."""
        found = self._paths.get((source, target))
        if found is None:
            found = self._paths[source, target] = self._find(source, target)
        return found

    def host(self, device: str) -> str:
        """The name of its host. Raises KeyError."""
        return self._devices[device].host

    def port(self, device: str) -> Port:
        """The best case over all routes from and to ``device``."""
        if not self._ports:
            self._ports = self._find_ports()
        return self._ports[device]

    def class_of(self, device: str) -> int:
        """The number of the class of a device among those that can be exchanged (``device_classes``)."""
        if not self._classes:
            self._classes = {name: number for number, names in enumerate(self.classes) for name in names}
        return self._classes[device]

    def is_named(self, source: str, target: str) -> bool:
        """Whether names of links decided which route is taken, rather than what routes cost."""
        tied = self._tree(source).tied
        return any(point in tied for _, _, point in self.path(source, target).hops)

    def place(self, device: str) -> tuple[int, int]:
        """The class of its host (``host_classes``), and the number of the device among those of the host."""
        if not self._places:
            numbers, classes = Counter[str](), host_classes(self.topology)
            for each in self.topology.devices:
                self._places[each.name] = classes[each.host], numbers[each.host]
                numbers[each.host] += 1
        return self._places[device]

    @property
    def classes(self) -> tuple[tuple[str, ...], ...]:
        """Of devices that can be exchanged."""
        if self._alike is None:
            self._alike = device_classes(self.topology)
        return self._alike

    @property
    def passed(self) -> frozenset[str]:
        """Devices that routes between others pass, or would if none were stated, and those that can be exchanged with them."""
        if self._passed is None:
            several = any(len(self._at.get(name, ())) > 1 for name in self._devices)
            # Of devices that can be exchanged the first is looked at; of others names of links may decide otherwise.
            found = {point for names in self.classes for point in self._between(names[0])} if several else set()
            for (source, target), links in self._explicit.items():
                with suppress(Unreachable):  # told where that route is asked for
                    found.update(point for _, point, _ in self._follow(source, target, links)[1:])
            self._passed = frozenset(name for names in self.classes if found.intersection(names) for name in names)
        return self._passed

    def _between(self, source: str) -> set[str]:
        """Points on the routes from one device to all others, but for both ends."""
        tree, found = self._tree(source), {source}
        for target in self._devices:
            point = target
            while point in tree.hop and (point := tree.hop[point][1]) not in found:
                found.add(point)
        return found - {source}

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
        media = tuple((name, self.links[hop[0]].bandwidth) for hop in hops for name in self._media(hop, source, target))
        small = min((link.small for link in links if link.small), default=0.0)
        start, switch = max(link.start for link in links), max(link.switch for link in links)
        return Path(source, target, hops, latency, min(link.bandwidth for link in links), media, start, small, switch)

    def _media(self, hop: tuple[str, str, str], source: str, target: str) -> tuple[str, ...]:
        """Media that a transfer between two devices occupies on a hop of its route."""
        name, entered, left = hop
        link = self.links[name]
        if link.duplex != "full" or (link.shared and len(link.ends) > 2):
            return (name,)
        into, out_of = f"{name} from {entered}", f"{name} to {left}"
        sends = entered == source and source not in self.passed  # by its port
        receives = left == target and target not in self.passed
        if len(link.ends) == 2:
            cable = entered in self._devices and left in self._devices
            return (into,) if link.shared or cable or not (sends or receives) else ()
        return (*(() if sends else (into,)), *(() if receives else (out_of,)))

    def _trace(self, source: str, target: str) -> tuple[tuple[str, str, str], ...]:
        tree = self._tree(source)
        hops: list[tuple[str, str, str]] = []
        point = target
        while point != source:
            if point not in tree.hop:
                raise Unreachable(NoRoute(source, target), where=self.topology.name)
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
                raise Unreachable(BrokenRoute(source, target, name), where=self.topology.name)
            hops.append((name, point, onward[0]))
            point = onward[0]
        return tuple(hops)

    def _look(self, points: int) -> None:
        """Counts points that are looked at. Raises InvalidInput where a topology has far more routes than any machine room."""
        self._looked += points
        if self._looked > LIMITS.route_steps:
            devices, links = len(self._devices), len(self.links)
            raise InvalidInput(TooManyRoutes(devices, links, LIMITS.route_steps), where=self.topology.name)

    def _tree(self, source: str) -> _Tree:
        """Dijkstra over (latency, -bandwidth, names of links), these by their place in order."""
        tree = self._trees.get(source)
        if tree is not None:
            return tree
        tree = self._trees[source] = _Tree()
        start: tuple[int, float, tuple[int, ...], str, str] = (0, -math.inf, (), source, "")
        heap, latencies = [start], tree.latency
        near: dict[str, tuple[int, float, tuple[int, ...]]] = {}  # the best way so far to points that are waited for
        while heap:
            latency, narrow, names, point, before = heapq.heappop(heap)
            if point in latencies:
                continue
            latencies[point], tree.bandwidth[point] = latency, -narrow
            if names:
                tree.hop[point] = (self._names[names[-1]], before)
            looked = len(names) // 64
            for name, delay, bandwidth, ends in self._at.get(point, ()):
                if names and name == names[-1]:
                    continue  # back onto the medium that led here: never better
                reach, width, along = latency + delay, max(narrow, -bandwidth), (*names, name)
                for end in ends:
                    if end in latencies:
                        tied = end not in (before, point) and (reach, -width) == (latencies[end], tree.bandwidth[end])
                    else:
                        looked += 1
                        way, known = (reach, width, along), near.get(end)
                        tied = known is not None and way[:2] == known[:2]
                        if known is None or way < known:
                            if known is not None and not tied:
                                tree.tied.discard(end)
                            near[end] = way
                            heapq.heappush(heap, (*way, end, point))
                    if tied:
                        tree.tied.add(end)
            self._look(looked)
        return tree

    def _find_ports(self) -> dict[str, Port]:
        if not self.links and not self._explicit:
            return dict.fromkeys(self._devices, FREE)
        ports = dict.fromkeys(self._devices, ALONE)
        # Without explicit routes, both ways cost the same, and devices that can be exchanged have equal ports.
        for names in self.classes:
            tree = self._tree(names[0])
            best = ALONE
            self._look(len(self._devices))
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
        """Seconds that each medium is occupied by ``transfers`` (source, target, bytes), by name: those of a microbatch bound
        the period of a stream from below."""
        seconds: dict[str, float] = {}
        for source, target, size in transfers:
            for name, bandwidth in self.path(source, target).media:
                seconds[name] = seconds.get(name, 0.0) + size / bandwidth
        return dict(sorted(seconds.items()))


def _femtoseconds(link: Link) -> int:
    return round(link.latency * 1e15)


@lru_cache(maxsize=2)
def network(topology: Topology) -> Network:
    """The network of a topology, as an analysis; asked for again, the same one with the routes found so far."""
    return Network(topology)


@lru_cache(maxsize=2)
def device_classes(topology: Topology) -> tuple[tuple[str, ...], ...]:
    """Devices in classes such that exchanging any two of one class changes nothing but names: same type, memory and host,
    and links alike under the exchange. Classes and their members in order of devices.

    So a search over assignments needs to try one device of a class for the first use of it. Devices that an explicit route
    names stand alone. Time is linear in the ends of links: devices are looked up by what their links look like."""
    routed = {end for route in topology.routes for end in (route.source, route.target)}
    at: dict[str, list[Link]] = {device.name: [] for device in topology.devices}
    for link in topology.links:
        for end in set(link.ends):
            if end in at:
                at[end].append(link)
    media: dict[frozenset[str], int] = {}
    numbers = {link.name: media.setdefault(frozenset(link.ends), len(media)) for link in topology.links if len(link.ends) > 2}
    classes: list[list[str]] = []
    known: dict[Hashable, list[str]] = {}
    for device in topology.devices:
        looks = [] if device.name in routed else _looks(device, at[device.name], numbers)
        joined = next((known[look] for look in looks if look in known), None)
        if joined is not None:
            joined.append(device.name)
            continue
        classes.append([device.name])
        known |= dict.fromkeys(looks, classes[-1])
    return tuple(map(tuple, classes))


def _looks(device: Device, links: Iterable[Link], numbers: Mapping[str, int]) -> list[Hashable]:
    """What can be seen of a device: two that have one look in common can be exchanged. ``numbers``: of the sets of ends of
    links with several.

    Links of one speed look alike from outside, where they lead to the same points and the two devices are not joined (*open*),
    or from inside, where the devices themselves are among these points (*closed*). Links of another speed may look
    the other way, so there is a look for each choice; of many speeds, all choose alike."""
    groups: dict[tuple[object, ...], list[Link]] = {}
    for link in links:
        groups.setdefault((replace(link, name="", ends=()), len(link.ends)), []).append(link)
    seen: list[tuple[Hashable, Hashable]] = []
    for speed, alike in sorted(groups.items(), key=lambda item: repr(item[0])):
        media = tuple(sorted(numbers[link.name] for link in alike if len(link.ends) > 2))
        points = [end for link in alike if len(link.ends) == 2 for end in link.ends if end != device.name]
        joined = max(Counter(points).values(), default=0)
        others: Hashable = media
        if media and len(alike[0].ends) <= _FEW_ENDS:
            others = tuple(sorted(tuple(sorted(end for end in link.ends if end != device.name)) for link in alike))
        opened = ("open", speed, tuple(sorted(points)), others)
        closed = ("closed", speed, tuple(sorted([*points, *[device.name] * joined])), media)
        seen.append((opened, closed))
    choices = itertools.product(*seen) if len(seen) <= _FEW_SPEEDS else zip(*seen, strict=True)
    same = (device.type, device.host, device.memory)
    return [(same, tuple(choice)) for choice in choices]


_FEW_ENDS = 16
"""Of a link whose ends but one are compared by name."""
_FEW_SPEEDS = 4
"""Of a device's links, for which every choice is looked at."""
