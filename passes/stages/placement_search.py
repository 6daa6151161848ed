"""The search for the best placement: which device runs which stage.

``search`` keeps what is fixed and minimises the value; seconds of all transfers decide between placements of one value that it
meets, and are not proven least. The start is the better of two greedy placements, improved by exchanging and moving stages
around the bottleneck. If that leaves a distance to the least value that ports allow, a branch and bound proves it or improves
it, trying one of several devices that can be exchanged: of one class (``device_classes``), or on hosts that nothing runs on
yet and that are alike. Both count the placements they look at and stop at a given number, so the result does not depend on the
speed of the machine unless it is told to end before.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ir.core.outcomes import SLACK
from passes.costs.host_classes import host_classes
from passes.costs.network import device_classes
from passes.stages.load import load as combined
from passes.stages.placement import Placement, PlacementProblem, shared_loads

NODES = 20_000
"""Placements of 8 stages that a search looks at."""


def search(
    problem: PlacementProblem, nodes: int = NODES, keep_on: Callable[[], bool] = lambda: True
) -> tuple[Placement | None, bool]:
    """The best placement found and whether it is proven best; None when the stages do not all find a device. ``nodes``: how
    many placements of 8 stages each of its two phases looks at; of more stages, or of more pairs of replicas that send to each
    other, proportionally fewer, so that the time stays alike. Ends with what it has when ``keep_on``, asked once for each
    placement it looks at, says so."""
    starts = [start for start in (_in_order(problem), _greedy(problem)) if start is not None]
    if not starts:
        found = _matched(problem)
        if found is None:
            return None, True
        starts = [found]
    best = min(starts, key=lambda start: _key(problem, start))
    nodes = nodes * 8 // max(8, _routes(problem))
    best = _improve(problem, best, nodes, keep_on)
    if problem.value(best) <= problem.floor * (1 + SLACK):
        return best, True
    if max(problem.replicas, default=1) > 1:
        return best, False
    tree = BranchAndBound(problem, nodes, best, problem.value(best), keep_on)
    tree.run()
    return tree.best, tree.visited < tree.limit


def _routes(problem: PlacementProblem) -> int:
    """What a look at one placement takes: a step for each stage, and one for each further pair of replicas on a channel."""
    pairs = (math.lcm(problem.replicas[one.source], problem.replicas[one.target]) for one in problem.messages)
    return problem.size + sum(count - 1 for count in pairs)


def _key(problem: PlacementProblem, chosen: Placement) -> tuple[float, float]:
    """``value`` and ``transfers``, with each stage looked at once."""
    parts = [problem.parts(stage, chosen) for stage in range(problem.size)]
    loads = shared_loads(problem.comm, parts, chosen)
    value = max((*loads, *problem.busy(chosen).values()), default=0.0)
    return value, math.fsum(sum(own[1:]) for own in parts)


def _in_order(problem: PlacementProblem) -> Placement | None:
    """Stages on the devices in the topology's order: neighbours there are near each other. None where a stage is left over."""
    used = {device for devices in problem.fixed for device in devices}
    chosen: list[tuple[int, ...]] = []
    for stage, given in enumerate(problem.fixed):
        wanted = problem.replicas[stage]
        devices = given or tuple(d for d in problem.candidates(stage) if d not in used)[:wanted]
        if len(devices) < wanted:
            return None
        chosen.append(devices)
        used.update(devices)
    return tuple(chosen)


def _greedy(problem: PlacementProblem) -> Placement | None:
    """Stages one after the other, each where it costs least beside those before it."""
    used = {device for devices in problem.fixed for device in devices}
    chosen: list[tuple[int, ...]] = list(problem.fixed)
    for stage, given in enumerate(problem.fixed):
        if given:
            continue
        options = [d for d in problem.candidates(stage) if d not in used]
        if len(options) < problem.replicas[stage]:
            return None

        def cost(device: int, stage: int = stage) -> float:
            near = sum(
                problem.receive_seconds(c, chosen[problem.messages[c].source][0], device)
                for c in problem.received[stage]
                if chosen[problem.messages[c].source]
            )
            return problem.compute[stage][device] + near

        chosen[stage] = tuple(sorted(options, key=lambda d: (cost(d), d))[: problem.replicas[stage]])
        used.update(chosen[stage])
    return tuple(chosen)


def _matched(problem: PlacementProblem) -> Placement | None:
    """Any placement: augmenting paths, for stages that compete for few devices with enough memory."""
    taken = {device: -1 for devices in problem.fixed for device in devices}
    holder: dict[int, int] = dict(taken)

    def place(stage: int, seen: set[int]) -> bool:
        for device in problem.candidates(stage):
            if device in seen or device in taken:
                continue
            seen.add(device)
            if device not in holder or place(holder[device], seen):
                holder[device] = stage
                return True
        return False

    for stage, given in enumerate(problem.fixed):
        if not given and not all(place(stage, set()) for _ in range(problem.replicas[stage])):
            return None
    devices_of: dict[int, list[int]] = defaultdict(list)
    for device, stage in sorted(holder.items()):
        devices_of[stage].append(device)
    return tuple(given or tuple(devices_of[stage]) for stage, given in enumerate(problem.fixed))


def _improve(problem: PlacementProblem, start: Placement, limit: int, keep_on: Callable[[], bool]) -> Placement:
    """Local search: the first exchange or move of a stage at the bottleneck, or beside it, that lowers the key; until none
    does."""
    best, key, looked = start, _key(problem, start), 0
    improved = True
    while improved and looked < limit and key[0] > problem.floor * (1 + SLACK):
        improved = False
        for candidate in _moves(problem, best):
            looked += 1
            found = _key(problem, candidate)
            if found < (key[0] * (1 - SLACK), 0.0) or (found[0] <= key[0] and found[1] < key[1] * (1 - SLACK)):
                best, key, improved = candidate, found, True
                break
            if looked >= limit or not keep_on():
                return best
    return best


def _moves(problem: PlacementProblem, chosen: Placement) -> Iterator[Placement]:
    loads, busy = problem.loads(chosen), problem.busy(chosen)
    worst = max((*loads, *busy.values()))
    hot = {stage for stage, load in enumerate(loads) if load >= worst * (1 - SLACK)}
    for channel, message in enumerate(problem.messages):
        ends = {message.source, message.target}
        media = problem.media(channel, chosen[message.source][0], chosen[message.target][0])
        if ends & hot or any(busy[name] >= worst * (1 - SLACK) for name, _ in media):
            hot = hot | {stage for stage in ends if any(busy[name] >= worst * (1 - SLACK) for name, _ in media)}
    near = {s for m in problem.messages if m.source in hot or m.target in hot for s in (m.source, m.target)}
    used = {device for devices in chosen for device in devices}
    for stage in sorted(hot | near):
        if problem.fixed[stage]:
            continue
        for device in problem.candidates(stage):
            if device not in used:
                yield from (_put(chosen, (stage, place, device)) for place in range(len(chosen[stage])))
        for other in range(problem.size):
            if other == stage or problem.fixed[other]:
                continue
            for (i, here), (j, there) in itertools.product(enumerate(chosen[stage]), enumerate(chosen[other])):
                if math.isfinite(problem.compute[stage][there]) and math.isfinite(problem.compute[other][here]):
                    yield _put(chosen, (stage, i, there), (other, j, here))


def _put(chosen: Placement, *changes: tuple[int, int, int]) -> Placement:
    """The placement with other devices: (stage, place among its devices, device) each."""
    found = [list(devices) for devices in chosen]
    for stage, place, device in changes:
        found[stage][place] = device
    return tuple(tuple(devices) for devices in found)


@dataclass
class BranchAndBound:
    """Branch and bound over stages in order: a partial placement costs at least what its stages cost with the rest at their
    ports."""

    problem: PlacementProblem
    limit: int
    best: Placement
    value: float
    keep_on: Callable[[], bool] = lambda: True
    visited: int = 0
    chosen: list[tuple[int, ...]] = field(default_factory=list)

    def run(self) -> None:
        topology = self.problem.topology
        numbers = {device.name: i for i, device in enumerate(topology.devices)}
        self.class_of = {numbers[name]: c for c, names in enumerate(device_classes(topology)) for name in names}
        self.host_of = [device.host for device in topology.devices]
        self.like = host_classes(topology)
        ordinals: dict[str, dict[int, int]] = defaultdict(dict)
        self.ordinal = []
        for device, host in enumerate(self.host_of):
            classes = ordinals[host]
            self.ordinal.append(classes.setdefault(self.class_of[device], len(classes)))
        self.chosen = list(self.problem.fixed)
        self._descend(0)

    def _descend(self, stage: int) -> None:
        problem = self.problem
        while stage < problem.size and problem.fixed[stage]:
            stage += 1
        if stage == problem.size:
            value = problem.value(tuple(self.chosen))
            if value < self.value * (1 - SLACK):
                self.best, self.value = tuple(self.chosen), value
            return
        options = []
        for device in self._distinct(stage):
            if self.visited >= self.limit:
                return
            self.visited += 1
            if not self.keep_on():
                self.limit = self.visited
            self.chosen[stage] = (device,)
            options.append((self._bound(), device))
        for bound, device in sorted(options):
            if bound >= self.value * (1 - SLACK) or self.value <= problem.floor * (1 + SLACK):
                break
            self.chosen[stage] = (device,)
            self._descend(stage + 1)
        self.chosen[stage] = ()

    def _distinct(self, stage: int) -> Iterator[int]:
        """Free devices for the stage, one of those that can be exchanged."""
        used = {device for devices in self.chosen for device in devices}
        busy_hosts = {self.host_of[device] for device in used}
        tried: set[tuple[int, ...]] = set()
        for device in self.problem.candidates(stage):
            host = self.host_of[device]
            key = (self.class_of[device],) if host in busy_hosts else (self.like[host], self.ordinal[device])
            if device not in used and key not in tried:
                tried.add(key)
                yield device

    def _bound(self) -> float:
        problem, chosen = self.problem, self.chosen
        worst = 0.0
        busy: dict[str, float] = defaultdict(float)
        for stage, devices in enumerate(chosen):
            if not devices:
                continue
            receive = send = 0.0
            for channel in problem.received[stage]:
                source = chosen[problem.messages[channel].source]
                receive += (
                    max(problem.receive_seconds(channel, a, b) for a in source for b in devices)
                    if source
                    else min(problem.port_seconds(channel, b) for b in devices)
                )
            for channels in problem.sent[stage]:
                to = [chosen[problem.messages[channel].target] for channel in channels]
                if all(to):
                    send += math.fsum(problem.slowest_sends(channels, tuple(chosen))[0])
                else:
                    away = sum(target != devices for target in to)  # a reader on the sender's own device costs nothing
                    send += min(problem.port_seconds(channels[0], a, away) for a in devices)
                for channel, target in zip(channels, to, strict=True):
                    for a, b in itertools.product(devices, target):
                        for name, seconds in problem.media(channel, a, b):
                            busy[name] += seconds / (len(devices) * len(target))
            compute = max(problem.compute[stage][device] for device in devices)
            worst = max(worst, combined(problem.comm, compute, receive, send) / len(devices))
        return max((worst, *busy.values()))
