"""Runs of a problem: consecutive copies of a repeated part, inside a chain of ``Graph.cells``, that are connected alike.

A copy is a *cell*, ``(chain, copy)``; a node in it has a *slot*, the same in all copies. A cell is described by the kinds of
its nodes and by a key for each value that it makes or reads:

- ends in this cell alone, or in this and a neighbour: the value's kind, and slot, kind and relative copy of each node at it;
- made outside of the chain: the number of the value, and the slots and ports at which this cell reads it;
- any other, such as a value that passes over a copy: the number of the copy, so that no other is described alike.

Consecutive cells of equal descriptions form a run: one table does for each of them. The first and the last cell of a chain are
in none, so that each cell of a run has two neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from passes.shard.problem.graph import Graph, Integers, ValueNode

Key: TypeAlias = tuple[Any, ...]
"""Nested tuples of integers; the first tells which of the three sorts it is of."""
INSIDE, FROM_ELSEWHERE, OTHER = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Run:
    """Copies ``first .. last`` of a chain; both neighbours are copies of it too."""

    chain: int
    first: int
    last: int

    @property
    def count(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Structure:
    """``places[node]``: chain, copy and slot of a node in a cell. ``cells[run][copy, slot]``: its nodes. ``touching[chain, copy]``: the values of a cell, in the order
    of its description; ``crossing[chain, copy]``: those between a cell and the next; ``spread``: values from elsewhere that
    several copies of a chain read."""

    places: dict[int, tuple[int, int, int]]
    runs: tuple[Run, ...]
    cells: dict[Run, Integers]
    touching: dict[tuple[int, int], tuple[int, ...]]
    crossing: dict[tuple[int, int], tuple[int, ...]]
    spread: frozenset[int]


@lru_cache(maxsize=2)
def structure_of(graph: Graph) -> Structure:
    """The runs of the chains of ``graph.cells``. Linear in the graph."""
    places = {
        node: (chain, copy, slot)
        for chain, cells in enumerate(graph.cells)
        for copy, nodes in enumerate(cells)
        for slot, node in enumerate(nodes)
    }
    touching: dict[tuple[int, int], list[tuple[Key, int]]] = {}
    crossing: dict[tuple[int, int], list[tuple[Key, int]]] = {}
    spread: set[int] = set()
    for number, value in enumerate(graph.values):
        ends = [places.get(node, (-1, -1, -1)) for node, _ in (value.maker, *value.readers)]
        for chain in sorted({end[0] for end in ends} - {-1}):
            copies = sorted({end[1] for end in ends if end[0] == chain})
            is_inside = all(end[0] == chain for end in ends) and copies[-1] - copies[0] <= 1
            from_elsewhere = ends[0][0] != chain
            reads: dict[int, list[tuple[int, int]]] = {copy: [] for copy in copies}
            for (_, port), end in zip(value.readers, ends[1:], strict=True):
                if end[0] == chain:
                    reads[end[1]].append((end[2], port))
            for copy in copies:
                if is_inside:
                    key = _inside(graph, value, places, copy)
                elif from_elsewhere:
                    key = FROM_ELSEWHERE, number, tuple(reads[copy])
                else:
                    key = OTHER, number, (copy,)
                touching.setdefault((chain, copy), []).append((key, number))
            if is_inside and len(copies) == 2:
                crossing.setdefault((chain, copies[0]), []).append((_inside(graph, value, places, copies[0]), number))
            if from_elsewhere and len(copies) > 1:
                spread.add(number)
    runs = _runs(graph, touching)
    return Structure(
        places,
        runs,
        {run: np.array(graph.cells[run.chain][run.first : run.last + 1]) for run in runs},
        {cell: tuple(number for _, number in sorted(keys)) for cell, keys in touching.items()},
        {cell: tuple(number for _, number in sorted(keys)) for cell, keys in crossing.items()},
        frozenset(spread),
    )


def _runs(graph: Graph, touching: dict[tuple[int, int], list[tuple[Key, int]]]) -> tuple[Run, ...]:
    """Longest stretches of two and more inner cells of equal descriptions."""
    runs = []
    for chain, cells in enumerate(graph.cells):
        descriptions = [
            (tuple(graph.kinds[node] for node in nodes), sorted(key for key, _ in touching.get((chain, copy), ())))
            for copy, nodes in enumerate(cells)
        ]
        first = 1
        for copy in range(2, len(cells)):
            if copy == len(cells) - 1 or descriptions[copy] != descriptions[first]:
                if copy - first > 1:
                    runs.append(Run(chain, first, copy - 1))
                first = copy
    return tuple(runs)


def _inside(graph: Graph, value: ValueNode, places: dict[int, tuple[int, int, int]], copy: int) -> Key:
    """The key of a value between cells of one chain, as ``copy`` sees it."""

    def end(node: int, port: int) -> tuple[int, int, int, int]:
        return places[node][1] - copy, places[node][2], graph.kinds[node], port

    return INSIDE, value.kind, end(*value.maker), tuple(sorted(end(*reader) for reader in value.readers))


__all__ = ["Run", "Structure", "structure_of"]
