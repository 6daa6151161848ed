"""The compiled loop of minimum closures by maximum flow (``passes.model.flow_kernels``). Arrays in, arrays out; tests hold a
slow, obvious twin.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from passes.model.flow_kernels import max_flow, source_side
from passes.model.kernels import compiled


@compiled
def closures(
    first: Any,
    arcs: Any,
    head: Any,
    capacity: Any,
    seconds: Any,
    prices: Any,
    forced: Any,
    maker: Any,
    reader_ptr: Any,
    reader: Any,
    cost: Any,
    fixed: float,
    room: float,
    most: float,
    adds: bool,
    inside: Any,
    cuts: Any,
) -> int:
    """Sets of nodes, closed under what they need, that cut least at one price per second and with one node forced in; those
    within the limits are rows of ``inside[N, n]``, with their cuts. Returns how many.

    Nodes 0 to n - 1 have ``seconds[n]``; the last two nodes of the network are source and sink. Arc 4 i / 2 of ``capacity``
    enters node i from the source, the n-th pair after it leaves i for the sink; the others stay as they are. Tensor h, made by
    node ``maker[h]`` (-1: before) and costing ``cost[h]``, is cut when its maker is in and one of ``reader`` is out; without
    readers it is cut whenever its maker is in. ``fixed``: what is cut anyway. With ``adds``, seconds and cut together are at
    most ``room``; else seconds are at most ``room`` and the cut ``most``."""
    n = seconds.shape[0]
    nodes = first.shape[0] - 1
    source, sink = nodes - 2, nodes - 1
    never = 1e30
    seen = np.empty(nodes, np.bool_)
    stack = np.empty(nodes, np.int64)
    count = 0
    for f in range(forced.shape[0]):
        for p in range(prices.shape[0]):
            residual = capacity.copy()
            for i in range(n):
                residual[2 * i] = max(prices[p], 0.0) * seconds[i]
                residual[2 * (n + i)] = max(-prices[p], 0.0) * seconds[i]
            residual[2 * forced[f]] = never
            max_flow(first, arcs, head, residual, source, sink, never)
            # Out is what still reaches the sink: of the minimum cuts, the one with most inside.
            seen[:] = False
            seen[sink] = True
            stack[0] = sink
            depth = 1
            while depth > 0:
                depth -= 1
                u = stack[depth]
                for k in range(first[u], first[u + 1]):
                    e = arcs[k]
                    if residual[e ^ 1] > 0.0 and not seen[head[e]]:
                        seen[head[e]] = True
                        stack[depth] = head[e]
                        depth += 1
            busy = 0.0
            for i in range(n):
                if not seen[i]:
                    busy += seconds[i]
            moved = fixed
            for h in range(maker.shape[0]):
                if maker[h] >= 0 and seen[maker[h]]:
                    continue
                parted = reader_ptr[h] == reader_ptr[h + 1]
                for e in range(reader_ptr[h], reader_ptr[h + 1]):
                    parted = parted or seen[reader[e]]
                if parted:
                    moved += cost[h]
            fits = busy + moved <= room if adds else busy <= room and moved <= most
            if fits and busy > 0.0:
                for i in range(n):
                    inside[count, i] = not seen[i]
                cuts[count] = moved
                count += 1
    return count


__all__ = ["closures", "max_flow", "source_side"]
