"""Counting units of memory: against brute force on repeated layers under limits."""

from __future__ import annotations

import pytest

from passes.partition.layouts import solve
from passes.partition.layouts.elimination.folded import FoldedSearch
from passes.partition.layouts.solver.fronts import Fronts, TooManyError
from passes.solvers.work import now
from tests.passes.partition.layouts.exact import brute_force, integer_programme
from tests.passes.partition.layouts.models import problem_of
from tests.passes.partition.layouts.problems import random_layers


@pytest.mark.parametrize("seed", range(8))
def test_no_bound_is_above_the_best_plan(seed: int) -> None:
    """At any price and any limit; the plans that are handed out fit."""
    problem = random_layers(seed, 3, 2)
    sizes = [problem.node(node).memory for node in range(problem.size)]
    least, most = (sum(float(f(one)) for one in sizes) for f in (min, max))
    bounded = 0
    for part in (0.0, 0.3, 0.6):
        limit = least + part * (most - least)
        best = brute_force(problem, limit)
        for price in (0.0, 0.3, 2.0):
            try:
                fronts = Fronts(FoldedSearch(problem), price, limit, best)
            except TooManyError:
                continue
            bounded += 1
            assert fronts.bound <= best * (1 + 1e-9)
            for choices in fronts.fitting():
                assert problem.memory(choices) <= limit
                assert problem.cost(choices) >= best * (1 - 1e-9)
    assert bounded


def test_no_fronts_are_made_once_time_is_over() -> None:
    problem = random_layers(1, 3, 2)
    search = FoldedSearch(problem)
    limit = sum(float(problem.node(node).memory.max()) for node in range(problem.size))
    assert Fronts(search, 0.3, limit, 1e9).bound < 1e9
    search.until = now() - 1.0
    with pytest.raises(TooManyError):
        Fronts(search, 0.3, limit, 1e9)


@pytest.mark.parametrize("seed", range(4))
def test_limits_of_longer_runs(seed: int) -> None:
    problem = random_layers(seed, 7, 2)
    sizes = [problem.node(node).memory for node in range(problem.size)]
    least, most = (sum(float(f(one)) for one in sizes) for f in (min, max))
    limit = least + 0.4 * (most - least)
    plan = solve(problem, memory=limit, gap=0.02)
    best = integer_programme(problem, limit)[0]
    assert plan.memory <= limit
    assert plan.bound <= best * (1 + 1e-6)
    assert plan.value >= best * (1 - 1e-6)


def test_few_layers_share_a_limit() -> None:
    """Of eight layers each counts: half of them dense is what a price alone cannot say."""
    problem = problem_of("zoo:gpt3-175b,layers=8,hidden=1024,heads=16,seq=128,vocab=512", (8,), batch=1).problem
    loose = solve(problem)
    least = sum(float(problem.node(node).memory.min()) for node in range(problem.size))
    plan = solve(problem, memory=least + 0.45 * (loose.memory - least), seconds=10.0)
    assert plan.gap <= 1e-2
