"""Min-plus powers: the best way through r equal steps, in O(log r) products, and which states it goes through.

``(A x B)[u, p, r] = min over q of A[u, p, q] + B[u, q, r]``, for each ``u`` (what all steps share) by itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from passes.model.work import did
from passes.shard.problem.problem import Floats

_AT_ONCE = 1 << 14
"""Sums made at a time: few enough to stay in a processor's cache, so many that what a call takes does not count."""


@dataclass(frozen=True, slots=True)
class Power:
    """``table[u, p, q]`` of ``count`` steps, as the product of two powers; a single step has none."""

    count: int
    table: Floats
    parts: tuple[Power, Power] | None = None

    def states(self, u: int, first: int, last: int) -> list[int]:
        """The state after each step; the last is ``last``. States at the ends of equal stretches are asked once."""
        known: dict[tuple[int, int, int], list[int]] = {}

        def through(power: Power, first: int, last: int) -> list[int]:
            key = (id(power), first, last)
            if key not in known:
                if power.parts is None:
                    known[key] = [last]
                else:
                    one, two = power.parts
                    middle = int(np.argmin(one.table[u, first] + two.table[u, :, last]))
                    known[key] = through(one, first, middle) + through(two, middle, last)
            return known[key]

        return through(self, first, last)


def power(step: Floats, count: int) -> Power:
    """``count`` (at least 1) steps of ``step[u, p, q]``."""
    square = Power(1, step)
    result: Power | None = None
    while count:
        if count & 1:
            result = square if result is None else _product(result, square)
        count >>= 1
        if count:
            square = _product(square, square)
    assert result is not None
    return result


def _product(one: Power, two: Power) -> Power:
    return Power(one.count + two.count, product(one.table, two.table), (one, two))


def product(left: Floats, right: Floats) -> Floats:
    """The min-plus product ``[u, p, r]`` of ``[u, p, q]`` and ``[u, q, r]``."""
    states, last = left.shape[1], right.shape[2]
    table = np.empty((len(left), states, last))
    apart = max(1, _AT_ONCE // (states * last))
    rows = states if apart > 1 else max(1, _AT_ONCE // last)
    for u in range(0, len(left), apart):
        for start in range(0, states, rows):
            before, behind = left[u : u + apart, start : start + rows], right[u : u + apart]
            found = before[:, :, 0, None] + behind[:, 0, None, :]
            through = np.empty_like(found)
            for middle in range(1, right.shape[1]):
                np.add(before[:, :, middle, None], behind[:, middle, None, :], out=through)
                np.minimum(found, through, out=found)
            table[u : u + apart, start : start + rows] = found
    did("sum", math.prod(left.shape) * last)
    return table


__all__ = ["Power", "power", "product"]
