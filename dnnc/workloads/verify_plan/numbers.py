"""Numbers of a file as exact rationals, and their comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

CLOSE = Fraction(1, 10**6)
"""Largest relative difference of two equal values, since the reference prints six digits."""

MOST = 10**100
"""Numbers above it are refused, and nonzero ones below its reciprocal, so that sums and ratios fit in a float."""
_RANGE = "0 or from 1e-100 to 1e100, without quotes"


class Malformed(Exception):
    """A file that cannot be read; ``result``: whether it is the split, not the workload."""

    def __init__(self, message: str, result: bool = False) -> None:
        super().__init__(message)
        self.result = result


def fraction(value: object) -> Fraction | None:
    """A JSON number as the exact decimal that it prints as, equal for equal texts. None if it is no such number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < MOST or 0 < abs(value) * MOST < 1:
        return None
    return Fraction(repr(value)) if isinstance(value, float) else Fraction(value)


def need(value: object, what: str) -> Fraction:
    found = fraction(value)
    if found is None:
        raise Malformed(f"{what} is {told(value)}, expected a number: {_RANGE}")
    return found


def claim(holder: Mapping[str, Any], key: str) -> Fraction | None:
    """A number that a result claims, None if it has none. Raises Malformed for anything but a number."""
    value = holder.get(key)
    found = fraction(value)
    if found is None and value is not None:
        raise Malformed(f"'{key}' is {told(value)}, expected a number: {_RANGE}", result=True)
    return found


def told(value: object) -> str:
    """A value as text for a message; an integer may have more digits than Python prints."""
    return "a number of too many digits" if isinstance(value, int) and abs(value) >= MOST else repr(value)[:60]


def same(claimed: Fraction, true: Fraction) -> bool:
    return abs(claimed - true) <= CLOSE * max(abs(true), abs(claimed))


def some(ids: Sequence[int | str]) -> str:
    return ", ".join(repr(id_) for id_ in ids[:8]) + (", ..." if len(ids) > 8 else "")
