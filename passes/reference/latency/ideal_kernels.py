"""The compiled walk over the ideals of a reduced latency problem, and what is known of each. Arrays in, arrays out.

The search goes from ideal to ideal by single nodes, so the walk keeps which ideal each node leads to: it goes breadth first and
finds ideals that it has met in a table, where the walk of ``passes.stages.lattice`` meets each once and keeps no table.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from passes.solvers.kernels import compiled, nested


@compiled
def enumerate_ideals(before: Any, band: int, most: int) -> Any:
    """Ideals in which no node is in while one more than ``band`` places before it is out, smaller first.

    Returns (count or -1 when there are more than ``most``, bits, cover_ptr, cover_node, cover_to)."""
    n, words = before.shape
    bits = np.zeros((most, words), np.uint64)
    slots = 16
    while slots < 3 * most:
        slots *= 2
    table = np.full(slots, -1, np.int64)
    mask = np.uint64(slots - 1)
    cover_ptr = np.zeros(most + 1, np.int64)
    room = 4 * most + n
    cover_node = np.empty(room, np.int32)
    cover_to = np.empty(room, np.int32)
    made = 0
    count = 1
    head = 0
    trial = np.zeros(words, np.uint64)
    one = np.uint64(1)
    while head < count:
        low = -1
        for v in range(n):
            word, bit = v >> 6, np.uint64(v & 63)
            if (bits[head, word] >> bit) & one:
                continue
            if low < 0:
                low = v
            if v - low > band:
                break
            if not nested(before, v, bits, head):
                continue
            code = np.uint64(1469598103934665603)
            for w in range(words):
                trial[w] = bits[head, w]
            trial[word] |= one << bit
            for w in range(words):
                code = (code ^ trial[w]) * np.uint64(1099511628211)
                code ^= code >> np.uint64(29)
            slot = np.int64(code & mask)
            target = -1
            while table[slot] >= 0:
                same = True
                for w in range(words):
                    if bits[table[slot], w] != trial[w]:
                        same = False
                        break
                if same:
                    target = table[slot]
                    break
                slot = (slot + 1) & (slots - 1)
            if target < 0:
                if count == most:
                    return -1, bits, cover_ptr, cover_node, cover_to
                target = count
                table[slot] = count
                for w in range(words):
                    bits[count, w] = trial[w]
                count += 1
            if made == room:
                room *= 2
                grown_node = np.empty(room, np.int32)
                grown_to = np.empty(room, np.int32)
                for c in range(made):  # of arrays a slice assigned compiles for seconds
                    grown_node[c], grown_to[c] = cover_node[c], cover_to[c]
                cover_node, cover_to = grown_node, grown_to
            cover_node[made] = v
            cover_to[made] = target
            made += 1
        head += 1
        cover_ptr[head] = made
    return (
        count,
        bits[:count].copy(),
        cover_ptr[: count + 1].copy(),
        cover_node[:made].copy(),
        cover_to[:made].copy(),
    )


@compiled
def sums(bits: Any, follow: Any, values: Any) -> Any:
    """Of each ideal the sums of ``values[n, m]`` over it, and its frontier: (sums, front_ptr, front)."""
    count, n = len(bits), len(values)
    total = np.zeros((count, values.shape[1]))
    front_ptr = np.zeros(count + 1, np.int64)
    one = np.uint64(1)
    for store in range(2):
        at = 0
        front = np.empty(front_ptr[count] if store else 0, np.int32)
        for i in range(count):
            for v in range(n):
                if not (bits[i, v >> 6] >> np.uint64(v & 63)) & one:
                    continue
                if not store:
                    for m in range(values.shape[1]):
                        total[i, m] += values[v, m]
                if not nested(follow, v, bits, i):
                    if store:
                        front[at] = v
                    at += 1
            front_ptr[i + 1] = at
    return total, front_ptr, front
