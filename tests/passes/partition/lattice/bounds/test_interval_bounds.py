"""Intervals of ideals and minimum cuts: bounds are never above the optimum and reach it, plans are plans."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.partition.lattice.bounds.interval_bounds import IntervalBounds, applies
from passes.partition.lattice.bounds.intervals import Interval, IntervalSpace
from passes.partition.lattice.bounds.minimum_cuts import Cuts, nets_of
from passes.partition.lattice.heuristics.cut_plans import CutPlans
from passes.partition.lattice.objective import Budget
from passes.partition.lattice.search.throughput import Throughput, solve
from passes.reference.training import OBJECTIVES, Training, units
from passes.stages.bounds import prices
from passes.stages.lattice.ideals import BIG, among, lattice, prefixes
from passes.stages.lattice.tables import Tables
from passes.stages.load import COMM
from passes.stages.problem import Problem, plan_costs, violations
from tests.passes.partition.instances import blocks, brute_force, ideals, random_chains, random_problem, series_parallel
from tests.passes.reference.training.test_training import brute_force as training_brute_force
from tests.passes.reference.training.test_training import random_graph


def always(tested: int, part: float) -> bool:
    return True


def tables_of(problem: Problem) -> Tables:
    return Tables(problem, prices(problem))


def inside(problem: Problem, interval: Interval, weight: np.ndarray) -> set[frozenset[int]]:
    """The ideals of an interval, from its definition."""
    found = set()
    for ideal in ideals(problem):
        heavy = sum(weight[v] for v in ideal)
        known = set(np.flatnonzero(interval.inside)) <= ideal and not ideal & set(np.flatnonzero(interval.outside))
        if known and interval.low - 1e-12 <= heavy <= interval.high + 1e-12:  # some weights are 1e-9
            found.add(ideal)
    return found


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 5))
def test_cells_hold_every_ideal(seed: int, windows: int) -> None:
    """The first ones together, and the parts of each of them."""
    problem = random_problem(seed, nodes=6)
    space = IntervalSpace(tables_of(problem))
    intervals = list(space.grid(windows))
    assert set().union(*(inside(problem, interval, space.weight) for interval in intervals)) == set(ideals(problem))
    for interval in intervals:
        held = inside(problem, interval, space.weight)
        assert set().union(*(inside(problem, half, space.weight) for half in space.halves(interval))) >= held
        if interval.open.any():
            parts = [inside(problem, part, space.weight) for part in space.parted(interval, interval.open)]
            assert set().union(*parts) == held
            assert sum(len(part) for part in parts) == len(held)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9), st.booleans())
def test_a_cut_is_the_least_of_all_sets(seed: int, ideal: bool) -> None:
    """The obvious twin looks at every set of nodes."""
    rng = random.Random(seed)
    problem = random_problem(seed, nodes=6)
    tables, n = tables_of(problem), problem.size
    nets = nets_of(problem)
    role = [rng.choice((0, 0, 1, 2)) for _ in range(n)]
    sure, never = np.array([r == 1 for r in role]), np.array([r == 2 for r in role])
    price = np.array([rng.choice((-2.0, -0.5, 0.0, 1.0, 3.0)) for _ in range(n)])
    ends, begins = np.zeros(n, np.bool_), np.full(n, ideal)
    least = math.inf
    for size in range(n + 1):
        for chosen in map(set, itertools.combinations(range(n), size)):
            if not chosen >= set(np.flatnonzero(sure)) or chosen & set(np.flatnonzero(never)):
                continue
            if ideal and frozenset(chosen) not in set(ideals(problem)):
                continue
            cut = sum(c for pins, c in zip(nets.pins, nets.transfer[0], strict=True) if 0 < len(chosen & set(pins)) < len(pins))
            least = min(least, float(cut) + sum(price[v] for v in chosen))
    value, found = Cuts(tables).least(0, price, sure, never, ends, begins)
    assert value == pytest.approx(least, abs=1e-9)
    assert (found is None) == math.isinf(least)


def test_prices_of_an_objective_stand_for_transfers() -> None:
    """What a straight pipeline moves by tensor, on a problem whose transfers cost nothing."""
    problem = blocks(3, 4)
    free = replace(problem, transfer=np.zeros_like(problem.transfer))
    space = IntervalSpace(tables_of(problem))
    nothing = np.zeros(problem.size)
    every = nothing == 0
    for interval in space.grid(8):
        known = 0, nothing, interval.inside, interval.outside, ~every, every
        least = Cuts(tables_of(problem)).least(*known)[0]
        assert Cuts(tables_of(free)).least(*known)[0] == 0.0
        assert Cuts(tables_of(free), problem.transfer[0]).least(*known)[0] == pytest.approx(least)
    assert least == 0.0 < Cuts(tables_of(problem)).cost.min()


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**9), st.booleans(), st.sampled_from(COMM))
def test_bound_is_no_larger_than_the_optimum(seed: int, chains: bool, comm: str) -> None:
    """At every moment, whatever the memory; and once nothing is left to refine it is the optimum where loads add up and
    nothing but loads limits a plan."""
    problem = random_chains(seed, comm=comm) if chains else random_problem(seed, nodes=6, comm=comm)
    best = brute_force(problem)
    tables = tables_of(problem)
    if not applies(tables) or not 0 < best < math.inf:
        return
    bounds = IntervalBounds(tables, 1.5 * best)
    for rounds in (0, 3, 400 if problem.stages is None else 30):
        left = iter(range(rounds + 1000 * (not bounds.intervals)))
        bounds.run(lambda tested, part, left=left: next(left, None) is not None)  # type: ignore[misc]
        assert bounds.bound <= best * (1 + 1e-9)
    plain = replace(problem, kinds=tuple(replace(k, memory=None) for k in problem.kinds), forced=(), stages=None)
    refined = next(left, None) is not None and len(bounds.intervals) < bounds.most  # else what was allowed is used up
    if comm == "sum" and refined and brute_force(plain) == best:
        assert bounds.bound >= best * (1 - 1e-6)


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(OBJECTIVES))
def test_bound_holds_for_training(seed: int, objective: str) -> None:
    graph = random_graph(random.Random(seed))
    best = training_brute_force(graph)[objective]
    problem, _ = units(graph)
    walked = Training(problem, objective)
    tables = Tables(walked.problem, walked.price)
    if not applies(tables) or not 0 < best < math.inf:
        return
    bounds, left = IntervalBounds(tables, 1.5 * best), iter(range(1300))
    bounds.run(lambda tested, part: next(left, None) is not None)
    assert bounds.bound <= best * (1 + 1e-9)


@pytest.mark.parametrize("problem", [blocks(2, 4), blocks(4, 4)], ids=["narrow", "wide"])
def test_bound_reaches_an_optimum_with_many_ideals(problem: Problem) -> None:
    optimum = solve(problem)
    assert optimum.status == "optimal"
    bounds = IntervalBounds(tables_of(problem), optimum.value)
    left = iter(range(1200))
    bounds.run(lambda tested, part: next(left, None) is not None)
    assert 0.97 * optimum.value <= bounds.bound <= optimum.value


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(COMM))
def test_chosen_ideals_are_as_the_walk_has_them(seed: int, comm: str) -> None:
    problem = random_problem(seed, nodes=6, comm=comm)
    tables = tables_of(problem)
    walked = lattice(tables, BIG)
    assert walked is not None
    rows = [[v in ideal for v in range(problem.size)] for ideal in ideals(problem)]
    family = among(tables, np.array([*rows, *rows], np.bool_).reshape(-1, problem.size), BIG)
    place = {row.tobytes(): i for i, row in enumerate(family.bits)}
    assert len(place) == len(family.bits)
    for j, row in enumerate(walked.bits):
        i = place[row.tobytes()]
        assert family.sums[i] == pytest.approx(walked.sums[j])
        assert family.marks[i] == pytest.approx(walked.marks[j])
        cut = sorted(walked.cut[walked.cut_start[j] : walked.cut_end[j]])
        assert sorted(family.cut[family.cut_start[i] : family.cut_end[i]]) == cut


def test_plans_over_cuts_are_better_than_along_an_order() -> None:
    problem = series_parallel(5, 120, 6)
    objective, tables = Throughput(problem), tables_of(problem)
    first = objective.programme(tables, prefixes(tables, range(problem.size), BIG), range(problem.size), BIG, always).stages
    assert first is not None
    cuts, best = CutPlans(tables), first
    assert cuts.along(always)
    for _ in range(6):
        trial = objective.value(best) * (1 - 1e-9)
        found = objective.programme(tables, cuts.family(best, trial), range(problem.size), trial, always).stages
        if found is None:
            assert cuts.around(best, always)
            continue
        assert violations(problem, found) == []
        assert max(cost.load for cost in plan_costs(problem, found)) < objective.value(best)
        best = found
    assert objective.value(best) < objective.value(first)


def test_a_search_that_cannot_walk_ends_near_its_bound() -> None:
    problem = series_parallel(7, 200, 6)
    solution = solve(problem, Budget(ideals=1_000, seconds=6.0))
    assert solution.stages is not None
    assert violations(problem, solution.stages) == []
    assert solution.value <= 1.05 * solution.bound


def test_an_interrupt_keeps_what_is_proven() -> None:
    problem = blocks(4, 4)
    optimum = solve(problem).value
    bounds = IntervalBounds(tables_of(problem), 2 * optimum)

    def keep_on(tested: int, part: float) -> bool:
        if part > 0:
            raise KeyboardInterrupt
        return True

    with pytest.raises(KeyboardInterrupt):
        bounds.run(keep_on)
    assert 0 < bounds.bound <= optimum * (1 + 1e-9)


def test_stopped_before_its_start_a_bound_says_nothing() -> None:
    bounds = IntervalBounds(tables_of(blocks(3, 4)), 100.0)
    assert not bounds.run(lambda tested, part: False)
    assert bounds.bound == 0.0
