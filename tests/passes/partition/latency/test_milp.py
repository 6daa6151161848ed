"""Latency three ways: the search, the mixed-integer programme, and trying everything."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.model.stages.problem import Kind
from passes.partition.latency import LatencyBudget, LatencyProblem, Piece, TooManyKindsError, faults, schedule, solve_latency
from passes.partition.latency.milp import LatencyMilp, solve_latency_milp
from tests.passes.partition.latency_brute import least_latency, random_latency, with_programs

SEEDS = st.integers(0, 10**6)
SHAPES = st.sampled_from([(1, 1, 3), (1, 2, 2), (2, 1, 2), (2, 2, 2), (2, 3, 3), (3, 1, 1), (3, 1, 2)])
"""Pieces, kinds of accelerators at most, accelerators at most."""


def check_plan(problem: LatencyProblem, found: LatencyMilp, expected: float) -> None:
    if math.isinf(expected):
        assert (found.status, found.pieces, found.bound) == ("infeasible", None, math.inf)
        return
    assert (found.status, found.pieces is None) == ("optimal", False)
    assert faults(problem, found.pieces or ()) == []
    assert schedule(problem, found.pieces or ()).latency == pytest.approx(expected, rel=1e-7, abs=1e-9)
    assert found.bound <= expected * (1 + 1e-12)
    assert found.bound == pytest.approx(expected, rel=1e-6, abs=1e-6)


@given(SEEDS, SHAPES)
@settings(max_examples=60)
def test_search_and_programme_are_brute_force(seed: int, shape: tuple[int, int, int]) -> None:
    pieces, kinds, devices = shape
    problem = random_latency(seed, nodes=5 if devices * pieces < 4 else 4, pieces=pieces, kinds=kinds, devices=devices)
    best = least_latency(problem)
    check_plan(problem, solve_latency_milp(problem), best)
    found = solve_latency(problem, LatencyBudget(seconds=60))
    assert (found.status == "infeasible") == math.isinf(best)
    assert found.value == pytest.approx(best, rel=1e-9)
    assert found.bound <= best * (1 + 1e-12)


@given(SEEDS, SHAPES)
@settings(max_examples=60)
def test_bytes_of_programs_are_counted_alike(seed: int, shape: tuple[int, int, int]) -> None:
    """Shared weights, workspace, buffers: search, programme and brute force agree on what fits, too."""
    pieces, kinds, devices = shape
    drawn = random_latency(seed, nodes=5 if devices * pieces < 4 else 4, pieces=pieces, kinds=kinds, devices=devices)
    problem = with_programs(drawn, seed)
    best = least_latency(problem)
    check_plan(problem, solve_latency_milp(problem), best)
    found = solve_latency(problem, LatencyBudget(seconds=60))
    assert (found.status == "infeasible") == math.isinf(best)
    assert found.value == pytest.approx(best, rel=1e-9)
    assert found.status in ("optimal", "infeasible"), "no choice of bytes is left to the end"
    if found.schedule is not None:
        assert faults(problem, found.schedule.pieces) == []


@given(SEEDS, SHAPES)
@settings(max_examples=60)
def test_search_is_the_programme_where_not_everything_can_be_tried(seed: int, shape: tuple[int, int, int]) -> None:
    """More nodes, accelerators and colours than brute force can take."""
    pieces, kinds, devices = shape
    problem = random_latency(seed, nodes=8, pieces=pieces, kinds=kinds, devices=devices + 1)
    found = solve_latency(problem, LatencyBudget(seconds=60))
    programme = solve_latency_milp(problem)
    assert found.bound <= programme.bound * (1 + 1e-6) + 1e-6 or found.status == "infeasible"
    check_plan(problem, programme, found.value)


@given(SEEDS, st.sampled_from((0.5, 0.99, 1.001, 1.5)))
@settings(max_examples=20)
def test_a_cap_below_the_optimum_is_infeasible(seed: int, part: float) -> None:
    problem = random_latency(seed, nodes=5, pieces=2)
    best = least_latency(problem)
    if best in (0.0, math.inf):
        return
    found = solve_latency_milp(problem, below=best * part)
    assert found.status == ("infeasible" if part < 1 else "optimal")


@given(SEEDS)
@settings(max_examples=15)
def test_begins_from_a_plan(seed: int) -> None:
    """With no time to look for one it gives back the plan that it was given, or a better one."""
    problem = random_latency(seed, nodes=6, pieces=2, kinds=2, devices=4)
    known = solve_latency(problem, LatencyBudget(seconds=60))
    if known.schedule is None:
        return
    found = solve_latency_milp(problem, start=known.schedule.pieces, seconds=0.01)
    assert found.pieces is not None
    assert schedule(problem, found.pieces).latency == pytest.approx(known.value, rel=1e-7, abs=1e-9)


def test_pieces_cannot_wait_for_each_other_in_no_time() -> None:
    """a0 -> b0 -> a1 with everything free: two accelerators with a piece each would be a circle."""
    problem = LatencyProblem(
        names=("a", "b", "c"),
        kinds=(Kind("x", ("x0",), 2), Kind("y", ("y0",), 2)),
        seconds=np.array([[0.0, math.inf, 0.0], [math.inf, 0.0, math.inf]]),
        cpu=np.full(3, 5.0),
        size=np.ones(3, np.int64),
        producer=np.array([0, 1]),
        consumers=((1,), (2,)),
        transfer=np.zeros((2, 2)),
    )
    check_plan(problem, solve_latency_milp(problem), 5.0)
    twice = replace(problem, pieces=2)
    found = solve_latency_milp(twice)
    check_plan(twice, found, 0.0)
    assert found.pieces == (Piece(0, 0, (0,)), Piece(1, 0, (1,)), Piece(0, 0, (2,)))


def test_numbers_that_mean_never() -> None:
    """1e30 seconds beside 1: no coefficient of the programme, and no plan holds it."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        problem = random_latency(seed, nodes=5, pieces=2)
        never = rng.random(problem.seconds.shape) < 0.3
        problem = replace(problem, seconds=np.where(never, 1e30, problem.seconds))
        best = least_latency(problem)
        if best > 1e20:
            continue
        found = solve_latency_milp(problem, below=best * (1 + 1e-6) + 1e-6)
        assert found.pieces is not None
        assert schedule(problem, found.pieces).latency <= best * (1 + 2e-6) + 2e-6


@pytest.mark.parametrize(("seed", "pieces"), [(253899, 2), (202, 1), (219, 3)])
def test_a_choice_of_bytes_is_left_to_the_programme(seed: int, pieces: int) -> None:
    """Over ideals a sink that half fits costs half its transfer: a plan that pays all of it hid the best one."""
    problem = random_latency(seed, nodes=8, pieces=pieces, kinds=3 if pieces == 2 else 2, devices=4 if pieces == 2 else 3)
    found = solve_latency(problem, LatencyBudget(seconds=60))
    check_plan(problem, solve_latency_milp(problem), found.value)
    assert (found.status, found.bound) == ("optimal", found.value), "closed to the solver's tolerance is optimal"


def test_many_kinds_of_accelerators() -> None:
    """Two pieces of each of eight kinds: 3 ** 8 states are too many to walk ideals with, and the problem is small."""
    rng = np.random.default_rng(0)
    kinds, n = 8, 6
    problem = LatencyProblem(
        names=tuple("abcdef"),
        kinds=tuple(Kind(f"k{t}", (f"d{t}",), 2) for t in range(kinds)),
        seconds=rng.integers(1, 9, (kinds, n)).astype(np.float64),
        cpu=np.full(n, 20.0),
        size=np.ones(n, np.int64),
        producer=np.arange(n - 1),
        consumers=tuple((v + 1,) for v in range(n - 1)),
        transfer=np.full((kinds, n - 1), 0.5),
        pieces=2,
    )
    found = solve_latency(problem, LatencyBudget(seconds=60))
    assert found.schedule is not None
    assert faults(problem, found.schedule.pieces) == []
    assert (found.status, found.bound) == ("optimal", found.value)
    wider = replace(problem, kinds=tuple(Kind(f"k{t}", tuple(f"d{t}{i}" for i in range(9)), 2) for t in range(kinds)))
    with pytest.raises(TooManyKindsError):
        solve_latency(wider, LatencyBudget(seconds=60))
