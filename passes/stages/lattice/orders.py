"""Topological orders whose prefixes make good boundaries.

The prefixes of one order are a family of n + 1 ideals, so the programme restricted to them takes milliseconds and gives a
feasible plan; the ideals near an order are the family used when the lattice is too large to enumerate.
"""

from __future__ import annotations

import heapq
from itertools import pairwise

from passes.stages.canonical import depth_first
from passes.stages.lattice.tables import Tables


def given(tables: Tables) -> list[int]:
    """The problem's own order."""
    return list(range(tables.problem.size))


def late(tables: Tables) -> list[int]:
    """Every node as late as its first reader allows: depth-first from the sinks, backwards. Side chains that are fed early and
    used late (keys and values of a cross-attention, masks) land next to what uses them."""
    before, after = tables.problem.neighbours
    return list(depth_first(range(len(after)), before, [v for v, readers in enumerate(after) if not readers]))


def thin(tables: Tables) -> list[int]:
    """Greedy: next comes the ready node after which the cut costs least, by the growth of the cut, then by index. A tensor
    costs its dearest transfer; where none costs anything, its bytes."""
    n = tables.problem.size
    cost = (tables.transfer.max(axis=0) if tables.transfer.any() else tables.tensor_bytes).tolist()
    succ, on, pins = (
        [values[start:end] for start, end in pairwise(pointers.tolist())]
        for pointers, values in (
            (tables.succ_ptr, tables.succ.tolist()),
            (tables.on_ptr, tables.on.tolist()),
            (tables.pin_ptr, tables.pin.tolist()),
        )
    )
    missing, inside, growth = tables.indegree.tolist(), [0] * len(pins), [0.0] * n

    def grown(v: int) -> float:
        total = 0.0
        for h in on[v]:
            total += cost[h] if inside[h] == 0 else 0.0
            total -= cost[h] if inside[h] == len(pins[h]) - 1 else 0.0
        return total

    growth = [grown(v) for v in range(n)]
    ready = [(growth[v], v) for v in range(n) if not missing[v]]
    heapq.heapify(ready)
    order: list[int] = []
    taken = [False] * n
    while ready:
        least, v = heapq.heappop(ready)
        if taken[v] or least != growth[v]:
            continue
        taken[v] = True
        order.append(v)
        for h in on[v]:
            inside[h] += 1
            if inside[h] in (1, len(pins[h]) - 1):  # else the growth of its other nodes is as before
                for u in pins[h]:
                    if not taken[u]:
                        growth[u] = grown(u)
                        if not missing[u]:
                            heapq.heappush(ready, (growth[u], u))
        for u in succ[v]:
            missing[u] -= 1
            if not missing[u]:
                heapq.heappush(ready, (growth[u], u))
    return order
