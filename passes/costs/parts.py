"""Parts of a topology that differ in names alone (``host_classes``; of the devices of a host ``device_classes``), and sets of
devices that are worth a thought."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from ir.core.topology import Device, Topology
from passes.costs.host_classes import host_classes
from passes.costs.network import Network, device_classes

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


def ordered(topology: Topology, net: Network) -> tuple[Device, ...]:
    """The devices host by host, fast ones first; only those that are alike stand as they are declared."""
    types = {type_.name: type_ for type_ in topology.types}

    def speed(device: Device) -> tuple[object, ...]:
        type_, port, memory = types[device.type], net.port(device.name), topology.memory(device)
        room = -math.inf if memory is None else -memory
        return (-max((rate for _, rate in type_.rates), default=0.0), room, -port.bandwidth, port.latency, device.type)

    by_host: dict[str, list[Device]] = {host.name: [] for host in topology.hosts}
    for device in topology.devices:
        by_host.setdefault(device.host, []).append(device)
    hosts = [sorted(own, key=speed) for own in by_host.values() if own]
    return tuple(itertools.chain(*sorted(hosts, key=lambda own: [speed(device) for device in own])))


MOST_SETS = 64
"""Sets of a number of devices that are looked at."""


def whole_parts(topology: Topology) -> Iterator[Part]:
    """Sets of devices in which all devices of a class that are on one host take part, or none; of hosts that are exchangeable
    the first ones. Of a large group some numbers of hosts alone: all, a half, a quarter, and so on."""
    order = {device.name: place for place, device in enumerate(topology.devices)}
    options = [_options(group) for group in exchangeable_hosts(topology)]
    for chosen in itertools.product(*options):
        names = list(itertools.chain(*chosen))
        if names:
            yield tuple(sorted(names, key=order.__getitem__))


def sets_of(topology: Topology, count: int) -> Iterator[Part]:
    """Sets of ``count`` devices, of those that differ in names alone the first; those on the fewest hosts first, ``MOST_SETS``
    at most. Of more hosts than a set needs each gives all or none, but for one of them, unless there are few sets."""
    order = {device.name: place for place, device in enumerate(topology.devices)}
    groups = exchangeable_hosts(topology)
    every = list(itertools.islice(_taken(groups, 0, None, count), MOST_SETS + 1))
    if len(every) > MOST_SETS:
        every = list(itertools.islice(_compact(groups, count), MOST_SETS))
    for hosts in sorted(every, key=len):
        yield tuple(sorted(itertools.chain(*hosts), key=order.__getitem__))


def _taken(
    groups: Sequence[Sequence[Host]], number: int, last: tuple[int, ...] | None, left: int
) -> Iterator[tuple[list[str], ...]]:
    """Devices by host, of the hosts from ``number`` on, counted through all groups; of a group no host gives more, by class,
    than the one before it, which gives ``last`` (None: it is of another group)."""
    flat = [(group, host) for group, hosts in enumerate(groups) for host in hosts]
    if not left or number == len(flat):
        if not left:
            yield ()
        return
    if sum(len(names) for _, host in flat[number:] for names in host) < left:
        return
    group, host = flat[number]
    same = number + 1 < len(flat) and flat[number + 1][0] == group
    for counts in itertools.product(*(range(len(names), -1, -1) for names in host)):
        if sum(counts) > left or (last is not None and counts > last):
            continue
        own = [name for names, some in zip(host, counts, strict=True) for name in names[:some]]
        for others in _taken(groups, number + 1, counts if same else None, left - len(own)):
            yield (own, *others) if own else others


def _compact(groups: Sequence[Sequence[Host]], count: int) -> Iterator[tuple[list[str], ...]]:
    """Devices by host: some whole hosts, and the first devices of one more."""
    for numbers in itertools.product(*(range(len(group), -1, -1) for group in groups)):
        hosts = [list(itertools.chain(*host)) for group, some in zip(groups, numbers, strict=True) for host in group[:some]]
        left = count - sum(map(len, hosts))
        if left == 0:
            yield tuple(hosts)
        for group, some in zip(groups, numbers, strict=True):
            if left > 0 and some < len(group) and sum(map(len, group[some])) > left:
                yield (*hosts, list(itertools.chain(*group[some]))[:left])


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
