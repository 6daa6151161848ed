"""What cuts leave open: a bound of the problem with them, and the smaller problem of two stages."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from passes.partition.bridge.pins import on_two_sides
from passes.partition.lattice.search.throughput import solve
from passes.stages.bounds import best_bound, cut_bound, prices
from passes.stages.problem import Problem
from passes.stages.reduce import quotient
from tests.passes.partition.instances import brute_force, encoder_decoder, random_problem


def with_cut(seed: int) -> Problem:
    """A small problem with a cut or two."""
    problem = random_problem(seed)
    assume(len(problem.consumers) > 0)
    return replace(problem, forced=tuple(sorted({seed % len(problem.consumers), seed // 7 % len(problem.consumers)})))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from((1, 2)))
def test_the_bound_of_a_cut_holds(seed: int, replicas: int) -> None:
    from passes.partition.lattice.search.replicas import replicate

    problem = with_cut(seed)
    wide = replicate(problem, replicas) if replicas > 1 else problem
    assert cut_bound(wide, prices(wide))[0] <= brute_force(problem, replicas) * (1 + 1e-9)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_two_sides_of_cuts_are_as_good_as_all_ops(seed: int) -> None:
    problem = replace(with_cut(seed), stages=2)
    groups = on_two_sides(problem, tuple((op,) for op in range(problem.size)))
    found, least = solve(quotient(problem, groups)), brute_force(problem)
    assert (found.value if found.stages is not None else math.inf) == pytest.approx(least)


def test_a_cut_behind_an_encoder_is_proven() -> None:
    """What the cut costs had been told as a gap: no bound knew of it."""
    problem = encoder_decoder(3, devices=4)
    encoded = max(range(len(problem.consumers)), key=lambda h: len(problem.consumers[h]) if int(problem.producer[h]) > 1 else 0)
    problem = replace(problem, forced=(encoded,))
    assert (
        best_bound(problem, prices(problem))[1] == f"load balance before and behind the cut at {problem.tensor_names[encoded]}"
    )
    two = replace(problem, stages=2)
    groups = on_two_sides(two, tuple((op,) for op in range(two.size)))
    assert len(groups) < two.size / 2
    assert solve(quotient(two, groups)).status == "optimal"
