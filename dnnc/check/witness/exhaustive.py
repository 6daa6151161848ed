"""The search of ``verify-plan --search``: every plan on devices and replicas of a small problem, in the port model.

A dynamic programme over all downsets of the ops in a dictionary. A state is a downset that is done, how many devices of each
kind it took, for how many periods the stage with most replicas goes on behind the others, and how many stages there are, if a
number was asked for; its value is the least largest
load. A step adds any larger downset as a stage on any kind of device with any number of replicas. Nothing is pruned, contracted
or bounded. Devices are of one kind if they agree in type, memory and port.

The load of a stage is what ``value`` counts, each transfer at the port of its device: no route is faster. Of a training step a
stage with replicas is on one host, and where that has no other device, all that it sends goes to other hosts; or it is on
several, and its ring leaves each of them (``Search.ways``). Its memory is the
least that it needs: weights, the largest of what its ops have alive alone, and its buffers; of a training step weights,
gradients and state. So the optimum here is a lower bound of all such plans, and no claimed bound may be above it, unless
memory that is not counted here binds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TypeAlias

from dnnc.check.witness.facts import Facts
from dnnc.check.witness.value import Summed, combined, exposed
from ir.core.topology import Device
from ir.text.witness import DEVICES, MESH, MESHES, TURNS, Witness
from passes.costs.exchange import BUCKET
from passes.costs.memory.liveness import SLOTS, own_bytes, stated_bytes
from passes.costs.memory.stage import most_bytes
from passes.costs.network import Path, Unreachable
from passes.costs.op_time import bandwidth_of
from passes.graph.graph import reads

MOST_DOWNSETS = 2000
MOST_STEPS = 2_000_000
"""Stages that are tried, with every state behind which they may stand; about ten seconds."""
RESTRICTIONS = ("cuts", "pins", "strategy", "plan", "pieces", "replicas")
"""Keys of a certificate that say that the bound is not of all plans; so does ``stages``, of which the search makes as many."""


Speed: TypeAlias = tuple[float, float]
"""Bandwidth and latency."""


@dataclass(frozen=True, slots=True)
class Kind:
    """``devices`` that can be exchanged."""

    devices: tuple[Device, ...]

    @property
    def device(self) -> Device:
        return self.devices[0]

    @property
    def count(self) -> int:
        return len(self.devices)


@dataclass(frozen=True, slots=True)
class Stage:
    """On ``kind`` with so many replicas: seconds per microbatch."""

    kind: int
    replicas: int
    load: float


def searched(facts: Facts, record: Witness) -> tuple[float | None, str]:
    """Seconds of the objective that no plan of the record's form is below, and how large the search was; None where it was not
    made, and why."""
    plan, certificate = facts.plan, dict(facts.plan.certificate)
    if record.plans in (MESH, MESHES, TURNS):
        return None, f"plans {'of unlike turns' if record.plans == TURNS else 'on meshes'} are not searched plainly"
    if plan.minimises.alone or plan.minimises.decodes or (plan.minimises.trains and not plan.in_steps):
        return None, f"the objective {plan.objective} is not searched plainly"
    if told := [key for key in RESTRICTIONS if key in certificate]:
        return None, f"not searched plainly: the bound is of plans under a restriction ({', '.join(told)})"
    search = Search(facts, 1 if record.plans == DEVICES else len(facts.topology.devices))
    downsets = search.downsets()
    if downsets is None:
        return None, f"not searched plainly: {len(facts.ops)} ops have more than {MOST_DOWNSETS} downsets"
    if (steps := search.steps(len(downsets))) > MOST_STEPS:
        return None, f"not searched plainly: {len(downsets)} downsets need up to {steps} steps, more than {MOST_STEPS}"
    value = search.run(downsets)
    note = f"{len(downsets)} downsets of {len(facts.ops)} ops"
    if search.memory_matters:
        return None, f"{note}: a plain search without the memory of activations finds {value:.6g} s"
    return value, note


class Search:
    """Of one problem; ``most``: replicas of a stage."""

    def __init__(self, facts: Facts, most: int) -> None:
        self.facts, self.plan, self.most = facts, facts.plan, most
        self.microbatches = max(1, facts.plan.microbatches)
        asked = dict(facts.plan.certificate).get("stages", "")
        self.asked = int(asked) if asked.isdecimal() else 0
        found: dict[tuple[object, ...], list[Device]] = {}
        for device in facts.topology.devices:
            port = facts.net.port(device.name)
            found.setdefault((device.type, facts.topology.memory(device), port.latency, port.bandwidth), []).append(device)
        self.kinds = [Kind(tuple(devices)) for devices in found.values()]
        self.sources = [self.ordered(number) for number in range(len(self.kinds))]
        count = len(facts.ops)
        self.before = [0] * count
        for tensor in facts.tensors:
            for reader in tensor.readers:
                self.before[reader] |= 1 << tensor.maker
        self.rows = {kind.device.type: self.single(kind) for kind in self.kinds}
        self.placed: dict[tuple[int, int], list[tuple[Speed, Speed]]] = {}

    def ordered(self, number: int) -> list[int]:
        """The kinds whose devices a stage of one kind takes, this one first, then those of its type that come before it: with
        more memory, as far as a stage may need it, else more bandwidth, else less latency. The last kind of a stage's devices
        says what it costs and holds at least; to take of that kind first leaves the others, which will do for all stages, to
        those to come."""
        if self.most == 1:
            return [number]
        ranks = []
        for kind in self.kinds:
            limit, port = self.facts.topology.memory(kind.device), self.facts.net.port(kind.device.name)
            memory = math.inf if limit is None else limit
            ranks.append((-min(memory, self.enough), -port.bandwidth, port.latency, -memory))
        alike = [k for k, kind in enumerate(self.kinds) if kind.device.type == self.kinds[number].device.type]
        return sorted((k for k in alike if ranks[k] <= ranks[number]), key=lambda k: ranks[k], reverse=True)

    def taken(self, used: tuple[int, ...], stage: Stage) -> tuple[int, ...] | None:
        """Devices of each kind that are used with one stage more; None where there are too few."""
        after, wanted = list(used), stage.replicas
        for k in self.sources[stage.kind]:
            more = min(wanted, self.kinds[k].count - used[k])
            after[k], wanted = used[k] + more, wanted - more
        return None if wanted else tuple(after)

    @cached_property
    def enough(self) -> float:
        """Bytes on a device, more than which no stage needs."""
        return most_bytes(self.facts.module, self.microbatches if self.plan.in_steps else 0, flush=self.plan.flush)

    @cached_property
    def memory_matters(self) -> bool:
        """Whether a training step may need more than the memory that is counted here."""
        limits = [limit for kind in self.kinds if (limit := self.facts.topology.memory(kind.device)) is not None]
        return self.plan.in_steps and self.enough > min(limits, default=math.inf)

    def single(self, kind: Kind) -> list[float]:
        """Seconds of each op, where they add up; empty where they depend on the stage (``op_time``, epilogues)."""
        from passes.costs.op_time import fuses

        type_ = self.facts.topology.type(kind.device.type)
        if not self.plan.in_steps and fuses(type_):
            return []
        return [self.facts.seconds(type_, [v])[0] for v in range(len(self.facts.ops))]

    def downsets(self) -> list[int] | None:
        """All sets of ops that hold all that their ops read, as bits, in order of size; None where there are too many."""
        found, layer = [0], {0}
        while layer:
            after = set[int]()
            for done in layer:
                for v, needed in enumerate(self.before):
                    if not done >> v & 1 and needed & ~done == 0:
                        after.add(done | 1 << v)
            found += sorted(after)
            if len(found) > MOST_DOWNSETS:
                return None
            layer = after
        return found

    def steps(self, downsets: int) -> int:
        """About how many steps a search takes."""
        used = math.prod(kind.count + 1 for kind in self.kinds)
        return downsets * downsets // 2 * used * sum(min(self.most, self.largest(k)) for k in range(len(self.kinds)))

    def largest(self, number: int) -> int:
        """Devices that a stage of one kind may have."""
        return sum(self.kinds[k].count for k in self.sources[number])

    def run(self, downsets: Sequence[int]) -> float:
        """The least value of all plans; inf where none fits."""
        none = (0,) * len(self.kinds)
        best: dict[int, dict[tuple[tuple[int, ...], int, int], float]] = {done: {} for done in downsets}
        best[0][none, 0, 0] = 0.0
        for place, done in enumerate(downsets):
            for larger in downsets[place + 1 :]:
                if done & ~larger or not best[done]:
                    continue
                for stage in self.stages(done, larger):
                    behind = stage.replicas * (-(-self.microbatches // stage.replicas) - 1)
                    for (used, longest, count), value in best[done].items():
                        taken, stages = self.taken(used, stage), min(count + 1, self.asked)
                        if taken is None or 0 < self.asked == count:
                            continue
                        key = taken, max(longest, behind), stages
                        if (load := max(value, stage.load)) < best[larger].get(key, math.inf):
                            best[larger][key] = load
        ends = [
            self.of_period(period, sum(used), behind)
            for (used, behind, count), period in best[downsets[-1]].items()
            if count == self.asked
        ]
        return min([*ends, *self.alone(downsets[-1])], default=math.inf)

    def of_period(self, period: float, devices: int, behind: int) -> float:
        if not self.plan.in_steps:
            return period
        return (devices + behind if self.plan.flush else self.microbatches) * period

    def alone(self, every: int) -> Iterator[float]:
        """Plans of one device, which hands nothing over."""
        for kind in self.kinds if not self.plan.in_steps and self.asked < 2 else ():
            if self.fits(0, every, kind):
                yield self.compute(every, kind, 1)

    def stages(self, done: int, larger: int) -> list[Stage]:
        """The ops between two downsets as a stage on each kind of device, with each number of replicas."""
        found = []
        own = larger & ~done
        for number, kind in enumerate(self.kinds):
            if not self.fits(done, larger, kind):
                continue
            type_ = self.facts.topology.type(kind.device.type)
            most = min(self.most, self.largest(number), self.microbatches if self.plan.in_steps else self.most)
            for replicas in range(1, most + 1):
                alone = self.plan.in_steps and own == (1 << len(self.before)) - 1  # replicas read their own samples
                for ring, way in self.ways(number, replicas):
                    receive, send = self.transfers(done, own, kind, way)
                    compute = self.compute(own, kind, replicas, ring) + (0.0 if alone else type_.handover)
                    if math.isfinite(compute):
                        found.append(Stage(number, replicas, combined(self.plan.comm, compute, receive, send) / replicas))
        return found

    def ways(self, number: int, replicas: int) -> list[tuple[Speed, Speed]]:
        """Where a stage may be: the best speeds of its ring, and of what it sends to others."""
        if (number, replicas) not in self.placed:
            port = self.facts.net.port(self.kinds[number].device.name)
            near = port.bandwidth, port.latency
            try:
                self.placed[number, replicas] = self._ways(number, replicas, near)
            except Unreachable:  # some of its devices: then nothing is known
                self.placed[number, replicas] = [(near, near)]
        return self.placed[number, replicas]

    def _ways(self, number: int, replicas: int, near: Speed) -> list[tuple[Speed, Speed]]:
        kind, devices = self.kinds[number], self.facts.topology.devices
        own = Counter(device.host for k in self.sources[number] for device in self.kinds[k].devices)
        alike = [device for device in devices if device.type == kind.device.type]
        total, typed = Counter(device.host for device in devices), Counter(device.host for device in alike)
        most = max(typed.values())
        if not self.plan.in_steps or replicas == 1 or len(total) == 1 or (len(typed) == 1 and replicas < most):
            return [(near, near)]

        def routes(host: str, to: Sequence[Device]) -> list[Path]:
            """From devices of the type on a host to those of ``to`` on others."""
            return [self.facts.net.path(a.name, b.name) for a in alike if a.host == host for b in to if b.host != host]

        def leaving(host: str, to: Sequence[Device]) -> Speed:
            """The best of these routes."""
            paths = routes(host, to)
            return max(path.bandwidth for path in paths), min(path.latency for path in paths)

        def parted(host: str, rings: int) -> float:
            """The bandwidth with which so many rings leave a host at most, all of them over what its routes have in common."""
            paths = routes(host, alike)
            hops = set.intersection(*(set(path.hops) for path in paths))
            media = set.intersection(*(set(path.media) for path in paths))
            widths = [*(self.facts.net.links[link].bandwidth for link, *_ in hops), *(width for _, width in media)]
            return min([rings * max(path.bandwidth for path in paths), *widths])

        def around(most_of_a_host: int) -> Speed:
            """The best ring that leaves each of its hosts, none of which gives more devices than so many; or, where each gives
            as many, the best rings that share the sums."""
            ways = {host: leaving(host, alike) for host in own}
            speeds = []
            for order in (sorted(own, key=lambda host: -ways[host][0]), sorted(own, key=lambda host: ways[host][1])):
                together = accumulate(min(own[host], most_of_a_host) for host in order)
                last = next((host for host, count in zip(order, together, strict=True) if count >= replicas), order[-1])
                speeds.append(ways[last])
            widest = speeds[0][0]
            for each in range(2, min(most_of_a_host, replicas - 1) + 1):
                widths = sorted((parted(host, each) for host in own if own[host] >= each), reverse=True)
                if replicas % each == 0 and len(widths) >= replicas // each:
                    widest = max(widest, widths[replicas // each - 1])
            return min(near[0], widest), max(near[1], speeds[1][1])

        full = [host for host, count in typed.items() if count == most]
        if replicas == most and all(total[host] == most for host in full):
            outside = [leaving(host, devices) for host in full]
            far = min(near[0], max(way[0] for way in outside)), max(near[1], min(way[1] for way in outside))
            within = [(near, far)] if max(own.values()) >= replicas else []
            return [*within, *([(around(replicas - 1), near)] if len(own) > 1 else [])]
        return [(near, near)] if max(own.values()) >= replicas else [(around(replicas), near)]

    def compute(self, own: int, kind: Kind, replicas: int, ring: Speed = (math.inf, 0.0)) -> float:
        """Seconds of a device for a microbatch; of a replica, which does fewer, with as much of the update more. ``ring``: the
        speeds of the ring of the replicas."""
        row, members = self.rows[kind.device.type], _positions(own)
        type_ = self.facts.topology.type(kind.device.type)
        seconds = math.fsum([row[v] for v in members] if row else self.facts.seconds(type_, members))
        if self.plan.in_steps:
            seconds += self.update(own, kind, replicas, ring) * replicas / self.microbatches
        return seconds

    def update(self, own: int, kind: Kind, replicas: int, ring: Speed) -> float:
        """Seconds of the update, once a step, of the weights that ops of a stage are the first to read, and of sums of their
        gradients that the last backward pass does not hide."""
        type_ = self.facts.topology.type(kind.device.type)
        bandwidth, seconds, left = bandwidth_of(type_), 0.0, 0.0
        back, sums = self.facts.gradients(type_), list[Summed]()
        for v in _positions(own):
            for name in self.first[v]:
                size = self.facts.weights[name]
                seconds += self.facts.learned.update[name] / bandwidth if bandwidth else 0.0
                if replicas > 1 and not type_.free_transfers:
                    part = size / max(size, BUCKET)
                    summed = 2 * (replicas - 1) * (size / replicas / ring[0] + part * ring[1])
                    if self.readers[name] & ~own:  # it waits for what other stages send
                        seconds += summed
                    else:
                        sums.append(Summed(left, size, summed))
            left += back[v]
        return seconds + exposed(sums)

    @cached_property
    def readers(self) -> dict[str, int]:
        """Of each weight the ops that read it, as bits."""
        found: dict[str, int] = {}
        for v, op in enumerate(self.facts.ops):
            for name in reads(op):
                found[name] = found.get(name, 0) | 1 << v
        return found

    @cached_property
    def first(self) -> list[list[str]]:
        """Of each op the weights that train and that it is the first to read."""
        found, done = [], set[str]()
        for op in self.facts.ops:
            names = [n for n in reads(op) if n in self.facts.learned.state and n not in done]
            done.update(names)
            found.append(names)
        return found

    def transfers(self, done: int, own: int, kind: Kind, way: Speed) -> tuple[float, float]:
        """Seconds of a device for what a stage receives and sends at this speed."""
        if self.facts.free(kind.device.name):
            return 0.0, 0.0
        receive, send = 0.0, 0.0
        for tensor in self.facts.tensors:
            readers = sum(1 << reader for reader in set(tensor.readers))
            seconds = tensor.stated
            if seconds is None:
                seconds = tensor.times * (way[1] + tensor.size / way[0])
            if done >> tensor.maker & 1 and readers & own:
                receive += seconds
            if own >> tensor.maker & 1 and readers & ~own:
                send += seconds
        return receive, send

    def fits(self, done: int, larger: int, kind: Kind) -> bool:
        """Whether a stage may fit a device."""
        limit, facts, members = self.facts.topology.memory(kind.device), self.facts, _positions(larger & ~done)
        if limit is None:
            return True
        stated = stated_bytes(facts.module.entry)
        if stated is not None:
            return sum(stated[v] for v in members) <= limit
        names = {name for v in members for name in reads(facts.ops[v]) if name in facts.weights}
        needed = sum(facts.held(1)[name] for name in names)  # a replica serves one group at least
        if self.plan.in_steps:
            return needed + facts.training(names, _positions(done), members) <= limit
        slots = SLOTS if self.plan.comm == "sum" else 2 * SLOTS
        arriving = (t.size for t in facts.tensors if done >> t.maker & 1 and not set(t.readers).isdisjoint(members))
        return needed + max(self.own[v] for v in members) + slots * sum(arriving) <= limit

    @cached_property
    def own(self) -> tuple[int, ...]:
        return own_bytes(self.facts.module.entry)


def _positions(bits: int) -> list[int]:
    return [v for v in range(bits.bit_length()) if bits >> v & 1]
