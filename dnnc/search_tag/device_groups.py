"""Device groups: the equal devices of one host, what a transfer between two groups takes, and a sum over several groups.

A transfer from one group to another is sent by all devices of the first to all of the second at once, in equal messages. It
takes the latency of the longest route, and is as fast as the busiest link or shared medium (``passes.model.network``) lets its
messages pass. While it lasts it occupies the media of its routes, which other transfers wait for: a link that is not shared is
occupied by the transfers of one pair of groups alone.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

from dnnc.search_tag.faults import TooManyGroups
from ir.core.diagnostics import InvalidInput
from ir.core.topology import DeviceType, Topology
from passes.model.exchange import Speed, rings
from passes.model.network import Network, network

MOST = 8
"""Device groups whose subsets are enumerated: 255 subsets."""


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """Equal devices of one host. ``memory``: bytes of each for tensors, None where unlimited."""

    devices: tuple[str, ...]
    type: DeviceType
    memory: int | None


@dataclass(frozen=True, slots=True)
class Channel:
    """From one device group to another: seconds, bytes per second, and the names of what no other transfer can use
    meanwhile."""

    latency: float
    bandwidth: float
    media: tuple[str, ...]

    def seconds(self, size: float, times: int = 1) -> float:
        """Of so many transfers of ``size`` bytes, one after another."""
        return times * (self.latency + size / self.bandwidth)


@dataclass
class Machines:
    """The device groups of a topology, in its order. Raises InvalidInput for more than ``MOST``."""

    topology: Topology
    _channels: dict[tuple[int, int], Channel] = field(default_factory=dict)
    _speeds: dict[tuple[int, ...], Speed] = field(default_factory=dict)
    _crossed: dict[tuple[int, ...], tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.groups) > MOST:
            raise InvalidInput(TooManyGroups(len(self.groups), MOST), where=self.topology.name)

    @cached_property
    def net(self) -> Network:
        return network(self.topology)

    @cached_property
    def groups(self) -> tuple[DeviceGroup, ...]:
        alike: dict[tuple[str, str, int | None], list[str]] = {}
        for device in self.topology.devices:
            alike.setdefault((device.host, device.type, self.topology.memory(device)), []).append(device.name)
        return tuple(DeviceGroup(tuple(names), self.topology.type(key[1]), key[2]) for key, names in alike.items())

    def count(self, groups: tuple[int, ...]) -> int:
        """Devices of these groups."""
        return sum(len(self.groups[number].devices) for number in groups)

    def devices(self, groups: tuple[int, ...]) -> tuple[str, ...]:
        """Their names, in order."""
        return tuple(name for number in groups for name in self.groups[number].devices)

    def channel(self, source: int, target: int) -> Channel:
        """Between two groups, or the devices of one. Raises Unreachable."""
        found = self._channels.get((source, target))
        if found is None:
            found = self._channels[source, target] = self._channel(source, target)
        return found

    def _channel(self, source: int, target: int) -> Channel:
        pairs = [(a, b) for a in self.groups[source].devices for b in self.groups[target].devices if a != b]
        own = f"inside {source}" if source == target else f"{source} to {target}"
        if not pairs:
            return Channel(0.0, float("inf"), (own,))
        paths = [self.net.path(a, b) for a, b in pairs]
        hops = Counter(hop for path in paths for hop in path.hops)
        media = Counter(medium for path in paths for medium in path.media)
        busy = [count / self.net.links[hop[0]].bandwidth for hop, count in hops.items()]
        busy += [count / bandwidth for (_, bandwidth), count in media.items()]
        slowest = max(busy, default=0.0) / len(paths)
        start = max((self.net.links[name].start for path in paths for name in path.links), default=0.0)
        return Channel(
            max(path.latency for path in paths) + start,
            1 / slowest if slowest else float("inf"),
            tuple(sorted({name for name, _ in media})) or (own,),
        )

    def crossed(self, groups: tuple[int, ...]) -> tuple[str, ...]:
        """What a collective over all devices of these groups occupies: the media of every transfer between them."""
        found = self._crossed.get(groups)
        if found is None:
            media = {name for a in groups for b in groups for name in self.channel(a, b).media}
            found = self._crossed[groups] = tuple(sorted(media))
        return found

    def ring(self, groups: tuple[int, ...]) -> Speed:
        """Of collectives over all devices of these groups."""
        found = self._speeds.get(groups)
        if found is None:
            found = self._speeds[groups] = rings(self.net, [self.devices(groups)])
        return found


__all__ = ["MOST", "Channel", "DeviceGroup", "Machines"]
