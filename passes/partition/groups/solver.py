"""Throughput on devices in groups, exact: dynamic programming over ideals that knows where groups begin and end.

Stages take devices in order; each lies in one group, on up to ``replicas`` of its devices, and any device may be left out.
What a stage pays for a tensor depends on two ideals besides its own: what was made before its group began comes at the outer
price, and what is read after its group ended is sent at it (``along_order``). So the search has two levels:

1. *Relaxed*: only the first stage of a group pays the outer price for what it receives, and only the last for what it sends.
   That is a programme over (ideal, devices so far), forward and backward, and never more than what plans pay: a bound. On
   chains it is exact.
2. *Exact*, where the relaxed optimum does not reach a plan: chains of the ideals at which groups begin. For each begin that
   both sweeps allow, one programme gives for all ends at once what a group costs at least (begin known, end not); where that
   is still good enough, a second one, both ends known, gives what it costs.

Both run over the ideals that a trial value allows, as in ``search``: trial values rise from the lower bound to the best plan
known, and what nothing reaches is a bound. Value and bound of a search that completes depend on nothing but the problem. Of
the reductions those hold that save transfers and add none (``reduce``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from passes.model.interrupts import interruptible
from passes.model.stages.bounds import prices
from passes.model.stages.lattice.ideals import Family, Tables, lattice, members
from passes.model.stages.load import COMM, load
from passes.model.stages.problem import FAR, Floats, Problem, within
from passes.model.stages.reduce import Groups, quotient, reduce
from passes.model.work import did, now
from passes.partition.groups import kernels
from passes.partition.groups.along_order import Hierarchy
from passes.partition.search.replicas import replicate
from passes.partition.search.search import TIGHT, Progress

TRIALS = (0.0, 0.01, 0.1, 0.4, 1.0)
"""Parts of the way from the lower bound to the best plan that are tried."""
MOST_PAIRS = 1_500_000
"""Pairs of ideals kept, 52 bytes each."""
MOST_TESTS = 400_000_000
"""Pairs of ideals looked at in all."""
MOST_STEPS = 300_000_000
"""Pairs times states of one sweep."""
MOST_WORDS = 8_000_000
"""Eight-byte words of a family and of the sweeps over it."""
SLICE = 2_000_000
"""Pairs between two looks at the work done."""


@dataclass(frozen=True)
class GroupStage:
    """``nodes`` on ``replicas`` devices from number ``first`` on, all in one group."""

    first: int
    replicas: int
    nodes: tuple[int, ...]


@dataclass(frozen=True)
class GroupPlan:
    """A plan, its value from the definition (inf without stages), a valid bound and how it was reached."""

    stages: tuple[GroupStage, ...]
    value: float
    bound: float
    reason: str
    ideals: int = 0
    pairs: int = 0
    interrupted: bool = False


def group_parts(problem: Problem, hierarchy: Hierarchy, stages: Sequence[GroupStage]) -> list[tuple[float, float, float]]:
    """Seconds per sample of compute, receiving and sending of each device of each stage, from the definition: a tensor is
    received once by every stage that reads it, at the outer price from another group, and sent once, at the outer price if a
    reader is in another group."""
    stage_of = {v: s for s, stage in enumerate(stages) for v in stage.nodes}
    group = [stage.first // hierarchy.size for stage in stages]
    costs = (hierarchy.seconds(False), hierarchy.seconds(True))
    receive, send = [0.0] * len(stages), [0.0] * len(stages)
    for h, (maker, readers) in enumerate(zip(problem.producer.tolist(), problem.consumers, strict=True)):
        source = stage_of[maker]
        there = sorted({stage_of[v] for v in readers} - {source})
        apart = [group[s] != group[source] for s in there]
        for s, outer in zip(there, apart, strict=True):
            receive[s] += costs[outer][h]
        if there:
            send[source] += costs[any(apart)][h]
    found = []
    for stage, into, out in zip(stages, receive, send, strict=True):
        compute = float(problem.seconds[0, list(stage.nodes)].sum())
        found.append((compute / stage.replicas, into / stage.replicas, out / stage.replicas))
    return found


def group_value(problem: Problem, hierarchy: Hierarchy, stages: Sequence[GroupStage]) -> float:
    """The largest load, from the definition."""
    return max((load(problem.comm, *parts) for parts in group_parts(problem, hierarchy, stages)), default=0.0)


def packed(stages: Sequence[tuple[int, Sequence[int]]], size: int, groups: int) -> tuple[GroupStage, ...] | None:
    """Stages of (replicas, nodes) on the devices in order, a new group begun where the one at hand has too few left; None where
    the groups do not do."""
    found: list[GroupStage] = []
    free = 0
    for replicas, nodes in stages:
        if free % size + replicas > size:
            free += size - free % size
        found.append(GroupStage(free, replicas, tuple(nodes)))
        free += replicas
    return tuple(found) if free <= groups * size else None


def solve_groups(
    problem: Problem,
    hierarchy: Hierarchy,
    groups: int,
    start: GroupPlan,
    *,
    replicas: int = 1,
    seconds: float = 10.0,
    progress: Progress = lambda label, fraction: None,
) -> GroupPlan:
    """The best plan on ``groups`` groups, or ``start`` where the budget finds no better one; ``start``: a plan with a bound
    that holds for all. ``problem``: one kind of devices without replicas or demands, each weight with one reader; its
    transfers are those inside a group (``hierarchy.once``). An interrupt from the keyboard ends the search with its best."""
    joined = reduce(problem, certain=True)
    search = _Search(problem, joined, hierarchy, groups, replicas, start, seconds, progress)
    interrupted = False
    try:
        with interruptible():
            search.run()
    except KeyboardInterrupt:
        interrupted = True
    return replace(search.best, interrupted=interrupted)


def supported(problem: Problem) -> bool:
    """Whether ``solve_groups`` takes the problem."""
    shared = any(len(readers) > 1 for readers in problem.weight_readers)
    return len(problem.kinds) == 1 and not (shared or problem.live.any() or problem.forced or problem.stages)


class _Search:
    def __init__(
        self,
        problem: Problem,
        joined: Groups,
        hierarchy: Hierarchy,
        groups: int,
        replicas: int,
        start: GroupPlan,
        seconds: float,
        progress: Progress,
    ) -> None:
        self.whole, self.joined = problem, joined
        # Named by their numbers, so that those that are left can be told.
        numbered = replace(problem, tensor_names=tuple(map(str, range(len(problem.consumers)))))
        self.problem = quotient(numbered, joined)
        kept = [int(name) for name in self.problem.tensor_names]
        self.near, self.far = hierarchy.seconds(False)[kept], hierarchy.seconds(True)[kept]
        self.hierarchy, self.best, self.progress = hierarchy, start, progress
        self.deadline = now() + seconds
        # No stage is empty, so more groups, or devices in a group, than these are never used.
        self.replicas = min(replicas, hierarchy.size)
        self.groups = min(groups, len(joined))
        self.size = min(hierarchy.size, len(joined) * self.replicas)
        self.tests = 0

    def run(self) -> None:
        low, high = self.best.bound, self.best.value
        for part in TRIALS:
            trial = min(low + part * (high - low), high) * (1 + TIGHT / 4)
            if self.best.bound < trial and not self._tight() and not self._at(trial):
                return
            if self._tight():
                return

    def _tight(self) -> bool:
        return self.best.value <= self.best.bound * (1 + TIGHT) or self.best.value == self.best.bound == 0

    def _left(self) -> float:
        return self.deadline - now()

    def _keep_on(self, part: float | None) -> bool:
        self.progress("partition: groups", part)
        return self._left() > 0 and self.tests <= MOST_TESTS

    def _raise(self, bound: float, reason: str) -> None:
        if bound > self.best.bound:
            self.best = replace(self.best, bound=min(bound, self.best.value), reason=reason)

    def _at(self, trial: float) -> bool:
        """Plans of value at most ``trial``; False where the budget is spent."""
        narrowed = within(self.problem, trial * self.replicas)
        tables = Tables(wide := replicate(narrowed, self.replicas) if self.replicas > 1 else narrowed, prices(wide))
        visits = min(5_000_000, int(max(self._left(), 0.1) * 500_000))
        family = lattice(tables, trial, max_visits=visits, max_words=MOST_WORDS)
        if family is None or not self._keep_on(None):
            return False
        states = self.groups * self.size + 1
        self.best = replace(self.best, ideals=max(self.best.ideals, family.size))
        if 2 * family.size * states > MOST_WORDS:
            return False
        level = _Level(self, tables, family, trial)
        if not level.price() or len(level.pairs.before) * states * self.replicas > MOST_STEPS or not self._keep_on(0.2):
            return False
        self.best = replace(self.best, pairs=max(self.best.pairs, len(level.pairs.before)))
        relaxed = level.sweep(states)
        # Sums over ideals are rounded.
        least = min(relaxed, trial) * (1 - TIGHT / 2)
        self._raise(least, "dynamic programme over ideals: groups pay the outer price where they begin and end")
        if relaxed > trial or self._tight():
            return True
        found = level.exact()
        if found is None:
            return False
        stages, value = found
        if stages is None:
            self._raise(trial * (1 - TIGHT / 2), "dynamic programme over ideals and groups: nothing is better by more")
            return True
        stages = tuple(replace(s, nodes=tuple(sorted(v for g in s.nodes for v in self.joined[g]))) for s in stages)
        true = group_value(self.whole, self.hierarchy, stages)
        if true < self.best.value:
            self.best = replace(self.best, stages=stages, value=true)
        self._raise(min(value * (1 - TIGHT / 2), true), "dynamic programme over ideals and groups")
        return True


class _Level:
    """The ideals that a trial value allows, the pairs between them, and the programmes over these."""

    def __init__(self, search: _Search, tables: Tables, family: Family, trial: float) -> None:
        self.search, self.tables, self.family, self.trial = search, tables, family, trial
        problem, size = tables.problem, search.size
        # Where numbers that mean never were cut down, the outer price only has to stay over the trial value.
        near = np.minimum(search.near, problem.transfer[0])
        self.ideals = kernels.Ideals(
            mode=COMM.index(problem.comm),
            bits=family.bits,
            compute=np.ascontiguousarray(family.sums[:, 1]),
            own=np.ascontiguousarray(family.sums[:, tables.at_weights]),
            cut_start=family.cut_start,
            cut_end=family.cut_end,
            cut=family.cut,
            pin_ptr=tables.pin_ptr,
            pin=tables.pin,
            near=near,
            far=np.minimum(search.far, np.maximum(near, FAR * trial * search.replicas)),
            buffers=tables.tensor_bytes,
        )
        before = np.empty(MOST_PAIRS, np.int32)
        self.pairs = kernels.Pairs(np.zeros(family.size + 1, np.int64), before, np.empty((len(before), kernels.AMOUNTS)))
        self.forward: Floats = np.empty(0)
        self.backward: Floats = np.empty(0)
        self.group = kernels.Group(
            value=np.empty((size + 1, family.size)),
            closed=np.empty(family.size),
            pair_of=np.zeros((size + 1, family.size), np.int32),
            with_replicas=np.zeros((size + 1, family.size), np.int16),
        )

    def price(self) -> bool:
        """False where there are too many pairs, or too little time."""
        limit, family = self.search.problem.kinds[0].memory, self.family
        room = np.inf if limit is None else float(limit)
        ideal, filled = 1, 0
        while ideal < family.size:
            ideal, filled, tests = kernels.price_pairs(
                ideal, self.trial * self.search.replicas, room, self.ideals, self.pairs, SLICE, filled
            )
            self.search.tests += int(tests)
            did("tested", int(tests))
            if filled < 0 or not self.search._keep_on(0.2 * ideal / family.size):
                return False
        self.pairs = kernels.Pairs(self.pairs.ends, self.pairs.before[:filled], self.pairs.amounts[:filled])
        return True

    def sweep(self, states: int) -> float:
        """The relaxed optimum, inf over the trial value."""
        value = np.empty((2, self.family.size, states))
        most = self.trial * (1 + TIGHT / 4)
        kernels.sweep(self.ideals.mode, self.search.size, self.search.replicas, most, self.pairs, value)
        did("tested", 2 * len(self.pairs.before) * states)
        self.forward, self.backward = value
        return float(self.forward[-1].min())

    def exact(self) -> tuple[tuple[GroupStage, ...] | None, float] | None:
        """The best plan at most the trial value and that value (None without one); None where the budget is spent."""
        search, count = self.search, self.family.size
        size, last = search.size, self.family.size - 1
        reached = np.full((search.groups + 1, count), np.inf)
        came = np.full((search.groups + 1, count), -1, np.int64)
        reached[0, 0] = 0.0
        known: dict[tuple[int, int], float] = {}
        most = self.trial * (1 + TIGHT / 4)
        for group in range(search.groups):
            ahead = self.backward[:, (group + 1) * size]
            for begin in np.flatnonzero(np.maximum(reached[group], self.backward[:, group * size]) <= most).tolist():
                if begin == last:
                    continue
                self._group(begin, -1, most)
                least = np.maximum(np.maximum(self.group.closed, ahead), reached[group, begin])
                least[: begin + 1] = np.inf
                for end in np.flatnonzero((least <= most) & (least < reached[group + 1])).tolist():
                    if (begin, end) not in known:
                        # Nothing is read after the last ideal, so its cost is exact already.
                        known[begin, end] = float(self.group.closed[end]) if end == last else np.inf
                        if end != last:
                            kept = self.group.closed.copy()
                            known[begin, end] = self._group(begin, end, most)
                            self.group.closed[:] = kept
                    worst = max(reached[group, begin], known[begin, end])
                    if worst <= most and worst < reached[group + 1, end]:
                        reached[group + 1, end], came[group + 1, end] = worst, begin
                        if end == last:
                            most = min(most, worst)
                if not search._keep_on(0.2 + 0.8 * (group + begin / count) / search.groups):
                    return None
        value = float(reached[:, last].min())
        if not np.isfinite(value):
            return None, value
        group = int(reached[:, last].argmin())
        stages: list[GroupStage] = []
        end = last
        while group > 0:
            begin = int(came[group, end])
            stages += self._stages(group - 1, begin, end, value * (1 + TIGHT / 4))
            group, end = group - 1, begin
        return tuple(sorted(stages, key=lambda stage: stage.first)), value

    def _group(self, begin: int, end: int, most: float) -> float:
        """Fills the closed costs of a group; the exact one where its ``end`` is given."""
        reached, met = kernels.group_programme(
            begin, end, self.search.size, self.search.replicas, most, self.ideals, self.pairs, self.group
        )
        closed = self.group.closed
        closed[:begin] = np.inf
        closed[reached:] = np.inf
        self.search.tests += int(met)
        did("tested", int(met))
        return float(closed[end]) if 0 <= end < reached else np.inf

    def _stages(self, group: int, begin: int, end: int, most: float) -> list[GroupStage]:
        """The stages of one group between two ideals, fewest devices first."""
        self._group(begin, end, most)
        devices = int(self.group.value[:, end].argmin())
        found: list[tuple[int, tuple[int, ...]]] = []
        here = end
        while here != begin:
            pair, replicas = int(self.group.pair_of[devices, here]), int(self.group.with_replicas[devices, here])
            before = int(self.pairs.before[pair])
            found.append((replicas, members(self.tables, self.family.bits[here] & ~self.family.bits[before])))
            here, devices = before, devices - replicas
        stages, first = [], group * self.search.hierarchy.size
        for replicas, nodes in reversed(found):
            stages.append(GroupStage(first, replicas, nodes))
            first += replicas
        return stages


__all__ = ["GroupPlan", "GroupStage", "group_parts", "group_value", "packed", "solve_groups", "supported"]
