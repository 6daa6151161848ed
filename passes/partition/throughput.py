"""Throughput: the least possible largest load, exact whenever the lattice of ideals can be walked within the budget.

1. Upper bound: the programme over the prefixes of a few topological orders.
2. Lower bound: load balance and largest node (``bounds``).
3. Trial values rising from the lower to the upper bound; at each, the ideals that can be boundaries (``ideals.lattice``)
   and the programme over them. Nothing found raises the lower bound to the trial value; something found is the optimum.
4. When the lattice is over budget even so: the best plan of a contraction whose lattice is small (``coarsen``), then the
   ideals near an order that the best plan so far follows, in bands as wide as the budget allows; around each better plan
   anew. The plan is feasible, the lower bound stands, and the gap between them is reported.

With many different devices the vectors of devices used are too many to carry along. Then stages take devices in the order
of a few sequences (as given, fastest first, slowest first), any of them left out: feasible plans, the same lower bound.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from passes.partition import orders
from passes.partition.bounds import best_bound, prices
from passes.partition.coarsen import contracted
from passes.partition.dp import KeepOn, Stages, solve_family
from passes.partition.ideals import BIG, Family, Tables, lattice, permuted, sequences
from passes.partition.problem import Problem, plan_costs
from passes.partition.reduce import quotient

TIGHT = 1e-9
"""Relative distance at which a value counts as equal to its bound: rounding of sums of seconds."""

IDEALS_PER_SECOND = 2_000_000
"""What a fast machine walks over and stores: only there to keep a time limit when the budget of ideals is large."""
COARSE_IDEALS = 50_000
"""Ideals of the contraction: a second's work at most, and wider ones hardly gave better plans."""
SMALL_GAP = 0.01
"""Relative gap below which a search that is not exact ends early."""


@dataclass(frozen=True)
class Budget:
    """Limits on a search: ideals walked over per enumeration, bytes stored for a family, pairs of ideals tested in each phase
    (ten to a hundred million a second), seconds in all. The first three make the same plan on any machine; the seconds only
    stop a machine that is slower than expected."""

    ideals: int = 5_000_000
    memory: int = 512 << 20
    pairs: int = 60_000_000
    seconds: float = 10.0


@dataclass
class Statistics:
    """What a search did."""

    ideals: int = 0
    stored: int = 0
    tested: int = 0
    transitions: int = 0
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Solution:
    """``stages`` is None when no plan was found; ``status`` is then ``infeasible`` when that is proven, else ``unknown``.
    ``value`` and ``bound`` in seconds per sample; ``reason``: how the bound was reached."""

    status: str
    stages: Stages | None
    value: float
    bound: float
    reason: str
    statistics: Statistics


Progress = Callable[[str, float | None], None]


def solve(problem: Problem, budget: Budget | None = None, progress: Progress = lambda label, fraction: None) -> Solution:
    """The best contiguous plan that the budget finds, with a valid lower bound."""
    return _Search(problem, budget or Budget(), progress).run()


class _Search:
    def __init__(self, problem: Problem, budget: Budget, progress: Progress) -> None:
        self.problem, self.budget, self.progress = problem, budget, progress
        self.started = time.perf_counter()
        self.price = prices(problem)
        self.sequences = sequences(problem)
        self.tables = Tables(problem, self.price, self.sequences[0])
        self.statistics = Statistics()
        self.best: Stages | None = None
        self.value = float("inf")
        self.bound, self.reason = best_bound(problem, self.price)
        self.order = orders.given(self.tables)
        self.spent: dict[str, int] = {}

    def run(self) -> Solution:
        self._phase("linear", self._linear)
        if not self._tight():
            self._phase("exact", self._exact)
        if self.statistics.ideals == 0 and not self._tight():
            self._phase("coarse", self._coarse)
        if self.statistics.ideals == 0 and not self._tight():
            self._phase("band", self._band)
        return self._solution()

    def _phase(self, name: str, work: Callable[[], None]) -> None:
        start = time.perf_counter()
        self.progress(f"partition: {name}", None)
        work()
        self.statistics.seconds[name] = time.perf_counter() - start

    def _tight(self) -> bool:
        return self.value <= self.bound * (1 + TIGHT) or (self.value == self.bound == 0)

    def _left(self) -> float:
        return self.budget.seconds - (time.perf_counter() - self.started)

    def _visits(self) -> int:
        """Ideals that one walk may meet: the budget's, unless the time left would not do even on a fast machine."""
        return min(self.budget.ideals, int(max(self._left(), 0.1) * IDEALS_PER_SECOND))

    def _keep_on(self, phase: str, until: float) -> KeepOn:
        """For one run of the programme: stops it at the phase's budget of pairs, or ``until`` seconds after the start."""
        spent = self.spent.get(phase, 0)

        def keep_on(tested: int, part: float) -> bool:
            self.progress(f"partition: {phase}", part)
            self.spent[phase] = spent + tested
            return spent + tested <= self.budget.pairs and time.perf_counter() - self.started < until

        return keep_on

    def _accept(self, stages: Stages | None) -> bool:
        """Keeps the stages when they are better, valued from the definition."""
        if stages is None:
            return False
        value = max((cost.load for cost in plan_costs(self.problem, stages)), default=0.0)
        if value < self.value:
            self.value, self.best = value, stages
            return True
        return False

    def _linear(self) -> None:
        for make in (orders.given, orders.late, orders.thin):
            order = make(self.tables)
            for sequence in self.sequences:
                if self._near(order, sequence, 0, BIG, "linear") is not None and self._tight():
                    return

    def _near(self, order: list[int], sequence: Sequence[int], band: int, trial: float, label: str) -> bool | None:
        """Searches the ideals near ``order``; True when that improved the plan, None when over budget."""
        tables = Tables(permuted(self.problem, order), self.price, sequence)
        ideals = lattice(tables, trial, band=band, max_visits=self._visits(), max_words=self.budget.memory // 8)
        if ideals is None:
            return None
        found = solve_family(tables, ideals, trial, self._keep_on(label, self.budget.seconds))
        self._count(ideals.size, found.tested, found.priced)
        if not found.complete:
            return None
        stages = found.stages
        if stages is None:
            return False
        if self._accept(tuple((kind, tuple(sorted(order[v] for v in nodes))) for kind, nodes in stages)):
            self.order = self._along(order)
            if sequence != self.tables.sequence:
                self.tables = Tables(self.problem, self.price, sequence)
            return True
        return False

    def _along(self, order: list[int]) -> list[int]:
        """The order, stage by stage of the best plan: its boundaries are prefixes."""
        stage_of = {v: s for s, (_, nodes) in enumerate(self.best or ()) for v in nodes}
        return sorted(order, key=lambda v: stage_of[v])

    def _coarse(self) -> None:
        if self.best is None:
            return
        groups = contracted(self.tables, self.order, self.best, self.value, min(COARSE_IDEALS, self._visits()))
        if groups is None:
            return
        problem = quotient(self.problem, groups)
        tables = Tables(problem, prices(problem), self.tables.sequence)
        ideals = lattice(tables, self.value, max_visits=self._visits(), max_words=self.budget.memory // 8)
        if ideals is None:
            return
        found = solve_family(tables, ideals, self.value, self._keep_on("coarse", self.budget.seconds))
        self._count(ideals.size, found.tested, found.priced)
        if found.stages is not None and self._accept(
            tuple((kind, tuple(sorted(v for group in nodes for v in groups[group]))) for kind, nodes in found.stages)
        ):
            self.order = self._along([v for group in groups for v in group])

    def _count(self, stored: int, tested: int, priced: int) -> None:
        self.statistics.stored = max(self.statistics.stored, stored)
        self.statistics.tested += tested
        self.statistics.transitions += priced

    def _trials(self) -> list[float]:
        """Values to try, rising; the last is the upper bound, or prunes nothing when there is none."""
        if not np.isfinite(self.value):
            return [BIG]
        if not self.tables.states.every or self.value <= self.bound * 1.001:
            return [self.value]
        return [self.bound + (self.value - self.bound) * part for part in (0.1, 0.4)] + [self.value]

    def _exact(self) -> None:
        for trial in self._trials():
            ideals = lattice(self.tables, trial, max_visits=self._visits(), max_words=self.budget.memory // 8)
            if ideals is None:
                self.statistics.ideals = 0
                return
            found = solve_family(self.tables, ideals, trial, self._keep_on("exact", self.budget.seconds / 2))
            self._count(ideals.size, found.tested, found.priced)
            if not found.complete:
                self.statistics.ideals = 0
                return
            self.statistics.ideals = max(self.statistics.ideals, ideals.visited)
            if not self.tables.states.every:
                self._accept(found.stages)
                return
            if found.stages is not None:
                self._accept(found.stages)
                self._fewer_transfers(ideals)
                self.bound, self.reason = self.value, "every ideal within the windows of the optimum was searched"
                return
            if trial >= self.value or trial == BIG:
                # The upper bound's own plan lies in its windows; not found again means that rounding hides it.
                self.bound = self.value
                self.reason = "every ideal was searched" if trial == BIG else "no plan below the value in its windows"
                return
            self.bound, self.reason = trial, "no plan at or below it: every ideal within its windows was searched"

    def _fewer_transfers(self, ideals: Family) -> None:
        """Of the plans as good as the best, one with the least sum of transfers: on real links a tensor sent to two stages is
        sent twice, and what nobody needs to move cannot be late."""
        found = solve_family(self.tables, ideals, self.value, self._keep_on("exact", self.budget.seconds), additive=True)
        if found.stages is not None:
            value = max(cost.load for cost in plan_costs(self.problem, found.stages))
            if value <= self.value * (1 + TIGHT):
                self.best, self.value = found.stages, value

    def _band(self) -> None:
        band, idle = 4, 0
        # Wide bands cost most and rarely help once the gap is small: stop after two that did not.
        while self._left() > 0 and not (idle >= 2 and self.value <= self.bound * (1 + SMALL_GAP)):
            trial = self.value if np.isfinite(self.value) else BIG
            better = self._near(self.order, self.tables.sequence, band, trial, "band")
            if better is None or self._tight() or band >= self.problem.size:
                return
            idle = 0 if better else idle + 1
            band += 0 if better else max(1, band // 4)

    def _solution(self) -> Solution:
        if self.best is None:
            proven = self.statistics.ideals > 0 and self.tables.states.every
            return Solution(
                "infeasible" if proven else "unknown", None, float("inf"), float("inf"), self.reason, self.statistics
            )
        status = "optimal" if self._tight() else "feasible"
        bound = self.value if status == "optimal" else self.bound
        return Solution(status, self.best, self.value, bound, self.reason, self.statistics)


__all__ = ["Budget", "Solution", "Statistics", "solve"]
