"""Coordinate descent: one node at a time takes the choice that costs least where the others stay as they are."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from passes.shard.problem import ShardProblem

SLACK = 1e-9
"""Relative: sums of the same numbers in another order."""


def descend(
    problem: ShardProblem, choices: Sequence[int], value: float, memory: float | None, ends: float
) -> tuple[tuple[int, ...], float]:
    """Changes one node at a time while it helps."""
    touching: list[list[int]] = [[] for _ in problem.kinds]
    for number, value_ in enumerate(problem.values):
        for node in dict.fromkeys([value_.maker[0], *(node for node, _ in value_.readers)]):
            touching[node].append(number)
    current = list(choices)
    needs = problem.memory(current)
    kinds, values = problem.kinds, problem.values
    known: dict[object, list[float]] = {}

    def costs_of(node: int) -> list[float]:
        """Of each choice of a node, with the values that touch it; equal surroundings are looked at once."""
        around = [values[number] for number in touching[node]]
        told = [
            (value.kind, *((kinds[n], port, -1 if n == node else current[n]) for n, port in (value.maker, *value.readers)))
            for value in around
        ]
        key = (kinds[node], tuple(told))
        if key not in known:
            before, kind = current[node], problem.node(node)
            known[key] = []
            for choice in range(len(kind.seconds)):
                current[node] = choice
                shared = sum(problem.value_cost(value, current) for value in around)
                known[key].append(float(kind.seconds[choice]) + shared)
            current[node] = before
        return known[key]

    better = True
    while better and time.perf_counter() < ends:
        better = False
        for node in range(problem.size):
            if time.perf_counter() > ends:
                break
            kind, before = problem.node(node), current[node]
            costs = costs_of(node)
            room = math.inf if memory is None else memory - needs + float(kind.memory[before])
            fits = [choice for choice in range(len(costs)) if kind.memory[choice] <= room]
            best = min(fits, key=lambda choice: (costs[choice], choice), default=before)
            if costs[best] < costs[before] - SLACK * abs(costs[before]):
                needs += float(kind.memory[best] - kind.memory[before])
                better = True
            else:
                best = before
            current[node] = best
    total = problem.cost(current)
    return (tuple(current), total) if total < value else (tuple(choices), value)


__all__ = ["SLACK", "descend"]
