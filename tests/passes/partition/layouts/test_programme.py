"""The programme of the search: equal to brute force, with memory too; a valid bound when time is short; a proof."""

from __future__ import annotations

import numpy as np
import pytest

from passes.partition.layouts import solve
from passes.partition.layouts.elimination import charges
from passes.partition.layouts.solver.programme import certified
from passes.solvers.work import now
from tests.passes.partition.layouts.exact import brute_force
from tests.passes.partition.layouts.problems import random_graph


@pytest.mark.parametrize("seed", range(12))
def test_equals_brute_force(seed: int) -> None:
    """From any plan, the best one; its bound is no more."""
    problem = random_graph(seed, 2 + seed % 6)
    choices = [0] * problem.size
    loose = solve(problem)
    for limit in (None, loose.memory - 1, loose.memory * 0.7):
        exact = brute_force(problem, limit)
        if exact == np.inf or not problem.cost(choices):
            continue
        found = certified(problem, choices, problem.cost(choices), limit, now() + 10.0, 0.0)
        assert problem.cost(found.choices) == exact
        assert exact * (1 - 1e-6) - 1e-5 <= found.bound <= exact
        assert limit is None or problem.memory(found.choices) <= limit


def test_no_time_no_claim() -> None:
    problem = random_graph(3, 6)
    found = certified(problem, [0] * problem.size, 10.0, None, now() - 1.0, 0.0)
    assert (found.choices, found.bound) == ((), 0.0)


@pytest.mark.parametrize("seed", range(8))
def test_closes_what_tables_leave(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No joint tables: the programme alone proves the plan, unless a gap was allowed."""
    monkeypatch.setattr(charges, "JOINT", 1)
    problem = random_graph(seed, 7)
    exact = brute_force(problem)
    plan = solve(problem, gap=0.0)
    assert plan.status == "optimal"
    assert plan.value == problem.cost(plan.choices) == exact
    assert plan.bound <= exact
    rough = solve(problem, gap=10.0)
    assert rough.bound <= exact <= rough.value


@pytest.mark.parametrize("seed", range(8))
def test_memory_is_exact(seed: int) -> None:
    """Between the lines of the Lagrangian lie plans that no price finds."""
    problem = random_graph(seed, 6)
    loose = solve(problem)
    limit = loose.memory - 2
    exact = brute_force(problem, limit)
    if exact < np.inf:
        plan = solve(problem, memory=limit, gap=0.0)
        assert plan.status == "optimal"
        assert plan.value == exact
