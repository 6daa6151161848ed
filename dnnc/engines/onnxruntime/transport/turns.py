"""Which microbatches a place works on, or a link carries."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Turns:
    """Microbatch m is one of these if m modulo ``round`` is among ``numbers``, which ascend and are less than ``round``. So
    ``len(numbers)`` of each ``round`` microbatches are."""

    numbers: tuple[int, ...]
    round: int

    def __contains__(self, microbatch: int) -> bool:
        number = microbatch % self.round
        place = bisect_left(self.numbers, number)
        return place < len(self.numbers) and self.numbers[place] == number

    def within(self, first: int, until: int) -> Iterator[int]:
        """Those of the microbatches ``first`` to ``until - 1``, ascending."""
        for start in range(first - first % self.round, until, self.round):
            for number in self.numbers:
                if first <= start + number < until:
                    yield start + number


ALWAYS = Turns((0,), 1)
"""Every microbatch."""
