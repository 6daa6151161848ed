"""Where a problem repeats: stretches of copies that meet their neighbours in the same way.

A copy (a *cell*) is described by the kinds of its nodes and by every value that touches it, told relative to the cell: values
inside it, values to or from the cell before or after, and values from elsewhere by their number. Consecutive cells with equal
descriptions form a *run*: one table does for each of them. A value that joins a cell with anything else makes
its description its own, so what is not truly periodic is simply not part of a run. Descriptions are compared, not hashed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from passes.shard.problem.graph import Graph, ValueNode

Place: TypeAlias = tuple[int, int, int]
"""Chain, copy, slot."""
SHORTEST = 2


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
    """``touching[chain, copy]``: the values of a cell, in the order of its description; ``crossing[chain, copy]``: those
    between a cell and the next; ``spread``: values from elsewhere that several copies of a chain read."""

    places: dict[int, Place]
    runs: tuple[Run, ...]
    touching: dict[tuple[int, int], tuple[int, ...]]
    crossing: dict[tuple[int, int], tuple[int, ...]]
    spread: frozenset[int]


@lru_cache(maxsize=2)
def structure_of(graph: Graph) -> Structure:
    """The runs of the chains of ``graph.cells``. Linear in the graph."""
    places: dict[int, Place] = {}
    for chain, cells in enumerate(graph.cells):
        for copy, nodes in enumerate(cells):
            places.update((node, (chain, copy, slot)) for slot, node in enumerate(nodes))
    told: dict[tuple[int, int], list[tuple[Any, int]]] = {}  # keys are nested tuples of integers
    across: dict[tuple[int, int], list[tuple[Any, int]]] = {}
    spread: set[int] = set()
    for number, value in enumerate(graph.values):
        ends = [places.get(node) for node, _ in (value.maker, *value.readers)]
        for chain in sorted({end[0] for end in ends if end}):
            copies = sorted({end[1] for end in ends if end and end[0] == chain})
            outside = any(end is None or end[0] != chain for end in ends)
            key: Any
            if not outside and copies[-1] - copies[0] <= 1:
                for copy in copies:
                    told.setdefault((chain, copy), []).append((_inside(graph, value, places, copy), number))
                if len(copies) == 2:
                    key = _inside(graph, value, places, copies[0])
                    across.setdefault((chain, copies[0]), []).append((key, number))
            else:
                maker = ends[0]
                ports: dict[int, list[tuple[int, int]]] = {copy: [] for copy in copies}
                for (_, port), end in zip(value.readers, ends[1:], strict=True):
                    if end and end[0] == chain:
                        ports[end[1]].append((end[2], port))
                given = maker is None or maker[0] != chain
                if given and len(copies) > 1:
                    spread.add(number)
                for copy in copies:
                    key = (1, number, tuple(ports[copy])) if given else (2, number, (copy,))
                    told.setdefault((chain, copy), []).append((key, number))
    runs: list[Run] = []
    for chain, cells in enumerate(graph.cells):
        digests = [
            (tuple(graph.kinds[node] for node in nodes), sorted(key for key, _ in told.get((chain, copy), ())))
            for copy, nodes in enumerate(cells)
        ]
        odd = [any(key[0] == 2 for key in keys) for _, keys in digests]
        first = 1
        while first < len(digests) - 1:
            last = first
            while last + 1 < len(digests) - 1 and not odd[first] and digests[last + 1] == digests[first]:
                last += 1
            run = Run(chain, first, last)
            if run.count >= SHORTEST:
                runs.append(run)
            first = last + 1
    return Structure(
        places,
        tuple(runs),
        {cell: tuple(number for _, number in sorted(keys)) for cell, keys in told.items()},
        {cell: tuple(number for _, number in sorted(keys)) for cell, keys in across.items()},
        frozenset(spread),
    )


def _inside(graph: Graph, value: ValueNode, places: dict[int, Place], copy: int) -> tuple[Any, ...]:
    """A value as ``copy`` sees it."""

    def end(node: int, port: int) -> tuple[int, int, int, int]:
        return places[node][1] - copy, places[node][2], graph.kinds[node], port

    return (0, value.kind, end(*value.maker), tuple(sorted(end(*reader) for reader in value.readers)))


__all__ = ["SHORTEST", "Place", "Run", "Structure", "structure_of"]
