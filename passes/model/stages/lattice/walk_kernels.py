"""The compiled loops over the nodes of a graph: topological orders, their prefixes, and every ideal. Arrays in, arrays out.

*Enumeration without a hash set.* Nodes are numbered topologically, so adding the nodes of an ideal in ascending order
passes only through ideals. Every ideal therefore has one parent, itself without its greatest node, and a depth-first walk
that only ever adds a node greater than the last one meets each ideal exactly once, in constant memory. Only ideals
inside a window are stored.

Tests hold a slow, obvious twin of each.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from passes.model.kernels import compiled


@compiled
def weights_below(succ_ptr: Any, succ: Any, node_weight: Any) -> Any:
    """``[n]``: weight of each node and of all that depends on it."""
    n = node_weight.shape[0]
    words = (n + 63) // 64
    one = np.uint64(1)
    below = np.zeros((n, words), np.uint64)
    total = np.zeros(n)
    for v in range(n - 1, -1, -1):
        below[v, v >> 6] |= one << np.uint64(v & 63)
        for e in range(succ_ptr[v], succ_ptr[v + 1]):
            for k in range(words):
                below[v, k] |= below[succ[e], k]
        for k in range(words):
            word = below[v, k]
            u = 64 * k
            while word:
                if word & one:
                    total[v] += node_weight[u]
                word >>= one
                u += 1
    return total


@compiled
def order_late(pred_ptr: Any, pred: Any, succ_ptr: Any) -> Any:
    """Depth-first from the sinks, backwards: every node as late as its first reader allows."""
    n = succ_ptr.shape[0] - 1
    order = np.empty(n, np.int64)
    done = np.zeros(n, np.bool_)
    at = pred_ptr[:n].copy()
    stack = np.empty(n + 1, np.int64)
    count = 0
    for sink in range(n):
        if succ_ptr[sink] != succ_ptr[sink + 1]:
            continue
        depth = 0
        stack[0] = sink
        while depth >= 0:
            v = stack[depth]
            if at[v] < pred_ptr[v + 1]:
                u = pred[at[v]]
                at[v] += 1
                if not done[u]:
                    depth += 1
                    stack[depth] = u
                continue
            if not done[v]:
                done[v] = True
                order[count] = v
                count += 1
            depth -= 1
    return order


@compiled
def order_thin(succ_ptr: Any, succ: Any, indegree: Any, on_ptr: Any, on: Any, pin_ptr: Any, pin: Any, cost: Any) -> Any:
    """Greedy: next comes the ready node after which the cut costs least (``cost[H]``), by the cut's growth, then by index."""
    n = indegree.shape[0]
    order = np.empty(n, np.int64)
    missing = indegree.copy()
    inside = np.zeros(pin_ptr.shape[0], np.int64)
    growth = np.zeros(n)
    ready = np.empty(n, np.int64)
    stale = np.ones(n, np.bool_)
    waiting = 0
    for v in range(n):
        if missing[v] == 0:
            ready[waiting] = v
            waiting += 1
    for count in range(n):
        best = -1
        for r in range(waiting):
            v = ready[r]
            if stale[v]:
                stale[v] = False
                growth[v] = 0.0
                for e in range(on_ptr[v], on_ptr[v + 1]):
                    h = on[e]
                    if inside[h] == 0:
                        growth[v] += cost[h]
                    if inside[h] == pin_ptr[h + 1] - pin_ptr[h] - 1:
                        growth[v] -= cost[h]
            if best < 0 or growth[v] < growth[ready[best]] or (growth[v] == growth[ready[best]] and v < ready[best]):
                best = r
        v = ready[best]
        waiting -= 1
        ready[best] = ready[waiting]
        order[count] = v
        for e in range(on_ptr[v], on_ptr[v + 1]):
            h = on[e]
            inside[h] += 1
            for p in range(pin_ptr[h], pin_ptr[h + 1]):
                stale[pin[p]] = True
        for e in range(succ_ptr[v], succ_ptr[v + 1]):
            u = succ[e]
            missing[u] -= 1
            if missing[u] == 0:
                ready[waiting] = u
                waiting += 1
    return order


@compiled
def prefixes(
    order: Any,
    on_ptr: Any,
    on: Any,
    pins: Any,
    node_columns: Any,
    tensor_columns: Any,
    bits: Any,
    sums: Any,
    marks: Any,
    cut_ptr: Any,
    cut: Any,
) -> Any:
    """The n + 1 prefixes of a topological order, stored as ``enumerate_ideals`` does, as far as ``cut`` has room. Returns the
    entries of ``cut`` that there are."""
    n = order.shape[0]
    tensors = pins.shape[0]
    one = np.uint64(1)
    inside = np.zeros(tensors, np.int64)
    opened = np.zeros(tensors, np.bool_)
    used = 0
    for i in range(n + 1):
        if i > 0:
            v = order[i - 1]
            for k in range(bits.shape[1]):
                bits[i, k] = bits[i - 1, k]
            bits[i, v >> 6] |= one << np.uint64(v & 63)
            for c in range(node_columns.shape[1]):
                sums[i, c] = sums[i - 1, c] + node_columns[v, c]
            for e in range(on_ptr[v], on_ptr[v + 1]):
                h = on[e]
                inside[h] += 1
                opened[h] = inside[h] < pins[h]
        else:
            bits[0, :] = np.uint64(0)
            sums[0, :] = 0.0
        marks[i, :] = 0.0
        for h in range(tensors):
            if opened[h]:
                if used < cut.shape[0]:
                    cut[used] = h
                used += 1
                for c in range(tensor_columns.shape[1]):
                    marks[i, c] += tensor_columns[h, c]
        cut_ptr[i + 1] = used
    return used


@compiled
def enumerate_ideals(
    succ_ptr: Any,
    succ: Any,
    indegree: Any,
    below: Any,
    on_ptr: Any,
    on: Any,
    pins: Any,
    node_columns: Any,
    tensor_columns: Any,
    low: Any,
    high: Any,
    band: int,
    max_visits: int,
    max_words: int,
    words_per_ideal: int,
    bits: Any,
    sums: Any,
    marks: Any,
    cut_ptr: Any,
    cut: Any,
) -> Any:
    """Ideals whose weight lies in a window, by a depth-first walk (see the module).

    ``succ_ptr``/``succ``: successors of each node, once per edge; ``indegree``: matching counts. ``node_columns[n, C]``: what
    is summed over the nodes of an ideal, first the weight; ``below[v]``: weight of v and all that depends on it.
    ``on_ptr``/``on``: tensors that each node makes or reads; ``pins[h]``: the number of such nodes; an ideal cuts h when
    some of them are in it and some are not. ``tensor_columns[H, B]``: what is summed over the tensors cut. ``low``/``high``:
    windows, ascending and disjoint. ``band``: an ideal may hold node v only if its least missing node is >= v - band (>= n: no
    limit). Stops with status 1 after ``max_visits`` ideals, with status 2 when over ``max_words`` 8-byte words would be
    held, at ``words_per_ideal`` each besides their cuts; ends with status 0.

    Stores as many as there is room for in ``bits[N, W]``, ``sums[N, C]``, ``marks[N, B]``, ``cut_ptr[N+1]`` and ``cut``, the
    tensors cut by each ideal, and counts all. Returns (status, visited, ideals in the windows, entries of ``cut``).
    """
    n = indegree.shape[0]
    columns = node_columns.shape[1]
    tensors = pins.shape[0]
    room, cut_room = bits.shape[0], cut.shape[0]
    words = (n + 63) // 64
    tensor_words = (tensors + 63) // 64
    windows = low.shape[0]
    one = np.uint64(1)
    current = np.zeros(words, np.uint64)
    ready = np.zeros(words, np.uint64)
    opened = np.zeros(max(tensor_words, 1), np.uint64)
    missing = indegree.copy()
    inside = np.zeros(max(tensors, 1), np.int64)
    for v in range(n):
        if missing[v] == 0:
            ready[v >> 6] |= one << np.uint64(v & 63)
    chosen = np.empty(n + 1, np.int64)
    summed = np.zeros((n + 2, columns))
    lost = np.zeros(n + 2)
    first = np.zeros(n + 2, np.int64)
    count = 0
    used = 0
    visited = 0
    depth = 0
    last = -1
    status = 0
    total = 0.0
    for v in range(n):
        total += node_columns[v, 0]
    fresh = True
    while True:
        if fresh:
            fresh = False
            visited += 1
            if visited > max_visits:
                status = 1
                break
            here = summed[depth, 0]
            for w in range(windows):
                if low[w] <= here and here <= high[w]:
                    stored = count < room
                    if stored:
                        for k in range(words):
                            bits[count, k] = current[k]
                        for c in range(columns):
                            sums[count, c] = summed[depth, c]
                        marks[count, :] = 0.0
                    for k in range(tensor_words):
                        word = opened[k]
                        h = 64 * k
                        while word:
                            if word & one:
                                if used < cut_room:
                                    cut[used] = h
                                used += 1
                                if stored:
                                    for c in range(tensor_columns.shape[1]):
                                        marks[count, c] += tensor_columns[h, c]
                            word >>= one
                            h += 1
                    if stored:
                        cut_ptr[count + 1] = used
                    count += 1
                    break
            if count * words_per_ideal + used // 2 > max_words:
                status = 2
                break
        # The next ready node after `last`, within the band.
        v = n
        start = last + 1
        if start < n:
            k = start >> 6
            word = ready[k] & (~np.uint64(0) << np.uint64(start & 63))
            while word == 0 and k + 1 < words:
                k += 1
                word = ready[k]
            if word != 0:
                bit = word & (~word + one)
                position = 0
                if bit >= one << np.uint64(32):
                    position += 32
                    bit >>= np.uint64(32)
                if bit >= one << np.uint64(16):
                    position += 16
                    bit >>= np.uint64(16)
                if bit >= one << np.uint64(8):
                    position += 8
                    bit >>= np.uint64(8)
                if bit >= one << np.uint64(4):
                    position += 4
                    bit >>= np.uint64(4)
                if bit >= one << np.uint64(2):
                    position += 2
                    bit >>= np.uint64(2)
                if bit >= one << np.uint64(1):
                    position += 1
                v = 64 * k + position
        down = v < n and v - first[depth] <= band
        if down:
            # Nodes passed over are out for good here, with all that depends on them: can a window still be reached?
            gone = lost[depth]
            for u in range(last + 1, v):
                gone = max(gone, below[u])
            reach_low = summed[depth, 0] + node_columns[v, 0]
            reach_high = total - gone
            reach_high += 1e-9 * total
            possible = False
            for w in range(windows):
                if low[w] <= reach_high and reach_low <= high[w]:
                    possible = True
                    break
            if not possible:
                last = v
                # A later sibling loses v as well; its reach only shrinks on the high side, so go on to it.
                lost[depth] = max(gone, below[v])
                continue
            chosen[depth] = v
            current[v >> 6] |= one << np.uint64(v & 63)
            ready[v >> 6] &= ~(one << np.uint64(v & 63))
            for e in range(succ_ptr[v], succ_ptr[v + 1]):
                u = succ[e]
                missing[u] -= 1
                if missing[u] == 0:
                    ready[u >> 6] |= one << np.uint64(u & 63)
            for e in range(on_ptr[v], on_ptr[v + 1]):
                h = on[e]
                inside[h] += 1
                if inside[h] == pins[h]:
                    opened[h >> 6] &= ~(one << np.uint64(h & 63))
                else:
                    opened[h >> 6] |= one << np.uint64(h & 63)
            lost[depth] = gone
            lost[depth + 1] = gone
            for c in range(columns):
                summed[depth + 1, c] = summed[depth, c] + node_columns[v, c]
            first[depth + 1] = v + 1 if v == first[depth] else first[depth]
            depth += 1
            last = v
            fresh = True
        else:
            if depth == 0:
                break
            depth -= 1
            v = chosen[depth]
            current[v >> 6] &= ~(one << np.uint64(v & 63))
            ready[v >> 6] |= one << np.uint64(v & 63)
            for e in range(succ_ptr[v], succ_ptr[v + 1]):
                u = succ[e]
                if missing[u] == 0:
                    ready[u >> 6] &= ~(one << np.uint64(u & 63))
                missing[u] += 1
            for e in range(on_ptr[v], on_ptr[v + 1]):
                h = on[e]
                inside[h] -= 1
                if inside[h] == 0:
                    opened[h >> 6] &= ~(one << np.uint64(h & 63))
                else:
                    opened[h >> 6] |= one << np.uint64(h & 63)
            last = v
            lost[depth] = max(lost[depth], below[v])
    return status, visited, count, used


__all__ = [
    "enumerate_ideals",
    "order_late",
    "order_thin",
    "prefixes",
    "weights_below",
]
