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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Integers: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class NodeKind:
    """``seconds`` and ``memory`` by choice; ``reads[port][choice]`` is a number of ``ValueKind.needs`` of the value at that
    port, ``makes[result][choice]`` a source of that result."""

    labels: tuple[str, ...]
    seconds: Floats
    memory: Floats
    reads: tuple[Integers, ...] = ()
    makes: tuple[Integers, ...] = ()


@dataclass(frozen=True, slots=True)
class ValueKind:
    """``weights[source, key]`` seconds; ``needs[n]`` the keys of need ``n``, distinct, ascending."""

    weights: Floats
    needs: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class ValueNode:
    """A value: its kind, who makes it (node, result), who reads it (node, port)."""

    kind: int
    maker: tuple[int, int]
    readers: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class ShardProblem:
    """``kinds[node]`` is the kind of each node. ``cells``: chains of repeated parts, each a list of copies, a copy the nodes of
    one in an order that all copies share; whatever is not in one is not repeated. They only make the search fast."""

    node_kinds: tuple[NodeKind, ...]
    value_kinds: tuple[ValueKind, ...]
    kinds: tuple[int, ...]
    values: tuple[ValueNode, ...]
    cells: tuple[tuple[tuple[int, ...], ...], ...] = ()

    @property
    def size(self) -> int:
        return len(self.kinds)

    @property
    def choices(self) -> int:
        """Of all kinds of nodes together."""
        return sum(len(kind.seconds) for kind in self.node_kinds)

    def node(self, node: int) -> NodeKind:
        return self.node_kinds[self.kinds[node]]

    def cost(self, choices: Sequence[int]) -> float:
        """Seconds of an assignment; equal values between equal choices are looked at once."""
        seconds = [kind.seconds.tolist() for kind in self.node_kinds]
        kinds, known, costs = self.kinds, dict[object, float](), list[float]()
        for value in self.values:
            key = value.kind, *[(kinds[node], port, choices[node]) for node, port in (value.maker, *value.readers)]
            found = known.get(key)
            if found is None:
                found = known[key] = self.value_cost(value, choices)
            costs.append(found)
        return float(sum([seconds[kind][choice] for kind, choice in zip(kinds, choices, strict=True)]) + sum(costs))

    def value_cost(self, value: ValueNode, choices: Sequence[int]) -> float:
        """Seconds of the conversions of one value."""
        kind = self.value_kinds[value.kind]
        maker, result = value.maker
        source = self.node(maker).makes[result][choices[maker]]
        keys = {key for node, port in value.readers for key in kind.needs[self.node(node).reads[port][choices[node]]]}
        return float(sum(kind.weights[source, key] for key in sorted(keys)))

    def memory(self, choices: Sequence[int]) -> float:
        """Bytes per device."""
        bytes_ = [kind.memory.tolist() for kind in self.node_kinds]
        return float(sum([bytes_[kind][choice] for kind, choice in zip(self.kinds, choices, strict=True)]))


__all__ = ["Floats", "Integers", "NodeKind", "ShardProblem", "ValueKind", "ValueNode"]
