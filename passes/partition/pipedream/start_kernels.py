"""The compiled loops of ``starts``: thin ideals near the start of a profile, and how few stages reach each of them. Arrays in,
arrays out; tests hold a slow, obvious twin."""

from __future__ import annotations

from typing import Any

import numpy as np

from passes.model.kernels import compiled, nested


@compiled
def thin_ideals(
    succ_ptr: Any,
    succ: Any,
    pred_ptr: Any,
    pred: Any,
    seconds: Any,
    moved: Any,
    high: float,
    most: float,
    max_visits: int,
    bits: Any,
    reached: Any,
    cuts: Any,
) -> Any:
    """Ideals, without the empty one, of at most ``high`` seconds that cut at most ``most``: a depth-first walk which only adds
    nodes greater than the last meets each once. ``moved[v]``: what node v cuts while a reader of it is out.

    Stores them in ``bits[N, W]``, ``reached[N]`` (seconds) and ``cuts[N]``. Stops after ``max_visits`` ideals, and at the first
    that there is no room for. Returns (whether it met all, visited, how many)."""
    n = seconds.shape[0]
    one = np.uint64(1)
    missing = np.empty(n, np.int64)
    waiting = np.empty(n, np.int64)
    for v in range(n):
        missing[v] = pred_ptr[v + 1] - pred_ptr[v]
        waiting[v] = succ_ptr[v + 1] - succ_ptr[v]
    current = np.zeros(bits.shape[1], np.uint64)
    stack = np.empty(n + 1, np.int64)
    sums, cut = np.zeros(n + 1), np.zeros(n + 1)
    depth, last, visited, count = 0, -1, 0, 0
    while True:
        v = last + 1
        while v < n and (missing[v] > 0 or sums[depth] + seconds[v] > high):
            v += 1
        if v < n:
            visited += 1
            if visited > max_visits:
                return False, visited, count
            total = cut[depth]
            for e in range(pred_ptr[v], pred_ptr[v + 1]):
                u = pred[e]
                waiting[u] -= 1
                if waiting[u] == 0:
                    total -= moved[u]
            if waiting[v] > 0:
                total += moved[v]
            for e in range(succ_ptr[v], succ_ptr[v + 1]):
                missing[succ[e]] -= 1
            sums[depth + 1], cut[depth + 1] = sums[depth] + seconds[v], total
            stack[depth] = v
            depth += 1
            current[v >> 6] |= one << np.uint64(v & 63)
            last = v
            if total <= most:
                count += 1
                if count > bits.shape[0]:
                    return False, visited, count
                bits[count - 1] = current
                reached[count - 1], cuts[count - 1] = sums[depth], total
        else:
            if depth == 0:
                return True, visited, count
            depth -= 1
            v = stack[depth]
            current[v >> 6] &= ~(one << np.uint64(v & 63))
            for e in range(succ_ptr[v], succ_ptr[v + 1]):
                missing[succ[e]] += 1
            for e in range(pred_ptr[v], pred_ptr[v + 1]):
                waiting[pred[e]] += 1
            last = v


@compiled
def fewest_stages(bits: Any, reached: Any, cuts: Any, trial: float, stages: Any) -> None:
    """``stages[i]``: the least number of stages of at most ``trial`` seconds that end at ideal i, over boundaries that cut at
    most ``trial``; a large number where there is none. Ideals are sorted by their seconds."""
    for i in range(len(bits)):
        stages[i] = 1 << 30
        if cuts[i] > trial:
            continue
        if reached[i] <= trial:
            stages[i] = 1
            continue
        j = i - 1
        while j >= 0 and reached[i] - reached[j] <= trial:
            if stages[j] + 1 < stages[i] and nested(bits, j, bits, i):
                stages[i] = stages[j] + 1
            j -= 1


__all__ = ["fewest_stages", "thin_ideals"]
