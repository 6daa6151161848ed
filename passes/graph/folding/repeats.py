"""Repeats in a string of numbers: which stretches occur more than once, found in O(n log n) whatever the string.

``Repeats`` ranks all stretches of each power of two by doubling (Karp, Miller, Rosenberg 1972), which compares any two
stretches in O(1) and sorts the suffixes. From these:

- ``runs``: maximal stretches of a period that they hold at least twice (a chain of layers);
- ``maximal``: repeats that no wider stretch has all occurrences of (blocks that stand apart).

Everything here is exact on the string; what a match of strings means is for ``search`` to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Run:
    """``string[start:end]`` has the least period ``period``, at most half its length, and does not go on on either side."""

    start: int
    end: int
    period: int


@dataclass(frozen=True, slots=True)
class Repeat:
    """A stretch of ``length`` that stands at the suffixes ``first .. last`` of the suffix array: ``Repeats.starts`` tells
    where."""

    length: int
    first: int
    last: int

    @property
    def count(self) -> int:
        """How often it stands, overlapping or not."""
        return self.last - self.first + 1


class Repeats:
    """The repeats of ``string``."""

    def __init__(self, string: Sequence[int]) -> None:
        self.string: Numbers = np.asarray(string, dtype=np.int64)
        self.ranks = _doubled(self.string)
        self.suffixes: Numbers = np.argsort(self.ranks[-1], kind="stable")
        self.runs = self._runs()

    def __len__(self) -> int:
        return len(self.string)

    def equal_to(self, start: int, length: int) -> list[int]:
        """Every place, ascending, where the stretch ``start .. start + length`` stands, itself included."""
        level = min(length.bit_length(), len(self.ranks)) - 1
        ranks, step = self.ranks[level], 1 << level
        found: Numbers = np.flatnonzero(ranks[: len(self) - length + 1] == ranks[start])
        for offset in range(step, length, step):
            offset = min(offset, length - step)
            found = found[ranks[found + offset] == ranks[start + offset]]
        return [int(place) for place in found]

    def _runs(self) -> list[Run]:
        """Every run, by its place, the shorter period first."""
        backward = _doubled(self.string[::-1])
        count, found = len(self), set()
        for level, ranks in enumerate(self.ranks):
            step = 1 << level
            # A run of period p, step <= p < 2 step: somewhere in it, a stretch of ``step`` comes next at distance p.
            order = np.argsort(ranks, kind="stable")
            same = ranks[order[1:]] == ranks[order[:-1]]
            first, gap = order[:-1][same], (order[1:] - order[:-1])[same]
            near = (gap >= step) & (gap < 2 * step)
            first, gap = first[near], gap[near]
            by_place = np.lexsort((first, gap))
            first, gap = first[by_place], gap[by_place]
            fresh = np.ones(len(first), dtype=bool)
            fresh[1:] = (gap[1:] != gap[:-1]) | (first[1:] != first[:-1] + 1)
            first, gap = first[fresh], gap[fresh]
            ahead = _common(self.ranks, first, first + gap)
            behind = _common(backward, count - first, count - first - gap)
            starts, ends = first - behind, first + gap + ahead
            long = ends - starts >= 2 * gap
            found |= set(zip(starts[long].tolist(), ends[long].tolist(), gap[long].tolist(), strict=True))
        # A stretch of period p has the periods 2p, 3p.. as well.
        least: dict[tuple[int, int], int] = {}
        for start, end, period in sorted(found):
            least.setdefault((start, end), period)
        return [Run(start, end, period) for (start, end), period in least.items()]

    def maximal(self, shortest: int) -> Iterator[Repeat]:
        """Repeats of at least ``shortest`` whose occurrences do not all continue alike, on the left nor on the right; without
        those that are themselves runs, whose occurrences are a matter of their period."""
        periodic = self._periodic()
        suffixes = self.suffixes
        common = [*_common(self.ranks, suffixes[:-1], suffixes[1:]).tolist(), 0]
        before = np.where(suffixes > 0, self.string[suffixes - 1], -1 - len(self)).tolist()
        places: list[int] = suffixes.tolist()
        # Intervals of the suffix array that share a prefix, by a stack (Abouelhoda, Kurtz, Ohlebusch 2004): length, first
        # suffix, what stands before all its suffixes so far (None: they differ).
        stack: list[tuple[int, int, int | None]] = []
        for position in range(len(suffixes)):
            opened: int = position
            left: int | None = before[position]
            while stack and stack[-1][0] > common[position]:
                length, opened, seen = stack.pop()
                left = seen if seen == left else None
                if left is None and length >= shortest and not periodic(places[opened], length):
                    yield Repeat(length, opened, position)
            if stack and stack[-1][0] == common[position]:
                length, opened, seen = stack.pop()
                left = seen if seen == left else None
            if common[position] > 0:
                stack.append((common[position], opened, left))

    def _periodic(self) -> Callable[[int, int], bool]:
        """Whether the stretch at a place, of a length, holds some period twice: lies in a run of at most half its length."""
        scales: dict[int, tuple[Numbers, Numbers]] = {}
        for run in sorted(self.runs, key=lambda run: run.end):
            scale = run.period.bit_length()
            if scale not in scales:
                scales[scale] = np.zeros(len(self), dtype=np.int64), np.zeros(len(self), dtype=np.int64)
            ends, periods = scales[scale]  # of the run that reaches furthest, of periods up to twice the least
            ends[run.start : run.end] = run.end
            periods[run.start : run.end] = run.period
        tables = [(ends.tolist(), periods.tolist()) for ends, periods in scales.values()]

        def periodic(start: int, length: int) -> bool:
            return any(ends[start] >= start + length and 2 * periods[start] <= length for ends, periods in tables)

        return periodic

    def start(self, repeat: Repeat) -> int:
        """One place where ``repeat`` stands."""
        return int(self.suffixes[repeat.first])

    def starts(self, repeat: Repeat) -> tuple[int, ...]:
        """Where ``repeat`` stands, ascending."""
        return tuple(np.sort(self.suffixes[repeat.first : repeat.last + 1]).tolist())

    def rotation(self, run: Run) -> int:
        """The place of the least rotation of the run's period: the same for every run of the same cycle."""
        return run.start + int(np.argmin(self.ranks[-1][run.start : run.start + run.period]))

    def name(self, start: int, length: int) -> tuple[int, int, int]:
        """Equal exactly for equal stretches."""
        level = min(length.bit_length(), len(self.ranks)) - 1
        ranks = self.ranks[level]
        return length, int(ranks[start]), int(ranks[start + length - (1 << level)])


def _doubled(string: Numbers) -> list[Numbers]:
    """Ranks of the stretches of length 1, 2, 4.. at each place, until they are all different; past the end stands what is less
    than anything."""
    _, ranks = np.unique(string, return_inverse=True)
    levels = [ranks.astype(np.int64)]
    count = len(string)
    while int(levels[-1].max(initial=0)) + 1 < count:
        step = 1 << (len(levels) - 1)
        second = np.zeros(count, dtype=np.int64)
        second[: count - step] = levels[-1][step:] + 1
        _, ranks = np.unique(levels[-1] * (count + 2) + second, return_inverse=True)
        levels.append(ranks.astype(np.int64))
    return levels


def _common(ranks: Sequence[Numbers], one: Numbers, other: Numbers) -> Numbers:
    """How far the suffixes at ``one`` and ``other`` agree, pair by pair (places may be the end)."""
    count = len(ranks[0])
    one, other = one.copy(), other.copy()
    start = one.copy()
    for level in range(len(ranks) - 1, -1, -1):
        step = 1 << level
        inside = np.flatnonzero(np.maximum(one, other) + step <= count)
        inside = inside[ranks[level][one[inside]] == ranks[level][other[inside]]]
        one[inside] += step
        other[inside] += step
    return one - start
