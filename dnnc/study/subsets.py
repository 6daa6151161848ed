"""Subsets of a topology's devices up to symmetry, and topologies with copies of a device.

*Up to symmetry*: two subsets count as one if one becomes the other by exchanging devices of a class (``device_classes``), or
whole hosts that differ in names only (``passes.costs.parts``). A device is removed with its links, as if the machine were
switched off.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from dnnc.study.faults import TypeNotInTopology
from ir.core.diagnostics import UsageError
from ir.core.topology import Device, Link, Topology
from passes.costs.network import Unreachable, network
from passes.costs.parts import Host, Part, exchangeable_hosts


def parts(topology: Topology) -> Iterator[Part]:
    """Every connected set of devices, up to symmetry, fewest devices first."""
    groups = exchangeable_hosts(topology)
    order = {device.name: place for place, device in enumerate(topology.devices)}
    for size in range(1, len(topology.devices) + 1):
        for chosen in _chosen(groups, size):
            part = tuple(sorted(chosen, key=order.__getitem__))
            if connected(restricted(topology, part)):
                yield part


def _chosen(groups: Sequence[Sequence[Host]], size: int) -> Iterator[list[str]]:
    """Every choice of ``size`` devices: the first ones of each class. Of equal hosts, the tuple of counts of each is at most
    that of the host before it."""
    hosts = [(host, number > 0) for group in groups for number, host in enumerate(group)]
    room = [sum(len(names) for host, _ in hosts[at:] for names in host) for at in range(len(hosts) + 1)]

    def take(at: int, left: int, before: tuple[int, ...]) -> Iterator[list[str]]:
        if at == len(hosts):
            yield []
            return
        host, bounded = hosts[at]
        for counts in _counts([len(names) for names in host], left, room[at + 1], before if bounded else ()):
            own = [name for names, count in zip(host, counts, strict=True) for name in names[:count]]
            for more in take(at + 1, left - len(own), counts):
                yield [*own, *more]

    return take(0, size, ())


def _counts(sizes: Sequence[int], left: int, elsewhere: int, most: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Tuples of counts up to ``sizes``, largest first, whose sum is ``left`` or at most ``elsewhere`` less; at most ``most``,
    if given."""
    if not sizes:
        if left <= elsewhere:
            yield ()
        return
    top = min(sizes[0], left, most[0] if most else left)
    for count in range(top, -1, -1):
        if left - count > elsewhere + sum(sizes[1:]):
            return
        below = most[1:] if most and count == most[0] else ()
        for others in _counts(sizes[1:], left - count, elsewhere, below):
            yield (count, *others)


def restricted(topology: Topology, part: Collection[str]) -> Topology:
    """The topology with only the devices of ``part``, without links and switches that lead only to others. A bus remains one
    medium, also with two ends."""
    gone = {device.name for device in topology.devices} - set(part)
    devices = tuple(device for device in topology.devices if device.name not in gone)
    links = []
    for link in topology.links:
        ends = tuple(end for end in link.ends if end not in gone)
        if ends == link.ends or len(ends) > 1:
            bus = link.shared and len(link.ends) > 2
            links.append(replace(link, ends=ends, duplex="half" if bus and len(ends) == 2 else link.duplex))
    names = {link.name for link in links}
    used = {device.type for device in devices}
    return replace(
        topology,
        types=tuple(type_ for type_ in topology.types if type_.name in used),
        devices=devices,
        links=tuple(links),
        routes=tuple(r for r in topology.routes if not {r.source, r.target} & gone and names.issuperset(r.links)),
    )


def connected(topology: Topology) -> bool:
    """Whether every device reaches every other."""
    routes = network(topology)
    first, *others = (device.name for device in topology.devices)
    try:
        for other in others:
            routes.path(first, other)
            routes.path(other, first)
    except Unreachable:
        return False
    return True


def with_more(topology: Topology, type_: str, count: int) -> tuple[Topology, Part]:
    """The topology with ``count`` copies of the last device of a type, on the same host and with equal links; and the names of
    the new devices. Raises UsageError for a type without devices."""
    alike = [device for device in topology.devices if device.type == type_]
    if not alike:
        raise UsageError(TypeNotInTopology(type_, tuple(sorted({device.type for device in topology.devices}))))
    added: list[str] = []
    for _ in range(count):
        topology, name = _with_copy(topology, alike[-1])
        added.append(name)
    return topology, tuple(added)


def _with_copy(topology: Topology, device: Device) -> tuple[Topology, str]:
    points = {each.name for each in topology.devices} | {each.name for each in topology.hosts}
    name = _next_name(device.name, points | {each.name for each in topology.switches})
    names = {link.name for link in topology.links}
    links: list[Link] = []
    for link in topology.links:
        if device.name not in link.ends:
            links.append(link)
        elif len(link.ends) > 2:
            links.append(replace(link, ends=(*link.ends, name)))
        else:
            ends = tuple(name if end == device.name else end for end in link.ends)
            made = _next_name(link.name.replace(device.name, name), names)
            names.add(made)
            links += [link, replace(link, name=made, ends=ends)]
    places = [place for place, each in enumerate(topology.devices) if each.host == device.host]
    at = places[-1] + 1  # next to the devices of its host: meshes use neighbours
    copy = replace(device, name=name, device_id=None)
    devices = (*topology.devices[:at], copy, *topology.devices[at:])
    return replace(topology, devices=devices, links=tuple(links)), name


def _next_name(name: str, taken: Collection[str]) -> str:
    """The name itself if it is free, else with the next free number at its end."""
    if name not in taken:
        return name
    numbered = re.fullmatch(r"(.*?)(\d{0,9})", name, re.DOTALL)
    assert numbered is not None
    number = int(numbered[2] or 0) + 1
    while f"{numbered[1]}{number}" in taken:
        number += 1
    return f"{numbered[1]}{number}"
