"""Plans between one that is too large and one that fits: within memory, and near the bound where layers repeat."""

from __future__ import annotations

import pytest

from passes.partition.layouts import solve
from passes.partition.layouts.elimination.folded import FoldedSearch, least_memory
from passes.partition.layouts.solver.mixed import mixed
from tests.passes.partition.layouts.models import problem_of
from tests.passes.partition.layouts.problems import random_layers


@pytest.mark.parametrize("seed", range(8))
def test_mixtures_keep_the_limit(seed: int) -> None:
    """Each node is as one of the two plans has it; the cost is the plan's."""
    problem = random_layers(seed, 5, 6)
    dense = FoldedSearch(problem).cheapest(0.0).choices
    sparse = least_memory(problem)
    low, high = problem.memory(sparse), problem.memory(dense)
    for limit in (low, (low + high) / 2, high):
        found = mixed(problem, dense, sparse, limit)
        if high > low:
            assert found is not None
            choices, cost = found
            assert problem.memory(choices) <= limit
            assert cost == problem.cost(choices)
            assert all(choice in pair for choice, *pair in zip(choices, dense, sparse, strict=True))


def test_layers_share_a_limit() -> None:
    """One price for all layers would leave every one of them sparse: some are dense, and the gap is a fraction of a layer."""
    problem = problem_of("zoo:gpt3-175b,layers=48,hidden=1024,heads=16,seq=128,vocab=512", (8,), batch=1).problem
    loose = solve(problem)
    least = sum(float(problem.node(node).memory.min()) for node in range(problem.size))
    limit = least + 0.4 * (loose.memory - least)
    plan = solve(problem, memory=limit)
    assert plan.memory <= limit
    assert plan.gap <= 2e-3
