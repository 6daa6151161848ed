"""The mixed-integer programme: both splits equal brute force, caps refute, bounds hold."""

from __future__ import annotations

import json
import math
import signal
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from passes.reference.assignment import milp_process
from passes.reference.assignment.local_search import sided_value
from passes.reference.assignment.milp import heaviest, solve_milp
from passes.reference.assignment.milp_process import solve_apart
from passes.stages.load import COMM
from passes.stages.problem import Problem, plan_costs, violations
from tests.dnnc.engines.onnxruntime.processes import end_starter
from tests.passes.partition.instances import brute_force, encoder_decoder, random_chains, random_problem
from tests.passes.reference.any_brute import brute_force_any, brute_force_sided, random_sides
from tests.passes.reference.contiguous_milp import solve_contiguous

SEEDS = st.integers(0, 10**6)


def value_of(problem: Problem, stages: tuple[tuple[int, tuple[int, ...]], ...]) -> float:
    return max((cost.load for cost in plan_costs(problem, stages)), default=0.0)


@settings(max_examples=25)
@given(SEEDS, st.sampled_from(COMM), st.booleans())
def test_equals_brute_force(seed: int, comm: str, contiguous: bool) -> None:
    problem = random_problem(seed, nodes=5, comm=comm)
    expected = brute_force(problem) if contiguous else brute_force_any(problem)
    result = solve_contiguous(problem) if contiguous else solve_milp(problem)
    if math.isinf(expected):
        assert (result.status, result.stages, result.bound) == ("infeasible", None, math.inf)
        return
    assert result.status == "optimal"
    assert result.stages is not None
    assert violations(problem, result.stages, ordered=contiguous) == []
    assert value_of(problem, result.stages) == pytest.approx(expected, rel=1e-7, abs=1e-9)
    assert result.bound <= expected * (1 + 1e-12)
    assert result.bound == pytest.approx(expected, rel=1e-6, abs=1e-6)


def spread(seed: int) -> Problem:
    """Numbers from 1e-9 to 1e30 beside each other: what means never must be no coefficient, and hide no other number."""
    rng = np.random.default_rng(seed)
    problem = random_problem(seed, nodes=5, comm=COMM[seed % len(COMM)])
    never = rng.random(problem.seconds.shape) < 0.25
    never[0] = False
    free = rng.random(problem.transfer.shape) < 0.3
    limits = [kind.memory and 2 * kind.memory for kind in problem.kinds]
    return replace(
        problem,
        kinds=tuple(replace(kind, memory=limit) for kind, limit in zip(problem.kinds, limits, strict=True)),
        seconds=np.where(never, 1e30, problem.seconds),
        transfer=np.where(free, problem.transfer, 10 ** rng.uniform(-9, 30, problem.transfer.shape)),
        weight_bytes=np.where(rng.random(problem.weight_bytes.shape) < 0.2, 10**18, problem.weight_bytes),
    )


@settings(max_examples=25)
@given(SEEDS)
@example(958002)  # the sum of all numbers is 5e29 times the optimum
def test_numbers_that_mean_never(seed: int) -> None:
    problem = spread(seed)
    optimum = brute_force_any(problem)
    assert solve_milp(problem).bound <= optimum
    capped = solve_milp(problem, below=optimum * (1 + 1e-6) if math.isfinite(optimum) else 1.0)
    assert (capped.status == "infeasible") == math.isinf(optimum)
    assert capped.bound <= optimum
    if capped.stages is not None:
        assert violations(problem, capped.stages, ordered=False) == []
        assert value_of(problem, capped.stages) <= optimum * (1 + 2e-6)


@settings(max_examples=50)
@given(SEEDS, st.sampled_from((0.5, 0.99, 1.0, 1.5)))
def test_a_cap_below_the_optimum_is_infeasible(seed: int, part: float) -> None:
    problem = random_problem(seed, nodes=5)
    optimum = brute_force_any(problem)
    if optimum in (0.0, math.inf):
        return
    result = solve_milp(problem, below=optimum * part)
    assert result.status == ("infeasible" if part < 1 else "optimal")


def test_scales_do_not_matter() -> None:
    """Microseconds or weeks, bytes or terabytes: the solver's absolute tolerances see the same numbers."""
    for seed in range(20):
        problem = random_chains(seed)
        expected = brute_force_any(problem)
        for factor in (1e-9, 1e9):
            scaled = replace(problem, seconds=problem.seconds * factor, transfer=problem.transfer * factor)
            result = solve_milp(scaled)
            if math.isinf(expected):
                assert result.status == "infeasible"
            else:
                assert result.stages is not None
                assert value_of(scaled, result.stages) == pytest.approx(expected * factor, rel=1e-6)


def test_what_the_watch_raises_stops_the_solver_and_arrives() -> None:
    """Ctrl-C while the solver runs must not be thrown through it, nor be lost."""
    problem = random_problem(3, nodes=6, demands=False)

    def watch(value: float, bound: float) -> bool:
        raise KeyboardInterrupt

    asked: list[float] = []
    solve_milp(problem, watch=lambda value, bound: not asked.append(value))
    assert asked, "this instance must last until the solver asks"
    with pytest.raises(KeyboardInterrupt):
        solve_milp(problem, watch=watch)


def test_the_watch_is_told_bounds_less_the_solvers_tolerance() -> None:
    """A bound that the solver states may be too high by its tolerance; it stands where the solver is ended by the watch."""
    told: list[float] = []
    for seed in range(12):
        found: list[float] = []

        def watch(_: float, bound: float, found: list[float] = found) -> bool:
            found.append(bound)
            return True

        result = solve_milp(random_problem(seed, nodes=6, demands=False), watch=watch)
        if math.isfinite(result.bound):
            assert max(found, default=0.0) <= result.bound
            told += [bound for bound in found if bound == result.bound]
    assert told, "some solve must be asked when its bound is the last one"


def test_heaviest_first_and_ties_by_index() -> None:
    problem = random_problem(12, nodes=6)
    least = problem.seconds.min(axis=0)
    listed = heaviest(problem)
    assert listed == sorted(listed, key=lambda v: (-least[v], v))
    assert len(listed) == min(problem.size, 4 * problem.devices)
    assert np.isfinite(least[listed]).any() or not problem.size


@given(SEEDS)
@settings(max_examples=6)
def test_two_sides_equal_brute_force(seed: int) -> None:
    problem, sides = random_sides(seed)
    expected = brute_force_sided(problem, sides)
    result = solve_milp(problem, sides=sides)
    if math.isinf(expected):
        assert result.status == "infeasible"
        return
    assert result.stages is not None
    assert sided_value(problem, result.stages, sides) == pytest.approx(expected, rel=1e-7, abs=1e-9)
    assert result.bound <= expected * (1 + 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("below", [math.inf, 0.5])
def test_a_process_apart_says_the_same(below: float) -> None:
    for problem, sides in [(random_problem(4, nodes=6, demands=False), None), random_sides(8)]:
        here = solve_milp(problem, below=below, sides=sides)
        apart = solve_apart(problem, below=below, seconds=60.0, gap=0.0, watch=lambda value, bound: True, sides=sides)
        assert apart == here


def test_a_process_apart_tells_every_value_and_bound(capsys: pytest.CaptureFixture[str]) -> None:
    """Not those alone that a clock lets through: where its starter ends it depends on them."""
    watch, known = milp_process.telling(), [(math.inf, 1.0), (math.inf, 2.0), (4.0, 2.0), (4.0, 2.0)]
    assert all(watch(value, bound) for value, bound in known)
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["value"], row["known"]) for row in rows] == known[:3]


def test_a_process_apart_ends_at_once() -> None:
    problem = encoder_decoder(6, devices=4)
    asked: list[float] = []
    result = solve_apart(
        problem, below=math.inf, seconds=600.0, gap=0.0, watch=lambda value, bound: not asked.append(bound) and len(asked) < 3
    )
    assert (result.status, result.stages) == ("undecided", None)
    assert len(asked) == 3


def test_a_process_apart_that_dies_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its death had looked like a programme that could not tell."""
    problem = random_problem(3)
    monkeypatch.setattr(milp_process, "module_command", lambda name: [sys.executable, "-c", "import sys; sys.exit(9)"])
    result = solve_apart(problem, below=math.inf, seconds=600.0, gap=0.0, watch=lambda value, bound: True)
    assert (result.status, result.stages) == ("undecided", None)
    assert "its process ended with 9" in result.fault


APART = """
import os, threading, time
from passes.reference.assignment.milp_process import solve_apart
from tests.dnnc.engines.onnxruntime.processes import children
from tests.passes.partition.instances import series_parallel
problem = series_parallel(3, nodes=800, devices=6)
given = {"below": 1e9, "seconds": 120, "gap": 0, "watch": lambda value, bound: True}
threading.Thread(target=solve_apart, args=(problem,), kwargs=given, daemon=True).start()
while not children(os.getpid()):
    time.sleep(0.01)
print(*children(os.getpid()), flush=True)
time.sleep(60)
"""


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.0, 2.0])
def test_the_other_process_ends_with_its_starter(seconds: float) -> None:
    """Killed while the other one starts, and while it is in the solver."""
    assert end_starter(["-c", APART], signal.SIGKILL, after=seconds) == 1
