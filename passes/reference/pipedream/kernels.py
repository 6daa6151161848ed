"""The compiled loops of PipeDream's programme, and of the bound from its first stages (``starts``): thin ideals near the start
of a profile, and how few stages reach each of them. Arrays in, arrays out; tests hold slow, obvious twins.

The programme runs from the full ideal down. Then the machines that work from a stage to the end are known when the stage is
chosen, and with them how many minibatches it holds in flight, also where fewer machines are used than there are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from passes.solvers.kernels import compiled, nested

LOOPS = 16
"""Turns of the innermost loop that count as one pair."""


@compiled
def reach(trial: float, slack: float, most_replicas: int, seconds: Any, moved: Any, low: Any, high: Any) -> None:
    """Fills ``low[M+1]`` and ``high[M+1]``: the least and the most of ``seconds[N]`` (ascending) that may lie before a boundary
    with m machines to come, if only sums mattered: a stage on r machines spans at most r ``trial``, and a boundary that moves
    ``moved[N]`` seconds needs r ``trial`` of it in the stage after."""
    count, machines = seconds.shape[0], low.shape[0] - 1
    total = seconds[count - 1]
    edge = slack * total
    for m in range(machines + 1):
        low[m] = total
        high[m] = 0.0
    for m in range(1, machines + 1):
        widest = min(most_replicas, m)
        down = total
        for r in range(1, widest + 1):
            down = min(down, low[m - r] - r * trial)
        i = np.searchsorted(seconds, down - edge)
        while moved[i] > trial * widest * (1.0 + slack):  # the last ideal moves nothing
            i += 1
        low[m] = min(low[m - 1], seconds[i])
    for m in range(machines - 1, -1, -1):
        # A boundary is open to those after it; the one with no machine to come is the full ideal.
        up = 0.0
        for r in range(1, min(most_replicas, machines - m) + 1):
            up = max(up, high[m + r] + r * trial)
        i = np.searchsorted(seconds, up + edge, side="right") - 1
        while moved[i] > trial * min(most_replicas, m) * (1.0 + slack):  # the first ideal moves nothing
            i -= 1
        high[m] = max(high[m + 1], seconds[i])


class Rules(NamedTuple):
    """Of the machines. A stage runs on up to ``most_replicas`` of ``machines``; ``sync``: seconds per byte of weights, times
    (r-1)/r. Where ``group`` is above 0 a stage pays ``slower`` times as much for what does not stay within a group of so many
    machines. With q = ceil(machines from the stage on / r) it holds ``copies[q]`` times its weights and ``flight[q]`` times its
    bytes stored, at most ``memory`` bytes (negative: unlimited)."""

    machines: int
    most_replicas: int
    sync: float
    group: int
    slower: float
    memory: float
    copies: Any
    flight: Any


class Ideals(NamedTuple):
    """``bits[N, W]`` sorted so that J comes before I whenever J is inside I, the first empty, the last full; ``seconds``,
    ``weights``, ``stored`` (bytes) of their nodes; ``transfer``: seconds to move their cuts both ways between single machines.
    With m machines to come an ideal of fewer seconds than ``least_before[m]``, or more than ``most_before[m]``, is no
    boundary."""

    bits: Any
    seconds: Any
    weights: Any
    stored: Any
    transfer: Any
    least_before: Any
    most_before: Any


class Table(NamedTuple):
    """What is filled in: ``value[N, M+1]`` for exactly m machines from the ideal on, ``following[N, M+1]`` (the next boundary),
    ``replicas[N, M+1]`` (of the stage up to it); ``low``, ``high``: range of m reached; ``active``: ideals reached."""

    value: Any
    following: Any
    replicas: Any
    low: Any
    high: Any
    active: Any


@compiled
def solve_replicated(
    trial: float, slack: float, rules: Rules, ideals: Ideals, table: Table, start: int, max_tests: int, actives: int
) -> Any:
    """Least possible largest stage time over chains of ideals, by machines used from an ideal to the end. No stage may take
    over ``trial``; an ideal is kept only if one stage can take in what it cuts (relative ``slack`` on all comparisons).

    Works down from ideal ``start``, of which ``actives`` are reached so far, until over ``max_tests`` pairs were tested, turns
    of the innermost loop counted in. Returns (the ideal to go on from, actives, pairs tested, pairs priced)."""
    machines, most_replicas, sync, group, slower, memory, copies, flight = rules
    bits, seconds, weights, stored, transfer, least_before, most_before = ideals
    value, following, replicas, low_state, high_state, active = table
    count = len(bits)
    most = trial * (1.0 + slack)
    total = seconds[count - 1]
    edge = slack * total
    tested = 0
    priced = 0
    turns = 0
    j = start
    while j >= 0 and tested + turns // LOOPS <= max_tests:
        before = seconds[j]
        incoming = transfer[j] if j > 0 else 0.0
        allowed_low = machines + 1
        allowed_high = -1
        for m in range(1, machines + 1):
            if incoming > most * min(m, most_replicas):
                continue
            if least_before[m] - edge <= before <= most_before[m] + edge:
                allowed_low = min(allowed_low, m)
                allowed_high = max(allowed_high, m)
        if allowed_high < 0:
            j -= 1
            continue
        reach = most * min(most_replicas, allowed_high) + edge
        entered = False
        for a in range(actives - 1, -1, -1):
            i = active[a]
            step = seconds[i] - before
            if step > reach:
                break
            widest = min(most_replicas, allowed_high - low_state[i])
            if widest < 1 or widest < allowed_low - high_state[i] or step > most * widest + edge:
                continue
            if min(most_replicas, machines) < allowed_low - high_state[i]:
                continue
            tested += 1
            if not nested(bits, j, bits, i):
                continue
            priced += 1
            turns += widest * (high_state[i] - low_state[i] + 1)
            outgoing = transfer[i] if j > 0 and i < count - 1 else 0.0
            moved = max(incoming, outgoing)
            synced = sync * (weights[i] - weights[j])
            step_stored = stored[i] - stored[j]
            for r in range(max(1, allowed_low - high_state[i]), widest + 1):
                busy = max((step + synced * (r - 1) / r) / r, moved / r)
                if busy > most:
                    continue
                for m in range(max(allowed_low, low_state[i] + r), min(allowed_high, high_state[i] + r) + 1):
                    if group > 0:
                        parted = (m - 1) // group != (m - r) // group
                        busy = (step + synced * (slower if parted else 1.0) * (r - 1) / r) / r
                        busy = max(busy, incoming * (slower if parted or m % group == 0 else 1.0) / r)
                        busy = max(busy, outgoing * (slower if parted or (m - r) % group == 0 else 1.0) / r)
                        if busy > most:
                            continue
                    if memory >= 0.0:
                        q = (m + r - 1) // r
                        if copies[q] * (weights[i] - weights[j]) + flight[q] * step_stored > memory:
                            continue
                    worst = max(value[i, m - r], busy)
                    if worst < value[j, m]:
                        value[j, m] = worst
                        following[j, m] = i
                        replicas[j, m] = r
                        entered = True
                        low_state[j] = min(low_state[j], m)
                        high_state[j] = max(high_state[j], m)
        if entered:
            active[actives] = j
            actives += 1
        j -= 1
    return j, actives, tested + turns // LOOPS, priced


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
