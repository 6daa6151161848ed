"""The search: exact on the folded graph where tables stay small, with a bound always.

Searches are tried with ever larger tables (``RUNGS``). Each gives a plan, a bound, and for every choice what plans that take it
cost at least (``marginals``): choices that no better plan takes go, then those that another is never worse than (``reduce``),
so that the next search is of a smaller problem. What is paid once is shared among its readers meanwhile (``shares``), which
bounds it; where that leaves something open, the tables of the problem that is left are exact ones, then the shares are moved,
then the integer programme is asked. Each of these only as long as the ``gap`` of value and bound is above what is asked for.

A memory limit is priced (a Lagrangian: seconds per byte): each price gives a bound, the plan found at it is a candidate
where it fits, and the price at which plans begin to fit is sought. Between two such plans lies the *gap*, which is told.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from passes.model.work import now
from passes.shard.elimination.elimination import BUDGET, eliminate
from passes.shard.elimination.folded import FoldedSearch, Found, least_memory
from passes.shard.elimination.model import Charges, Model, tied
from passes.shard.elimination.shares import Shares
from passes.shard.problem.problem import ShardProblem
from passes.shard.solver.descent import SLACK, descend
from passes.shard.solver.fronts import Fronts, TooManyError
from passes.shard.solver.mixed import mixed
from passes.shard.solver.reduce import Reduced, reduced, whole, without

RUNGS = (1 << 16, 1 << 20, 1 << 22, 1 << 24, 1 << 25)
"""Entries of tables in searches before that with the whole budget."""
SHRUNK = 0.9
"""Of its choices: a problem that kept more is as large as before."""
ROUNDING = 1e-12
"""Relative: what a bound gives way for sums that were rounded."""
MOST_SHARES = 100
"""Searches that move shares."""
ENOUGH = 1e-4
"""Relative gap at which these stop."""
ENOUGH_PROVEN = 1e-3
"""Relative gap at which a search ends, unless less is asked for."""
BOUNDING = 2.0
"""Seconds of a search that only bounds a plan that is given."""
GUESSES = (0.2, 0.5, 1.0)
"""Of the way from bound to value: plans up to there are counted out first, those up to the value last."""
MOST_PRICES = 60
"""Prices of memory that are tried."""
Progress = Callable[[str, float | None], None]


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """``choices[node]``; ``value`` seconds, ``bound`` seconds that no plan is below, ``memory`` bytes per device. ``status``:
    ``optimal`` (value meets bound) or ``feasible``; ``reason`` why not optimal. ``interrupted``: the search was, from the
    keyboard."""

    choices: tuple[int, ...]
    value: float
    bound: float
    memory: float
    status: str
    reason: str = ""
    interrupted: bool = False

    @property
    def gap(self) -> float:
        return self.value / self.bound - 1 if self.bound > 0 else (0.0 if self.value <= 0 else math.inf)


class NoPlanError(ValueError):
    """Nothing fits: ``least`` bytes per device are needed (at least)."""

    def __init__(self, least: float) -> None:
        super().__init__(f"needs {least:.0f} bytes")
        self.least = least


def solve(
    problem: ShardProblem,
    *,
    memory: float | None = None,
    tie: bool = False,
    seconds: float = 60.0,
    budget: int = BUDGET,
    gap: float = ENOUGH_PROVEN,
    beaten: float = math.inf,
    anytime: bool = False,
    progress: Progress = lambda label, fraction: None,
) -> ShardPlan:
    """The cheapest plan that needs at most ``memory`` bytes per device. ``tie``: all copies of a chain choose alike; the bound
    is then one of such plans. ``gap``: relative; no more is proven than that value and bound are so near, though often they
    meet. ``beaten``: seconds of a plan of another problem: once the bound says that none here is better, any plan will do.
    ``anytime``: an interrupt from the keyboard ends the search with the plan and the bound at hand; without, or where there is
    no plan yet, it is passed on. Raises NoPlanError where nothing fits."""
    ends = now() + seconds
    if tie:
        plan = searched(problem, TiedSearch(problem, budget, ends), memory, ends, progress)[0]
    else:
        left, plan = _narrowed(problem, memory, ends, budget, gap, beaten, progress)
        if memory is not None and not plan.interrupted and gap < plan.gap and plan.bound < beaten:
            try:
                plan = _counted(left, plan, memory, ends, budget, gap, progress)
            except KeyboardInterrupt:
                plan = replace(plan, interrupted=True)
        done = plan.interrupted or plan.gap <= gap or plan.bound >= beaten or now() > ends
        try:
            if not done:
                search = QuickSearch(left.problem, budget, ends)
                found, price = searched(left.problem, search, memory, ends, progress)
                plan = _better(plan, left, found)
                if not plan.interrupted and plan.gap > gap and now() < ends:
                    left = without_dearer(left, search.small, price, plan.value, memory, ends)
                    plan = _certified(left, plan, memory, ends, gap)
        except KeyboardInterrupt:
            plan = replace(plan, interrupted=True)
    if plan.interrupted and not anytime:
        raise KeyboardInterrupt
    return plan


def _narrowed(
    problem: ShardProblem,
    memory: float | None,
    ends: float,
    budget: int,
    gap: float,
    beaten: float,
    progress: Progress,
) -> tuple[Reduced, ShardPlan]:
    """What is left of the problem after searches with growing tables, and the best plan with the best bound: an optimal one,
    unless the two are within the ``gap``, none is better than ``beaten``, time is over, or the whole budget is too little."""
    rungs = [*(rung for rung in RUNGS if rung < budget), budget]
    left, number = whole(problem), 0
    plan: ShardPlan | None = None
    while True:
        search = FoldedSearch(left.problem, rungs[number], shared=True)
        search.until = ends
        try:
            found, price = searched(left.problem, search, memory, ends, progress)
            plan = found if plan is None else _better(plan, left, found)
            if plan.interrupted or plan.status == "optimal" or plan.bound >= beaten or now() > ends:
                return left, plan
            before = left.problem.choices
            left = without_dearer(left, search, price, plan.value, memory, ends)
            progress("choices", None)
        except KeyboardInterrupt:
            if plan is None:
                raise
            return left, replace(plan, interrupted=True)
        stays = left.problem.choices > SHRUNK * before
        if plan.gap <= gap or search.whole:
            if stays:
                return left, plan
        elif number + 1 < len(rungs):
            number += 1
        elif stays:
            return left, plan


def without_dearer(
    left: Reduced, search: FoldedSearch, price: float, value: float, memory: float | None, ends: float = math.inf
) -> Reduced:
    """Without choices that no plan of less than ``value`` takes, as a search at this price tells, and those never needed, if
    there is time."""
    most = value * (1 + SLACK) + (price * memory if memory is not None else 0.0)
    rest = left.then(without(left.problem, [least > most for least in search.least(price)]))
    return rest.then(reduced(rest.problem, until=ends))


def _better(plan: ShardPlan, left: Reduced, found: ShardPlan) -> ShardPlan:
    """The better plan of two with the better bound, ``found`` being one of what is left of the problem."""
    best = replace(found, choices=left.original(found.choices)) if found.value < plan.value else plan
    bound = min(max(plan.bound, found.bound), best.value)
    done = best.value <= bound * (1 + SLACK) or found.status == "optimal"
    status, reason = ("optimal", "") if done else ("feasible", found.reason)
    return replace(best, bound=bound, status=status, reason=reason, interrupted=found.interrupted)


def _counted(
    left: Reduced, plan: ShardPlan, memory: float, ends: float, budget: int, gap: float, progress: Progress
) -> ShardPlan:
    """The plan, bettered between two prices of memory (``fronts``). Plans up to a guess of the least value are looked at: where
    there is none, the guess is a bound of all plans, and the next one is higher."""
    search = FoldedSearch(left.problem, budget, shared=True)
    search.until = ends
    found, price = searched(left.problem, search, memory, ends, progress)
    plan = _better(plan, left, found)
    low, high = plan.bound, plan.value
    for part in GUESSES:
        if plan.interrupted or plan.gap <= gap or now() > ends:
            break
        guess = low + part * (high - low)
        rest = without_dearer(left, search, price, guess, memory, ends)
        try:
            between = FoldedSearch(rest.problem, budget, shared=True)
            between.until = ends
            fronts = Fronts(between, price, memory, guess)
        except TooManyError:
            break
        for choices in fronts.fitting():
            choices, value = descend(rest.problem, choices, rest.problem.cost(choices), memory, ends)
            if value < plan.value:
                needs = rest.problem.memory(choices)
                plan = replace(plan, choices=rest.original(choices), value=value, memory=needs)
        bound = min(max(plan.bound, min(guess, fronts.bound)), plan.value)
        done = plan.value <= bound * (1 + SLACK)
        status, reason = ("optimal", "") if done else ("feasible", "memory")
        plan = replace(plan, bound=bound, status=status, reason=reason)
        if fronts.bound < guess:
            low, high = plan.bound, plan.value
    return plan


def _certified(left: Reduced, plan: ShardPlan, memory: float | None, ends: float, gap: float) -> ShardPlan:
    """The plan with what the integer programme finds in what is left of the problem, and proves."""
    from passes.model.highs import PROVEN
    from passes.shard.solver.programme import certified

    found = certified(left.problem, left.nearest(plan.choices), plan.value, memory, ends, gap)
    if found.choices and (memory is None or left.problem.memory(found.choices) <= memory):
        value = left.problem.cost(found.choices)
        if value < plan.value:
            plan = replace(plan, choices=left.original(found.choices), value=value, memory=left.problem.memory(found.choices))
    bound = min(max(plan.bound, found.bound), plan.value)
    done = plan.value <= bound * (1 + PROVEN)
    return replace(plan, bound=bound, status="optimal" if done else "feasible", reason="" if done else plan.reason)


def searched(
    problem: ShardProblem, search: Search, memory: float | None, ends: float, progress: Progress
) -> tuple[ShardPlan, float]:
    """The plan of one way to search, and the price of memory that bounds it best."""
    found = search.run(0.0)
    if memory is None or problem.memory(found.choices) <= memory:
        plan = _plan(problem, search, found, memory, ends)
        if plan is not None:
            return plan, 0.0
    return _within(problem, search, found, memory if memory is not None else math.inf, ends, progress)


def _plan(problem: ShardProblem, search: Search, found: Found, memory: float | None, ends: float) -> ShardPlan | None:
    """A plan of a search without a price; None where it does not fit."""
    choices, value = found.choices, problem.cost(found.choices)
    bound, interrupted = found.total, False
    if not found.exact and not isinstance(search, TiedSearch) and value > bound * (1 + SLACK):
        try:
            if isinstance(search, QuickSearch):
                choices, value = descend(problem, choices, value, None, ends)
                choices, value, bound = _shared(problem, choices, value, bound, ends)
            choices, value = descend(problem, choices, value, memory, ends)
        except KeyboardInterrupt:
            interrupted = True
    needs = problem.memory(choices)
    if memory is not None and needs > memory:
        if interrupted:
            raise KeyboardInterrupt
        return None
    bound = min(bound, value)
    done = value <= bound * (1 + SLACK)
    return ShardPlan(
        choices,
        value,
        value if done else bound * (1 - ROUNDING),
        needs,
        "optimal" if done else "feasible",
        "" if done else "width",
        interrupted,
    )


def _shared(
    problem: ShardProblem, choices: tuple[int, ...], value: float, bound: float, ends: float
) -> tuple[tuple[int, ...], float, float]:
    """A better plan and bound, by searches in which what is paid once is shared among readers."""
    search = FoldedSearch(problem, shared=True)
    search.until = ends
    bold, best, stale = 1.0, -math.inf, 0
    for _ in range(MOST_SHARES):
        if now() > ends or value <= bound * (1 + ENOUGH):
            break
        found = search.run(0.0)
        cost = problem.cost(found.choices)
        if cost < value:
            choices, value = found.choices, cost
        stale = 0 if found.total > best else stale + 1
        best = max(best, found.total)
        bound = max(bound, found.total)
        if stale == 4:
            bold, stale = bold / 2, 0
        assert isinstance(search.charges, Shares)
        if not search.charges.move(found.choices, bold * max(value - found.total, 0.0)):
            break
    return choices, value, bound


def _within(
    problem: ShardProblem,
    search: Search,
    loose: Found,
    memory: float,
    ends: float,
    progress: Progress,
) -> tuple[ShardPlan, float]:
    """Searches the price of memory: the lines of a dense and a sparse plan meet at the next price to try, until the search at
    that price finds neither cheaper (Everett 1963; the supporting points of the lower envelope)."""
    tight = search.run(1.0, memory_only=True)
    least = problem.memory(tight.choices)
    if least > memory * (1 + SLACK):
        raise NoPlanError(least)
    bound, binding = loose.total, 0.0
    high = (problem.cost(loose.choices), problem.memory(loose.choices))
    tight_cost = problem.cost(tight.choices)
    best, value = tight.choices, tight_cost
    low = (tight_cost, least)
    dense, sparse = loose.choices, tight.choices
    interrupted = False
    try:
        for _ in range(MOST_PRICES):
            if now() > ends or high[1] <= low[1] or high[0] >= low[0]:
                break
            price = (low[0] - high[0]) / (high[1] - low[1])
            progress("memory", None)
            found = search.run(price)
            cost, needs = problem.cost(found.choices), problem.memory(found.choices)
            if found.total - price * memory > bound:
                bound, binding = found.total - price * memory, price
            if needs <= memory and cost < value:
                best, value = found.choices, cost
            line = high[0] + price * high[1]
            if cost + price * needs >= line - SLACK * abs(line):
                break
            if needs <= memory:
                low, sparse = (cost, needs), found.choices
            else:
                high, dense = (cost, needs), found.choices
        if not isinstance(search, TiedSearch) and value > bound * (1 + SLACK):
            between = mixed(problem, dense, sparse, memory)
            if between is not None and between[1] < value:
                best, value = between
            best, value = descend(problem, best, value, memory, ends)
    except KeyboardInterrupt:
        interrupted = True
    bound = min(bound, value)
    done = value <= bound * (1 + SLACK)
    plan = ShardPlan(
        best,
        value,
        value if done else bound * (1 - ROUNDING),
        problem.memory(best),
        "optimal" if done else "feasible",
        "" if done else "memory",
        interrupted,
    )
    return plan, binding


class QuickSearch:
    """Searches in which what is paid once is shared evenly among readers: their tables are small, and their bounds often met.
    Where one is not, the search is done with the full tables."""

    def __init__(self, problem: ShardProblem, budget: int = BUDGET, until: float = math.inf) -> None:
        self.problem, self.budget, self.until = problem, budget, until
        self.small = FoldedSearch(problem, budget, shared=True)
        self.full: FoldedSearch | None = None
        self.known: dict[float, Found] = {}

    def small_one(self, price: float) -> Found:
        """By small tables; exact where their bound is met."""
        if price not in self.known:
            self.small.until = self.until
            found = self.small.run(price)
            self.known[price] = replace(found, exact=self.priced(found, price) <= found.total * (1 + SLACK))
        return self.known[price]

    def priced(self, found: Found, price: float) -> float:
        return self.problem.cost(found.choices) + price * self.problem.memory(found.choices)

    def run(self, price: float, *, memory_only: bool = False) -> Found:
        """As ``FoldedSearch.run``."""
        if memory_only:
            return least_memory(self.problem)
        small = self.small_one(price)
        if small.exact:
            return small
        self.full = self.full or FoldedSearch(self.problem, self.budget)
        self.full.until = self.until
        full = self.full.run(price)
        if full.exact:
            return full
        best = min(full, small, key=lambda found: self.priced(found, price))
        return Found(best.choices, max(full.total, small.total), False)


class TiedSearch:
    """All copies of a chain choose alike."""

    def __init__(self, problem: ShardProblem, budget: int = BUDGET, until: float = math.inf) -> None:
        self.problem, self.budget, self.until = problem, budget, until
        self.merged, self.stands, self.counted = tied(problem)
        self.charges = Charges(self.merged)

    def run(self, price: float, *, memory_only: bool = False) -> Found:
        if memory_only:
            return least_memory(self.problem)
        model = Model(self.merged, self.charges, price)
        times: dict[int, int] = {}
        for node in self.stands:
            times[node] = times.get(node, 0) + 1
        factors = []
        for node, count in times.items():
            factor = model.node_factor(node).factor
            factors.append(replace(factor, table=factor.table * count))
        for number, (_, often) in enumerate(self.counted):
            factors += [replace(owned.factor, table=owned.factor.table * often) for owned in model.value_factors(number, ())]
        found = eliminate(factors, model.sizes, (), self.budget, self.until)
        values: dict[int, int] = {}
        found.trace(values)
        choices = tuple(values[model.choice(node)] for node in self.stands)
        total = sum(float(factor.table) for factor in found.left)
        return Found(choices, total, found.exact and not model.relaxed and model.is_exact(values))


Search: TypeAlias = FoldedSearch | QuickSearch | TiedSearch


__all__ = [
    "ENOUGH_PROVEN",
    "FoldedSearch",
    "NoPlanError",
    "QuickSearch",
    "ShardPlan",
    "TiedSearch",
    "searched",
    "solve",
    "without_dearer",
]
