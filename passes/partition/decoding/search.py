"""The plan of most tokens per second (``problem``), with a bound, over all cuts, devices, batches and numbers of groups.

Branch and bound over boxes (one batch, groups from G to H). Can a box have more than x tokens per second? A plan would need,
with tau = batch / x, stages each of which takes all groups together,

    sum over its devices of min(sets / G, tau / t) >= 1,

and paths of at most H tau together, where a path counts the fastest device of a stage. Whether there are such stages, two
dynamic programmes over cuts and devices say: how far devices get without the limit on paths, which is quick, and then the
least sum of paths. A box of one number of groups is asked exactly: min(sets, floor(tau G / t)) whole groups for each device,
and the slowest device of a stage in its path. Of a box that may be better both halves are asked; of one number of groups the
plan is the new incumbent. So no plan has more than (1 + gap) times the tokens of the incumbent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from passes.partition.decoding.problem import Decoding, DecodingPlan, SharedStage, shared, vectors
from passes.partition.layouts.problem.problem import Floats
from passes.solvers.work import did

GAP = 1e-3
"""Relative: how much better a plan is at least that is looked for."""
HALVED = 24
"""Times that the interval of rates of a box is halved."""
BEYOND = 1 + 1e-9
"""For rounding."""


@dataclass(slots=True)
class _Batch:
    """What is asked of all boxes of one batch: seconds and sets of runs; paths of stages by set of types, of the fastest and of
    the slowest, and the least paths of what is left from a unit on."""

    number: int
    seconds: Floats
    sets: Floats
    fast: Floats
    slow: Floats
    rest: Floats
    most: float = math.inf
    """No plan has more tokens per second."""


class DecodingSearch:
    """A search over one problem. ``best``: the plan so far."""

    def __init__(self, problem: Decoding, gap: float = GAP) -> None:
        self.problem, self.gap = problem, gap
        self.vectors = vectors(problem.counts)
        present = (self.vectors > 0) @ (1 << np.arange(len(problem.counts)))
        self.kinds, self.kind_of = np.unique(present, return_inverse=True)
        self.kind_of = self.kind_of.astype(np.int64)
        self.best: DecodingPlan | None = None
        self.programmes = 0

    @property
    def rate(self) -> float:
        return self.best.tokens_per_second if self.best is not None else 0.0

    def search(self) -> DecodingPlan | None:
        """The best plan with its bound; None where nothing fits."""
        batches = [self.batch(number) for number in range(len(self.problem.batches))]
        for one in batches:
            one.most = self.highest(one, *self.problem.groups)
        for one in sorted(batches, key=lambda one: -one.most):
            self.split(one, *self.problem.groups, one.most)
        return replace(self.best, bound=self.rate * (1 + self.gap) * BEYOND) if self.best is not None else None

    def batch(self, number: int) -> _Batch:
        problem = self.problem
        seconds = problem.runs(problem.seconds[number])
        members = [[kind for kind in range(len(problem.counts)) if present >> kind & 1] for present in self.kinds.tolist()]
        never = np.full(seconds.shape[1:], np.inf)
        hops = problem.hops[number][:, None]
        fast = np.stack([seconds[own].min(axis=0) if own else never for own in members]) + hops
        slow = np.stack([seconds[own].max(axis=0) if own else never for own in members]) + hops
        least = np.cumsum(problem.seconds[number].min(axis=0)[::-1])[::-1]
        return _Batch(number, seconds, problem.sets(number), fast, slow, np.append(least, 0.0))

    # -- boxes ---------------------------------------------------------------------------------------------------------

    def split(self, batch: _Batch, few: int, many: int, most: float) -> None:
        """Looks in a box for plans better than the best, of which none has more than ``most`` tokens per second."""
        target = self.rate * (1 + self.gap)
        if most <= target or not self.may(batch, few, many, target):
            return
        if few == many:
            self.improve(batch, few, most)
            return
        middle = (few + many) // 2
        halves = [(few, middle), (middle + 1, many)]
        order = sorted(((self.highest(batch, *half), half) for half in halves), reverse=True)
        for own, half in order:
            self.split(batch, *half, min(own, most))

    def highest(self, batch: _Batch, few: int, many: int) -> float:
        """A rate that no plan of a box is above, by what devices take together and the least path."""
        size = self.problem.batches[batch.number]
        path = float(batch.rest[0]) + float(self.problem.hops[batch.number, 0])
        high = size * many / path if path > 0 else math.inf
        if math.isinf(high):
            high = size / 1e-12
        if self.reaches(batch, few, size / high, exact=False):
            return high
        if not self.reaches(batch, few, math.inf, exact=False):
            return 0.0
        low = high
        while not self.reaches(batch, few, size / low, exact=False):
            high, low = low, low / 4
        for _ in range(HALVED):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self.reaches(batch, few, size / middle, exact=False) else (low, middle)
            if high <= low * (1 + self.gap / 4):
                break
        return high

    def may(self, batch: _Batch, few: int, many: int, rate: float) -> bool:
        """Whether a plan of a box might have so many tokens per second."""
        tau = self.problem.batches[batch.number] / rate if rate > 0 else math.inf
        if not self.reaches(batch, few, tau, exact=False):
            return False
        value, _ = self.shortest(batch, few, tau, many * tau, exact=False)
        return bool(np.isfinite(value[:, -1]).any())

    def improve(self, batch: _Batch, groups: int, most: float) -> None:
        """The best plan of a batch with so many groups is the best of all, if it is better: no such plan has more than ``most``
        tokens per second, and that limit and the best rate approach each other."""
        size = self.problem.batches[batch.number]
        if self.best is None:
            self.best = self.plan(batch, groups, math.inf)
        while self.best is not None and most > (low := self.rate * (1 + self.gap)):
            middle = math.sqrt(low * most) if most > low * (1 + self.gap) else low
            found = self.plan(batch, groups, size / middle)
            if found is not None:
                self.best = found
            else:
                most = middle

    # -- dynamic programmes --------------------------------------------------------------------------------------------

    def far(self, batch: _Batch, groups: int, tau: float, *, exact: bool) -> NDArray[np.int32]:
        from passes.partition.decoding.kernels import furthest

        with np.errstate(divide="ignore", invalid="ignore"):
            each = tau * groups / batch.seconds * BEYOND
        each = np.where(np.isinf(batch.seconds), 0.0, np.where(np.isnan(each), np.inf, each))
        takes = np.minimum(batch.sets, np.floor(each) if exact else each)
        return furthest(takes, self.vectors, float(groups) * (1.0 if exact else 1 / BEYOND), exact)

    def reaches(self, batch: _Batch, groups: int, tau: float, *, exact: bool) -> bool:
        from passes.partition.decoding.kernels import reached

        return bool(reached(self.far(batch, groups, tau, exact=exact), self.vectors))

    def shortest(
        self, batch: _Batch, groups: int, tau: float, budget: float, *, exact: bool
    ) -> tuple[Floats, NDArray[np.int32]]:
        from passes.partition.decoding.kernels import shortest

        self.programmes += 1
        did("run", len(self.vectors) * self.problem.units**2)
        path, far = batch.slow if exact else batch.fast, self.far(batch, groups, tau, exact=exact)
        most = budget * BEYOND if math.isfinite(budget) else 1e300
        return shortest(far, self.vectors, self.kind_of, path, batch.rest, most)

    def plan(self, batch: _Batch, groups: int, tau: float) -> DecodingPlan | None:
        """The plan of the shortest paths with periods of at most ``tau``, if these fit into the groups."""
        if not self.reaches(batch, groups, tau, exact=True):
            return None
        value, way = self.shortest(batch, groups, tau, groups * tau, exact=True)
        state, unit = int(value[:, -1].argmin()), self.problem.units
        if not math.isfinite(value[state, unit]):
            return None
        stages = []
        while unit:
            devices, first = way[state, unit].tolist()
            stages.append(SharedStage(first, unit, tuple(self.vectors[devices].tolist())))
            state, unit = state - devices, first
        found = shared(self.problem, stages[::-1], batch.number, groups)
        return found if found is not None and found.tokens_per_second > self.rate else None


def best_plan(problem: Decoding, gap: float = GAP) -> DecodingPlan | None:
    """The plan of most tokens per second, with its bound; None where nothing fits."""
    return DecodingSearch(problem, gap).search()


def fastest_plan(problem: Decoding) -> DecodingPlan | None:
    """The plan of the least seconds per token of one user: one group of the first batch, no device shared."""
    alone = replace(problem, batches=problem.batches[:1], groups=(1, 1))
    search = DecodingSearch(alone, 0.0)
    found = search.plan(search.batch(0), 1, math.inf)
    return replace(found, bound=found.tokens_per_second) if found is not None else None


__all__ = ["DecodingSearch", "best_plan", "fastest_plan"]
