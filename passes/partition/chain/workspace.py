"""What a run of units needs of a device's memory at least, beside weights: activations alive at once, and buffers.

While an op runs, its results are alive, and every value of the run that is made before it and read by it or behind it. So the
workspace of a run is the largest of its units', each the peak of its own ops, beside what units before it made for it or for
those behind it. A value counts with the least part that any layout gives the member. An argument of the function is whole
before the first op of the run that reads it; there it may be cut, and all ops that follow may read one part. What another stage
makes has ``SLOTS`` buffers: of an even part where it may come from a mesh of the same shape, else of all of it.

In training gradients of what is alive are alive in its place, or the gradients of weights that wait for the sums over the
microbatches (``waiting_bytes``), whichever is more. ``passes.meshes.costs.footprint`` counts the same of a plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ir.core.module import Func, Resource
from ir.core.types import BytesType, Type, type_bytes
from passes.costs.exchange import BUCKET
from passes.costs.learning import trained
from passes.costs.memory.liveness import SLOTS, live_bytes
from passes.graph.graph import reads
from passes.meshes.layouts import Placements, layouts_of, part, split
from passes.meshes.mesh import DeviceMesh
from passes.partition.chain.units import Units
from passes.partition.layouts.problem.build import ShardInput
from passes.partition.layouts.problem.problem import Floats

MOST_LEVELS = 8
"""Places from which on, or up to which, runs are told apart by what else of theirs is alive in a unit; others count less."""


_PART, _WHOLE = range(2)
"""How a value counts: by its least part, or whole."""

_ALWAYS = 1 << 31
"""More units than there are."""


class _Span(NamedTuple):
    """Moments of a unit at which a value is alive, both ends included, in runs that begin ``before`` to ``within`` units ahead,
    this one excluded, and end ``behind`` so many units on or later: 2 n before op n runs, when what it reads is brought to it,
    2 n + 1 while it does. ``value``: its number among the distinct ones."""

    start: int
    end: int
    before: int
    behind: int
    value: int
    within: int = _ALWAYS


class _Held(NamedTuple):
    """A value that runs hold which begin with units ``first .. last`` and end behind unit ``until``, or later."""

    first: int
    last: int
    until: int
    value: int


class Workspace:
    """The least bytes of all runs on each mesh."""

    def __init__(
        self, given: ShardInput, units: Units, resources: Mapping[str, Resource], *, training: bool, microbatches: int
    ) -> None:
        """``given``: the problem of the function on any mesh; ``microbatches``: of a training step."""
        self.func, self.units = given.func, units
        self.in_order = [op for own in units.ops for op in own] == sorted(op for own in units.ops for op in own)
        self.values: dict[tuple[Type, int], int] = {}
        """Distinct types, and how they count."""
        self.place = {op: (unit, at) for unit, ops in enumerate(units.ops) for at, op in enumerate(ops)}
        self.spans: list[list[_Span]] = [[] for _ in units.ops]
        self.near, self.far, self.constant, self.waiting = (list[_Held]() for _ in range(4))
        learns = trained(resources) if training and microbatches > 1 else {}
        kept = {*given.kept.values()}
        values = dict(self._values(resources))
        largest: dict[tuple[int, int], tuple[int, str]] = {}  # of the arguments that an op is the first of its unit to read
        for name, (type_, made, readers) in values.items():
            if made is None and name not in resources:
                for place in _firsts(readers):
                    largest[place] = max(largest.get(place, (0, "")), (type_bytes(type_) or 0, name))
        for name, (type_, made, readers) in values.items():
            if name not in resources:
                self._alive(type_, made, readers, {place for place, (_, first) in largest.items() if first == name})
            elif name not in kept:
                self.constant += _first_read(readers, self._number(type_, _WHOLE))
            elif name in learns:
                self.waiting += _first_read(readers, self._number(type_, _PART))
            if made is not None:
                number, later = self._number(type_, _PART), [unit for unit in dict(readers) if unit > made[0]]
                for before, unit in pairwise([made[0], *later]):
                    self.far.append(_Held(before + 1, unit, unit, number))
                if later:
                    self.near.append(_Held(made[0] + 1, made[0] + 1, later[0], number))
        for op, (unit, at) in self.place.items():
            bodies = [
                max(live_bytes(Func("@body", body.args, (), body.ops)), default=0) for _, body in given.func.ops[op].regions
            ]
            if bodies:
                self.spans[unit].append(_Span(2 * at + 1, 2 * at + 1, 0, 1, self._number(BytesType(max(bodies)), _WHOLE)))
        self.known: dict[object, Floats] = {}

    def inside(self, mesh: DeviceMesh, given: ShardInput | None) -> Floats:
        """``[i, j]``: bytes that units ``i .. j - 1`` need at least beside weights and buffers, in bytes of the smallest
        device. ``given``: the problem on the mesh, where it is built."""
        members, places = math.prod(mesh.sizes), sorted({(member.place, member.room) for member in mesh.members})
        room = max((room for _, room in places), default=1.0)
        key = "inside", (members, room) if given is None else id(given)
        if key not in self.known:
            if given is None:
                sizes = [self._sizes(members, lambda type_: 1 / members) / room]
            else:
                layouts = self._layouts(given)
                sizes = [self._least(layouts, members, partial(part, mesh=mesh, place=place)) / room for place, room in places]
            each = []
            for one in sizes:
                waits = self._sum(self.waiting, one)
                waits = waits if members == 1 else np.minimum(waits, BUCKET)
                each.append(np.maximum(self._workspace(one), waits) + self._sum(self.constant, one))
            self.known[key] = np.maximum.reduce(each)
        return self.known[key]

    def received(self, mesh: DeviceMesh, given: ShardInput | None, alike: bool) -> Floats:
        """The same of buffers; ``alike``: whether the stage before has the same shape."""
        members = math.prod(mesh.sizes)
        key = "received", (members if given is None else id(given)), alike
        if key not in self.known:
            if given is None:
                sent = self._sizes(members, lambda type_: 1 / members)
            else:
                sent = self._least(self._layouts(given), members, partial(split, mesh=mesh))
            buffers = self._sum(self.far, sent)
            if not alike:
                buffers = buffers + self._sum(self.near, self._sizes(1, lambda type_: 1.0) - sent)
            self.known[key] = SLOTS * buffers
        return self.known[key]

    # -- the function --------------------------------------------------------------------------------------------------

    def _number(self, type_: Type, how: int) -> int:
        return self.values.setdefault((type_, how), len(self.values))

    def _values(
        self, resources: Mapping[str, Resource]
    ) -> Iterator[tuple[str, tuple[Type, tuple[int, int] | None, list[tuple[int, int]]]]]:
        """Values of ops in units, arguments and resources: type, the unit and place of the op that makes it, and of those that
        read it, ascending."""
        types: dict[str, Type] = {value.name: value.type for value in self.func.args}
        types |= {name: resource.type for name, resource in resources.items()}
        made: dict[str, tuple[int, int] | None] = dict.fromkeys(types)
        readers: dict[str, list[tuple[int, int]]] = {}
        for op, place in self.place.items():
            for value in self.func.ops[op].results:
                if value.name:
                    types[value.name], made[value.name] = value.type, place
            for name in dict.fromkeys(reads(self.func.ops[op])):
                readers.setdefault(name, []).append(place)
        self.type_of = types
        for name, maker in made.items():
            if maker is not None or name in readers:
                yield name, (types[name], maker, sorted(readers.get(name, [])))

    def _alive(
        self, type_: Type, made: tuple[int, int] | None, readers: Sequence[tuple[int, int]], whole: Collection[tuple[int, int]]
    ) -> None:
        """Notes where a value is alive: from the op that makes it, or the first of the run that reads it, to the last that
        reads it. ``whole``: of an argument the readers before which it counts whole where they are the first of the run;
        others are brought to an op one after the other, each whole at another moment."""
        value = self._number(type_, _PART)
        if not self.in_order:
            for unit, at in (*([made] if made else []), *readers):
                self.spans[unit].append(_Span(2 * at + 1, 2 * at + 1, unit - made[0] if made else 0, 1, value))
            return
        inside: dict[int, list[int]] = {made[0]: [made[1]]} if made else {}
        for unit, at in readers:
            inside.setdefault(unit, []).append(at)
        touched = sorted(inside)
        for number, unit in enumerate(touched):
            first, last, end = min(inside[unit]), max(inside[unit]), 2 * len(self.units.ops[unit]) - 1
            ahead = unit - (made[0] if made else touched[number - 1]) if number else _ALWAYS
            own = self.spans[unit]
            if (unit, first) in whole:
                own.append(_Span(2 * first, 2 * first, 0, 1, self._number(type_, _WHOLE), ahead))
            if number:
                own.append(_Span(0, 2 * first, ahead, 1, value))
            begins = ahead if made and number else 0
            own.append(_Span(2 * first + 1, 2 * last + 1, begins, 1, value))
            if number + 1 < len(touched):
                later = touched[number + 1]
                own.append(_Span(2 * last + 2, end, begins, later + 1 - unit, value))
                for between in range(unit + 1, later):
                    home = made[0] if made else unit
                    throughout = 2 * len(self.units.ops[between]) - 1
                    self.spans[between].append(_Span(0, throughout, between - home, later + 1 - between, value))

    # -- tables --------------------------------------------------------------------------------------------------------

    def _layouts(self, given: ShardInput) -> dict[Type, list[Placements]]:
        """All layouts of values of a type; arguments arrive in any that an op asks for."""
        distinct = {(self.type_of[name], id(one)): one for name, one in given.layouts.items() if name in self.type_of}
        layouts: dict[Type, dict[Placements, None]] = {
            arg.type: dict.fromkeys(layouts_of(arg.type, given.mesh, weight=True).placements) for arg in self.func.args
        }
        for (type_, _), one in distinct.items():
            layouts.setdefault(type_, {}).update(dict.fromkeys(one.placements))
        return {type_: [*found] for type_, found in layouts.items()}

    def _least(
        self, layouts: Mapping[Type, Sequence[Placements]], members: int, of: Callable[[Type, Placements], float]
    ) -> Floats:
        """Bytes of the distinct values, of each the least of its layouts."""
        unread = 1.0 if members == 1 else 0.0
        return self._sizes(members, lambda type_: min((of(type_, lies) for lies in layouts.get(type_, ())), default=unread))

    def _sizes(self, members: int, part_of: Callable[[Type], float]) -> Floats:
        """Bytes of the distinct values, given the part of each."""
        each = [(type_bytes(type_) or 0) * (part_of(type_) if how == _PART else 1.0) for type_, how in self.values]
        return np.array(each, np.float64)

    def _sum(self, held: Iterable[_Held], sizes: Floats) -> Floats:
        count = self.units.count
        change = np.zeros((count + 1, count + 2))
        rows = np.array([*held], np.int64).reshape(-1, 4)
        first, last, until, amount = rows[:, 0], rows[:, 1], rows[:, 2], sizes[rows[:, 3]]
        np.add.at(change, (first, until + 1), amount)
        np.add.at(change, (last + 1, until + 1), -amount)
        return np.asarray(change.cumsum(axis=0).cumsum(axis=1)[:count, : count + 1])

    def _workspace(self, sizes: Floats) -> Floats:
        count = self.units.count
        table = np.zeros((count, count + 1))
        known: dict[tuple[_Span, ...], list[tuple[int, int, int, float]]] = {}
        for unit, spans in enumerate(self.spans):
            key = tuple(spans)
            if key not in known:
                known[key] = [*_peaks(key, len(self.units.ops[unit]), sizes)]
            for ahead, further, behind, most in known[key]:
                runs = table[max(0, unit - further + 1) : max(0, unit - ahead + 1), unit + behind :]
                np.maximum(runs, most, out=runs)
        return table


def _first_read(readers: Collection[tuple[int, int]], value: int) -> Iterator[_Held]:
    """Of a weight: in runs with any of its readers."""
    for before, unit in pairwise([-1, *dict.fromkeys(unit for unit, _ in readers)]):
        yield _Held(before + 1, unit, unit, value)


def _firsts(readers: Iterable[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    """Of ascending readers the first of each unit."""
    return {unit: (unit, at) for unit, at in sorted(readers, reverse=True)}.values()


def _peaks(spans: Sequence[_Span], ops: int, sizes: Floats) -> Iterator[tuple[int, int, int, float]]:
    """The most bytes alive in a unit of so many ops, in runs that begin so many units before it, up to but not as many as the
    second number, and end so many units on, or later."""
    rows = np.array(spans, np.int64).reshape(-1, 6)
    start, end, before, behind, value, within = rows.T
    for ahead, further in pairwise([*_levels(np.concatenate([before, within[within < _ALWAYS]]), 0), _ALWAYS]):
        for on in _levels(behind, 1):
            counts = (before <= ahead) & (behind <= on) & (within >= further)
            change = np.zeros(2 * ops + 2)
            np.add.at(change, start[counts], sizes[value[counts]])
            np.subtract.at(change, end[counts] + 1, sizes[value[counts]])
            yield ahead, further, on, float(change.cumsum().max())


def _levels(of: NDArray[np.int64], least: int) -> list[int]:
    found = sorted({least, *of.tolist()})
    if len(found) > MOST_LEVELS:
        found = [found[number] for number in sorted({*np.linspace(0, len(found) - 1, MOST_LEVELS).astype(int).tolist()})]
    return found
