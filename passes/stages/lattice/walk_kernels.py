"""The compiled walk over every ideal of a graph within windows of weight. Arrays in, arrays out.

*Enumeration without a hash set.* Nodes are numbered topologically, so adding the nodes of an ideal in ascending order
passes only through ideals. Every ideal therefore has one parent, itself without its greatest node, and a depth-first walk
that only ever adds a node greater than the last one meets each ideal exactly once, in constant memory. Only ideals
inside a window are stored.

Tests hold a slow, obvious twin.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from passes.solvers.kernels import compiled, inlined
from passes.stages.lattice.kernel_arrays import Graph, Here, Limits, Stored

WHOLE, TOO_LONG, TOO_MUCH = 0, 1, 2
"""How a walk ended: at its end, over the visits allowed, over the words allowed."""

DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)
"""A de Bruijn sequence: times a power of two its six highest bits are another number for each (Leiserson, Prokop and Randall,
Using de Bruijn sequences to index a 1 in a computer word, 1998)."""
PLACES = np.empty(64, np.int64)
PLACES[[(0x03F79D71B4CB0A89 << place & (1 << 64) - 1) >> 58 for place in range(64)]] = np.arange(64)


@inlined
def lowest(word: Any) -> Any:
    """The position of the lowest bit of a word that is not 0."""
    return PLACES[((word & (~word + np.uint64(1))) * DE_BRUIJN) >> np.uint64(58)]


@inlined
def following(ready: Any, last: int, n: int) -> Any:
    """The least ready node greater than ``last``; n where there is none."""
    start = last + 1
    found = n
    if start < n:
        k = start >> 6
        word = ready[k] & (~np.uint64(0) << np.uint64(start & 63))
        while word == 0 and k + 1 < len(ready):
            k += 1
            word = ready[k]
        if word != 0:
            found = 64 * k + lowest(word)
    return found


@inlined
def store(
    count: int,
    used: int,
    here: int,
    summed: Any,
    tensor_columns: Any,
    inside: Any,
    opened: Any,
    bits: Any,
    sums: Any,
    marks: Any,
    cut_ptr: Any,
    cut: Any,
) -> Any:
    """Stores the ideal, whose sums are ``summed[here]``, as number ``count``, as far as there is room; returns the entries of
    cuts with its own."""
    fits = count < len(bits)
    if fits:
        for k in range(len(inside)):
            bits[count, k] = inside[k]
        for c in range(sums.shape[1]):
            sums[count, c] = summed[here, c]
        for c in range(marks.shape[1]):
            marks[count, c] = 0.0
    for k in range(len(opened)):
        word = opened[k]
        h = 64 * k
        while word:
            if word & np.uint64(1):
                if used < len(cut):
                    cut[used] = h
                used += 1
                if fits:
                    for c in range(marks.shape[1]):
                        marks[count, c] += tensor_columns[h, c]
            word >>= np.uint64(1)
            h += 1
    if fits:
        cut_ptr[count + 1] = used
    return used


@inlined
def meets(low: float, high: float, lows: Any, highs: Any) -> bool:
    """Whether weights from ``low`` to ``high`` meet a window."""
    found = False
    for w in range(len(lows)):
        if lows[w] <= high and low <= highs[w]:
            found = True
            break
    return found


@compiled
def enumerate_ideals(graph: Graph, limits: Limits, here: Here, stored: Stored) -> Any:
    """Ideals whose weight lies in a window, by a depth-first walk (see the module) from the empty ideal, which ``here`` is.

    Stores as many as there is room for, and counts all. Returns (how it ended, visited, ideals in the windows, entries of
    their cuts)."""
    succ_ptr, succ, below, on_ptr, on, pins, node_columns, tensor_columns = graph
    low, high, band, max_visits, max_words, words_per_ideal = limits
    inside, ready, opened, missing, held = here
    bits, sums, marks, cut_ptr, cut = stored
    n, columns = node_columns.shape
    chosen = np.empty(n + 1, np.int64)
    summed = np.zeros((n + 2, columns))
    lost = np.zeros(n + 2)
    first = np.zeros(n + 2, np.int64)
    count, used, visited, depth, last, status = 0, 0, 0, 0, -1, WHOLE
    total, one = 0.0, np.uint64(1)
    for v in range(n):
        total += node_columns[v, 0]
    fresh = True
    while True:
        if fresh:
            fresh = False
            visited += 1
            if visited > max_visits:
                status = TOO_LONG
                break
            if meets(summed[depth, 0], summed[depth, 0], low, high):
                used = store(count, used, depth, summed, tensor_columns, inside, opened, bits, sums, marks, cut_ptr, cut)
                count += 1
            if count * words_per_ideal + used // 2 > max_words:
                status = TOO_MUCH
                break
        v = following(ready, last, n)
        if v < n and v - first[depth] <= band:
            # Nodes passed over are out for good here, with all that depends on them: can a window still be reached?
            gone = lost[depth]
            for u in range(last + 1, v):
                gone = max(gone, below[u])
            last = v
            if not meets(summed[depth, 0] + node_columns[v, 0], total - gone + 1e-9 * total, low, high):
                # A later sibling loses v as well; its reach only shrinks on the high side, so go on to it.
                lost[depth] = max(gone, below[v])
                continue
            inside[v >> 6] |= one << np.uint64(v & 63)
            ready[v >> 6] &= ~(one << np.uint64(v & 63))
            for e in range(succ_ptr[v], succ_ptr[v + 1]):
                u = succ[e]
                missing[u] -= 1
                if missing[u] == 0:
                    ready[u >> 6] |= one << np.uint64(u & 63)
            for e in range(on_ptr[v], on_ptr[v + 1]):
                h = on[e]
                held[h] += 1
                if held[h] == pins[h]:
                    opened[h >> 6] &= ~(one << np.uint64(h & 63))
                else:
                    opened[h >> 6] |= one << np.uint64(h & 63)
            chosen[depth] = v
            lost[depth] = gone
            lost[depth + 1] = gone
            for c in range(columns):
                summed[depth + 1, c] = summed[depth, c] + node_columns[v, c]
            first[depth + 1] = v + 1 if v == first[depth] else first[depth]
            depth += 1
            fresh = True
        elif depth == 0:
            break
        else:
            depth -= 1
            last = v = chosen[depth]
            inside[v >> 6] &= ~(one << np.uint64(v & 63))
            ready[v >> 6] |= one << np.uint64(v & 63)
            for e in range(succ_ptr[v], succ_ptr[v + 1]):
                u = succ[e]
                if missing[u] == 0:
                    ready[u >> 6] &= ~(one << np.uint64(u & 63))
                missing[u] += 1
            for e in range(on_ptr[v], on_ptr[v + 1]):
                h = on[e]
                held[h] -= 1
                if held[h] == 0:
                    opened[h >> 6] &= ~(one << np.uint64(h & 63))
                else:
                    opened[h >> 6] |= one << np.uint64(h & 63)
            lost[depth] = max(lost[depth], below[last])
    return status, visited, count, used
