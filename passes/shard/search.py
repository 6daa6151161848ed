"""The search: exact on the folded graph where tables stay small, with a bound always.

Outside of runs, factors are eliminated as they are. A run of equal copies is one step, raised to a power: it eliminates one
copy but for what crosses to its neighbours and what all copies share, so the state of a power is what crosses. The way back
gives each copy its own choices; they are not tied. The cost of a search grows with the logarithm of the number of copies, that
of writing the choices down with their number.

A memory limit is priced (a Lagrangian: seconds per byte): each price gives a bound, the plan found at it is a candidate
where it fits, and the price at which plans begin to fit is sought. Between two such plans lies the *gap*, which is told.

Where a table grows beyond its budget, or a value has too many readers for an exact table, the result of the elimination is a
bound and the plan is priced as it is; moving ``shares`` improves both, and coordinate descent the plan.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from passes.shard.elimination import BUDGET, Eliminated, Factor, eliminate, fits, join
from passes.shard.mixed import mixed
from passes.shard.model import Charges, Model, Owned, tied
from passes.shard.powers import Power, power
from passes.shard.problem import ShardProblem
from passes.shard.reduce import reduced
from passes.shard.shares import Shares
from passes.shard.structure import Run, structure_of

MOST_STATES = 1 << 22
"""Entries of a step's table."""
MOST_WORK = 1 << 31
"""Sums in the powers of a run."""
ROUNDING = 1e-12
"""Relative: what a bound gives way for sums that were rounded."""
SLACK = 1e-9
"""Relative: sums of the same numbers in another order."""
MOST_SHARES = 100
"""Searches that move shares."""
ENOUGH = 1e-4
"""Relative gap at which these stop."""
ENOUGH_PROVEN = 1e-3
"""Relative gap that is left as it is, unless less is asked for."""
MOST_PRICES = 60
"""Prices of memory that are tried."""
Progress = Callable[[str, float | None], None]


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """``choices[node]``; ``value`` seconds, ``bound`` seconds that no plan is below, ``memory`` bytes per device. ``status``:
    ``optimal`` (value meets bound) or ``feasible``; ``reason`` why not optimal."""

    choices: tuple[int, ...]
    value: float
    bound: float
    memory: float
    status: str
    reason: str = ""

    @property
    def gap(self) -> float:
        return self.value / self.bound - 1 if self.bound > 0 else (0.0 if self.value <= 0 else math.inf)


@dataclass(frozen=True, slots=True)
class Found:
    """One search at one price: ``total`` is the least sum, or a bound of it where not ``exact``."""

    choices: tuple[int, ...]
    total: float
    exact: bool


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
    progress: Progress = lambda label, fraction: None,
) -> ShardPlan:
    """The cheapest plan that needs at most ``memory`` bytes per device. ``tie``: all copies of a chain choose alike; the bound
    is then one of such plans. ``gap``: relative, above which the integer programme is asked. Raises NoPlanError where nothing
    fits."""
    ends = time.perf_counter() + seconds
    search: TiedSearch | QuickSearch
    if tie:
        search = TiedSearch(problem, budget)
    else:
        search = QuickSearch(problem, budget, ends)
        if not search.small_one(0.0).exact and FoldedSearch(problem, budget).is_wide():
            left = reduced(problem)
            if left.problem.choices < problem.choices:
                rest = ends - time.perf_counter()
                of_left = solve(left.problem, memory=memory, seconds=rest, budget=budget, gap=gap, progress=progress)
                return replace(of_left, choices=left.original(of_left.choices))
    search.until = ends
    found = search.run(0.0)
    plan = None
    if memory is None or problem.memory(found.choices) <= memory:
        plan = _plan(problem, found, memory, ends, tie)
    if plan is None:
        plan = _within(problem, search, found, memory if memory is not None else math.inf, ends, tie, progress)
    return plan if tie or plan.gap <= gap else _certified(problem, plan, memory, ends, gap)


def _certified(problem: ShardProblem, plan: ShardPlan, memory: float | None, ends: float, gap: float) -> ShardPlan:
    """The plan with what the integer programme proves, or finds."""
    from passes.shard.programme import PROVEN, certified

    found = certified(problem, plan.choices, plan.value, memory, ends, gap)
    choices, value = plan.choices, plan.value
    if found.choices and (memory is None or problem.memory(found.choices) <= memory) and problem.cost(found.choices) < value:
        choices, value = found.choices, problem.cost(found.choices)
    bound = min(max(plan.bound, found.bound), value)
    status, reason = ("optimal", "") if value <= bound * (1 + PROVEN) else (plan.status, plan.reason)
    return ShardPlan(choices, value, bound, problem.memory(choices), status, reason)


def _plan(problem: ShardProblem, found: Found, memory: float | None, ends: float, tie: bool) -> ShardPlan | None:
    """A plan of a search without a price; None where it does not fit."""
    choices, value = found.choices, problem.cost(found.choices)
    bound = found.total
    if not found.exact and not tie and value > bound * (1 + SLACK):
        first = _descend(problem, choices, value, None, ends)
        choices, value, bound = _shared(problem, *first, bound, ends)
        if choices != first[0] or memory is not None:
            choices, value = _descend(problem, choices, value, memory, ends)
    needs = problem.memory(choices)
    if memory is not None and needs > memory:
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
    )


def _shared(
    problem: ShardProblem, choices: tuple[int, ...], value: float, bound: float, ends: float
) -> tuple[tuple[int, ...], float, float]:
    """A better plan and bound, by searches in which what is paid once is shared among readers."""
    search = FoldedSearch(problem, shared=True)
    search.until = ends
    bold, best, stale = 1.0, -math.inf, 0
    for _ in range(MOST_SHARES):
        if time.perf_counter() > ends or value <= bound * (1 + ENOUGH):
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
    search: TiedSearch | QuickSearch,
    loose: Found,
    memory: float,
    ends: float,
    tie: bool,
    progress: Progress,
) -> ShardPlan:
    """Searches the price of memory: the lines of a dense and a sparse plan meet at the next price to try, until the search at
    that price finds neither cheaper (Everett 1963; the supporting points of the lower envelope)."""
    tight = search.run(1.0, memory_only=True)
    least = problem.memory(tight.choices)
    if least > memory * (1 + SLACK):
        raise NoPlanError(least)
    bound = loose.total
    high = (problem.cost(loose.choices), problem.memory(loose.choices))
    tight_cost = problem.cost(tight.choices)
    best, value = tight.choices, tight_cost
    low = (tight_cost, least)
    dense, sparse = loose.choices, tight.choices
    try:
        for _ in range(MOST_PRICES):
            if time.perf_counter() > ends or high[1] <= low[1] or high[0] >= low[0]:
                break
            price = (low[0] - high[0]) / (high[1] - low[1])
            progress("memory", None)
            found = search.run(price)
            cost, needs = problem.cost(found.choices), problem.memory(found.choices)
            bound = max(bound, found.total - price * memory)
            if needs <= memory and cost < value:
                best, value = found.choices, cost
            line = high[0] + price * high[1]
            if cost + price * needs >= line - SLACK * abs(line):
                break
            if needs <= memory:
                low, sparse = (cost, needs), found.choices
            else:
                high, dense = (cost, needs), found.choices
    except KeyboardInterrupt:
        ends = 0.0  # the best plan so far
    if not tie and value > bound * (1 + SLACK):
        between = mixed(problem, dense, sparse, memory)
        if between is not None and between[1] < value:
            best, value = between
        best, value = _descend(problem, best, value, memory, ends)
    bound = min(bound, value)
    done = value <= bound * (1 + SLACK)
    return ShardPlan(
        best,
        value,
        value if done else bound * (1 - ROUNDING),
        problem.memory(best),
        "optimal" if done else "feasible",
        "" if done else "memory",
    )


def _descend(
    problem: ShardProblem, choices: Sequence[int], value: float, memory: float | None, ends: float
) -> tuple[tuple[int, ...], float]:
    """Changes one node at a time while it helps."""
    touching: list[list[int]] = [[] for _ in problem.kinds]
    for number, value_ in enumerate(problem.values):
        for node in dict.fromkeys([value_.maker[0], *(node for node, _ in value_.readers)]):
            touching[node].append(number)
    current = list(choices)
    needs = problem.memory(current)
    kinds, values = problem.kinds, problem.values
    known: dict[object, list[float]] = {}

    def costs_of(node: int) -> list[float]:
        """Of each choice of a node, with the values that touch it; equal surroundings are looked at once."""
        around = [values[number] for number in touching[node]]
        told = [
            (value.kind, *((kinds[n], port, -1 if n == node else current[n]) for n, port in (value.maker, *value.readers)))
            for value in around
        ]
        key = (kinds[node], tuple(told))
        if key not in known:
            before, kind = current[node], problem.node(node)
            known[key] = []
            for choice in range(len(kind.seconds)):
                current[node] = choice
                shared = sum(problem.value_cost(value, current) for value in around)
                known[key].append(float(kind.seconds[choice]) + shared)
            current[node] = before
        return known[key]

    better = True
    while better and time.perf_counter() < ends:
        better = False
        for node in range(problem.size):
            if time.perf_counter() > ends:
                break
            kind, before = problem.node(node), current[node]
            costs = costs_of(node)
            room = math.inf if memory is None else memory - needs + float(kind.memory[before])
            fits = [choice for choice in range(len(costs)) if kind.memory[choice] <= room]
            best = min(fits, key=lambda choice: (costs[choice], choice), default=before)
            if costs[best] < costs[before] - SLACK * abs(costs[before]):
                needs += float(kind.memory[best] - kind.memory[before])
                better = True
            else:
                best = before
            current[node] = best
    total = problem.cost(current)
    return (tuple(current), total) if total < value else (tuple(choices), value)


@dataclass(frozen=True, slots=True)
class _Step:
    """A run as a step: variables before and behind it (of the first copy's neighbours), and those that all copies share."""

    run: Run
    before: tuple[int, ...]
    behind: tuple[int, ...]
    shared: tuple[int, ...]
    inner: Eliminated
    powers: Power
    last: tuple[int, ...]
    """The variables of the last copy that ``behind`` stands for."""


class FoldedSearch:
    """Searches of one problem at different prices; what repeats is found once."""

    def __init__(self, problem: ShardProblem, budget: int = BUDGET, *, shared: bool = False) -> None:
        """``shared``: for bounds, see ``shares``."""
        self.problem, self.budget, self.until = problem, budget, math.inf
        self.structure = structure_of(problem)
        self.charges = (Shares if shared else Charges)(problem, self.structure.spread)
        wide = self.too_wide()
        if wide:
            self.structure = structure_of(problem, wide)
        self.plain_nodes, self.plain_values = self.outside()
        self.free = frozenset(self.plain_nodes)
        self.cells = {run: np.array(problem.cells[run.chain][run.first : run.last + 1]) for run in self.structure.runs}

    def outside(self) -> tuple[list[int], list[int]]:
        """Nodes that are in no run, and values that have a factor outside of runs."""
        problem, places = self.problem, self.structure.places
        within: set[tuple[int, int]] = set()
        for run in self.structure.runs:
            within.update((run.chain, copy) for copy in range(run.first, run.last + 1))
        self.within = within
        nodes = [node for node in range(problem.size) if node not in places or places[node][:2] not in within]
        free = set(nodes)
        values = [
            number
            for number, value in enumerate(problem.values)
            if value.maker[0] in free or any(node in free for node, _ in value.readers)
        ]
        return nodes, values

    def too_wide(self) -> list[Run]:
        """Runs whose powers would take too much."""
        model = Model(self.problem, self.charges)
        wide = []
        for run in self.structure.runs:
            owned = self.step_factors(model, run)
            before, _, shared = self.borders(model, run, owned)
            state = math.prod(model.sizes[v] for v in before)
            common = math.prod(model.sizes[v] for v in shared)
            rounds = 2 * run.count.bit_length()
            if common * state * state > MOST_STATES or common * state**3 * rounds > MOST_WORK or not self.separable(run, model):
                wide.append(run)
        return wide

    def separable(self, run: Run, model: Model) -> bool:
        """Whether no table ties a copy to others than its neighbours and what all share."""
        places = self.structure.places
        for number in self.structure.touching.get((run.chain, run.first), ()):
            for owned in model.value_factors(number, frozenset(self.problem.cells[run.chain][run.first])):
                copies = {places[n][1] for n in owned.nodes if n in places and places[n][0] == run.chain}
                maker = self.problem.values[number].maker[0]
                strangers = [n for n in owned.nodes if n not in places or places[n][0] != run.chain]
                if len(copies) > 2 or (strangers and set(strangers) != {maker}) or (strangers and len(copies) > 1):
                    return False
        return True

    # -- one step ------------------------------------------------------------------------------------------------------

    def step_factors(self, model: Model, run: Run) -> list[Owned]:
        """Factors of the first copy of a run, those to the copy before included, those to the next not."""
        here, ahead = (run.chain, run.first), (run.chain, run.first + 1)
        places = self.structure.places
        nodes = frozenset(self.problem.cells[run.chain][run.first])
        found = [model.node_factor(node) for node in self.problem.cells[run.chain][run.first]]
        for number in self.structure.touching.get(here, ()):
            for owned in model.value_factors(number, nodes):
                cells = {places[node][:2] for node in owned.nodes if node in places}
                if here in cells and ahead not in cells:
                    found.append(owned)
        return found

    def cut(self, model: Model, chain: int, copy: int) -> tuple[int, ...]:
        """Variables of ``copy`` in factors with the next, in an order that all copies of a run share."""
        places = self.structure.places
        found: dict[int, None] = {}
        for number in self.structure.crossing.get((chain, copy), ()):
            for owned in model.value_factors(number, ()):
                cells = {places[node][:2] for node in owned.nodes if node in places}
                if (chain, copy + 1) in cells and (chain, copy) in cells:
                    found.update((v, None) for v in owned.factor.scope if places[model.owner[v]][:2] == (chain, copy))
        return tuple(found)

    def borders(
        self, model: Model, run: Run, factors: Sequence[Owned]
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        before, behind = self.cut(model, run.chain, run.first - 1), self.cut(model, run.chain, run.first)
        places = self.structure.places
        cells = {(run.chain, run.first - 1), (run.chain, run.first)}
        scopes = {v for owned in factors for v in owned.factor.scope}
        shared = sorted(v for v in scopes if places.get(model.owner[v], (-1, -1))[:2] not in cells)
        return before, behind, tuple(shared)

    def step(self, model: Model, run: Run) -> _Step:
        factors = self.step_factors(model, run)
        before, behind, shared = self.borders(model, run, factors)
        kept = (*shared, *before, *behind)
        inner = eliminate([owned.factor for owned in factors], model.sizes, kept, self.budget, self.until)
        table = np.ascontiguousarray(join(inner.left, kept, model.sizes))
        state = [math.prod(model.sizes[v] for v in border) for border in (shared, before, behind)]
        powers = power(table.reshape(state), run.count)
        return _Step(run, before, behind, shared, inner, powers, self.cut(model, run.chain, run.last))

    # -- all -----------------------------------------------------------------------------------------------------------

    def is_wide(self) -> bool:
        """Whether tables would grow beyond the budget, or a value has no exact one: told by the scopes of factors alone."""
        model = Model(self.problem, self.charges)
        outer = [owned.factor.scope for owned in self.plain_factors(model)]
        for run in self.structure.runs:
            owned = self.step_factors(model, run)
            before, behind, shared = self.borders(model, run, owned)
            if not fits([one.factor.scope for one in owned], model.sizes, (*shared, *before, *behind), self.budget):
                return True
            outer.append((*shared, *before, *self.cut(model, run.chain, run.last)))
        return model.relaxed or bool(model.wild) or not fits(outer, model.sizes, (), self.budget)

    def plain_factors(self, model: Model) -> list[Owned]:
        """Factors outside of runs."""
        factors = [model.node_factor(node) for node in self.plain_nodes]
        for number in self.plain_values:
            factors += [owned for owned in model.value_factors(number, self.free) if self.is_plain(owned)]
        return factors

    def run(self, price: float, *, memory_only: bool = False) -> Found:
        """The least of seconds plus ``price`` times bytes; ``memory_only``: of bytes alone."""
        if memory_only:
            return _least_memory(self.problem)
        model = Model(self.problem, self.charges, price)
        steps = [self.step(model, run) for run in self.structure.runs]
        factors = [owned.factor for owned in self.plain_factors(model)]
        for step in steps:
            scope = (*step.shared, *step.before, *step.last)
            table = step.powers.table.reshape([model.sizes[v] for v in scope])
            factors.append(Factor(scope, table))
        outer = eliminate(factors, model.sizes, (), self.budget, self.until)
        total = sum(float(factor.table) for factor in outer.left)
        values: dict[int, int] = {}
        outer.trace(values)
        choices = np.zeros(self.problem.size, dtype=np.int64)
        for node in self.plain_nodes:
            choices[node] = values[model.choice(node)]
        exact = outer.exact and all(step.inner.exact for step in steps) and not model.relaxed and model.is_exact(values)
        for step in steps:
            exact = self.write(model, step, values, choices) and exact
        return Found(tuple(choices.tolist()), total, exact)

    def is_plain(self, owned: Owned) -> bool:
        """Whether a factor is part of no step: it touches no run, or leads from the last copy of one to the next cell."""
        places = self.structure.places
        cells = {places[node][:2] for node in owned.nodes if node in places}
        touched = cells & self.within
        ends = {(run.chain, run.last) for run in self.structure.runs}
        return all(cell in ends and (cell[0], cell[1] + 1) in cells for cell in touched)

    def write(self, model: Model, step: _Step, values: dict[int, int], choices: np.ndarray) -> bool:
        """The choices of a run's copies, given the values at its ends; whether they are exact."""
        exact = True

        def number(variables: Sequence[int]) -> int:
            result = 0
            for variable in variables:
                result = result * model.sizes[variable] + values[variable]
            return result

        def apart(state: int, variables: Sequence[int]) -> dict[int, int]:
            found = {}
            for variable in reversed(variables):
                state, found[variable] = divmod(state, model.sizes[variable])
            return found

        common = {variable: values[variable] for variable in step.shared}
        state = number(step.before)
        nodes = self.problem.cells[step.run.chain][step.run.first]
        known: dict[tuple[int, int], int] = {}
        patterns: list[list[int]] = []
        rows = []
        for following in step.powers.states(number(step.shared), state, number(step.last)):
            if (state, following) not in known:
                inner = {**common, **apart(state, step.before), **apart(following, step.behind)}
                step.inner.trace(inner)
                exact = exact and model.is_exact(inner)
                known[state, following] = len(patterns)
                patterns.append([inner[model.choice(node)] for node in nodes])
            rows.append(known[state, following])
            state = following
        choices[self.cells[step.run]] = np.array(patterns)[rows]
        return exact


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
            return _least_memory(self.problem)
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

    def __init__(self, problem: ShardProblem, budget: int = BUDGET) -> None:
        self.problem, self.budget, self.until = problem, budget, math.inf
        self.merged, self.stands, self.counted = tied(problem)
        self.charges = Charges(self.merged)

    def run(self, price: float, *, memory_only: bool = False) -> Found:
        if memory_only:
            return _least_memory(self.problem)
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


def _least_memory(problem: ShardProblem) -> Found:
    """Each node's least memory, then the least seconds of its own: a plan where anything fits, if no choice of one node rules
    out those of others, as none does here."""
    by_kind = [int(np.lexsort((kind.seconds, kind.memory))[0]) for kind in problem.node_kinds]
    choices = tuple(by_kind[kind] for kind in problem.kinds)
    return Found(choices, problem.memory(choices), True)


__all__ = ["SLACK", "FoldedSearch", "Found", "NoPlanError", "QuickSearch", "ShardPlan", "TiedSearch", "solve"]
