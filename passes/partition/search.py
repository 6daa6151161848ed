"""The search that objectives share: from orders over exact trials to bands, with a bound at every moment.

An objective brings its own dynamic programme and its own definition of a plan's value; what it shares with others is the
lattice of ideals. The walk over that lattice needs a ``Problem``: nodes, precedence (its tensors), and seconds such that a
device with load at most T takes at most T seconds of them (its windows of weight).

1. Upper bound: the programme over the prefixes of a few topological orders.
2. Trial values rising from the objective's lower bound to just below the upper bound. At each, the ideals that can be
   boundaries and the programme over them: nothing found raises the bound to the trial value, something found is the optimum.
3. When the lattice is over budget: ideals near the best order, in bands as wide as the budget allows. So too with many
   different devices, which stages then take in the order of a few sequences (as ``throughput`` does).

Invariants: ``bound`` is never above the optimum; ``value`` is that of the stages kept, from the definition; a plan or a
bound once reached is never given up, whatever stops the search.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from passes.partition import orders
from passes.partition.dp import Found, KeepOn, Stages
from passes.partition.ideals import BIG, Family, Tables, lattice, permuted, sequences
from passes.partition.problem import Floats, Problem
from passes.partition.throughput import IDEALS_PER_SECOND, TIGHT, Budget, Progress, Solution, Statistics

TRIALS = (1e-4, 0.01, 0.1, 0.4)
"""Parts of the way from the lower to the upper bound that are tried before the whole: narrow windows cost next to nothing,
and where they hold a plan the wide ones are never walked."""


SMALL_GAP = 2e-4
"""Relative gap below which a search that is not exact ends early."""


class Objective(Protocol):
    """What an objective brings. ``problem`` is walked at ``price``; stages are (label, nodes), the label being its own."""

    problem: Problem
    price: Floats

    def bound(self) -> tuple[float, str]:
        """A lower bound and how it was reached."""

    def value(self, stages: Stages) -> float:
        """The value of a plan from the definition; inf when it breaks a constraint."""

    def programme(self, tables: Tables, family: Family, order: Sequence[int], trial: float, keep_on: KeepOn) -> Found:
        """The best plan of value at most ``trial`` whose boundaries are in the family. ``tables`` and ``family`` call
        ``order[i]`` node i, and so does the answer."""

    def tighten(self, family: Family, bound: float, value: float) -> float:
        """A bound of at least ``bound``, given every ideal that a plan of value at most ``value`` can use."""


class Search:
    """One search; ``run`` gives the plan, its bound and what was done."""

    def __init__(self, objective: Objective, budget: Budget, progress: Progress) -> None:
        self.objective, self.budget, self.progress = objective, budget, progress
        self.started = time.perf_counter()
        self.sequences = sequences(objective.problem)
        self.tables = Tables(objective.problem, objective.price, self.sequences[0])
        self.statistics = Statistics()
        self.best: Stages | None = None
        self.value = float("inf")
        self.bound, self.reason = objective.bound()
        self.order = orders.given(self.tables)
        self.exhausted = False
        self.spent: dict[str, int] = {}

    def run(self) -> Solution:
        """Optimal within the budget, else the best plan found; ``stages`` is None when there is none."""
        self._phase("linear", self._linear)
        if not self.tight():
            self._phase("exact", self._exact)
        if not self.exhausted and not self.tight():
            self._phase("band", self._band)
        return self._solution()

    def _phase(self, name: str, work: Callable[[], None]) -> None:
        start = time.perf_counter()
        self.progress(f"partition: {name}", None)
        work()
        self.statistics.seconds[name] = time.perf_counter() - start

    def tight(self) -> bool:
        return self.value <= self.bound * (1 + TIGHT) or (self.value == self.bound == 0)

    def _left(self) -> float:
        return self.budget.seconds - (time.perf_counter() - self.started)

    def _visits(self) -> int:
        return min(self.budget.ideals, int(max(self._left(), 0.1) * IDEALS_PER_SECOND))

    def _keep_on(self, phase: str, until: float) -> KeepOn:
        spent = self.spent.get(phase, 0)

        def keep_on(tested: int, part: float) -> bool:
            self.progress(f"partition: {phase}", part)
            self.spent[phase] = spent + tested
            return spent + tested <= self.budget.pairs and time.perf_counter() - self.started < until

        return keep_on

    def _accept(self, stages: Stages | None) -> bool:
        if stages is None:
            return False
        value = self.objective.value(stages)
        if value < self.value:
            self.value, self.best = value, stages
            return True
        return False

    def _count(self, ideals: Family, found: Found) -> None:
        self.statistics.stored = max(self.statistics.stored, ideals.size)
        self.statistics.tested += found.tested
        self.statistics.transitions += found.priced

    def _linear(self) -> None:
        for make in (orders.given, orders.late, orders.thin):
            for sequence in self.sequences:
                self._near(make(self.tables), sequence, 0, "linear")
                if self.tight():
                    return

    def _near(self, order: list[int], sequence: Sequence[int], band: int, phase: str) -> bool | None:
        """Searches the ideals near ``order``; True when that improved the plan, None when over budget."""
        tables = Tables(permuted(self.objective.problem, order), self.objective.price, sequence)
        trial = self.value if np.isfinite(self.value) else BIG
        ideals = lattice(tables, trial, band=band, max_visits=self._visits(), max_words=self.budget.memory // 8)
        if ideals is None:
            return None
        found = self.objective.programme(tables, ideals, order, trial, self._keep_on(phase, self.budget.seconds))
        self._count(ideals, found)
        if not found.complete:
            return None
        if found.stages is not None and self._accept(
            tuple((label, tuple(sorted(order[v] for v in nodes))) for label, nodes in found.stages)
        ):
            self.order = order
            if sequence != self.tables.sequence:
                self.tables = Tables(self.objective.problem, self.objective.price, sequence)
            return True
        return False

    def _trials(self) -> list[float]:
        if not np.isfinite(self.value):
            return [BIG]
        return [self.bound + (self.value - self.bound) * part for part in TRIALS] + [self.value * (1 - TIGHT / 2)]

    def _tighten(self) -> None:
        if not np.isfinite(self.value):
            return
        ideals = lattice(self.tables, self.value, max_visits=self._visits(), max_words=self.budget.memory // 8)
        if ideals is None:
            return
        bound = self.objective.tighten(ideals, self.bound, self.value)
        if bound > self.bound:
            self.bound = bound
            self.reason = "how far each number of devices can get: the weights of ideals alone, their nesting left out"

    def _exact(self) -> None:
        if not self.tables.states.every:
            return
        self._tighten()
        identity = range(self.objective.problem.size)
        for trial in self._trials():
            ideals = lattice(self.tables, trial, max_visits=self._visits(), max_words=self.budget.memory // 8)
            if ideals is None:
                return
            found = self.objective.programme(
                self.tables, ideals, identity, trial, self._keep_on("exact", self.budget.seconds / 2)
            )
            self._count(ideals, found)
            if not found.complete:
                return
            self.statistics.ideals = max(self.statistics.ideals, ideals.visited)
            if found.stages is not None or trial == BIG:
                self._accept(found.stages)
                self.exhausted = True
                self.bound = self.value
                self.reason = "every ideal within the windows of the optimum was searched"
                return
            if trial > self.bound:
                self.bound, self.reason = trial, "no plan at or below it: every ideal within its windows was searched"
            if self.tight():
                return

    def _band(self) -> None:
        band, idle = 4, 0
        # Wide bands cost most and rarely help once the gap is small: stop after two that did not.
        while self._left() > 0 and not (idle >= 2 and self.value <= self.bound * (1 + SMALL_GAP)):
            better = self._near(self.order, self.tables.sequence, band, "band")
            if better is None or self.tight() or band >= self.objective.problem.size:
                return
            idle = 0 if better else idle + 1
            band += max(1, band // 4)

    def _solution(self) -> Solution:
        if self.best is None:
            status = "infeasible" if self.exhausted else "unknown"
            return Solution(status, None, float("inf"), float("inf"), self.reason, self.statistics)
        status = "optimal" if self.tight() else "feasible"
        return Solution(
            status,
            self.best,
            self.value,
            self.value if status == "optimal" else min(self.bound, self.value),
            self.reason,
            self.statistics,
        )


def per_ideal(family: Family, per_node: Floats) -> Floats:
    """Sums of ``per_node[n, C]`` over the nodes of each ideal, ``[N, C]``, a few thousand ideals at a time."""
    sums = np.empty((family.size, per_node.shape[1]))
    for start in range(0, family.size, 2048):
        rows = np.unpackbits(family.bits[start : start + 2048].view(np.uint8), axis=1, bitorder="little")
        sums[start : start + 2048] = rows[:, : len(per_node)].astype(np.float64) @ per_node
    return sums


__all__ = ["Objective", "Search", "per_ideal"]
