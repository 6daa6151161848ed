"""Merges several topologies into one: the hosts of all, joined by links between hosts.

Invariant: each topology keeps its devices and links, up to names. A name that occurs in several topologies gets the name of its
topology in front (``b.cpu0``) in each of them. Device types of one name that are equal become one type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from dnnc.machines.faults import HostsApart, LinkWithinHost, NotALink, UnknownHostOfLink, WrongLinkAmount
from dnnc.machines.topology.faults import NoBandwidth
from dnnc.machines.topology.quantities import Quantity, parse_quantity
from ir.core.diagnostics import InvalidInput, UsageError
from ir.core.topology import DeviceType, Link, Topology


@dataclass(frozen=True, slots=True)
class HostLink:
    """A link between two hosts or switches. An end is their name, or the name of a topology with one host."""

    ends: tuple[str, str]
    bandwidth: float
    latency: float


@dataclass(frozen=True, slots=True)
class Merged:
    """``renamed``: file, old name and new name, in order; ``joined``: types that are equal in several topologies."""

    topology: Topology
    renamed: tuple[tuple[str, str, str], ...]
    joined: tuple[str, ...]


def parse_link(text: str) -> HostLink:
    """``a-b=10GB/s,50us``; names with a ``-`` are joined by ``--``. Raises UsageError."""
    ends, equals, speed = text.partition("=")
    left, dashes, right = ends.partition("--") if "--" in ends else ends.partition("-")
    bandwidth, comma, latency = speed.partition(",")
    if not (equals and dashes and left and right and comma) or ("--" not in ends and ends.count("-") > 1):
        raise UsageError(NotALink(text), where="--link")
    try:
        link = HostLink((left, right), parse_quantity(bandwidth, Quantity.BANDWIDTH), parse_quantity(latency, Quantity.TIME))
    except ValueError as error:
        raise UsageError(WrongLinkAmount(str(error)), where=f"--link {ends}") from None
    if link.bandwidth <= 0:
        raise UsageError(NoBandwidth(), where=f"--link {ends}")
    return link


def merged(name: str, topologies: Sequence[tuple[str, Topology]], links: Sequence[HostLink]) -> Merged:
    """The merged topology, called ``name``. ``topologies``: each with a name of its own. Raises UsageError for a link between
    unknown hosts, InvalidInput if no links join one topology to another."""
    types, type_names, joined = _types(topologies)
    points = _new_names(topologies, _points)
    wires = _new_names(topologies, lambda t: [link.name for link in t.links])
    parts = [
        _renamed(topology, points[place], wires[place], type_names[place]) for place, (_, topology) in enumerate(topologies)
    ]
    between = _between(links, topologies, parts, {link.name for part in parts for link in part.links})
    changed = [
        (file, old, new)
        for place, (file, _) in enumerate(topologies)
        for names in (points[place], wires[place], type_names[place])
        for old, new in names.items()
        if old != new
    ]
    whole = Topology(
        f"@{name}",
        types,
        tuple(host for part in parts for host in part.hosts),
        tuple(device for part in parts for device in part.devices),
        tuple(switch for part in parts for switch in part.switches),
        (*(link for part in parts for link in part.links), *between),
        tuple(route for part in parts for route in part.routes),
    )
    _require_ways(whole, topologies, parts)
    return Merged(whole, tuple(changed), joined)


def _points(topology: Topology) -> list[str]:
    names = [host.name for host in topology.hosts] + [device.name for device in topology.devices]
    return names + [switch.name for switch in topology.switches]


def _types(
    topologies: Sequence[tuple[str, Topology]],
) -> tuple[tuple[DeviceType, ...], list[dict[str, str]], tuple[str, ...]]:
    """All types, the new names of each topology's types, and the names of types that are equal in several."""
    by_name: dict[str, list[DeviceType]] = {}
    for _, topology in topologies:
        for type_ in topology.types:
            by_name.setdefault(type_.name, []).append(type_)
    alike = {name for name, types in by_name.items() if len(set(types)) == 1}
    names: list[dict[str, str]] = []
    merged_types: dict[str, DeviceType] = {}
    taken = set(alike)
    for file, topology in topologies:
        own = {
            type_.name: type_.name if type_.name in alike else _free(f"{file}.{type_.name}", taken) for type_ in topology.types
        }
        names.append(own)
        merged_types |= {own[type_.name]: replace(type_, name=own[type_.name]) for type_ in topology.types}
    return (
        tuple(merged_types.values()),
        names,
        tuple(name for name, types in by_name.items() if name in alike and len(types) > 1),
    )


def _new_names(
    topologies: Sequence[tuple[str, Topology]], names_of: Callable[[Topology], Sequence[str]]
) -> list[dict[str, str]]:
    """The new names of each topology: a name that occurs in several gets the file's name in front."""
    every = [names_of(topology) for _, topology in topologies]
    often = Counter(name for names in every for name in names)
    taken = {name for name, count in often.items() if count == 1}
    return [
        {name: name if often[name] == 1 else _free(f"{file}.{name}", taken) for name in names}
        for (file, _), names in zip(topologies, every, strict=True)
    ]


def _free(name: str, taken: set[str]) -> str:
    """The name, with underscores appended until it is new."""
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def _renamed(topology: Topology, points: Mapping[str, str], wires: Mapping[str, str], types: Mapping[str, str]) -> Topology:
    def link(old: Link) -> Link:
        return replace(old, name=wires[old.name], ends=tuple(points[end] for end in old.ends))

    return replace(
        topology,
        hosts=tuple(replace(host, name=points[host.name]) for host in topology.hosts),
        devices=tuple(
            replace(device, name=points[device.name], type=types[device.type], host=points[device.host])
            for device in topology.devices
        ),
        switches=tuple(replace(switch, name=points[switch.name]) for switch in topology.switches),
        links=tuple(map(link, topology.links)),
        routes=tuple(
            replace(
                route,
                source=points[route.source],
                target=points[route.target],
                links=tuple(wires[name] for name in route.links),
            )
            for route in topology.routes
        ),
    )


def _between(
    links: Sequence[HostLink],
    topologies: Sequence[tuple[str, Topology]],
    parts: Sequence[Topology],
    taken: set[str],
) -> list[Link]:
    """The links between hosts. Each joins one network card to another, so concurrent transfers share its bandwidth."""
    known: dict[str, tuple[str, ...]] = {switch.name: (switch.name,) for part in parts for switch in part.switches}
    known |= {host.name: _entrance(part, host.name) for part in parts for host in part.hosts}
    for (file, _), part in zip(topologies, parts, strict=True):
        if len(part.hosts) == 1:
            known.setdefault(file, known[part.hosts[0].name])
    between = []
    for link in links:
        for end in link.ends:
            if end not in known:
                raise UsageError(UnknownHostOfLink(end, tuple(sorted(known))), where=f"--link {'-'.join(link.ends)}")
        left, right = known[link.ends[0]], known[link.ends[1]]
        if left == right:
            raise UsageError(LinkWithinHost(link.ends[0]), where=f"--link {'-'.join(link.ends)}")
        between.append(Link(_free("-".join(link.ends), taken), (*left, *right), link.bandwidth, link.latency, shared=True))
    return between


def _entrance(topology: Topology, host: str) -> tuple[str, ...]:
    """The points at which a network reaches the devices of a host: the host, if it has links; else a switch that links all its
    devices and no others; else each device."""
    devices = [device.name for device in topology.devices if device.host == host]
    if any(host in link.ends for link in topology.links):
        return (host,)
    for switch in topology.switches:
        linked = {end for link in topology.links if switch.name in link.ends for end in link.ends}
        if linked.issuperset(devices) and all(not linked & {d.name} for d in topology.devices if d.host != host):
            return (switch.name,)
    return tuple(devices) or (host,)


def _require_ways(whole: Topology, topologies: Sequence[tuple[str, Topology]], parts: Sequence[Topology]) -> None:
    """Raises InvalidInput if no links lead from the first topology to a device of another."""
    reached = _reached(whole.links, parts[0].devices[0].name)
    for (file, _), part in zip(topologies, parts, strict=True):
        for device in part.devices:
            if device.name not in reached:
                apart = HostsApart(parts[0].devices[0].name, device.name, topologies[0][0], file)
                raise InvalidInput(apart, where=file)


def _reached(links: Iterable[Link], start: str) -> set[str]:
    at: dict[str, list[str]] = {}
    for link in links:
        for end in link.ends:
            at.setdefault(end, []).extend(link.ends)
    reached, left = {start}, [start]
    while left:
        new = [end for end in at.get(left.pop(), ()) if end not in reached]
        reached |= set(new)
        left += new
    return reached
