"""Units: the pieces between the places where a function may be cut into stages, and which runs of them are alike.

Order: that of ``fold``, a topological one in which every copy of a repeated part lies in one stretch; so any run of units from
the first on is a downset. A *cut* lies where few values cross: in a valley of their number along the order, at each place of
it, of whatever bytes; repeats so give the same cuts in each copy. Of more than ``most`` of these, those are kept that are
the deepest within some ops around them, by the number of values, then by their bytes; as few as needed. No cut parts the
readers of a running average that training moves: each stage would move a copy. A *run* is a stretch of units, what a stage
holds.

Constant ops (``passes.costs.constants``) are in no unit: a run holds what it needs of them.

Two runs with one *key* have equal ops in equal order, wired alike among themselves, and alike in which values enter, are shared
and leave: so they are the same problem, wherever they lie. Keys say nothing of names and positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ir.core.module import Func
from ir.core.types import type_bytes
from ir.ops.grads import written_resources
from passes.costs.constants import constants_of
from passes.graph.folding import Folding
from passes.graph.graph import reads
from passes.partition.layouts.problem.build import ShardInput

MOST_CUTS = 256


@dataclass(frozen=True, slots=True)
class Units:
    """``ops[unit]``: positions in the function, ascending; ``keys[first][last - first]``: of the run from first to last."""

    ops: tuple[tuple[int, ...], ...]
    keys: tuple[tuple[int, ...], ...]
    constants: Constants

    @property
    def count(self) -> int:
        return len(self.ops)

    def run(self, first: int, behind: int) -> tuple[int, ...]:
        """Positions of the ops of units ``first .. behind - 1``, unit by unit, behind the constant ops that they need: a
        topological order, and the same in all runs of one key."""
        own = [op for unit in self.ops[first:behind] for op in unit]
        return (*self.constants.needed(own), *own)

    def key(self, first: int, behind: int) -> int:
        return self.keys[first][behind - first - 1]


def units_of(func: Func, folding: Folding | None, given: ShardInput, most: int = MOST_CUTS) -> Units:
    """``given``: the problem of ``func`` on any mesh, for the kinds of its nodes; ``most``: cuts."""
    constants = Constants(given)
    order = [op for op in (folding.order if folding is not None else range(len(func.ops))) if op not in constants.ops]
    cuts = _cuts(func, order, given.states, most)
    bounds = [0, *cuts, len(order)]
    ops = tuple(tuple(sorted(order[a:b])) for a, b in pairwise(bounds) if a < b)
    return Units(ops, _Keys(given, ops, constants).keys, constants)


def _cuts(func: Func, order: Sequence[int], states: Mapping[str, str], most: int) -> list[int]:
    """Places in ``order`` before which a stage may begin."""
    place = {op: i for i, op in enumerate(order)}
    made = {value.name: (place[i], type_bytes(value.type) or 0) for i in order for value in func.ops[i].results}
    last = dict.fromkeys(made, -1)
    for i in order:
        for name in reads(func.ops[i]):
            if name in last:
                last[name] = max(last[name], place[i])
    count, size = [0] * (len(order) + 1), [0] * (len(order) + 1)
    for name, (maker, width) in made.items():
        if last[name] > maker:
            for table, amount in ((count, 1), (size, width)):
                table[maker + 1] += amount
                table[last[name] + 1] -= amount
    for p in range(len(order)):
        count[p + 1] += count[p]
        size[p + 1] += size[p]
    count[0] = count[-1] = len(func.ops) + len(made)  # the ends are no cuts
    crossing = list(zip(count, size, strict=True))
    found: list[int] = []
    start = 1
    while start < len(order):
        behind = start
        while count[behind] == count[start]:
            behind += 1
        if count[start - 1] > count[start] < count[behind]:
            found += range(start, behind)
        start = behind
    inside = _inside_states(func, order, states)
    found = [p for p in found if p not in inside]
    around = 1
    while len(found) > most:
        found = [
            p
            for i, p in enumerate(found)
            if all(
                (*crossing[p], p) <= (*crossing[q], q)
                for q in found[max(0, i - around) : i + around + 1]
                if abs(p - q) <= around
            )
        ]
        around += 1
    return found


def _inside_states(func: Func, order: Sequence[int], states: Mapping[str, str]) -> set[int]:
    """Places in ``order`` between the first and the last op that reads a resource which changes between runs, or makes what it
    becomes (``states``)."""
    becomes = {result: name for name, result in states.items() if result}
    written = written_resources(func.ops).union(becomes.values())
    readers: dict[str, list[int]] = {}
    for place, op in enumerate(order):
        made = {becomes[value.name] for value in func.ops[op].results if value.name in becomes}
        for name in made.union(written.intersection(reads(func.ops[op]))):
            readers.setdefault(name, []).append(place)
    return {place for places in readers.values() for place in range(places[0] + 1, places[-1] + 1)}


class _Keys:
    """Numbers of runs of units: two runs that have one number are the same problem."""

    def __init__(self, given: ShardInput, units: Sequence[Sequence[int]], constants: Constants) -> None:
        self.problem, self.ops, self.constants = given.problem, len(given.func.ops), constants
        self.unit_of = {op: unit for unit, members in enumerate(units) for op in members}
        self.place = {op: i for members in units for i, op in enumerate(members)}
        self.read: list[list[tuple[int, int]]] = [[] for _ in range(self.problem.size)]
        self.made: list[list[int]] = [[] for _ in units]
        self.last: list[int] = []  # the last unit that reads a value
        self.within: list[int | None] = []  # the unit that alone has to do with a value
        for number, value in enumerate(self.problem.values):
            maker, readers = value.maker[0], [self.unit_of[node] for node, _ in value.readers if node in self.unit_of]
            self.last.append(max(readers, default=-1))
            homes = {*readers, *((self.unit_of.get(maker, -1),) if maker < self.ops else ())}
            self.within.append(homes.pop() if len(homes) == 1 else None)
            for node, port in value.readers:
                self.read[node].append((port, number))
            if maker in self.unit_of:
                self.made[self.unit_of[maker]].append(number)
        self.numbers: dict[object, int] = {}
        self.outside: list[list[int]] = []  # values that a unit reads and others have to do with
        self.content = [self.number(self.content_of(unit, members)) for unit, members in enumerate(units)]
        self.keys = tuple(self.runs_from(first) for first in range(len(units)))

    def number(self, description: object) -> int:
        """Equal descriptions have one number."""
        return self.numbers.setdefault(description, len(self.numbers))

    def content_of(self, unit: int, members: Sequence[int]) -> object:
        """A unit by itself: its ops, how they read each other, and what they hand out as results of the function."""
        slots: dict[int, int] = {}
        rows = []
        for op in members:
            row: list[object] = [self.problem.kinds[op]]
            for port, number in sorted(self.read[op]):
                value, alone = self.problem.values[number], self.within[number] == unit
                maker, result = value.maker
                if alone and maker < self.ops:
                    row.append((port, self.place[maker], result))
                    continue
                held: object = self.problem.kinds[maker] if maker >= self.ops else -1
                if maker in self.constants.ops:
                    held = (self.constants.form(maker), result)
                row.append((port, -1 if alone else value.kind, held, slots.setdefault(number, len(slots))))
            rows.append(tuple(row))
        values = [self.problem.values[number] for number in self.made[unit]]
        results = [value.maker for value in values if any(node >= self.ops for node, _ in value.readers)]
        self.outside.append([number for number in slots if self.within[number] != unit])
        return tuple(rows), tuple((self.place[maker], result) for maker, result in results)

    def source(self, number: int, unit: int) -> tuple[int, int, int]:
        """Who makes a value, as a unit sees it: how many units before, which op, which result."""
        maker, result = self.problem.values[number].maker
        return unit - self.unit_of[maker], self.place[maker], result

    def runs_from(self, first: int) -> tuple[int, ...]:
        """Of the runs that begin with a unit, by their last one: its content, where that gets what it reads, those before it
        likewise, and what leaves."""
        keys, before, entering, alive = [], -1, dict[int, int](), list[int]()
        for unit in range(first, len(self.content)):
            sources: list[object] = []
            for number in self.outside[unit]:
                inside = self.unit_of.get(self.problem.values[number].maker[0], -1) >= first
                sources.append(self.source(number, unit) if inside else entering.setdefault(number, len(entering)))
            before = self.number((before, self.content[unit], tuple(sources)))
            alive = [number for number in (*alive, *self.made[unit]) if self.last[number] > unit]
            keys.append(self.number((before, tuple(self.source(number, unit) for number in alive))))
        return tuple(keys)


class Constants:
    """The constant ops of a function, of which a run holds those that it reads."""

    def __init__(self, given: ShardInput) -> None:
        self.func, self.kinds = given.func, given.problem.kinds
        self.ops = constants_of(given.func, given.one_home)
        self.maker = {value.name: op for op in sorted(self.ops) for value in given.func.ops[op].results}
        self.forms: dict[int, object] = {}

    def needed(self, ops: Sequence[int]) -> tuple[int, ...]:
        """The constant ops that ``ops`` read, and those that these read, in the order in which they are first needed."""
        found: dict[int, None] = {}

        def visit(op: int) -> None:
            for name in reads(self.func.ops[op]):
                maker = self.maker.get(name)
                if maker is not None and maker not in found:
                    visit(maker)
                    found[maker] = None

        for op in ops:
            visit(op)
        return tuple(found)

    def form(self, op: int) -> object:
        """What its seconds and layouts depend on."""
        if op not in self.forms:
            names = reads(self.func.ops[op])
            made = tuple(self.form(self.maker[name]) if name in self.maker else name for name in names)
            self.forms[op] = (self.kinds[op], made)
        return self.forms[op]
