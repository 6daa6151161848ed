"""The search equals the full integer programme and brute force, repeated or not, and its bound always holds."""

from __future__ import annotations

import pytest

from passes.shard import NoPlanError, solve
from passes.shard.search import FoldedSearch
from tests.passes.shard.exact import brute_force, integer_programme
from tests.passes.shard.problems import random_graph, random_layers


@pytest.mark.parametrize("seed", range(60))
def test_programme_equals_brute_force(seed: int) -> None:
    problem = random_graph(seed, 2 + seed % 6)
    assert integer_programme(problem)[0] == pytest.approx(brute_force(problem), abs=1e-5)


@pytest.mark.parametrize("seed", range(60))
def test_small_graphs(seed: int) -> None:
    problem = random_graph(seed, 2 + seed % 6)
    plan = solve(problem)
    assert plan.status == "optimal"
    assert plan.value == problem.cost(plan.choices) == brute_force(problem)


@pytest.mark.parametrize("seed", range(40))
def test_larger_graphs_equal_the_programme(seed: int) -> None:
    problem = random_graph(seed, 20)
    plan = solve(problem)
    assert plan.status == "optimal"
    assert plan.value == pytest.approx(integer_programme(problem)[0], abs=1e-5)


@pytest.mark.parametrize("seed", range(60))
def test_layers_equal_the_programme(seed: int) -> None:
    problem = random_layers(seed, 4 + seed % 4, 2 + seed % 4)
    plan = solve(problem)
    assert plan.status == "optimal"
    assert plan.value == problem.cost(plan.choices)
    assert plan.value == pytest.approx(integer_programme(problem)[0], abs=1e-5)


def test_layers_are_runs() -> None:
    """Else the test above would test nothing but plain elimination."""
    counts = [len(FoldedSearch(random_layers(seed, 6, 3)).structure.runs) for seed in range(20)]
    assert sum(counts) >= 10, counts


@pytest.mark.parametrize("seed", range(30))
def test_memory_limits(seed: int) -> None:
    problem = random_graph(seed, 6)
    loose = solve(problem)
    for limit in (loose.memory, loose.memory - 1, loose.memory - 3, loose.memory / 2):
        exact = brute_force(problem, limit)
        if exact == float("inf"):
            with pytest.raises(NoPlanError):
                solve(problem, memory=limit)
            continue
        plan = solve(problem, memory=limit)
        assert plan.bound <= exact <= plan.value
        assert problem.memory(plan.choices) <= limit
        assert plan.value == problem.cost(plan.choices)


@pytest.mark.parametrize("seed", range(20))
def test_bound_holds_where_tables_are_too_wide(seed: int) -> None:
    problem = random_graph(seed, 7)
    plan = solve(problem, budget=12)
    assert plan.bound <= brute_force(problem) <= plan.value == problem.cost(plan.choices)
