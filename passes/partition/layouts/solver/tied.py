"""The best plan in which all copies of a repeated layer choose alike: that of a smaller problem, with one node for all copies.

A node that stands for several costs and holds as much as all of them; a value between such nodes is paid as often as it stands
in the function. Chains whose copies differ in kind are left as they are.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from passes.partition.layouts.problem.problem import Graph, ShardProblem, ValueNode
from passes.partition.layouts.solver.search import ShardPlan, solve


def solve_tied(problem: ShardProblem, *, memory: float | None = None, seconds: float = 60.0) -> ShardPlan:
    """The cheapest such plan that needs at most ``memory`` bytes per device; its bound is one of such plans. Raises NoPlanError
    where nothing fits."""
    small, stands = tied(problem)
    plan = solve(small, memory=memory, seconds=seconds)
    choices = tuple(plan.choices[node] for node in stands)
    return replace(plan, choices=choices, value=problem.cost(choices)).bounded(plan.bound, plan.reason)


def tied(problem: ShardProblem) -> tuple[ShardProblem, tuple[int, ...]]:
    """The smaller problem, and by which of its nodes each node is stood for."""
    first = list(range(problem.size))
    for copies in problem.cells:
        if len({tuple(problem.kinds[node] for node in nodes) for nodes in copies}) == 1:
            for nodes in copies[1:]:
                for one, node in zip(copies[0], nodes, strict=True):
                    first[node] = one
    number = {node: place for place, node in enumerate(dict.fromkeys(first))}
    stands = tuple(number[node] for node in first)
    node_kinds: dict[tuple[int, int], int] = {}
    value_kinds: dict[tuple[int, int], int] = {}
    times = Counter(first)
    kinds = [node_kinds.setdefault((problem.kinds[node], times[node]), len(node_kinds)) for node in number]
    counted: Counter[ValueNode] = Counter()
    for value in problem.values:
        readers = tuple(dict.fromkeys((stands[node], port) for node, port in value.readers))
        counted[replace(value, maker=(stands[value.maker[0]], value.maker[1]), readers=readers)] += 1
    values = [
        replace(value, kind=value_kinds.setdefault((value.kind, often), len(value_kinds))) for value, often in counted.items()
    ]
    small = ShardProblem(
        tuple(problem.node_kinds[kind].times(often) for kind, often in node_kinds),
        tuple(problem.value_kinds[kind].times(often) for kind, often in value_kinds),
        Graph(tuple(kinds), tuple(values)),
    )
    return small, stands


__all__ = ["solve_tied", "tied"]
