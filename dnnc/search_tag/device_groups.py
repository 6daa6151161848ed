"""Device groups: the equal devices of one host; seconds of transfers between two groups, and of collectives over several.

In a transfer from one group to another, all devices of the first send equal messages to all devices of the second at once. It
takes the latency of the longest route, at the bandwidth that the busiest link or shared medium (``passes.costs.network``)
leaves for its messages. It occupies the media of its routes, and other transfers wait for these; a link that is not shared is
occupied only by transfers of the same pair of groups."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

from dnnc.search_tag.faults import TooManyGroups
from ir.core.diagnostics import InvalidInput
from ir.core.topology import DeviceType, Topology
from passes.costs.exchange import Speed, rings
from passes.costs.network import Network, network

MOST = 8
"""Most device groups, since all their subsets are enumerated: 255 for 8."""


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """Equal devices of one host. ``memory``: bytes for tensors on each, None if unlimited."""

    devices: tuple[str, ...]
    type: DeviceType
    memory: int | None


@dataclass(frozen=True, slots=True)
class Channel:
    """Transfers from one device group to another: latency in seconds, bytes per second, and the media that a transfer
    occupies."""

    latency: float
    bandwidth: float
    media: tuple[str, ...]

    def seconds(self, size: float, times: int = 1) -> float:
        """Seconds of ``times`` transfers of ``size`` bytes, one after another."""
        return times * (self.latency + size / self.bandwidth)


@dataclass
class Machines:
    """The device groups of a topology, in the order of its devices. Raises InvalidInput for more than ``MOST``."""

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
        """Number of devices in these groups."""
        return sum(len(self.groups[number].devices) for number in groups)

    def devices(self, groups: tuple[int, ...]) -> tuple[str, ...]:
        """Names of the devices in these groups, in order."""
        return tuple(name for number in groups for name in self.groups[number].devices)

    def channel(self, source: int, target: int) -> Channel:
        """The channel between two groups, or between the devices of one. Raises Unreachable."""
        channel = self._channels.get((source, target))
        if channel is None:
            channel = self._channels[source, target] = self._channel(source, target)
        return channel

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
        """The media that a collective over these groups occupies: those of every transfer between them."""
        occupied = self._crossed.get(groups)
        if occupied is None:
            media = {name for a in groups for b in groups for name in self.channel(a, b).media}
            occupied = self._crossed[groups] = tuple(sorted(media))
        return occupied

    def ring(self, groups: tuple[int, ...]) -> Speed:
        """The ring for collectives over all devices of these groups."""
        ring = self._speeds.get(groups)
        if ring is None:
            ring = self._speeds[groups] = rings(self.net, [self.devices(groups)])
        return ring
