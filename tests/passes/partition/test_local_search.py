"""Annealing: the kernel's increments equal the definition, plans are feasible, the seed decides."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from passes.partition.any_kernels import anneal
from passes.partition.local_search import Search, _Runs, assignment_of, kind_of, local_search, stages_of
from passes.partition.problem import COMM, Problem, plan_costs, violations
from tests.passes.partition.any_brute import brute_force_any
from tests.passes.partition.instances import encoder_decoder, random_problem

SEEDS = st.integers(0, 10**6)
SHORT = Search(restarts=4, proposals=3000, seconds=60)


def value_of(problem: Problem, assignment: tuple[int, ...]) -> float:
    return max((cost.load for cost in plan_costs(problem, stages_of(problem, assignment))), default=0.0)


@given(SEEDS, st.sampled_from(COMM))
def test_value_of_the_kernel_is_that_of_the_definition(seed: int, comm: str) -> None:
    """After thousands of increments the value reported is the load, or more where a constraint is broken."""
    problem = random_problem(seed, comm=comm)
    runs = _Runs(problem)
    if runs.impossible:
        assert np.isinf(problem.seconds).all(axis=0).any()
        return
    value, found = anneal(np.array([c[-1] for c in runs.choices], np.int64), *runs.arrays, 7.0, 2000, 0.3, 0.1, seed)
    assignment = tuple(int(d) for d in found)
    if violations(problem, stages_of(problem, assignment), ordered=False):
        assert value >= 7.0
    else:
        assert value == pytest.approx(value_of(problem, assignment), abs=1e-9)


@given(SEEDS, st.sampled_from(COMM))
def test_plans_are_feasible_and_no_better_than_the_optimum(seed: int, comm: str) -> None:
    problem = random_problem(seed, comm=comm)
    found = local_search(problem, search=SHORT)
    if found is None:
        return
    assert violations(problem, stages_of(problem, found), ordered=False) == []
    assert value_of(problem, found) >= brute_force_any(problem) - 1e-9


def test_small_problems_are_solved_to_the_optimum() -> None:
    """Not promised, but where it fails on many the annealing is broken."""
    missed = []
    for seed in range(60):
        problem = random_problem(seed, demands=False)
        optimum = brute_force_any(problem)
        found = local_search(problem, search=SHORT)
        value = math.inf if found is None else value_of(problem, found)
        if value != pytest.approx(optimum):
            missed.append(seed)
    assert len(missed) <= 2, missed


def test_the_seed_decides() -> None:
    problem = encoder_decoder(2, devices=4)
    search = Search(restarts=3, proposals=20_000, seconds=600)
    plans = [local_search(problem, search=replace(search, seed=seed)) for seed in (1, 1, 2)]
    assert plans[0] == plans[1]
    assert plans[0] != plans[2]


def test_never_worse_than_its_start() -> None:
    problem = encoder_decoder(2, devices=4)
    good = local_search(problem, search=Search(restarts=4, proposals=50_000, seconds=60))
    assert good is not None
    again = local_search(problem, [good], Search(restarts=1, proposals=10, seconds=60))
    assert again is not None
    assert value_of(problem, again) <= value_of(problem, good)


def test_stages_and_assignments() -> None:
    problem = replace(random_problem(0, demands=False), stages=None)
    kinds = kind_of(problem)
    assert len(kinds) == problem.devices
    spread = tuple(v % problem.devices for v in range(problem.size))
    stages = stages_of(problem, spread)
    assert stages_of(problem, assignment_of(problem, stages)) == stages
    with pytest.raises(ValueError, match="more stages than devices"):
        assignment_of(problem, tuple((0, (0,)) for _ in range(problem.kinds[0].count + 1)))
