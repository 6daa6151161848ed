"""The solver's answer is the optimum: against brute force, under renaming, with every window."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.partition.lattice.objective import Budget
from passes.partition.lattice.search.throughput import solve
from passes.stages.bounds import best_bound, lower_bound, node_weights, prices
from passes.stages.lattice.dp import solve_family
from passes.stages.lattice.ideals import BIG, lattice
from passes.stages.lattice.tables import Tables
from passes.stages.load import COMM
from passes.stages.problem import Kind, Problem, plan_costs, violations
from passes.stages.reduce import _Reducer, permuted, quotient, reduce
from tests.passes.claims import Claim
from tests.passes.partition.instances import brute_force, ideals, random_chains, random_problem


def claimed(problem: Problem, budget: Budget | None = None) -> Claim:
    """What the solver says, beside brute force."""
    solution, faults = solve(problem, budget), list[str]()
    if solution.stages is not None:
        faults += violations(problem, solution.stages)
        if max((cost.load for cost in plan_costs(problem, solution.stages)), default=0.0) != pytest.approx(
            solution.value, rel=1e-9
        ):
            faults.append(f"its stages do not take {solution.value}")
    return Claim(brute_force(problem), solution.status, solution.value, solution.bound, faults)


def check(problem: Problem) -> None:
    claimed(problem).check()


@pytest.mark.parametrize("comm", COMM)
@pytest.mark.parametrize("block", range(3))
def test_optimum_equals_brute_force(comm: str, block: int) -> None:
    """90 seeded problems with unequal devices, limits, demanded cuts and stages, in each way of adding up transfers."""
    for seed in range(10 * block, 10 * block + 10):
        check(random_problem(seed, comm=comm, handover=seed % 3 == 0))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(COMM), st.booleans())
def test_optimum_equals_brute_force_anywhere(seed: int, comm: str, memory: bool) -> None:
    check(random_problem(seed, nodes=7, comm=comm, memory=memory, handover=seed % 2 == 0))


def test_bound_of_any_prices_holds() -> None:
    """Whatever the prices, w(V) over the prices of the devices used is no more than the optimum."""
    for seed in range(60):
        problem = random_problem(seed, nodes=5)
        best = brute_force(problem)
        price = prices(problem)
        assert price @ [kind.count for kind in problem.kinds] == pytest.approx(1.0)
        assert best_bound(problem, price)[0] <= best * (1 + 1e-9)
        rng = random.Random(seed)
        other = np.array([rng.random() for _ in problem.kinds])
        assert best_bound(problem, other)[0] <= best * (1 + 1e-9)
        assert (node_weights(problem, other) <= other.max() * problem.seconds.min(axis=0, initial=math.inf) + 1e-12).all()


def test_prices_reach_the_bound_of_unequal_kinds() -> None:
    """One device twice as fast as the other: 9 equal nodes cannot be done in less than 6 + 3 shares."""
    problem = replace(
        random_problem(0, nodes=1, demands=False),
        names=tuple("abcdefghi"),
        kinds=(Kind("fast", ("f",)), Kind("slow", ("s",))),
        seconds=np.array([[1.0] * 9, [2.0] * 9]),
        producer=np.zeros(0, np.int64),
        consumers=(),
        transfer=np.zeros((2, 0)),
        tensor_bytes=np.zeros(0, np.int64),
        tensor_names=(),
        live=np.zeros(9, np.int64),
        weight_bytes=np.zeros(0, np.int64),
        weight_readers=(),
    )
    assert lower_bound(problem, prices(problem))[0] == pytest.approx(6.0, rel=1e-3)
    assert solve(problem).value == 6.0


@pytest.mark.parametrize("comm", COMM)
def test_numbers_that_mean_never_drown_no_others(comm: str) -> None:
    """Nodes and transfers that take far longer on some kinds: sums over ideals would lose the rest beside them."""
    for seed in range(25):
        problem = random_problem(seed, comm=comm, memory=seed % 2 == 0, demands=False)
        rng = np.random.default_rng(seed)
        seconds = rng.choice((1.0, 1.0, 3.0, 1e17, 1e18), problem.seconds.shape)
        check(replace(problem, seconds=seconds, transfer=rng.choice((0.0, 1.0, 0.2, 1e18), problem.transfer.shape)))


def test_windows_never_lose_the_optimum() -> None:
    """With the optimum itself as the trial value, the windows still hold it; just below, nothing is left."""
    for seed in range(60):
        problem = random_problem(seed, memory=False)
        best = brute_force(problem)
        if math.isinf(best) or best == 0:
            continue
        tables = Tables(problem, prices(problem))
        within = lattice(tables, best)
        assert within is not None
        assert solve_family(tables, within, best).value == pytest.approx(best, rel=1e-9)
        below = lattice(tables, best * (1 - 1e-6))
        assert below is not None
        assert solve_family(tables, below, best * (1 - 1e-6)).stages is None


def test_answer_ignores_order_and_names() -> None:
    for seed in range(35):
        problem = random_problem(seed)
        rng = random.Random(seed)
        following: dict[int, set[int]] = {}
        for u, readers in zip(problem.producer, problem.consumers, strict=True):
            following.setdefault(int(u), set()).update(readers)
        missing = {v: sum(v in f for f in following.values()) for v in range(problem.size)}
        order: list[int] = []
        while missing:
            v = rng.choice([v for v, count in missing.items() if not count])
            order.append(v)
            del missing[v]
            for w in following.get(v, ()):
                missing[w] -= 1
        other = replace(permuted(problem, order), names=tuple(f"%other{v}" for v in order))
        assert solve(other).value == pytest.approx(solve(problem).value, rel=1e-12)


@pytest.mark.slow
def test_reductions_keep_the_optimum() -> None:
    """Also with limits that bind, cuts and kinds that cannot run a node; and they do reduce something."""
    smaller = 0
    for comm in COMM:
        for seed in range(200):
            if seed % 4 == 0:
                problem = random_problem(seed, nodes=6, comm=comm, memory=seed % 8 == 0)
            else:
                problem = random_chains(seed, comm=comm)
            groups = reduce(problem)
            reduced = quotient(problem, groups)
            reduced.check()
            smaller += reduced.size < problem.size
            assert brute_force(reduced) == pytest.approx(brute_force(problem), rel=1e-12)
    assert smaller > 150


def test_a_node_joins_no_reader_that_its_larger_inputs_would_overflow() -> None:
    """The middle node shrinks a tensor and costs nothing. With its reader, six bytes would wait in two slots where one byte
    does now, and the stage would not fit; with its maker all is well."""
    problem = replace(
        random_problem(0, nodes=1, demands=False),
        names=("%u", "%v", "%z"),
        kinds=(Kind("d", ("d0", "d1"), 13),),
        seconds=np.array([[1.0, 0.0, 1.0]]),
        producer=np.array([0, 1], np.int64),
        consumers=((1,), (2,)),
        transfer=np.zeros((1, 2)),
        tensor_bytes=np.array([6, 1], np.int64),
        tensor_names=("%u", "%v"),
        live=np.zeros(3, np.int64),
        weight_bytes=np.array([10, 10], np.int64),
        weight_readers=((0,), (2,)),
    )
    assert reduce(problem) == ((0, 1), (2,))
    assert brute_force(quotient(problem, reduce(problem))) == brute_force(problem) == 1.0


def test_small_budget_gives_a_plan_with_a_valid_bound() -> None:
    """When the lattice may not be walked, the plan is feasible and the bound holds."""
    for seed in range(15):
        problem = random_problem(seed, nodes=7, demands=False)
        best = brute_force(problem)
        solution = solve(problem, Budget(ideals=9, seconds=0.5))
        if solution.stages is None:
            assert solution.status == "undecided" or math.isinf(best)
            continue
        assert violations(problem, solution.stages) == []
        assert solution.value >= best * (1 - 1e-9)
        assert solution.bound <= best * (1 + 1e-9)
        assert (solution.status == "optimal") == (solution.value <= solution.bound * (1 + 1e-9) or solution.value == 0)


def test_band_of_an_order_holds_what_it_says() -> None:
    """The family of a band is exactly the downsets that hold no node while one more than ``band`` places before is out."""
    for seed in range(40):
        problem = random_problem(seed, nodes=7, memory=False, demands=False)
        problem = replace(problem, kinds=tuple(replace(kind, devices=("a", "b")) for kind in problem.kinds))
        tables = Tables(problem, prices(problem))
        every = ideals(problem)
        for band in (0, 1, 2, 7):
            found = lattice(tables, BIG, band=band)
            assert found is not None
            wanted = [s for s in every if not s or max(s) - min(set(range(problem.size + 1)) - s, default=problem.size) <= band]
            assert found.size == len(wanted)


def many_kinds(kinds: int, nodes: int = 14, **changes: object) -> Problem:
    """A chain with one side branch on devices that all differ."""
    rng = random.Random(kinds)
    base = random_problem(0, nodes=1, demands=False)
    edges = [(v, v + 1) for v in range(nodes - 1)]
    problem = replace(
        base,
        names=tuple(f"%{v}" for v in range(nodes)),
        kinds=tuple(Kind(f"kind{k}", (f"d{k}",)) for k in range(kinds)),
        seconds=np.array([[(1 + k / 10) * (1 + rng.random()) for _ in range(nodes)] for k in range(kinds)]),
        producer=np.array([u for u, _ in edges], np.int64),
        consumers=tuple((v,) for _, v in edges),
        transfer=np.full((kinds, len(edges)), 0.05),
        tensor_bytes=np.ones(len(edges), np.int64),
        tensor_names=tuple(f"%t{u}" for u, _ in edges),
        live=np.zeros(nodes, np.int64),
        weight_bytes=np.zeros(0, np.int64),
        weight_readers=(),
    )
    return replace(problem, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("stages", [None, 5])
def test_many_different_devices_need_no_vector_of_each(stages: int | None) -> None:
    """2 ** 20 vectors of devices are not carried along: a plan and a bound all the same."""
    problem = many_kinds(20, stages=stages)
    solution = solve(problem)
    assert solution.stages is not None
    assert violations(problem, solution.stages) == []
    assert 0 < solution.bound <= solution.value
    assert stages is None or len(solution.stages) == stages


def test_sequences_of_devices_are_honest(monkeypatch: pytest.MonkeyPatch) -> None:
    """On small problems: never below brute force, feasible, and infeasible is never claimed; one stage needs no sequence."""
    monkeypatch.setattr("passes.stages.lattice.states.MOST_STATES", 0)
    reached = 0
    for seed in range(50):
        problem = random_problem(seed)
        best = brute_force(problem)
        solution = solve(problem)
        assert solution.status != "infeasible" or (problem.stages == 1 and math.isinf(best))
        if solution.stages is not None:
            assert violations(problem, solution.stages) == []
            assert solution.bound <= best * (1 + 1e-9) <= solution.value * (1 + 1e-8)
            reached += solution.value <= best * (1 + 1e-9)
    assert reached > 25


def test_among_the_best_one_that_moves_least() -> None:
    """The middle node is free to go either way; its tensors are not."""
    base = many_kinds(1, nodes=3)
    problem = replace(
        base,
        kinds=(Kind("d", ("d0", "d1", "d2")),),
        seconds=np.array([[4.0, 1.0, 4.0]]),
        producer=np.array([0, 1], np.int64),
        consumers=((1,), (2,)),
        transfer=np.array([[0.5, 0.1]]),
    )
    solution = solve(replace(problem, comm="overlap"))
    assert solution.value == brute_force(replace(problem, comm="overlap"))
    dear = replace(problem, seconds=np.array([[4.0, 0.0, 6.0]]), transfer=np.array([[0.4, 0.1]]))
    solution = solve(dear)
    assert solution.value == pytest.approx(6.1)
    assert solution.stages == ((0, (0, 1)), (0, (2,)))


def test_a_hub_is_reduced_in_steps_that_grow_with_its_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes without compute between a hub and a sink: those around one are looked at again, not all."""
    size = 302
    middle = tuple(range(1, size - 1))
    problem = replace(
        random_problem(0, nodes=1, demands=False),
        names=tuple(f"%v{v}" for v in range(size)),
        kinds=(Kind("d", ("d0", "d1"), None),),
        seconds=np.array([[9.0, *(0.0 for _ in middle), 900.0]]),
        producer=np.arange(size - 1),
        consumers=(middle, *((size - 1,) for _ in middle)),
        transfer=np.ones((1, size - 1)),
        tensor_bytes=np.ones(size - 1, np.int64),
        tensor_names=tuple(f"%v{v}" for v in range(size - 1)),
        live=np.zeros(size, np.int64),
        weight_bytes=np.zeros(0, np.int64),
        weight_readers=(),
    )
    looked = 0
    join = _Reducer._join

    def counted(self: _Reducer, v: int, target: int) -> set[int]:
        nonlocal looked
        changed = join(self, v, target)
        looked += len(changed)
        return changed

    monkeypatch.setattr(_Reducer, "_join", counted)
    assert reduce(problem) == ((0,), tuple(range(1, size)))
    assert looked <= 4 * size
