"""Least sums of tables: variable elimination in the (min, +) semiring, with a bound where it grows too wide.

A *factor* is a table over variables. To eliminate a variable, the factors that have it are added up and minimised over it; what
is left is a factor over its neighbours (Bertele and Brioschi 1972; Dechter 1999, bucket elimination). The variable whose
joined table is smallest goes first, those whose tables would be too wide last. Where a table would have more than ``budget``
entries, or more than ``KEPT`` would be left of it, the factors are parted and each part is minimised by itself (Dechter and
Rish 2003, mini-buckets): the result is then a lower bound and ``exact`` is false.

Deterministic: ties go to the variable that was named first.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from passes.partition.layouts.problem.problem import Floats
from passes.solvers.work import did, now

Scope: TypeAlias = tuple[int, ...]
BUDGET = 1 << 27
"""Entries of the largest joined table, which is made in pieces."""
KEPT = 1 << 23
"""Entries of the largest table that is kept."""
PIECE = 1 << 22
HASTY = 1 << 18
"""As ``BUDGET``, once time is over."""
MOST_DIMS = 24


@dataclass(frozen=True, slots=True)
class Factor:
    """``table`` has a dimension for each variable of ``scope``, which are distinct."""

    scope: Scope
    table: Floats


@dataclass(frozen=True, slots=True)
class Bucket:
    """A variable that was eliminated: the factors that had it, in parts."""

    variable: int
    parts: tuple[tuple[Factor, ...], ...]


@dataclass(frozen=True, slots=True)
class Eliminated:
    """``left``: factors over the variables that were kept; ``buckets``: what the ways back need, in order of elimination."""

    left: tuple[Factor, ...]
    buckets: tuple[Bucket, ...]
    exact: bool

    def trace(self, values: dict[int, int]) -> None:
        """Given values of the variables kept, adds the best ones of those eliminated (where exact; else good ones)."""
        for bucket in reversed(self.buckets):
            total: Floats | float = 0.0
            for factor in (factor for part in bucket.parts for factor in part):
                index = tuple(slice(None) if v == bucket.variable else values[v] for v in factor.scope)
                total = total + factor.table[index]
            values[bucket.variable] = int(np.argmin(total))


def join(factors: Iterable[Factor], scope: Scope, sizes: Mapping[int, int]) -> Floats:
    """The sum of ``factors`` as one table over ``scope``."""
    place = {variable: i for i, variable in enumerate(scope)}
    total = np.zeros((1,) * len(scope))
    for factor in sorted(factors, key=lambda factor: factor.table.size):
        order = sorted(range(len(factor.scope)), key=lambda i: place[factor.scope[i]])
        shape = [1] * len(scope)
        for i in order:
            shape[place[factor.scope[i]]] = factor.table.shape[i]
        total = total + factor.table.transpose(order).reshape(shape)
    return np.broadcast_to(total, tuple(sizes[variable] for variable in scope))


def eliminate(
    factors: Sequence[Factor],
    sizes: Mapping[int, int],
    keep: Iterable[int] = (),
    budget: int = BUDGET,
    until: float = math.inf,
) -> Eliminated:
    """Eliminates every variable of ``factors`` but those of ``keep``. Past the time ``until`` (of ``now``) only
    small tables are made, so that a bound comes soon."""
    kept = set(keep)
    having: dict[int, dict[int, Factor]] = {}
    left: dict[int, Factor] = {}
    near: dict[int, set[int]] = {}

    def add(factor: Factor, number: int) -> None:
        left[number] = factor
        for variable in factor.scope:
            having.setdefault(variable, {})[number] = factor
            near.setdefault(variable, {variable}).update(factor.scope)

    def width(variable: int) -> tuple[bool, int]:
        entries = math.prod(sizes[other] for other in near[variable])
        return entries > budget or entries // sizes[variable] > KEPT, entries

    for number, factor in enumerate(factors):
        add(factor, number)
    made = len(factors)
    heap = [(width(variable), variable) for variable in having if variable not in kept]
    heapq.heapify(heap)
    done: set[int] = set()
    buckets: list[Bucket] = []
    exact = True
    while heap:
        wide, variable = heapq.heappop(heap)
        if variable in done or wide != width(variable):
            continue
        done.add(variable)
        bucket = [having[variable][number] for number in sorted(having[variable])]
        for number in sorted(having[variable]):
            for other in left.pop(number).scope:
                if other != variable:
                    del having[other][number]
        parts = _parts(bucket, variable, sizes, budget if now() < until else min(budget, HASTY))
        exact = exact and len(parts) == 1
        neighbours = near.pop(variable) - {variable}
        for part in parts:
            scope = tuple(sorted({v for factor in part for v in factor.scope} - {variable}))
            message = Factor(scope, _least(part, scope, variable, sizes))
            did("entry", len(part) * sizes[variable] * math.prod(sizes[v] for v in scope))
            add(message, made)
            made += 1
        buckets.append(Bucket(variable, tuple(map(tuple, parts))))
        for other in neighbours:
            near[other] = {other}.union(*(factor.scope for factor in having[other].values()))
            if other not in kept:
                heapq.heappush(heap, (width(other), other))
        did("variable", 1)
    return Eliminated(tuple(left[number] for number in sorted(left)), tuple(buckets), exact)


def _least(factors: Sequence[Factor], scope: Scope, variable: int, sizes: Mapping[int, int]) -> Floats:
    """The sum of ``factors`` minimised over ``variable``, in pieces along the longest dimension of ``scope``."""
    entries = math.prod(sizes[v] for v in scope) * sizes[variable]
    if entries <= PIECE or not scope:
        return np.asarray(join(factors, (variable, *scope), sizes).min(axis=0))  # along the first axis minima are quick
    longest = max(scope, key=lambda v: sizes[v])
    rest = tuple(v for v in scope if v != longest)
    pieces = []
    for value in range(sizes[longest]):
        cut = []
        for factor in factors:
            index = tuple(value if v == longest else slice(None) for v in factor.scope)
            cut.append(Factor(tuple(v for v in factor.scope if v != longest), np.asarray(factor.table[index])))
        pieces.append(_least(cut, rest, variable, sizes))
    return np.stack(pieces, axis=scope.index(longest))


def _parts(bucket: Sequence[Factor], variable: int, sizes: Mapping[int, int], budget: int) -> list[list[Factor]]:
    """All factors together where their joined table is small enough; else parts that are, the widest factors first."""

    def fits(scope: set[int]) -> bool:
        entries = math.prod(sizes[v] for v in scope)
        return len(scope) <= MOST_DIMS and entries <= budget and entries // sizes[variable] <= KEPT

    if fits({v for factor in bucket for v in factor.scope}):
        return [list(bucket)]
    parts: list[tuple[set[int], list[Factor]]] = []
    for factor in sorted(bucket, key=lambda factor: (-factor.table.size, factor.scope)):
        for scope, part in parts:
            if fits(scope.union(factor.scope)):
                scope.update(factor.scope)
                part.append(factor)
                break
        else:
            parts.append((set(factor.scope), [factor]))
    return [part for _, part in parts]
