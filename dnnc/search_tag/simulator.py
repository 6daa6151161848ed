"""TAG's simulator: seconds and memory of a training step in which each op group runs with its action.

Every device group has one first-come, first-served queue: its devices all run the same at the same time. The media between
device groups have queues too, and a transfer occupies all media that it crosses. All collectives share one queue.

- A segment of an op group runs forward on each device group of its action once its inputs have arrived, and backward once its
  forward pass has ended and the gradients of its outputs have arrived. Seconds of ops and of transfers are dnnc's own
  (``Workload.seconds``, ``Machines.channel``, ``passes.costs.exchange``).
- After the backward pass, gradients are summed, then weights are updated. ``all_reduce``: rings of all devices sum the whole
  gradient, as its part of a bucket. ``ps``: each device sends every server its part and receives its part of the weights.
- ``model``: the ops of an op group are cut, in order, into runs of equal seconds, one per device. A segment occupies all device
  groups that have ops of it until its last op has ended.
- With *factors* (SFB, for the strategy that the search found): a gradient is a product of two factors. If it takes less time to
  gather the factors and to multiply them whole on each device than to sum the gradient, they are gathered. TAG's integer
  programme may also repeat ops before the product on every device; here only the product is repeated.

Four errors of TAG's released simulator are corrected: it charges a gradient its size over the number of replicas, takes one
bandwidth for all factors, leaves one feature at 0, and lets a collective occupy no link, so that half of the gradients by
``ps`` and half by ``all_reduce`` would take half the time. Here a collective occupies the media between its device groups.

Memory: weights, gradients, optimizer state, and values kept for the backward pass. A strategy that needs more than a device has
is unfit.
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
from passes.costs.learning import update_seconds

COLLECTIVES = "collectives"
"""Name of the queue of collectives."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of simulating a strategy. For each device group, ``memory``: bytes on a device, ``busy``: seconds. For each op
    group, ``forward``: seconds until its forward pass ends, ``done``: until its weights are updated. ``gathered``: number of
    gradients that are computed from gathered factors."""

    seconds: float
    memory: tuple[float, ...]
    fits: bool
    busy: tuple[float, ...]
    forward: tuple[float, ...]
    done: tuple[float, ...]
    gathered: int = 0


@dataclass
class _Tasks:
    """Tasks that wait for other tasks and for the queues that they occupy."""

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
        """The end of each task, and the busy seconds of each queue. Tasks start in the order in which they become ready, ties
        by number: in a queue, no task overtakes one that was ready earlier."""
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
    """The gradients of a segment: ``seconds`` of its collectives, ``more``: seconds of products that each device computes
    whole, bytes that the ``update`` after both moves; the gradients that parameter servers sum, and the number of gradients
    computed from gathered factors."""

    seconds: float
    more: float
    update: int
    served: tuple[Gradient, ...]
    gathered: int


Ends = dict[int, int]
"""The task by device group."""


class Simulator:
    """Simulates a workload on machines; ``microbatches``: consecutive runs of the model in a step."""

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
        """Data parallel on all devices with all-reduce; if that does not fit, ``model`` on all devices."""
        count, first = self.workload.count, self.actions[0]
        strategy, outcome = (first,) * count, self.run((first,) * count)
        if not outcome.fits and self.machines.count(first.groups) > 1:
            strategy = (Action(first.groups, How.MODEL),) * count
            outcome = self.run(strategy)
        return strategy, outcome

    def reward(self, outcome: Outcome) -> float:
        """T_base / T - 1, its fourth root if above 1; -1 if memory does not suffice. The root, which TAG's released code takes
        too, keeps rewards small: an untried action has the mean 0 and would never be tried beside rewards of 10."""
        if not outcome.fits:
            return -1.0
        gain = self.baseline[1].seconds / outcome.seconds - 1 if outcome.seconds else 0.0
        return gain if gain <= 1 else math.sqrt(math.sqrt(gain))

    def run(self, strategy: Sequence[Action], *, factors: bool = False) -> Outcome:
        """Simulates a step in which each op group runs with its action."""
        return _Step(self, strategy, factors).outcome()

    # -- independent of other op groups -----------------------------------------------------------------------

    def travels(self, source: Action, target: Action) -> tuple[tuple[int, int, float], ...]:
        """Source, target and share of each transfer of ``moved``."""
        key = source, target
        if key not in self._moved:
            self._moved[key] = tuple((a, b, part) for (a, b), part in moved(self.machines, source, target).items())
        return self._moved[key]

    def compute(self, segment: int, action: Action) -> tuple[tuple[tuple[int, ...], float, float], ...]:
        """The device groups that run together, with their seconds in the forward and in the backward pass."""
        key = segment, action
        if key not in self._compute:
            self._compute[key] = self._spread(segment, action) if action.how is How.MODEL else self._replicas(segment, action)
        return self._compute[key]

    def _replicas(self, segment: int, action: Action) -> tuple[tuple[tuple[int, ...], float, float], ...]:
        parts = self.machines.count(action.groups) if action.how.splits else 1
        computed = []
        for number in action.groups:
            rows = self.workload.seconds(self.machines.groups[number].type, parts)
            passes = [rows[op] for op in self.workload.segments[segment].ops]
            forward, backward = (self.microbatches * math.fsum(column) for column in zip(*passes, strict=True))
            computed.append(((number,), forward, backward))
        return tuple(computed)

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
        """Makespan of ops in this order. Each runs on its device after those ``before`` it, whose tensors it receives."""
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
        """Device group and device of each op of an op group with the way ``model``."""
        ops = self.workload.members[group]
        devices = [(number, name) for number in chosen for name in self.machines.groups[number].devices]
        places = runs([self.workload.mean[op] for op in ops], len(devices))
        return {op: devices[place] for op, place in zip(ops, places, strict=True)}

    def sums(self, segment: int, action: Action, factors: bool) -> Sums:
        """How replicas of a segment sum the gradients of its weights."""
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
        """Additional seconds on the slowest device to compute a gradient for the whole batch: half of the additional backward
        pass, which computes both gradients of the product."""
        types = [self.machines.groups[number].type for number in action.groups]
        rows = [(self.workload.seconds(type_, 1), self.workload.seconds(type_, count)) for type_ in types]
        return self.microbatches * max((whole[gradient.op][1] - part[gradient.op][1]) / 2 for whole, part in rows)

    def memory(self, group: int, action: Action) -> tuple[tuple[int, float], ...]:
        """Bytes that an op group needs on a device, by device group."""
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
    """One step: its tasks, created in the order of segments, with their seconds."""

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
        """The tasks that readers of a tensor wait for, by device group."""
        waits: dict[int, list[int]] = {group: [made[group]] for group in target.groups if group in made}
        for a, b, part in self.simulator.travels(source, target):
            channel = self.machines.channel(a, b)
            seconds = channel.seconds(size * part, self.simulator.microbatches)
            waits.setdefault(b, []).append(self.tasks.add(seconds, channel.media, [made[a]]))
        return waits

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
        """Adds the tasks that sum the gradients of a segment and update its weights."""
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
        """Adds the tasks that send gradients to servers, update weights there, and send them back."""
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
