"""Stretches of equal copies against one product after another."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from passes.partition.layouts.elimination.stretches import crossings, stretched
from passes.partition.layouts.problem.problem import Floats


def table_of(seed: int, shared: int = 2, states: int = 3) -> Floats:
    """Small integers, so that sums are exact; some steps cannot be."""
    random = np.random.default_rng(seed)
    table = random.integers(0, 50, (shared, states, states)).astype(np.float64)
    table[random.random(table.shape) < 0.1] = np.inf
    return table


def ways(table: Floats, count: int) -> Floats:
    """``[shared, state, ..]``: what every way through so many copies costs."""
    total = table
    for _ in range(count - 1):
        total = total[..., None] + np.expand_dims(table, tuple(range(1, total.ndim - 1)))
    return total


@pytest.mark.parametrize("count", range(1, 7))
@pytest.mark.parametrize("seed", range(4))
def test_a_stretch_is_the_cheapest_way(seed: int, count: int) -> None:
    table = table_of(seed)
    every = ways(table, count)
    whole = stretched(table, count)
    assert (whole.table == every.min(axis=tuple(range(2, count + 1)))).all()
    for shared, before, behind in itertools.product(range(2), range(3), range(3)):
        if np.isfinite(whole.table[shared, before, behind]):
            ends = crossings(whole, shared, before, behind)
            assert [end for _, end in ends[:-1]] == [start for start, _ in ends[1:]]
            assert (ends[0][0], ends[-1][1]) == (before, behind)
            assert sum(table[shared, start, end] for start, end in ends) == whole.table[shared, before, behind]
