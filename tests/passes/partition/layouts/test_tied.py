"""The problem with one node for all copies says what the whole problem says of plans whose copies are alike."""

from __future__ import annotations

import numpy as np
import pytest

from passes.partition.layouts.solver.tied import solve_tied, tied
from tests.passes.partition.layouts.problems import random_layers


@pytest.mark.parametrize("seed", range(8))
def test_seconds_and_bytes_are_those_of_all_copies(seed: int) -> None:
    problem, random = random_layers(seed, 5, 3), np.random.default_rng(seed)
    small, stands = tied(problem)
    assert small.size < problem.size
    best = np.inf
    for _ in range(30):
        choices = [int(random.integers(len(small.node(node).seconds))) for node in range(small.size)]
        every = [choices[node] for node in stands]
        assert small.cost(choices) == problem.cost(every)
        assert small.memory(choices) == problem.memory(every)
        best = min(best, small.cost(choices))
    assert solve_tied(problem).value <= best
    least = sum(float(kind.memory.min()) for kind in map(problem.node, range(problem.size)))
    limit = (least + solve_tied(problem).memory) / 2
    assert least <= solve_tied(problem, memory=limit).memory <= limit
