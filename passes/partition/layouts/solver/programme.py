"""The sharding problem as a mixed-integer programme, which proves bounds and finds better plans where tables are too wide.

A column per node and choice: of a node's columns one is 1. Per value and reading node, a column for each pair of a source and a
set of needed keys; the pairs of a source add up to the maker's choices that give it, those of a set to the reader's choices
that need it (the local polytope, Wainwright and Jordan 2008: its corners are often integral). With one reader a pair costs what
its keys cost. With several, a column per source and key costs that once, and is at least what the pairs of each reader need of
it. Memory is a row. Only the columns of nodes must be integral.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from passes.partition.layouts.problem.graph import ValueNode
from passes.partition.layouts.problem.problem import Floats, ShardProblem
from passes.solvers.highs import SCALE, Rows, solve_rows
from passes.solvers.work import now

PAIR = 1e-4
"""Seconds that a pair asks for. With fewer the solver hardly comes to a first bound: it was of no use to seven programmes of
60 layers of BERT and T5 on 8 and 16 devices (up to 1,000,000 pairs). With more it closed six of eight gaps of up to 1.7 %."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """``choices`` of the best plan found, empty where there is none; ``bound`` seconds that no plan is below."""

    choices: tuple[int, ...]
    bound: float


def certified(
    problem: ShardProblem, choices: Sequence[int], value: float, memory: float | None, ends: float, gap: float
) -> Certificate:
    """Solves the programme from the plan ``choices`` that costs ``value``, until ``ends`` (of ``now``) or the relative ``gap``.
    The bound is 0 where time does not suffice."""
    seconds = ends - now()
    if seconds <= PAIR * _pairs(problem) or value <= 0:
        return Certificate((), 0.0)
    programme = _Programme(problem, SCALE / value)
    if memory is not None:
        programme.limit(memory)
    answer = solve_rows(
        programme.rows,
        programme.total,
        programme.factor,
        start=programme.start(choices),
        seconds=seconds,
        gap=max(gap, 1e-9),
        watch=lambda best, bound: now() < ends,
    )
    if answer.values is None:
        return Certificate((), answer.bound if math.isfinite(answer.bound) else 0.0)
    values = answer.values
    best = tuple(max(range(len(columns)), key=lambda choice: values[columns[choice]]) for columns in programme.taken)
    return Certificate(best, answer.bound)


def _pairs(problem: ShardProblem) -> int:
    """At most as many pairs has the programme."""
    counts = [len(kind.seconds) for kind in problem.node_kinds]
    return sum(
        counts[problem.kinds[value.maker[0]]] * counts[problem.kinds[node]]
        for value in problem.values
        for node, _ in value.readers
    )


class _Programme:
    """``taken[node][choice]`` and ``total``, the cost of a plan, are columns; a second costs ``factor``."""

    def __init__(self, problem: ShardProblem, factor: float) -> None:
        self.problem, self.factor, self.rows = problem, factor, Rows()
        self.total = self.rows.column(0.0, math.inf)
        self.costs: list[tuple[int, float]] = []
        seconds = [problem.node_kinds[kind].seconds.tolist() for kind in problem.kinds]
        self.taken = [[self.column(one, integer=True) for one in row] for row in seconds]
        for columns in self.taken:
            self.rows.row([(column, 1.0) for column in columns], 1.0, 1.0)
        for value in problem.values:
            self.value(value)
        self.rows.row([(self.total, 1.0), *((column, -cost) for column, cost in self.costs)], 0.0)

    def column(self, seconds: float, *, integer: bool = False) -> int:
        """A column from 0 to 1 that costs ``seconds``."""
        column = self.rows.column(0.0, 1.0, integer)
        if seconds:
            self.costs.append((column, seconds * self.factor))
        return column

    def limit(self, memory: float) -> None:
        """No plan needs more bytes than ``memory``."""
        unit = max(memory, 1.0)
        needed = [
            (column, float(size) / unit)
            for node, columns in enumerate(self.taken)
            for column, size in zip(columns, self.problem.node(node).memory, strict=True)
        ]
        self.rows.row(needed, upper=memory / unit)

    def value(self, value: ValueNode) -> None:
        """The pairs of a value, tied to the choices of its maker and its readers."""
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
            weights = kind.weights if len(readers) == 1 else np.zeros_like(kind.weights)
            pairs = {(s, keys): self.column(float(sum(weights[s, key] for key in keys))) for s in sources for keys in distinct}
            for source in sources:
                making = [(self.taken[maker][choice], -1.0) for choice, s in enumerate(makes.tolist()) if s == source]
                self.rows.row([*((pairs[source, keys], 1.0) for keys in distinct), *making], 0.0, 0.0)
            for keys in distinct:
                needing = [(self.taken[node][choice], -1.0) for choice, need in enumerate(needs) if need == keys]
                self.rows.row([*((pairs[source, keys], 1.0) for source in sources), *needing], 0.0, 0.0)
            if len(readers) > 1:
                self.pay(pairs, kind.weights, paid)

    def pay(self, pairs: dict[tuple[int, tuple[int, ...]], int], weights: Floats, paid: dict[tuple[int, int], int]) -> None:
        """A column per source and key, in ``paid``, that is at least what the ``pairs`` of a reader need of it."""
        needing: dict[tuple[int, int], list[int]] = {}
        for (source, keys), column in pairs.items():
            for key in keys:
                if weights[source, key]:
                    needing.setdefault((source, key), []).append(column)
        for source_key, columns in needing.items():
            if source_key not in paid:
                paid[source_key] = self.column(float(weights[source_key]))
            self.rows.row([(paid[source_key], 1.0), *((column, -1.0) for column in columns)], 0.0)

    def start(self, choices: Sequence[int]) -> dict[int, float]:
        """A plan as values of the columns of nodes."""
        return {
            column: float(choice == taken)
            for columns, taken in zip(self.taken, choices, strict=True)
            for choice, column in enumerate(columns)
        }
