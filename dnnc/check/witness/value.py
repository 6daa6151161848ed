"""Stages on devices and replicas: what each computes, receives, sends and holds, and the value of the plan.

A device that receives a tensor pays latency + bytes / bandwidth of the route; one that sends it pays the bytes for each stage
that reads it and the longest latency once. A link is busy with all that crosses it. Replicas take the samples in turn, so each
load counts for each r-th of them; stages on the same devices add up. The value of a stream is the largest load of a device or
link. A training step of M microbatches takes as many periods as there are devices, and those for which the last microbatches
keep the stage with most replicas busy.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from dnnc.check.witness.facts import Facts, Tensor
from ir.core.ops import Op
from ir.core.topology import DeviceType
from ir.core.types import type_bytes
from ir.ops.rows import edge_slots
from passes.costs.exchange import BUCKET
from passes.costs.memory.liveness import SLOTS, stated_bytes
from passes.costs.network import Path
from passes.costs.op_time import bandwidth_of
from passes.graph.graph import reads
from passes.graph.sizes import sized_results


@dataclass(frozen=True, slots=True)
class Counted:
    """One stage. Seconds of a device per sample that it handles; bytes on each device, None where nothing is counted.
    ``steps``: seconds of a sample on each replica."""

    compute: float
    receive: float
    send: float
    collectives: float = 0.0
    weights: int | None = None
    workspace: int | None = None
    buffers: int | None = None
    steps: tuple[float, ...] = ()


def combined(comm: str, compute: float, receive: float, send: float) -> float:
    """How the seconds of a device add up."""
    if comm == "sum":
        return compute + receive + send
    return max(compute, receive + send) if comm == "overlap" else max(compute, receive, send)


def turns(one: Sequence[str], other: Sequence[str]) -> list[tuple[str, str]]:
    """The pairs of replicas between which samples pass, one after the other until it begins anew."""
    return [(one[m % len(one)], other[m % len(other)]) for m in range(math.lcm(len(one), len(other)))]


@dataclass(frozen=True)
class Ring:
    """Sums of gradients around replicas: seconds for each byte that a device passes on, latency of a step, and what the links
    state of collectives; ``media``: the seconds that each byte keeps a link busy."""

    byte: float
    latency: float
    start: float
    small: float
    switch: float
    media: dict[str, float]

    def seconds(self, members: int, size: int) -> float:
        """Of the sum of a gradient of ``size`` bytes, its part of a bucket."""
        whole, steps = max(size, BUCKET), 2 * (members - 1)
        moved = steps * whole / members
        seconds = self.start + steps * self.latency + moved * self.byte
        if self.switch and self.small and 1 / self.small > self.byte:
            seconds += self.switch * moved / (moved + self.switch / (1 / self.small - self.byte))
        return seconds * size / whole


class Summed(NamedTuple):
    """A gradient that replicas add up: ``left``, seconds of the backward pass behind it; its bytes; seconds of its sum."""

    left: float
    size: int
    seconds: float


def exposed(sums: Iterable[Summed]) -> float:
    """Seconds behind a backward pass until the last sum of gradients ends; ``sums`` in the order of the ops that read the
    weights first. From the last that the pass makes to the first they go into buckets, of at most 2^20 bytes, then of twice as
    many each, up to ``BUCKET``, none of 2^20 bytes more than the pass makes before it, or of one gradient. The sum of a bucket
    begins once the pass has made the last gradient in it and the sum before has ended. So the sums from bucket k on end at
    least what they take, less what is left of the pass at k, behind the pass; and one k makes that exact."""
    last_first = sorted(sums, key=lambda one: one.left)
    before = sum(one.size for one in last_first)
    most = behind = left = held = 0.0
    room = float(1 << 19)
    for one in last_first:
        before -= one.size
        if not behind or held + one.size > min(room, before + (1 << 20)):
            held, room, left = 0.0, min(2 * room, float(BUCKET)), one.left
        held += one.size
        behind += one.seconds
        most = max(most, behind - left)
    return most


def ring_of(facts: Facts, devices: Sequence[str]) -> Ring:
    """Around the devices in order, or, where each host has as many of them, in rings that leave a host by each of its devices,
    if these pass more on."""
    blocks = [list(block) for _, block in groupby(devices, lambda name: facts.device(name).host)]
    one = _ring(facts, [devices])
    rails = len(blocks[0])
    if rails == 1 or len(blocks) == 1 or any(len(block) != rails for block in blocks):
        return one
    turned = [[name for block in blocks for name in (*block[by:], *block[:by])] for by in range(rails)]
    several = _ring(facts, turned)
    return several if several.byte < one.byte else one


def _ring(facts: Facts, rings: Sequence[Sequence[str]]) -> Ring:
    paths: list[Path] = [facts.net.path(a, b) for ring in rings for a, b in zip(ring, [*ring[1:], ring[0]], strict=True)]
    media = Counter(name for path in paths for name, _ in path.media)
    width = {name: bandwidth for path in paths for name, bandwidth in path.media}
    busy = {name: count / (width[name] * len(rings)) for name, count in media.items()}
    if len(rings) == 1:
        alone = max(1 / path.bandwidth for path in paths)
    else:
        hops = Counter(hop for path in paths for hop in path.hops)
        alone = max(count / (facts.net.links[hop[0]].bandwidth * len(rings)) for hop, count in hops.items())
        alone = max(alone, max(1 / facts.net.port(path.source).bandwidth for path in paths))
    return Ring(
        max([alone, *busy.values()]),
        max(path.latency for path in paths),
        max(path.start for path in paths),
        min((path.small for path in paths if path.small), default=0.0),
        max(path.switch for path in paths),
        busy,
    )


class Stages:
    """The stages of a plan on devices and replicas; ``on``: the devices of each."""

    def __init__(self, facts: Facts) -> None:
        self.facts, self.plan = facts, facts.plan
        self.on = [stage.devices for stage in facts.plan.stages]
        self.stage_of = {position: index for index, own in enumerate(facts.stages) for position in own}
        self.several = len({device for devices in self.on for device in devices}) > 1

    def crossing(self) -> Iterator[tuple[Tensor, int, list[int]]]:
        """Tensors between stages, with the stage that makes them and those that read them."""
        for tensor in self.facts.tensors:
            maker = self.stage_of[tensor.maker]
            targets = sorted({self.stage_of[reader] for reader in tensor.readers} - {maker})
            if targets:
                yield tensor, maker, targets

    def pairs(self, maker: int, reader: int) -> list[tuple[str, str]]:
        """Devices of two stages between which samples pass, one after the other until it begins anew."""
        if not self.facts.serving:
            return turns(self.on[maker], self.on[reader])
        return turns(*([self.on[stage][replica] for replica in self.facts.serving[stage]] for stage in (maker, reader)))

    def steps(self, index: int) -> list[float]:
        """Seconds of a sample on each device of a stage."""
        found = []
        for device in self.on[index]:
            receive = send = 0.0
            for tensor, maker, targets in self.crossing():
                if index in targets:
                    receive += max((self.moved(tensor, a, b, b) for a, b in self.pairs(maker, index) if b == device), default=0)
                if index == maker:
                    send += self.sent(tensor, device, index, targets)
            found.append(combined(self.plan.comm, self.compute(index, device), receive, send))
        return found

    def of_tokens(self) -> float:
        """Seconds per token: those of the busiest device or link per step of a group, at least those of a group through all
        stages, each on its slowest replica, divided by the groups in flight; of one group alone these."""
        stages = range(len(self.on))
        trip = math.fsum(max(self.steps(index)) for index in stages)
        if self.plan.minimises.alone:
            return trip
        groups = max(state.sets for state in self.facts.module.states.values())
        return max(*map(self.served, stages), *self.busy().values(), trip / groups) / self.facts.tokens

    def served(self, index: int) -> float:
        """Seconds per sample of the busiest device of a stage."""
        steps = self.steps(index)
        serves = self.facts.serving[index] if self.facts.serving else tuple(range(len(steps)))
        return max(serves.count(replica) * seconds for replica, seconds in enumerate(steps)) / len(serves)

    def counted(self) -> list[Counted]:
        """Each stage."""
        found = []
        for index, own in enumerate(self.facts.stages):
            receive = send = 0.0
            for tensor, maker, targets in self.crossing():
                if index in targets:
                    receive += max(self.moved(tensor, a, b, b) for a, b in self.pairs(maker, index))
                if index == maker:
                    send += max(self.sent(tensor, source, index, targets) for source in self.on[index])
            compute = max(self.compute(index, device) for device in self.on[index])
            found.append(Counted(compute, receive, send, 0.0, *self.memory(index, own), tuple(self.steps(index))))
        return found

    def compute(self, index: int, device: str) -> float:
        """Seconds that a device of a stage computes: hand-over where there are several devices; in training its part of the
        update, as a replica does fewer microbatches."""
        type_, replicas = self.facts.type_of(device), len(self.on[index])
        seconds = math.fsum(self.facts.seconds(type_, self.facts.stages[index]))
        if self.plan.in_steps:  # replicas of the whole model read their own samples
            handover = type_.handover if len(self.on) > 1 else 0.0
            return seconds + handover + self.update(index, device) * replicas / self.plan.microbatches
        return seconds + (type_.handover if self.several else 0.0)

    def updated(self, index: int) -> list[str]:
        """The weights that a stage updates: those that no stage before it reads."""
        before = {name for own in self.facts.stages[:index] for i in own for name in reads(self.facts.ops[i])}
        names = dict.fromkeys(name for i in self.facts.stages[index] for name in reads(self.facts.ops[i]))
        return [name for name in names if name in self.facts.learned.state and name not in before]

    def update(self, index: int, device: str) -> float:
        """Seconds of the update once a step: sums of gradients around the replicas, those that the last backward pass does not
        hide, and the bytes that are read and written."""
        facts, names, devices = self.facts, self.updated(index), self.on[index]
        type_, summed = facts.type_of(device), 0.0
        if len(devices) > 1 and not type_.free_transfers:
            ring, left = ring_of(facts, devices), self.left(index, type_)
            sums = {
                name: Summed(left.get(name, 0.0), size := facts.weights[name], ring.seconds(len(devices), size))
                for name in names
            }
            waiting = math.fsum(one.seconds for name, one in sums.items() if name not in left)
            summed = waiting + exposed(one for name, one in sums.items() if name in left)
        moved = sum(facts.learned.update[name] for name in names)
        bandwidth = bandwidth_of(type_)
        return summed + (moved / bandwidth if bandwidth else 0.0)

    def left(self, index: int, type_: DeviceType) -> dict[str, float]:
        """Of each weight that only this stage reads, the seconds of a backward pass behind its gradient: those of the ops
        before the first that reads it."""
        read = Counter(name for own in self.facts.stages for name in {name for i in own for name in reads(self.facts.ops[i])})
        back, found, seconds = self.facts.gradients(type_), dict[str, float](), 0.0
        for position in self.facts.stages[index]:
            for name in reads(self.facts.ops[position]):
                if read[name] == 1:
                    found.setdefault(name, seconds)
            seconds += back[position]
        return found

    def moved(self, tensor: Tensor, source: str, target: str, pays: str) -> float:
        """Seconds that one end, ``pays``, spends on one message."""
        if source == target or self.facts.free(pays):
            return 0.0
        if tensor.stated is not None:
            return tensor.stated
        path = self.facts.net.path(source, target)
        return tensor.times * (path.latency + tensor.size / path.bandwidth)

    def sent(self, tensor: Tensor, source: str, index: int, targets: Sequence[int]) -> float:
        """Seconds that a device spends on sending a tensor to the slowest replica, of those that it has turns with, of each
        stage that reads it."""
        ends = []
        for target in targets:
            partners = [there for here, there in self.pairs(index, target) if here == source]
            ends.append(max(partners, key=lambda there: self.moved(tensor, source, there, source)))
        away = [end for end in ends if end != source]
        if not away or self.facts.free(source):
            return 0.0
        if tensor.stated is not None:
            return tensor.stated
        paths = [self.facts.net.path(source, end) for end in away]
        return tensor.times * (max(p.latency for p in paths) + math.fsum(tensor.size / p.bandwidth for p in paths))

    def value(self, counted: Sequence[Counted]) -> float:
        """Seconds that the plan minimises."""
        if self.plan.minimises.decodes:
            return self.of_tokens()
        if self.plan.minimises.alone:
            return self.latency()
        parts: dict[tuple[str, ...], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
        for devices, one in zip(self.on, counted, strict=True):
            for number, seconds in enumerate((one.compute, one.receive, one.send)):
                parts[devices][number] += seconds
        loads = [combined(self.plan.comm, *total) / len(devices) for devices, total in parts.items()]
        if self.facts.serving:
            loads = [self.served(index) for index in range(len(self.on))]
        return self.of_period(max([*loads, *self.busy().values()], default=0.0))

    def of_period(self, period: float) -> float:
        """The value that follows from the seconds per microbatch of the slowest device or link."""
        if not self.plan.in_steps:
            return period
        microbatches = self.plan.microbatches
        if not self.plan.flush:
            return microbatches * period
        counts = [len(devices) for devices in self.on]
        return (sum(counts) + max(r * (math.ceil(microbatches / r) - 1) for r in counts)) * period

    def busy(self) -> dict[str, float]:
        """Seconds per sample of each link; of sums of gradients where something else crosses it too."""
        passing: dict[str, float] = defaultdict(float)
        for tensor, maker, targets in self.crossing():
            for target in targets if tensor.stated is None else ():
                pairs = self.pairs(maker, target)
                for a, b in pairs:
                    for name, bandwidth in self.facts.net.path(a, b).media:
                        passing[name] += tensor.times * tensor.size / bandwidth / len(pairs)
        sums: list[dict[str, float]] = []
        for index, devices in enumerate(self.on if self.plan.in_steps else ()):
            passed = 2 * (len(devices) - 1) / len(devices) * sum(self.facts.weights[name] for name in self.updated(index))
            ring = ring_of(self.facts, devices).media if passed else {}
            sums.append({name: byte * passed / self.plan.microbatches for name, byte in ring.items()})
        for index, own in enumerate(sums):
            for name, seconds in own.items():
                if any(name in other for other in sums if other is not own) or self._others(name, index):
                    passing[name] += seconds
        return passing

    def _others(self, link: str, index: int) -> bool:
        """Whether something that passes between other stages than ``index`` crosses a link."""
        return any(
            link == name
            for tensor, maker, targets in self.crossing()
            for target in targets
            if index not in (maker, target) and tensor.stated is None
            for a, b in self.pairs(maker, target)
            for name, _ in self.facts.net.path(a, b).media
        )

    def latency(self) -> float:
        """Seconds of one sample alone: each stage when its devices are free and all it reads is ready. A device sends a tensor
        once, to its slowest reader; what stays on a device passes through its port."""
        ready: list[float] = []
        free: dict[str, float] = defaultdict(float)
        for index, devices in enumerate(self.on):
            start, needed = max(free[device] for device in devices), 0.0
            for here in devices:
                seconds = self.compute(index, here)
                for tensor, maker, targets in self.crossing():
                    if index in targets:
                        start = max(start, ready[maker])
                        seconds += max(self.alone(tensor, here, there) for there in self.on[maker])
                    if index == maker:
                        seconds += max(self.alone(tensor, here, there) for target in targets for there in self.on[target])
                needed = max(needed, seconds)
            ready.append(start + needed)
            free.update(dict.fromkeys(devices, start + needed))
        return max(ready, default=0.0)

    def alone(self, tensor: Tensor, here: str, there: str) -> float:
        if self.facts.free(here):
            return 0.0
        if tensor.stated is not None:
            return tensor.stated
        way = self.facts.net.port(here) if here == there else self.facts.net.path(here, there)
        return way.latency + tensor.size / way.bandwidth

    def memory(self, index: int, own: Sequence[int]) -> tuple[int | None, int | None, int | None]:
        """Bytes of weights, activations and buffers; of a training step of weights alone, with their gradients and the state of
        the optimizer."""
        facts = self.facts
        stated = stated_bytes(facts.module.entry)
        if stated is not None:
            return sum(stated[i] for i in own), 0, 0
        held = facts.held(facts.served(index))
        names = {name for i in own for name in reads(facts.ops[i]) if name in held}
        if index == 0:
            names |= {value.name for value in facts.module.entry.results if value.name in held}
        weights = sum(held[name] for name in names)
        if self.plan.in_steps:
            before = {i for stage in facts.stages[:index] for i in stage}
            return weights + facts.training(names, before, own), None, None
        arriving = [(t, maker) for t, maker, targets in self.crossing() if index in targets]
        buffers = sum(
            edge_slots(self.plan.comm, maker, index, SLOTS) * facts.meetings(maker, index) * tensor.size
            for tensor, maker in arriving
        )
        inputs = {value.name: type_bytes(value.type) or 0 for value in facts.module.entry.args}
        return weights, peak(inputs, [facts.ops[i] for i in own]), buffers


def peak(inputs: dict[str, int], ops: Sequence[Op]) -> int:
    """The most bytes alive while ops run one after another. A value lives until its last reader; ``inputs``: bytes of what may
    be read and is made by none of them. A body of an op counts with its own peak."""
    last = {name: position for position, op in enumerate(ops) for name in reads(op)}
    sizes, alive, most = dict(inputs), dict[str, int](), 0
    for position, op in enumerate(ops):
        made = {value.name: type_bytes(value.type) or 0 for value in sized_results(op)}
        alive |= {name: sizes[name] for name in reads(op) if name in sizes} | made
        inside = max(
            (peak({v.name: type_bytes(v.type) or 0 for v in region.args}, region.ops) for _, region in op.regions), default=0
        )
        most = max(most, sum(alive.values()) + inside)
        sizes |= made
        alive = {name: size for name, size in alive.items() if last.get(name, position) > position}
    return most
