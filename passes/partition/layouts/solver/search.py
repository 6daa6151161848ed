"""The search: exact on the folded graph where tables stay small, with a bound always.

Searches are tried with ever larger tables (``Policy.rungs``). Each gives a plan and a bound. Behind the first, choices that
another is never worse than go (``reduce``), so that the others are of a smaller problem. Where value and bound stay further
apart than the ``gap`` that is asked for, the integer programme is asked.

A memory limit is priced (a Lagrangian: seconds per byte): each price gives a bound, the plan found at it is a candidate
where it fits, and the price at which plans begin to fit is sought.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ir.core.outcomes import TIGHT
from passes.partition.layouts.elimination.elimination import BUDGET
from passes.partition.layouts.elimination.folded import FoldedSearch, Priced, least_memory
from passes.partition.layouts.problem.problem import ShardProblem
from passes.partition.layouts.solver.descent import descend
from passes.partition.layouts.solver.mixed import mixed
from passes.partition.layouts.solver.reduce import Reduced, reduced, whole
from passes.solvers.anytime import Anytime, Limits, Progress, Result, relative_gap
from passes.solvers.work import now


@dataclass(frozen=True, slots=True)
class Policy:
    """The numbers that steer a search; ``tests/bench/ablation.py`` says what each rung and phase is worth."""

    rungs: tuple[int, ...] = (1 << 16, 1 << 20, 1 << 22, 1 << 24)
    """Entries of tables in searches before that with the whole budget. Without those from 2**20 on, gaps of experts and of
    training under a limit of memory grow from 3 % to 30 % and more."""
    prices: int = 60
    """Prices of memory that are tried; a dozen is common."""
    rounding: float = 1e-12
    """Relative: what a bound gives way for sums that were rounded."""


POLICY = Policy()
ENOUGH_PROVEN = 1e-3
"""Relative gap at which a search ends, unless less is asked for."""
BOUNDING = 2.0
"""Seconds of a search that only bounds a plan that is given."""


@dataclass(frozen=True, kw_only=True)
class ShardPlan(Result):
    """``choices[node]``; ``memory`` bytes per device. ``reason``: why not optimal. ``price``: seconds per byte of memory at
    which an elimination proves the bound, or most of it."""

    choices: tuple[int, ...]
    memory: float
    price: float = 0.0


def unproven(choices: tuple[int, ...], value: float, memory: float) -> ShardPlan:
    """The plan of these choices, of which nothing is proven."""
    return ShardPlan(choices=choices, value=value, bound=0.0, memory=memory, status="within-gap")


class NoPlanError(ValueError):
    """Nothing fits: ``least`` bytes per device are needed (at least)."""

    def __init__(self, least: float) -> None:
        super().__init__(f"needs {least:.0f} bytes")
        self.least = least


def solve(
    problem: ShardProblem,
    *,
    memory: float | None = None,
    seconds: float = 60.0,
    budget: int = BUDGET,
    gap: float = ENOUGH_PROVEN,
    beaten: float = math.inf,
    anytime: bool = False,
    progress: Progress = lambda label, fraction: None,
) -> ShardPlan:
    """The cheapest plan that needs at most ``memory`` bytes per device. ``gap``: relative; no more is proven than that value
    and bound are so near, though often they meet. ``beaten``: seconds of a plan of another problem: once the bound says that
    none here is better, any plan will do. ``anytime``: an interrupt from the keyboard ends the search with the plan and the
    bound at hand; without, or where there is no plan yet, it is passed on. Raises NoPlanError where nothing fits."""
    plan = LayoutSearch(problem, memory, budget, Limits(seconds=seconds, beaten=beaten, gap=gap), progress).run()
    if plan.interrupted and not anytime:
        raise KeyboardInterrupt
    return plan


class LayoutSearch(Anytime[tuple[int, ...]]):
    """The search of ``solve``. ``best``: choices of all nodes; ``rest``: what is left of the problem; ``price``: of memory, at
    which the bound was found; ``slack``: relative distance at which value and bound meet."""

    def __init__(self, problem: ShardProblem, memory: float | None, budget: int, limits: Limits, progress: Progress) -> None:
        super().__init__(limits, progress)
        self.memory, self.budget, self.rest = memory, budget, whole(problem)
        self.until = self.started + limits.seconds
        self.bytes = self.price = 0.0
        self.slack = TIGHT

    def run(self) -> ShardPlan:
        """The best plan with the best bound. Raises NoPlanError where nothing fits; an interrupt from the keyboard ends the
        search, and is passed on where there is no plan yet."""
        self.search(self._phases)
        plan = unproven(self.best or (), self.value, self.bytes).bounded(self.bound, self.reason, self.slack)
        return replace(plan, price=self.price, interrupted=self.interrupted)

    def _phases(self) -> None:
        """Tables that grow until value and bound are near enough or no table is in parts; then the integer programme."""
        for number, budget in enumerate((*(rung for rung in POLICY.rungs if rung < self.budget), self.budget)):
            exact = self._along(budget)
            if self.done():
                return
            if number == 0:
                self.progress("choices", None)
                self.rest = reduced(self.rest.problem, until=self.until)
            if exact:
                break
        self._certify()

    def done(self) -> bool:
        """Whether the plan is all that is asked for, or time is over."""
        near = relative_gap(self.value, self.bound) <= self.limits.gap
        return near or self.bound >= self.limits.beaten or self.left() < 0

    def _along(self, budget: int) -> bool:
        """Searches what is left with tables of so many entries; whether no table was in parts."""
        tables = FoldedSearch(self.rest.problem, budget, self.until)
        found = searched(self.rest.problem, tables, self.memory, self.until, self.progress)
        self._take(found.choices, found.value, self.rest)
        if found.bound > self.bound:
            self.price = found.price
        self._prove(found.bound, found.reason)
        if found.interrupted:
            raise KeyboardInterrupt
        return tables.exact

    def _take(self, choices: tuple[int, ...], value: float, rest: Reduced) -> None:
        """Keeps the plan of what is left of the problem, where it is better than the best."""
        if self.best is None or value < self.value:
            self.best, self.value, self.bytes = rest.original(choices), value, rest.problem.memory(choices)

    def _prove(self, bound: float, reason: str) -> None:
        self.bound, self.reason = min(max(self.bound, bound), self.value), reason

    def _certify(self) -> None:
        """What the integer programme finds in what is left of the problem, and proves."""
        from passes.partition.layouts.solver.programme import certified
        from passes.solvers.highs import PROVEN

        rest, memory = self.rest, self.memory
        found = certified(rest.problem, rest.nearest(self.best or ()), self.value, memory, self.until, self.limits.gap)
        if found.choices and (memory is None or rest.problem.memory(found.choices) <= memory):
            self._take(found.choices, rest.problem.cost(found.choices), rest)
        self._prove(found.bound, self.reason)
        self.slack = PROVEN


def searched(problem: ShardProblem, search: FoldedSearch, memory: float | None, ends: float, progress: Progress) -> ShardPlan:
    """The plan of one way to search, with the price of memory that bounds it best. Raises NoPlanError."""
    loose = search.cheapest(0.0)
    bound, price, reason, interrupted = loose.bound, 0.0, "width", False
    best, value = loose.choices, problem.cost(loose.choices)
    if memory is not None and problem.memory(best) > memory:
        prices, reason = _Prices(problem, search, loose, memory), "memory"
        try:
            prices.sought(ends, progress)
        except KeyboardInterrupt:
            interrupted = True
        best, value, bound, price = prices.best, prices.value, prices.bound, prices.binding
    if not interrupted and value > bound * (1 + TIGHT):
        try:
            best, value = descend(problem, best, value, memory, ends)
        except KeyboardInterrupt:
            interrupted = True
    plan = replace(unproven(best, value, problem.memory(best)), interrupted=interrupted, price=price)
    return plan.bounded(value if value <= bound * (1 + TIGHT) else bound * (1 - POLICY.rounding), reason)


class _Prices:
    """Plans at prices of memory, where the quickest plan needs too much: ``best`` fits and costs ``value``; ``bound`` is the
    highest that a price gives, at the price ``binding``."""

    def __init__(self, problem: ShardProblem, search: FoldedSearch, loose: Priced, memory: float) -> None:
        """``loose``: what was found at no price. Raises NoPlanError."""
        self.problem, self.search, self.memory = problem, search, memory
        sparse = least_memory(problem)
        least = problem.memory(sparse)
        if least > memory * (1 + TIGHT):
            raise NoPlanError(least)
        self.bound, self.binding = loose.bound, 0.0
        self.best, self.value = sparse, problem.cost(sparse)
        self.dense, self.sparse = loose.choices, sparse

    def sought(self, ends: float, progress: Progress) -> None:
        """The lines of a dense and a sparse plan meet at the next price to try, until the search at that price finds neither
        cheaper (Everett 1963; the supporting points of the lower envelope)."""
        problem, memory = self.problem, self.memory
        high = problem.cost(self.dense), problem.memory(self.dense)
        low = problem.cost(self.sparse), problem.memory(self.sparse)
        for _ in range(POLICY.prices):
            if now() > ends or high[1] <= low[1] or high[0] >= low[0]:
                break
            price = (low[0] - high[0]) / (high[1] - low[1])
            progress("memory", None)
            found = self.search.cheapest(price)
            cost, needs = problem.cost(found.choices), problem.memory(found.choices)
            if found.bound - price * memory > self.bound:
                self.bound, self.binding = found.bound - price * memory, price
            if needs <= memory and cost < self.value:
                self.best, self.value = found.choices, cost
            line = high[0] + price * high[1]
            if cost + price * needs >= line - TIGHT * abs(line):
                break
            if needs <= memory:
                low, self.sparse = (cost, needs), found.choices
            else:
                high, self.dense = (cost, needs), found.choices
        if self.value > self.bound * (1 + TIGHT):
            between = mixed(problem, self.dense, self.sparse, memory)
            if between is not None and between[1] < self.value:
                self.best, self.value = between
