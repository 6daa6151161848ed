"""A lower bound by intervals of ideals, refined where the cheapest plan passes.

Every boundary of a plan lies in some interval (``intervals``), and a stage that begins in interval a and ends in interval b, on
kind k, takes at least

- its compute: the weight between the intervals' ranges at the kind's price, or what surely lies in the stage;
- its transfers: a minimum cut (``minimum_cuts``) between what surely lies in the stage and what surely does not. With compute
  in the same cut, less a Lagrange multiplier times the stage's weight, whose range is known, it is both together; and with
  bytes, which are limited, all three.

So the least largest stage over all paths from the empty ideal to the full one through intervals, with the devices that there
are, is a lower bound, and a small programme finds it. At first a stage's transfers are those of its two boundaries, each by a
minimum cut of its own, less what both may cut. Then, again and again, the best path is looked at closer: its stages by cuts of
their own, and when that does not change it, one of its intervals is split, until it is no cheaper than the best plan.

Invariants: every boundary of a plan of value below ``value`` lies in some interval; entries of ``least`` are lower bounds on
such a plan's stages. What is relaxed: stages on both sides of an interval may differ about the boundary between them, and
memory but for the weights that surely lie in a stage.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from passes.model.stages.lattice.dp import KeepOn
from passes.model.stages.lattice.tables import Tables
from passes.model.stages.problem import Floats
from passes.partition.bounds.intervals import Interval, IntervalSpace
from passes.partition.bounds.minimum_cuts import Cuts, Mask
from passes.partition.bounds.policy import POLICY
from passes.partition.objective import SLACK


def applies(tables: Tables) -> bool:
    """Whether the tables are small enough, every vector of devices used is a state, and no kind's seconds are free."""
    small = 0 < tables.problem.size <= POLICY.interval_nodes and _most_intervals(tables) >= POLICY.fewest_intervals
    return small and tables.states.every and bool((tables.price > 0).all())


def _most_intervals(tables: Tables) -> int:
    return min(POLICY.most_intervals, math.isqrt(POLICY.interval_work // (len(tables.states.used) * len(tables.problem.kinds))))


class _Stage(NamedTuple):
    """A stage of a path: its kind, the interval where it begins, the one where it ends; its place in ``least`` as well."""

    kind: int
    begin: int
    end: int


class IntervalBounds:
    """See the module. Interval 0 is the empty ideal, interval 1 the full one; ``None`` stands where an interval was left
    out."""

    def __init__(self, tables: Tables, value: float) -> None:
        self.tables, self.value, self.bound = tables, value * (1 - 10 * SLACK), 0.0
        self.space, self.cuts = IntervalSpace(tables), Cuts(tables)
        self.most, self.kinds = _most_intervals(tables), len(tables.problem.kinds)
        self.intervals: list[Interval | None] = []
        self.unused: list[int] = []
        nodes, nets = tables.problem.size, len(self.cuts.pins)
        self.inside, self.outside = np.zeros((self.most, nodes)), np.zeros((self.most, nodes))
        self.low, self.high = np.zeros(self.most), np.zeros(self.most)
        # Nets with a pin that may lie before the boundary, and with one that may lie behind it.
        self.made, self.read = np.zeros((self.most, nets)), np.zeros((self.most, nets))
        self.boundary = np.zeros((self.kinds, self.most))
        self.least = np.full((self.kinds, self.most, self.most), np.inf)
        self.looked = np.zeros(self.least.shape, np.bool_)
        self.held: dict[_Stage, Mask] = {}

    def run(self, keep_on: KeepOn) -> bool:
        """Raises ``bound`` as long as ``keep_on`` and what is left to do allow; may be called again. False when there was no
        time for a start."""
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
            self._describe(at, [self._least_cut(kind, interval) for kind in range(self.kinds)])
        return True

    def _refine(self) -> bool:
        """Tightens the stages of the cheapest path by cuts of their own, else splits one of its intervals; False when neither
        can raise the bound."""
        value = self._ahead()
        least = float(np.where(self.tables.states.final, value[:, 1], np.inf).min())
        self.bound = max(self.bound, min(least, self.value))
        if least >= self.value:
            return False
        path = self._path(value)
        fresh = [stage for stage in path if not self.looked[stage]]
        for stage in fresh:
            self._look(stage)
        return any(self.least[stage] > least for stage in fresh) or self._split(path, least)

    def _describe(self, at: int, boundary: Sequence[float]) -> None:
        """Fills in what is plain of the interval at ``at``, whose boundaries move at least ``boundary`` on each kind, and
        raises what ``least`` says of stages from it and to it."""
        interval, cuts, count = self.intervals[at], self.cuts, len(self.intervals)
        assert interval is not None, "only intervals are described"
        self.inside[at], self.outside[at] = interval.inside, interval.outside
        self.low[at], self.high[at] = interval.low, interval.high
        self.made[at] = np.bincount(cuts.net[interval.outside[cuts.pin]], minlength=len(cuts.pins)) < cuts.pins
        self.read[at] = np.bincount(cuts.net[interval.inside[cuts.pin]], minlength=len(cuts.pins)) < cuts.pins
        self.boundary[:, at] = boundary
        self.looked[:, at], self.looked[:, :, at] = False, False
        this, every = slice(at, at + 1), slice(0, count)
        for kind in range(self.kinds):
            for begin, end in ((this, every), (every, this)):
                known = self.least[kind, begin, end]
                np.maximum(known, self._plain(kind, begin, end), out=known)

    def _close(self, at: int) -> None:
        """No stage begins and ends in an interval of one ideal."""
        interval = self.intervals[at]
        if interval is not None and not interval.open.any():
            self.least[:, at, at] = np.inf

    def _plain(self, kind: int, begin: slice, end: slice) -> Floats:
        """``[A, B]``: the least of stages that begin and end in some intervals, without cuts of their own."""
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

    def _least_cut(self, kind: int, interval: Interval) -> float:
        """The least that a boundary in the interval moves on ``kind``."""
        every = np.ones(self.tables.problem.size, np.bool_)
        nothing = np.zeros(len(every))
        step = POLICY.multiplier_step / float(self.tables.price[kind])
        found = self._search(
            kind, nothing, interval.inside, interval.outside, ~every, every, (interval.low, interval.high), 0.0, step
        )
        return max(found[0], 0.0)

    def _look(self, stage: _Stage) -> None:
        """Raises the least load of a stage by minimum cuts of its own: a Lagrange multiplier on its weight, and one on its
        bytes."""
        begin, end = self.intervals[stage.begin], self.intervals[stage.end]
        assert begin is not None, "a path goes through intervals"
        assert end is not None, "a path goes through intervals"
        tables, slack = self.tables, 2 * self.space.slack
        seconds, price = tables.problem.seconds[stage.kind], float(tables.price[stage.kind])
        runs, adds = np.isfinite(seconds), tables.problem.comm == "sum"
        known = end.inside & begin.outside, begin.inside | end.outside | ~runs, end.inside, begin.outside
        weight = max(end.low - begin.high - slack, 0.0), end.high - begin.low + slack
        at, memory = -1.0 / price if adds else 0.0, tables.problem.kinds[stage.kind].memory
        compute = np.where(runs & adds, seconds, 0.0)
        step, charge = POLICY.multiplier_step / price, POLICY.charge
        least, held = self._search(stage.kind, compute, *known, weight, at, step)
        while held is not None and memory is not None and charge < POLICY.charge * 2**POLICY.interval_cuts:
            if float(tables.own_weights[held].sum()) <= memory:
                break
            byte = charge * self.value / max(memory, 1)
            found, nodes = self._search(stage.kind, compute + byte * tables.own_weights, *known, weight, at, step)
            if found - byte * memory < least:
                break
            least, held, charge = found - byte * memory, nodes, 2 * charge
        self.looked[stage] = True
        if held is None:
            self.least[stage] = np.inf
            return
        self.held[stage] = held
        least = least / 2 if tables.problem.comm == "duplex" else least
        self.least[stage] = max(self.least[stage], least * (1 - SLACK) - SLACK * self.value)

    def _search(
        self,
        kind: int,
        seconds: Floats,
        sure: Mask,
        never: Mask,
        ends: Mask,
        begins: Mask,
        weight: tuple[float, float],
        multiplier: float,
        step: float,
    ) -> tuple[float, Mask | None]:
        """The least of ``seconds`` and cut of a set whose weight is in the range ``weight``, by the best of a few multipliers;
        and the set of that. inf and None where there is no set."""
        best, held = -math.inf, None
        low, high = -math.inf, math.inf  # multipliers at which the set weighs too much, and too little
        for _ in range(POLICY.interval_cuts):
            found, nodes = self.cuts.least(kind, seconds + multiplier * self.space.weight, sure, never, ends, begins)
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

    def _ahead(self) -> Floats:
        """``[S, N]``: of each state and interval the least largest stage of a path there."""
        states, count = self.tables.states, len(self.intervals)
        value = np.full((len(states.used), count), np.inf)
        value[0, 0] = 0.0
        for state in range(len(states.used)):
            for other in states.idle[state].tolist():
                if other >= 0:
                    np.minimum(value[other], value[state], out=value[other])
            here = np.flatnonzero(value[state] < self.value)
            for kind, other in enumerate(states.next[state].tolist()):
                if other >= 0 and len(here):
                    through = np.maximum(value[state, here, None], self.least[kind, here, :count])
                    np.minimum(value[other], through.min(axis=0), out=value[other])
        return value

    def _path(self, value: Floats) -> list[_Stage]:
        """The stages of a best path, given ``_ahead``."""
        states, count = self.tables.states, len(self.intervals)
        pointers, sources, kinds = states.before
        state, here = int(np.where(states.final, value[:, 1], np.inf).argmin()), 1
        path: list[_Stage] = []
        while (state, here) != (0, 0):
            best = math.inf, True, -1, -1, -1
            for at in range(pointers[state], pointers[state + 1]):
                source, kind = int(sources[at]), int(kinds[at])
                through = np.maximum(value[source], self.least[kind, :count, here])
                within = float(through[here])
                through[here] = np.inf  # rather a stage that ends where it did not begin
                interval = int(through.argmin())
                best = min(best, (float(through[interval]), False, source, kind, interval), (within, True, source, kind, here))
            idle = (states.idle[:state] == state).any(axis=1) & (value[:state, here] <= value[state, here])
            if best[0] > value[state, here] or (best[1] and idle.any()):
                state = int(idle.argmax())
                continue
            _, inside, source, kind, interval = best
            if not inside:
                path.append(_Stage(kind, interval, here))
            state, here = source, interval
        return path[::-1]

    def _split(self, path: Sequence[_Stage], least: float) -> bool:
        """Splits the interval of the path at which most is lost; False where none can be."""
        best = None
        full = not self.unused and len(self.intervals) >= self.most
        narrow = POLICY.narrow * self.value * float(self.tables.price.max())
        for stage, following in itertools.pairwise(path):
            interval, ahead, behind = self.intervals[stage.end], self.held.get(stage), self.held.get(following)
            if interval is None or ahead is None or behind is None:
                continue
            torn = interval.open & (ahead == behind)
            width, conflict = interval.high - interval.low, POLICY.torn * float(self.space.weight[torn].sum())
            if width <= narrow and not torn.any():
                torn = interval.open  # both agree on what is no ideal, or not of such weight
                if not torn.any():
                    continue
            binding = max(self.least[stage], self.least[following]) >= least
            if best is None or (binding, max(width, conflict)) > best[0]:
                best = (binding, max(width, conflict)), stage.end, interval, torn, width > max(conflict, narrow)
        if best is None or full:
            return False
        _, at, interval, torn, wide = best
        self._replace(at, self.space.halves(interval) if wide else self.space.parted(interval, torn))
        return True

    def _replace(self, at: int, parts: Sequence[Interval]) -> None:
        """Puts ``parts``, two at most, which hold all ideals of the interval at ``at``, in its place."""
        before, rows, columns = self.boundary[:, at].copy(), self.least[:, at].copy(), self.least[:, :, at].copy()
        self._drop(at)
        for interval in parts:
            place = self.unused.pop() if self.unused else len(self.intervals)
            if place == len(self.intervals):
                self.intervals.append(None)
            self.intervals[place] = interval
            self.least[:, place], self.least[:, :, place] = rows, columns
            self.least[:, place, place] = 0.0
            self._close(place)
            cuts = [max(float(before[kind]), self._least_cut(kind, interval)) for kind in range(self.kinds)]
            self._describe(place, cuts)

    def _drop(self, at: int) -> None:
        self.intervals[at] = None
        self.unused.append(at)
        self.least[:, at], self.least[:, :, at] = np.inf, np.inf
        self.held = {stage: nodes for stage, nodes in self.held.items() if at not in (stage.begin, stage.end)}


__all__ = ["IntervalBounds", "applies"]
