"""Antichain contraction: no cycle, a lattice within the budget, and a loss no larger than stated."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.partition.lattice.search.throughput import solve
from passes.stages.bounds import best_bound, prices
from passes.stages.lattice.coarsen import Coarse, TooLarge, coarsen
from passes.stages.lattice.ideals import BIG, Tables, count_ideals
from passes.stages.load import COMM
from passes.stages.problem import Problem, violations
from passes.stages.reduce import ordered, quotient
from tests.passes.partition.instances import brute_force, encoder_decoder, experts, ideals, random_problem


def contracted(problem: Problem, most: int) -> tuple[Coarse, Problem] | None:
    try:
        coarse = coarsen(problem, most)
    except TooLarge:
        return None
    return (coarse, quotient(problem, coarse.groups)) if coarse is not None else None


def check(problem: Problem, most: int) -> bool:
    """Whether something was contracted; if so, it is right."""
    found = contracted(problem, most)
    if found is None:
        return False
    coarse, smaller = found
    assert sorted(v for group in coarse.groups for v in group) == list(range(problem.size))
    assert ordered(problem, coarse.groups)  # raises where the groups form a cycle
    smaller.check()
    solution = solve(smaller)
    assert solution.stages is not None
    stages = tuple((k, tuple(v for g in nodes for v in coarse.groups[g])) for k, nodes in solution.stages)
    assert violations(problem, stages) == []
    best = brute_force(problem)
    assert best <= solution.value * (1 + 1e-9)
    if math.isfinite(coarse.factor):
        assert solution.value <= best * coarse.factor * (1 + 1e-9)
    return True


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(COMM), st.integers(2, 12))
def test_loss_is_as_stated(seed: int, comm: str, most: int) -> None:
    check(random_problem(seed, nodes=7, comm=comm), most)


def test_loss_is_as_stated_often() -> None:
    """Enough of a fixed set of problems is contracted that the test says something."""
    assert sum(check(random_problem(seed, nodes=7), 6) for seed in range(60)) > 10


def test_lattice_within_its_budget_stays() -> None:
    for seed in range(40):
        problem = random_problem(seed, nodes=6, memory=False, demands=False)
        problem = replace(problem, kinds=tuple(replace(kind, devices=("a", "b")) for kind in problem.kinds))
        every = len(ideals(problem))
        assert coarsen(problem, every) is None
        assert count_ideals(Tables(problem, prices(problem)), BIG, every) == every
        assert count_ideals(Tables(problem, prices(problem)), BIG, every - 1) is None


@pytest.mark.parametrize("most", [100, 5_000])
@pytest.mark.parametrize(
    "problem",
    [pytest.param(encoder_decoder(8), id="cross attention"), pytest.param(experts(32), id="experts")],
)
def test_large_lattice_becomes_small(problem: Problem, most: int) -> None:
    found = contracted(problem, most)
    assert found is not None
    coarse, smaller = found
    assert 1 < coarse.factor < 1.2
    solution = solve(smaller)
    assert solution.status == "optimal"
    assert solution.value <= coarse.factor * best_bound(problem, prices(problem))[0] * (1 + 1e-9)


def test_what_cannot_be_contracted_is_said() -> None:
    problem = encoder_decoder(2)
    with pytest.raises(TooLarge, match="no contraction that keeps a good plan"):
        coarsen(problem, 3)
    tiny = replace(problem, kinds=tuple(replace(kind, memory=1) for kind in problem.kinds))
    with pytest.raises(TooLarge, match="no plan lies along an order"):
        coarsen(tiny, 100)


def test_cut_that_is_demanded_stays_open() -> None:
    problem = encoder_decoder(4)
    asked = replace(problem, forced=(len(problem.consumers) // 2,))
    found = contracted(asked, 200)
    assert found is not None
    solution = solve(found[1])
    assert solution.stages is not None
    stages = tuple((k, tuple(v for g in nodes for v in found[0].groups[g])) for k, nodes in solution.stages)
    assert violations(asked, stages) == []
