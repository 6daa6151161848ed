"""An order in which every element stands behind what comes before it."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence


def topological(after: Sequence[Iterable[int]]) -> list[int]:
    """All positions, each before those of ``after`` it, the least that is ready first. Positions on a cycle or behind one are
    missing. ``after`` is read twice; what it lists several times counts as often."""
    missing = [0] * len(after)
    for targets in after:
        for w in targets:
            missing[w] += 1
    ready = [v for v, count in enumerate(missing) if not count]
    order: list[int] = []
    while ready:
        v = heapq.heappop(ready)
        order.append(v)
        for w in after[v]:
            missing[w] -= 1
            if not missing[w]:
                heapq.heappush(ready, w)
    return order


__all__ = ["topological"]
