"""Training without contiguity: both objectives equal brute force over assignments of colours."""

from __future__ import annotations

import math
import random
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.partition.lattice.objective import Budget
from passes.reference.assignment.training import solve_any_training
from passes.reference.training import OBJECTIVES, TrainingGraph, solve_training, training_value
from tests.passes.claims import SOLVED, Claim
from tests.passes.reference.training.test_training import random_graph, sides

PATIENT = Budget(seconds=600.0)


def brute_force(graph: TrainingGraph, objective: str) -> float:
    """The optimum over every assignment of colours (and of nodes without one) to devices."""
    devices = [k for k, kind in enumerate(graph.kinds) for _ in range(kind.count)]
    unit = [("node", v) if colour is None else ("colour", colour) for v, colour in enumerate(graph.colour)]
    units = sorted(set(unit))
    best = math.inf
    for at in product(range(len(devices)), repeat=len(units)):
        place = dict(zip(units, at, strict=True))
        held: dict[int, set[int]] = {}
        for v, name in enumerate(unit):
            held.setdefault(place[name], set()).add(v)
        loads = [sides(graph, devices[d], nodes) for d, nodes in held.items()]
        known = [load for load in loads if load is not None]
        if len(known) < len(loads):
            continue
        total = max((f + b for f, b in known), default=0.0)
        apart = max((f for f, _ in known), default=0.0) + max((b for _, b in known), default=0.0)
        best = min(best, total if objective == "sum" else apart)
    return best


def claimed(graph: TrainingGraph, objective: str) -> Claim:
    """What the solver says, beside brute force."""
    solution, faults = solve_any_training(graph, objective, PATIENT), list[str]()
    if solution.stages is not None:
        loads = [sides(graph, kind, set(nodes)) for kind, nodes in solution.stages]
        if [(load.forward, load.backward) for load in solution.loads] != [pytest.approx(load) for load in loads]:
            faults.append(f"its stages take {loads}, not {solution.loads}")
        if training_value(objective, solution.loads) != pytest.approx(solution.value, rel=1e-9):
            faults.append(f"its stages do not take {solution.value}")
    return Claim(brute_force(graph, objective), solution.status, solution.value, solution.bound, faults, near=SOLVED)


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.sampled_from(OBJECTIVES))
def test_equals_brute_force(seed: int, objective: str) -> None:
    claimed(random_graph(random.Random(seed), 3), objective).check()


@settings(max_examples=6)
@given(st.integers(0, 2**32), st.sampled_from(OBJECTIVES))
def test_never_worse_than_contiguous(seed: int, objective: str) -> None:
    graph = random_graph(random.Random(seed))
    assert solve_any_training(graph, objective, PATIENT).value <= solve_training(graph, objective).value * (1 + 1e-9)


def test_unknown_objectives_are_refused() -> None:
    with pytest.raises(ValueError, match="latency"):
        solve_any_training(random_graph(random.Random(1)), "latency")
