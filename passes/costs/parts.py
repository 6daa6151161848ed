"""Parts of a topology that differ in names alone, and sets of devices that are worth a thought.

Hosts are exchangeable where swapping two of them, with their devices and the switches that only they have, changes nothing but
names; of the devices of a host those of one class are (``device_classes``).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ir.core.topology import Topology
from passes.costs.network import device_classes

Part = tuple[str, ...]
"""Names of devices, in the topology's order."""
Host = tuple[Part, ...]
"""The classes of the devices of a host."""


def exchangeable_hosts(topology: Topology) -> list[list[Host]]:
    """Groups of hosts that differ in names alone, in the order of devices."""
    classes = device_classes(topology)
    host_of = {device.name: device.host for device in topology.devices}
    by_host: dict[str, Host] = {}
    for names in classes:
        by_host[host_of[names[0]]] = (*by_host.get(host_of[names[0]], ()), names)
    groups: list[tuple[str, list[Host]]] = []
    for host, own in by_host.items():
        for first, alike in groups:
            if [len(names) for names in alike[0]] == [len(names) for names in own] and _alike(topology, first, host):
                alike.append(own)
                break
        else:
            groups.append((host, [own]))
    return [alike for _, alike in groups]


def _alike(topology: Topology, one: str, other: str) -> bool:
    """Whether exchanging two hosts, with their devices and the switches that only they have, changes nothing but names."""
    hosts = {host.name: host for host in topology.hosts}
    insides = [_inside(topology, host) for host in (one, other)]
    if len(insides[0]) != len(insides[1]):
        return False
    swap = dict(zip(insides[0], insides[1], strict=True)) | dict(zip(insides[1], insides[0], strict=True))
    devices = {device.name: (device.type, device.memory) for device in topology.devices}
    if any(devices.get(name) != devices.get(to) for name, to in swap.items()) or topology.routes:
        return False
    if replace(hosts[one], name="") != replace(hosts[other], name=""):
        return False

    touched = [link for link in topology.links if not swap.keys().isdisjoint(link.ends)]

    def wires(names: Mapping[str, str]) -> Counter[object]:
        return Counter(
            (frozenset(names.get(end, end) for end in link.ends), replace(link, name="", ends=())) for link in touched
        )

    return wires({}) == wires(swap)


def _inside(topology: Topology, host: str) -> list[str]:
    """A host, its devices, and the switches whose links lead to these alone."""
    own = {host, *(device.name for device in topology.devices if device.host == host)}
    switches = []
    for switch in topology.switches:
        ends = {end for link in topology.links if switch.name in link.ends for end in link.ends} - {switch.name}
        if ends and ends <= own:
            switches.append(switch.name)
    return [host, *(device.name for device in topology.devices if device.host == host), *switches]


MOST_COUNTS = 4
"""Numbers of hosts of one group that are looked at, beside none."""


def whole_parts(topology: Topology) -> Iterator[Part]:
    """Sets of devices in which all devices of a class that are on one host take part, or none; of hosts that are exchangeable
    the first ones. Of a large group some numbers of hosts alone: all, a half, a quarter, and so on."""
    order = {device.name: place for place, device in enumerate(topology.devices)}
    options = [_options(group) for group in exchangeable_hosts(topology)]
    for chosen in itertools.product(*options):
        names = list(itertools.chain(*chosen))
        if names:
            yield tuple(sorted(names, key=order.__getitem__))


def _options(group: Sequence[Host]) -> list[list[str]]:
    """Of hosts that are exchangeable: none, and the devices of some classes of the first ones."""
    found: list[list[str]] = [[]]
    count = len(group)
    for _ in range(MOST_COUNTS):
        if not count:
            break
        for size in range(1, len(group[0]) + 1):
            for classes in itertools.combinations(range(len(group[0])), size):
                found.append([name for host in group[:count] for number in classes for name in host[number]])
        count //= 2
    return found


__all__ = ["Host", "Part", "exchangeable_hosts", "whole_parts"]
