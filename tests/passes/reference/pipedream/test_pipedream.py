"""PipeDream's objective: against brute force from the definition, under renaming, and on the public profiles."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.partition.lattice.objective import Budget
from passes.partition.lattice.search.search import Search
from passes.reference.pipedream import SCHEDULES, Machines, Profile, kernels, plan_faults, solve_pipedream, stage_times
from passes.reference.pipedream.problem import cut_bytes
from passes.reference.pipedream.solver import PipeDream
from passes.stages.lattice.ideals import BIG, count_ideals, lattice
from passes.stages.lattice.tables import Tables
from tests.passes.claims import Claim

FOLDER = Path(__file__).resolve().parents[5] / "shared" / "workloads" / "pipedream"

TARGETS = {
    ("vgg16", 4): 170.2,
    ("vgg16", 8): 89.9,
    ("vgg16", 16): 43.2,
    ("alexnet", 4): 22.186,
    ("alexnet", 8): 11.105,
    ("alexnet", 16): 5.7,
    ("resnet50", 4): 111.5,
    ("resnet50", 8): 56.6,
    ("resnet50", 16): 28.5,
    ("inception_v3", 4): 172.711,
    ("inception_v3", 8): 86.249,
    ("inception_v3", 16): 43.139,
}
"""Milliseconds per minibatch at 10 GB/s, replicated, to the digits that were published."""


def read(path: Path) -> Profile:
    """A profile without its input nodes and its trailing ``__getitem__``; nodes in the topological order of their numbers."""
    columns: dict[int, tuple[str, dict[str, float]]] = {}
    edges: set[tuple[int, int]] = set()
    for line in path.read_text().splitlines():
        if line.startswith("\t"):
            source, target = line.strip().split(" -- ")
            edges.add((int(source[4:]), int(target[4:])))
        else:
            name, text, facts = line.split(" -- ")[:3]
            pairs = (part.split("=") for part in facts.split(", "))
            columns[int(name[4:])] = text, {key: float(number) for key, number in pairs}
    read_from = {u for u, _ in edges}
    kept = {
        v
        for v, (text, _) in columns.items()
        if not text.startswith("Input") and not (text.startswith("__getitem__") and v not in read_from)
    }
    after: dict[int, list[int]] = {v: sorted(w for u, w in edges if u == v and w in kept) for v in kept}
    missing = {v: sum(1 for u, w in edges if w == v and u in kept) for v in kept}
    ready = [v for v in kept if not missing[v]]
    heapq.heapify(ready)
    order = []
    while ready:
        order.append(heapq.heappop(ready))
        for w in after[order[-1]]:
            missing[w] -= 1
            if not missing[w]:
                heapq.heappush(ready, w)
    place = {v: i for i, v in enumerate(order)}

    def column(key: str) -> list[float]:
        return [columns[v][1][key] for v in order]

    seconds = np.array(column("forward_compute_time")) + np.array(column("backward_compute_time"))
    activation = np.array(column("activation_size")).astype(np.int64)
    return Profile(
        names=tuple(f"node{v}" for v in order),
        seconds=seconds / 1000,
        output=activation,
        stored=activation,
        weights=np.array(column("parameter_size")).astype(np.int64),
        readers=tuple(tuple(sorted(place[w] for w in after[v])) for v in order),
    )


def random_profile(rng: random.Random, nodes: int = 6) -> Profile:
    """A DAG of 1 to ``nodes`` nodes; small whole numbers, so that ties are frequent, and many nodes that cost nothing."""
    n = rng.randint(1, nodes)
    density = rng.choice((0.2, 0.4, 0.7))
    zero = [rng.random() < 0.4 for _ in range(n)]
    return Profile(
        names=tuple(f"n{v}" for v in range(n)),
        seconds=np.array([0.0 if z else float(rng.choice((1, 2, 3, 5, 8))) for z in zero]),
        output=np.array([rng.choice((0, 1, 1, 2, 4)) for _ in range(n)], np.int64),
        stored=np.array([rng.choice((0, 0, 1, 3)) for _ in range(n)], np.int64),
        weights=np.array([0 if z else rng.choice((0, 0, 1, 4)) for z in zero], np.int64),
        readers=tuple(tuple(w for w in range(v + 1, n) if rng.random() < density) for v in range(n)),
    )


def random_machines(rng: random.Random) -> Machines:
    schedule = rng.choice(SCHEDULES)
    return Machines(
        count=rng.randint(1, 5),
        bandwidth=rng.choice((0.3, 1.0, 2.0, 10.0)),
        straight=rng.random() < 0.4,
        memory=rng.choice((None, 5, 9, 14, 22)),
        schedule=schedule,
        microbatches=rng.randint(1, 4) if schedule == "gpipe" or rng.random() < 0.5 else None,
    )


def downsets(profile: Profile) -> list[frozenset[int]]:
    nodes = range(profile.size)
    subsets = itertools.chain.from_iterable(itertools.combinations(nodes, k) for k in range(profile.size + 1))
    edges = [(v, w) for v, readers in enumerate(profile.readers) for w in readers]
    return [s for s in map(frozenset, subsets) if all(v in s for v, w in edges if w in s)]


def brute_force(profile: Profile, machines: Machines) -> float:
    """The optimum from the formulas of the paper: every chain of downsets, every number of machines per stage, for every number
    of machines used in all; inf when no plan fits."""
    ideals = downsets(profile)
    everything = frozenset(range(profile.size))

    def sums(nodes: frozenset[int]) -> tuple[float, int, int]:
        inside = list(nodes)
        return float(profile.seconds[inside].sum()), int(profile.weights[inside].sum()), int(profile.stored[inside].sum())

    def stage(before: frozenset[int], after: frozenset[int], r: int, upto: int, used: int) -> float:
        seconds, weights, stored = sums(after - before)
        q = math.ceil((used - upto + r) / r)
        if machines.schedule == "flush" and machines.microbatches is not None:
            q = min(q, machines.microbatches)
        held = {
            "stash": q * (weights + stored),
            "2bw": 2 * weights + q * stored,
            "flush": weights + q * stored,
            "gpipe": weights + (machines.microbatches or 0) * stored,
        }[machines.schedule]
        if machines.memory is not None and held > machines.memory:
            return math.inf
        b = machines.bandwidth
        time = (seconds + 4 * (r - 1) * weights / (b * r)) / r
        if before:
            time = max(time, 2 * cut_bytes(profile, before) / (b * r))
            if after != everything:
                time = max(time, 2 * cut_bytes(profile, after) / (b * r))
        return time

    best = math.inf if profile.size else 0.0
    for used in range(1, machines.count + 1):

        @cache
        def upto(ideal: frozenset[int], m: int, used: int = used) -> float:
            if not ideal:
                return 0.0 if m == 0 else math.inf
            return min(
                (
                    max(stage(before, ideal, r, m, used), upto(before, m - r))
                    for before in ideals
                    if before < ideal
                    for r in range(1, min(m, machines.most_replicas) + 1)
                    if not (before == frozenset() and r != m)
                ),
                default=math.inf,
            )

        best = min(best, upto(everything, used))
    return best


def claimed(profile: Profile, machines: Machines, budget: Budget | None = None) -> Claim:
    """What the solver says, beside brute force."""
    solution, faults = solve_pipedream(profile, machines, budget), list[str]()
    if solution.stages is not None:
        plan = [(r, nodes) for r, (_, nodes) in zip(solution.replicas, solution.stages, strict=True)]
        faults += plan_faults(profile, machines, plan)
        times = stage_times(profile, machines, plan)
        if max((stage.time for stage in times), default=0.0) != pytest.approx(solution.value, rel=1e-9):
            faults.append(f"its stages do not take {solution.value}")
        if solution.times != times:
            faults.append(f"its stages take {times}, not {solution.times}")
    return Claim(brute_force(profile, machines), solution.status, solution.value, solution.bound, faults)


@settings(max_examples=62, deadline=None)
@given(st.integers(0, 2**32))
def test_the_answer_is_that_of_brute_force(seed: int) -> None:
    rng = random.Random(seed)
    claimed(random_profile(rng), random_machines(rng)).check()


def claimed_when_stopped(seed: int) -> Claim:
    """Of a random profile, under a small budget."""
    rng = random.Random(seed)
    profile, machines = random_profile(rng), random_machines(rng)
    return claimed(profile, machines, Budget(ideals=rng.choice((0, 3, 10, 1000)), pairs=rng.choice((-1, 5, 10**6))))


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32))
def test_bounds_hold_whatever_stops_the_search(seed: int) -> None:
    assert not claimed_when_stopped(seed).wrong


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_node_order_does_not_matter(seed: int) -> None:
    rng = random.Random(seed)
    profile, machines = random_profile(rng, 9), random_machines(rng)
    before: list[set[int]] = [{u for u, readers in enumerate(profile.readers) if v in readers} for v in range(profile.size)]
    order: list[int] = []
    while len(order) < profile.size:
        order.append(rng.choice([v for v in range(profile.size) if v not in order and before[v] <= set(order)]))
    place = {v: i for i, v in enumerate(order)}
    other = Profile(
        names=tuple(profile.names[v] for v in order),
        seconds=profile.seconds[order],
        output=profile.output[order],
        stored=profile.stored[order],
        weights=profile.weights[order],
        readers=tuple(tuple(sorted(place[w] for w in profile.readers[v])) for v in order),
    )
    assert solve_pipedream(other, machines).value == pytest.approx(solve_pipedream(profile, machines).value, rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_windows_lose_nothing(seed: int) -> None:
    """The programme over the ideals in the windows of a trial value equals the one over all, when that is within it."""
    rng = random.Random(seed)
    profile, machines = random_profile(rng), random_machines(rng)
    objective = PipeDream(profile, machines)
    tables = Tables(objective.problem, objective.price)
    everything = lattice(tables, BIG)
    assert everything is not None
    best = objective.programme(tables, everything, range(profile.size), BIG, lambda tested, part: True).value
    for trial in (best * 0.999, best, best * 1.5):
        if math.isinf(trial) or not trial:
            continue
        near = lattice(tables, trial)
        assert near is not None
        found = objective.programme(tables, near, range(profile.size), trial, lambda tested, part: True)
        assert found.value == (math.inf if trial < best else pytest.approx(best, rel=1e-9))


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32))
def test_the_compiled_loop_is_what_python_runs(seed: int) -> None:
    rng = random.Random(seed)
    profile, machines = random_profile(rng), random_machines(rng)
    compiled = solve_pipedream(profile, machines)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "solve_replicated", kernels.solve_replicated.py_func)
        plain = solve_pipedream(profile, machines)
    assert (plain.status, plain.stages, plain.value) == (compiled.status, compiled.stages, compiled.value)


def test_limits_bind_as_the_schedule_says() -> None:
    """Two layers on two machines: the first holds two minibatches in flight, under GPipe all of them."""
    pair = Profile(("a", "b"), np.array([1.0, 1.0]), np.array([0, 0]), np.array([10, 10]), np.array([5, 5]), ((1,), ()))

    def value(memory: int, schedule: str, microbatches: int | None = None) -> float:
        return solve_pipedream(pair, Machines(2, 1.0, True, memory, schedule, microbatches)).value

    assert (value(30, "stash"), value(29, "stash")) == (1.0, math.inf)
    assert (value(30, "2bw"), value(29, "2bw")) == (1.0, math.inf)
    assert (value(25, "flush"), value(24, "flush")) == (1.0, math.inf)
    assert (value(20, "flush", 1), value(14, "flush", 1)) == (1.0, math.inf)
    assert (value(45, "gpipe", 4), value(44, "gpipe", 4)) == (1.0, math.inf)


def test_a_stage_whose_machines_do_not_divide_those_to_come_holds_one_more() -> None:
    """Two machines of three on the first stage: ceil(3 / 2) = 2 minibatches in flight, 30 bytes."""
    pair = Profile(("a", "b"), np.array([2.0, 1.0]), np.array([0, 0]), np.array([15, 0]), np.array([0, 10]), ((1,), ()))
    plans = [solve_pipedream(pair, Machines(3, 1.0, memory=memory)) for memory in (30, 29)]
    assert (plans[0].replicas, plans[0].value) == ((2, 1), pytest.approx(1.0))
    assert plans[1].value > 1.0


def test_fewer_machines_are_used_where_more_do_not_help() -> None:
    heavy = Profile(("a",), np.array([1.0]), np.array([0]), np.array([0]), np.array([1000]), ((),))
    solution = solve_pipedream(heavy, Machines(4, 1.0))
    assert (solution.replicas, solution.value) == ((1,), 1.0)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="schedule is 'x'"):
        Machines(1, 1.0, schedule="x")
    with pytest.raises(ValueError, match="number of microbatches"):
        Machines(1, 1.0, schedule="gpipe")
    with pytest.raises(ValueError, match="0 machines"):
        Machines(0, 1.0)
    backward = Profile(("a", "b"), np.ones(2), np.zeros(2, np.int64), np.zeros(2, np.int64), np.zeros(2, np.int64), ((), (0,)))
    with pytest.raises(ValueError, match="later nodes"):
        solve_pipedream(backward, Machines(1, 1.0))


with_profiles = pytest.mark.skipif(not FOLDER.is_dir(), reason="the shared workloads are not beside this checkout")


@with_profiles
@pytest.mark.parametrize(("name", "count"), sorted(TARGETS))
def test_public_profiles_reach_the_published_values(name: str, count: int) -> None:
    profile, machines = read(FOLDER / f"{name}.txt"), Machines(count, 10e9)
    solution = solve_pipedream(profile, machines)
    target = TARGETS[name, count]
    digits = len(str(target).partition(".")[2])
    assert solution.status == "optimal"
    assert solution.stages is not None
    assert round(solution.value * 1000, digits) <= target
    plan = [(r, nodes) for r, (_, nodes) in zip(solution.replicas, solution.stages, strict=True)]
    assert plan_faults(profile, machines, plan) == []


@with_profiles
def test_inception_has_the_lattice_that_was_published() -> None:
    objective = PipeDream(read(FOLDER / "inception_v3.txt"), Machines(4, 10e9))
    assert count_ideals(Tables(objective.problem, objective.price), BIG, 10**6) == 221_564 + 1  # and the empty one


@pytest.mark.slow
@with_profiles
def test_a_lattice_too_large_still_gets_a_plan_and_a_bound() -> None:
    profile, machines = read(FOLDER / "nasnetamobile.txt"), Machines(8, 10e9)
    solution = solve_pipedream(profile, machines)
    assert solution.status == "within-gap"
    assert solution.bound <= solution.value <= 1.002 * solution.bound


def test_the_search_says_what_it_does() -> None:
    said: list[str] = []
    profile = random_profile(random.Random(3), 8)
    objective = PipeDream(profile, Machines(3, 0.5))
    solution = Search(objective, Budget(), lambda label, fraction: said.append(label)).run()
    assert said[0] == "partition: linear"
    assert solution.reason
    assert set(solution.statistics.seconds) >= {"linear"}


@with_profiles
@pytest.mark.parametrize("count", [8, pytest.param(16, marks=pytest.mark.slow)])
def test_straight_pipelines_whose_transfers_decide_are_proven(count: int) -> None:
    """Few boundaries of Inception are cheap enough to cut: how far a number of stages can get says more than even balance."""
    solution = solve_pipedream(read(FOLDER / "inception_v3.txt"), Machines(count, 10e9, straight=True))
    assert solution.value <= solution.bound * 1.001
    assert solution.bound > 1.05 * 0.689038 / count
