"""Interchangeable branches counted once: the optimum stays, and the plan costs what the turns say."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.partition.lattice.bounds.minimum_cuts import nets_of
from passes.partition.lattice.bounds.symmetry import symmetric
from passes.stages.bounds import prices
from passes.stages.lattice.dp import solve_family
from passes.stages.lattice.ideals import BIG, lattice
from passes.stages.lattice.tables import Tables
from passes.stages.problem import Joins, Kind, Problem, plan_costs, violations
from passes.stages.reduce import permuted
from tests.passes.partition.instances import Layers, brute_force, experts


def branches(seed: int, *, spoil: bool = False) -> Problem:
    """Two or three equal branches of one or two nodes between two others; ``spoil``: one branch differs."""
    rng = random.Random(seed)
    seconds: list[float] = []
    reads: list[tuple[int, ...]] = []
    cost: list[float] = []

    def op(time: float, size: float, *operands: int) -> int:
        seconds.append(time)
        reads.append(operands)
        cost.append(size)
        return len(seconds) - 1

    x = op(rng.choice((0, 1, 2)), rng.choice((0.5, 1, 3)))
    count = rng.randint(2, 3)
    length = rng.randint(1, 2)
    times = [(rng.choice((1.0, 2.0, 3.0)), rng.choice((0.25, 1.0, 2.0))) for _ in range(length)]
    early = rng.random() < 0.5
    parts = []
    for branch in range(count):
        v = x
        for position, (time, size) in enumerate(times):
            odd = 1.0 if spoil and branch == 0 and position == 0 else 0.0
            # A later node of a branch may read what all branches read, too.
            v = op(time + odd, size, v, *((x,) if position and early else ()))
        parts.append(v)
    op(rng.choice((0, 1, 2)), 1.0, *parts, *((x,) if rng.random() < 0.5 else ()))
    n = len(seconds)
    readers = [tuple(v for v in range(n) if u in reads[v]) for u in range(n)]
    made = [u for u in range(n) if readers[u]]
    devices = rng.randint(2, 3)
    kinds = [Kind("acc", tuple(f"d{i}" for i in range(devices)))]
    rows, transfer = [seconds], [[cost[u] for u in made]]
    if rng.random() < 0.4:
        kinds.append(Kind("cpu", ("c",)))
        rows.append([2 * time for time in seconds])
        transfer.append([0.0] * len(made))
    return Problem(
        names=tuple(f"%{v}" for v in range(n)),
        kinds=tuple(kinds),
        seconds=np.array(rows),
        producer=np.array(made, np.int64),
        consumers=tuple(readers[u] for u in made),
        transfer=np.array(transfer),
        tensor_bytes=np.zeros(len(made), np.int64),
        tensor_names=tuple(f"%t{u}" for u in made),
        live=np.zeros(n, np.int64),
        weight_bytes=np.array([], np.int64),
        weight_readers=(),
    )


def joined(problem: Problem) -> Problem:
    """The problem with nets in place of directed tensors: the same loads."""
    nets = nets_of(problem)
    free = np.zeros_like(problem.transfer)
    return replace(problem, transfer=free, joins=Joins(nets.pins, nets.transfer, nets.side, problem.seconds[None]))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**9), st.booleans())
def test_optimum_stays(seed: int, spoil: bool) -> None:
    problem = branches(seed, spoil=spoil)
    found = symmetric(joined(problem))
    best = brute_force(problem)
    if found is None:
        return
    tables = Tables(found.problem, prices(found.problem))
    family = lattice(tables, BIG)
    assert family is not None
    plan = solve_family(tables, family, BIG)
    assert plan.stages is not None
    assert plan.value == pytest.approx(best, rel=1e-9)
    own = found.assigned(plan.stages)
    assert violations(problem, own) == []
    assert max(cost.load for cost in plan_costs(problem, own)) == pytest.approx(plan.value, rel=1e-9)


def test_branches_are_found() -> None:
    """64 experts of four nodes: four rows in one path, and ideals that count in place of 5 to the 64th."""
    found = symmetric(joined(experts(64, layers=1)))
    assert found is not None
    assert [(len(path), len(path[0])) for path in found.paths] == [(4, 64)]


def test_each_layer_by_itself() -> None:
    found = symmetric(joined(experts(5, layers=3)))
    assert found is not None
    assert [(len(path), len(path[0])) for path in found.paths] == [(4, 5)] * 3


def test_single_nodes_count() -> None:
    """m interchangeable nodes between two others: m + 3 ideals."""
    build = Layers()
    x = build.op(1, 1)
    build.op(1, 1, *[build.op(2, 1, x) for _ in range(30)])
    found = symmetric(joined(build.problem(4)))
    assert found is not None
    family = lattice(Tables(found.problem, prices(found.problem)), BIG)
    assert family is not None
    assert family.visited == 33


def test_a_branch_that_differs_is_left_out() -> None:
    """A node that takes longer is not exchanged with those that do not."""
    seeds = [seed for seed in range(200) if branches(seed).size == 5]
    for seed in seeds:
        found = symmetric(joined(branches(seed, spoil=True)))
        rows = [set(row) for path in found.paths for row in path] if found is not None else []
        assert all(1 not in row for row in rows)


@pytest.mark.parametrize("seed", range(3))
def test_does_not_depend_on_order(seed: int) -> None:
    problem = joined(experts(6, layers=2))
    order = list(range(problem.size))
    rng = random.Random(seed)
    for _ in range(400):  # random exchanges of neighbours that keep a topological order
        i = rng.randrange(len(order) - 1)
        if not any(int(u) == order[i] and order[i + 1] in r for u, r in zip(problem.producer, problem.consumers, strict=True)):
            order[i], order[i + 1] = order[i + 1], order[i]
    found, other = symmetric(problem), symmetric(permuted(problem, order))
    assert found is not None
    assert other is not None
    assert sorted(len(path[0]) for path in found.paths) == sorted(len(path[0]) for path in other.paths)
