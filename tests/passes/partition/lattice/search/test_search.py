"""What makes the search fast, each piece against the definition: windows with transfers, bounds between stages, orders, prices,
reach; and what it does when it is stopped."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.partition.lattice.objective import Budget
from passes.partition.lattice.search import search as search_module
from passes.partition.lattice.search.search import Search
from passes.partition.lattice.search.throughput import Throughput, solve
from passes.reference.pipedream import kernels as pipedream_kernels
from passes.reference.training import Training, TrainingGraph, solve_training, training_load, units
from passes.stages.bounds import node_weights, prices
from passes.stages.lattice import orders
from passes.stages.lattice.dp import solve_family
from passes.stages.lattice.ideals import BIG, lattice, members, possible, prefixes
from passes.stages.lattice.tables import Tables
from passes.stages.load import COMM
from passes.stages.problem import Floats, Kind, Problem, plan_costs, stage_cost, violations
from passes.stages.reduce import quotient
from tests.passes.partition.instances import blocks, encoder_decoder, ideals, random_chains, random_problem
from tests.passes.reference.training.test_training import random_graph


def random_plan(problem: Problem, rng: random.Random) -> list[tuple[int, tuple[int, ...]]]:
    """Stages between random nested ideals, on kinds of which there are enough; kinds may be unable to run their nodes."""
    devices = [k for k, kind in enumerate(problem.kinds) for _ in range(kind.count)]
    chain = [frozenset[int]()]
    for wider in sorted(ideals(problem), key=lambda s: (len(s), sorted(s))):
        if wider > chain[-1] and len(chain) < len(devices) and rng.random() < 0.3:
            chain.append(wider)
    if len(chain[-1]) < problem.size:
        chain.append(frozenset(range(problem.size)))
    kinds = rng.sample(devices, len(chain) - 1) if len(chain) - 1 <= len(devices) else devices
    return [(kind, tuple(sorted(b - a))) for kind, (a, b) in zip(kinds, itertools.pairwise(chain), strict=False)]


def held_states(tables: Tables, plan: list[tuple[int, tuple[int, ...]]], trial: float) -> bool:
    """Whether every boundary of the plan is in the lattice at ``trial``, and allowed in the state that the plan has there."""
    family = lattice(tables, trial)
    assert family is not None
    place = {members(tables, row): i for i, row in enumerate(family.bits)}
    allowed = possible(tables, family, trial)
    inside: set[int] = set()
    state = 0
    for kind, nodes in plan:
        inside |= set(nodes)
        state = int(tables.states.next[state, kind])
        if state < 0 or tuple(sorted(inside)) not in place or not allowed[place[tuple(sorted(inside))], state]:
            return False
    return True


@settings(max_examples=75, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(COMM), st.booleans())
def test_windows_with_transfers_hold_every_plan(seed: int, comm: str, memory: bool) -> None:
    """Any plan of load T that fits has its boundaries in the windows of T, in its states, whatever the prices."""
    rng = random.Random(seed)
    problem = random_problem(seed, nodes=7, comm=comm, memory=memory, demands=False)
    plan = random_plan(problem, rng)
    trial = max((cost.load for cost in plan_costs(problem, plan)), default=0.0)
    if violations(problem, plan):
        return
    for price in (prices(problem), np.array([0.01 + rng.random() for _ in problem.kinds])):
        assert held_states(Tables(problem, price), plan, trial)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["sum", "split"]))
def test_windows_with_transfers_hold_every_training_plan(seed: int, objective: str) -> None:
    training, _ = units(random_graph(random.Random(seed), 5))
    search = Training(training, objective)
    plan = random_plan(search.problem, random.Random(seed))
    if violations(training, plan):
        return
    loads = [training_load(training, kind, nodes) for kind, nodes in plan]
    trial = max((load.forward + load.backward for load in loads), default=0.0)
    assert held_states(Tables(search.problem, search.price), plan, trial)


@pytest.mark.parametrize("seed", range(16))
def test_a_stage_bounds_those_it_is_nested_with(seed: int) -> None:
    """load(I - J) >= load(I - J') + p(J' - J) + B(J) - B(J'), the same from inside, and p + the difference of the cuts."""
    problem = replace(random_problem(seed, nodes=6, demands=False), comm="sum")
    problem = replace(problem, seconds=np.where(np.isfinite(problem.seconds), problem.seconds, 1.0))
    everything = frozenset(range(problem.size))
    every = ideals(problem)

    def load(inner: frozenset[int], outer: frozenset[int]) -> float:
        return stage_cost(problem, outer - inner, 0).load

    def cut(ideal: frozenset[int]) -> float:
        return stage_cost(problem, ideal, 0).send

    def compute(nodes: frozenset[int]) -> float:
        return float(problem.seconds[0, sorted(nodes)].sum())

    assert cut(everything) == 0
    for first, middle, last in itertools.product(every, repeat=3):
        if not first <= middle <= last:
            continue
        whole = load(first, last) + 1e-9
        assert whole >= compute(last - first) + abs(cut(last) - cut(first))
        assert whole >= load(middle, last) + compute(middle - first) + cut(first) - cut(middle)
        assert whole >= load(first, middle) + compute(last - middle) + cut(last) - cut(middle)


@pytest.mark.parametrize("seed", range(8))
def test_full_pair_costs_are_the_definition(seed: int) -> None:
    """On two devices the programme's value is the best of all plans of two stages, by any way to add up."""
    for comm in COMM:
        problem = random_problem(seed, nodes=7, comm=comm, memory=False, demands=False)
        problem = replace(problem, kinds=(Kind("d", ("a", "b")),), seconds=problem.seconds[:1], transfer=problem.transfer[:1])
        tables = Tables(problem, np.array([0.5]))
        family = lattice(tables, BIG)
        assert family is not None
        everything = frozenset(range(problem.size))
        values = [
            max(cost.load for cost in plan_costs(problem, [(0, sorted(s)) for s in (inner, everything - inner) if s]))
            for inner in ideals(problem)
        ]
        found = solve_family(tables, family, BIG)
        best = min(values)
        assert found.value == (pytest.approx(best) if math.isfinite(best) else math.inf)


def test_orders_are_topological_and_what_they_say() -> None:
    for seed in range(60):
        problem = random_chains(seed) if seed % 2 else random_problem(seed, nodes=9, demands=False)
        tables = Tables(problem, prices(problem))
        for make in (orders.given, orders.late, orders.thin):
            order = make(tables)
            place = {v: i for i, v in enumerate(order)}
            assert sorted(order) == list(range(problem.size))
            for maker, readers in zip(problem.producer.tolist(), problem.consumers, strict=True):
                assert all(place[maker] < place[v] for v in readers)
            family = prefixes(tables, order, BIG)
            wanted = {tuple(sorted(order[:i])) for i in range(problem.size + 1)}
            assert {members(tables, row) for row in family.bits} <= wanted
        cost = tables.transfer.max(axis=0)
        cost = cost if cost.any() else tables.tensor_bytes
        done: set[int] = set()
        for v in orders.thin(tables):
            ready = [u for u in range(problem.size) if u not in done and _before(problem, u) <= done]
            least = min(_cut(problem, cost, done | {u}) for u in ready)
            assert _cut(problem, cost, done | {v}) <= least + 1e-9
            done.add(v)


def _cut(problem: Problem, cost: Floats, inside: set[int]) -> float:
    return sum(
        float(cost[h])
        for h, readers in enumerate(problem.consumers)
        if int(problem.producer[h]) in inside and not inside.issuperset(readers)
    )


def _before(problem: Problem, v: int) -> set[int]:
    return {int(u) for u, readers in zip(problem.producer, problem.consumers, strict=True) if v in readers}


def test_prices_of_two_kinds_are_the_best() -> None:
    """Against a fine grid of shares; also where a kind cannot run a node."""
    for seed in range(120):
        problem = random_problem(seed, nodes=8)
        if len(problem.kinds) != 2:
            continue
        counts = np.array([kind.count for kind in problem.kinds])
        grid = [np.array([x, 1 - x]) / counts for x in np.linspace(1e-6, 1 - 1e-6, 300)]
        best = max(float(node_weights(problem, price).sum()) for price in grid)
        assert float(node_weights(problem, prices(problem)).sum()) >= best * (1 - 1e-6)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 7), st.integers(1, 7), st.floats(0.5, 8.0))
def test_reach_is_the_recursion(seed: int, machines: int, most: int, trial: float) -> None:
    """The compiled loop against the recursion over all ideals and numbers of replicas."""
    rng = random.Random(seed)
    most = min(most, machines)
    seconds = np.array(sorted([0.0, *(rng.uniform(0, 12) for _ in range(6)), 12.0]))
    moved = np.array([0.0, *(rng.uniform(0, 4 * trial) for _ in range(6)), 0.0])
    low, high = np.empty(machines + 1), np.empty(machines + 1)
    pipedream_kernels.reach(trial, 1e-11, most, seconds, moved, low, high)
    least, largest = {0: 12.0}, {machines: 0.0}
    for m in range(1, machines + 1):
        opened = [s for s, c in zip(seconds, moved, strict=True) if c <= trial * min(most, m) * (1 + 1e-11)]
        steps = range(1, min(most, m) + 1)
        least[m] = min([least[m - 1], *(min(s for s in opened if s >= least[m - r] - r * trial - 1e-9) for r in steps)])
    for m in range(machines - 1, 0, -1):
        opened = [s for s, c in zip(seconds, moved, strict=True) if c <= trial * min(most, m) * (1 + 1e-11)]
        steps = range(1, min(most, machines - m) + 1)
        largest[m] = max([largest[m + 1], *(max(s for s in opened if s <= largest[m + r] + r * trial + 1e-9) for r in steps)])
    assert low.tolist() == pytest.approx([least[m] for m in range(machines + 1)])
    assert high[1:].tolist() == pytest.approx([largest[m] for m in range(1, machines + 1)])


@pytest.mark.parametrize("calls", [2, 3, 4])
def test_an_interrupt_keeps_the_plan_and_its_bound(calls: int) -> None:
    problem = encoder_decoder(12)
    count = 0

    def progress(label: str, fraction: float | None) -> None:
        nonlocal count
        count += 1
        if count == calls:
            raise KeyboardInterrupt

    solution = solve(problem, Budget(ideals=20_000), progress)
    assert solution.interrupted
    assert solution.stages is not None
    assert violations(problem, solution.stages) == []
    assert 0 < solution.bound <= solution.value


def test_an_interrupt_before_there_is_a_plan_is_passed_on() -> None:
    def progress(label: str, fraction: float | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Search(Throughput(blocks(2, 2)), Budget(), progress).run()


def test_once_the_time_is_over_nothing_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a plan and a bound; what only seconds of work would better is left alone."""
    begun = []
    for name in ("CutPlans", "contraction_bounds", "IntervalBounds", "part_bound"):
        called = getattr(search_module, name)

        def watched(*args: Any, name: str = name, called: Callable[..., Any] = called) -> Any:
            begun.append(name)
            return called(*args)

        monkeypatch.setattr(search_module, name, watched)
    problem = blocks(6, 4)
    found = Search(Throughput(problem), Budget(ideals=100, seconds=0.0), lambda label, fraction: None).run()
    assert found.stages is not None
    assert 0.0 < found.bound <= found.value
    assert begun == []
    Search(Throughput(problem), Budget(ideals=100), lambda label, fraction: None).run()
    assert begun


def mated_chains(seed: int, count: int, length: int) -> TrainingGraph:
    """So many chains between a source and a sink, each node with a backward mate of its colour; no two alike."""
    rng = random.Random(seed)
    n = 2 + count * length
    edges = []
    for c in range(count):
        chain = [0, *range(1 + c * length, 1 + (c + 1) * length), n - 1]
        edges += list(itertools.pairwise(chain))
    work = [rng.uniform(1, 3) for _ in range(n)]
    return TrainingGraph(
        names=tuple(f"n{v}" for v in range(2 * n)),
        kinds=(Kind("d", ("a", "b", "c")),),
        seconds=np.array([[*work, *(2 * w for w in work)]]),
        size=np.zeros(2 * n, np.int64),
        backward=np.arange(2 * n) >= n,
        colour=tuple(range(n)) * 2,
        transfer=np.array([[rng.uniform(0, 0.4) for _ in range(2 * n)]]),
        edges=tuple(edges + [(n + v, n + u) for u, v in edges]),
    )


@pytest.mark.parametrize("objective", ["sum", "split"])
def test_large_training_lattices_are_searched_in_bands(objective: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over budget, training falls back to bands as inference does (here with nothing that would prove the
    plan before): the plan is feasible and good, the bound holds."""
    phases: set[str] = set()
    for seed in range(2):
        graph = mated_chains(seed, 4, 5)
        best = solve_training(graph, objective)
        with monkeypatch.context() as patch:
            patch.setattr(Search, "_raise", lambda self: None)
            small = solve_training(graph, objective, Budget(ideals=100))
        assert best.status == "optimal"
        assert small.stages is not None
        assert small.bound <= best.value * (1 + 1e-9) <= small.value * (1 + 2e-9)
        assert small.value <= best.value * 1.2
        phases |= small.statistics.seconds.keys()
    assert "band" in phases


def test_tensors_without_direction_follow_their_groups() -> None:
    """The quotient of a training problem by segments prices its plans as the problem itself does."""
    for seed in range(60):
        training, _ = units(random_graph(random.Random(seed), 6))
        search = Training(training, "sum")
        n = training.size
        groups = tuple(tuple(range(a, min(a + 2, n))) for a in range(0, n, 2))
        coarse = quotient(search.problem, groups)
        tables = Tables(coarse, search.price)
        family = lattice(tables, BIG)
        assert family is not None
        found = search.programme(tables, family, range(len(groups)), BIG, lambda tested, part: True)
        if found.stages is not None:
            fine = tuple((kind, tuple(v for g in nodes for v in groups[g])) for kind, nodes in found.stages)
            assert search.value(fine) == pytest.approx(found.value, rel=1e-9)
