"""Plans from minimum cuts: boundaries of small cut all along the graph, and around those of the best plan.

Where the lattice is too large to walk, good boundaries are ideals of small cut, and a minimum cut finds one per range of weight
(``intervals``) and price of a second. The programme over a few thousand of them, with what each has in common with the best
plan's boundaries (unions and intersections of ideals are ideals), gives the best way to combine them. Then, around each
boundary of that plan, nodes are forced in and out of minimum cuts nearby, one at a time: ideals a little dearer than the least,
of other weights, which is what balances the stages; and so on from the plan found. Nothing is proven.
"""

from __future__ import annotations

import itertools

import numpy as np

from passes.partition.lattice.bounds.intervals import Interval, IntervalSpace
from passes.partition.lattice.bounds.minimum_cuts import Cuts, Mask
from passes.partition.lattice.bounds.policy import POLICY
from passes.stages.lattice.dp import KeepOn, Stages
from passes.stages.lattice.ideals import Family, among
from passes.stages.lattice.tables import Tables
from passes.stages.problem import Floats


class CutPlans:
    """Ideals of small cut of one problem; ``family`` is what a programme takes. ``moved``: as for ``Cuts``."""

    def __init__(self, tables: Tables, moved: Floats | None = None) -> None:
        self.tables = tables
        self.space, self.cuts = IntervalSpace(tables), Cuts(tables, moved)
        problem = tables.problem
        counts = np.array([kind.count for kind in problem.kinds]) * tables.price
        paid = self.cuts.cost.any(axis=1)
        self.kind = int(np.where(paid, counts, -1.0).argmax())
        self.ideals: dict[bytes, Mask] = {}
        self.round = 0

    def along(self, keep_on: KeepOn) -> bool:
        """Minimum cuts all along; False when stopped before."""
        for interval in itertools.islice(self.space.grid(POLICY.windows), 2, None):
            if not keep_on(0, 0.0):
                return False
            for price in POLICY.cut_prices:
                self._cut(interval, price)
        return True

    def around(self, stages: Stages, keep_on: KeepOn) -> bool:
        """Minimum cuts around the boundaries of a plan, each time others; False when stopped before."""
        boundaries = self.boundaries(stages)
        reach = POLICY.cut_reaches[self.round % len(POLICY.cut_reaches)] * self.space.total / max(len(stages), 1)
        beside = [np.zeros(self.tables.problem.size, np.bool_), *boundaries, np.ones(self.tables.problem.size, np.bool_)]
        for place, ideal in enumerate(boundaries):
            weight = float(self.space.weight[ideal].sum())
            before, after = beside[place], beside[place + 2]
            nothing = np.zeros_like(before)
            fixed = (before, ~after) if self.round % 2 else (nothing, nothing)
            interval = self.space.narrowed(max(weight - reach, 0.0), min(weight + reach, self.space.total), *fixed)
            if interval is None:
                continue
            nodes = np.flatnonzero(interval.open)
            stride = max(1, len(nodes) // POLICY.cut_forced)
            for turn, v in enumerate(nodes[self.round % stride :: stride].tolist()):
                if not keep_on(0, 0.0):
                    return False
                price = POLICY.cut_prices[(turn + self.round) % len(POLICY.cut_prices)]
                self._cut(
                    Interval(interval.low, interval.high, interval.inside | (self.space.ancestors[v] > 0), interval.outside),
                    price,
                )
                self._cut(
                    Interval(interval.low, interval.high, interval.inside, interval.outside | (self.space.descendants[v] > 0)),
                    price,
                )
        self.round += 1
        return True

    def family(self, stages: Stages, trial: float) -> Family:
        """The ideals found last, what they have in common with the boundaries of a plan, and these."""
        size, boundaries = self.tables.problem.size, self.boundaries(stages)
        found = np.array(list(self.ideals.values())[-POLICY.cut_ideals :], np.bool_).reshape(-1, size)
        near = found[-max(1, POLICY.cut_ideals // (2 * len(boundaries) + 1)) :]
        ends = np.repeat([[False], [True]], size, axis=1)
        rows = [part for ideal in boundaries for part in (ideal[None], near & ideal, near | ideal)]
        return among(self.tables, np.concatenate([ends, found, *rows]), trial)

    def boundaries(self, stages: Stages) -> list[Mask]:
        inside = np.zeros(self.tables.problem.size, np.bool_)
        found = []
        for _, nodes in stages[:-1]:
            inside = inside.copy()
            inside[list(nodes)] = True
            found.append(inside)
        return found

    def _cut(self, interval: Interval, price: float) -> None:
        every = np.ones(self.tables.problem.size, np.bool_)
        paid = price / float(self.tables.price[self.kind]) * self.space.weight
        _, ideal = self.cuts.least(self.kind, paid, interval.inside, interval.outside, ~every, every)
        if ideal is not None:
            self.ideals.setdefault(ideal.tobytes(), ideal)
