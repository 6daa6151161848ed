"""Graphs too large for the prefixes of an order: a plan over some of them, within the room that there is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from passes.partition.lattice.bounds.policy import POLICY
from passes.partition.lattice.heuristics.segments import entries, segmented, segments
from passes.partition.lattice.objective import Budget
from passes.partition.lattice.search.throughput import Throughput, solve
from passes.stages.problem import Kind, Problem, violations
from passes.stages.reduce import quotient

NODES = 8_000
SMALL = Budget(memory=1 << 20, seconds=10.0)


def graph(shape: str, nodes: int = NODES) -> Problem:
    """Nodes of 1 to 9 seconds, twice that on a CPU; ``shape``: who reads whom."""
    random = np.random.default_rng(1)
    seconds = random.integers(1, 10, nodes).astype(np.float64)
    edges = {
        "chain": [(v, (v + 1,)) for v in range(nodes - 1)],
        "fan in": [(v, (nodes - 1,)) for v in range(nodes - 1)],
        "fan out": [(0, tuple(range(1, nodes)))],
        "layers": [(v, (v + 20 + int(random.integers(9)), v + 30)) for v in range(nodes - 30)],
        "no edge": [],
    }[shape]
    return Problem(
        names=tuple(f"%n{v}" for v in range(nodes)),
        kinds=(Kind("fast", ("a", "b", "c"), nodes), Kind("slow", ("d",))),
        seconds=np.array([seconds, 2 * seconds]),
        producer=np.array([u for u, _ in edges], np.int64),
        consumers=tuple(readers for _, readers in edges),
        transfer=np.full((2, len(edges)), 0.25),
        tensor_bytes=np.ones(len(edges), np.int64),
        tensor_names=tuple(f"%t{u}" for u, _ in edges),
        live=np.zeros(nodes, np.int64),
        weight_bytes=np.ones(nodes, np.int64),
        weight_readers=tuple((v,) for v in range(nodes)),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "gap"), [("chain", 0.01), ("no edge", 0.01), ("fan out", 0.01), ("fan in", 0.3), ("layers", 0.01)]
)
def test_plan_within_small_memory(shape: str, gap: float) -> None:
    problem = graph(shape)
    solution = solve(problem, SMALL)
    assert solution.stages is not None
    assert violations(problem, solution.stages) == []
    assert problem.seconds[0].max() <= solution.bound <= solution.value <= solution.bound * (1 + gap)
    assert 0 < solution.statistics.stored * solution.statistics.stored // 64 * 8 <= SMALL.memory
    assert solution.value == Throughput(problem).value(solution.stages)


def test_segments_keep_a_plan_and_its_demands() -> None:
    """Cuts of a plan, a demanded cut and a change of who can run what begin an interval; near a cut they are shorter."""
    problem = graph("chain")
    seconds = problem.seconds.copy()
    seconds[0, 777:] = np.inf
    problem = replace(problem, seconds=seconds, forced=(6_344,))
    stages = ((0, tuple(range(5_000))), (1, tuple(range(5_000, NODES))))
    groups = segments(problem, range(NODES), np.ones(NODES), stages, 100)
    assert [v for nodes in groups for v in nodes] == list(range(NODES))
    assert {777, 5_000, 6_345} <= {nodes[0] for nodes in groups}
    assert len(groups) <= 104
    lengths = {nodes[0]: len(nodes) for nodes in groups}
    assert lengths[5_000] * 4 < max(lengths.values())


def test_what_is_paid_together_is_one() -> None:
    """Tensors of one group to another are one, which costs what they cost."""
    problem = graph("fan in", 100)
    groups = tuple(tuple(range(start, start + 10)) for start in range(0, 100, 10))
    whole, small = quotient(problem, groups), segmented(problem, groups)
    assert (len(whole.consumers), len(small.consumers)) == (90, 9)
    assert small.transfer.sum() == whole.transfer.sum()
    assert small.tensor_bytes.sum() == whole.tensor_bytes.sum()
    assert entries(small) == sum(range(1, 10))
    stages = ((0, tuple(range(4))), (1, tuple(range(4, 10))))
    assert Throughput(small).value(stages) == Throughput(whole).value(stages)


def test_fewer_nodes_are_searched_whole() -> None:
    assert solve(graph("chain", 60), SMALL).status == "optimal"
    assert POLICY.huge < NODES
