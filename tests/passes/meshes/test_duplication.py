"""What members run whole is the best of all choices: by enumeration, and by the integer program that TAG states."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest

from passes.meshes.synced import duplicated
from passes.solvers.highs import Rows, solve_rows

Edges = Sequence[tuple[int, int, float]]


def value(costs: Sequence[float], edges: Edges, chosen: frozenset[int]) -> float:
    cut = (cost for before, after, cost in edges if after in chosen and before not in chosen)
    return math.fsum([*(costs[i] for i in chosen), *cut])


def random_choice(seed: int) -> tuple[list[float], list[tuple[int, int, float]]]:
    """Up to 8 nodes in an order, of which a third save and a tenth of the edges may not be cut."""
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 9))
    costs = [float(random.integers(-12, 1)) if random.random() < 0.35 else float(random.integers(0, 6)) for _ in range(count)]
    pairs = [pair for pair in itertools.combinations(range(count), 2) if random.random() < 0.4]
    weights = [math.inf if random.random() < 0.1 else float(random.integers(0, 6)) for _ in pairs]
    return costs, [(before, after, weight) for (before, after), weight in zip(pairs, weights, strict=True)]


def by_program(costs: Sequence[float], edges: Edges) -> float:
    """The value of the integer program: x_i and b_ij >= x_j - x_i."""
    rows = Rows()
    ops = [rows.column(0.0, 1.0, integer=True) for _ in costs]
    sums = [(column, cost) for column, cost in zip(ops, costs, strict=True)]
    for before, after, cost in edges:
        gathered = rows.column(0.0, 0.0 if math.isinf(cost) else 1.0)
        rows.row([(gathered, 1.0), (ops[after], -1.0), (ops[before], 1.0)], lower=0.0)
        sums += [] if math.isinf(cost) else [(gathered, cost)]
    total = rows.column(-1e6, 1e6)
    rows.row([*sums, (total, -1.0)], 0.0, 0.0)
    answer = solve_rows(
        rows, total, 1.0, start=None, seconds=5.0, gap=0.0, threads=1, seed=0, watch=lambda *_: True, options={}
    )
    assert answer.status == "optimal"
    assert answer.values is not None
    return answer.values[total]


def test_the_cut_is_the_best_of_all_choices() -> None:
    for seed in range(100):
        costs, edges = random_choice(seed)
        every = (frozenset(some) for size in range(len(costs) + 1) for some in itertools.combinations(range(len(costs)), size))
        best = min((value(costs, edges, chosen), len(chosen)) for chosen in every)
        chosen = duplicated(costs, edges)
        assert (value(costs, edges, chosen), len(chosen)) == pytest.approx(best), seed


def test_the_cut_is_what_the_integer_program_finds() -> None:
    for seed in range(60):
        costs, edges = random_choice(seed)
        assert value(costs, edges, duplicated(costs, edges)) == pytest.approx(by_program(costs, edges), abs=1e-6), seed
