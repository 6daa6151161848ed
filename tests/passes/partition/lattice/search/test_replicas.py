"""Replicated stages: the optimum from the definition, the bounds, and what a stage on several devices costs."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.partition.lattice.search.replicas import replicate
from passes.partition.lattice.search.throughput import solve
from passes.reference.training import OBJECTIVES, TrainingGraph, solve_training
from passes.reference.training.problem import Replication
from passes.stages.bounds import best_bound, prices
from passes.stages.load import COMM
from passes.stages.problem import Kind, Problem, pools, violations
from tests.passes.claims import Claim
from tests.passes.partition.instances import brute_force, of_unlike_ports, random_problem
from tests.passes.reference.training.test_training import random_graph, sides


def claimed(problem: Problem, most: int) -> Claim:
    """What the solver says of stages on up to so many devices, beside brute force."""
    wide = replicate(problem, most)
    wide.check()
    solution = solve(wide)
    faults = violations(wide, solution.stages) if solution.stages is not None else []
    bound = max(solution.bound, best_bound(wide, prices(wide))[0])
    return Claim(brute_force(problem, most), solution.status, solution.value, bound, faults)


def check(problem: Problem, most: int) -> None:
    claimed(problem, most).check()


@pytest.mark.parametrize("comm", COMM)
def test_optimum_equals_brute_force(comm: str) -> None:
    """Several kinds, free transfers, limits, kinds that lack nodes, demanded cuts and numbers of stages."""
    for seed in range(45):
        check(random_problem(seed, nodes=5, comm=comm, handover=seed % 3 == 0), 1 + seed % 4)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(COMM), st.integers(1, 4), st.sampled_from([None, 1, 2, 3]), st.integers(1, 2))
def test_optimum_equals_brute_force_anywhere(seed: int, comm: str, most: int, devices: int | None, least: int) -> None:
    """A plan may be allowed fewer devices than there are, and a stage no fewer than some."""
    check(replace(random_problem(seed, nodes=6, comm=comm, handover=seed % 2 == 0), most=devices, replicas=least), most)


@pytest.mark.parametrize("comm", COMM)
def test_optimum_on_unlike_ports_equals_brute_force(comm: str) -> None:
    """Replicas on devices of one type, some of which have slower ports or less memory than others."""
    for seed in range(30):
        check(of_unlike_ports(random_problem(seed, nodes=4, comm=comm, handover=seed % 3 == 0), seed), 2 + seed % 3)


def test_many_kinds_are_taken_in_an_order() -> None:
    """With too many kinds for every vector of devices, stages take devices in sequence; replicas there are neighbours."""
    rng = random.Random(5)
    base = random_problem(3, nodes=6, demands=False, memory=False)
    kinds = tuple(Kind(f"k{i}", (f"a{i}", f"b{i}")) for i in range(9))
    seconds = np.array([[rng.uniform(1, 2) for _ in range(base.size)] for _ in kinds])
    problem = replace(base, kinds=kinds, seconds=seconds, transfer=np.zeros((9, len(base.consumers))))
    wide = replicate(problem, 2)
    single, solution = solve(problem), solve(wide)
    assert solution.stages is not None
    assert violations(wide, solution.stages) == []
    assert solution.bound <= solution.value <= single.value


def test_a_single_node_is_shared_by_all_devices() -> None:
    """One node of 12 seconds on 4 devices: 3 seconds each; alone it would be 12."""
    base = random_problem(0, nodes=1, demands=False, memory=False)
    problem = replace(
        base,
        names=("%n",),
        kinds=(Kind("d", ("a", "b", "c", "d")),),
        seconds=np.array([[12.0]]),
        producer=np.zeros(0, np.int64),
        consumers=(),
        transfer=np.zeros((1, 0)),
        tensor_bytes=np.zeros(0, np.int64),
        tensor_names=(),
        live=np.zeros(1, np.int64),
        weight_bytes=np.zeros(0, np.int64),
        weight_readers=(),
    )
    assert solve(problem).value == 12.0
    assert solve(replicate(problem, 4)).value == 3.0
    assert solve(replicate(problem, 3)).value == 4.0


def test_hundreds_of_replicas() -> None:
    """More kinds than a byte counts: a chain of two nodes of 3 and 1 on 400 devices, transfers 0, is 4 / 400 at best."""
    base = random_problem(0, nodes=1, demands=False, memory=False)
    problem = replace(
        base,
        names=("%a", "%b"),
        kinds=(Kind("d", tuple(f"d{i}" for i in range(400))),),
        seconds=np.array([[3.0, 1.0]]),
        producer=np.array([0]),
        consumers=((1,),),
        transfer=np.zeros((1, 1)),
        tensor_bytes=np.zeros(1, np.int64),
        tensor_names=("%t",),
        live=np.zeros(2, np.int64),
        weight_bytes=np.zeros(0, np.int64),
        weight_readers=(),
    )
    for most in (300, 400):
        solution = solve(replicate(problem, most))
        assert solution.value == pytest.approx(4 / 400)
        assert solution.status == "optimal"


def test_kinds_of_the_same_devices_share_them() -> None:
    base = next(p for p in (random_problem(seed, nodes=3, demands=False) for seed in range(99)) if p.size > 1 and p.devices > 2)
    wide = replicate(base, 3)
    assert len(set(pools(wide.kinds))) == len(base.kinds) < len(wide.kinds)
    assert wide.devices == base.devices
    crowded = [(len(wide.kinds) - 1, [v]) for v in range(wide.size)]
    assert any("devices of kind" in fault for fault in violations(wide, crowded))


def best_training(graph: TrainingGraph, replication: Replication) -> dict[str, float]:
    """Both optima over every assignment of colours to positions, every kind and every number of devices of each stage."""
    total = len(graph.names)
    colours = [("alone", v) if c is None else ("colour", c) for v, c in enumerate(graph.colour)]
    classes = sorted(set(colours))
    mated = {colours[v] for v in range(total) if not graph.backward[v]}
    devices = sum(kind.count for kind in graph.kinds)
    cap = min(replication.most, replication.microbatches or replication.most)
    shapes = [(k, r) for k, kind in enumerate(graph.kinds) for r in range(1, min(cap, kind.count) + 1)]
    best = dict.fromkeys(OBJECTIVES, math.inf)
    for where in itertools.product(range(devices), repeat=len(classes)):
        place = dict(zip(classes, where, strict=True))
        at = [place[colours[v]] for v in range(total)]
        if any(not graph.backward[u] and not graph.backward[v] and at[u] > at[v] for u, v in graph.edges):
            continue
        orphans = [(u, v) for u, v in graph.edges if graph.backward[u] and graph.backward[v]]
        if any(at[v] > at[u] and not {colours[u], colours[v]} <= mated for u, v in orphans):
            continue
        stages = [{v for v in range(total) if at[v] == s} for s in sorted(set(at))]
        for chosen in itertools.product(shapes, repeat=len(stages)):
            if any(sum(r for k, r in chosen if k == kind) > graph.kinds[kind].count for kind in range(len(graph.kinds))):
                continue
            loads = []
            for (kind, r), nodes in zip(chosen, stages, strict=True):
                alone = sides(graph, kind, nodes)
                if alone is None:
                    break
                own = sum(int(replication.weights[v]) for v in nodes)
                once = 4 * (r - 1) * own / (replication.bandwidth[kind] * r)
                loads.append((alone[0] / r, alone[1] / r + once / (replication.microbatches or r)))
            else:
                best["sum"] = min(best["sum"], max(f + b for f, b in loads))
                best["split"] = min(best["split"], max(f for f, _ in loads) + max(b for _, b in loads))
    return best


def claimed_in_training(seed: int, flush: int | None, bandwidth: float, most: int) -> list[Claim]:
    """Of a random graph, for both objectives: unequal kinds, one of which may synchronise for nothing; limits, orphans and
    colours."""
    rng = random.Random(seed)
    graph = random_graph(rng)
    weights = np.array([rng.choice((0, 1, 3)) for _ in graph.names], np.int64)
    rates = tuple(rng.choice((bandwidth, math.inf)) for _ in graph.kinds)
    replication = Replication(most, weights, rates, flush)
    best = best_training(graph, replication)
    solutions = {objective: solve_training(graph, objective, replication=replication) for objective in OBJECTIVES}
    return [Claim(best[name], found.status, found.value, found.bound) for name, found in solutions.items()]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from((None, 2, 8)), st.sampled_from((0.5, 4.0, 100.0)), st.integers(1, 3))
def test_training_with_replicas_equals_brute_force(seed: int, flush: int | None, bandwidth: float, most: int) -> None:
    """With and without flushes."""
    for claim in claimed_in_training(seed, flush, bandwidth, most):
        claim.check()


def test_synchronisation_decides_how_many_devices() -> None:
    """One unit of 8 seconds and W bytes: r devices take 8 / r + 4 (r-1) W / (B r r), or with a flush of N over N."""
    graph = replace(
        random_graph(random.Random(1)),
        names=("f", "b"),
        kinds=(Kind("d", ("a", "b", "c", "d")),),
        seconds=np.array([[3.0, 5.0]]),
        size=np.zeros(2, np.int64),
        backward=np.array([False, True]),
        colour=(0, 0),
        transfer=np.zeros((1, 2)),
        edges=((0, 1),),
    )
    weights = np.array([6, 0], np.int64)
    every = solve_training(graph, replication=Replication(4, weights, (1.0,)))
    assert every.value == pytest.approx(min(8 / r + 4 * (r - 1) * 6 / r / r for r in (1, 2, 3, 4)))
    flushed = solve_training(graph, replication=Replication(4, weights, (1.0,), 6))
    assert flushed.value == pytest.approx(min(8 / r + 4 * (r - 1) * 6 / r / 6 for r in (1, 2, 3, 4)))
    assert solve_training(graph, replication=Replication(4, weights, (1.0,), 2)).kinds[-1].replicas == 2
