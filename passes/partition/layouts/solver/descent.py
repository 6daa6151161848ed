"""Coordinate descent: one node at a time takes the choice that costs least where the others stay as they are.

A round looks at all nodes at once: nodes of one ``Place`` with equal choices around them are one case. Where a case has a
cheaper choice, its nodes are looked at one after the other, since each that changes leaves less memory and other surroundings
for the next.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from ir.core.outcomes import TIGHT
from passes.partition.layouts.problem.graph import Form, Integers, Place, distinct_rows
from passes.partition.layouts.problem.problem import Floats, ShardProblem
from passes.solvers.work import did, now


def descend(
    problem: ShardProblem, choices: Sequence[int], value: float, memory: float | None, ends: float
) -> tuple[tuple[int, ...], float]:
    """A plan that no single change that fits makes cheaper, if there is time, and its seconds; ``choices``, which cost
    ``value``, where it is no better. ``memory``: bytes at most; ``ends``: of ``now``."""
    descent = _Descent(problem, choices, math.inf if memory is None else memory)
    best, going = (tuple(choices), value), True
    while going and now() < ends:
        going = descent.round(ends)
        total = problem.cost(descent.choices)
        if total >= best[1]:  # a node that reads what it makes itself may seem to gain from both ends of a value
            break
        best = tuple(descent.choices.tolist()), total
    return best


class _Descent:
    def __init__(self, problem: ShardProblem, choices: Sequence[int], memory: float) -> None:
        self.problem, self.choices = problem, np.array(choices, np.int64)
        self.room = memory - problem.memory(choices)
        self.costs: list[Floats] = []
        self.known: dict[object, int] = {}
        self.often: dict[tuple[int, int], Counter[int]] = {}
        self.asked: dict[tuple[int, int, tuple[int, ...], int], frozenset[int]] = {}

    def round(self, ends: float) -> bool:
        """Changes every node that a change makes cheaper; whether there was one."""
        around = []
        for form, rows, number in self.problem.graph.distinct(self.choices):
            around.append(np.array([self.around(form, row) for row in rows.tolist()], np.int64)[number])
        better: list[tuple[int, Place, Integers]] = []
        for place in self.problem.graph.places:
            columns = [self.choices[place.nodes]]
            columns += [
                around[form][rows, at] for (form, _), rows, at in zip(place.sides, place.rows.T, place.at.T, strict=True)
            ]
            cases, number = distinct_rows(np.stack(columns, axis=1))
            did("node", len(cases))
            gains = np.array([self.best(place.kind, case[0], case[1:]) != case[0] for case in cases.tolist()])
            for index in np.flatnonzero(gains[number]).tolist():
                better.append((int(place.nodes[index]), place, place.rows[index]))
        changed = False
        for node, place, rows in sorted(better, key=lambda one: one[0]):
            if now() > ends:
                return False
            changed = self.change(node, place, rows) or changed
        return changed

    def change(self, node: int, place: Place, rows: Integers) -> bool:
        """Gives a node its best choice; whether that is another one."""
        forms, before = self.problem.graph.forms, int(self.choices[node])
        ends = [(forms[number], position, row) for (number, position), row in zip(place.sides, rows.tolist(), strict=True)]
        sides = []
        for form, position, row in ends:
            source = self.source(form, int(self.choices[form.nodes[row, 0]]))
            sides.append(self.side(form, position, source, self.counted(form, row), before))
        best = self.best(place.kind, before, sides)
        did("node", 1)
        if best == before:
            return False
        memory = self.problem.node_kinds[place.kind].memory
        self.room -= float(memory[best] - memory[before])
        for form, position, row in ends:
            if position:
                often = self.counted(form, row)
                often.subtract(self.keys(form.kind, *form.readers[position - 1], before))
                often.update(self.keys(form.kind, *form.readers[position - 1], best))
        self.choices[node] = best
        return True

    def counted(self, form: Form, row: int) -> Counter[int]:
        """How many readers of a value need each key at present."""
        if (id(form), row) not in self.often:
            self.often[id(form), row] = self.needed(form, self.choices[form.nodes[row]].tolist())
        return self.often[id(form), row]

    def best(self, number: int, before: int, sides: Sequence[int]) -> int:
        """The choice of a node of a kind that costs least of those that fit; ``sides``: the costs at each of its values."""
        kind = self.problem.node_kinds[number]
        costs = kind.seconds + sum(self.costs[side] for side in sides)
        best = int(np.where(kind.memory <= self.room + float(kind.memory[before]), costs, np.inf).argmin())
        fits = kind.memory[best] <= self.room + float(kind.memory[before])
        return best if fits and costs[best] < costs[before] - TIGHT * abs(costs[before]) else before

    def around(self, form: Form, row: Sequence[int]) -> list[int]:
        """The numbers of the costs by choice of each node that a value of a form joins; ``row``: what these choose."""
        often, source = self.needed(form, row), self.source(form, row[0])
        return [self.side(form, position, source, often, choice) for position, choice in enumerate(row)]

    def needed(self, form: Form, row: Sequence[int]) -> Counter[int]:
        pairs = zip(form.readers, row[1:], strict=True)
        return Counter(key for reader, choice in pairs for key in self.keys(form.kind, *reader, choice))

    def source(self, form: Form, choice: int) -> int:
        """Of a value whose maker has a choice."""
        maker, result = form.maker
        return int(self.problem.node_kinds[maker].makes[result][choice])

    def side(self, form: Form, position: int, source: int, often: Counter[int], choice: int) -> int:
        """The number of the costs by choice of the node at a position that has a choice now; ``often``: how many readers need
        each key."""
        own = self.keys(form.kind, *form.readers[position - 1], choice) if position else frozenset[int]()
        others = frozenset(key for key, count in often.items() if count > (key in own))
        reader = form.readers[position - 1] if position else None
        key = form.kind, reader, source if reader else form.maker, others
        if key not in self.known:
            costs = self.read(form, reader, source, others) if reader else self.made(form, others)
            did("conversion", len(costs))
            self.known[key] = len(self.costs)
            self.costs.append(costs)
        return self.known[key]

    def made(self, form: Form, keys: frozenset[int]) -> Floats:
        """Seconds of a value's conversions to ``keys`` by the choice of its maker."""
        maker, result = form.maker
        weights = self.problem.value_kinds[form.kind].weights
        return np.asarray(weights[:, sorted(keys)].sum(axis=1)[self.problem.node_kinds[maker].makes[result]])

    def read(self, form: Form, reader: tuple[int, tuple[int, ...]], source: int, others: frozenset[int]) -> Floats:
        """Seconds of a value's conversions from a source by the choice of a reader where others ask for the keys ``others``."""
        weights = self.problem.value_kinds[form.kind].weights[source]
        count = len(self.problem.node_kinds[reader[0]].seconds)
        asked = [self.keys(form.kind, *reader, choice) for choice in range(count)]
        known = {keys: math.fsum(float(weights[key]) for key in keys | others) for keys in set(asked)}
        return np.array([known[keys] for keys in asked])

    def keys(self, kind: int, reader: int, ports: tuple[int, ...], choice: int) -> frozenset[int]:
        """The keys of a value that a reader needs under a choice."""
        key = kind, reader, ports, choice
        if key not in self.asked:
            needs, reads = self.problem.value_kinds[kind].needs, self.problem.node_kinds[reader].reads
            self.asked[key] = frozenset(one for port in ports for one in needs[reads[port][choice]])
        return self.asked[key]
