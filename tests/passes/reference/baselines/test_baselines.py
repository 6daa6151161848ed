"""Baselines: whatever they choose is judged by the definition, fits where it says so, and is never below what is possible."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.reference.baselines import BASELINES, LOOSE, Case, Limits, NoPlan, Plan, expert, judge, throughput_case
from passes.reference.baselines.pipedream_style import contracted
from passes.stages.problem import Kind, Problem, plan_costs, violations
from tests.passes.partition.instances import brute_force, random_chains, random_problem
from tests.passes.reference.any_brute import brute_force_any

SEEDS = st.integers(0, 10**6)
QUICK = Limits(seconds=0.01)


def case_of(problem: Problem) -> Case:
    """Every node by itself."""
    return throughput_case(problem, tuple((v,) for v in range(problem.size)), ())


def plans(case: Case, names: Iterable[str] = tuple(BASELINES)) -> Iterable[tuple[str, Plan]]:
    for name in names:
        try:
            yield name, judge(case, BASELINES[name](case, QUICK))
        except NoPlan:
            continue


def chain(seconds: list[float], cost: float = 0.5, devices: int = 2, memory: int | None = None) -> Problem:
    """Nodes one after another, 10 bytes each, on one kind of device."""
    n = len(seconds)
    return Problem(
        names=tuple(f"%n{v}" for v in range(n)),
        kinds=(Kind("acc", tuple(f"d{i}" for i in range(devices)), memory),),
        seconds=np.array([seconds]).reshape(1, n),
        producer=np.arange(n - 1),
        consumers=tuple((v + 1,) for v in range(n - 1)),
        transfer=np.full((1, max(n - 1, 0)), cost),
        tensor_bytes=np.zeros(max(n - 1, 0), np.int64),
        tensor_names=tuple(f"%t{v}" for v in range(n - 1)),
        live=np.zeros(n, np.int64),
        weight_bytes=np.full(n, 10, np.int64),
        weight_readers=tuple((v,) for v in range(n)),
    )


@pytest.mark.parametrize("make", [random_problem, random_chains])
@given(seed=SEEDS)
@settings(max_examples=12)
def test_no_plan_is_better_than_possible_and_its_bound_is_none_too_high(make: Callable[..., Problem], seed: int) -> None:
    problem = make(seed) if make is random_chains else make(seed, demands=False)
    problem = replace(problem, forced=(), stages=None)
    best, best_any = brute_force(problem), brute_force_any(problem)
    for name, plan in plans(case_of(problem)):
        stages = [(load.kind, load.nodes) for load in plan.stages]
        broken = violations(problem, stages, ordered=plan.contiguous)
        assert bool(broken) == bool(plan.faults), (name, broken, plan.faults)
        assert plan.value == pytest.approx(max((cost.load for cost in plan_costs(problem, stages)), default=0.0), rel=1e-12)
        least = best if plan.contiguous else best_any
        assert plan.bound <= plan.value * (1 + 1e-12)
        if not plan.faults:
            assert plan.value >= least * (1 - 1e-9), name
            assert plan.bound <= least * (1 + 1e-9), name


@given(seed=SEEDS)
@settings(max_examples=10)
def test_what_is_called_contiguous_has_an_order_and_what_is_not_has_none(seed: int) -> None:
    problem = random_problem(seed, memory=False, demands=False)
    for name, plan in plans(case_of(problem)):
        home = {v: s for s, load in enumerate(plan.stages) for v in load.nodes}
        steps = {
            (home[int(u)], home[v])
            for u, readers in zip(problem.producer, problem.consumers, strict=True)
            for v in readers
            if home[int(u)] != home[v]
        }
        left = set(range(len(plan.stages)))
        while free := {s for s in left if not any(a in left and b == s for a, b in steps)}:
            left -= free
        assert plan.contiguous == (not left), name
        assert plan.contiguous or name in LOOSE, name


@given(seed=SEEDS)
@settings(max_examples=20)
def test_the_chain_is_solved_exactly(seed: int) -> None:
    """On a path there is one order and nothing to contract, so both chains are the optimum."""
    values = np.random.default_rng(seed).choice([0.5, 1.0, 2.0, 4.0], size=7)
    problem = chain([float(x) for x in values], cost=0.25, devices=3, memory=40)
    chains = ("topological", "pipedream-style")
    found = dict(plans(case_of(problem), chains))
    best = brute_force(problem)
    assert ("topological" in found) == math.isfinite(best)
    for name in chains:
        if name in found:
            assert found[name].value == pytest.approx(best, rel=1e-9)


def test_one_device_takes_the_fastest_that_holds_everything() -> None:
    problem = chain([1.0, 2.0, 3.0], memory=20)
    slow = Kind("cpu", ("cpu0",))
    two = replace(
        problem,
        kinds=(*problem.kinds, slow),
        seconds=np.vstack([problem.seconds, 10 * problem.seconds]),
        transfer=np.vstack([problem.transfer, 0 * problem.transfer]),
    )
    case = case_of(two)
    plan = judge(case, BASELINES["one-device"](case, QUICK))
    assert (plan.value, plan.stages[0].kind, plan.fits) == (60.0, 1, True)
    alone = case_of(problem)
    plan = judge(alone, BASELINES["one-device"](alone, QUICK))
    assert not plan.fits
    assert plan.faults == ("stage 0 needs 30 bytes, its acc has 20",)


def test_greedy_fills_to_balance_and_to_memory() -> None:
    case = case_of(chain([1.0] * 6, devices=3))
    plan = judge(case, BASELINES["greedy"](case, QUICK))
    assert [load.nodes for load in plan.stages] == [(0, 1), (2, 3), (4, 5)]
    case = case_of(chain([3.0, 1.0, 1.0, 1.0], devices=2, memory=20))
    plan = judge(case, BASELINES["greedy"](case, QUICK))
    assert [load.nodes for load in plan.stages] == [(0, 1), (2, 3)]
    assert plan.fits


def test_greedy_goes_on_where_a_node_cannot_run() -> None:
    problem = chain([1.0, 1.0, 1.0, 1.0], devices=2)
    seconds = np.vstack([problem.seconds, np.full((1, 4), 5.0)])
    seconds[0, 1] = np.inf
    kinds = (*problem.kinds, Kind("cpu", ("cpu0",)))
    two = replace(problem, kinds=kinds, seconds=seconds, transfer=np.zeros((2, 3)))
    case = case_of(two)
    plan = judge(case, BASELINES["greedy"](case, QUICK))
    assert [(load.kind, load.nodes) for load in plan.stages] == [(0, (0,)), (1, (1,)), (0, (2, 3))]


def test_branches_between_articulation_points_become_one() -> None:
    """0 -> {1, 2} -> 3 -> 4, and a mask 5 that all read: the diamond joins but for its end, the mask joins nothing."""
    edges = [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4)]
    readers = {u: tuple(v + 1 for a, v in edges if a == u) for u in range(4)}
    problem = chain([0.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    mask_and_rest = replace(
        problem,
        producer=np.array([0, *(u + 1 for u in readers)]),
        consumers=((1, 2, 3, 4, 5), *readers.values()),
        transfer=np.zeros((1, 5)),
        tensor_bytes=np.zeros(5, np.int64),
        tensor_names=tuple(f"%t{h}" for h in range(5)),
    )
    assert contracted(mask_and_rest) == [[0], [1, 2, 3], [4], [5]]


@given(seed=SEEDS)
@settings(max_examples=25)
def test_no_component_is_cut(seed: int) -> None:
    problem = random_problem(seed, nodes=7, memory=False, demands=False)
    case = case_of(problem)
    plan = dict(plans(case, ("pipedream-style",))).get("pipedream-style")
    if plan is not None:
        home = {v: s for s, load in enumerate(plan.stages) for v in load.nodes}
        for group in contracted(problem):
            assert len({home[v] for v in group}) == 1


def test_metis_balances_and_says_when_memory_is_short() -> None:
    pytest.importorskip("pymetis", reason="METIS has no wheel here")
    case = case_of(chain([1.0] * 8, devices=2))
    plan = judge(case, BASELINES["metis"](case, QUICK))
    assert sorted(len(load.nodes) for load in plan.stages) == [4, 4]
    assert plan.value == pytest.approx(4.5)
    tight = case_of(chain([1.0, 1.0, 1.0, 9.0], devices=2, memory=20))
    plan = judge(tight, BASELINES["metis"](tight, QUICK))
    assert not plan.fits
    tiny = case_of(chain([1e-320, 1e-320], devices=2))  # their share of the sum is a number, one over the sum is not
    assert judge(tiny, BASELINES["metis"](tiny, QUICK)).fits


@pytest.mark.parametrize("seconds", [[0.0], [2.0], [0.0, 0.0, 0.0]])
def test_one_node_and_no_seconds(seconds: list[float]) -> None:
    """Every baseline has a plan, and it is worth what its nodes are."""
    found = dict(plans(case_of(chain(seconds, cost=0.0))))
    assert set(found) | {"metis"} == set(BASELINES)  # METIS has no wheel for every platform
    assert {plan.value for plan in found.values()} == {sum(seconds)}


def test_a_node_that_runs_nowhere_leaves_every_baseline_without_a_plan() -> None:
    case = case_of(chain([1.0, math.inf]))
    assert not dict(plans(case))


def test_colours_stay_together() -> None:
    problem = chain([1.0, 1.0, 1.0, 1.0])
    case = throughput_case(problem, ((0, 1, 2), (3,)), ((0, 2),))
    for name, plan in plans(case):
        home = {v: s for s, load in enumerate(plan.stages) for v in load.nodes}
        assert home[0] == home[2], name
    with pytest.raises(NoPlan, match="colour"):
        judge(case, ((0, (0, 1)), (0, (2, 3))))


def test_an_expert_may_leave_out_what_colours_tell() -> None:
    problem = chain([1.0, 1.0, 1.0])
    case = throughput_case(problem, ((0, 1, 2),), ((0, 2),))
    assert expert(case, ((0, (0,)), (0, (1,))), problem.names) == ((0, (0, 2)), (0, (1,)))
    assert not judge(case, expert(case, ((0, (0,)), (0, (1,))), problem.names)).contiguous
    with pytest.raises(NoPlan, match="%n1"):
        expert(case, ((0, (0,)),), problem.names)


def test_too_many_devices_are_a_fault() -> None:
    case = case_of(chain([1.0, 1.0, 1.0], devices=2))
    plan = judge(case, ((0, (0,)), (0, (1,)), (0, (2,))))
    assert plan.faults == ("it uses 3 devices of kind acc, there are 2",)
    assert plan.fits
