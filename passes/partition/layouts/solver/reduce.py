"""Choices that no cheapest plan needs: exact reductions before the search.

A choice ``b`` of a node goes where another, ``a``, costs no more whatever the neighbours choose (dead-end elimination,
Goldstein 1994): with the seconds of the node itself and, per value that it makes or reads, the least difference that any
choices around it can bring,

    seconds[b] - seconds[a] + sum over values of min over surroundings (cost with b - cost with a) >= 0.

Taking ``a`` for ``b`` never makes a plan dearer, at one node after another, so a cheapest plan is left; and ``a`` needs no more
memory, so this holds under any price of memory too. Nodes of one kind keep the same choices (``b`` goes where that holds at all
of them): what repeats still repeats. The fewer choices there are, the fewer can surround another: rounds, until nothing goes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from passes.partition.layouts.problem.graph import Form, Integers
from passes.partition.layouts.problem.problem import Floats, ShardProblem
from passes.solvers.work import did, now

ROUNDS = 8
MOST_UNIONS = 1 << 8
"""Ways to need a value together that are looked at one by one; of more, a bound is taken."""
MOST_SUMS = 1 << 21
"""Sums that are made for a pair of a reader and a value; where there would be more, likewise."""

Port: TypeAlias = tuple[int, tuple[int, ...]]
"""A reading node: its kind and the ports at which it reads a value."""


@dataclass(frozen=True, slots=True)
class Reduced:
    """``kept[node kind]``: the choices that are left, by their number in the problem that was given."""

    problem: ShardProblem
    kept: tuple[Integers, ...]

    def original(self, choices: Sequence[int]) -> tuple[int, ...]:
        """Choices of the reduced problem as those of the one given."""
        starts = np.cumsum([0, *map(len, self.kept)])[:-1]
        kept = np.concatenate([np.zeros(0, np.int64), *self.kept])
        return tuple(kept[starts[self.problem.graph.kind_of] + np.asarray(choices, np.int64)].tolist())

    def nearest(self, choices: Sequence[int]) -> tuple[int, ...]:
        """Choices of the problem given as those of the reduced one; for one that is gone, the cheapest by itself."""
        known = [{int(choice): number for number, choice in enumerate(kept)} for kept in self.kept]
        cheapest = [int(np.argmin(kind.seconds)) if len(kind.seconds) else 0 for kind in self.problem.node_kinds]
        pairs = zip(self.problem.kinds, choices, strict=True)
        return tuple(known[kind].get(choice, cheapest[kind]) for kind, choice in pairs)


def whole(problem: ShardProblem) -> Reduced:
    """Nothing is gone."""
    return Reduced(problem, tuple(np.arange(len(kind.seconds)) for kind in problem.node_kinds))


def reduced(problem: ShardProblem, until: float = math.inf) -> Reduced:
    """The problem without choices that are never needed, whose cheapest plan costs the same. Past the time ``until`` (of
    ``now``) no more are looked for."""
    if not all(np.isfinite(value.weights).all() for value in problem.value_kinds):
        return whole(problem)
    return _Reduction(problem, until).run()


class _Reduction:
    def __init__(self, problem: ShardProblem, until: float) -> None:
        self.problem, self.until = problem, until
        self.alive = [np.arange(len(kind.seconds)) for kind in problem.node_kinds]
        self.places: list[list[tuple[tuple[int, int], ...]]] = [[] for _ in problem.node_kinds]
        for place in problem.graph.places:
            self.places[place.kind].append(place.sides)
        self.known: dict[tuple[object, ...], Floats] = {}
        self.members: dict[int, Floats] = {}
        self.wants: dict[tuple[object, ...], tuple[Floats, Integers]] = {}
        self.together: dict[tuple[object, ...], Floats | None] = {}

    def run(self) -> Reduced:
        for _ in range(ROUNDS):
            self.known.clear()
            if not any([self.shrink(kind) for kind in range(len(self.alive))]):
                break
        kinds = tuple(kind.some(alive) for kind, alive in zip(self.problem.node_kinds, self.alive, strict=True))
        return Reduced(replace(self.problem, node_kinds=kinds), tuple(self.alive))

    def shrink(self, number: int) -> bool:
        """Drops choices of one kind; whether any went."""
        kind, alive = self.problem.node_kinds[number], self.alive[number]
        if len(alive) < 2 or not self.places[number] or now() > self.until:
            return False
        seconds, memory = kind.seconds[alive], kind.memory[alive]
        gain = np.full((len(alive), len(alive)), np.inf)
        for sides in self.places[number]:
            here = seconds[None, :] - seconds[:, None]
            for form, role in sides:
                here = here + self.difference(number, form, role)
                did("side", 1)
            np.minimum(gain, here, out=gain)
        better = (gain >= 0) & (memory[:, None] <= memory[None, :])
        np.fill_diagonal(better, False)
        left = np.ones(len(alive), dtype=bool)
        for choice in reversed(range(len(alive))):
            left[choice] = not (better[:, choice] & left).any()
        self.alive[number] = alive[left]
        return not left.all()

    def difference(self, number: int, place: int, role: int) -> Floats:
        """``[a, b]``: the least of what ``b`` costs over ``a`` at one value, of a form in which the node has the ``role``."""
        form, alive = self.problem.graph.forms[place], self.alive[number]
        if role:
            others = tuple(sorted(form.readers[: role - 1] + form.readers[role:]))
            rows, each = self.wanted(form.kind, form.readers[role - 1])
            found = self.cached((place, others, rows.tobytes()), lambda: self.read(form, others, rows))
        else:
            makes = self.problem.node_kinds[number].makes[form.maker[1]]
            sources, each = np.unique(makes[alive], return_inverse=True)
            found = self.cached((place, sources.tobytes()), lambda: self.made(form, sources))
        return found[np.ix_(each, each)]

    def cached(self, key: tuple[object, ...], make: Callable[[], Floats]) -> Floats:
        if key not in self.known:
            self.known[key] = make()
        return self.known[key]

    def wanted(self, value: int, port: Port) -> tuple[Floats, Integers]:
        """``[need, key]``: which keys of a value the distinct needs of a reader have; and the need of each of its choices."""
        number, ports = port
        kind, alive, table = self.problem.node_kinds[number], self.alive[number], self.problem.value_kinds[value]
        key = (value, port, len(alive))  # choices only go
        if key not in self.wants:
            if value not in self.members:
                members = self.members[value] = np.zeros((len(table.needs), table.weights.shape[1]))
                for need, keys in enumerate(table.needs):
                    members[need, list(keys)] = 1.0
            columns = [kind.reads[port][alive] for port in ports]
            code = columns[0]
            for column in columns[1:]:
                code = np.unique(code * len(table.needs) + column, return_inverse=True)[1]
            _, first, each = np.unique(code, return_index=True, return_inverse=True)
            self.wants[key] = np.maximum.reduce([self.members[value][column[first]] for column in columns]), each
        return self.wants[key]

    def unions(self, value: int, ports: Sequence[Port]) -> Floats | None:
        """What some readers of a value may need together; None where there are too many ways."""
        key = (value, ports, *(len(self.alive[number]) for number, _ in ports))
        if key not in self.together:
            self.together[key] = _unions([self.wanted(value, port)[0] for port in ports])
        return self.together[key]

    def made(self, form: Form, sources: Integers) -> Floats:
        """Between sources, whatever the readers need: each union of needs, or, of many, all that ``b`` might cost less, and
        what it costs more for the reader that makes this most."""
        weights = self.problem.value_kinds[form.kind].weights[sources]
        if not form.readers:
            return np.zeros((len(sources), len(sources)))
        unions = self.unions(form.kind, tuple(sorted(form.readers)))
        if unions is not None:
            return _least(weights @ unions.T)
        readers = [self.wanted(form.kind, port)[0] for port in form.readers]
        more = weights[None, :, :] - weights[:, None, :]
        could = np.maximum.reduce([table.max(axis=0) for table in readers])
        less = np.minimum(more, 0.0) @ could
        dearer = np.maximum(more, 0.0)
        return np.asarray(less + np.max([np.min(dearer @ table.T, axis=-1) for table in readers], axis=0))

    def read(self, form: Form, others: Sequence[Port], rows: Floats) -> Floats:
        """Between sets of needed keys, whatever the source, of those that the maker can still give, and what others need
        anyway."""
        maker, result = form.maker
        sources = np.unique(self.problem.node_kinds[maker].makes[result][self.alive[maker]])
        weights = self.problem.value_kinds[form.kind].weights[sources]
        unions = self.unions(form.kind, others) if others else np.zeros((1, rows.shape[1]))
        if unions is None or len(unions) * len(rows) ** 2 * len(weights) > MOST_SUMS:
            extra = rows[:, None, :] * (1.0 - rows[None, :, :])
            return np.asarray(-np.max(extra @ weights.T, axis=-1))
        found = np.full((len(rows), len(rows)), np.inf)
        for union in unions:
            costs = (weights * (1.0 - union)) @ rows.T
            np.minimum(found, _least(costs.T), out=found)
        return found


def _least(costs: Floats) -> Floats:
    """``[a, b]``: the least of ``costs[b] - costs[a]`` over columns."""
    found = np.asarray((costs[None, :, :] - costs[:, None, :]).min(axis=-1))
    did("pair", len(costs) * costs.size)
    return found


def _unions(readers: Sequence[Floats]) -> Floats | None:
    """What all readers may need together; None where there are too many ways."""
    found, before = readers[0], -1
    for last, table in pairwise(readers):
        if table is last and len(found) == before:
            continue  # equal readers need no more together than these
        before = len(found)
        if len(found) * len(table) > 16 * MOST_UNIONS:
            return None
        either = np.maximum(found[:, None, :], table[None, :, :]).reshape(-1, found.shape[1])
        first: dict[bytes, int] = {}
        for number, row in enumerate(np.packbits(either > 0, axis=1)):
            first.setdefault(row.tobytes(), number)
        found = either[list(first.values())]
        if len(found) > MOST_UNIONS:
            return None
    return found if len(found) <= MOST_UNIONS else None
