"""The bound of the first stages of a straight pipeline, against the optimum and against a slow walk over all ideals."""

from __future__ import annotations

import random

import numpy as np
import pytest

from passes.partition.lattice.objective import Budget
from passes.partition.lattice.search.search import Search
from passes.reference.pipedream import Machines, Profile, kernels, solve_pipedream
from passes.reference.pipedream.solver import PipeDream
from passes.reference.pipedream.starts import start_bound
from passes.stages.lattice.tables import Tables
from passes.stages.problem import Floats
from tests.passes.reference.pipedream.test_pipedream import FOLDER, downsets, read


def layered(rng: random.Random, nodes: int) -> Profile:
    """A profile whose cuts cost about as much as its nodes, dearer near the start."""
    readers: list[set[int]] = [set() for _ in range(nodes)]
    for v in range(1, nodes):
        for u in {v - 1 - rng.randrange(min(v, 4)) for _ in range(rng.choice((1, 1, 2)))}:
            readers[u].add(v)
    return Profile(
        names=tuple(f"n{v}" for v in range(nodes)),
        seconds=np.array([rng.choice((0.0, 1.0, 2.0, 3.0)) for _ in range(nodes)]),
        output=np.array([rng.randrange(1, 9) * (2 if v < nodes // 2 else 1) for v in range(nodes)], np.int64),
        stored=np.zeros(nodes, np.int64),
        weights=np.zeros(nodes, np.int64),
        readers=tuple(tuple(sorted(row)) for row in readers),
    )


def straight(profile: Profile, machines: int) -> tuple[PipeDream, Tables, Floats]:
    """The objective, its tables, and the seconds to move each tensor."""
    objective = PipeDream(profile, Machines(machines, 4.0, straight=True))
    moved = objective.moved()
    assert moved is not None
    return objective, Tables(objective.problem, objective.price), moved


def cut(profile: Profile, moved: Floats, ideal: frozenset[int]) -> float:
    makers = [v for v in range(profile.size) if profile.readers[v]]
    return sum(float(moved[h]) for h, v in enumerate(makers) if v in ideal and not ideal.issuperset(profile.readers[v]))


@pytest.mark.parametrize("seed", [*range(1, 10), pytest.param(0, marks=pytest.mark.slow)])
def test_the_first_stages_never_say_too_much(seed: int) -> None:
    rng = random.Random(seed)
    profile = layered(rng, 14)
    machines = rng.randrange(2, 6)
    objective, tables, moved = straight(profile, machines)
    optimum = solve_pipedream(profile, Machines(machines, 4.0, straight=True))
    assert optimum.status == "optimal"
    simple, _ = objective.bound()
    for value in (optimum.value, optimum.value * 1.3, optimum.value * 3):
        bound = start_bound(tables, moved, machines, simple, value, 10**6, lambda tested, part: True)
        assert simple <= bound <= optimum.value * (1 + 1e-9)


def test_the_first_stages_can_prove_what_balance_cannot() -> None:
    """Two dear cuts in a row: the first three nodes share a stage, far over the balance of the whole."""
    profile = Profile(
        names=("a", "b", "c", "d", "e", "f", "g", "h"),
        seconds=np.array([2.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0, 2.0]),
        output=np.array([40, 40, 1, 1, 1, 1, 1, 1], np.int64),
        stored=np.zeros(8, np.int64),
        weights=np.zeros(8, np.int64),
        readers=((1,), (2,), (3,), (4,), (5,), (6,), (7,), ()),
    )
    objective, tables, moved = straight(profile, 4)
    assert objective.bound()[0] == pytest.approx(3.0)
    bound = start_bound(tables, moved, 4, 3.0, 6.0, 10**6, lambda tested, part: True)
    assert bound == pytest.approx(6.0, rel=1e-9)


@pytest.mark.parametrize("seed", range(8))
def test_the_walk_meets_every_thin_ideal_once(seed: int) -> None:
    rng = random.Random(seed)
    profile = layered(rng, 9)
    _, tables, moved = straight(profile, 3)
    cost = np.zeros(profile.size)
    np.add.at(cost, tables.problem.producer, moved)
    high, most = 4.0 + rng.randrange(10), 2.0 + rng.randrange(8)
    bits, reached, cuts = np.zeros((512, 1), np.uint64), np.empty(512), np.empty(512)
    arrays = tables.succ_ptr, tables.succ, tables.pred_ptr, tables.pred, profile.seconds, cost
    whole, visited, count = kernels.thin_ideals(*arrays, high, most, 10**6, bits, reached, cuts)
    near = [i for i in downsets(profile) if i and float(profile.seconds[list(i)].sum()) <= high]
    thin = [ideal for ideal in near if cut(profile, moved, ideal) <= most]
    assert whole
    assert visited == len(near)
    assert sorted(int(row[0]) for row in bits[:count]) == sorted(sum(1 << v for v in ideal) for ideal in thin)
    stages = np.empty(count, np.int64)
    order = np.argsort(reached[:count], kind="stable")
    kernels.fewest_stages(bits[order], reached[order], cuts[order], most, stages)
    fewest = {frozenset[int](): 0}
    for ideal in sorted(thin, key=lambda ideal: (float(profile.seconds[list(ideal)].sum()), len(ideal))):
        steps = [
            fewest[before] + 1
            for before in fewest
            if before < ideal and float(profile.seconds[list(ideal - before)].sum()) <= most
        ]
        if steps:
            fewest[ideal] = min(steps)
    expected = {sum(1 << v for v in ideal): k for ideal, k in fewest.items() if ideal}
    known = {int(row[0]): int(k) for row, k in zip(bits[order], stages, strict=True) if k < 1 << 30}
    timed = {i: k for i, k in expected.items() if any(profile.seconds[v] for v in range(profile.size) if i >> v & 1)}
    assert {i: known.get(i) for i in timed} == timed


@pytest.mark.slow
def test_a_published_network_of_many_branches_in_a_straight_line() -> None:
    if not FOLDER.is_dir():
        pytest.skip("no ../shared/workloads beside the checkout")
    objective = PipeDream(read(FOLDER / "nasnetamobile.txt"), Machines(16, 10e9, straight=True))
    solution = Search(objective, Budget(seconds=60.0), lambda label, fraction: None).run()
    assert solution.value <= solution.bound * 1.05
