"""The sharding problem as numbers: nodes with choices, values with layouts, and what an assignment costs.

A *node* is an op, a weight or an output; a *choice* of it is one strategy per mesh axis. Nodes of one ``NodeKind`` are alike: a
repeated layer adds nodes, but no kinds. A *value* goes from the node that makes it to those that read it. A choice of the maker
gives it a *source* (its layout); a choice of a reader *needs* keys of it: the layout that it reads, and in training the layout
in which it gives the gradient back. Each (value, key) is paid once, however many readers need it:

    cost = sum of seconds[choice] over nodes + sum of weights[source, key] over values and their distinct needed keys

and memory is the sum over nodes of ``memory[choice]`` bytes per device. That is all that the search and the exact references
of the tests share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from passes.partition.layouts.problem.graph import Form, Graph, Integers, ValueNode

Floats: TypeAlias = NDArray[np.float64]
_HALF = float((1 << 27) + 1)
"""By which a number of 53 bits is split into halves (Dekker 1971)."""


@dataclass(frozen=True, slots=True)
class NodeKind:
    """``seconds`` and ``memory`` by choice; ``reads[port][choice]`` is a number of ``ValueKind.needs`` of the value at that
    port, ``makes[result][choice]`` a source of that result."""

    labels: tuple[str, ...]
    seconds: Floats
    memory: Floats
    reads: tuple[Integers, ...] = ()
    makes: tuple[Integers, ...] = ()

    def some(self, choices: Sequence[int] | Integers) -> NodeKind:
        """The kind with some of its choices."""
        return NodeKind(
            tuple(self.labels[choice] for choice in choices),
            self.seconds[choices],
            self.memory[choices],
            tuple(column[choices] for column in self.reads),
            tuple(column[choices] for column in self.makes),
        )

    def times(self, part: float) -> NodeKind:
        """The kind of a node that costs and holds so many times as much."""
        return replace(self, seconds=self.seconds * part, memory=self.memory * part)


@dataclass(frozen=True, slots=True)
class ValueKind:
    """``weights[source, key]`` seconds; ``needs[n]`` the keys of need ``n``, distinct, ascending."""

    weights: Floats
    needs: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class ShardProblem:
    """Kinds of nodes and of values, and the ``graph`` of these, which is the same where choices of nodes are left out."""

    node_kinds: tuple[NodeKind, ...]
    value_kinds: tuple[ValueKind, ...]
    graph: Graph

    @property
    def kinds(self) -> tuple[int, ...]:
        return self.graph.kinds

    @property
    def values(self) -> tuple[ValueNode, ...]:
        return self.graph.values

    @property
    def cells(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        return self.graph.cells

    @property
    def size(self) -> int:
        return len(self.kinds)

    @property
    def choices(self) -> int:
        """Of all kinds of nodes together."""
        return sum(len(kind.seconds) for kind in self.node_kinds)

    def node(self, node: int) -> NodeKind:
        return self.node_kinds[self.kinds[node]]

    def cost(self, choices: Sequence[int] | Integers) -> float:
        """Seconds of an assignment; equal values between equal choices are looked at once."""
        chosen = np.asarray(choices, np.int64)
        costs = self._terms([kind.seconds for kind in self.node_kinds], chosen)
        for form, rows, number in self.graph.distinct(chosen):
            often = np.bincount(number, minlength=len(rows))
            costs += [self._converted(form, row) * times for row, times in zip(rows.tolist(), often.tolist(), strict=True)]
        return math.fsum(costs)

    def _terms(self, tables: Sequence[Floats], choices: Sequence[int] | Integers) -> list[float]:
        """Terms that add up, without any rounding, to what the tables of their kinds say of the choices of all nodes: equal
        ones are multiplied. A number is multiplied in two halves of 26 bits, so that the products are exact."""
        starts = np.cumsum([0, *map(len, tables)])[:-1]
        table = np.concatenate([np.zeros(0), *tables])
        often = np.bincount(starts[self.graph.kind_of] + np.asarray(choices, np.int64))
        at = np.flatnonzero(often)
        values, times = table[at], often[at]
        if not np.isfinite(values).all():
            return list(map(float, values))
        upper = _HALF * values - (_HALF * values - values)
        return [*(upper * times).tolist(), *((values - upper) * times).tolist()]

    def _converted(self, form: Form, row: Sequence[int]) -> float:
        """Seconds of the conversions of a value of a form whose maker and readers choose so."""
        kind, (maker, result) = self.value_kinds[form.kind], form.maker
        source = self.node_kinds[maker].makes[result][row[0]]
        keys = set[int]()
        for (reader, ports), choice in zip(form.readers, row[1:], strict=True):
            keys.update(key for port in ports for key in kind.needs[self.node_kinds[reader].reads[port][choice]])
        return float(sum(kind.weights[source, key] for key in sorted(keys)))

    def value_cost(self, number: int, choices: Sequence[int]) -> float:
        """Seconds of the conversions of one value."""
        form, row = self.graph.form_of[number]
        return self._converted(self.graph.forms[form], [choices[node] for node in self.graph.rows[form][row]])

    def memory(self, choices: Sequence[int]) -> float:
        """Bytes per device."""
        return math.fsum(self._terms([kind.memory for kind in self.node_kinds], choices))

    def bytes_of(self, choices: Sequence[int] | Integers) -> Floats:
        """Bytes per device of each node."""
        starts = np.cumsum([0, *(len(kind.memory) for kind in self.node_kinds)])[:-1]
        table = np.concatenate([np.zeros(0), *(kind.memory for kind in self.node_kinds)])
        return np.asarray(table[starts[self.graph.kind_of] + np.asarray(choices, np.int64)])
