"""What plans cost at least that take a choice: against brute force, exact where tables are, a bound where they are not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from passes.partition.layouts import ShardProblem, solve
from passes.partition.layouts.elimination.folded import FoldedSearch
from passes.partition.layouts.problem.problem import Floats
from passes.partition.layouts.solver import search
from passes.partition.layouts.solver.reduce import whole
from passes.partition.layouts.solver.search import searched
from tests.passes.partition.layouts.exact import brute_force, every_plan
from tests.passes.partition.layouts.problems import random_graph, random_layers


def least_by_choice(problem: ShardProblem, price: float = 0.0) -> list[Floats]:
    """By kind and choice, of all assignments in which a node of the kind takes it."""
    plans = every_plan(problem)
    costs = plans.seconds + price * plans.memory
    found = [np.full(len(kind.seconds), np.inf) for kind in problem.node_kinds]
    for kind, choices in zip(problem.kinds, plans.choices, strict=True):
        np.minimum.at(found[kind], choices, costs)
    return found


@pytest.mark.parametrize("price", [0.0, 0.75])
@pytest.mark.parametrize("seed", range(12))
def test_graphs(seed: int, price: float) -> None:
    check(random_graph(seed, 2 + seed % 4), price)


@pytest.mark.parametrize("price", [0.0, 0.75])
@pytest.mark.parametrize("seed", range(12))
def test_layers(seed: int, price: float) -> None:
    check(random_layers(seed, 4, 1), price)


def test_layers_are_runs() -> None:
    """Else the test above would not go back through stretches."""
    assert sum(len(FoldedSearch(random_layers(seed, 4, 1)).structure.runs) for seed in range(20)) >= 10


def check(problem: ShardProblem, price: float) -> None:
    exact = least_by_choice(problem, price)
    full = FoldedSearch(problem)
    joint = all(full.charges.of(number)[0].joint for number in range(len(problem.values)))
    for bound, least in zip(full.least(price), exact, strict=True):
        assert np.allclose(bound, least) if joint else (bound <= least + 1e-9).all()
    for bound, least in zip(FoldedSearch(problem, 16).least(price), exact, strict=True):
        assert (bound <= least + 1e-9).all()


@pytest.mark.parametrize("seed", range(8))
def test_no_better_plan_goes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From searches with the smallest tables, with and without a limit of memory."""
    monkeypatch.setattr(search, "POLICY", replace(search.POLICY, rungs=(4, 8, 16, 32)))
    problem = random_graph(seed, 6) if seed % 2 else random_layers(seed, 4, 1)
    loose = solve(problem)
    for limit in (None, loose.memory - 2):
        exact = brute_force(problem, limit)
        if exact < np.inf:
            plan = solve(problem, memory=limit, gap=0.0)
            assert plan.status == "optimal"
            assert plan.value == problem.cost(plan.choices) == exact
            assert limit is None or problem.memory(plan.choices) <= limit


def test_choices_go() -> None:
    """With the cost of the best plan many do; what is left costs the same."""
    before = after = 0
    for seed in range(10):
        problem = random_graph(seed, 20)
        tables = FoldedSearch(problem, 64)
        plan, price = searched(problem, tables, None, np.inf, lambda label, fraction: None)
        best = solve(problem).value
        left = search.without_dearer(whole(problem), tables, price, best, None)
        assert solve(left.problem).value == best <= plan.value
        before, after = before + problem.choices, after + left.problem.choices
    assert after < 0.8 * before
