"""Any split: the solver equals brute force, reductions keep the optimum, order and names play no part."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from passes.partition.lattice.objective import Budget
from passes.partition.lattice.search.throughput import solve
from passes.reference.assignment import solver as any_split
from passes.reference.assignment.reduce import reduce_any
from passes.reference.assignment.solver import solve_any
from passes.stages.load import COMM
from passes.stages.problem import Kind, Problem, plan_costs, violations
from passes.stages.reduce import quotient
from tests.passes.claims import SOLVED, Claim
from tests.passes.partition.instances import random_chains, random_problem
from tests.passes.reference.any_brute import brute_force_any, dear_transfers

SEEDS = st.integers(0, 10**6)
PATIENT = Budget(seconds=600.0)
"""So that neither a slow machine nor the first compilation decides a result; nothing here needs a second of it."""


def shuffled(problem: Problem, seed: int) -> tuple[Problem, list[int]]:
    """The problem with its nodes renumbered at random, edges against the order included; and the old number of each."""
    order = list(range(problem.size))
    random.Random(seed).shuffle(order)
    new = {old: i for i, old in enumerate(order)}
    return replace(
        problem,
        names=tuple(f"%other{i}" for i in range(problem.size)),
        seconds=problem.seconds[:, order],
        live=problem.live[order],
        producer=np.array([new[int(u)] for u in problem.producer], np.int64),
        consumers=tuple(tuple(sorted(new[v] for v in readers)) for readers in problem.consumers),
        weight_readers=tuple(tuple(sorted(new[v] for v in readers)) for readers in problem.weight_readers),
    ), order


def claimed(problem: Problem, budget: Budget = PATIENT) -> Claim:
    """What the solver says, beside brute force."""
    solution, faults = solve_any(problem, budget), list[str]()
    if solution.stages is not None:
        faults += violations(problem, solution.stages, ordered=False)
        if max((cost.load for cost in plan_costs(problem, solution.stages)), default=0.0) != solution.value:
            faults.append(f"its stages do not take {solution.value}")
    return Claim(brute_force_any(problem), solution.status, solution.value, solution.bound, faults, near=SOLVED)


@settings(max_examples=5)
@example(135, "sum")  # integers within 1e-6 of whole let the old value pass for a better one
@given(SEEDS, st.sampled_from(COMM))
def test_equals_brute_force(seed: int, comm: str) -> None:
    claimed(random_problem(seed, nodes=5, comm=comm)).check()


@pytest.mark.slow
@settings(max_examples=25)
@given(SEEDS, st.sampled_from(COMM))
def test_never_worse_than_contiguous(seed: int, comm: str) -> None:
    problem = random_problem(seed, comm=comm)
    contiguous = solve(problem)
    assert solve_any(problem, PATIENT).value <= contiguous.value * (1 + 1e-9)


@pytest.mark.slow
@settings(max_examples=15)
@given(SEEDS, SEEDS)
def test_order_and_names_play_no_part(seed: int, other: int) -> None:
    problem = random_problem(seed, nodes=5)
    renamed, _ = shuffled(problem, other)
    one, two = solve_any(problem, PATIENT), solve_any(renamed, PATIENT)
    assert one.status == two.status
    assert one.value == pytest.approx(two.value, rel=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("comm", COMM)
def test_reductions_keep_the_optimum(comm: str) -> None:
    """With the optimum as the value to reach, everything that may be left out or joined is. Many seeds: a rule that is a
    little too bold fails on few."""
    for seed in range(80):
        for problem in (dear_transfers(seed, comm), random_chains(seed, comm=comm)):
            optimum = brute_force_any(problem)
            for below in (math.inf, optimum):
                reduced = quotient(problem, reduce_any(problem, below))
                assert brute_force_any(reduced) == pytest.approx(optimum, rel=1e-9), (seed, below)


def test_a_node_joins_only_where_it_can_run() -> None:
    """The reader of a dear tensor may be the better off alone on a device that cannot run the maker."""
    base = dear_transfers(0, "sum")
    problem = replace(
        base,
        names=("%a", "%b"),
        kinds=(Kind("gpu", ("g",)), Kind("cpu", ("c",))),
        seconds=np.array([[1.0, 9.0], [math.inf, 2.0]]),
        producer=np.array([0]),
        consumers=((1,),),
        transfer=np.array([[3.0], [3.0]]),
        tensor_bytes=np.array([0]),
        tensor_names=("%t",),
        live=np.zeros(2, np.int64),
        weight_bytes=np.zeros(0, np.int64),
        weight_readers=(),
        forced=(),
    )
    assert brute_force_any(problem) == 5.0
    assert reduce_any(problem) == ((0,), (1,))
    assert solve_any(problem, PATIENT).value == 5.0


def plain(
    kinds: tuple[Kind, ...], seconds: list[list[float]], tensors: list[tuple[int, tuple[int, ...], list[float]]], **more: object
) -> Problem:
    """A problem without bytes; ``tensors``: maker, readers and the transfer on each kind."""
    n = len(seconds[0])
    base = Problem(
        names=tuple(f"%{v}" for v in range(n)),
        kinds=kinds,
        seconds=np.array(seconds),
        producer=np.array([maker for maker, _, _ in tensors]),
        consumers=tuple(readers for _, readers, _ in tensors),
        transfer=np.array([cost for _, _, cost in tensors]).T,
        tensor_bytes=np.zeros(len(tensors), np.int64),
        tensor_names=tuple(f"%t{h}" for h in range(len(tensors))),
        live=np.zeros(n, np.int64),
        weight_bytes=np.zeros(0, np.int64),
        weight_readers=(),
    )
    return replace(base, **more)  # type: ignore[arg-type]


def test_what_others_read_too_is_still_sent() -> None:
    """Both directions apart: node 1 joined to 0 would save 0 the sending of the first tensor alone, not of the second, which
    node 2 reads too, and would add the third."""
    problem = plain(
        (Kind("acc", ("a", "b", "c")),),
        [[4.0, 0.0, 4.0, 4.0]],
        [(0, (1,), [1.0]), (0, (1, 2), [4.0]), (1, (2, 3), [3.0])],
        comm="duplex",
    )
    assert brute_force_any(problem) == 5.0
    assert reduce_any(problem) == ((0,), (1,), (2,), (3,))
    assert solve_any(problem, PATIENT).value == 5.0


@pytest.mark.slow
def test_the_device_that_loses_a_node_may_have_other_rates() -> None:
    """Node 2 runs on the first kind only, where joining node 1 to it saves; the second kind would pay dearly for node 0's."""
    problem = plain(
        (Kind("gpu", ("g",)), Kind("npu", ("n",))),
        [[10.0, 0.0, 3.0], [1.0, 0.0, math.inf]],
        [(0, (1,), [0.0, 5.0]), (1, (2,), [1.0, 0.0])],
    )
    assert brute_force_any(problem) == 4.0
    assert (1, 2) not in reduce_any(problem)
    assert solve_any(problem, PATIENT).value == 4.0


def test_reductions_apply() -> None:
    """One case a rule, so that none is idle: a free reader, a source dear to send, a tensor too dear to cut."""

    def chain(seconds: tuple[float, ...], transfer: tuple[float, ...], **more: object) -> Problem:
        n = len(seconds)
        base = Problem(
            names=tuple(f"%{v}" for v in range(n)),
            kinds=(Kind("acc", ("a", "b")),),
            seconds=np.array([seconds]),
            producer=np.arange(n - 1),
            consumers=tuple((v + 1,) for v in range(n - 1)),
            transfer=np.array([transfer]),
            tensor_bytes=np.ones(n - 1, np.int64),
            tensor_names=tuple(f"%t{v}" for v in range(n - 1)),
            live=np.zeros(n, np.int64),
            weight_bytes=np.array([10] * n, np.int64),
            weight_readers=tuple((v,) for v in range(n)),
        )
        return replace(base, **more)  # type: ignore[arg-type]

    assert reduce_any(chain((4.0, 0.0, 4.0), (1.0, 1.0))) == ((0, 1), (2,))
    assert reduce_any(chain((1.0, 4.0, 4.0), (2.0, 1.0))) == ((0, 1), (2,))
    roomy, tight = ((Kind("acc", ("a", "b"), memory=most),) for most in (1000, 30))  # a limit matters where it can bind
    assert reduce_any(chain((1.0, 4.0, 4.0), (2.0, 1.0), kinds=roomy)) == ((0, 1), (2,))
    assert reduce_any(chain((1.0, 4.0, 4.0), (2.0, 1.0), kinds=tight)) == ((0,), (1,), (2,))
    assert reduce_any(chain((4.0, 4.0, 4.0), (3.0, 9.0)), below=12.0) == ((0,), (1, 2))


@settings(max_examples=8)
@given(SEEDS)
def test_classes_share_a_device_cyclic_or_not(seed: int) -> None:
    problem = random_problem(seed, nodes=6, demands=False)
    if problem.size < 4:
        return
    together = ((0, 3), (1, 2))
    optimum = brute_force_any(problem, together)
    solution = solve_any(problem, PATIENT, together=together)
    assert solution.value == pytest.approx(optimum, rel=1e-7)
    for _, nodes in solution.stages or ():
        assert all(len(set(group) & set(nodes)) in (0, len(group)) for group in together)


def test_overlapping_classes_are_refused() -> None:
    with pytest.raises(ValueError, match="overlap"):
        solve_any(random_problem(5, nodes=6), together=((0, 1), (1, 2)))


def test_a_known_plan_is_a_start() -> None:
    """With no time left for anything else the answer is the plan that was given."""
    problem = random_problem(21, demands=False, memory=False)
    plan = solve(problem).stages
    assert plan is not None
    solution = solve_any(problem, Budget(seconds=0.0), starts=(plan,))
    assert solution.value <= max(cost.load for cost in plan_costs(problem, plan))


def test_an_interrupt_returns_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_chains(12)

    def progress(label: str, fraction: float | None) -> None:
        if label == "partition: local search":
            raise KeyboardInterrupt

    solution = solve_any(problem, progress=progress)
    assert solution.stages is not None
    assert solution.bound <= brute_force_any(problem) <= solution.value * (1 + 1e-9)
    # The annealing beside the search may be the first to find a plan, and then there is one to return.
    monkeypatch.setattr(any_split._Search, "_anneal", lambda self, seconds: None)
    with pytest.raises(KeyboardInterrupt):
        solve_any(problem, progress=_at_once)


def _at_once(label: str, fraction: float | None) -> None:
    raise KeyboardInterrupt
