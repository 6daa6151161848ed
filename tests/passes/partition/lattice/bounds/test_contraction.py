"""Bounds for lattices too large to walk: none is above the optimum, each is reached somewhere."""

from __future__ import annotations

import math
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.partition.lattice.bounds.contraction import Relaxer, relaxes
from passes.partition.lattice.bounds.minimum_cuts import nets_of, node_bound
from passes.partition.lattice.bounds.subproblems import contraction_bounds, part_bound
from passes.partition.lattice.search.throughput import Throughput, solve
from passes.stages.bounds import prices
from passes.stages.lattice.dp import solve_family
from passes.stages.lattice.ideals import BIG, lattice
from passes.stages.lattice.tables import Tables
from passes.stages.load import COMM
from passes.stages.problem import Problem, plan_costs, violations
from passes.stages.reduce import ordered, part_of
from tests.passes.partition.instances import Layers, brute_force, encoder_decoder, experts, random_chains, random_problem


def optimum(problem: Problem) -> float:
    tables = Tables(problem, prices(problem))
    family = lattice(tables, BIG)
    assert family is not None
    return solve_family(tables, family, BIG).value


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(st.integers(0, 10**9), st.booleans(), st.sampled_from((0.0, 0.1, 0.3, 1.0)), st.sampled_from((0.0, 0.3)))
def test_relaxed_optimum_is_no_larger(seed: int, chains: bool, give: float, apart: float) -> None:
    problem = random_chains(seed) if chains else random_problem(seed, nodes=6)
    best = brute_force(problem)
    if not relaxes(problem) or not 0 < best < math.inf:
        return
    relaxed = Relaxer(problem, best).relax(give, apart)
    assert sorted(v for group in relaxed.groups for v in group) == list(range(problem.size))
    assert ordered(problem, relaxed.groups)  # raises where the groups form a cycle
    relaxed.problem.check()
    assert optimum(relaxed.problem) <= best * (1 + 1e-9)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**9), st.booleans(), st.sampled_from(COMM))
def test_node_bound_is_no_larger(seed: int, chains: bool, comm: str) -> None:
    problem = random_chains(seed, comm=comm) if chains else random_problem(seed, nodes=6, comm=comm)
    assert node_bound(Tables(problem, prices(problem)), 0.0)[0] <= brute_force(problem) * (1 + 1e-9)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**9))
def test_node_bound_is_the_minimum_cut(seed: int) -> None:
    """On one kind: the largest of the minimum cuts that networkx finds."""
    problem = random_chains(seed)
    problem = replace(problem, kinds=problem.kinds[:1], seconds=problem.seconds[:1], transfer=problem.transfer[:1])
    nets = nets_of(problem)
    least = []
    for v in range(problem.size):
        graph = nx.DiGraph()
        for u in range(problem.size):
            graph.add_edge(u, "sink", capacity=float(problem.seconds[0, u]))
        for h, pins in enumerate(nets.pins):
            graph.add_edge((h, "in"), (h, "out"), capacity=float(nets.transfer[0, h]))
            for u in pins:
                graph.add_edge(u, (h, "in"))
                graph.add_edge((h, "out"), u)
        least.append(nx.minimum_cut_value(graph, v, "sink"))
    if nets.pins:
        assert node_bound(Tables(problem, prices(problem)), 0.0)[0] == pytest.approx(max(least), rel=1e-9)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(COMM), st.randoms(use_true_random=False))
def test_part_is_no_dearer(seed: int, comm: str, rng) -> None:  # type: ignore[no-untyped-def]
    problem = random_problem(seed, nodes=6, comm=comm)
    nodes = sorted(rng.sample(range(problem.size), rng.randint(1, problem.size)))
    part = part_of(problem, nodes)
    part.check()
    assert brute_force(part) <= brute_force(problem)


@pytest.mark.parametrize(
    "problem",
    [encoder_decoder(4), pytest.param(experts(16, layers=2), marks=pytest.mark.slow)],
    ids=["encoder-decoder", "experts"],
)
def test_contractions_bound_what_cannot_be_walked(problem: Problem) -> None:
    """Plans are feasible and no better than the bounds; the bounds are near."""
    start = solve(problem)
    assert start.stages is not None
    best, value = 0.0, start.value
    for step in contraction_bounds(Throughput(problem), start.bound / 2, start.value, 1 << 24, lambda tested, part: True):
        best = max(best, step.bound)
        if step.stages is not None:
            assert violations(problem, step.stages) == []
            value = min(value, max(cost.load for cost in plan_costs(problem, step.stages)))
        if best > 0.97 * value:
            break
    assert best <= value * (1 + 1e-9)
    assert best > 0.95 * value


def test_side_chains_give_way_once() -> None:
    """Keys made from one encoding: the encoding's tensor gives way by one key's time, not by all."""
    build = Layers()
    encoded = build.op(5, 4)
    y = build.op(5, 4)
    for _ in range(12):
        y = build.op(3, 4, y, build.op(0.1, 4, encoded))
    problem = build.problem(4, rate=0.05)
    relaxed = Relaxer(problem, 20.0).relax(0.02, 0.3).problem
    assert relaxed.size <= problem.size - 12
    assert relaxed.joins is not None
    assert relaxed.joins.transfer.max() == pytest.approx(0.2)
    lost = float(nets_of(problem).transfer.max()) - min(c for c in relaxed.joins.transfer[0] if c)
    assert lost == pytest.approx(0.12)


def test_a_stage_dear_for_its_transfers_is_proven_by_its_neighbours() -> None:
    build = Layers()
    x = build.op(0.1, 1)
    for _ in range(3):
        x = build.op(0.5, 200, x)
    for _ in range(30):
        x = build.op(0.5, 1, x, *[build.op(0.01, 1, x) for _ in range(3)])
    problem = build.problem(8)
    solution = solve(problem)
    assert solution.stages is not None
    objective = Throughput(problem)
    order = [v for _, nodes in solution.stages for v in nodes]
    bound = part_bound(objective, order, objective.dearest(solution.stages), 0.0, solution.value, 1 << 24, lambda t, p: True)[0]
    assert 0 < bound <= solution.value * (1 + 1e-9)
    assert np.isfinite(bound)
