"""A lower bound by a dynamic programme over intervals of ideals, which are refined where its cheapest path passes.

A boundary of a plan is an ideal, and lies in some interval (``intervals``). ``least[k, a, b]`` bounds a stage on kind k that
begins in interval a and ends in interval b. It takes at least

- its compute: the seconds of all nodes that surely lie in it, and the weight between the ranges of a and b over the price of k
  (a node's weight is at most price times seconds on any kind);
- its transfers: a minimum cut (``minimum_cuts``) between the nodes that surely lie in it and those that surely do not. A cut
  that has seconds as prices of nodes bounds compute and transfers together; Lagrange multipliers add to these prices the
  stage's weight, whose range is known, and its bytes, which are limited.

The programme finds the path of intervals from the empty ideal to the full one, with the devices that there are, whose largest
stage is least: that stage is a lower bound of all plans. At first the transfers of a stage are those of its two boundaries,
each by a minimum cut of its own, less what both may cut. Then the stages of the cheapest path get minimum cuts of their own;
where no cut raises one of these above the bound, an interval of the path is split in two; and so on until the path is no
cheaper than the best plan.

Invariants: every boundary of a plan of value below ``value`` lies in some interval; entries of ``least`` are lower bounds on
such a plan's stages. What is relaxed: stages on both sides of an interval may differ about the boundary between them, and
memory but for the weights that surely lie in a stage.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ir.core.outcomes import SLACK
from passes.partition.lattice.bounds.intervals import Interval, IntervalSpace
from passes.partition.lattice.bounds.minimum_cuts import Cuts, Mask
from passes.partition.lattice.bounds.policy import POLICY
from passes.solvers.work import did
from passes.stages.lattice.dp import KeepOn
from passes.stages.lattice.tables import Tables
from passes.stages.problem import Floats


def applies(tables: Tables) -> bool:
    """Whether the tables are small enough, every vector of devices used is a state, and every kind has a price above 0."""
    small = 0 < tables.problem.size <= POLICY.interval_nodes and _most_intervals(tables) >= POLICY.fewest_intervals
    return small and tables.states.every and bool((tables.price > 0).all())


def _most_intervals(tables: Tables) -> int:
    return min(POLICY.most_intervals, math.isqrt(POLICY.interval_work // (len(tables.states.used) * len(tables.problem.kinds))))


class _Stage(NamedTuple):
    """An index of ``least``: a kind of device, the interval where a stage begins, the one where it ends."""

    kind: int
    begin: int
    end: int


class _Known(NamedTuple):
    """What is known of the sets that a minimum cut is taken over (``Cuts.least``)."""

    sure: Mask
    never: Mask
    ends: Mask
    begins: Mask


class IntervalBounds:
    """See the module. Interval 0 is the empty ideal, interval 1 the full one; ``None`` stands where an interval was split.

    Of each interval: ``inside``, ``outside``, ``low``, ``high`` as in ``Interval``; ``made``, ``read``: nets with a pin that
    may lie before its boundary, and behind it; ``boundary[k]``: what that boundary moves on kind k at least. Of each stage:
    ``least``, whether it ``has_cut`` of its own, and the nodes of that cut's least set (``cut_nodes``)."""

    def __init__(self, tables: Tables, value: float) -> None:
        self.tables, self.value, self.bound = tables, value * (1 - 10 * SLACK), 0.0
        self.space, self.cuts = IntervalSpace(tables), Cuts(tables)
        self.most, self.kinds = _most_intervals(tables), len(tables.problem.kinds)
        self.intervals: list[Interval | None] = []
        self.unused: list[int] = []
        nodes, nets = tables.problem.size, len(self.cuts.pins)
        self.inside, self.outside = np.zeros((self.most, nodes)), np.zeros((self.most, nodes))
        self.low, self.high = np.zeros(self.most), np.zeros(self.most)
        self.made, self.read = np.zeros((self.most, nets)), np.zeros((self.most, nets))
        self.boundary = np.zeros((self.kinds, self.most))
        self.least = np.full((self.kinds, self.most, self.most), np.inf)
        self.has_cut = np.zeros(self.least.shape, np.bool_)
        self.cut_nodes: dict[_Stage, Mask] = {}

    def run(self, keep_on: KeepOn) -> bool:
        """Raises ``bound`` until ``keep_on`` says no or nothing is left to refine; may be called again. False when there was
        no time for the first intervals."""
        if not self.intervals and not self._start(keep_on):
            self.intervals.clear()
            return False
        while self._refine() and keep_on(0, min(self.bound / self.value, 1.0)):
            pass
        return True

    @property
    def reason(self) -> str:
        live = len(self.intervals) - len(self.unused)
        return f"{live} sets of boundaries, by weight and by nodes: least transfers of a stage between any two, by minimum cuts"

    def _start(self, keep_on: KeepOn) -> bool:
        """Makes the first intervals; False when stopped before."""
        for interval in self.space.grid(min(POLICY.windows, self.most // 2)):
            if not keep_on(0, 0.0):
                return False
            at = len(self.intervals)
            self.intervals.append(interval)
            self.least[:, at, : at + 1], self.least[:, : at + 1, at] = 0.0, 0.0
            self._close(at)
            self._describe(at, self._least_cuts(interval))
        return True

    def _refine(self) -> bool:
        """Cuts the stages of the cheapest path; where that raises none above the bound, splits one of its intervals. False
        when neither can raise the bound."""
        value = self._values()
        least = float(np.where(self.tables.states.final, value[:, 1], np.inf).min())
        self.bound = max(self.bound, min(least, self.value))
        if least >= self.value:
            return False
        path = self._path(value)
        fresh = [stage for stage in path if not self.has_cut[stage]]
        for stage in fresh:
            self._cut(stage)
        return any(self.least[stage] > least for stage in fresh) or self._split(path, least)

    def _describe(self, at: int, boundary: Floats) -> None:
        """Fills in the arrays of the interval at ``at``, whose boundaries move at least ``boundary`` on each kind, and raises
        ``least`` of stages from it and to it by what needs no cut of their own."""
        interval, cuts, count = self.intervals[at], self.cuts, len(self.intervals)
        assert interval is not None, "only intervals are described"
        self.inside[at], self.outside[at] = interval.inside, interval.outside
        self.low[at], self.high[at] = interval.low, interval.high
        self.made[at] = np.bincount(cuts.net[interval.outside[cuts.pin]], minlength=len(cuts.pins)) < cuts.pins
        self.read[at] = np.bincount(cuts.net[interval.inside[cuts.pin]], minlength=len(cuts.pins)) < cuts.pins
        self.boundary[:, at] = boundary
        self.has_cut[:, at], self.has_cut[:, :, at] = False, False
        this, every = slice(at, at + 1), slice(0, count)
        for kind in range(self.kinds):
            for begin, end in ((this, every), (every, this)):
                known = self.least[kind, begin, end]
                np.maximum(known, self._without_cuts(kind, begin, end), out=known)

    def _close(self, at: int) -> None:
        """Forbids stages that begin and end in an interval of one ideal."""
        interval = self.intervals[at]
        if interval is not None and not interval.open.any():
            self.least[:, at, at] = np.inf

    def _without_cuts(self, kind: int, begin: slice, end: slice) -> Floats:
        """``[A, B]``: a lower bound on stages from intervals ``begin`` to intervals ``end``, without cuts of their own."""
        problem, price = self.tables.problem, float(self.tables.price[kind])
        slack = 2 * self.space.slack
        seconds, memory = problem.seconds[kind], problem.kinds[kind].memory
        runs = np.isfinite(seconds)
        never = self.inside[begin] @ self.outside[end].T > 0
        never |= self.high[None, end] < self.low[begin, None] - slack
        never |= (self.outside[begin] * ~runs) @ self.inside[end].T > 0
        if memory is not None:
            stored = (self.outside[begin] * self.tables.own_weights) @ self.inside[end].T
            never |= stored > memory * (1 + SLACK)
        compute = (self.outside[begin] * np.where(runs, seconds, 0.0)) @ self.inside[end].T
        compute = np.maximum(compute, (self.low[None, end] - self.high[begin, None] - slack) / price)
        both = (self.made[begin] * self.cuts.cost[kind]) @ self.read[end].T
        moved = np.maximum(self.boundary[kind, begin, None] + self.boundary[kind, None, end] - 2 * both, 0.0)
        load = {"overlap": np.maximum(compute, moved), "duplex": np.maximum(compute, moved / 2)}
        found: Floats = load.get(problem.comm, compute + moved) * (1 - SLACK) - SLACK * self.value
        return np.where(never, np.inf, found)

    def _least_cuts(self, interval: Interval) -> Floats:
        """The least that a boundary in the interval moves on each kind. Where all transfers of two kinds stand in one ratio, as
        those of replicas and of one device, so do these."""
        base, ratio = self._in_ratio
        own = {kind: self._least_cut(kind, interval) for kind in dict.fromkeys(base)}
        return np.array([part * own[kind] for kind, part in zip(base, ratio, strict=True)])

    @cached_property
    def _in_ratio(self) -> tuple[list[int], list[float]]:
        """Of each kind the first one whose transfers stand in one ratio to its own, and the least of these ratios."""
        base, ratio = list[int](), [1.0] * self.kinds
        for kind, cost in enumerate(self.cuts.cost):
            for other in dict.fromkeys(base):
                with np.errstate(invalid="ignore", divide="ignore"):
                    ratios = (cost / self.cuts.cost[other])[(cost > 0) | (self.cuts.cost[other] > 0)]
                if len(ratios) and 0 < ratios.max() <= ratios.min() * (1 + SLACK) < np.inf:
                    base.append(other)
                    ratio[kind] = float(ratios.min()) * (1 - SLACK)
                    break
            else:
                base.append(kind)
        return base, ratio

    def _least_cut(self, kind: int, interval: Interval) -> float:
        """The least that a boundary in the interval moves on ``kind``."""
        every = np.ones(self.tables.problem.size, np.bool_)
        known = _Known(interval.inside, interval.outside, ends=~every, begins=every)
        step = POLICY.multiplier_step / float(self.tables.price[kind])
        least, _ = self._search(kind, np.zeros(len(every)), known, (interval.low, interval.high), 0.0, step)
        return max(least, 0.0)

    def _cut(self, stage: _Stage) -> None:
        """Raises ``least`` of a stage by minimum cuts of its own: with a Lagrange multiplier on its weight, then with one on
        its bytes as well."""
        begin, end = self.intervals[stage.begin], self.intervals[stage.end]
        assert begin is not None, "a path goes through intervals"
        assert end is not None, "a path goes through intervals"
        tables, slack = self.tables, 2 * self.space.slack
        seconds, price = tables.problem.seconds[stage.kind], float(tables.price[stage.kind])
        runs, adds = np.isfinite(seconds), tables.problem.comm == "sum"
        known = _Known(end.inside & begin.outside, begin.inside | end.outside | ~runs, end.inside, begin.outside)
        weight = max(end.low - begin.high - slack, 0.0), end.high - begin.low + slack
        at, memory = -1.0 / price if adds else 0.0, tables.problem.kinds[stage.kind].memory
        compute = np.where(runs & adds, seconds, 0.0)
        step, charge = POLICY.multiplier_step / price, POLICY.charge
        least, held = self._search(stage.kind, compute, known, weight, at, step)
        while held is not None and memory is not None and charge < POLICY.charge * 2**POLICY.interval_cuts:
            if float(tables.own_weights[held].sum()) <= memory:
                break
            byte = charge * self.value / max(memory, 1)
            found, nodes = self._search(stage.kind, compute + byte * tables.own_weights, known, weight, at, step)
            if found - byte * memory < least:
                break
            least, held, charge = found - byte * memory, nodes, 2 * charge
        self.has_cut[stage] = True
        if held is None:
            self.least[stage] = np.inf
            return
        self.cut_nodes[stage] = held
        least = least / 2 if tables.problem.comm == "duplex" else least
        self.least[stage] = max(self.least[stage], least * (1 - SLACK) - SLACK * self.value)

    def _search(
        self,
        kind: int,
        seconds: Floats,
        known: _Known,
        weight: tuple[float, float],
        multiplier: float,
        step: float,
    ) -> tuple[float, Mask | None]:
        """A lower bound on ``seconds`` plus cut of a set whose weight is in the range ``weight``, by the best of a few
        multipliers of the weight, and the set of that cut; inf and None where there is no set. The first change of
        ``multiplier`` is ``step``."""
        best, held = -math.inf, None
        low, high = -math.inf, math.inf  # multipliers at which the set weighs too much, and too little
        for _ in range(POLICY.interval_cuts):
            found, nodes = self.cuts.least(kind, seconds + multiplier * self.space.weight, *known)
            if nodes is None:
                return math.inf, None
            found -= multiplier * weight[1 if multiplier > 0 else 0]
            if found > best:
                best, held = found, nodes
            reached = float(self.space.weight[nodes].sum())
            if weight[0] <= reached <= weight[1]:
                break
            if reached > weight[1]:
                low = multiplier
                multiplier = multiplier + step if high == math.inf else (low + high) / 2
            else:
                high = multiplier
                multiplier = multiplier - step if low == -math.inf else (low + high) / 2
            step *= 2
        return best, held

    def _values(self) -> Floats:
        """``[S, N]``: of each state and interval, the largest stage of the path there whose largest stage is least."""
        from passes.partition.lattice.bounds import kernels

        states = self.tables.states
        value, looked = kernels.least_largest(states.next, states.idle, self.least, len(self.intervals), self.value)
        did("entry", int(looked))
        return np.asarray(value)

    def _path(self, value: Floats) -> list[_Stage]:
        """The stages of a best path, given ``_values``; without those that begin and end in one interval."""
        states, count = self.tables.states, len(self.intervals)
        pointers, sources, kinds = states.before
        state, here = int(np.where(states.final, value[:, 1], np.inf).argmin()), 1
        path: list[_Stage] = []
        while (state, here) != (0, 0):
            best = math.inf, True, -1, -1, -1
            for at in range(pointers[state], pointers[state + 1]):
                source, kind = int(sources[at]), int(kinds[at])
                through = np.maximum(value[source], self.least[kind, :count, here])
                same = float(through[here])
                through[here] = np.inf  # of equal ones a stage between two intervals is preferred
                interval = int(through.argmin())
                best = min(best, (float(through[interval]), False, source, kind, interval), (same, True, source, kind, here))
            idle = (states.idle[:state] == state).any(axis=1) & (value[:state, here] <= value[state, here])
            if best[0] > value[state, here] or (best[1] and idle.any()):
                state = int(idle.argmax())
                continue
            _, in_one, source, kind, interval = best
            if not in_one:
                path.append(_Stage(kind, interval, here))
            state, here = source, interval
        return path[::-1]

    def _split(self, path: Sequence[_Stage], least: float) -> bool:
        """Splits an interval of the path, by weight or by nodes; False where none can be. Preferred is one next to a stage that
        decides the bound, then the one whose range of weight is widest or whose stages disagree on most weight."""
        best = None
        full = not self.unused and len(self.intervals) >= self.most
        narrow = POLICY.narrow * self.value * float(self.tables.price.max())
        for stage, following in itertools.pairwise(path):
            interval, before, after = self.intervals[stage.end], self.cut_nodes.get(stage), self.cut_nodes.get(following)
            if interval is None or before is None or after is None:
                continue
            disputed = interval.open & (before == after)  # in both stages, or in neither
            width, conflict = interval.high - interval.low, POLICY.disputed * float(self.space.weight[disputed].sum())
            if width <= narrow and not disputed.any():
                disputed = interval.open  # the stages agree on a set that is no ideal, or not of such weight
                if not disputed.any():
                    continue
            binding = max(self.least[stage], self.least[following]) >= least
            if best is None or (binding, max(width, conflict)) > best[0]:
                best = (binding, max(width, conflict)), stage.end, interval, disputed, width > max(conflict, narrow)
        if best is None or full:
            return False
        _, at, interval, disputed, wide = best
        self._replace(at, self.space.halves(interval) if wide else self.space.parted(interval, disputed))
        return True

    def _replace(self, at: int, parts: Sequence[Interval]) -> None:
        """Puts ``parts``, two at most, which hold all ideals of the interval at ``at``, in its place."""
        before, rows, columns = self.boundary[:, at].copy(), self.least[:, at].copy(), self.least[:, :, at].copy()
        self.intervals[at] = None
        self.unused.append(at)
        self.least[:, at], self.least[:, :, at] = np.inf, np.inf
        self.cut_nodes = {stage: nodes for stage, nodes in self.cut_nodes.items() if at not in (stage.begin, stage.end)}
        for interval in parts:
            place = self.unused.pop() if self.unused else len(self.intervals)
            if place == len(self.intervals):
                self.intervals.append(None)
            self.intervals[place] = interval
            self.least[:, place], self.least[:, :, place] = rows, columns
            self.least[:, place, place] = 0.0
            self._close(place)
            self._describe(place, np.maximum(before, self._least_cuts(interval)))
