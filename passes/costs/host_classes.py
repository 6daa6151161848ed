"""Hosts in classes: exchanging two of one class, with their devices in order and the switches that only they have, changes
nothing but names.

A search needs to try one host of a class that nothing runs on yet. Two hosts of one class have the same links to every point
that is on neither of them: without the two themselves, their neighbours are the same. So a host is compared only with those of
equal neighbours (hosts that no link joins) or of equal neighbours once each counts as its own (hosts that a link joins), and
by their own links only. Time is linear in the ends of links, unless very many hosts have the same neighbours and differ in
which of their devices are wired to which.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import replace

from ir.core.topology import Device, Link, Topology

_FEW_ENDS = 16
"""Of a link whose ends count as neighbours; larger media are told apart by name, so hosts are alike only on the same ones."""


def host_classes(topology: Topology) -> dict[str, int]:
    """The class of each host, numbered in order of hosts. Explicit routes make every host its own class."""
    if topology.routes:
        return {host.name: number for number, host in enumerate(topology.hosts)}
    devices: dict[str, list[Device]] = {host.name: [] for host in topology.hosts}
    for device in topology.devices:
        devices[device.host].append(device)
    points = {name: (name, *(device.name for device in members)) for name, members in devices.items()}
    for name, switch in _own_switches(topology, points):
        points[name] = (*points[name], switch)
    home = {point: (name, place) for name, own in points.items() for place, point in enumerate(own)}
    places = _places(topology.links, home)
    leaders: list[str] = []
    alike: dict[Hashable, list[int]] = defaultdict(list)  # classes by what their leaders look like
    found: dict[str, int] = {}
    for host in topology.hosts:
        name, own = host.name, replace(host, name="", address="")
        kind = (own, len(points[name]), *(replace(device, name="", host="") for device in devices[name]))
        looks = _looks(name, kind, topology.links, places[name], home)
        candidates = sorted({number for look in looks for number in alike.get(look, ())})
        for number in candidates:
            if _exchangeable(name, leaders[number], topology.links, places, points):
                found[name] = number
                break
        else:
            found[name] = len(leaders)
            for look in looks:
                alike[look].append(len(leaders))
            leaders.append(name)
    return found


def _own_switches(topology: Topology, points: Mapping[str, Iterable[str]]) -> Iterator[tuple[str, str]]:
    """Each switch whose links lead to one host and its devices alone, behind that host."""
    home = {point: name for name, own in points.items() for point in own}
    ends: dict[str, set[str]] = {switch.name: set() for switch in topology.switches}
    for link in topology.links:
        for switch in ends.keys() & {*link.ends}:
            ends[switch].update(link.ends)
    for switch, found in ends.items():
        hosts = {home.get(end, "") for end in found - {switch}}
        if len(hosts) == 1 and (host := hosts.pop()):
            yield host, switch


def _places(links: Iterable[Link], home: dict[str, tuple[str, int]]) -> dict[str, dict[int, tuple[int, ...]]]:
    """Of each host the links at its points, by number, and at which: 0 is the host itself, then its devices in order, then its
    switches."""
    places: dict[str, dict[int, tuple[int, ...]]] = {name: {} for name, _ in home.values()}
    for number, link in enumerate(links):
        for name, place in sorted(home[end] for end in link.ends if end in home):
            places[name][number] = (*places[name].get(number, ()), place)
    return places


def _looks(
    name: str,
    kind: Hashable,
    links: tuple[Link, ...],
    places: dict[int, tuple[int, ...]],
    home: dict[str, tuple[str, int]],
) -> list[Hashable]:
    """What can be seen of a host of this ``kind`` without its name: hosts that are alike have one of their looks in common."""
    neighbours: set[Hashable] = set()
    for number in places:
        if len(links[number].ends) > _FEW_ENDS:
            neighbours.add(number)
        else:
            neighbours.update(home.get(end, (end,))[0] for end in links[number].ends)
    ports = frozenset(Counter((at, len(links[number].ends), _speed(links[number])) for number, at in places.items()).items())
    return [(kind, ports, frozenset(neighbours - {name})), (kind, ports, frozenset(neighbours | {name}))]


def _exchangeable(
    one: str,
    other: str,
    links: tuple[Link, ...],
    places: dict[str, dict[int, tuple[int, ...]]],
    points: dict[str, tuple[str, ...]],
) -> bool:
    """Whether the links are the same after the two hosts have changed places; links at the same places of both stay."""
    pairs = list(zip(points[one], points[other], strict=True))
    swap = dict(pairs) | {b: a for a, b in pairs}
    moved = [n for n in places[one].keys() | places[other].keys() if places[one].get(n) != places[other].get(n)]
    before = Counter((tuple(sorted(links[n].ends)), _speed(links[n])) for n in moved)
    after = Counter((tuple(sorted(swap.get(end, end) for end in links[n].ends)), _speed(links[n])) for n in moved)
    return before == after


def _speed(link: Link) -> Link:
    return replace(link, name="", ends=())
