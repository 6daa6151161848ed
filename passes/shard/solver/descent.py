"""Coordinate descent: one node at a time takes the choice that costs least where the others stay as they are."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from passes.model.work import did, now
from passes.shard.problem.problem import Floats, ShardProblem, ValueNode

SLACK = 1e-9
"""Relative: sums of the same numbers in another order."""


def descend(
    problem: ShardProblem, choices: Sequence[int], value: float, memory: float | None, ends: float
) -> tuple[tuple[int, ...], float]:
    """Changes one node at a time while it helps."""
    touching: list[list[int]] = [[] for _ in problem.kinds]
    ends_of = [(value_.maker, *value_.readers) for value_ in problem.values]
    for number, touched in enumerate(ends_of):
        for node in dict.fromkeys(node for node, _ in touched):
            touching[node].append(number)
    current = list(choices)
    needs = problem.memory(current)
    kinds, values = problem.kinds, problem.values
    known: dict[object, Floats] = {}

    def costs_of(node: int, number: int) -> Floats:
        """Of a value that touches a node, by the node's choice; equal surroundings are looked at once."""
        key = kinds[node], values[number].kind, *[(kinds[n], p, -1 if n == node else current[n]) for n, p in ends_of[number]]
        found = known.get(key)
        if found is None:
            found = known[key] = _costs_of(problem, values[number], node, current)
            did("conversion", len(found))
        return found

    looked = [False] * problem.size  # and nothing has changed since then
    better = True
    while better and now() < ends:
        better = False
        for node in range(problem.size):
            if looked[node]:
                continue
            if now() > ends:
                break
            kind, before = problem.node(node), current[node]
            costs = kind.seconds + sum(costs_of(node, number) for number in touching[node])
            room = math.inf if memory is None else memory - needs + float(kind.memory[before])
            fits = kind.memory <= room
            looked[node] = bool(fits.all())
            best = int(np.where(fits, costs, np.inf).argmin())
            did("node", 1)
            if fits[best] and costs[best] < costs[before] - SLACK * abs(costs[before]):
                needs += float(kind.memory[best] - kind.memory[before])
                better = True
                current[node] = best
                for number in touching[node]:
                    for other, _ in ends_of[number]:
                        looked[other] = other == node and looked[node]
    total = problem.cost(current)
    return (tuple(current), total) if total < value else (tuple(choices), value)


def _costs_of(problem: ShardProblem, value: ValueNode, node: int, choices: Sequence[int]) -> Floats:
    """Seconds of a value's conversions by the choice of a node that touches it."""
    kind, (maker, result) = problem.value_kinds[value.kind], value.maker
    asked = set[int]()
    ports = []
    for reader, port in value.readers:
        if reader == node:
            ports.append(problem.node(node).reads[port])
        else:
            asked.update(kind.needs[problem.node(reader).reads[port][choices[reader]]])
    makes = problem.node(maker).makes[result]
    count = len(problem.node(node).seconds)
    sources = makes if maker == node else np.full(count, makes[choices[maker]])
    found = np.zeros(count)
    if not ports:
        for key in sorted(asked):
            found += kind.weights[sources, key]
        return found
    known: dict[tuple[int, ...], float] = {}
    for choice, told in enumerate(zip(sources.tolist(), *(port.tolist() for port in ports), strict=True)):
        if told not in known:
            keys = asked.union(*(kind.needs[need] for need in told[1:]))
            known[told] = float(sum(kind.weights[told[0], key] for key in sorted(keys)))
        found[choice] = known[told]
    return found


__all__ = ["SLACK", "descend"]
