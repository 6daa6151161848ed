"""What a plan of inference on one mesh needs of the fullest member's memory, counted from the choices of its problem.

It is what ``footprint`` finds by a walk over the program. But a search asks it of many plans, and values that are alike (of one
type, made and read by nodes of the same kinds) live alike under equal choices: how such a value lies between its maker and its
readers is found once (a *pattern*) and laid out in time for all of them together.

Time is counted in *turns*: one for each op, and one for each step that brings a value to the layout in which an op reads it
first: before that op, or, where a result of the function leaves in that layout, behind the op that makes it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ir.core.module import Func, Module
from ir.core.types import Replicate, TensorType, Type, type_bytes
from passes.costs.memory.footprint import Footprint
from passes.costs.memory.liveness import live_bytes
from passes.graph.graph import reads
from passes.meshes.layouts import Placements, Ways, fullest, part
from passes.partition.layouts.problem.build import ShardInput
from passes.partition.layouts.problem.graph import Integers, distinct_rows

_OPERAND, _WHOLE, _AS_MADE, _LEAVES = range(4)
"""How a value is asked for: in the layout of an operand; whole; in a region, as it was made; in the layout of a result."""
_NOWHERE = -1
"""The node that makes what is whole from the start."""


class _Ask(NamedTuple):
    """A place that asks for a value: the kind of its node, the operand's number, how, and whether the op is that of the ask
    before it."""

    kind: int
    port: int
    how: int
    again: bool


class _Sort(NamedTuple):
    """What values that are alike share. ``maker``: kind of node and result. ``counted``: a value of an op is, and so is an
    argument, which is no choice of a plan (``argument``); a weight counts elsewhere."""

    type: Type
    maker: tuple[int, int]
    counted: bool
    argument: bool
    asks: tuple[_Ask, ...]


class _Turn(NamedTuple):
    """A step before an ask, or the op that asks (-1); ask -1: the op that makes the value."""

    ask: int
    step: int = -1


class _Interval(NamedTuple):
    """Turns in which a value, or a step on its way, is alive, both ends included. ``bytes``: of each member that counts."""

    start: _Turn
    end: _Turn
    bytes: tuple[int, ...]
    argument: bool


class _Pattern(NamedTuple):
    """``steps``: how many stand before each ask."""

    steps: tuple[int, ...]
    intervals: tuple[_Interval, ...]


@dataclass(frozen=True, slots=True)
class _Alike:
    """Values of one sort. Of each, ``nodes``: the maker, then those who ask; ``asked``: where in the program they do, ``by``:
    the op there; ``made``: the op that makes it."""

    sort: _Sort
    names: list[str]
    nodes: Integers
    asked: Integers
    by: Integers
    made: Integers


class Alive:
    """Counts plans of one problem of inference."""

    def __init__(
        self,
        module: Module,
        given: ShardInput,
        *,
        entering: Mapping[int, str] | None = None,
        order: Sequence[int] = (),
    ) -> None:
        """Of a stage, ``entering``: by node, the values that it receives, which lie in buffers; ``order``: in which its ops
        run, that of the function unless given."""
        self.entering, self.order = entering or {}, order or range(len(given.func.ops))
        self.given, self.func, self.mesh = given, given.func, given.mesh
        self.ways = Ways(given.mesh)
        self.whole: Placements = (Replicate(),) * len(given.mesh.axes)
        members = given.mesh.members
        self.places = list({(member.place, member.room): None for member in members}) or [(given.mesh.foremost, 1.0)]
        self.constants = self._constants(module)
        self.leaves, self.left = self._leaves()
        self.patterns: dict[tuple[int, tuple[int, ...]], _Pattern] = {}
        self.turns, self.ops, self.alike = self._laid(module)
        inner = [
            max((max(live_bytes(Func("@", r.args, (), r.ops)), default=0) for _, r in op.regions), default=0)
            for op in self.func.ops
        ]
        self.inner = np.array(inner, np.int64)

    def needs(self, choices: Sequence[int]) -> Footprint:
        """As ``footprint`` says of the same plan."""
        chosen = np.append(np.asarray(choices, np.int64), 0)
        turns = self.turns.copy()
        found = []
        for number, alike in enumerate(self.alike):
            rows, which = distinct_rows(chosen[alike.nodes])
            for row, around in enumerate(rows.tolist()):
                pattern, mine = self.pattern(number, tuple(around)), np.flatnonzero(which == row)
                found.append((alike, pattern, mine))
                for ask, steps in enumerate(pattern.steps):
                    turns[alike.asked[mine, ask]] += steps
        begins = np.cumsum(turns) - turns
        change = np.zeros((len(self.places), int(turns.sum()) + 1), np.int64)
        spans = []
        for alike, pattern, mine in found:
            for interval in pattern.intervals:
                start, end = (_turn(begins, alike, mine, at) for at in (interval.start, interval.end))
                spans.append((alike, interval, mine, start, end))
                for place, size in enumerate(interval.bytes):
                    np.add.at(change[place], start, size)
                    np.subtract.at(change[place], end + 1, size)
        alive = np.cumsum(change, axis=1)[:, :-1]
        alive[:, begins[self.ops]] += self.inner
        member = int(np.argmax(alive.max(axis=1, initial=0))) if alive.size else 0
        at = int(np.argmax(alive[member])) if alive.size else 0
        there = frozenset(
            alike.names[value]
            for alike, interval, mine, start, end in spans
            if not interval.argument
            for value in mine[(start <= at) & (at <= end)].tolist()
        )
        most = int(alive[member, at]) if alive.size else 0
        return Footprint(math.ceil(self.given.problem.memory(choices) + self.constants), most, alive=there)

    # -- patterns ------------------------------------------------------------------------------------------------------

    def pattern(self, number: int, around: tuple[int, ...]) -> _Pattern:
        """How the values ``alike[number]`` lie where the nodes around them choose so."""
        key = number, around
        if key not in self.patterns:
            self.patterns[key] = self._pattern(self.alike[number], around)
        return self.patterns[key]

    def _pattern(self, alike: _Alike, around: tuple[int, ...]) -> _Pattern:
        sort, name = alike.sort, alike.names[0]
        source = self.made(name, sort.maker, around[0])
        alone = math.prod(self.mesh.sizes) == 1
        steps, intervals, brought = [0] * len(sort.asks), list[_Interval](), dict[Placements, int]()
        touched = list[tuple[int, _Turn]]()  # where the value itself is read: by the number of the op, before it (2 n) or in it
        op = -1
        for number, (ask, choice) in enumerate(zip(sort.asks, around[1:], strict=True)):
            op += not ask.again
            target = source if ask.how == _AS_MADE else self.asked(name, ask, choice)
            if target == source or alone:
                if ask.how != _LEAVES:
                    touched.append((2 * op + 1, _Turn(number)))
                continue
            if target not in brought:
                way = self.ways.way(sort.type, source, target)
                steps[number] = len(way)
                touched.append((2 * op, _Turn(number, 0)))
                for step, link in enumerate(way):
                    until = _Turn(number, min(step + 1, len(way) - 1))
                    intervals.append(_Interval(_Turn(number, step), until, self.sizes(sort.type, link.after), False))
                brought[target] = len(intervals) - 1
            if ask.how != _LEAVES:
                intervals[brought[target]] = intervals[brought[target]]._replace(end=_Turn(number))
        ordered = [turn for _, turn in sorted(touched, key=lambda one: one[0])]
        first = ordered[:1] if sort.argument else [_Turn(_NOWHERE)]
        if sort.counted and first:
            last = [*first, *ordered][-1]
            intervals.append(_Interval(first[0], last, self.sizes(sort.type, source), sort.argument))
        return _Pattern(tuple(steps), tuple(intervals))

    def sizes(self, type_: Type, lies: Placements) -> tuple[int, ...]:
        """Bytes of a value on each member that counts."""
        whole = type_bytes(type_) or 0
        return tuple(math.ceil(whole * (part(type_, lies, self.mesh, place) / room)) for place, room in self.places)

    def made(self, name: str, maker: tuple[int, int], choice: int) -> Placements:
        """The layout in which a value is made, or kept."""
        kind, result = maker
        if kind == _NOWHERE:
            return self.whole
        taken = self.given.strategies[kind][choice] if self.given.strategies[kind] else ()
        if not taken:
            return self.given.layouts[name].placements[int(self.given.problem.node_kinds[kind].makes[result][choice])]
        return tuple(s.results[result] for s in taken if s is not None) or self.whole

    def asked(self, name: str, ask: _Ask, choice: int) -> Placements:
        """The layout in which a value is asked for."""
        if ask.how == _WHOLE:
            return self.whole
        if ask.how == _OPERAND:
            return tuple(s.operands[ask.port] for s in self.given.strategies[ask.kind][choice] if s is not None)
        problem = self.given.problem
        need = problem.value_kinds[self.left[name]].needs[problem.node_kinds[ask.kind].reads[0][choice]]
        return self.given.layouts[name].placements[need[0]]

    def _leaves(self) -> tuple[dict[str, list[int]], dict[str, int]]:
        """Of each value that leaves in a layout of its own, the nodes that ask for it then, and its kind."""
        given, problem = self.given, self.given.problem
        leaves: dict[str, list[int]] = {}
        left: dict[str, int] = {}
        for value in problem.values:
            maker, result = value.maker
            for node, port in value.readers:
                if node < len(given.func.ops):
                    continue
                name = self.entering.get(maker) or given.kept.get(maker) or given.func.ops[maker].results[result].name
                need = problem.value_kinds[value.kind].needs[int(problem.node(node).reads[port][0])]
                if node in given.outputs or need[0] < len(given.layouts[name].placements):  # else as it is made
                    leaves.setdefault(name, []).append(node)
                    left[name] = value.kind
        return {name: sorted(nodes) for name, nodes in leaves.items()}, left

    # -- the function --------------------------------------------------------------------------------------------------

    def _laid(self, module: Module) -> tuple[Integers, Integers, list[_Alike]]:
        """Turns of each place in the program without any step, the places of the ops, and the values by their sorts."""
        given, func, resources = self.given, self.func, module.resources
        kinds, strategies = given.problem.kinds, given.strategies
        types = {name: resource.type for name, resource in resources.items()} | {arg.name: arg.type for arg in func.args}
        received = {*self.entering.values()}
        arguments = {arg.name for arg in func.args} - received
        brought = {**given.kept, **self.entering}
        makers: dict[str, tuple[int, int, int]] = {name: (node, 0, _NOWHERE) for node, name in brought.items()}
        asks: dict[str, list[tuple[_Ask, int, int, int]]] = {}
        turns, ops = list[int](), [0] * len(func.ops)

        def ask(name: str, node: int, port: int, how: int, by: int) -> None:
            listed = asks.setdefault(name, [])
            again = how != _LEAVES and bool(listed) and listed[-1][3] == by
            listed.append((_Ask(kinds[node], port, how, again), node, len(turns), by))
            turns.append(0)

        for node in self.order:
            op = func.ops[node]
            free = strategies[kinds[node]]
            captured = [name for name in reads(op) if name not in op.operands] if op.regions else []
            ruled = not free or free[0][0] is not None
            if ruled:
                for port, name in enumerate(op.operands):
                    if name:
                        ask(name, node, port, _OPERAND, node)
            for name in captured if ruled else reads(op):
                ask(name, node, _NOWHERE, _AS_MADE if ruled else _WHOLE, node)
            ops[node] = len(turns)
            turns.append(1)
            for result, value in enumerate(op.results):
                if value.name:
                    types[value.name] = value.type
                    makers[value.name] = node, result, node
                    asks.setdefault(value.name, [])
                for leaves in self.leaves.get(value.name, ()):
                    ask(value.name, leaves, 0, _LEAVES, node)
        sorts: dict[_Sort, list[str]] = {}
        for name, listed in asks.items():
            node, result, _ = makers.get(name, (_NOWHERE, 0, _NOWHERE))
            maker = (kinds[node] if node != _NOWHERE else _NOWHERE), result
            argument = name in arguments
            counted = argument or not (name in resources or name in received)
            sort = _Sort(types[name], maker, counted, argument, tuple(one for one, *_ in listed))
            sorts.setdefault(sort, []).append(name)
        at = np.array(ops, np.int64)
        alike = []
        for sort, names in sorts.items():
            made = [makers.get(name, (_NOWHERE, 0, _NOWHERE)) for name in names]
            rows = np.array([[one[1:] for one in asks[name]] for name in names], np.int64).reshape(
                len(names), len(sort.asks), 3
            )
            nodes = np.concatenate([np.array([[node] for node, _, _ in made], np.int64), rows[:, :, 0]], axis=1)
            by = np.array([op for _, _, op in made], np.int64)
            alike.append(_Alike(sort, names, nodes, rows[:, :, 1], at[rows[:, :, 2]], at[by] if len(at) else by))
        return np.array(turns, np.int64), at, alike

    def _constants(self, module: Module) -> float:
        """Bytes of what every member has whole: resources that choose no place."""
        chosen, resources = set(self.given.kept.values()), module.resources
        names = dict.fromkeys(name for op in self.func.ops for name in reads(op) if name in resources and name not in chosen)
        types = [
            type_ for name in names if isinstance(type_ := resources[name].type, TensorType) and type_.elements is not None
        ]
        return sum((type_.nbytes or 0) * fullest(type_, self.whole, self.mesh) for type_ in types)


def _turn(begins: Integers, alike: _Alike, mine: Integers, turn: _Turn) -> Integers:
    """The number of a turn, of each of the values ``mine``."""
    if turn.ask == _NOWHERE:
        return np.asarray(begins[alike.made[mine]])
    at = alike.by if turn.step == -1 else alike.asked
    return np.asarray(begins[at[mine, turn.ask]] + max(turn.step, 0))
