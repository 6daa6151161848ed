"""Numbers of a file as exact rationals, and how two of them agree."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

CLOSE = Fraction(1, 10**6)
"""Relative distance at which two values agree: the reference prints six digits."""


class Malformed(Exception):
    """A file that cannot be read; ``result``: the claimed split, else the workload."""

    def __init__(self, message: str, result: bool = False) -> None:
        super().__init__(message)
        self.result = result


def fraction(value: object) -> Fraction | None:
    """A JSON number as the decimal that it prints as: exact, and equal for equal texts."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or abs(value) == float("inf"):
        return None
    return Fraction(repr(value)) if isinstance(value, float) else Fraction(value)


def need(value: object, what: str) -> Fraction:
    found = fraction(value)
    if found is None:
        raise Malformed(f"{what} is {value!r}, expected a number")
    return found


def same(claimed: Fraction, true: Fraction) -> bool:
    return abs(claimed - true) <= CLOSE * max(abs(true), abs(claimed))


def some(ids: Sequence[int | str]) -> str:
    return ", ".join(repr(id_) for id_ in ids[:8]) + (", ..." if len(ids) > 8 else "")


__all__ = ["CLOSE", "Malformed", "fraction", "need", "same", "some"]
