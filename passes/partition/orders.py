"""Topological orders whose prefixes make good boundaries.

The prefixes of one order are a family of n + 1 ideals, so the programme restricted to them takes milliseconds and gives a
feasible plan; the ideals near an order are the family used when the lattice is too large to enumerate.
"""

from __future__ import annotations

import heapq

from passes.partition.ideals import Tables


def given(tables: Tables) -> list[int]:
    """The problem's own order."""
    return list(range(tables.problem.size))


def late(tables: Tables) -> list[int]:
    """Every node as late as its first reader allows: depth-first from the sinks, backwards. Side chains that are fed early and
    used late (keys and values of a cross-attention, masks) land next to what uses them."""
    n = tables.problem.size
    before: list[list[int]] = [[] for _ in range(n)]
    for v in range(n):
        for u in tables.successors[v]:
            before[u].append(v)
    done = [False] * n
    order: list[int] = []
    sinks = [v for v in range(n) if not tables.successors[v]]
    for sink in sinks:
        stack = [(sink, 0)]
        while stack:
            v, k = stack.pop()
            if done[v]:
                continue
            if k < len(before[v]):
                stack.append((v, k + 1))
                if not done[before[v][k]]:
                    stack.append((before[v][k], 0))
            else:
                done[v] = True
                order.append(v)
    return order


def thin(tables: Tables) -> list[int]:
    """Greedy: next comes the ready node that leaves the fewest bytes cut, by the growth of the cut, then by index."""
    n = tables.problem.size
    problem = tables.problem
    waiting = tables.readers.copy()
    missing = tables.indegree.copy()
    size = [int(b) for b in problem.tensor_bytes]
    made: list[list[int]] = [tables.made[tables.made_ptr[v] : tables.made_ptr[v + 1]].tolist() for v in range(n)]
    read: list[list[int]] = [tables.read[tables.read_ptr[v] : tables.read_ptr[v + 1]].tolist() for v in range(n)]

    def growth(v: int) -> int:
        opened = [size[h] for h in made[v] if waiting[h]]
        closed = [size[h] for h in read[v] if waiting[h] == 1]
        return sum(opened) - sum(closed)

    # Growth only falls while a node waits (fewer readers left), so an entry that is stale is too high: push again on change.
    heap = [(growth(v), v) for v in range(n) if not missing[v]]
    heapq.heapify(heap)
    done = [False] * n
    order: list[int] = []
    while heap:
        _, v = heapq.heappop(heap)
        if done[v]:
            continue
        done[v] = True
        order.append(v)
        touched: set[int] = set()
        for h in read[v]:
            waiting[h] -= 1
            if waiting[h] == 1:
                touched.update(u for u in problem.consumers[h] if not done[u] and not missing[u])
        for u in tables.successors[v]:
            missing[u] -= 1
            if not missing[u]:
                touched.add(u)
        for u in sorted(touched):
            heapq.heappush(heap, (growth(u), u))
    return order


__all__ = ["given", "late", "thin"]
