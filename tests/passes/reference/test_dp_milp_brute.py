"""Three ways to one answer: dynamic programme, mixed-integer programme and brute force agree, for every objective and option.

The programme for contiguous stages (``contiguous_milp``) shares nothing with the walk over ideals but the problem."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from passes.partition.lattice.objective import Budget, Solution
from passes.partition.lattice.search.throughput import solve
from passes.reference.assignment.local_search import Sides
from passes.reference.assignment.milp import MilpResult, solve_milp
from passes.reference.assignment.solver import solve_any
from passes.reference.assignment.training import problem_of_units
from passes.reference.pipedream import Machines, Profile, solve_pipedream
from passes.reference.training import OBJECTIVES, solve_training, training_load, training_value, units
from passes.stages.load import COMM
from passes.stages.problem import Kind, Problem
from tests.passes.claims import Claim
from tests.passes.partition.instances import brute_force, random_problem
from tests.passes.partition.lattice.search.test_exact import claimed
from tests.passes.reference.any_brute import brute_force_any, dear_transfers
from tests.passes.reference.assignment.test_solver import claimed as claimed_any
from tests.passes.reference.contiguous_milp import solve_contiguous
from tests.passes.reference.training.test_training import brute_force as brute_force_training
from tests.passes.reference.training.test_training import random_graph

SEEDS = st.integers(0, 10**6)
PATIENT = Budget(seconds=600.0)


def agree(optimum: float, solution: Solution, programme: MilpResult) -> None:
    """Both say ``optimum`` with a bound that holds, or both that nothing fits, exactly when brute force does."""
    if math.isinf(optimum):
        assert (solution.status, solution.stages, programme.status) == ("infeasible", None, "infeasible")
        return
    assert (solution.status, programme.status) == ("optimal", "optimal")
    assert solution.value == pytest.approx(optimum, rel=1e-7, abs=1e-12)
    assert solution.bound <= optimum * (1 + 1e-7)
    assert programme.bound <= optimum * (1 + 1e-12) + 1e-12
    assert programme.bound == pytest.approx(optimum, rel=1e-6, abs=1e-6)


@settings(max_examples=10)
@given(SEEDS, st.sampled_from(COMM), st.booleans())
def test_throughput(seed: int, comm: str, dear: bool) -> None:
    problem = dear_transfers(seed, comm) if dear else random_problem(seed, nodes=5, comm=comm)
    agree(brute_force(problem), solve(problem), solve_contiguous(problem))


@settings(max_examples=6)
@given(SEEDS, st.sampled_from(COMM))
def test_throughput_of_any_split(seed: int, comm: str) -> None:
    problem = random_problem(seed, nodes=5, comm=comm)
    agree(brute_force_any(problem), solve_any(problem, PATIENT), solve_milp(problem))


@settings(max_examples=20)
@given(st.integers(0, 2**32), st.sampled_from(OBJECTIVES))
def test_training(seed: int, objective: str) -> None:
    graph = random_graph(random.Random(seed))
    problem, _ = units(graph)
    assert problem.joins is not None
    sides = Sides(problem.joins.seconds, problem.joins.side) if objective == "split" else None
    precedence = [(v, w) for v, after in zip(problem.producer.tolist(), problem.consumers, strict=True) for w in after]
    programme = solve_contiguous(problem_of_units(problem), sides, precedence)
    optimum = brute_force_training(graph)[objective]
    agree(optimum, solve_training(graph, objective), programme)
    if programme.stages is not None:
        loads = [training_load(problem, kind, nodes) for kind, nodes in programme.stages]
        assert training_value(objective, loads) == pytest.approx(optimum, rel=1e-7, abs=1e-9)


@settings(max_examples=15)
@given(SEEDS)
def test_straight_pipedream_on_a_chain(seed: int) -> None:
    """Where each output goes to the next node only, PipeDream's straight pipeline is a split with both directions apart."""
    rng = random.Random(seed)
    n, machines = rng.randint(1, 6), rng.randint(1, 4)
    seconds = np.array([float(rng.choice((0, 1, 2, 3, 5))) for _ in range(n)])
    output = np.array([rng.choice((0, 1, 2, 4)) for _ in range(n)], np.int64)
    readers = tuple((v + 1,) if v + 1 < n else () for v in range(n))
    profile = Profile(tuple(f"n{v}" for v in range(n)), seconds, output, output, np.zeros(n, np.int64), readers)
    solution = solve_pipedream(profile, Machines(count=machines, bandwidth=1.0, straight=True, memory=None))
    chain = Problem(
        names=profile.names,
        kinds=(Kind("machine", tuple(f"m{i}" for i in range(machines))),),
        seconds=seconds[None],
        producer=np.arange(n - 1),
        consumers=readers[:-1],
        transfer=2.0 * output[None, :-1],
        tensor_bytes=np.zeros(n - 1, np.int64),
        tensor_names=profile.names[:-1],
        live=np.zeros(n, np.int64),
        weight_bytes=np.zeros(0, np.int64),
        weight_readers=(),
        comm="duplex",
    )
    agree(brute_force(chain), solution, solve_contiguous(chain))


def claimed_when_stopped(seed: int, comm: str, contiguous: bool, seconds: float) -> Claim:
    """Of a random problem, under a small budget."""
    problem, budget = random_problem(seed, nodes=5, comm=comm), Budget(seconds=seconds, ideals=3, pairs=5)
    return claimed(problem, budget) if contiguous else claimed_any(problem, budget)


@settings(max_examples=9)
@given(SEEDS, st.sampled_from(COMM), st.booleans(), st.sampled_from((0.0, 0.02)))
@example(10605, "overlap", True, 0.0)  # no plan is found, which proves nothing of plans
def test_bounds_hold_whatever_stops_the_search(seed: int, comm: str, contiguous: bool, seconds: float) -> None:
    assert not claimed_when_stopped(seed, comm, contiguous, seconds).wrong


@pytest.mark.slow
@settings(max_examples=20)
@given(SEEDS, st.sampled_from(COMM))
def test_kinds_may_come_in_any_order(seed: int, comm: str) -> None:
    problem = random_problem(seed, nodes=5, comm=comm)
    turned = replace(
        problem, kinds=problem.kinds[::-1], seconds=problem.seconds[::-1].copy(), transfer=problem.transfer[::-1].copy()
    )
    one, two = solve(problem), solve(turned)
    assert (one.status, one.value) == (two.status, pytest.approx(two.value, rel=1e-9))
    one, two = solve_any(problem, PATIENT), solve_any(turned, PATIENT)
    assert (one.status, one.value) == (two.status, pytest.approx(two.value, rel=1e-7))
