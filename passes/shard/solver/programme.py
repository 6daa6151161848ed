"""The sharding problem as a mixed-integer programme: what certifies plans where tables are too wide, and finds better ones.

A column per node and choice, of which one is taken; per value and reading node a column for each pair of a source and a set of
needed keys, whose sums are the choices of maker and reader (the local polytope, Wainwright and Jordan 2008: often whole by
itself). With one reader a pair costs what its keys cost; with several, a column per source and key is at least what the pairs
of any reader need of it, and costs once. Memory is a row. Only the columns of nodes must be whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from passes.model.highs import SCALE, Rows, solve_rows
from passes.model.work import now
from passes.shard.problem.problem import Floats, ShardProblem, ValueNode

MOST_COLUMNS = 1_000_000
"""Of pairs; larger programmes are not worth their time."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """``choices`` of the best plan found, empty where there is none; ``bound`` seconds that no plan is below."""

    choices: tuple[int, ...]
    bound: float


def certified(
    problem: ShardProblem, choices: Sequence[int], value: float, memory: float | None, ends: float, gap: float
) -> Certificate:
    """Solves the programme from the plan ``choices`` that costs ``value``, until ``ends`` (of ``now``) or the
    relative ``gap``. The bound is 0 where the programme is too large or time does not suffice."""
    seconds = ends - now()
    if seconds <= 0 or value <= 0 or _size(problem) > MOST_COLUMNS:
        return Certificate((), 0.0)
    written = _Written(problem, SCALE / value)
    if memory is not None:
        written.limit(memory)
    answer = solve_rows(
        written.rows,
        written.total,
        written.factor,
        start=written.start(choices),
        seconds=seconds,
        gap=max(gap, 1e-9),
        threads=1,
        seed=0,
        watch=lambda best, bound: now() < ends,
        options={},
    )
    if answer.values is None:
        return Certificate((), answer.bound if math.isfinite(answer.bound) else 0.0)
    values = answer.values
    found = tuple(max(range(len(columns)), key=lambda choice: values[columns[choice]]) for columns in written.taken)
    return Certificate(found, answer.bound)


def _size(problem: ShardProblem) -> int:
    """Pairs of all values and their reading nodes, at most."""
    counts = [len(kind.seconds) for kind in problem.node_kinds]
    return sum(
        counts[problem.kinds[value.maker[0]]] * counts[problem.kinds[node]]
        for value in problem.values
        for node, _ in value.readers
    )


class _Written:
    """The rows; ``taken[node][choice]`` and ``total`` are columns, ``factor`` units of cost a second."""

    def __init__(self, problem: ShardProblem, factor: float) -> None:
        self.problem, self.factor, self.rows = problem, factor, Rows()
        self.total = self.rows.column(0.0, math.inf)
        self.costs: list[tuple[int, float]] = []
        self.taken = [[self.column(float(cost), True) for cost in problem.node(node).seconds] for node in range(problem.size)]
        for columns in self.taken:
            self.rows.row([(column, 1.0) for column in columns], 1.0, 1.0)
        for value in problem.values:
            self.value(value)
        self.rows.row([(self.total, 1.0), *((column, -cost) for column, cost in self.costs)], 0.0)

    def column(self, cost: float, integer: bool = False) -> int:
        column = self.rows.column(0.0, 1.0, integer)
        if cost:
            self.costs.append((column, cost * self.factor))
        return column

    def limit(self, memory: float) -> None:
        most = max(memory, 1.0)
        used = [
            (column, float(size) / most)
            for node, columns in enumerate(self.taken)
            for column, size in zip(columns, self.problem.node(node).memory, strict=True)
        ]
        self.rows.row(used, upper=memory / most)

    def value(self, value: ValueNode) -> None:
        kind = self.problem.value_kinds[value.kind]
        maker, result = value.maker
        makes = self.problem.node(maker).makes[result]
        sources = sorted(set(makes.tolist()))
        readers: dict[int, list[int]] = {}
        for node, port in value.readers:
            readers.setdefault(node, []).append(port)
        paid: dict[tuple[int, int], int] = {}
        for node, ports in readers.items():
            columns = [self.problem.node(node).reads[port].tolist() for port in ports]
            needs = [tuple(sorted({key for need in row for key in kind.needs[need]})) for row in zip(*columns, strict=True)]
            distinct = sorted(set(needs))
            price = kind.weights if len(readers) == 1 else np.zeros_like(kind.weights)
            pairs = {(s, keys): self.column(float(sum(price[s, key] for key in keys))) for s in sources for keys in distinct}
            for source in sources:
                made = [(self.taken[maker][c], -1.0) for c, s in enumerate(makes.tolist()) if s == source]
                self.rows.row([*((pairs[source, keys], 1.0) for keys in distinct), *made], 0.0, 0.0)
            for keys in distinct:
                asked = [(self.taken[node][c], -1.0) for c, need in enumerate(needs) if need == keys]
                self.rows.row([*((pairs[source, keys], 1.0) for source in sources), *asked], 0.0, 0.0)
            if len(readers) > 1:
                self.pay(pairs, kind.weights, paid)

    def pay(self, pairs: dict[tuple[int, tuple[int, ...]], int], weights: Floats, paid: dict[tuple[int, int], int]) -> None:
        """Each key of a source costs as much as the reader that needs it most."""
        needing: dict[tuple[int, int], list[int]] = {}
        for (source, keys), column in pairs.items():
            for key in keys:
                if weights[source, key]:
                    needing.setdefault((source, key), []).append(column)
        for place, columns in needing.items():
            if place not in paid:
                paid[place] = self.column(float(weights[place]))
            self.rows.row([(paid[place], 1.0), *((column, -1.0) for column in columns)], 0.0)

    def start(self, choices: Sequence[int]) -> dict[int, float]:
        """A plan as values of the columns of nodes."""
        return {
            column: float(choice == taken)
            for columns, taken in zip(self.taken, choices, strict=True)
            for choice, column in enumerate(columns)
        }


__all__ = ["Certificate", "certified"]
