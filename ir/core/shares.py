"""Shares: how a dimension, or the units of a factor, is cut along the axes of a mesh.

An axis gives each member a share, a small integer; all shares are 1 where the members are alike. Elements are dealt one by one,
each to the member with the least ``(held + 1) / share``, then the smaller share, then the lower number (D'Hondt's method). It
follows that

- max(part / share) is minimal (greedy is optimal for equal jobs on uniform machines);
- ``sum(shares)`` more elements give each member exactly its share more, so a multiple of this sum is cut in exact proportion;
- with equal shares, parts differ by at most 1, and the longer ones come first.

Parts are contiguous, in the order of the members. Where several axes cut one range, each cuts the part that the axis before it
left.

Invariants: a member with a greater share (of equal shares, the one with the lower number) never has a smaller part; a longer
range never has a smaller part. So one member has the largest part of every range, and one the smallest.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from functools import lru_cache
from typing import TypeAlias

Shares: TypeAlias = tuple[int, ...]
"""One positive integer for each member of an axis."""
Range: TypeAlias = tuple[int, int]
"""Start and length."""


def equal(count: int) -> Shares:
    """The shares of members that are alike."""
    return (1,) * count


@lru_cache(maxsize=1 << 16)
def cut(length: int, shares: Shares, part: int) -> Range:
    """The range of member number ``part``."""
    rounds, rest = divmod(length, sum(shares))
    more = _dealt(shares)[:rest]
    start = sum(rounds * share for share in shares[:part]) + sum(taker < part for taker in more)
    return start, rounds * shares[part] + more.count(part)


def nested_cut(length: int, cuts: Iterable[tuple[Shares, int]]) -> Range:
    """The part of a range after several nested cuts, each given by its shares and the number of the part."""
    start = 0
    for shares, part in cuts:
        further, length = cut(length, shares, part)
        start += further
    return start, length


def largest(length: int, axes: Iterable[Shares]) -> int:
    """The length of the largest part of a range that these axes cut, one inside the other."""
    return nested_cut(length, ((shares, foremost(shares)) for shares in axes))[1]


def none_empty(length: int, axes: Iterable[Shares]) -> bool:
    """Whether each member gets something of a range."""
    return nested_cut(length, ((shares, hindmost(shares)) for shares in axes))[1] > 0


def proportional(length: int, axes: Iterable[Shares]) -> bool:
    """Whether a range is cut in the exact proportion of the shares."""
    return length % math.prod(map(sum, axes)) == 0


@lru_cache(maxsize=1 << 10)
def foremost(shares: Shares) -> int:
    """The member with the largest part of every range."""
    return shares.index(max(shares))


@lru_cache(maxsize=1 << 10)
def foremost_two(shares: Shares) -> tuple[int, int]:
    """The member with the largest part of every range, and that with the largest of all others."""
    one, two = sorted(range(len(shares)), key=lambda member: (-shares[member], member))[:2]
    return one, two


@lru_cache(maxsize=1 << 10)
def hindmost(shares: Shares) -> int:
    """The member with the smallest part of every range."""
    return len(shares) - 1 - shares[::-1].index(min(shares))


@lru_cache(maxsize=1 << 10)
def _dealt(shares: Shares) -> Shares:
    """Which member each of ``sum(shares)`` elements goes to."""
    turns = math.lcm(*shares)  # an element takes a member turns / share, a whole number
    heap = [(turns // share, share, member) for member, share in enumerate(shares)]
    heapq.heapify(heap)
    members = []
    for _ in range(sum(shares)):
        done, share, member = heap[0]
        members.append(member)
        heapq.heapreplace(heap, (done + turns // share, share, member))
    return tuple(members)
