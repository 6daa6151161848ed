"""Throughput on devices in groups, exact: dynamic programming over ideals that knows where groups begin and end.

Stages take devices in order; each lies in one group, on up to ``replicas`` of its devices, and any device may be left out.
What a stage pays for a tensor depends on two ideals besides its own: what was made before its group began comes at the outer
price, and what is read after its group ended is sent at it. So the search has two levels:

1. *Relaxed*: only the first stage of a group pays the outer price for what it receives, and only the last for what it sends.
   That is a programme over (ideal, devices so far), forward and backward, and never more than what plans pay: a bound. On
   chains it is exact.
2. *Exact*, where the relaxed optimum does not reach a plan: chains of the ideals at which groups begin. For each begin that
   both sweeps allow, one programme gives for all ends at once what a group costs at least (begin known, end not); where that
   is still good enough, a second one, both ends known, gives what it costs.

Both run over the ideals that a trial value allows, as in ``search``: trial values rise from the lower bound to the best plan
known, and what nothing reaches is a bound. Value and bound of a search that completes depend on nothing but the problem. Of
the reductions those hold that save transfers and add none (``reduce``).

*Along an order* (``best_along``) the same programmes run over the prefixes of one topological order alone, groups full but for
the last: a plan in about a second where there are too many ideals, and no bound.

*Why not PipeDream's two rounds* (SOSP 2019, section 3.1: first every group alone, then groups as units of the same split):
there the split inside a group is fixed before it is known where the group begins. Here it is made for every begin.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ir.core.outcomes import TIGHT, outcome
from passes.partition.lattice.groups import kernels
from passes.partition.lattice.search.replicas import replicate
from passes.solvers.anytime import Anytime, Limits, Progress, Result
from passes.solvers.work import did, now
from passes.stages.arrays import Ints
from passes.stages.bounds import prices
from passes.stages.lattice.dp import Stages
from passes.stages.lattice.ideals import Family, lattice, members, prefixes
from passes.stages.lattice.kernel_arrays import Held
from passes.stages.lattice.tables import Tables
from passes.stages.load import COMM, load
from passes.stages.problem import FAR, Floats, Problem, within
from passes.stages.reduce import Groups, quotient, reduce


@dataclass(frozen=True)
class Policy:
    """The numbers that steer this search (``tests.bench.hierarchy``, ``tests.bench.ablation``)."""

    trials: tuple[float, ...] = (0.0, 0.01, 0.1, 0.4, 1.0)
    """Parts of the way from the lower bound to the best plan that are tried."""
    pairs: int = 1_500_000
    """Pairs of ideals kept, 52 bytes each."""
    tests: int = 400_000_000
    """Pairs of ideals looked at in all."""
    steps: int = 300_000_000
    """Pairs times states of one sweep."""
    words: int = 8_000_000
    """Eight-byte words of a family and of the sweeps over it."""
    round_seconds: float = 2.0
    """Longest search along one order."""
    slice: int = 2_000_000
    """Pairs between two looks at the work done."""


POLICY = Policy()


@dataclass(frozen=True, eq=False)
class Hierarchy:
    """Groups of ``size`` devices. A device pays ``latency`` + ``flow[h]`` seconds to send or receive tensor h: the first of
    both inside its group, the second between groups. ``once``: a tensor is sent once, however many stages read it, and at
    the second price if one of them is in another group; else its bytes are sent to each, with the longest latency once."""

    size: int
    latency: tuple[float, float]
    flow: tuple[Floats, Floats]
    once: bool = False

    def seconds(self, outer: bool, times: Ints | int = 1) -> Floats:
        """Of each tensor, with its bytes sent ``times`` times."""
        return self.latency[outer] + times * self.flow[outer]


@dataclass(frozen=True)
class GroupStage:
    """``nodes`` on ``replicas`` devices from number ``first`` on, all in one group."""

    first: int
    replicas: int
    nodes: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class GroupPlan(Result):
    """A plan, its value from the definition (inf without stages)."""

    stages: tuple[GroupStage, ...]
    ideals: int = 0
    pairs: int = 0


def group_plan(stages: tuple[GroupStage, ...], value: float, bound: float, reason: str) -> GroupPlan:
    """The plan with a bound of all plans."""
    return GroupPlan(stages=stages, value=value, bound=min(bound, value), status=outcome(value, bound), reason=reason)


def group_parts(problem: Problem, hierarchy: Hierarchy, stages: Sequence[GroupStage]) -> list[tuple[float, float, float]]:
    """Seconds per sample of compute, receiving and sending of each device of each stage, from the definition: every stage that
    reads a tensor receives it once from the one that makes it, which sends it as ``hierarchy`` says."""
    stage_of = {v: s for s, stage in enumerate(stages) for v in stage.nodes}
    group = [stage.first // hierarchy.size for stage in stages]
    receive, send = [0.0] * len(stages), [0.0] * len(stages)
    for h, (maker, readers) in enumerate(zip(problem.producer.tolist(), problem.consumers, strict=True)):
        source = stage_of[maker]
        there = sorted({stage_of[v] for v in readers} - {source})
        apart = [group[s] != group[source] for s in there]
        for s, outer in zip(there, apart, strict=True):
            receive[s] += hierarchy.latency[outer] + hierarchy.flow[outer][h]
            send[source] += 0.0 if hierarchy.once else hierarchy.flow[outer][h]
        if there:
            send[source] += max(hierarchy.latency[outer] for outer in apart)
            send[source] += hierarchy.flow[any(apart)][h] if hierarchy.once else 0.0
    parts = []
    for stage, into, out in zip(stages, receive, send, strict=True):
        compute = float(problem.seconds[0, list(stage.nodes)].sum())
        parts.append((compute / stage.replicas, into / stage.replicas, out / stage.replicas))
    return parts


def group_value(problem: Problem, hierarchy: Hierarchy, stages: Sequence[GroupStage]) -> float:
    """The largest load, from the definition."""
    return max((load(problem.comm, *parts) for parts in group_parts(problem, hierarchy, stages)), default=0.0)


def packed(stages: Sequence[tuple[int, Sequence[int]]], size: int, groups: int) -> tuple[GroupStage, ...] | None:
    """Stages of (replicas, nodes) on the devices in order, a new group begun where the one at hand has too few left; None where
    the groups do not do."""
    placed: list[GroupStage] = []
    free = 0
    for replicas, nodes in stages:
        if free % size + replicas > size:
            free += size - free % size
        placed.append(GroupStage(free, replicas, tuple(nodes)))
        free += replicas
    return tuple(placed) if free <= groups * size else None


def best_packed(
    problem: Problem,
    hierarchy: Hierarchy,
    groups: int,
    plans: Iterable[Sequence[tuple[int, Sequence[int]]]],
    bound: float,
    reason: str,
) -> GroupPlan | None:
    """The best of the plans that are ``packed``, with a ``bound`` that holds for all; None where the groups do for none."""
    placed = [stages for plan in plans if (stages := packed(plan, hierarchy.size, groups)) is not None]
    if not placed:
        return None
    value, stages = min(((group_value(problem, hierarchy, found), found) for found in placed), key=lambda pair: pair[0])
    return group_plan(stages, value, bound, reason)


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
    that holds for all. ``problem``: one kind of devices without replicas, any number of stages; its transfers are those inside
    a group (``hierarchy.once``). An interrupt from the keyboard ends the search with its best."""
    rules, limits = _Rules(hierarchy, groups, replicas), Limits(seconds=seconds)
    once = np.ones(len(problem.consumers), np.int64)
    return _Search(problem, reduce(problem, certain=True), rules, once, start, limits, progress).run()


def best_along(
    problem: Problem, hierarchy: Hierarchy, stages: Stages, enough: float, seconds: float = math.inf
) -> tuple[Stages, float]:
    """The best plan found along the order of ``stages``, these included, one on each device in turn, and its value. Rounds of
    the search, each told how many stages read each tensor in the best plan so far; ends when nothing changes, at a value of
    ``enough``, or after ``seconds``. ``problem``: one kind of devices without replicas."""
    ends = now() + seconds
    stage_of = {v: s for s, (_, nodes) in enumerate(stages) for v in nodes}
    order = sorted(range(problem.size), key=lambda v: (stage_of[v], v))
    placed = tuple(GroupStage(s, 1, nodes) for s, (_, nodes) in enumerate(stages))
    best = group_plan(placed, group_value(problem, hierarchy, placed), enough, "")
    alone: Groups = tuple((v,) for v in range(problem.size))
    while best.value > enough and now() < ends:
        rules = _Rules(hierarchy, problem.devices // hierarchy.size, 1, order)
        limits = Limits(seconds=min(ends - now(), POLICY.round_seconds))
        found = _Search(problem, alone, rules, _readers(problem, hierarchy, best), best, limits).run()
        if found.interrupted:
            raise KeyboardInterrupt
        if found.value >= best.value * (1 - TIGHT):
            break
        best = found
    return tuple((0, stage.nodes) for stage in best.stages), best.value


def _readers(problem: Problem, hierarchy: Hierarchy, plan: GroupPlan) -> Ints:
    """To how many stages of the plan each tensor is sent; at least one, for what another plan may part."""
    count = np.ones(len(problem.consumers), np.int64)
    stage_of = {v: s for s, stage in enumerate(plan.stages) for v in stage.nodes}
    for h, (maker, readers) in enumerate(zip(problem.producer.tolist(), problem.consumers, strict=True)):
        if not hierarchy.once:
            count[h] = max(1, len({stage_of[v] for v in readers} - {stage_of[maker]}))
    return count


@dataclass(frozen=True)
class _Rules:
    """What plans may be. With an ``order`` only its prefixes are boundaries, and groups are full but for the last."""

    hierarchy: Hierarchy
    groups: int
    replicas: int
    order: Sequence[int] | None = None


class _Search(Anytime[tuple[GroupStage, ...]]):
    def __init__(
        self,
        problem: Problem,
        joined: Groups,
        rules: _Rules,
        readers: Ints,
        start: GroupPlan,
        limits: Limits,
        progress: Progress = lambda label, fraction: None,
    ) -> None:
        """``readers[H]``: how many stages each tensor is sent to; ``start``: the plan to begin with."""
        super().__init__(limits, progress, (start.bound, start.reason))
        self.whole, self.joined, self.rules, self.best, self.value = problem, joined, rules, start.stages, start.value
        hierarchy = rules.hierarchy
        # Tensors are named by their numbers, so that those that are left can be told.
        names = tuple(map(str, range(len(problem.consumers))))
        self.problem = quotient(replace(problem, tensor_names=names, transfer=hierarchy.seconds(False)[None]), joined)
        tensors = [int(name) for name in self.problem.tensor_names]
        # Seconds to receive and to send each tensor, inside a group and between groups.
        times: tuple[Ints | int, ...] = (1, 1, readers, readers)
        self.seconds = [
            hierarchy.seconds(outer, count)[tensors] for outer, count in zip((False, True, False, True), times, strict=True)
        ]
        # No stage is empty, so more groups, or devices in a group, than these are never used.
        self.replicas = min(rules.replicas, hierarchy.size)
        self.groups = min(rules.groups, len(joined))
        self.size = min(hierarchy.size, len(joined) * self.replicas)

    def run(self) -> GroupPlan:
        """The best plan, or that to begin with. An interrupt from the keyboard ends the search with its best."""
        self.search(self._trials)
        counts = self.statistics
        plan = group_plan(self.best or (), self.value, self.bound, self.reason)
        return replace(plan, ideals=counts.ideals, pairs=counts.transitions, interrupted=self.interrupted)

    def _trials(self) -> None:
        low, high = self.bound, self.value
        for part in POLICY.trials:
            trial = min(low + part * (high - low), high) * (1 + TIGHT / 4)
            if self.bound < trial and not self.tight() and not self._at(trial):
                return
            if self.tight():
                return

    def keep_on(self, part: float | None) -> bool:
        self.progress("partition: groups", part)
        return self.left() > 0 and self.statistics.tested <= POLICY.tests

    def _raise(self, bound: float, reason: str) -> None:
        if self.rules.order is None:
            self.tell(min(bound, self.value), reason)

    def _family(self, tables: Tables, trial: float) -> Family | None:
        if self.rules.order is not None:
            return prefixes(tables, self.rules.order, trial)
        visits = min(5_000_000, int(max(self.left(), 0.1) * 500_000))
        return lattice(tables, trial, max_visits=visits, max_words=POLICY.words)

    def _at(self, trial: float) -> bool:
        """Plans of value at most ``trial``; False where the budget is spent or nothing is left to look for."""
        narrowed = within(self.problem, trial * self.replicas)
        tables = Tables(wide := replicate(narrowed, self.replicas) if self.replicas > 1 else narrowed, prices(wide))
        family = self._family(tables, trial)
        if family is None or not self.keep_on(None):
            return False
        states = self.groups * self.size + 1
        self.statistics.ideals = max(self.statistics.ideals, family.size)
        if 2 * family.size * states > POLICY.words:
            return False
        level = _Level(self, tables, family, trial)
        if not level.price() or len(level.pairs.before) * states * self.replicas > POLICY.steps or not self.keep_on(0.2):
            return False
        self.statistics.transitions = max(self.statistics.transitions, len(level.pairs.before))
        relaxed = level.sweep(states)
        # Sums over ideals are rounded.
        least = min(relaxed, trial) * (1 - TIGHT / 2)
        self._raise(least, "dynamic programme over ideals: groups pay the outer price where they begin and end")
        if relaxed > trial or self.tight():
            return True
        best = level.exact()
        if best is None:
            return False
        stages, value = best
        if stages is None:
            self._raise(trial * (1 - TIGHT / 2), "dynamic programme over ideals and groups: nothing is better by more")
            return True
        stages = tuple(replace(s, nodes=tuple(sorted(v for g in s.nodes for v in self.joined[g]))) for s in stages)
        true = group_value(self.whole, self.rules.hierarchy, stages)
        self.keep(stages, true)
        self._raise(min(value * (1 - TIGHT / 2), true), "dynamic programme over ideals and groups")
        return self.rules.order is None


class _Level:
    """The ideals that a trial value allows, the pairs between them, and the programmes over these."""

    def __init__(self, search: _Search, tables: Tables, family: Family, trial: float) -> None:
        self.search, self.tables, self.family, self.trial = search, tables, family, trial
        problem, size, live = tables.problem, search.size, tables.problem.live
        # Where numbers that mean never were cut down, the outer price only has to stay over the trial value.
        most = FAR * trial * search.replicas if trial > 0 else np.inf
        near_in, far_in, near_out, far_out = (np.minimum(seconds, most) for seconds in search.seconds)
        beside = int(tables.shared_bytes.sum()) + int(live.max(initial=0))
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
            near_in=near_in,
            far_in=far_in,
            near_out=near_out,
            far_out=far_out,
            buffers=tables.tensor_bytes,
            forced=tables.forced,
            beside=Held(tables.shared_ptr, tables.shared, tables.shared_bytes, live, beside),
        )
        before = np.empty(POLICY.pairs, np.int32)
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
                ideal, self.trial * self.search.replicas, room, self.ideals, self.pairs, POLICY.slice, filled
            )
            self.search.statistics.tested += int(tests)
            did("tested", int(tests))
            if filled < 0 or not self.search.keep_on(0.2 * ideal / family.size):
                return False
        self.pairs = kernels.Pairs(self.pairs.ends, self.pairs.before[:filled], self.pairs.amounts[:filled])
        return True

    def sweep(self, states: int) -> float:
        """The relaxed optimum, inf over the trial value."""
        search, full = self.search, self.search.rules.order is not None
        count = search.problem.stages if full else None
        value = np.full((2, self.family.size, states), np.inf)
        value[0, 0, 0] = value[1, -1, :] = 0.0
        if count is not None:
            value[1, -1, :count], value[1, -1, count + 1 :] = np.inf, np.inf
        most = self.trial * (1 + TIGHT / 4)
        kernels.sweep(self.ideals.mode, search.size, full, search.replicas, most, self.pairs, value)
        did("tested", 2 * len(self.pairs.before) * states)
        self.forward, self.backward = value
        return float(self.forward[-1].min() if count is None else self.forward[-1, count])

    def exact(self) -> tuple[tuple[GroupStage, ...] | None, float] | None:
        """The best plan at most the trial value and that value (None without one); None where the budget is spent."""
        search, count = self.search, self.family.size
        size, last = search.size, self.family.size - 1
        reached = np.full((search.groups + 1, count), np.inf)
        came = np.full((search.groups + 1, count), -1, np.int64)
        reached[0, 0] = 0.0
        costs: dict[tuple[int, int], float] = {}  # of a group by the ideals where it begins and ends
        most = self.trial * (1 + TIGHT / 4)
        for group in range(search.groups):
            ahead = self.backward[:, (group + 1) * size].copy()
            ahead[last] = 0.0
            for begin in np.flatnonzero(np.maximum(reached[group], self.backward[:, group * size]) <= most).tolist():
                if begin == last:
                    continue
                self._group(group, begin, -1, most)
                least = np.maximum(np.maximum(self.group.closed, ahead), reached[group, begin])
                least[: begin + 1] = np.inf
                for end in np.flatnonzero((least <= most) & (least < reached[group + 1])).tolist():
                    if (begin, end) not in costs:
                        # Nothing is read after the last ideal, so its cost is exact already.
                        costs[begin, end] = float(self.group.closed[end]) if end == last else np.inf
                        if end != last:
                            closed = self.group.closed.copy()
                            costs[begin, end] = self._group(group, begin, end, most)
                            self.group.closed[:] = closed
                    worst = max(reached[group, begin], costs[begin, end])
                    if worst <= most and worst < reached[group + 1, end]:
                        reached[group + 1, end], came[group + 1, end] = worst, begin
                        if end == last:
                            most = min(most, worst)
                if not search.keep_on(0.2 + 0.8 * (group + begin / count) / search.groups):
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

    def _devices(self, group: int) -> tuple[int, int, int]:
        """The most devices that a group may use, the fewest, and the fewest where it ends the plan."""
        size, count = self.search.size, self.search.problem.stages
        if self.search.rules.order is None:
            return size, 1, 1
        if count is None:
            return size, size, 1
        left = count - group * size
        return min(size, left), size, left

    def _group(self, group: int, begin: int, end: int, most: float) -> float:
        """Fills the closed costs of a group; the exact one where its ``end`` is given."""
        size, fewest, fewest_last = self._devices(group)
        reached, met = kernels.group_programme(
            begin, end, size, fewest, fewest_last, self.search.replicas, most, self.ideals, self.pairs, self.group
        )
        closed = self.group.closed
        closed[:begin] = np.inf
        closed[reached:] = np.inf
        self.search.statistics.tested += int(met)
        did("tested", int(met))
        return float(closed[end]) if 0 <= end < reached else np.inf

    def _stages(self, group: int, begin: int, end: int, most: float) -> list[GroupStage]:
        """The stages of one group between two ideals, fewest devices first."""
        self._group(group, begin, end, most)
        size, *fewest = self._devices(group)
        least = fewest[end == self.family.size - 1]
        devices = least + int(self.group.value[least : size + 1, end].argmin())
        backward: list[tuple[int, tuple[int, ...]]] = []
        here = end
        while here != begin:
            pair, replicas = int(self.group.pair_of[devices, here]), int(self.group.with_replicas[devices, here])
            before = int(self.pairs.before[pair])
            backward.append((replicas, members(self.tables, self.family.bits[here] & ~self.family.bits[before])))
            here, devices = before, devices - replicas
        stages, first = [], group * self.search.rules.hierarchy.size
        for replicas, nodes in reversed(backward):
            stages.append(GroupStage(first, replicas, nodes))
            first += replicas
        return stages
