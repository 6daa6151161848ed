"""The least latency, exact where the lattice of ideals can be walked, with a bound always.

1. Reductions (``reduce``), then plans: everything on CPUs, or on as few accelerators as hold it in order (``filled``), the best
   of one piece per accelerator, the best along one order.
2. The whole lattice, if it has few enough ideals. The tail of the empty ideal (least time to the end, ``kernels``) is a lower
   bound. Searches that keep 1, 4, 16, ... labels (partial plans) per ideal give plans and better bounds: no plan ends before
   the most promising label that was dropped. Where plan and bound meet, or no label was dropped, the plan is optimal.
3. Else plans along ever wider bands of ideals around an order, and lower bounds from problems with nodes left out
   (``bounds.relaxed``): as many nodes are kept as the budget of ideals allows.
4. Bounds may count a free source (``reduce``) in part. Where a gap is left and there are free sources, the search is repeated
   without them, every node a group of its own, if that lattice is small enough.

Beside an incumbent (``Limits.beaten``) only better plans are looked for, and where there are none its value is the bound.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from ir.core.outcomes import SLACK, TIGHT
from passes.partition.lattice.objective import Budget, IdealSearch, Solution
from passes.reference.latency.bounds import critical_path, fastest, relaxed
from passes.reference.latency.engine import Engine, Pass
from passes.reference.latency.problem import LatencyProblem, Piece, Schedule, faults, filled, schedule
from passes.reference.latency.reduce import Reduced, apart, reduced, restricted
from passes.solvers.anytime import Progress
from passes.stages.problem import Kind

SECONDS = 100.0
"""Longest search unless a limit is given."""


@dataclass(frozen=True)
class Policy:
    """The numbers that steer this search (``tests.bench.latency``, ``tests.bench.ablation``)."""

    widths: tuple[int, ...] = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536)
    """Labels per ideal, search by search."""
    label_bytes: int = 256 << 20
    """Bytes of all labels of one search."""
    narrow: int = 20_000
    """Ideals of a band, and of a relaxation, where the whole lattice is too large."""
    single_share: float = 0.25
    """Part of the time for the plan of one piece per accelerator, where several are allowed."""


POLICY = Policy()


@dataclass(frozen=True)
class LatencyBudget(Budget):
    """Limits on a search: ideals of the whole lattice, bytes of its tails, seconds in all; pairs are not limited."""

    ideals: int = 300_000
    memory: int = 400 << 20
    seconds: float = SECONDS


@dataclass(frozen=True)
class LatencySolution(Solution):
    """``stages`` holds (kind, nodes) of each piece, in their order; ``schedule``: the plan evaluated, None without one."""

    schedule: Schedule | None = None


def solve_latency(
    problem: LatencyProblem,
    budget: LatencyBudget | None = None,
    progress: Progress = lambda label, fraction: None,
) -> LatencySolution:
    """Solves ``problem``; see the module. Raises ``TooManyKindsError`` for more kinds of accelerators than the search can
    carry. A KeyboardInterrupt raised by ``progress`` ends the search with what is known so far
    when there is a plan."""
    progress("load the search", None)
    _load()
    return _Search(problem, budget or LatencyBudget(), progress).run()


@cache
def _load() -> None:
    """Runs every kernel on the smallest problem, so that compiling them counts for no search."""
    kind = Kind("accelerator", ("a",))
    times = np.ones((1, 1))
    no_tensors = (np.empty(0, np.int64), (), np.empty((1, 0)))
    engine = Engine.open(reduced(LatencyProblem(("v",), (kind,), times, times[0], np.zeros(1, np.int64), *no_tensors)), most=4)
    assert engine is not None, "two ideals"
    engine.bound(math.inf, lambda part: True)
    engine.search(math.inf, 1, 8, lambda part: True)


class _Search(IdealSearch):
    limits: LatencyBudget

    def __init__(self, problem: LatencyProblem, budget: LatencyBudget, progress: Progress) -> None:
        super().__init__(budget, progress, (0.0, "no time was left for a bound"), TIGHT)
        self.problem = problem
        self.schedule: Schedule | None = None
        self.wants_bounds = True

    def run(self) -> LatencySolution:
        start = time.perf_counter()
        self.search(self._run)
        phases = self.statistics.seconds
        phases["plans"] = time.perf_counter() - start - sum(phases.values())
        self.statistics.transitions = self.statistics.tested
        return LatencySolution(**vars(self.solution()), schedule=self.schedule)

    def _run(self) -> None:
        self._lower(critical_path(self.problem), "the critical path, each node on its fastest device, transfers free")
        stuck = np.isinf(fastest(self.problem))
        if stuck.any():
            names = [self.problem.names[v] for v in np.flatnonzero(stuck)[:3]]
            self._prove_infeasible(f"no device runs {', '.join(names)}")
            return
        if np.isfinite(self.problem.cpu).all():
            self._accept([])
        self._accept_filled()
        small = reduced(self.problem)
        if not small.groups or self.infeasible or self._done() or self.enough():
            return
        if self.problem.pieces > 1:
            self._accept_single()
        if not self.enough():
            self._lattice(small)
        if small.free and not (self._done() or self._late() or self.infeasible):
            engine = self._open(apart(self.problem), POLICY.narrow, None)
            if engine is not None:
                self._exact(engine, "search without free sources")

    def _accept_filled(self) -> None:
        """Keeps the best of the plans that fill one accelerator after the other, all of one kind first."""
        kinds = range(len(self.problem.kinds))
        quickest = sorted(kinds, key=lambda kind: float(self.problem.seconds[kind].sum()))
        for first in kinds:
            pieces = filled(self.problem, [first, *(kind for kind in quickest if kind != first)])
            if pieces and not faults(self.problem, pieces):
                self._accept(pieces)
        if self.problem.accelerators * self.problem.pieces == 1 and np.isinf(self.problem.cpu).all():
            if self.best is None:
                self._prove_infeasible()
            self._lower(self.value, "the only plan")

    def _lattice(self, small: Reduced) -> None:
        """Plans and bounds over ideals of the groups of ``small``: the whole lattice, or parts where that is over budget."""
        self._along(small, 0, POLICY.narrow)
        if self._done() or self._late():
            return
        engine = self._open(small, self.limits.ideals, None)
        if engine is not None:
            if engine.ideals > POLICY.narrow // 4:
                # It may take all the time and more: first a plan that prunes it, and the bound of a smaller lattice.
                self._bands(small, POLICY.narrow // 10)
                self._relaxed(small, POLICY.narrow // 10)
            if not self._late():
                self._exact(engine, "search the lattice")
            return
        self._relaxed(small, POLICY.narrow // 10)
        self._bands(small, POLICY.narrow)
        if not self._late() and not self._done():
            self._relaxed(small, POLICY.narrow)

    def _accept_single(self) -> None:
        """Keeps the best plan of one piece per accelerator: also a plan where several are allowed, and quickly found."""
        single = replace(self.problem, pieces=1)
        search = _Search(single, replace(self.limits, seconds=self.left() * POLICY.single_share), self.progress)
        search.wants_bounds = False
        try:
            search._run()
        finally:  # an interrupt goes on to the search of several pieces, with the plan
            self.statistics.tested += search.statistics.tested
            if search.schedule is not None:
                self._accept(search.schedule.pieces)

    def _open(self, small: Reduced, most: int, band: int | None) -> Engine | None:
        """An engine for plans better than the best; None where it has more than ``most`` ideals, or its tails exceed the
        memory."""
        engine = Engine.open(restricted(small, self._worthwhile()), most=most, band=band, memory=self.limits.memory)
        if engine is not None:
            self.statistics.ideals = max(self.statistics.ideals, engine.ideals)
        return engine

    def _along(self, small: Reduced, band: int, most: int) -> bool | None:
        """Looks for plans along a band (0: one order) of at most ``most`` ideals: whether one is better than the best before,
        None where there are more ideals."""
        before, label = self.value, "plan along a band" if band else "plan along one order"
        engine = self._open(small, most, band)
        if engine is None:
            return None
        if engine.bound(self._worthwhile(), self._keep_on(label)) is not None:
            for found in self._searches(engine, label, POLICY.widths[:3]):
                self._accept(found.pieces)
        self.statistics.tested += engine.steps
        return self.value < before

    def _exact(self, engine: Engine, label: str) -> None:
        """The whole lattice of the problem itself."""
        start = time.perf_counter()
        least = engine.bound(self._worthwhile(), self._keep_on("bound over the lattice"))
        self.statistics.seconds["bound"] = time.perf_counter() - start
        if least is not None:
            self._lower(least, f"every path through {engine.ideals} ideals", engine.rounding)
            if math.isinf(least):
                self._prove_infeasible()
            for found in self._searches(engine, label, POLICY.widths):
                self._accept(found.pieces)
                if math.isinf(found.bound):
                    self._prove_infeasible()
                else:
                    words = "all" if found.whole else "the most promising"
                    self._lower(found.bound, f"{words} labels over {engine.ideals} ideals", engine.rounding)
        self.statistics.tested += engine.steps
        self.statistics.seconds["labels"] = time.perf_counter() - start - self.statistics.seconds["bound"]

    def _searches(self, engine: Engine, title: str, widths: Sequence[int]) -> Iterator[Pass]:
        """Searches of growing width, until time is over, plan and bound meet, or a search dropped no label."""
        label = 8 * (engine.width + 12 + 3 * self.problem.accelerators + len(self.problem.colours))
        room = min(POLICY.label_bytes, self.limits.memory) // label
        for width in widths:
            if self._late() or self._done() or self.infeasible:
                return
            labels = max(2, min(room, width * engine.ideals + 64))
            found = engine.search(self._worthwhile(), width, labels, self._keep_on(title))
            yield found
            if found.whole:
                return

    def _bands(self, small: Reduced, most: int) -> None:
        """Plans along bands of at most ``most`` ideals; a band that gives no better plan is doubled."""
        band = 1
        while not self._late() and not self._done() and band < len(small.groups):
            better = self._along(small, band, most)
            if better is None:
                return
            if not better:
                band *= 2

    def _relaxed(self, small: Reduced, most: int) -> None:
        """A bound by the tails of the largest relaxation whose lattice has at most ``most`` ideals (by bisection)."""
        if not self.wants_bounds or self._late():
            return
        low, high = 1, len(small.groups)
        engine = None
        while low <= high:
            middle = (low + high) // 2
            opened = self._open(relaxed(small, middle), most, None)
            if opened is None:
                high = middle - 1
            else:
                engine, low = opened, middle + 1
        if engine is None:
            return
        words = f"{len(engine.reduced.groups)} of {len(small.groups)} nodes, {engine.ideals} ideals; the others left out"
        least = engine.bound(self._worthwhile(), self._keep_on("bound with nodes left out"))
        if least is None:
            return
        if math.isinf(least):
            self._prove_infeasible()
            return
        self._lower(least, words, engine.rounding)
        self.statistics.tested += engine.steps

    def _worthwhile(self) -> float:
        """The latency below which a plan counts as better than the best, its own or the incumbent."""
        return min(self.value, self.limits.beaten) * (1 - TIGHT / 10)

    def _done(self) -> bool:
        """Whether the plan is proven to be the best, or none to be better than the incumbent."""
        return self.tight() or self.bound >= self.limits.beaten

    def _late(self) -> bool:
        return self.left() < 0

    def _keep_on(self, label: str) -> Callable[[float], bool]:
        def keep_on(part: float) -> bool:
            self.progress(label, part)
            return not self._late()

        return keep_on

    def _accept(self, pieces: Sequence[Piece] | None) -> None:
        """Keeps the plan, if there is one, where it is better."""
        if pieces is None:
            return
        found = schedule(self.problem, pieces)
        if found.latency < self.value:
            self.schedule, self.value = found, found.latency
            self.best = tuple((piece.kind, piece.nodes) for piece in found.pieces)

    def _lower(self, bound: float, reason: str, rounding: float = 0.0) -> None:
        """Raises the lower bound; ``rounding``: seconds that ``bound`` may be off, besides ``SLACK``. One that is nearly the
        incumbent's value is that: only plans that are better by a part of ``TIGHT`` are looked for."""
        bound, beaten = (bound - rounding) * (1 - SLACK), self.limits.beaten
        self.tell(min(self.value, beaten if bound >= beaten * (1 - TIGHT) else bound), reason)

    def _prove_infeasible(self, reason: str = "no sequence of pieces fits the memory of the accelerators") -> None:
        self.infeasible, self.reason, self.bound = True, reason, math.inf
