"""The compiled loops of maximum flow: Dinic's algorithm on arrays. Arrays in, arrays out; tests hold a slow, obvious twin.

Arcs come in pairs: arc ``e ^ 1`` is the reverse of arc e. Residual capacities are floats; an augmentation empties at least one
arc exactly, so every phase ends. The value returned is that of a flow, hence at most that of any cut.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from passes.solvers.kernels import compiled


@compiled
def max_flow(first: Any, arcs: Any, head: Any, residual: Any, source: int, sink: int, enough: float) -> float:
    """Sends flow from ``source`` to ``sink`` until no path is left, or its value reaches ``enough``; returns the value.

    ``arcs[first[u]:first[u + 1]]``: the arcs that leave u; ``head[e]``: where arc e ends; ``residual[e]``: its capacity,
    updated in place."""
    nodes = first.shape[0] - 1
    level = np.empty(nodes, np.int64)
    queue = np.empty(nodes, np.int64)
    at = np.empty(nodes, np.int64)
    path = np.empty(nodes, np.int64)
    value = 0.0
    while value < enough:
        level[:] = -1
        level[source] = 0
        queue[0] = source
        begin, end = 0, 1
        while begin < end and level[sink] < 0:
            u = queue[begin]
            begin += 1
            for k in range(first[u], first[u + 1]):
                e = arcs[k]
                if residual[e] > 0.0 and level[head[e]] < 0:
                    level[head[e]] = level[u] + 1
                    queue[end] = head[e]
                    end += 1
        if level[sink] < 0:
            break
        for v in range(nodes):
            at[v] = first[v]
        depth = 0
        u = source
        while True:
            if u == sink:
                least = residual[path[0]]
                for k in range(1, depth):
                    least = min(least, residual[path[k]])
                shortest = depth
                for k in range(depth - 1, -1, -1):
                    e = path[k]
                    residual[e] -= least
                    residual[e ^ 1] += least
                    if residual[e] <= 0.0:
                        shortest = k
                value += least
                depth = shortest
                u = head[path[depth] ^ 1]
                if value >= enough:
                    break
                continue
            advanced = False
            while at[u] < first[u + 1]:
                e = arcs[at[u]]
                if residual[e] > 0.0 and level[head[e]] == level[u] + 1:
                    path[depth] = e
                    depth += 1
                    u = head[e]
                    advanced = True
                    break
                at[u] += 1
            if advanced:
                continue
            if u == source:
                break
            level[u] = -1
            depth -= 1
            u = head[path[depth] ^ 1]
            at[u] += 1
    return value


@compiled
def source_side(first: Any, arcs: Any, head: Any, residual: Any, source: int) -> Any:
    """What a path of residual arcs joins to ``source``: the least of the sides of a minimum cut, given a maximum flow."""
    seen = np.zeros(first.shape[0] - 1, np.bool_)
    stack = np.empty(first.shape[0] - 1, np.int64)
    seen[source] = True
    stack[0] = source
    depth = 1
    while depth > 0:
        depth -= 1
        u = stack[depth]
        for k in range(first[u], first[u + 1]):
            e = arcs[k]
            if residual[e] > 0.0 and not seen[head[e]]:
                seen[head[e]] = True
                stack[depth] = head[e]
                depth += 1
    return seen
