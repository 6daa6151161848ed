"""One stage of a function as a sharding problem of its own.

What enters a stage is made by a further node with a choice for each layout in which it may arrive; what leaves it is read by a
further node. Both charge the seconds that a member of the stage spends on the transfer, by layout. With ``Border.arriving`` the
layout that a value arrives in is fixed; without, the search picks it: the least over all that the stage before might do, which
is a bound. A value that leaves for a stage of another shape is brought to whole tensors first.

Everything else (kinds, conversions, repeats) is that of the problem of the whole function on the stage's mesh.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np

from ir.core.module import Func
from ir.core.ops import Value
from ir.core.types import Replicate
from passes.graph.graph import reads
from passes.meshes.layouts import Placements
from passes.partition.layouts.problem.build import ShardInput
from passes.partition.layouts.problem.graph import Graph, ValueNode
from passes.partition.layouts.problem.problem import Floats, NodeKind, ShardProblem, ValueKind


@dataclass(frozen=True, slots=True)
class Border:
    """``receive[value]``, ``send[value]``: seconds by layout (its number in ``Layouts.placements``); ``arriving[value]``: the
    layout that an entering value comes in; ``whole``: values that must leave as whole tensors."""

    receive: Mapping[str, Floats] = field(default_factory=dict)
    send: Mapping[str, Floats] = field(default_factory=dict)
    arriving: Mapping[str, int] = field(default_factory=dict)
    whole: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class StageInput:
    """The problem of a stage in ``given``, whose ``func`` is the stage alone. ``nodes[n]``: the node of the function's problem
    that node ``n`` stands for; nodes that bring values in and take values out have the numbers behind these. ``entering``: the
    value that a node brings in; its choice is the layout, unless ``Border.arriving`` fixes that."""

    given: ShardInput
    entering: dict[int, str]
    nodes: tuple[int, ...]


class Cutter:
    """Cuts stages out of the problem of a function on one mesh."""

    def __init__(self, given: ShardInput, constants: Collection[int] = ()) -> None:
        """``given``: of the function; ``constants``: ops of which each stage has its own, so that what they make does not
        cross."""
        self.given, self.constants = given, constants
        problem, func = given.problem, given.func
        self.count = len(func.ops)
        ports: list[list[tuple[int, int]]] = [[] for _ in range(problem.size)]
        self.names: list[str] = []
        for number, value in enumerate(problem.values):
            node, result = value.maker
            self.names.append(func.ops[node].results[result].name if node < self.count else given.kept[node])
            for reader, port in value.readers:
                ports[reader].append((port, number))
        self.read = [list(dict.fromkeys(number for _, number in sorted(row))) for row in ports]
        self.number = {name: number for number, name in enumerate(self.names)}
        self.types = {value.name: value.type for op in func.ops for value in op.results}

    def crossing(self, ops: Sequence[int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Values that enter a stage, in the order in which it reads them, and that leave it, in that in which it makes them."""
        own = set(ops)
        problem = self.given.problem
        entering = dict.fromkeys(
            number
            for op in ops
            for number in self.read[op]
            if (maker := problem.values[number].maker[0]) < self.count and maker not in own
        )
        leaving = [
            self.number[value.name]
            for op in ops
            if op not in self.constants
            for value in self.given.func.ops[op].results
            if value.name in self.number
            and any(node < self.count and node not in own for node, _ in problem.values[self.number[value.name]].readers)
        ]
        return tuple(self.names[n] for n in entering), tuple(self.names[n] for n in leaving)

    def cut(self, ops: Sequence[int], border: Border) -> StageInput:
        """The stage of ``ops``, positions in the function in a topological order. Nodes are numbered by the order of ``ops``
        alone, so that stages that are alike have equal problems."""
        problem = self.given.problem
        entering, leaving = self.crossing(ops)
        nodes = self.nodes(ops)
        number_in = {node: i for i, node in enumerate(nodes)}
        node_kinds, value_kinds = list(problem.node_kinds), list(problem.value_kinds)
        kinds = [problem.kinds[node] for node in nodes]

        def add_node(kind: NodeKind) -> int:
            node_kinds.append(kind)
            kinds.append(len(node_kinds) - 1)
            return len(kinds) - 1

        values = []
        brings: dict[int, str] = {}
        wanted = dict.fromkeys(number for node in nodes for number in self.read[node])
        wanted.update((self.number[name], None) for name in leaving)
        for number in wanted:
            value, name = problem.values[number], self.names[number]
            readers = sorted((number_in[node], port) for node, port in value.readers if node in number_in)
            kind = value.kind
            if name in entering:
                maker = (add_node(self.arrival(name, border)), 0)
                brings[maker[0]] = name
            else:
                maker = (number_in[value.maker[0]], value.maker[1])
            if name in leaving:
                kind, reader = self.departure(name, value_kinds, kind, border)
                readers.append((add_node(reader), 0))
            values.append(ValueNode(kind, maker, tuple(readers)))
        graph = Graph(tuple(kinds), tuple(values), self.copies(number_in))
        given = replace(
            self.given,
            problem=ShardProblem(tuple(node_kinds), tuple(value_kinds), graph),
            func=self.function(ops, entering),
            strategies=(*self.given.strategies, *[()] * (len(node_kinds) - len(problem.node_kinds))),
            kept={number_in[node]: name for node, name in self.given.kept.items() if node in number_in},
            outputs={number_in[node]: name for node, name in self.given.outputs.items() if node in number_in},
        )
        return StageInput(given, brings, nodes)

    def nodes(self, ops: Sequence[int]) -> tuple[int, ...]:
        """Nodes of the function's problem that are in a stage: its ops, the weights that they read, the results that they
        make."""
        values, position = self.given.problem.values, {op: i for i, op in enumerate(ops)}
        makers = (values[number].maker[0] for op in ops for number in self.read[op])
        weights = dict.fromkeys(node for node in makers if node in self.given.kept)
        made_by = {node: values[self.read[node][0]].maker for node in self.given.outputs}
        outputs = [(position[op], result, node) for node, (op, result) in made_by.items() if op in position]
        return tuple(dict.fromkeys((*ops, *weights, *(node for *_, node in sorted(outputs)))))  # a state is both

    def copies(self, number_in: Mapping[int, int]) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """``Graph.cells`` of the stage: consecutive copies of which it has all nodes, by their numbers in it."""
        chains = []
        for chain in self.given.problem.cells:
            for is_inside, copies in groupby(chain, lambda copy: all(node in number_in for node in copy)):
                if is_inside:
                    chains.append(tuple(tuple(number_in[node] for node in copy) for copy in copies))
        return tuple(chains)

    def arrival(self, name: str, border: Border) -> NodeKind:
        """The kind of the node that brings a value in."""
        count = len(self.given.layouts[name].placements)
        choices = np.array([border.arriving[name]] if name in border.arriving else range(count), np.int64)
        seconds = border.receive[name] if name in border.receive else np.zeros(count)
        labels = tuple(map(str, choices.tolist()))
        return NodeKind(labels, seconds[choices], np.zeros(len(choices)), makes=(choices,))

    def departure(self, name: str, value_kinds: list[ValueKind], kind: int, border: Border) -> tuple[int, NodeKind]:
        """The kind of a value that leaves, with a further key that costs what sending it does, and of the node that needs
        that key."""
        before = value_kinds[kind]
        count = len(self.given.layouts[name].placements)
        # Of a link, each layout is two sources (``ShardInput.layout_number``): seconds are repeated.
        send = np.resize(border.send[name] if name in border.send else np.zeros(count), len(before.weights))
        key = before.weights.shape[1]
        need: tuple[int, ...] = (key,)
        if name in border.whole:
            placements: Placements = (Replicate(),) * len(self.given.mesh.axes)
            need = (self.given.layouts[name].number(placements), key)
        value_kinds.append(ValueKind(np.hstack([before.weights, send[:, None]]), (*before.needs, need)))
        reader = NodeKind(("send",), np.zeros(1), np.zeros(1), reads=(np.array([len(before.needs)], np.int64),))
        return len(value_kinds) - 1, reader

    def function(self, ops: Sequence[int], entering: Sequence[str]) -> Func:
        """The stage as a function: what enters are further arguments; its results are those of the function that it makes."""
        func = self.given.func
        own = [func.ops[op] for op in ops]
        made = {value.name for op in own for value in op.results}
        used = {name for op in own for name in reads(op)}
        args = [value for value in func.args if value.name in used]
        args += [Value(name, self.types[name]) for name in entering]
        results = tuple(value for value in func.results if value.name in made)
        return replace(func, args=tuple(args), results=results, ops=tuple(own))
