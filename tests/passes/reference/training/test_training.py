"""Training objectives: against brute force from the definition on raw graphs, under reductions, and on the public workloads."""

from __future__ import annotations

import itertools
import json
import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.partition.lattice.objective import Budget
from passes.reference.training import (
    OBJECTIVES,
    TrainingGraph,
    solve_training,
    training_value,
    units,
)
from passes.reference.training.solver import Training
from passes.stages.lattice import kernels, walk_kernels
from passes.stages.lattice.ideals import BIG, count_ideals
from passes.stages.lattice.tables import Tables
from passes.stages.problem import Kind
from tests.passes.claims import Claim

FOLDER = Path(__file__).resolve().parents[5] / "shared" / "workloads" / "device-placement" / "throughput"

OPTIMA = {
    "layer-bert24_training": (41.7458, 4),
    "layer-resnet50_training": (78.6318, 4),
    "op-bert_l-3_training": (65.303149, 6),
}
"""Largest forward + backward, as the reference prints it, with its digits."""


def random_graph(rng: random.Random, forward: int = 4) -> TrainingGraph:
    """Forward nodes, most with a backward mate of their colour, and orphans; backward edges mostly mirror forward ones. Small
    whole numbers, so that ties are frequent."""
    n = rng.randint(1, forward)
    backward = [False] * n
    colour: list[int | None] = [rng.choice((v, v, v, rng.randrange(n))) if rng.random() < 0.9 else None for v in range(n)]
    edges = {(u, v) for v in range(n) for u in range(v) if rng.random() < 0.5}
    mate: dict[int, int] = {}
    for v in range(n):
        if rng.random() < 0.8:
            mate[v] = len(backward)
            backward.append(True)
            colour.append(colour[v])
    edges |= {(mate[v], mate[u]) for u, v in edges if u in mate and v in mate}
    edges |= {(v, mate[v]) for v in mate if rng.random() < 0.5}
    grads = list(mate.values())
    for _ in range(rng.choice((0, 0, 1, 2))):
        orphan = len(backward)
        backward.append(True)
        colour.append(rng.choice((None, 100, 100)))
        edges |= {(g, orphan) for g in grads if rng.random() < 0.3} | {(v, orphan) for v in range(n) if rng.random() < 0.2}
        grads.append(orphan)
        mates = [g for g in mate.values() if rng.random() < 0.3]
        edges |= {(orphan, g) for g in mates if (g, orphan) not in edges}
    total = len(backward)
    kinds = rng.randint(1, 2)
    seconds = np.array([[float(rng.choice((0, 0, 1, 2, 5))) for _ in range(total)] for _ in range(kinds)])
    if rng.random() < 0.2:
        seconds[rng.randrange(kinds), rng.randrange(total)] = math.inf
    rates = [rng.choice((0.0, 0.5, 1.0)) for _ in range(kinds)]
    cost = [rng.choice((0, 1, 2, 3)) for _ in range(total)]
    counts = [rng.randint(1, 3) for _ in range(kinds)] if kinds == 1 else [rng.randint(1, 2), 1]
    return TrainingGraph(
        names=tuple(f"n{v}" for v in range(total)),
        kinds=tuple(
            Kind(f"kind{k}", tuple(f"d{k}{i}" for i in range(counts[k])), rng.choice((None, None, 3, 6, 9)))
            for k in range(kinds)
        ),
        seconds=seconds,
        size=np.array([rng.choice((0, 0, 1, 3)) for _ in range(total)], np.int64),
        backward=np.array(backward),
        colour=tuple(colour),
        transfer=np.array([[rate * c for c in cost] for rate in rates]),
        edges=tuple(sorted(edges)),
    )


def sides(graph: TrainingGraph, kind: int, nodes: set[int]) -> tuple[float, float] | None:
    """(FW, BW) of a device, node by node and edge by edge; None when the device cannot hold the nodes."""
    limit = graph.kinds[kind].memory
    if limit is not None and sum(int(graph.size[v]) for v in nodes) > limit:
        return None
    load = [0.0, 0.0]
    for v in nodes:
        load[int(graph.backward[v])] += float(graph.seconds[kind, v])
    for u in range(len(graph.names)):
        if any(a == u and (u in nodes) != (b in nodes) for a, b in graph.edges):
            load[int(graph.backward[u])] += float(graph.transfer[kind, u])
    return None if math.isinf(sum(load)) else (load[0], load[1])


def brute_force(graph: TrainingGraph) -> dict[str, float]:
    """Both optima from the definition: every assignment of nodes to positions of a pipeline, every order of devices."""
    total = len(graph.names)
    devices = [k for k, kind in enumerate(graph.kinds) for _ in range(kind.count)]
    colours = [("alone", v) if c is None else ("colour", c) for v, c in enumerate(graph.colour)]
    classes = sorted(set(colours))
    mated = {colours[v] for v in range(total) if not graph.backward[v]}
    best = dict.fromkeys(OBJECTIVES, math.inf)
    for where in itertools.product(range(len(devices)), repeat=len(classes)):
        place = dict(zip(classes, where, strict=True))
        at = [place[colours[v]] for v in range(total)]
        fine = True
        for u, v in graph.edges:
            if not graph.backward[u] and not graph.backward[v] and at[u] > at[v]:
                fine = False
            orphans = not {colours[u], colours[v]} <= mated
            if graph.backward[u] and graph.backward[v] and orphans and at[v] > at[u]:
                fine = False
        if not fine:
            continue
        stages = [{v for v in range(total) if at[v] == s} for s in range(len(devices))]
        for sequence in sorted(set(itertools.permutations(devices))):
            loads = [sides(graph, kind, stage) for kind, stage in zip(sequence, stages, strict=True) if stage]
            known = [load for load in loads if load is not None]
            if len(known) == len(loads):
                best["sum"] = min(best["sum"], max(f + b for f, b in known))
                best["split"] = min(best["split"], max(f for f, _ in known) + max(b for _, b in known))
    return best


def claimed(graph: TrainingGraph, budget: Budget | None = None) -> list[Claim]:
    """What the solver says of each objective, beside brute force."""
    best, claims = brute_force(graph), []
    for objective in OBJECTIVES:
        solution, faults = solve_training(graph, objective, budget), list[str]()
        if solution.stages is not None:
            if sorted(v for _, nodes in solution.stages for v in nodes) != list(range(len(graph.names))):
                faults.append("its stages are not all nodes, each once")
            loads = [sides(graph, kind, set(nodes)) for kind, nodes in solution.stages]
            if [(load.forward, load.backward) for load in solution.loads] != [pytest.approx(load) for load in loads]:
                faults.append(f"its stages take {loads}, not {solution.loads}")
            if training_value(objective, solution.loads) != pytest.approx(solution.value, rel=1e-9):
                faults.append(f"its stages do not take {solution.value}")
        claims.append(Claim(best[objective], solution.status, solution.value, solution.bound, faults))
    return claims


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32))
def test_the_answer_is_that_of_brute_force(seed: int) -> None:
    for claim in claimed(random_graph(random.Random(seed))):
        claim.check()


def test_numbers_that_mean_never_drown_no_others() -> None:
    """Nodes and transfers that take far longer on some kinds: sums over ideals would lose the rest beside them."""
    for seed in (74, 204, 244, 298, 331):  # each wrong while such numbers stay in the sums
        graph = random_graph(random.Random(seed), 5)
        rng = np.random.default_rng(seed)
        graph = replace(
            graph,
            kinds=tuple(replace(kind, memory=None) for kind in graph.kinds),
            seconds=rng.choice((1.0, 3.0, 1e18), graph.seconds.shape, p=(0.4, 0.3, 0.3)),
            transfer=rng.choice((0.0, 0.2, 1e18), graph.transfer.shape, p=(0.5, 0.4, 0.1)),
        )
        best = brute_force(graph)
        for objective in OBJECTIVES:
            assert solve_training(graph, objective).value == pytest.approx(best[objective], rel=1e-9)


def claimed_when_stopped(seed: int) -> list[Claim]:
    """Of a random graph, under a small budget."""
    rng = random.Random(seed)
    graph = random_graph(rng)
    return claimed(graph, Budget(ideals=rng.choice((0, 3, 1000)), pairs=rng.choice((-1, 5, 10**6))))


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32))
def test_bounds_hold_whatever_stops_the_search(seed: int) -> None:
    for claim in claimed_when_stopped(seed):
        assert not claim.wrong


@pytest.mark.slow
@settings(max_examples=3, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(OBJECTIVES))
def test_the_compiled_loops_are_what_python_runs(seed: int, objective: str) -> None:
    graph = random_graph(random.Random(seed), 3)
    compiled = solve_training(graph, objective)
    with pytest.MonkeyPatch.context() as patch:
        for module, name in (
            (kernels, "possible_states"),
            (kernels, "solve_family"),
            (kernels, "held_beside"),
            (walk_kernels, "enumerate_ideals"),
        ):
            patch.setattr(module, name, getattr(module, name).py_func)
        plain = solve_training(graph, objective)
    assert (plain.status, plain.stages, plain.value) == (compiled.status, compiled.stages, compiled.value)


def one_kind(
    seconds: list[float], backward: list[bool], colour: list[int | None], edges: list[tuple[int, int]]
) -> TrainingGraph:
    n = len(seconds)
    return TrainingGraph(
        names=tuple(f"n{v}" for v in range(n)),
        kinds=(Kind("acc", ("a", "b")),),
        seconds=np.array([seconds]),
        size=np.zeros(n, np.int64),
        backward=np.array(backward),
        colour=tuple(colour),
        transfer=np.zeros((1, n)),
        edges=tuple(edges),
    )


def test_an_orphan_stands_where_its_mirrored_edges_put_it() -> None:
    """Forward a -> b with mates; the orphan's gradient comes from b's mate and goes to a's: it lies between them."""
    graph = one_kind([1.0] * 5, [False, False, True, True, True], [0, 1, 0, 1, None], [(0, 1), (3, 4), (4, 2)])
    problem, nodes = units(graph)
    assert nodes == ((0, 2), (4,), (1, 3))
    assert (problem.producer.tolist(), problem.consumers) == ([0, 1], ((1, 2), (2,)))


def test_a_cycle_that_mirroring_closes_is_one_unit() -> None:
    """The orphan reads from a's mate and feeds b's: mirrored, it must follow b and precede a, which precedes b."""
    graph = one_kind([1.0] * 5, [False, False, True, True, True], [0, 1, 0, 1, None], [(0, 1), (2, 4), (4, 3)])
    assert units(graph)[1] == ((0, 1, 2, 3, 4),)


def test_a_backward_edge_between_mated_nodes_orders_nothing() -> None:
    graph = one_kind([1.0] * 4, [False, False, True, True], [0, 1, 0, 1], [(2, 3)])
    assert units(graph)[0].consumers == ()


def test_the_two_objectives_differ() -> None:
    """Chains a -> b of FW 3, 1 and BW 1, 3: apart, the sides add up to 6; together on one device to 8."""
    graph = one_kind([3.0, 1.0, 1.0, 3.0], [False, False, True, True], [0, 1, 0, 1], [(0, 1), (3, 2)])
    assert solve_training(graph, "sum").value == 4.0
    assert solve_training(graph, "split").value == 6.0
    with pytest.raises(ValueError, match="expected one of sum, split"):
        solve_training(graph, "other")


def read(path: Path) -> TrainingGraph:
    """A device-placement file as it stands; the CPUs pay no transfers."""
    data = json.loads(path.read_text())
    nodes = data["nodes"]
    place = {node["id"]: v for v, node in enumerate(nodes)}
    cost = {place[edge["sourceId"]]: edge["cost"] for edge in data["edges"]}
    return TrainingGraph(
        names=tuple(str(node["id"]) for node in nodes),
        kinds=(
            Kind("accelerator", tuple(f"acc{i}" for i in range(data["maxFPGAs"])), int(data["maxSizePerFPGA"])),
            Kind("cpu", tuple(f"cpu{i}" for i in range(data["maxCPUs"]))),
        ),
        seconds=np.array(
            [
                [node["fpgaLatency"] if node["supportedOnFpga"] else math.inf for node in nodes],
                [node["cpuLatency"] for node in nodes],
            ]
        ),
        size=np.array([math.ceil(node["size"]) for node in nodes], np.int64),
        backward=np.array([bool(node["isBackwardNode"]) for node in nodes]),
        colour=tuple(node.get("colorClass") for node in nodes),
        transfer=np.array([[cost.get(v, 0.0) for v in range(len(nodes))], [0.0] * len(nodes)]),
        edges=tuple((place[edge["sourceId"]], place[edge["destId"]]) for edge in data["edges"]),
    )


with_workloads = pytest.mark.skipif(not FOLDER.is_dir(), reason="the shared workloads are not beside this checkout")


@with_workloads
@pytest.mark.parametrize("name", sorted(OPTIMA))
def test_contiguous_optima_of_the_reference(name: str) -> None:
    graph = read(FOLDER / f"{name}.json")
    solution = solve_training(graph)
    value, digits = OPTIMA[name]
    assert solution.status == "optimal"
    assert solution.stages is not None
    assert round(solution.value, digits) == value
    loads = [sides(graph, kind, set(nodes)) for kind, nodes in solution.stages]
    assert max(sum(load) for load in loads if load) == pytest.approx(solution.value, rel=1e-9)
    split = solve_training(graph, "split")
    assert split.status == "optimal"
    assert split.value >= solution.value * (1 - 1e-9)


@with_workloads
def test_the_lattice_of_units_is_the_one_published() -> None:
    problem, _ = units(read(FOLDER / "op-bert_l-3_training.json"))
    objective = Training(problem, "sum")
    assert count_ideals(Tables(objective.problem, objective.price), BIG, 10**5) == 2774
