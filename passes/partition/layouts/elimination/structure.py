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

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from passes.partition.layouts.problem.graph import Form, Graph, Integers, distinct_rows

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
    """``places[node]``: chain, copy and slot of a node in a cell. ``cells[run][copy, slot]``: the nodes of a run.
    ``touching[chain, copy]``: the values of a cell, in the order of its description; ``crossing[chain, copy]``: those between a
    cell and the next; ``spread``: values from elsewhere that several copies of a chain read."""

    places: dict[int, tuple[int, int, int]]
    runs: tuple[Run, ...]
    cells: dict[Run, Integers]
    touching: dict[tuple[int, int], tuple[int, ...]]
    crossing: dict[tuple[int, int], tuple[int, ...]]
    spread: frozenset[int]


@lru_cache(maxsize=2)
def structure_of(graph: Graph) -> Structure:
    """The runs of the chains of ``graph.cells``. Linear in the graph; keys are made once for values that are alike."""
    places = {
        node: (chain, copy, slot)
        for chain, cells in enumerate(graph.cells)
        for copy, nodes in enumerate(cells)
        for slot, node in enumerate(nodes)
    }
    place_of = np.full((len(graph.kinds), 3), -1, np.int64)
    if places:
        place_of[list(places)] = list(places.values())
    touching: list[tuple[int, int, Key, int]] = []
    crossing: list[tuple[int, int, Key, int]] = []
    spread: set[int] = set()
    for form in graph.forms:
        chain, copy, slot = np.moveaxis(place_of[form.nodes], -1, 0)
        first, last = copy.min(axis=1), copy.max(axis=1)
        inside = (chain == chain[:, :1]).all(axis=1) & (chain[:, 0] >= 0) & (last - first <= 1)
        alike, number = distinct_rows(np.hstack([copy - first[:, None], slot])[inside])
        for row, relative in enumerate(alike.tolist()):
            keys = _inside(form, relative)
            mine = np.flatnonzero(inside)[number == row]
            for value, one, at in zip(form.values[mine].tolist(), chain[mine, 0].tolist(), first[mine].tolist(), strict=True):
                touching += [(one, at + ahead, key, value) for ahead, key in enumerate(keys)]
                if len(keys) == 2:
                    crossing.append((one, at, keys[0], value))
        for value in form.values[~inside].tolist():
            _across(graph, value, places, touching, spread)
    of_cells = _by_cell(touching)
    runs = _runs(graph, {cell: [key for key, _ in keys] for cell, keys in of_cells.items()})
    return Structure(
        places,
        runs,
        {run: np.array(graph.cells[run.chain][run.first : run.last + 1]) for run in runs},
        {cell: tuple([value for _, value in keys]) for cell, keys in of_cells.items()},
        {cell: tuple([value for _, value in keys]) for cell, keys in _by_cell(crossing).items()},
        frozenset(spread),
    )


def _by_cell(rows: Sequence[tuple[int, int, Key, int]]) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Of each cell the keys of its values, as ranks among all keys, and the numbers of the values, sorted."""
    rank = {key: place for place, key in enumerate(sorted({key for _, _, key, _ in rows}))}
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for chain, copy, key, value in rows:
        found.setdefault((chain, copy), []).append((rank[key], value))
    for keys in found.values():
        keys.sort()
    return found


def _runs(graph: Graph, keys: dict[tuple[int, int], list[int]]) -> tuple[Run, ...]:
    """Longest stretches of two and more inner cells of equal descriptions."""
    runs = []
    for chain, cells in enumerate(graph.cells):
        kinds = graph.kind_of[np.array(cells)].tolist()
        descriptions = [(own, keys.get((chain, copy), [])) for copy, own in enumerate(kinds)]
        first = 1
        for copy in range(2, len(cells)):
            if copy == len(cells) - 1 or descriptions[copy] != descriptions[first]:
                if copy - first > 1:
                    runs.append(Run(chain, first, copy - 1))
                first = copy
    return tuple(runs)


def _inside(form: Form, relative: Sequence[int]) -> tuple[Key, ...]:
    """The keys of a value between cells of one chain, as the first of its cells sees it, and the second if there is one.
    ``relative``: by how many copies each node of the value is behind the first cell, then the slots of the nodes."""
    count = len(form.readers) + 1
    (maker, result), copies, slots = form.maker, relative[:count], relative[count:]
    found = []
    for cell in range(max(copies) + 1):
        made = copies[0] - cell, slots[0], maker, result
        read = [
            (copies[place] - cell, slots[place], kind, port)
            for place, (kind, ports) in enumerate(form.readers, 1)
            for port in ports
        ]
        found.append((INSIDE, form.kind, made, tuple(sorted(read))))
    return tuple(found)


def _across(
    graph: Graph,
    number: int,
    places: dict[int, tuple[int, int, int]],
    touching: list[tuple[int, int, Key, int]],
    spread: set[int],
) -> None:
    """Adds a value that does not end in one cell or two neighbours of a chain."""
    value = graph.values[number]
    ends = [places.get(node, (-1, -1, -1)) for node, _ in (value.maker, *value.readers)]
    for chain in sorted({end[0] for end in ends} - {-1}):
        copies = sorted({end[1] for end in ends if end[0] == chain})
        reads: dict[int, list[tuple[int, int]]] = {copy: [] for copy in copies}
        for (_, port), end in zip(value.readers, ends[1:], strict=True):
            if end[0] == chain:
                reads[end[1]].append((end[2], port))
        elsewhere = ends[0][0] != chain
        for copy in copies:
            key: Key = (FROM_ELSEWHERE, number, tuple(reads[copy])) if elsewhere else (OTHER, number, (copy,))
            touching.append((chain, copy, key, number))
        if elsewhere and len(copies) > 1:
            spread.add(number)
