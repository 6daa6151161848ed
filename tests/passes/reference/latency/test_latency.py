"""Latency: the solver beside trying everything, its evaluator, its bounds, and the public workloads."""

from __future__ import annotations

import itertools
import math
import random
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.reference.latency import LatencyBudget, LatencyProblem, Piece, TooManyKindsError, faults, schedule, solve_latency
from passes.reference.latency import engine as latency_engine
from passes.reference.latency import solver as latency_solver
from passes.reference.latency.bounds import critical_path, relaxed
from passes.reference.latency.engine import Engine
from passes.reference.latency.reduce import reduced
from passes.solvers.work import counts
from passes.stages.problem import Kind
from tests.passes.claims import Claim
from tests.passes.reference.latency_brute import least_latency, random_latency, with_programs

QUIET = LatencyBudget(seconds=60)
SHAPES = ((1, 1, 3), (1, 2, 2), (2, 1, 2), (2, 2, 2), (2, 3, 3), (3, 1, 1), (3, 1, 2))
"""Pieces, kinds of accelerators at most, accelerators at most."""


def claimed(problem: LatencyProblem) -> Claim:
    """What the solver says, beside brute force."""
    solution, wrong = solve_latency(problem, QUIET), list[str]()
    if solution.schedule is not None:
        wrong += faults(problem, solution.schedule.pieces)
        if schedule(problem, solution.schedule.pieces).latency != solution.value:
            wrong.append(f"its pieces do not take {solution.value}")
    return Claim(least_latency(problem), solution.status, solution.value, solution.bound, wrong)


def check(problem: LatencyProblem) -> None:
    claimed(problem).check()


def random_case(seed: int, shape: tuple[int, int, int], programs: bool) -> LatencyProblem:
    """``programs``: pieces share weights and hold workspace and buffers."""
    pieces, kinds, devices = shape
    problem = random_latency(seed, nodes=5 if devices * pieces < 4 else 4, pieces=pieces, kinds=kinds, devices=devices)
    return with_programs(problem, seed) if programs else problem


@given(st.integers(0, 10**6), st.sampled_from(SHAPES), st.booleans())
@settings(max_examples=75)
def test_search_is_brute_force(seed: int, shape: tuple[int, int, int], programs: bool) -> None:
    check(random_case(seed, shape, programs))


@pytest.mark.parametrize(("seed", "pieces", "expected"), [(253899, 2, 2.0), (202, 1, 2.0), (219, 3, 5.0)])
def test_a_choice_of_bytes_leaves_no_gap(seed: int, pieces: int, expected: float) -> None:
    """A source that half fits costs half its transfer in bounds: a plan that pays all of it hid the best one. Expected values
    are those of a mixed-integer programme of the definition."""
    problem = random_latency(seed, nodes=8, pieces=pieces, kinds=3 if pieces == 2 else 2, devices=4 if pieces == 2 else 3)
    found = solve_latency(problem, QUIET)
    assert (found.status, found.value, found.bound) == ("optimal", expected, expected)


@given(st.integers(0, 10**6), st.sampled_from(SHAPES), st.booleans(), st.sampled_from([0.5, 1.0, 1.0 + 1e-6, 1.5]))
@settings(max_examples=40)
def test_beside_an_incumbent_only_better_plans_are_looked_for(
    seed: int, shape: tuple[int, int, int], programs: bool, times: float
) -> None:
    """Its plan is found where it is better; where it is not, the bound says that none is."""
    problem = random_case(seed, shape, programs)
    least = least_latency(problem)
    beaten = times * least if 0 < least < math.inf else times
    found = solve_latency(problem, replace(QUIET, beaten=beaten))
    assert found.bound <= least
    if least < beaten * (1 - 1e-9):
        assert (found.status, found.value) == ("optimal", pytest.approx(least))
    else:
        assert found.bound >= (beaten if found.schedule is None else min(beaten, least) * (1 - 1e-9))
        assert found.status != "infeasible" or least == math.inf


@pytest.mark.parametrize("seed", range(16))
def test_more_nodes_and_accelerators_are_solved_to_the_end(seed: int) -> None:
    pieces, kinds, devices = SHAPES[seed % len(SHAPES)]
    found = solve_latency(random_latency(seed, nodes=8, pieces=pieces, kinds=kinds, devices=devices + 1), QUIET)
    assert found.status in ("optimal", "infeasible")


def test_many_kinds_of_accelerators() -> None:
    """Two pieces of each of eight kinds are 3 ** 8 states; 7 ** 8 are too many."""
    kinds, nodes = 8, 6
    problem = replace(
        chain([1.0] * nodes, [0.5] * (nodes - 1), kinds=tuple(Kind(f"k{t}", (f"d{t}",), 2) for t in range(kinds)), pieces=2),
        seconds=np.random.default_rng(0).integers(1, 9, (kinds, nodes)).astype(np.float64),
        cpu=np.full(nodes, 20.0),
    )
    found = solve_latency(problem, QUIET)
    assert found.schedule is not None
    assert faults(problem, found.schedule.pieces) == []
    assert (found.status, found.value, found.bound) == ("optimal", 10.0, 10.0)
    wider = replace(problem, kinds=tuple(Kind(f"k{t}", tuple(f"d{t}{i}" for i in range(9)), 2) for t in range(kinds)))
    with pytest.raises(TooManyKindsError):
        solve_latency(wider, QUIET)


def test_pieces_cannot_wait_for_each_other_in_no_time() -> None:
    """a0 -> b0 -> a1 with everything free: two accelerators with a piece each would be a circle."""
    problem = replace(
        chain([0.0] * 3, [0.0] * 2, kinds=(Kind("x", ("x0",), 2), Kind("y", ("y0",), 2)), cpu=5.0),
        seconds=np.array([[0.0, math.inf, 0.0], [math.inf, 0.0, math.inf]]),
    )
    assert solve_latency(problem, QUIET).value == 5.0
    found = solve_latency(replace(problem, pieces=2), QUIET)
    assert found.schedule is not None
    assert (found.value, found.schedule.pieces) == (0.0, (Piece(0, 0, (0,)), Piece(1, 0, (1,)), Piece(0, 0, (2,))))


@pytest.mark.parametrize(
    ("seed", "pieces", "kinds", "devices"),
    [
        (1066, 3, 1, 1),  # a piece without bytes, and what follows
        (1077, 2, 2, 2),  # memory cannot be enough
        (1199, 2, 2, 2),  # a free source is read by another
    ],
)
def test_what_once_went_wrong(seed: int, pieces: int, kinds: int, devices: int) -> None:
    check(random_latency(seed, nodes=6, pieces=pieces, kinds=kinds, devices=devices))


def test_a_source_and_a_sink_that_are_one_colour() -> None:
    """Each would join the other: the groups once formed a circle, and the search never began."""
    problem = replace(
        chain([0.0, 0.0], [1.0], kinds=(Kind("a", ("a0",)),), cpu=0.0), colours=((0, 1),), size=np.zeros(2, np.int64)
    )
    check(problem)
    assert reduced(problem).groups == ((0, 1),)


@pytest.mark.parametrize("large", [3e9, 4e15 + 1, 3e16 + 4, 1e30])
def test_a_number_that_means_never_does_not_swallow_the_others(large: float) -> None:
    """In sums over an ideal 4e15 + 0.3 is 4e15 + 0.5, and the piece of what is after it once took 0.5."""
    for seed in range(12):
        rng = random.Random(seed)
        n = rng.randint(3, 5)
        never = [v == 0 or rng.random() < 0.3 for v in range(n)]
        problem = LatencyProblem(
            names=tuple(f"%n{v}" for v in range(n)),
            kinds=(Kind("a", ("x", "y")),),
            seconds=np.array([[large * rng.uniform(0.5, 1) if there else 3 * rng.random() for there in never]]),
            cpu=np.array([rng.random() if there else rng.choice((5 * rng.random(), math.inf)) for there in never]),
            size=np.zeros(n, np.int64),
            producer=np.arange(n - 1),
            consumers=tuple((v + 1,) for v in range(n - 1)),
            transfer=np.full((1, n - 1), 0.1),
            pieces=1 + seed % 2,
        )
        check(problem)


@given(st.integers(0, 10**6), st.integers(0, 10**6))
@settings(max_examples=30)
def test_value_and_bound_do_not_depend_on_names_and_order(seed: int, shuffle: int) -> None:
    """Nodes in another topological order, with other names: the same value, bound and status."""
    problem = random_latency(seed, nodes=8, pieces=1)
    other = _reordered(problem, random.Random(shuffle))
    first, second = solve_latency(problem, QUIET), solve_latency(other, QUIET)
    assert first.status == second.status
    if first.status == "optimal":
        assert second.value == pytest.approx(first.value, rel=1e-9)
        assert second.bound == pytest.approx(first.bound, rel=1e-9)


def _reordered(problem: LatencyProblem, rng: random.Random) -> LatencyProblem:
    makers: list[set[int]] = [set() for _ in range(problem.nodes)]
    for u, readers in zip(problem.producer, problem.consumers, strict=True):
        for v in readers:
            makers[v].add(int(u))
    order: list[int] = []
    while len(order) < problem.nodes:
        ready = [v for v in range(problem.nodes) if v not in order and makers[v] <= set(order)]
        order.append(rng.choice(ready))
    new = {v: i for i, v in enumerate(order)}
    return replace(
        problem,
        names=tuple(f"%x{v}" for v in order),
        seconds=np.ascontiguousarray(problem.seconds[:, order]),
        cpu=problem.cpu[order],
        size=problem.size[order],
        producer=np.array([new[int(u)] for u in problem.producer], np.int64),
        consumers=tuple(tuple(sorted(new[v] for v in readers)) for readers in problem.consumers),
        colours=tuple(tuple(sorted(new[v] for v in colour)) for colour in problem.colours),
    )


def test_readers_of_a_source_do_not_wait_for_each_other() -> None:
    """Both are on CPUs, where they run at once: the source was taken together with the first of them."""
    problem = random_latency(626, nodes=5, pieces=1)
    assert problem.consumers == ((1, 2),)
    assert not len(problem.makers[0])
    assert problem.cpu.tolist() == [0, 7, 2]
    engine = Engine.open(reduced(problem), most=600)
    assert engine is not None
    assert engine.bound(math.inf, lambda part: True) == least_latency(problem) == 7.0


@given(st.integers(0, 10**6), st.integers(1, 5))
@settings(max_examples=40)
def test_leaving_nodes_out_is_a_lower_bound(seed: int, count: int) -> None:
    problem = random_latency(seed, nodes=5, pieces=1)
    best = least_latency(problem)
    small = reduced(problem)
    assert critical_path(problem) <= best
    if not small.groups:
        return
    engine = Engine.open(relaxed(small, min(count, len(small.groups))), most=600)
    assert engine is not None
    least = engine.bound(math.inf, lambda part: True)
    assert least is not None
    assert least <= best * (1 + 1e-12)


def chain(
    times: list[float], sends: list[float], *, kinds: tuple[Kind, ...], cpu: float = 100.0, pieces: int = 1
) -> LatencyProblem:
    """v0 -> v1 -> ...; ``sends``: seconds to transfer what each makes; a byte per node."""
    n = len(times)
    return LatencyProblem(
        names=tuple(f"%v{v}" for v in range(n)),
        kinds=kinds,
        seconds=np.array([times for _ in kinds]).reshape(len(kinds), n),
        cpu=np.full(n, cpu),
        size=np.ones(n, np.int64),
        producer=np.arange(n - 1),
        consumers=tuple((v + 1,) for v in range(n - 1)),
        transfer=np.array([sends for _ in kinds]).reshape(len(kinds), n - 1),
        pieces=pieces,
    )


def test_a_tensor_between_two_pieces_is_sent_and_received() -> None:
    """On one accelerator too: 1 + 5 to send, 5 to receive + 2."""
    problem = chain([1.0, 2.0], [5.0], kinds=(Kind("a", ("a0",)),), pieces=2)
    plan = schedule(problem, [Piece(0, 0, (0,)), Piece(0, 0, (1,))])
    assert [(times.start, times.finish) for times in plan.times] == [(0.0, 6.0), (6.0, 13.0)]
    assert plan.latency == 13.0
    assert schedule(problem, [Piece(0, 0, (0, 1))]).latency == 3.0


def test_a_cpu_waits_for_the_end_of_a_piece() -> None:
    problem = chain([1.0, 2.0], [5.0], kinds=(Kind("a", ("a0",)),), cpu=4.0)
    assert schedule(problem, [Piece(0, 0, (0,))]).latency == 10.0


def test_a_piece_that_waits_for_itself_is_refused() -> None:
    """v0 -> v1 -> v2 with v0 and v2 in one piece, v1 outside."""
    problem = chain([1.0, 1.0, 1.0], [0.0, 0.0], kinds=(Kind("a", ("a0",)),))
    with pytest.raises(ValueError, match="reads what is made after it"):
        schedule(problem, [Piece(0, 0, (0, 2))])


def test_memory_is_of_all_pieces_together() -> None:
    problem = chain([1.0, 1.0, 1.0], [0.0, 0.0], kinds=(Kind("a", ("a0",), 2),), cpu=3.0, pieces=2)
    assert faults(problem, [Piece(0, 0, (0,)), Piece(0, 0, (1, 2))]) == ["accelerator (0, 0) holds 3 bytes of at most 2"]
    assert solve_latency(problem, QUIET).value == 5.0


def test_unequal_accelerators() -> None:
    """The faster one is too small for both nodes: it takes one, the slower the other."""
    problem = replace(
        chain([1.0, 1.0], [0.5], kinds=(Kind("fast", ("f",), 1), Kind("slow", ("s",), 2))),
        seconds=np.array([[1.0, 1.0], [4.0, 4.0]]),
    )
    found = solve_latency(problem, QUIET)
    assert (found.status, found.value) == ("optimal", 6.0)


def test_infeasible_says_so() -> None:
    problem = replace(chain([1.0], [], kinds=(Kind("a", ("a0",), 0),)), cpu=np.array([math.inf]))
    found = solve_latency(problem, QUIET)
    assert (found.status, found.bound) == ("infeasible", math.inf)


def test_no_nodes() -> None:
    problem = chain([], [], kinds=(Kind("a", ("a0",)),))
    problem = replace(problem, producer=np.empty(0, np.int64), consumers=(), transfer=np.empty((1, 0)))
    found = solve_latency(problem, QUIET)
    assert (found.status, found.value) == ("optimal", 0.0)


def grid(lanes: int, length: int) -> LatencyProblem:
    """Lanes side by side between a first and a last node: (length + 1) ** lanes ideals."""
    rng = random.Random(lanes)
    n = lanes * length + 2
    readers: list[tuple[int, ...]] = [tuple(1 + lane * length for lane in range(lanes))]
    for lane in range(lanes):
        readers += [(1 + lane * length + i + 1,) if i + 1 < length else (n - 1,) for i in range(length)]
    seconds = np.array([[rng.uniform(1, 2) for _ in range(n)]])
    return LatencyProblem(
        names=tuple(f"%v{v}" for v in range(n)),
        kinds=(Kind("a", ("a0", "a1", "a2"), n // 3),),
        seconds=seconds,
        cpu=seconds[0] * 3,
        size=np.ones(n, np.int64),
        producer=np.arange(n - 1),
        consumers=tuple(readers),
        transfer=np.full((1, n - 1), 0.3),
    )


@pytest.mark.slow
def test_a_lattice_over_budget_still_has_a_plan_and_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency_solver, "POLICY", replace(latency_solver.POLICY, narrow=500))
    problem = grid(5, 5)
    found = solve_latency(problem, LatencyBudget(ideals=1000, seconds=5))
    assert found.schedule is not None
    assert faults(problem, found.schedule.pieces) == []
    assert critical_path(problem) <= found.bound <= found.value
    assert found.value < schedule(problem, []).latency


def test_memory_is_looked_at_before_it_is_taken() -> None:
    """Tails that do not fit are never made."""
    small = reduced(replace(grid(3, 7), pieces=2))
    engine = Engine.open(small, most=600)
    assert engine is not None
    engine.bound(math.inf, lambda part: True)  # which loads the kernels
    tails = engine.tail.nbytes
    others = 0
    for limit, made in ((tails - 1, 0), (tails, 1)):
        tracemalloc.start()
        engine = Engine.open(small, most=600, memory=limit)
        if engine is not None:
            engine.bound(math.inf, lambda part: True)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert (engine is None) == (made == 0)
        others = others or peak  # the lattice itself
        assert abs((peak - others) / tails - made) < 0.5


def test_the_time_limit_ends_the_search() -> None:
    found = solve_latency(grid(5, 6), LatencyBudget(seconds=0.0))
    assert found.status == "within-gap"
    assert 0 < found.bound <= found.value


def test_there_is_a_plan_without_a_search_and_without_cpus() -> None:
    """As few accelerators as hold it, the next nodes on each."""
    problem = replace(grid(5, 6), cpu=np.full(32, math.inf), kinds=(Kind("a", ("a0", "a1", "a2"), 12),))
    found = solve_latency(problem, LatencyBudget(seconds=0.0))
    assert found.schedule is not None
    assert faults(problem, found.schedule.pieces) == []
    assert [piece.nodes for piece in found.schedule.pieces] == [(*range(12),), (*range(12, 24),), (*range(24, 32),)]
    assert 0 < found.bound <= found.value


@pytest.mark.parametrize("memory", [32, 31])
def test_one_accelerator_alone_has_one_plan(memory: int) -> None:
    problem = replace(grid(5, 6), cpu=np.full(32, math.inf), kinds=(Kind("a", ("a0",), memory),))
    found = solve_latency(problem, LatencyBudget(seconds=0.0))
    assert found.status == ("optimal" if memory == 32 else "infeasible")
    assert (found.schedule is not None) == (memory == 32)


def test_the_search_is_looked_at_within_an_ideal_and_goes_on_from_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels that are compared are work: between two looks about so many are extended or compared, however many steps begin
    at one ideal; and looking changes nothing."""
    small = reduced(replace(grid(4, 3), pieces=2, cpu=np.full(14, math.inf)))
    found = []
    for work in (10**9, 20):
        monkeypatch.setattr(latency_engine, "WORK", work)
        engine = Engine.open(small, most=10**5)
        assert engine is not None
        engine.bound(math.inf, lambda part: True)
        before = counts()
        looks = [0.0]

        def keep_on(part: float, before: dict[str, float] = before, looks: list[float] = looks) -> bool:
            looks.append(sum(counts()[kind] - before.get(kind, 0.0) for kind in ("step", "compared")))
            return True

        found.append(replace(engine.search(math.inf, 16, 10**5, keep_on), steps=0))
        assert counts()["compared"] > before.get("compared", 0.0)
    assert found[0] == found[1]
    assert max(b - a for a, b in itertools.pairwise(looks)) < 2000 < looks[-1] / 20


def test_a_search_for_any_plan_ends_with_its_first() -> None:
    problem = replace(grid(3, 4), kinds=(Kind("a", ("a0", "a1", "a2"), 8),), pieces=2, cpu=np.full(14, math.inf))
    worked = []
    for budget in (replace(QUIET, first=True), QUIET):
        before = counts()["step"]
        found = solve_latency(problem, budget)
        worked.append(counts()["step"] - before)
        assert found.schedule is not None
        assert faults(problem, found.schedule.pieces) == []
    assert 10 * worked[0] < worked[1]


def test_interrupted_search_keeps_the_plan() -> None:
    def progress(label: str, fraction: float | None) -> None:
        if label == "bound over the lattice":
            raise KeyboardInterrupt

    found = solve_latency(grid(4, 5), QUIET, progress)
    assert found.status == "within-gap"
    assert found.schedule is not None
