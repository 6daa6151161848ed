"""The search equals the full integer programme and brute force, repeated or not, and its bound always holds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from passes.partition.layouts import Graph, NodeKind, NoPlanError, ShardProblem, ValueKind, ValueNode, solve
from passes.partition.layouts.elimination import charges
from passes.partition.layouts.elimination.folded import FoldedSearch
from tests.passes.claims import SOLVED, Claim
from tests.passes.partition.layouts.exact import brute_force, integer_programme
from tests.passes.partition.layouts.problems import random_graph, random_layers


@pytest.mark.parametrize("seed", range(12))
def test_programme_equals_brute_force(seed: int) -> None:
    problem = random_graph(seed, 2 + seed % 6)
    assert integer_programme(problem)[0] == pytest.approx(brute_force(problem), abs=1e-5)


def claimed(problem: ShardProblem, memory: float | None = None) -> Claim:
    """What the search says, beside brute force."""
    best = brute_force(problem, memory)
    try:
        plan = solve(problem, memory=memory)
    except NoPlanError:
        return Claim(best, "infeasible", math.inf, math.inf)
    faults = [f"it needs {held} bytes"] if memory is not None and (held := problem.memory(plan.choices)) > memory else []
    if plan.value != problem.cost(plan.choices):
        faults.append(f"its choices do not take {plan.value}")
    return Claim(best, plan.status, plan.value, plan.bound, faults, near=SOLVED)


def claimed_with_memory(seed: int) -> list[Claim]:
    """Of a random graph, under limits around what a plan without one needs."""
    problem = random_graph(seed, 6)
    loose = solve(problem).memory
    return [claimed(problem, limit) for limit in (loose, loose - 1, loose - 3, loose / 2)]


@pytest.mark.parametrize("seed", range(24))
def test_small_graphs(seed: int) -> None:
    claimed(random_graph(seed, 2 + seed % 6)).check()


@pytest.mark.parametrize("seed", range(8))
def test_larger_graphs_equal_the_programme(seed: int) -> None:
    problem = random_graph(seed, 20)
    plan = solve(problem)
    assert plan.status == "optimal"
    assert plan.value == pytest.approx(integer_programme(problem)[0], abs=1e-5)


@pytest.mark.parametrize("seed", range(12))
def test_layers_equal_the_programme(seed: int) -> None:
    problem = random_layers(seed, 4 + seed % 4, 2 + seed % 4)
    plan = solve(problem)
    assert plan.status == "optimal"
    assert plan.value == problem.cost(plan.choices)
    assert plan.value == pytest.approx(integer_programme(problem)[0], abs=1e-5)


@pytest.mark.slow
def test_a_hundred_more_equal_the_programme() -> None:
    for seed in range(1000, 1050):
        for problem in (random_graph(seed, 14), random_layers(seed, 5 + seed % 4, 2 + seed % 4)):
            plan = solve(problem)
            assert plan.status == "optimal"
            assert plan.value == problem.cost(plan.choices)
            assert plan.value == pytest.approx(integer_programme(problem)[0], abs=1e-5)


@pytest.mark.parametrize("seed", range(20))
def test_sums_over_equal_nodes_round_as_sums_one_by_one(seed: int) -> None:
    generator = np.random.default_rng(seed)
    tables = [generator.random(3) * 10.0 ** generator.integers(-12, 12, 3) for _ in range(5)]
    node_kinds = tuple(NodeKind(("", "", ""), table, table[::-1]) for table in tables)
    kinds = generator.integers(0, 5, 3000)
    problem = ShardProblem(node_kinds, (), Graph(tuple(kinds.tolist()), ()))
    choices = generator.integers(0, 3, 3000).tolist()
    pairs = list(zip(kinds.tolist(), choices, strict=True))
    assert problem.cost(choices) == math.fsum(float(tables[kind][choice]) for kind, choice in pairs)
    assert problem.memory(choices) == math.fsum(float(tables[kind][::-1][choice]) for kind, choice in pairs)


def test_layers_are_runs() -> None:
    """Else the test above would test nothing but plain elimination."""
    counts = [len(FoldedSearch(random_layers(seed, 6, 3)).structure.runs) for seed in range(20)]
    assert sum(counts) >= 10, counts


@pytest.mark.parametrize("seed", range(12))
def test_memory_limits(seed: int) -> None:
    for claim in claimed_with_memory(seed):
        assert not claim.wrong


@pytest.mark.parametrize("seed", range(8))
def test_bound_holds_where_tables_are_too_wide(seed: int) -> None:
    problem = random_graph(seed, 7)
    plan = solve(problem, budget=12)
    assert plan.bound <= brute_force(problem) <= plan.value == problem.cost(plan.choices)


def alternating(copies: int) -> ShardProblem:
    """Blocks that cost 10 where their layout stays, 1 where it changes."""
    block = NodeKind(
        ("stay a", "a to b", "b to a", "stay b"),
        np.array([10.0, 1.0, 1.0, 10.0]),
        np.zeros(4),
        (np.array([0, 0, 1, 1]),),
        (np.array([0, 1, 0, 1]),),
    )
    first = NodeKind(("a", "b"), np.zeros(2), np.zeros(2), (), (np.array([0, 1]),))
    value = ValueKind(np.array([[0.0, 1e6], [1e6, 0.0]]), ((0,), (1,)))
    values = tuple(ValueNode(0, (node, 0), ((node + 1, 0),)) for node in range(copies))
    cells = (tuple((node,) for node in range(1, copies + 1)),)
    return ShardProblem((first, block), (value,), Graph((0, *[1] * copies), values, cells))


def test_copies_choose_apart() -> None:
    problem = alternating(24)
    free = solve(problem)
    assert (free.value, free.status) == (24.0, "optimal")
    assert len(FoldedSearch(problem).structure.runs) == 1


def test_a_thousand_copies() -> None:
    """Through the stretch of all copies: the plan that is written down costs the sum found."""
    problem = random_layers(3, 1000, 3)
    searched = FoldedSearch(problem)
    found = searched.cheapest(0.0)
    assert searched.structure.runs
    assert found.bound == problem.cost(found.choices)


@pytest.mark.parametrize("seed", range(8))
def test_relaxed_tables_bound(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values whose readers meet in no table: the bound holds, and the programme closes the gap."""
    monkeypatch.setattr(charges, "JOINT", 1)
    problem = random_graph(seed, 7)
    plan = solve(problem, seconds=5.0)
    exact = brute_force(problem)
    assert plan.bound <= exact <= plan.value == problem.cost(plan.choices)
    assert plan.gap <= 1e-3


@pytest.mark.parametrize("seed", range(10))
def test_a_beaten_problem_says_so(seed: int) -> None:
    """What it returns is a plan with a valid bound, and the bound tells that nothing better is there."""
    problem = random_graph(seed, 12)
    exact = solve(problem, gap=0.0)
    rough = solve(problem, gap=0.0, beaten=exact.value / 2)
    assert exact.value / 2 <= rough.bound <= exact.value <= rough.value == problem.cost(rough.choices)
    assert solve(problem, gap=0.0, beaten=exact.value + 1).value == exact.value
