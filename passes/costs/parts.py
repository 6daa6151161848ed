"""Parts of a topology that differ in names alone (``host_classes``; of the devices of a host ``device_classes``), and sets of
devices that are worth a thought."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from ir.core.topology import Topology
from passes.costs.host_classes import host_classes
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
    number, groups = host_classes(topology), dict[int, list[Host]]()
    for host, own in by_host.items():
        groups.setdefault(number[host], []).append(own)
    return list(groups.values())


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
