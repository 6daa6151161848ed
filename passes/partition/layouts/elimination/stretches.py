"""Copies in a row as one table: a stretch of equal copies is two halves, and equal halves are made once.

``(A x B)[u, p, q] = min over m of A[u, p, m] + B[u, m, q]``, for each ``u`` (what all copies share) by itself: a stretch is the
elimination of what crosses between its halves, so ways back go through it as through any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from passes.partition.layouts.elimination.elimination import Eliminated, Factor, Scope, eliminate, join
from passes.partition.layouts.problem.problem import Floats

SHARED, BEFORE, MIDDLE, BEHIND = -1, -2, -3, -4
"""Variables of a stretch: what all copies share, what crosses at its ends, and between its halves."""
ENDS: Scope = (SHARED, BEFORE, BEHIND)


@dataclass(frozen=True, slots=True)
class Joined:
    """Two stretches, one behind the other, and the elimination ``inner`` of what is between them."""

    halves: tuple[Stretch, Stretch]
    inner: Eliminated


@dataclass(frozen=True, slots=True)
class Stretch:
    """``table[shared, before, behind]`` of ``count`` copies; a single copy has no ``parts``."""

    count: int
    table: Floats
    parts: Joined | None = None


def stretched(table: Floats, count: int) -> Stretch:
    """``count`` (at least 1) copies that each have ``table``."""
    sizes = sizes_of(table)
    stretches = {1: Stretch(1, table)}

    def of(count: int) -> Stretch:
        if count not in stretches:
            one, two = of(count // 2), of(count - count // 2)
            factors = Factor((SHARED, BEFORE, MIDDLE), one.table), Factor((SHARED, MIDDLE, BEHIND), two.table)
            inner = eliminate(factors, sizes, ENDS)
            stretches[count] = Stretch(count, join(inner.left, ENDS, sizes), Joined((one, two), inner))
        return stretches[count]

    return of(count)


def sizes_of(table: Floats) -> Mapping[int, int]:
    """Of the variables of the stretches whose copies have ``table``."""
    shared, before, behind = table.shape
    return {SHARED: shared, BEFORE: before, MIDDLE: behind, BEHIND: behind}


def crossings(whole: Stretch, shared: int, before: int, behind: int) -> list[tuple[int, int]]:
    """What crosses before and behind each copy; equal stretches with equal ends are asked once."""
    within: dict[tuple[int, int, int], list[tuple[int, int]]] = {}

    def through(stretch: Stretch, before: int, behind: int) -> list[tuple[int, int]]:
        key = (stretch.count, before, behind)
        if key not in within:
            if stretch.parts is None:
                within[key] = [(before, behind)]
            else:
                values = {SHARED: shared, BEFORE: before, BEHIND: behind}
                stretch.parts.inner.trace(values)
                one, two = stretch.parts.halves
                within[key] = through(one, before, values[MIDDLE]) + through(two, values[MIDDLE], behind)
        return within[key]

    return through(whole, before, behind)
