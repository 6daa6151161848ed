"""Baselines under latency: stages as pieces, and filling to memory."""

from __future__ import annotations

import numpy as np
import pytest

from passes.reference.baselines import BASELINES, Case, Limits, NoPlan, judge, latency_case, throughput_case
from passes.reference.baselines.latency import in_pieces
from passes.reference.latency import BuiltLatency, Piece, latency_problem
from passes.stages.problem import Kind, Problem


def problem(
    seconds: list[float], edges: list[tuple[int, int]], accelerators: int = 2, memory: int | None = None, cpus: int = 1
) -> Problem:
    """Nodes of 10 bytes, CPUs ten times slower, transfers of half a second."""
    n = len(seconds)
    made = sorted({u for u, _ in edges})
    kinds = [Kind("acc", tuple(f"a{i}" for i in range(accelerators)), memory)] + [Kind("cpu", ("c0",))] * min(cpus, 1)
    return Problem(
        names=tuple(f"%n{v}" for v in range(n)),
        kinds=tuple(kinds),
        seconds=np.array([seconds, [10 * s for s in seconds]][: len(kinds)]),
        producer=np.array(made, np.int64),
        consumers=tuple(tuple(v for a, v in edges if a == u) for u in made),
        transfer=np.array([[0.5] * len(made), [0.0] * len(made)][: len(kinds)]),
        tensor_bytes=np.zeros(len(made), np.int64),
        tensor_names=tuple(f"%t{u}" for u in made),
        live=np.zeros(n, np.int64),
        weight_bytes=np.full(n, 10, np.int64),
        weight_readers=tuple((v,) for v in range(n)),
    )


def cases(throughput: Problem, pieces: int = 1) -> tuple[Case, BuiltLatency]:
    built = latency_problem(throughput, [kind.type == "cpu" for kind in throughput.kinds], (), pieces)
    return latency_case(throughput_case(throughput, tuple((v,) for v in range(throughput.size)), ()), built), built


CHAIN = [(0, 1), (1, 2), (2, 3)]


def test_a_stage_that_data_leaves_and_comes_back_to_is_two_pieces() -> None:
    _, built = cases(problem([1.0] * 4, CHAIN))
    assert in_pieces(built.problem, [(0, (0, 2)), (0, (1, 3))]) == [
        Piece(0, 0, (0,)),
        Piece(0, 1, (1,)),
        Piece(0, 0, (2,)),
        Piece(0, 1, (3,)),
    ]
    assert in_pieces(built.problem, [(0, (0, 1)), (0, (3,))]) == [Piece(0, 0, (0, 1)), Piece(0, 1, (3,))]


def test_pieces_that_would_wait_for_each_other_are_no_plan() -> None:
    _, built = cases(problem([1.0] * 4, [(0, 1), (2, 3)]))
    with pytest.raises(NoPlan, match="wait for each other"):
        in_pieces(built.problem, [(0, (0, 3)), (0, (1, 2))])


def test_more_pieces_than_allowed_are_a_fault() -> None:
    stages = ((0, (0, 2)), (0, (1, 3)))
    plan = judge(cases(problem([1.0] * 4, CHAIN), pieces=1)[0], stages)
    assert (plan.fits, len(plan.faults)) == (True, 2)
    plan = judge(cases(problem([1.0] * 4, CHAIN), pieces=2)[0], stages)
    assert (plan.faults, plan.value) == ((), 7.0)  # 4 of compute, 3 tensors sent and received


def test_greedy_fills_to_memory_and_leaves_the_rest_to_cpus() -> None:
    case, _ = cases(problem([1.0] * 5, [*CHAIN, (3, 4)], memory=20))
    plan = judge(case, BASELINES["greedy"](case, Limits()))
    assert plan.schedule is not None
    assert [piece.nodes for piece in plan.schedule.pieces] == [(0, 1), (2, 3)]
    assert plan.value == 2.5 + 3.0 + 10.0  # each half second of sending and receiving; node 4 on a CPU
    case, _ = cases(problem([1.0] * 5, [*CHAIN, (3, 4)], memory=20, cpus=0))
    with pytest.raises(NoPlan, match="no device left"):
        BASELINES["greedy"](case, Limits())


def test_one_device_may_be_the_cpus() -> None:
    case, _ = cases(problem([1.0] * 4, CHAIN, memory=10))
    plan = judge(case, BASELINES["one-device"](case, Limits()))
    assert (plan.value, plan.faults) == (40.0, ())
    case, _ = cases(problem([1.0] * 4, CHAIN))
    assert judge(case, BASELINES["one-device"](case, Limits())).value == 4.0
