"""Coordinate descent ends where no single change that fits helps, and never with a dearer plan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ir.core.outcomes import TIGHT
from passes.partition.layouts import build
from passes.partition.layouts.problem.graph import ValueNode
from passes.partition.layouts.problem.problem import ShardProblem
from passes.partition.layouts.solver.descent import descend
from tests.passes.meshes.graphs import chained_module, random_module
from tests.passes.partition.layouts.test_fused import mesh


def converted(problem: ShardProblem, value: ValueNode, choices: Sequence[int]) -> float:
    """Seconds of the conversions of one value, from the definition."""
    kind, (maker, result) = problem.value_kinds[value.kind], value.maker
    source = problem.node(maker).makes[result][choices[maker]]
    keys = {key for node, port in value.readers for key in kind.needs[problem.node(node).reads[port][choices[node]]]}
    return float(sum(kind.weights[source, key] for key in sorted(keys)))


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 10**6), st.booleans(), st.booleans(), st.sampled_from([0.0, 0.9, 1.1]))
def test_no_single_change_is_better(seed: int, chained: bool, training: bool, share: float) -> None:
    random = Random(seed)
    module = (chained_module if chained else random_module)(seed, 6)
    problem = build(module, module.entry, mesh(2, bandwidth=random.choice([1e9, 1e11])), None, training=training).problem
    start = [random.randrange(len(problem.node(node).seconds)) for node in range(problem.size)]
    limit = share * problem.memory(start) if share else None
    choices, value = descend(problem, start, problem.cost(start), limit, math.inf)
    told = sum(float(problem.node(node).seconds[choice]) for node, choice in enumerate(choices)) + sum(
        converted(problem, one, choices) for one in problem.values
    )
    assert value == pytest.approx(told, rel=1e-12)
    assert value <= problem.cost(start)
    if choices == tuple(start) and share and share < 1:
        return  # what does not fit may have been left for what fits better and is dearer
    for node in range(problem.size):
        for choice in range(len(problem.node(node).seconds)):
            other = (*choices[:node], choice, *choices[node + 1 :])
            if limit is None or problem.memory(other) <= limit:
                assert problem.cost(other) >= value * (1 - TIGHT)
