"""Canonical orders: topological, and the same graph whatever its numbering."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.stages.canonical import canonical_order
from passes.stages.problem import Problem
from passes.stages.reduce import permuted
from tests.passes.partition.instances import encoder_decoder, experts, random_problem
from tests.passes.partition.lattice.groups.test_groups import random_order


def numbers(problem: Problem) -> object:
    """All that matters of a problem, tensors and weights as sets."""
    tensors = [
        (int(u), readers, row.tolist(), int(size), h in problem.forced)
        for h, (u, readers, row, size) in enumerate(
            zip(problem.producer, problem.consumers, problem.transfer.T, problem.tensor_bytes, strict=True)
        )
    ]
    weights = sorted(zip(problem.weight_readers, problem.weight_bytes.tolist(), strict=True))
    return problem.seconds.tolist(), problem.live.tolist(), sorted(tensors), weights


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6))
def test_the_order_of_the_file_does_not_matter(seed: int) -> None:
    problem = random_problem(seed, nodes=12)
    other = permuted(problem, random_order(problem, seed))
    one, two = (permuted(p, canonical_order(p)) for p in (problem, other))
    one.check()
    assert numbers(one) == numbers(two)


def test_branches_that_are_alike_do_not_matter_either() -> None:
    """Sixteen identical experts a layer: refinement alone leaves them alike."""
    for problem in (experts(16), encoder_decoder(3)):
        other = permuted(problem, random_order(problem, random.Random(1).randrange(10**6)))
        one, two = (permuted(p, canonical_order(p)) for p in (problem, other))
        one.check()
        assert numbers(one) == numbers(two)


def test_numbers_of_any_size_make_an_order() -> None:
    """Without a warning, and the same whatever the numbering."""
    problem = random_problem(5, nodes=8)
    far = np.array([0.0, 5e-324, 1e-200, 1.0, 1e39, 1e200, 1.7e308, np.inf])
    problem = replace(problem, seconds=np.resize(far, problem.seconds.shape))
    other = permuted(problem, random_order(problem, 3))
    with np.errstate(over="raise", divide="raise", invalid="raise"):
        one, two = (permuted(p, canonical_order(p)) for p in (problem, other))
    assert numbers(one) == numbers(two)


def test_what_columns_and_nets_say_counts() -> None:
    problem = random_problem(7, nodes=1)
    alone = Problem(
        names=("%a", "%b"),
        kinds=problem.kinds[:1],
        seconds=np.ones((1, 2)),
        producer=np.zeros(0, np.int64),
        consumers=(),
        transfer=np.zeros((1, 0)),
        tensor_bytes=np.zeros(0, np.int64),
        tensor_names=(),
        live=np.zeros(2, np.int64),
        weight_bytes=np.zeros(0, np.int64),
        weight_readers=(),
    )
    told = [canonical_order(alone, [column]) for column in ([0.0, 1.0], [1.0, 0.0])]
    assert told[0] == told[1][::-1]
    nets = [canonical_order(alone, (), [(v,)]) for v in (0, 1)]
    assert nets[0] == nets[1][::-1]
