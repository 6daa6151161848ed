"""TAG's simulator: what a training step takes when each op group does as its action says, in seconds, and what it needs of
memory.

Every device group has one queue, first come, first served: all its devices do the same at the same time. So have the media
between device groups, of which a transfer occupies all that it crosses, and the collectives of all devices together.

- A segment of an op group runs forward on each device group of its action as soon as what it reads has come, backward as soon
  as its own forward pass and the gradients of what it made have. Seconds of ops and of transfers are dnnc's own
  (``Workload.seconds``, ``Machines.channel``, ``passes.model.exchange``).
- Behind the backward pass, gradients are summed (``all_reduce``: the whole gradient by rings of all devices, as its part of a
  bucket; ``ps``: each device sends every server its part and gets its part of the weights back), then weights updated.
- ``model``: the ops of an op group are cut, in order, into as many runs of equal seconds as there are devices, one for each. A
  segment occupies all device groups that have ops of it until the last of its ops is done.
- With *factors* (SFB, of the strategy that the search found): where the two tensors whose product a gradient is take less time
  to gather, and to multiply whole on each device, than the gradient takes to sum, they are gathered. TAG's integer programme
  may also do ops before the product on every device; here the product alone is.

TAG's released simulator charges gradients their size over the number of replicas, takes one bandwidth for all factors and
leaves one feature at 0; all three are put right here. So is a fourth: there a collective occupies no link, so that half of the
gradients by ``ps`` and half by ``all_reduce`` would take half of the time. Here it occupies the media between its device
groups.

Memory: weights, gradients, optimizer state, and what is kept for the backward pass; more than a device has makes a strategy
unfit.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from dnnc.search_tag.actions import Action, How, actions, moved
from dnnc.search_tag.device_groups import Machines
from dnnc.search_tag.op_groups import Bundle, Gradient, Workload, runs
from passes.model.learning import update_seconds

COLLECTIVES = "collectives"
"""The name of the queue of all collectives."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one strategy. ``memory`` and ``busy``: bytes of a device and seconds, of each device group; ``forward`` and ``done``:
    seconds until the forward pass of each op group ends, and until its weights are updated; ``gathered``: how many gradients
    are made of gathered factors."""

    seconds: float
    memory: tuple[float, ...]
    fits: bool
    busy: tuple[float, ...]
    forward: tuple[float, ...]
    done: tuple[float, ...]
    gathered: int = 0


@dataclass
class _Tasks:
    """Tasks that wait for each other and for what they occupy."""

    seconds: list[float] = field(default_factory=list)
    occupied: list[tuple[str, ...]] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    after: list[list[int]] = field(default_factory=list)

    def add(self, seconds: float, occupied: tuple[str, ...], before: Sequence[int]) -> int:
        number = len(self.seconds)
        self.seconds.append(seconds)
        self.occupied.append(occupied)
        self.waiting.append(len(before))
        self.after.append([])
        for other in before:
            self.after[other].append(number)
        return number

    def run(self) -> tuple[list[float], dict[str, float]]:
        """When each task ends, and how long each queue is busy. Tasks are taken in the order in which they become ready, ties
        by number: no task of a queue overtakes one that was ready before it."""
        ends, ready = [0.0] * len(self.seconds), [0.0] * len(self.seconds)
        free: dict[str, float] = {}
        busy: dict[str, float] = {}
        heap = [(0.0, number) for number, count in enumerate(self.waiting) if not count]
        while heap:
            start, number = heapq.heappop(heap)
            queues, seconds = self.occupied[number], self.seconds[number]
            for name in queues:
                start = max(start, free.get(name, 0.0))
            end = ends[number] = start + seconds
            for name in queues:
                free[name] = end
                busy[name] = busy.get(name, 0.0) + seconds
            for other in self.after[number]:
                ready[other] = max(ready[other], end)
                self.waiting[other] -= 1
                if not self.waiting[other]:
                    heapq.heappush(heap, (ready[other], other))
        return ends, busy


@dataclass(frozen=True, slots=True)
class Sums:
    """Of the gradients of a segment: ``seconds`` of its collectives, ``more`` of products that each device does whole, bytes
    that the ``update`` behind both moves; the gradients that parameter servers sum, and how many are made of gathered
    factors."""

    seconds: float
    more: float
    update: int
    served: tuple[Gradient, ...]
    gathered: int


Ends = dict[int, int]
"""The task by device group."""


class Simulator:
    """Of a workload on machines; ``microbatches``: runs of the model, one after another, that make a step."""

    def __init__(self, workload: Workload, machines: Machines, microbatches: int = 1) -> None:
        self.workload, self.machines, self.microbatches = workload, machines, microbatches
        self.actions = actions(machines)
        self._moved: dict[tuple[Action, Action], tuple[tuple[int, int, float], ...]] = {}
        self._compute: dict[tuple[int, Action], tuple[tuple[tuple[int, ...], float, float], ...]] = {}
        self._sums: dict[tuple[int, Action, bool], Sums] = {}
        self._memory: dict[tuple[int, Action], tuple[tuple[int, float], ...]] = {}
        self.sends: list[list[Bundle]] = [[] for _ in workload.segments]
        self.receives: list[list[Bundle]] = [[] for _ in workload.segments]
        for bundle in workload.bundles:
            self.sends[bundle.source].append(bundle)
            for reader in bundle.readers:
                self.receives[reader].append(bundle)

    @cached_property
    def baseline(self) -> tuple[tuple[Action, ...], Outcome]:
        """Data parallel on all devices, with all-reduce; where that does not fit, ``model`` on all devices."""
        count, first = self.workload.count, self.actions[0]
        strategy, outcome = (first,) * count, self.run((first,) * count)
        if not outcome.fits and self.machines.count(first.groups) > 1:
            strategy = (Action(first.groups, How.MODEL),) * count
            outcome = self.run(strategy)
        return strategy, outcome

    def reward(self, outcome: Outcome) -> float:
        """T_base / T - 1, of what is above 1 the fourth root; -1 where memory does not suffice. An action that was not tried
        yet has a mean of 0, and beside rewards of 10 it never would be: TAG's released code takes the root as well."""
        if not outcome.fits:
            return -1.0
        gain = self.baseline[1].seconds / outcome.seconds - 1 if outcome.seconds else 0.0
        return gain if gain <= 1 else math.sqrt(math.sqrt(gain))

    def run(self, strategy: Sequence[Action], *, factors: bool = False) -> Outcome:
        """A step in which each op group does as its action says."""
        return _Step(self, strategy, factors).outcome()

    # -- what does not depend on other op groups -----------------------------------------------------------------------

    def travels(self, source: Action, target: Action) -> tuple[tuple[int, int, float], ...]:
        """From, to and part, of ``moved``."""
        key = source, target
        if key not in self._moved:
            self._moved[key] = tuple((a, b, part) for (a, b), part in moved(self.machines, source, target).items())
        return self._moved[key]

    def compute(self, segment: int, action: Action) -> tuple[tuple[tuple[int, ...], float, float], ...]:
        """Which device groups work together, and their seconds in the forward and in the backward pass."""
        key = segment, action
        if key not in self._compute:
            self._compute[key] = self._spread(segment, action) if action.how is How.MODEL else self._replicas(segment, action)
        return self._compute[key]

    def _replicas(self, segment: int, action: Action) -> tuple[tuple[tuple[int, ...], float, float], ...]:
        parts = self.machines.count(action.groups) if action.how.splits else 1
        found = []
        for number in action.groups:
            rows = self.workload.seconds(self.machines.groups[number].type, parts)
            passes = [rows[op] for op in self.workload.segments[segment].ops]
            forward, backward = (self.microbatches * math.fsum(column) for column in zip(*passes, strict=True))
            found.append(((number,), forward, backward))
        return tuple(found)

    def _spread(self, segment: int, action: Action) -> tuple[tuple[tuple[int, ...], float, float], ...]:
        place = self.places(self.workload.segments[segment].group, action.groups)
        ops = self.workload.segments[segment].ops
        inside = set(ops)
        makers = {op: [maker for maker in self.workload.makers[op] if maker in inside] for op in ops}
        readers: dict[int, list[int]] = {op: [] for op in ops}
        for op, before in makers.items():
            for maker in before:
                readers[maker].append(op)
        forward = self._makespan(ops, makers, place, backward=False)
        backward = self._makespan(ops[::-1], readers, place, backward=True)
        used = tuple(sorted({place[op][0] for op in ops}))
        return ((used, self.microbatches * forward, self.microbatches * backward),)

    def _makespan(
        self, ops: Sequence[int], before: dict[int, list[int]], place: dict[int, tuple[int, str]], *, backward: bool
    ) -> float:
        """Of ops in this order, each on its device behind those ``before`` it, whose tensors come from theirs."""
        free: dict[str, float] = {}
        ends: dict[int, float] = {}
        for op in ops:
            group, device = place[op]
            start = free.get(device, 0.0)
            for other in before[op]:
                size = self.workload.sizes[(op, other) if backward else (other, op)]
                start = max(start, ends[other] + self.machines.net.path(place[other][1], device).seconds(size))
            seconds = self.workload.seconds(self.machines.groups[group].type, 1)[op][backward]
            free[device] = ends[op] = start + seconds
        return max(ends.values(), default=0.0)

    def places(self, group: int, chosen: tuple[int, ...]) -> dict[int, tuple[int, str]]:
        """Device group and device of each op of an op group that is spread over the devices of some device groups."""
        ops = self.workload.members[group]
        devices = [(number, name) for number in chosen for name in self.machines.groups[number].devices]
        places = runs([self.workload.mean[op] for op in ops], len(devices))
        return {op: devices[place] for op, place in zip(ops, places, strict=True)}

    def sums(self, segment: int, action: Action, factors: bool) -> Sums:
        """How replicas of a segment agree about its weights."""
        key = segment, action, factors
        if key not in self._sums:
            count, ring = self.machines.count(action.groups), self.machines.ring(action.groups)
            rest, seconds, more = [], 0.0, 0.0
            gradients = self.workload.segments[segment].gradients
            for gradient in gradients:
                if factors and gradient.factors:
                    brought = self.microbatches * ring.seconds(count - 1, gradient.factors / count)
                    extra = self._whole_product(gradient, action, count)
                    if brought + extra < ring.reduce_seconds(count, gradient.size):
                        seconds, more = seconds + brought, more + extra
                        continue
                rest.append(gradient)
            served = action.how is How.PS
            if not served:
                seconds += math.fsum(ring.reduce_seconds(count, gradient.size) for gradient in rest)
            update = sum(gradient.update for gradient in gradients) - (sum(one.update for one in rest) if served else 0)
            self._sums[key] = Sums(seconds, more, update, tuple(rest) if served else (), len(gradients) - len(rest))
        return self._sums[key]

    def _whole_product(self, gradient: Gradient, action: Action, count: int) -> float:
        """Seconds by which the gradient takes longer on the slowest device when it is computed of the whole batch: half of the
        backward pass, which makes both gradients of the product."""
        types = [self.machines.groups[number].type for number in action.groups]
        rows = [(self.workload.seconds(type_, 1), self.workload.seconds(type_, count)) for type_ in types]
        return self.microbatches * max((whole[gradient.op][1] - part[gradient.op][1]) / 2 for whole, part in rows)

    def memory(self, group: int, action: Action) -> tuple[tuple[int, float], ...]:
        """Bytes that an op group needs of a device, by device group."""
        key = group, action
        if key not in self._memory:
            held, saved, ops = self.workload.held, self.workload.saved, self.workload.members[group]
            if action.how is How.MODEL:
                on: dict[tuple[int, str], float] = {}
                for op, place in self.places(group, action.groups).items():
                    on[place] = on.get(place, 0.0) + held[op] + saved[op]
                self._memory[key] = tuple(
                    (number, max((size for place, size in on.items() if place[0] == number), default=0.0))
                    for number in action.groups
                )
            else:
                parts = self.machines.count(action.groups) if action.how.splits else 1
                size = math.fsum(held[op] + saved[op] / (parts if op in self.workload.batch.factors else 1) for op in ops)
                self._memory[key] = tuple((number, size) for number in action.groups)
        return self._memory[key]


class _Step:
    """One step: its tasks, made in the order of the segments, and what they take."""

    def __init__(self, simulator: Simulator, strategy: Sequence[Action], factors: bool) -> None:
        self.simulator, self.factors = simulator, factors
        self.machines, self.segments = simulator.machines, simulator.workload.segments
        self.strategy = strategy
        self.of = [strategy[segment.group] for segment in self.segments]
        self.tasks, self.gathered = _Tasks(), 0
        self.arrived: list[dict[int, list[int]]] = [{} for _ in self.segments]
        self.forward: list[Ends] = [{} for _ in self.segments]
        self.backward: list[Ends] = [{} for _ in self.segments]
        self.updated: list[list[int]] = [[] for _ in self.segments]
        for number in range(len(self.segments)):
            self.run_forward(number)
        self.arrived = [{} for _ in self.segments]
        for number in reversed(range(len(self.segments))):
            self.run_backward(number)
            if self.segments[number].gradients:
                self.synchronise(number)

    def worked(self, number: int, backward: bool, before: dict[int, list[int]]) -> Ends:
        """The tasks of one pass of a segment."""
        made: Ends = {}
        action = self.of[number]
        for groups, *seconds in self.simulator.compute(number, action):
            together = groups if action.how is not How.MODEL else action.groups
            waits = [task for group in together for task in before.get(group, ())]
            task = self.tasks.add(seconds[backward], tuple(f"device group {group}" for group in groups), waits)
            made.update(dict.fromkeys(together, task))
        return made

    def send(self, made: Ends, source: Action, target: Action, size: float) -> dict[int, list[int]]:
        """What the readers of a tensor wait for, by device group."""
        found: dict[int, list[int]] = {group: [made[group]] for group in target.groups if group in made}
        for a, b, part in self.simulator.travels(source, target):
            channel = self.machines.channel(a, b)
            seconds = channel.seconds(size * part, self.simulator.microbatches)
            found.setdefault(b, []).append(self.tasks.add(seconds, channel.media, [made[a]]))
        return found

    def run_forward(self, number: int) -> None:
        made = self.forward[number] = self.worked(number, False, self.arrived[number])
        for bundle in self.simulator.sends[number]:
            sent: dict[Action, dict[int, list[int]]] = {}
            for reader in bundle.readers:
                action = self.of[reader]
                if action not in sent:
                    sent[action] = self.send(made, self.of[number], action, bundle.size)
                self.arrive(reader, sent[action])

    def run_backward(self, number: int) -> None:
        before = {group: [*self.arrived[number].get(group, ()), task] for group, task in self.forward[number].items()}
        made = self.backward[number] = self.worked(number, True, before)
        for bundle in self.simulator.receives[number]:
            if bundle.back:
                self.arrive(bundle.source, self.send(made, self.of[number], self.of[bundle.source], bundle.back))

    def arrive(self, number: int, tasks: dict[int, list[int]]) -> None:
        for group, some in tasks.items():
            self.arrived[number].setdefault(group, []).extend(some)

    def synchronise(self, number: int) -> None:
        """The sum of the gradients of a segment, and the update of its weights."""
        action, made = self.of[number], self.backward[number]
        count = self.machines.count(action.groups)
        if not action.how.splits or count == 1:
            update = sum(gradient.update for gradient in self.segments[number].gradients)
            for group in action.groups:
                self.update(number, group, update / (count if action.how is How.MODEL else 1), list(made.values()))
            return
        sums = self.simulator.sums(number, action, self.factors)
        self.gathered += sums.gathered
        if sums.seconds:
            summed = self.tasks.add(sums.seconds, (COLLECTIVES, *self.machines.crossed(action.groups)), list(made.values()))
            for group in action.groups:
                self.update(number, group, sums.update, [summed], sums.more)
        if sums.served:
            self.serve(number, sums.served)

    def update(self, number: int, group: int, moved_bytes: float, before: Sequence[int], more: float = 0.0) -> int:
        seconds = more + update_seconds(moved_bytes, self.machines.groups[group].type)
        task = self.tasks.add(seconds, (f"device group {group}",), before)
        self.updated[number].append(task)
        return task

    def serve(self, number: int, gradients: Sequence[Gradient]) -> None:
        """Gradients to servers, updates there, and weights back."""
        action, made = self.of[number], self.backward[number]
        count = self.machines.count(action.groups)
        size = sum(gradient.size for gradient in gradients)
        update = sum(gradient.update for gradient in gradients) / count
        pairs = []
        for a in action.groups:
            for b in action.groups:
                makers, servers = (len(self.machines.groups[group].devices) for group in (a, b))
                messages = makers * (servers - (a == b))
                if messages:
                    channel = self.machines.channel(a, b)
                    pairs.append((a, b, channel.seconds(size * messages / count), channel.media))
        pushed: dict[int, list[int]] = {group: [made[group]] for group in action.groups}
        for a, b, seconds, media in pairs:
            pushed[b].append(self.tasks.add(seconds, media, [made[a]]))
        updated = {group: self.update(number, group, update, pushed[group]) for group in action.groups}
        for a, _, seconds, media in pairs:
            self.updated[number].append(self.tasks.add(seconds, media, [updated[a]]))

    def outcome(self) -> Outcome:
        ends, busy = self.tasks.run()
        count, groups = self.simulator.workload.count, self.machines.groups
        memory = [0.0] * len(groups)
        for number, action in enumerate(self.strategy):
            for group, size in self.simulator.memory(number, action):
                memory[group] += size
        forward, done = [0.0] * count, [0.0] * count
        for number, segment in enumerate(self.segments):
            forward[segment.group] = max(forward[segment.group], *(ends[task] for task in self.forward[number].values()))
            last = (*self.backward[number].values(), *self.updated[number])
            done[segment.group] = max(done[segment.group], *(ends[task] for task in last))
        fits = all(group.memory is None or size <= group.memory for group, size in zip(groups, memory, strict=True))
        used = tuple(busy.get(f"device group {number}", 0.0) for number in range(len(groups)))
        return Outcome(max(ends), tuple(memory), fits, used, tuple(forward), tuple(done), self.gathered)


__all__ = ["COLLECTIVES", "Outcome", "Simulator"]
