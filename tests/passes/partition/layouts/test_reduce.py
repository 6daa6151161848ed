"""Reductions leave a cheapest plan, under any limit of memory; ``fits`` says what an elimination does."""

from __future__ import annotations

import numpy as np
import pytest

from passes.partition.layouts import solve
from passes.partition.layouts.problem.graph import Graph, ValueNode
from passes.partition.layouts.problem.problem import NodeKind, ShardProblem, ValueKind
from passes.partition.layouts.solver.reduce import reduced
from tests.passes.partition.layouts.exact import brute_force, integer_programme
from tests.passes.partition.layouts.models import problem_of
from tests.passes.partition.layouts.problems import random_graph, random_layers


@pytest.mark.parametrize("seed", range(16))
def test_a_cheapest_plan_is_left(seed: int) -> None:
    problem = random_graph(seed, 2 + seed % 6)
    left = reduced(problem)
    assert brute_force(left.problem) == brute_force(problem)
    plan = solve(left.problem)
    assert problem.cost(left.original(plan.choices)) == plan.value
    assert problem.memory(left.original(plan.choices)) == plan.memory
    for limit in (plan.memory - 1, plan.memory / 2):
        assert brute_force(left.problem, limit) == brute_force(problem, limit)


@pytest.mark.parametrize("seed", range(10))
def test_layers_stay_layers(seed: int) -> None:
    problem = random_layers(seed, 5, 3)
    left = reduced(problem).problem
    assert left.cells == problem.cells
    assert left.kinds == problem.kinds
    assert integer_programme(left)[0] == pytest.approx(integer_programme(problem)[0], abs=1e-5)


def test_choices_go() -> None:
    """Else the tests above would test nothing; on layers a third goes, the layouts of maxima among it."""
    assert sum(reduced(random_graph(seed, 6)).problem.choices < random_graph(seed, 6).choices for seed in range(20)) >= 10
    problem = problem_of("zoo:llama-7b,layers=1,hidden=64,heads=8,vocab=128,seq=16,batch=8", (2, 4)).problem
    assert reduced(problem).problem.choices < 0.8 * problem.choices


def test_a_choice_that_one_surrounding_needs_stays() -> None:
    """``b`` costs 1 more than ``a`` itself; only the reader that wants its layout alone makes up for it."""

    def problem(seconds: float) -> ShardProblem:
        maker = NodeKind(("a", "b"), np.array([0.0, 1.0]), np.zeros(2), (), (np.array([0, 1]),))
        reader = NodeKind(("a", "b"), np.array([seconds, 0.0]), np.zeros(2), (np.array([0, 1]),))
        value = ValueKind(np.array([[0.0, 5.0], [5.0, 0.0]]), ((0,), (1,)))
        return ShardProblem((maker, reader), (value,), Graph((0, 1), (ValueNode(0, (0, 0), ((1, 0),)),)))

    assert [len(kept) for kept in reduced(problem(3.0)).kept] == [2, 2]
    assert [len(kept) for kept in reduced(problem(9.0)).kept] == [1, 1]
    assert brute_force(reduced(problem(9.0)).problem) == brute_force(problem(9.0)) == 1.0
