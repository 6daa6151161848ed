"""The search for the best placement: which device runs which stage.

``PlacementSearch`` keeps what is fixed and minimises the value; seconds of all transfers decide between placements of one value
that it meets, and are not proven least. The start is the better of two greedy placements, improved by exchanging and moving
stages around the bottleneck. If that leaves a distance to the least value that ports allow, a branch and bound proves it or
improves it, trying one of several devices that can be exchanged: of one class (``device_classes``), or on hosts that nothing
runs on yet and that are alike. Both count the placements they look at and stop at a given number, so the result does not depend
on the speed of the machine unless it is told to end before.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator

from ir.core.outcomes import SLACK
from passes.costs.host_classes import host_classes
from passes.costs.network import device_classes
from passes.solvers.anytime import Anytime, Limits, Progress
from passes.solvers.work import did
from passes.stages.load import load as combined
from passes.stages.placement import Placement, PlacementProblem, shared_loads

NODES = 20_000
"""Placements of 8 stages that a search looks at."""
NO_LIMITS = Limits()


class PlacementSearch(Anytime[Placement]):
    """The search for the best placement of a problem; ``infeasible``: the stages do not all find a device. ``nodes``: how many
    placements of 8 stages each of its two phases looks at; of more stages, or of more pairs of replicas that send to each
    other, proportionally fewer, so that the time stays alike."""

    def __init__(
        self,
        problem: PlacementProblem,
        limits: Limits = NO_LIMITS,
        nodes: int = NODES,
        progress: Progress = lambda label, fraction: None,
    ) -> None:
        super().__init__(limits, progress, (problem.floor, "the least loads that ports allow"), SLACK)
        self.problem = problem
        self.nodes = nodes * 8 // max(8, _routes(problem))

    def run(self) -> Placement | None:
        """The best placement found; None where there is none."""
        self.search(self._phases)
        return self.best

    def _phases(self) -> None:
        problem = self.problem
        starts = [start for start in (_in_order(problem), _greedy(problem)) if start is not None]
        found = min(starts, key=lambda start: _key(problem, start)) if starts else _matched(problem)
        if found is None:
            self.infeasible = True
            return
        self.keep(found, problem.value(found))
        self._improve(found)
        if self.tight() or max(problem.replicas, default=1) > 1:
            return
        tree = BranchAndBound(self, self.nodes)
        tree.run()
        if tree.visited < tree.limit:
            self.tell(self.value, "every placement, one of those that differ in names alone")

    def keep_on(self) -> bool:
        """Counts a placement that is looked at; whether time is left for another."""
        self.progress("place", None)
        did("placement", self.problem.size)
        return self.left() > 0

    def _improve(self, start: Placement) -> None:
        """Local search: the first exchange or move of a stage at the bottleneck, or beside it, that lowers the key; until none
        does."""
        problem, key, looked, improved = self.problem, _key(self.problem, start), 0, True
        while improved and looked < self.nodes and not self.tight():
            improved = False
            for candidate in _moves(problem, self.best or start):
                looked += 1
                found = _key(problem, candidate)
                if found < (key[0] * (1 - SLACK), 0.0) or (found[0] <= key[0] and found[1] < key[1] * (1 - SLACK)):
                    self.best, self.value, key, improved = candidate, found[0], found, True
                    break
                if looked >= self.nodes or not self.keep_on():
                    return


def _routes(problem: PlacementProblem) -> int:
    """What a look at one placement takes: a step for each stage, and one for each further pair of replicas on a channel."""
    turns = [len(problem.turns(stage)) or replicas for stage, replicas in enumerate(problem.replicas)]
    pairs = (math.lcm(turns[one.source], turns[one.target]) for one in problem.messages)
    return problem.size + sum(count - 1 for count in pairs)


def _key(problem: PlacementProblem, chosen: Placement) -> tuple[float, float]:
    """``value`` and ``transfers``, with each stage looked at once."""
    parts = [problem.parts(stage, chosen) for stage in range(problem.size)]
    loads = problem.loads(chosen) if problem.serving else shared_loads(problem.comm, parts, chosen)
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


def _moves(problem: PlacementProblem, chosen: Placement) -> Iterator[Placement]:
    loads, busy = problem.loads(chosen), problem.busy(chosen)
    worst = max((*loads, *busy.values()))
    hot = {stage for stage, load in enumerate(loads) if load >= worst * (1 - SLACK)}
    for channel, message in enumerate(problem.messages):
        ends = {message.source, message.target}
        pairs = (
            set(problem.pairs(message, chosen)) if problem.serving else {(chosen[message.source][0], chosen[message.target][0])}
        )
        media = {name for pair in pairs for name, _ in problem.media(channel, *pair)}
        if any(busy[name] >= worst * (1 - SLACK) for name in media):
            hot = hot | ends
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


class BranchAndBound:
    """Branch and bound over stages in order: a partial placement costs at least what its stages cost with the rest at their
    ports. ``search`` keeps what it finds; ``limit``: of partial placements ``visited``."""

    def __init__(self, search: PlacementSearch, limit: int) -> None:
        self.search, self.problem, self.limit = search, search.problem, limit
        self.visited = 0
        self.chosen: list[tuple[int, ...]] = []

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
            if value < self.search.value * (1 - SLACK):
                self.search.keep(tuple(self.chosen), value)
            return
        options = []
        for device in self._distinct(stage):
            if self.visited >= self.limit:
                return
            self.visited += 1
            if not self.search.keep_on():
                self.limit = self.visited
            self.chosen[stage] = (device,)
            options.append((self._bound(), device))
        for bound, device in sorted(options):
            if bound >= self.search.value * (1 - SLACK) or self.search.tight():
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
