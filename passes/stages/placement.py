"""The placement problem as numbers: which device runs which stage, and what that costs.

Stages exchange messages over channels. A stage on a device costs its compute there and the seconds of its messages on the
routes to the other devices; sending one tensor to several stages costs its bytes for each and the latency once. A link that
transfers share is busy for the bytes of all that crosses it. The value of a placement is the largest of these loads, a
replicated stage counting for each r-th message, or, where replicas have unlike numbers of turns, or of a decoder's groups, each
replica for those that it has.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from ir.core.topology import Topology
from ir.ops.rows import by_turn
from passes.costs.network import Network
from passes.stages.load import load as combined
from passes.stages.load import served_load

Placement: TypeAlias = tuple[tuple[int, ...], ...]
"""Devices of each stage, as positions in the topology; one each, more when the stage is replicated."""


@dataclass(frozen=True, slots=True)
class Message:
    """What a channel carries: ``tensor`` from stage ``source`` to stage ``target``, ``size`` bytes. ``stated``: seconds at each
    end whatever the route, for workloads that state them. ``times``: how often it crosses for each microbatch: twice where its
    gradient comes back."""

    tensor: str
    source: int
    target: int
    size: int
    stated: float | None = None
    times: int = 1


@dataclass(frozen=True, eq=False)
class PlacementProblem:
    """``compute[stage][device]``: seconds, inf where the stage may not run or does not fit; ``fixed[stage]``: given devices,
    else empty; ``replicas[stage]``: how many devices it wants; ``comm``: how compute and transfers of a device add up.
    ``serving[stage]``: the replica that has each turn, or serves each group of sequences, a message being a step of one of
    them; empty where each replica of every stage has one turn."""

    topology: Topology
    network: Network
    comm: str
    compute: tuple[tuple[float, ...], ...]
    messages: tuple[Message, ...]
    fixed: Placement
    replicas: tuple[int, ...]
    serving: tuple[tuple[int, ...], ...] = ()

    @property
    def size(self) -> int:
        return len(self.compute)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(device.name for device in self.topology.devices)

    @cached_property
    def free(self) -> tuple[bool, ...]:
        """Whether each device pays nothing for its own transfers."""
        types = {type_.name: type_.free_transfers for type_ in self.topology.types}
        return tuple(types[device.type] for device in self.topology.devices)

    @cached_property
    def received(self) -> tuple[tuple[int, ...], ...]:
        """Channels into each stage."""
        return tuple(tuple(c for c, m in enumerate(self.messages) if m.target == stage) for stage in range(self.size))

    @cached_property
    def sent(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Channels out of each stage, those of one tensor together."""
        groups: list[dict[str, list[int]]] = [{} for _ in range(self.size)]
        for channel, message in enumerate(self.messages):
            groups[message.source].setdefault(message.tensor, []).append(channel)
        return tuple(tuple(tuple(channels) for channels in by_tensor.values()) for by_tensor in groups)

    def candidates(self, stage: int) -> list[int]:
        """Devices that the stage may run on."""
        return [device for device, seconds in enumerate(self.compute[stage]) if math.isfinite(seconds)]

    def send_seconds(self, channels: Sequence[int], source: int, targets: Sequence[int]) -> list[float]:
        """Seconds that device ``source`` spends on one message on each of ``channels``, which carry one tensor to ``targets``:
        the bytes for each, the latency (the longest) once, with the first; stated seconds once too."""
        if self.free[source] or all(target == source for target in targets):
            return [0.0] * len(channels)
        message = self.messages[channels[0]]
        if message.stated is not None:
            return [message.stated, *(0.0 for _ in channels[1:])]
        paths = [self.network.path(self.names[source], self.names[target]) for target in targets]
        seconds = [message.times * message.size / path.bandwidth for path in paths]
        return [message.times * max(path.latency for path in paths) + seconds[0], *seconds[1:]]

    def receive_seconds(self, channel: int, source: int, target: int) -> float:
        """Seconds that device ``target`` spends on one message of ``channel`` from device ``source``."""
        message = self.messages[channel]
        if self.free[target] or source == target:
            return 0.0
        if message.stated is not None:
            return message.stated
        return message.times * self.network.seconds(self.names[source], self.names[target], message.size)

    def port_seconds(self, channel: int, device: int, times: int = 1) -> float:
        """The least that ``device`` can spend on a message of ``channel``, with its bytes sent ``times`` times."""
        message = self.messages[channel]
        if self.free[device]:
            return 0.0
        if message.stated is not None:
            return message.stated
        return message.times * self.network.port(self.names[device]).seconds(times * message.size)

    def media(self, channel: int, source: int, target: int) -> tuple[tuple[str, float], ...]:
        """Media on the route, each with the seconds that one message occupies it (``Path.media``)."""
        message = self.messages[channel]
        if message.stated is not None:
            return ()
        known = self._media.get((channel, source, target))
        if known is None:
            path = self.network.path(self.names[source], self.names[target])
            known = tuple((name, message.times * message.size / bandwidth) for name, bandwidth in path.media)
            self._media[channel, source, target] = known
        return known

    @cached_property
    def _media(self) -> dict[tuple[int, int, int], tuple[tuple[str, float], ...]]:
        """What ``media`` has found so far: a search asks for the same routes again and again."""
        return {}

    def pairs(self, message: Message, chosen: Placement) -> list[tuple[int, int]]:
        """Devices between which the messages go, one after another, until it begins anew."""
        return turns(*(by_turn(chosen[end], self.turns(end)) for end in (message.source, message.target)))

    def turns(self, stage: int) -> tuple[int, ...]:
        """The replica that has each turn of a stage; empty where each has one."""
        return self.serving[stage] if self.serving else ()

    def steps(self, stage: int, chosen: Placement) -> list[float]:
        """Seconds of a message of the stage on each of its devices, over its slowest routes."""
        own = chosen[stage]
        receive, send = dict.fromkeys(own, 0.0), dict.fromkeys(own, 0.0)
        for channel in self.received[stage]:
            slowest: dict[int, float] = {}
            for source, target in self.pairs(self.messages[channel], chosen):
                slowest[target] = max(slowest.get(target, 0.0), self.receive_seconds(channel, source, target))
            for device, seconds in slowest.items():
                receive[device] += seconds
        for channels in self.sent[stage]:
            for device, row in dict(zip(own, self.slowest_sends(channels, chosen), strict=True)).items():
                send[device] += math.fsum(row)
        return [combined(self.comm, self.compute[stage][device], receive[device], send[device]) for device in own]

    def round_trip(self, chosen: Placement) -> float:
        """Seconds of a group of sequences through all stages, each on its slowest replica: from a token of a sequence to the
        next, where no other group is in its way."""
        return math.fsum(max(self.steps(stage, chosen)) for stage in range(self.size))

    def parts(self, stage: int, chosen: Placement) -> tuple[float, float, float]:
        """Compute, receive and send seconds per message of the stage on its slowest device, over its slowest routes."""
        receive = send = 0.0
        for channel in self.received[stage]:
            receive += max(self.receive_seconds(channel, a, b) for a, b in self.pairs(self.messages[channel], chosen))
        for channels in self.sent[stage]:
            send += max(math.fsum(row) for row in self.slowest_sends(channels, chosen))
        return max(self.compute[stage][device] for device in chosen[stage]), receive, send

    def slowest_sends(self, channels: Sequence[int], chosen: Placement) -> list[list[float]]:
        """``send_seconds`` of each replica of the sender, to the slowest of the replicas that it has ``turns`` with."""
        readers: list[dict[int, dict[int, None]]] = []  # of each channel the devices that each source sends to
        for channel in channels:
            targets: dict[int, dict[int, None]] = {}
            for source, target in self.pairs(self.messages[channel], chosen):
                targets.setdefault(source, {})[target] = None
            readers.append(targets)
        rows = []
        for source in chosen[self.messages[channels[0]].source]:
            slowest = [max(of[source], key=lambda there: self.send_seconds(channels[:1], source, (there,))) for of in readers]
            rows.append(self.send_seconds(channels, source, slowest))
        return rows

    def loads(self, chosen: Placement) -> list[float]:
        """Seconds per sample of each stage's devices, with all that these run."""
        if self.serving:
            return [served_load(self.steps(stage, chosen), self.serving[stage]) for stage in range(self.size)]
        return shared_loads(self.comm, [self.parts(stage, chosen) for stage in range(self.size)], chosen)

    def busy(self, chosen: Placement) -> dict[str, float]:
        """Seconds per sample that each medium is occupied; replicas take the samples in turn."""
        total: dict[str, float] = defaultdict(float)
        for channel, message in enumerate(self.messages):
            pairs = self.pairs(message, chosen)
            for a, b in pairs:
                for name, seconds in self.media(channel, a, b):
                    total[name] += seconds / len(pairs)
        return dict(total)

    def latency(self, chosen: Placement, ports: bool = False) -> float:
        """Seconds of one sample alone: stages in order, each when its devices are free and all it reads is ready; it receives,
        computes and sends, each tensor once (to its slowest reader), and what it makes is ready at its end. What passes
        within a device goes through its port, and so does all with ``ports``: then no route makes a difference."""
        ready: list[float] = []
        free: dict[int, float] = {}
        for stage, devices in enumerate(chosen):
            makers = [self.messages[channel].source for channel in self.received[stage]]
            start = max((*(ready[source] for source in makers), *(free.get(d, 0.0) for d in devices)), default=0.0)
            needed = 0.0
            for here in devices:
                arriving = zip(self.received[stage], makers, strict=True)
                receive = math.fsum(max(self._moved(c, here, d, ports) for d in chosen[source]) for c, source in arriving)
                send = math.fsum(
                    max(self._moved(c, here, d, ports) for c in channels for d in chosen[self.messages[c].target])
                    for channels in self.sent[stage]
                )
                needed = max(needed, receive + self.compute[stage][here] + send)
            ready.append(start + needed)
            free.update(dict.fromkeys(devices, start + needed))
        return max(ready, default=0.0)

    def _moved(self, channel: int, here: int, there: int, ports: bool) -> float:
        """Seconds of device ``here`` for a message of ``channel`` from or to ``there``, or at its best with ``ports``."""
        message = self.messages[channel]
        if ports or here == there or self.free[here] or message.stated is not None:
            return self.port_seconds(channel, here)
        return self.network.seconds(self.names[here], self.names[there], message.size)

    def value(self, chosen: Placement) -> float:
        """Seconds per sample in the steady state: the largest load of a device or medium."""
        return max((*self.loads(chosen), *self.busy(chosen).values()), default=0.0)

    def transfers(self, chosen: Placement) -> float:
        """Seconds of all transfers: what decides between placements of one value."""
        return math.fsum(sum(self.parts(stage, chosen)[1:]) for stage in range(self.size))

    def least(self, stage: int, device: int) -> float:
        """A load that the stage cannot go below on ``device``, wherever the others are."""
        receive = math.fsum(self.port_seconds(channel, device) for channel in self.received[stage] if self._apart(channel))
        leaving = [[channel for channel in channels if self._apart(channel)] for channels in self.sent[stage]]
        send = math.fsum(self.port_seconds(channels[0], device, len(channels)) for channels in leaving if channels)
        return combined(self.comm, self.compute[stage][device], receive, send)

    def _apart(self, channel: int) -> bool:
        """Whether the channel may join two devices: not where a plan puts both its stages on one."""
        source, target = self.fixed[self.messages[channel].source], self.fixed[self.messages[channel].target]
        return source != target or not source

    @cached_property
    def floor(self) -> float:
        """A value that no placement goes below."""
        ports = (
            min(self.least(s, d) for d in (self.fixed[s] or self.candidates(s))) / self.replicas[s] for s in range(self.size)
        )
        return max(ports, default=0.0)

    def port_value(self, chosen: Placement) -> float:
        """The value under the port model: every device at its best port, a tensor once per direction however many stages read
        it."""
        worst = 0.0
        for devices in dict.fromkeys(chosen):
            here = [stage for stage, on in enumerate(chosen) if on == devices]
            crossing = [(c, m) for c, m in enumerate(self.messages) if (m.source in here) != (m.target in here)]
            received = {m.tensor: c for c, m in crossing if m.target in here}
            sent = {m.tensor: c for c, m in crossing if m.source in here}
            for device in devices:
                receive = math.fsum(self.port_seconds(channel, device) for channel in received.values())
                send = math.fsum(self.port_seconds(channel, device) for channel in sent.values())
                compute = math.fsum(self.compute[stage][device] for stage in here)
                serves, replica = self.turns(here[0]), devices.index(device)
                share = serves.count(replica) / len(serves) if serves else 1 / len(devices)
                worst = max(worst, combined(self.comm, compute, receive, send) * share)
        return worst


def turns(sources: Sequence[int], targets: Sequence[int]) -> list[tuple[int, int]]:
    """Devices between which the samples go, one after another, until it begins anew: sample m goes from replica m modulo their
    number to replica m modulo theirs."""
    if len(sources) == len(targets) == 1:
        return [(sources[0], targets[0])]
    period = math.lcm(len(sources), len(targets))
    return [(sources[m % len(sources)], targets[m % len(targets)]) for m in range(period)]


def shared_loads(comm: str, parts: Sequence[Sequence[float]], chosen: Sequence[tuple[object, ...]]) -> list[float]:
    """Of each stage the seconds per sample of its devices, given compute, receive and send of every stage: what stages on the
    same devices need is added up, part by part; replicas share the samples."""
    totals: dict[tuple[object, ...], list[float]] = {}
    for own, devices in zip(parts, chosen, strict=True):
        total = totals.setdefault(devices, [0.0, 0.0, 0.0])
        for part, seconds in enumerate(own):
            total[part] += seconds
    return [combined(comm, *totals[devices]) / len(devices) for devices in chosen]
