"""One stage of a function as a sharding problem of its own.

What enters a stage is made by a node with a choice for each layout in which it may arrive; what leaves it is read by one more
node. Both charge the seconds that this member spends on the transfer, by layout. With ``Border.given`` the layout that a value
arrives in is fixed; without, the search picks it: the least over all that the stage before might do, which is a bound. A value
that leaves for a stage of another shape is brought to whole tensors first.

Everything else (kinds, conversions, repeats) is that of the problem of the whole function on the stage's mesh.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ir.module import Func
from ir.ops import Value
from ir.types import Replicate
from passes.model.graph import reads
from passes.model.spmd.layouts import Placements
from passes.shard.problem.build import ShardInput
from passes.shard.problem.problem import Floats, Graph, NodeKind, ShardProblem, ValueKind, ValueNode


@dataclass(frozen=True, slots=True)
class Border:
    """``receive[value]``, ``send[value]``: seconds by layout (its number in ``Layouts.placements``); ``given[value]``: the
    layout that an entering value comes in; ``whole``: values that must leave as whole tensors."""

    receive: Mapping[str, Floats] = field(default_factory=dict)
    send: Mapping[str, Floats] = field(default_factory=dict)
    given: Mapping[str, int] = field(default_factory=dict)
    whole: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class StageInput:
    """The problem of a stage in ``given`` (whose ``func`` is the stage alone). ``entering[node]``: the value that a node brings
    in; its choice is its layout, but where ``Border.given`` fixes it. ``nodes``: of the function's problem, by their number
    here; those that bring in and take out are behind them."""

    given: ShardInput
    entering: dict[int, str]
    nodes: tuple[int, ...]


class Cutter:
    """Cuts stages out of the problem of a function on one mesh."""

    def __init__(self, whole: ShardInput, constants: Collection[int] = ()) -> None:
        """``constants``: ops of which each stage has its own, so that what they make does not cross."""
        self.whole, self.constants = whole, constants
        problem, func = whole.problem, whole.func
        self.count = len(func.ops)
        self.name_of: dict[int, str] = dict(whole.kept)
        ports: list[list[tuple[int, int]]] = [[] for _ in range(problem.size)]
        self.names: list[str] = []
        for number, value in enumerate(problem.values):
            node, result = value.maker
            self.names.append(func.ops[node].results[result].name if node < self.count else whole.kept[node])
            for reader, port in value.readers:
                ports[reader].append((port, number))
        self.read = [list(dict.fromkeys(number for _, number in sorted(row))) for row in ports]
        self.number = {name: number for number, name in enumerate(self.names)}
        self.types = {value.name: value for op in func.ops for value in op.results}
        self.arguments = {value.name for value in func.args}

    def crossing(self, ops: Sequence[int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Values that enter a stage, in the order in which it reads them, and that leave it, in that in which it makes them."""
        own = set(ops)
        problem = self.whole.problem
        entering = dict.fromkeys(
            number
            for op in ops
            for number in self.read[op]
            if (m := problem.values[number].maker[0]) < self.count and m not in own
        )
        leaving = [
            self.number[value.name]
            for op in ops
            if op not in self.constants
            for value in self.whole.func.ops[op].results
            if value.name in self.number
            and any(node < self.count and node not in own for node, _ in problem.values[self.number[value.name]].readers)
        ]
        return tuple(self.names[n] for n in entering), tuple(self.names[n] for n in leaving)

    def cut(self, ops: Sequence[int], border: Border) -> StageInput:
        """The stage of ``ops``, positions in the function in a topological order. Nodes are numbered by the order of ``ops``
        alone, so that stages that are alike have equal problems."""
        whole, problem = self.whole, self.whole.problem
        names, leaving = self.crossing(ops)
        weights = dict.fromkeys(
            node for op in ops for number in self.read[op] if (node := problem.values[number].maker[0]) in whole.kept
        )
        order = {op: i for i, op in enumerate(ops)}
        makers = {node: problem.values[self.read[node][0]].maker for node in whole.outputs}
        outputs = sorted(
            (node for node, (op, _) in makers.items() if op in order),
            key=lambda node: (order[makers[node][0]], makers[node][1]),
        )
        nodes = [*ops, *weights, *outputs]
        place = {node: i for i, node in enumerate(nodes)}
        node_kinds, value_kinds = list(problem.node_kinds), list(problem.value_kinds)
        kinds = [problem.kinds[node] for node in nodes]
        strategies = list(whole.strategies)

        def added(kind: NodeKind) -> int:
            node_kinds.append(kind)
            strategies.append(())
            kinds.append(len(node_kinds) - 1)
            return len(kinds) - 1

        values = []
        entering: dict[int, str] = {}
        wanted = dict.fromkeys(number for node in (*ops, *outputs) for number in self.read[node])
        wanted.update((self.number[name], None) for name in leaving)
        enters, leaves = set(names), set(leaving)
        for number in wanted:
            value, name = problem.values[number], self.names[number]
            readers = sorted((place[node], port) for node, port in value.readers if node in place)
            kind = value.kind
            if name in enters:
                maker = (added(self.arrival(name, border)), 0)
                entering[maker[0]] = name
            else:
                maker = (place[value.maker[0]], value.maker[1])
            if name in leaves:
                kind, reader = self.departure(name, value_kinds, kind, border)
                readers.append((added(reader), 0))
            values.append(ValueNode(kind, maker, tuple(readers)))
        cells = [tuple(tuple(place[node] for node in copy) for copy in chain) for chain in self.whole_copies(place)]
        func = self.function(ops, names)
        sub = ShardProblem(tuple(node_kinds), tuple(value_kinds), Graph(tuple(kinds), tuple(values), tuple(cells)))
        given = replace(
            whole,
            problem=sub,
            func=func,
            strategies=tuple(strategies),
            kept={place[node]: name for node, name in whole.kept.items() if node in place},
            outputs={place[node]: name for node, name in whole.outputs.items() if node in place},
        )
        return StageInput(given, entering, tuple(nodes))

    def whole_copies(self, place: Mapping[int, int]) -> list[list[tuple[int, ...]]]:
        """Stretches of copies that lie in the stage as a whole."""
        found: list[list[tuple[int, ...]]] = []
        for chain in self.whole.problem.cells:
            stretch: list[tuple[int, ...]] = []
            for copy in chain:
                if all(node in place for node in copy):
                    stretch.append(copy)
                elif stretch:
                    found.append(stretch)
                    stretch = []
            if stretch:
                found.append(stretch)
        return found

    def arrival(self, name: str, border: Border) -> NodeKind:
        count = len(self.whole.layouts[name].placements)
        choices = np.array([border.given[name]] if name in border.given else range(count), np.int64)
        seconds = border.receive[name] if name in border.receive else np.zeros(count)
        labels = tuple(map(str, choices.tolist()))
        return NodeKind(labels, seconds[choices], np.zeros(len(choices)), makes=(choices,))

    def departure(self, name: str, value_kinds: list[ValueKind], kind: int, border: Border) -> tuple[int, NodeKind]:
        """The kind of a value that leaves, with a key more: that of sending it."""
        before = value_kinds[kind]
        count = len(self.whole.layouts[name].placements)
        send = np.resize(border.send[name] if name in border.send else np.zeros(count), len(before.weights))
        key = before.weights.shape[1]
        need: tuple[int, ...] = (key,)
        if name in border.whole:
            placements: Placements = (Replicate(),) * len(self.whole.mesh.axes)
            need = (self.whole.layouts[name].number(placements), key)
        value_kinds.append(ValueKind(np.hstack([before.weights, send[:, None]]), (*before.needs, need)))
        reader = NodeKind(("send",), np.zeros(1), np.zeros(1), reads=(np.array([len(before.needs)], np.int64),))
        return len(value_kinds) - 1, reader

    def function(self, ops: Sequence[int], entering: Sequence[str]) -> Func:
        """The stage as a function: what enters are further arguments; its results are those of the function that it makes."""
        func = self.whole.func
        own = [func.ops[op] for op in ops]
        made = {value.name for op in own for value in op.results}
        used = {name for op in own for name in reads(op)}
        args = [value for value in func.args if value.name in used]
        args += [Value(name, self.types[name].type) for name in entering]
        results = tuple(value for value in func.results if value.name in made)
        return replace(func, args=tuple(args), results=results, ops=tuple(own))


__all__ = ["Border", "Cutter", "StageInput"]
