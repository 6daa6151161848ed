"""The search: exact on the folded graph where tables stay small, with a bound always.

Searches are tried with ever larger tables (``Policy.rungs``). Each gives a plan, a bound, and for every choice what plans that
take it cost at least (``marginals``): choices that no better plan takes go, then those that another is never worse than
(``reduce``), so that the next search is of a smaller problem. Where value and bound stay further apart than the ``gap`` that is
asked for, plans between two prices of memory are counted out (``fronts``), then the integer programme is asked.

A memory limit is priced (a Lagrangian: seconds per byte): each price gives a bound, the plan found at it is a candidate
where it fits, and the price at which plans begin to fit is sought.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from ir.core.outcomes import TIGHT, Outcome, outcome
from passes.partition.layouts.elimination.elimination import BUDGET
from passes.partition.layouts.elimination.folded import FoldedSearch, Priced, least_memory
from passes.partition.layouts.problem.problem import ShardProblem
from passes.partition.layouts.solver.descent import descend
from passes.partition.layouts.solver.fronts import Fronts, TooManyError
from passes.partition.layouts.solver.mixed import mixed
from passes.partition.layouts.solver.reduce import Reduced, reduced, whole, without
from passes.solvers.work import now


@dataclass(frozen=True, slots=True)
class Policy:
    """The numbers that steer a search; ``tests/bench/ablation.py`` says what each rung and phase is worth."""

    rungs: tuple[int, ...] = (1 << 16, 1 << 20, 1 << 22, 1 << 24)
    """Entries of tables in searches before that with the whole budget. Without those from 2**20 on, gaps of experts and of
    training under a limit of memory grow from 3 % to 30 % and more."""
    guesses: tuple[float, ...] = (0.2, 0.5, 1.0)
    """Of the way from bound to value: plans up to there are counted out first. Without those below 1, a training step of gpt3
    with 12 layers under a binding memory limit on a mesh 2x4 keeps a gap of 2.0 % instead of 1.3 %."""
    shrunk: float = 0.9
    """A problem that kept more of its choices is as large as before."""
    prices: int = 60
    """Prices of memory that are tried; a dozen is common."""
    rounding: float = 1e-12
    """Relative: what a bound gives way for sums that were rounded."""


POLICY = Policy()
ENOUGH_PROVEN = 1e-3
"""Relative gap at which a search ends, unless less is asked for."""
BOUNDING = 2.0
"""Seconds of a search that only bounds a plan that is given."""
Progress = Callable[[str, float | None], None]


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """``choices[node]``; ``value`` seconds, ``bound`` seconds that no plan is below, ``memory`` bytes per device. ``reason``:
    why not optimal. ``interrupted``: the search was, from the keyboard. ``price``: seconds per byte of memory at which an
    elimination proves the bound, or most of it."""

    choices: tuple[int, ...]
    value: float
    bound: float
    memory: float
    status: Outcome
    reason: str = ""
    interrupted: bool = False
    price: float = 0.0

    @property
    def gap(self) -> float:
        return self.value / self.bound - 1 if self.bound > 0 else (0.0 if self.value <= 0 else math.inf)

    def bounded(self, bound: float, reason: str, slack: float = TIGHT) -> ShardPlan:
        """The plan with a bound; ``reason``: why it is not optimal where it is further above that than ``slack``, relative."""
        bound = min(bound, self.value)
        status = outcome(self.value, bound, slack)
        return replace(self, bound=bound, status=status, reason="" if status == "optimal" else reason)


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
    ends = now() + seconds
    left, plan = _narrowed(problem, memory, ends, budget, gap, beaten, progress)
    try:
        if not _ends(plan, gap, beaten, ends):
            search = FoldedSearch(left.problem, budget, ends)
            found, price = searched(left.problem, search, memory, ends, progress)
            plan = _better(plan, left, found)
            if memory is not None and not _ends(plan, gap, beaten, ends):
                plan = _counted(left, plan, search, price, memory, gap)
            if not _ends(plan, gap, beaten, ends):
                left = without_dearer(left, search, price, plan.value, memory, ends)
                plan = _certified(left, plan, memory, ends, gap)
    except KeyboardInterrupt:
        plan = replace(plan, interrupted=True)
    if plan.interrupted and not anytime:
        raise KeyboardInterrupt
    return plan


def _ends(plan: ShardPlan, gap: float, beaten: float, ends: float) -> bool:
    """Whether a plan is all that is asked for, or time is over."""
    return plan.interrupted or plan.gap <= gap or plan.bound >= beaten or now() > ends


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
    rungs = [*(rung for rung in POLICY.rungs if rung < budget), budget]
    left, number = whole(problem), 0
    plan: ShardPlan | None = None
    while True:
        search = FoldedSearch(left.problem, rungs[number], ends)
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
        stays = left.problem.choices > POLICY.shrunk * before
        if plan.gap <= gap or search.exact:
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
    most = value * (1 + TIGHT) + (price * memory if memory is not None else 0.0)
    rest = left.then(without(left.problem, [least > most for least in search.least(price)]))
    return rest.then(reduced(rest.problem, until=ends))


def _better(plan: ShardPlan, left: Reduced, found: ShardPlan) -> ShardPlan:
    """The better plan of two with the better bound, ``found`` being one of what is left of the problem."""
    best = replace(found, choices=left.original(found.choices)) if found.value < plan.value else plan
    price = found.price if found.bound > plan.bound else plan.price
    return replace(best.bounded(max(plan.bound, found.bound), found.reason), interrupted=found.interrupted, price=price)


def _counted(left: Reduced, plan: ShardPlan, search: FoldedSearch, price: float, memory: float, gap: float) -> ShardPlan:
    """The plan, bettered between two prices of memory (``fronts``). Plans up to a guess of the least value are counted out:
    where there is none, the guess is a bound of all plans, and the next one is higher. ``price``: that at which ``search``
    bounds plans best."""
    ends, low, high = search.until, plan.bound, plan.value
    for part in POLICY.guesses:
        guess = low + part * (high - low)
        rest = without_dearer(left, search, price, guess, memory, ends)
        try:
            fronts = Fronts(FoldedSearch(rest.problem, search.budget, ends), price, memory, guess)
        except TooManyError:
            break
        for choices in fronts.fitting():
            choices, value = descend(rest.problem, choices, rest.problem.cost(choices), memory, ends)
            if value < plan.value:
                plan = replace(plan, choices=rest.original(choices), value=value, memory=rest.problem.memory(choices))
        plan = plan.bounded(max(plan.bound, min(guess, fronts.bound)), "memory")
        if plan.gap <= gap or now() > ends:
            break
        if fronts.bound < guess:
            low, high = plan.bound, plan.value
    return plan


def _certified(left: Reduced, plan: ShardPlan, memory: float | None, ends: float, gap: float) -> ShardPlan:
    """The plan with what the integer programme finds in what is left of the problem, and proves."""
    from passes.partition.layouts.solver.programme import certified
    from passes.solvers.highs import PROVEN

    found = certified(left.problem, left.nearest(plan.choices), plan.value, memory, ends, gap)
    if found.choices and (memory is None or left.problem.memory(found.choices) <= memory):
        value = left.problem.cost(found.choices)
        if value < plan.value:
            plan = replace(plan, choices=left.original(found.choices), value=value, memory=left.problem.memory(found.choices))
    return plan.bounded(max(plan.bound, found.bound), plan.reason, PROVEN)


def searched(
    problem: ShardProblem, search: FoldedSearch, memory: float | None, ends: float, progress: Progress
) -> tuple[ShardPlan, float]:
    """The plan of one way to search, and the price of memory that bounds it best. Raises NoPlanError."""
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
    plan = ShardPlan(best, value, bound, problem.memory(best), "within-gap", interrupted=interrupted, price=price)
    return plan.bounded(value if value <= bound * (1 + TIGHT) else bound * (1 - POLICY.rounding), reason), price


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


__all__ = [
    "BOUNDING",
    "ENOUGH_PROVEN",
    "POLICY",
    "FoldedSearch",
    "NoPlanError",
    "ShardPlan",
    "searched",
    "solve",
    "without_dearer",
]
