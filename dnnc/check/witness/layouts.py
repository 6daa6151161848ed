"""What a price of memory proves of plans on one mesh: the least seconds of all layouts, by elimination.

Of one mesh, a plan chooses a strategy for each op and a layout for each weight and result. Each choice costs seconds and bytes,
and so does each value for each distinct layout that its readers need. The numbers of one op and of one conversion are asked of
``passes.partition.layouts.problem``; the minimum is found here. With a price of l >= 0 seconds per byte of memory, and a limit
of c bytes,

    seconds >= min over all choices of (seconds + l bytes) - l c    (weak duality)

The minimum is one of a sum of tables over few variables each: a variable is eliminated by adding the tables that it is in and
taking the minimum over it, the one with the smallest sum first. Choices with equal layouts all around are one. Where a table
would have more than ``MOST`` entries, the sum of minima stands for the minimum of the sum, and a value is paid in parts by each
reader alone: less than what any plan pays, so the result stays a bound.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from passes.partition.layouts.problem.problem import ShardProblem

Floats: TypeAlias = NDArray[np.float64]
Variables: TypeAlias = tuple[int, ...]
MOST = 1 << 21
"""Entries of a table."""


@dataclass(slots=True)
class Tables:
    """A sum of tables, each over its variables, ascending; ``sizes[v]``: how many choices variable v has; ``exact``: whether
    nothing was left out."""

    sizes: list[int]
    at: dict[int, list[tuple[Variables, Floats]]] = field(default_factory=lambda: defaultdict(list))
    rest: float = 0.0
    exact: bool = True

    def add(self, variables: Variables, table: Floats) -> None:
        if not variables:
            self.rest += float(table)
            return
        for v in variables:
            self.at[v].append((variables, table))

    def size(self, v: int) -> int:
        """Entries of the sum of the tables with a variable."""
        return math.prod(self.sizes[u] for u in {u for variables, _ in self.at[v] for u in variables})

    def eliminate(self, v: int) -> set[int]:
        """Takes the minimum over a variable; returns those that it stood beside."""
        own, beside = self.at.pop(v, []), set[int]()
        groups: list[tuple[set[int], list[tuple[Variables, Floats]]]] = []
        for variables, table in sorted(own, key=lambda one: -one[1].size):
            for u in variables:
                if u != v:
                    self.at[u] = [one for one in self.at[u] if one[1] is not table]
            beside.update(variables)
            for scope, tables in groups:
                if math.prod(self.sizes[u] for u in scope.union(variables)) <= MOST:
                    scope.update(variables)
                    tables.append((variables, table))
                    break
            else:
                groups.append((set(variables), [(variables, table)]))
        self.exact = self.exact and len(groups) <= 1
        for scope, tables in groups:
            order = tuple(sorted(scope))
            total = np.zeros([self.sizes[u] for u in order])
            for variables, table in tables:
                total += table.reshape([self.sizes[u] if u in variables else 1 for u in order])
            self.add(tuple(u for u in order if u != v), total.min(axis=order.index(v)))
        return beside - {v}

    def least(self) -> float:
        """The minimum of the sum, or a bound of it."""
        queue = [(self.size(v), v) for v in range(len(self.sizes))]
        heapq.heapify(queue)
        left = set(range(len(self.sizes)))
        while queue:
            size, v = heapq.heappop(queue)
            if v not in left:
                continue
            if size != (now := self.size(v)):
                heapq.heappush(queue, (now, v))
                continue
            left.discard(v)
            for u in self.eliminate(v):
                heapq.heappush(queue, (self.size(u), u))
        return self.rest


def least_seconds(problem: ShardProblem, price: float, memory: float | None) -> tuple[float, bool]:
    """Seconds that no choice of the problem is below within ``memory`` bytes (None: no limit) by this price, and whether they
    are the minimum."""
    price = price if memory is not None else 0.0
    classes, kinds = [_classes(problem, number, price) for number in range(len(problem.node_kinds))], problem.kinds
    tables = Tables([len(classes[kind][0]) for kind in kinds])
    for node, kind in enumerate(kinds):
        tables.add((node,), classes[kind][1])
    known: dict[object, Floats] = {}
    for value in problem.values:
        maker, result = value.maker
        ports: dict[int, list[int]] = defaultdict(list)
        for node, port in value.readers:
            ports[node].append(port)
        readers = sorted(ports.items())
        if math.prod(tables.sizes[node] for node in {maker, *ports}) > MOST // 8:
            parts, tables.exact = [[reader] for reader in readers], False
        else:
            parts = [readers]
        for part in parts:
            key = value.kind, kinds[maker], result, len(parts), tuple((kinds[node], tuple(own)) for node, own in part)
            if key not in known:
                known[key] = _converted(problem, classes, *key)
            nodes = (maker, *(node for node, _ in part))
            table = known[key]
            if maker in ports:  # copies that stand for each other: the same choice on both sides
                table = np.diagonal(table, axis1=0, axis2=1 + nodes[1:].index(maker))
                nodes = (*(node for node in nodes[1:] if node != maker), maker)
            order = sorted(range(len(nodes)), key=lambda i: nodes[i])
            tables.add(tuple(nodes[i] for i in order), np.ascontiguousarray(table.transpose(order)))
    found = tables.least()
    return found - (price * memory if memory is not None else 0.0), tables.exact


def _classes(problem: ShardProblem, number: int, price: float) -> tuple[list[int], Floats]:
    """Of a kind of nodes, one choice for each way to read and make, and what the cheapest such choice costs."""
    kind = problem.node_kinds[number]
    costs = kind.seconds + price * kind.memory if price else kind.seconds
    first: dict[tuple[int, ...], int] = {}
    least: list[float] = []
    chosen: list[int] = []
    for choice, cost in enumerate(costs.tolist()):
        way = tuple(int(column[choice]) for column in (*kind.reads, *kind.makes))
        place = first.setdefault(way, len(least))
        if place == len(least):
            least.append(math.inf)
            chosen.append(choice)
        least[place] = min(least[place], cost)
    return chosen, np.array(least)


def _converted(
    problem: ShardProblem,
    classes: list[tuple[list[int], Floats]],
    value_kind: int,
    maker: int,
    result: int,
    parts: int,
    readers: tuple[tuple[int, tuple[int, ...]], ...],
) -> Floats:
    """Seconds of the conversions of a value, by the choices of its maker and of its readers; a part of them, if it is paid in
    so many ``parts``."""
    kind = problem.value_kinds[value_kind]
    sources = problem.node_kinds[maker].makes[result][classes[maker][0]]
    keys = kind.weights.shape[1]
    wanted = []
    for reader, ports in readers:
        columns = problem.node_kinds[reader].reads
        rows = np.zeros((len(classes[reader][0]), keys), bool)
        for row, choice in zip(rows, classes[reader][0], strict=True):
            for port in ports:
                row[list(kind.needs[columns[port][choice]])] = True
        wanted.append(rows)
    table = np.zeros([len(sources), *map(len, wanted)])
    for key in range(keys):
        some = np.zeros(table.shape[1:], bool)
        for place, rows in enumerate(wanted):
            some |= rows[:, key].reshape([-1 if axis == place else 1 for axis in range(len(wanted))])
        if some.any():
            paid = kind.weights[sources, key].reshape([-1, *[1] * len(wanted)])
            table += np.where(some, paid, 0.0) / parts
    return table
