"""The compiled loops of training: which tensors an ideal parts, and the programme with two sides of a load.

A tensor here joins units without a direction. It is parted by the stage I - J when some of its units are in the stage and some
are not. Parted by I: counted with I unless J parts it too and no unit of it is in between. Parted by J and not by I: all its
units are in I, some of them in between, so it is parted. Parted by neither: it is not parted, or all its units are in
between. So the cost of a stage comes from the cuts of its two boundaries.

Tests hold a slow, obvious twin.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from passes.partition.kernels import compiled


@compiled
def parted_tensors(bits: Any, pin_ptr: Any, pin: Any, store: bool, cut_ptr: Any, cut: Any, parted: Any) -> Any:
    """Tensors that have units inside and outside each ideal of ``bits[N, W]``. A first call, ``store`` false, only counts; a
    second fills ``cut_ptr[N+1]``, ``cut`` and the same as bits, ``parted[N, HW]``. Returns the entries of ``cut``."""
    count = bits.shape[0]
    tensors = pin_ptr.shape[0] - 1
    one = np.uint64(1)
    used = 0
    for i in range(count):
        for h in range(tensors):
            inside = 0
            for e in range(pin_ptr[h], pin_ptr[h + 1]):
                v = pin[e]
                if (bits[i, v >> 6] >> np.uint64(v & 63)) & one:
                    inside += 1
                elif inside > 0:
                    break
            # All were counted, or one outside followed one inside.
            if 0 < inside < pin_ptr[h + 1] - pin_ptr[h]:
                if store:
                    cut[used] = h
                    parted[i, h >> 6] |= one << np.uint64(h & 63)
                used += 1
        if store:
            cut_ptr[i + 1] = used
    return used


@compiled
def solve_sides(
    trial: float,
    window: float,
    forward_share: float,
    backward_share: float,
    forward_cap: float,
    backward_cap: float,
    bits: Any,
    weight: Any,
    forward: Any,
    backward: Any,
    lacking: Any,
    size: Any,
    cut_ptr: Any,
    cut: Any,
    parted: Any,
    boundary: Any,
    pin_ptr: Any,
    pin: Any,
    side: Any,
    transfer: Any,
    port: Any,
    next_state: Any,
    ahead: Any,
    behind: Any,
    only_ahead: Any,
    devices_ahead: Any,
    only_behind: Any,
    devices_behind: Any,
    heaviest: float,
    slack: float,
    limit: Any,
    start: int,
    max_tests: int,
    value: Any,
    parent: Any,
    via: Any,
    low_state: Any,
    high_state: Any,
    reached: Any,
    active: Any,
    actives: int,
) -> Any:
    """Least possible largest cost of a stage over chains of ideals of the family, for every vector of devices used.

    The cost of a stage is ``forward_share`` times its forward side + ``backward_share`` times its backward side; stages over
    ``trial``, or with a side over its cap, are refused, and both sides together are at most ``window``. The family is sorted
    so that J comes before I whenever J is inside I; its first member is empty, its last is full. Per ideal: ``bits[N, W]``,
    ``weight[N]``, ``forward[N, T]``, ``backward[N, T]`` (sums over supported units), ``lacking[N, T]`` (how many are not),
    ``size[N]`` (bytes), the tensors that it parts (``parted_tensors``), ``boundary[N, 2P]``: their transfers per side and port
    class (column side * P + class). ``transfer[P, H]``; ``port[T]`` names the kind's class. ``only_ahead[S]``: the one kind
    used in a state (-1: none or several), with ``devices_ahead[S]`` devices; all they do, with the cut at the ideal, must be
    within ``window`` for each. ``only_behind``, ``devices_behind``: the same of what is left. States, windows and what is
    filled in are as in ``passes.partition.kernels.solve_family``, besides ``reached[N]``: states reached, bit s modulo 64.
    Returns (the ideal to go on from, actives, pairs tested, pairs priced).
    """
    count, words = bits.shape
    kinds = port.shape[0]
    states = next_state.shape[0]
    classes = transfer.shape[0]
    most = trial * (1.0 + slack)
    widest = window * (1.0 + slack)
    total = weight[count - 1]
    edge = slack * total
    one = np.uint64(1)
    moved = np.zeros(2 * classes)
    allowed = np.empty(states, np.bool_)
    tested = 0
    priced = 0
    i = start
    while i < count and tested <= max_tests:
        here = weight[i]
        possible = False
        for s in range(states):
            allowed[s] = here <= widest * ahead[s] + edge and total - here <= widest * behind[s] + edge
            if allowed[s] and only_ahead[s] >= 0:
                t = only_ahead[s]
                load = forward[i, t] + backward[i, t] + boundary[i, port[t]] + boundary[i, classes + port[t]]
                allowed[s] = lacking[i, t] == 0 and load <= widest * devices_ahead[s] + slack * load
            if allowed[s] and only_behind[s] >= 0:
                t = only_behind[s]
                load = forward[count - 1, t] - forward[i, t] + backward[count - 1, t] - backward[i, t]
                load += boundary[i, port[t]] + boundary[i, classes + port[t]]
                whole = forward[count - 1, t] + backward[count - 1, t] + load
                allowed[s] = lacking[i, t] == lacking[count - 1, t] and load <= widest * devices_behind[s] + slack * whole
            possible = possible or allowed[s]
        if not possible:
            i += 1
            continue
        sources = np.uint64(0)
        for s in range(states):
            for t in range(kinds):
                if next_state[s, t] >= 0 and allowed[next_state[s, t]]:
                    sources |= one << np.uint64(s & 63)
        reach = here - widest * heaviest - edge
        entered = False
        for a in range(actives - 1, -1, -1):
            j = active[a]
            if weight[j] < reach:
                break
            if reached[j] & sources == 0:
                continue
            tested += 1
            inside = True
            for k in range(words):
                if bits[j, k] & ~bits[i, k]:
                    inside = False
                    break
            if not inside:
                continue
            useful = False
            for t in range(kinds):
                if lacking[i, t] != lacking[j, t]:
                    continue
                least = forward_share * (forward[i, t] - forward[j, t]) + backward_share * (backward[i, t] - backward[j, t])
                if least > most:
                    continue
                for s in range(low_state[j], high_state[j] + 1):
                    after = next_state[s, t]
                    if after >= 0 and allowed[after] and max(value[j, s], least) < value[i, after]:
                        useful = True
                        break
                if useful:
                    break
            if not useful:
                continue
            priced += 1
            for p in range(2 * classes):
                moved[p] = boundary[j, p]
            for c in range(cut_ptr[i], cut_ptr[i + 1]):
                h = cut[c]
                sign = 1.0
                if (parted[j, h >> 6] >> np.uint64(h & 63)) & one:
                    sign = -1.0
                    for e in range(pin_ptr[h], pin_ptr[h + 1]):
                        v = pin[e]
                        if ((bits[i, v >> 6] & ~bits[j, v >> 6]) >> np.uint64(v & 63)) & one:
                            sign = 0.0
                            break
                if sign != 0.0:
                    for p in range(classes):
                        moved[side[h] * classes + p] += sign * transfer[p, h]
            for t in range(kinds):
                if lacking[i, t] != lacking[j, t]:
                    continue
                if limit[t] >= 0 and size[i] - size[j] > limit[t]:
                    continue
                first = forward[i, t] - forward[j, t] + max(moved[port[t]], 0.0)
                second = backward[i, t] - backward[j, t] + max(moved[classes + port[t]], 0.0)
                if first > forward_cap or second > backward_cap:
                    continue
                busy = forward_share * first + backward_share * second
                if busy > most or first + second > widest:
                    continue
                for s in range(low_state[j], high_state[j] + 1):
                    after = next_state[s, t]
                    if after < 0 or not allowed[after]:
                        continue
                    worst = max(value[j, s], busy)
                    if worst < value[i, after]:
                        value[i, after] = worst
                        parent[i, after] = j
                        via[i, after] = t
                        entered = True
                        reached[i] |= one << np.uint64(after & 63)
                        low_state[i] = min(low_state[i], after)
                        high_state[i] = max(high_state[i], after)
        if entered:
            active[actives] = i
            actives += 1
        i += 1
    return i, actives, tested, priced


__all__ = ["parted_tensors", "solve_sides"]
