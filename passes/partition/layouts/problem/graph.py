"""Who makes and reads which value: what a problem keeps when choices of its nodes go.

Values of one ``Form`` join nodes of the same kinds in the same way, so one table holds for all of them; nodes of one ``Place``
have the same kind and stand in the same way among values. A repeated layer adds nodes and values, but no forms and few places.
No node reads a value that it makes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Integers: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ValueNode:
    """A value: its kind, who makes it (node, result), who reads it (node, port)."""

    kind: int
    maker: tuple[int, int]
    readers: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Form:
    """Values of one ``kind``; ``maker``: node kind and result; ``readers``: of each reading node its kind and the ports at
    which it reads. ``nodes[value]``: the maker, then the reading nodes; ``values``: where these values stand in
    ``Graph.values``."""

    kind: int
    maker: tuple[int, int]
    readers: tuple[tuple[int, tuple[int, ...]], ...]
    nodes: Integers
    values: Integers

    @property
    def roles(self) -> list[int]:
        """Of each position in ``nodes`` the first one whose node makes or reads the value likewise."""
        first: dict[object, int] = {}
        return [0, *(first.setdefault(reader, place) for place, reader in enumerate(self.readers, 1))]


@dataclass(frozen=True, slots=True)
class Place:
    """Nodes of one ``kind``; ``sides``: the form of each value that a node of it touches, and its role there (``Form.roles``;
    0: the maker). ``rows[node, side]``: which value of that form it is; ``at[node, side]``: its position in ``Form.nodes``."""

    kind: int
    sides: tuple[tuple[int, int], ...]
    nodes: Integers
    rows: Integers
    at: Integers


@dataclass(frozen=True, eq=False)
class Graph:
    """``kinds[node]`` is the kind of each node. ``cells``: chains of repeated parts, each a list of copies, a copy the nodes of
    one in an order that all copies share; whatever is not in one is not repeated. They only make the search fast."""

    kinds: tuple[int, ...]
    values: tuple[ValueNode, ...]
    cells: tuple[tuple[tuple[int, ...], ...], ...] = ()

    @cached_property
    def kind_of(self) -> Integers:
        """``kinds`` as an array."""
        return np.array(self.kinds, np.int64)

    @cached_property
    def forms(self) -> tuple[Form, ...]:
        return self._formed[0]

    @cached_property
    def form_of(self) -> tuple[tuple[int, int], ...]:
        """Of each value its form and its row in ``Form.nodes``."""
        return self._formed[1]

    @cached_property
    def rows(self) -> tuple[list[list[int]], ...]:
        """``Form.nodes`` of each form, as lists."""
        return tuple([form.nodes.tolist() for form in self.forms])

    @cached_property
    def _formed(self) -> tuple[tuple[Form, ...], tuple[tuple[int, int], ...]]:
        known: dict[tuple[int, tuple[int, int], tuple[tuple[int, tuple[int, ...]], ...]], int] = {}
        rows: list[list[tuple[int, ...]]] = []
        numbers: list[list[int]] = []
        form_of = []
        kinds = self.kinds
        for number, value in enumerate(self.values):
            ports: dict[int, tuple[int, ...]] = {}
            for node, port in value.readers:
                ports[node] = (*ports[node], port) if node in ports else (port,)
            maker = kinds[value.maker[0]], value.maker[1]
            key = value.kind, maker, tuple([(kinds[node], listed) for node, listed in ports.items()])
            form = known.setdefault(key, len(known))
            if form == len(rows):
                rows.append([])
                numbers.append([])
            form_of.append((form, len(rows[form])))
            rows[form].append((value.maker[0], *ports))
            numbers[form].append(number)
        forms = (
            Form(*key, np.array(row, np.int64), np.array(own, np.int64))
            for key, row, own in zip(known, rows, numbers, strict=True)
        )
        return tuple(forms), tuple(form_of)

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """In the order of their first nodes."""
        columns = []
        for form, one in enumerate(self.forms):
            row, position = np.indices(one.nodes.shape).reshape(2, -1)
            role = np.array(one.roles)[position]
            columns.append(np.stack([one.nodes.ravel(), one.values[row], np.full(len(row), form), role, row, position]))
        ends = np.hstack(columns) if columns else np.zeros((6, 0), np.int64)
        ends = ends[:, np.lexsort((ends[1], ends[0]))]
        starts = np.searchsorted(ends[0], np.arange(len(self.kinds) + 1)).tolist()
        sides, rows, at = np.ascontiguousarray(ends[2:4].T), ends[4], ends[5]
        alike: dict[tuple[int, bytes], list[int]] = {}
        for node, kind in enumerate(self.kinds):
            alike.setdefault((kind, sides[starts[node] : starts[node + 1]].tobytes()), []).append(node)
        found = []
        for (kind, _), nodes in alike.items():
            count = starts[nodes[0] + 1] - starts[nodes[0]]
            first = np.array([starts[node] for node in nodes])
            told = tuple((int(form), int(role)) for form, role in sides[first[0] : first[0] + count])
            own = first[:, None] + np.arange(count)
            found.append(Place(kind, told, np.array(nodes), rows[own], at[own]))
        return tuple(found)

    def distinct(self, choices: Sequence[int] | Integers) -> Iterator[tuple[Form, Integers, Integers]]:
        """Of each form the distinct choices around its values, ``[number, position]``, and the number of each value."""
        chosen = np.asarray(choices, np.int64)
        for form in self.forms:
            yield form, *distinct_rows(chosen[form.nodes])


def distinct_rows(rows: Integers) -> tuple[Integers, Integers]:
    """The distinct rows of a matrix of numbers from 0 on, and which of these each row is."""
    if len(rows) == 1:
        return rows, np.zeros(1, np.int64)
    base, width = int(rows.max(initial=0)) + 1, rows.shape[1]
    if base**width < 1 << 62:
        codes = rows @ np.array([base**place for place in range(width)], np.int64)
        _, first, number = np.unique(codes, return_index=True, return_inverse=True)
        return rows[first], number
    distinct, number = np.unique(rows, axis=0, return_inverse=True)
    return distinct, number.reshape(-1)
