"""Units: the pieces between the places where a function may be cut into stages, and which runs of them are alike.

Order: that of ``fold``, a topological one in which every copy of a repeated part lies in one stretch; so any run of units from
the first on is a downset. A *cut* lies where few values cross: in a valley of their number, then of their bytes, along the
order; repeats so give the same cuts in each copy. Of more than ``MOST_CUTS`` of these, those that fewest values cross, then
fewest bytes, are kept. A *run* is a stretch of units, what a stage holds.

Two runs with one *key* have equal ops in equal order, wired alike among themselves, and alike in which values enter, are shared
and leave: so they are the same problem, wherever they lie. Keys say nothing of names and positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ir.module import Func
from ir.types import type_bytes
from passes.analyses.memory import reads
from passes.fold import Folding
from passes.shard.build import ShardInput

MOST_CUTS = 256


@dataclass(frozen=True, slots=True)
class Units:
    """``ops[unit]``: positions in the function, ascending; ``keys[first][last - first]``: of the run from first to last."""

    ops: tuple[tuple[int, ...], ...]
    keys: tuple[tuple[int, ...], ...]

    @property
    def count(self) -> int:
        return len(self.ops)

    def run(self, first: int, behind: int) -> tuple[int, ...]:
        """Positions of the ops of units ``first .. behind - 1``, unit by unit: a topological order, and the same in all runs of
        one key."""
        return tuple(op for unit in self.ops[first:behind] for op in unit)

    def key(self, first: int, behind: int) -> int:
        return self.keys[first][behind - first - 1]


def units_of(func: Func, folding: Folding | None, given: ShardInput, most: int = MOST_CUTS) -> Units:
    """``given``: the problem of ``func`` on any mesh, for the kinds of its nodes."""
    order = list(folding.order) if folding is not None else list(range(len(func.ops)))
    cuts = _cuts(func, order, most)
    bounds = [0, *cuts, len(order)]
    ops = tuple(tuple(sorted(order[a:b])) for a, b in pairwise(bounds) if a < b)
    return Units(ops, _keys(given, ops))


def _cuts(func: Func, order: Sequence[int], most: int) -> list[int]:
    """Places in ``order`` before which a stage may begin."""
    place = {op: i for i, op in enumerate(order)}
    made = {value.name: (place[i], type_bytes(value.type) or 0) for i, op in enumerate(func.ops) for value in op.results}
    last = dict.fromkeys(made, -1)
    for i, op in enumerate(func.ops):
        for name in reads(op):
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
    crossing = list(zip(count, size, strict=True))
    crossing[0] = crossing[-1] = (len(order), 0)  # the ends are no cuts
    found: list[int] = []
    start = 1
    while start < len(order):
        behind = start
        while crossing[behind] == crossing[start]:
            behind += 1
        if crossing[start - 1] > crossing[start] < crossing[behind]:
            found += range(start, behind)
        start = behind
    if len(found) > most:
        found = sorted(sorted(found, key=lambda p: (*crossing[p], p))[:most])
    return found


def _keys(given: ShardInput, units: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    problem = given.problem
    ops = len(given.func.ops)
    unit_of = {op: unit for unit, members in enumerate(units) for op in members}
    local = {op: i for members in units for i, op in enumerate(members)}
    read: list[list[tuple[int, int]]] = [[] for _ in range(problem.size)]
    leaves = [0] * len(problem.values)
    within: list[int | None] = []
    for number, value in enumerate(problem.values):
        readers = [unit_of[node] for node, _ in value.readers if node < ops]
        leaves[number] = max(readers, default=-1)
        maker = value.maker[0]
        homes = {*readers, *((unit_of[maker],) if maker < ops else ())}
        within.append(homes.pop() if len(homes) == 1 else None)
        for node, port in value.readers:
            read[node].append((port, number))
    interned: dict[object, int] = {}

    def intern(form: object) -> int:
        return interned.setdefault(form, len(interned))

    made: list[list[int]] = [[] for _ in units]
    for number, value in enumerate(problem.values):
        if value.maker[0] < ops:
            made[unit_of[value.maker[0]]].append(number)
    outside: list[list[int]] = []
    content: list[int] = []
    for unit, members in enumerate(units):
        slots: dict[int, int] = {}
        rows = []
        for op in members:
            row: list[object] = [problem.kinds[op]]
            for port, number in sorted(read[op]):
                maker, result = problem.values[number].maker
                if within[number] == unit and maker < ops:
                    row.append((port, local[maker], result))
                elif within[number] == unit:
                    row.append((port, "w", problem.kinds[maker], slots.setdefault(number, len(slots))))
                else:
                    kind = problem.values[number].kind
                    held = problem.kinds[maker] if maker >= ops else -1
                    row.append((port, "e", kind, held, slots.setdefault(number, len(slots))))
            rows.append(tuple(row))
        given_out = tuple(
            (local[maker], result)
            for number in made[unit]
            for maker, result in (problem.values[number].maker,)
            if any(node >= ops for node, _ in problem.values[number].readers)
        )
        outside.append([number for number in slots if within[number] != unit])
        content.append(intern((tuple(rows), given_out)))
    keys = []
    for first in range(len(units)):
        row_keys, chain = [], -1
        seen: dict[int, int] = {}
        alive: list[int] = []
        for unit in range(first, len(units)):
            slots_told: list[object] = []
            for number in outside[unit]:
                maker, result = problem.values[number].maker
                if maker < ops and unit_of[maker] >= first:
                    slots_told.append((unit - unit_of[maker], local[maker], result))
                else:
                    slots_told.append(seen.setdefault(number, len(seen)))
            chain = intern((chain, content[unit], tuple(slots_told)))
            alive = [number for number in (*alive, *made[unit]) if leaves[number] > unit]
            out = tuple((unit - unit_of[m], local[m], r) for number in alive for m, r in (problem.values[number].maker,))
            row_keys.append(intern((chain, out)))
        keys.append(tuple(row_keys))
    return tuple(keys)


__all__ = ["MOST_CUTS", "Units", "units_of"]
