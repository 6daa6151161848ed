"""The compiled loops: enumerating ideals and the dynamic programme over a family of them. Arrays in, arrays out.

*Enumeration without a hash set.* Nodes are numbered topologically, so adding the nodes of an ideal in ascending order
passes only through ideals. Every ideal therefore has one parent, itself without its greatest node, and a depth-first walk
that only ever adds a node greater than the last one meets each ideal exactly once, in constant memory. Only ideals
inside a window are stored.

*The programme* takes any family of ideals sorted by weight (all of them, or a sample: then its value is an upper bound).
The cost of a stage I - J comes from the two boundaries: sent are the tensors cut by I and made outside J; received are
those cut by J, less those whose readers all lie outside I, and these are cut by I as well.

This is the only file that imports numba. Compiled code is cached beside the package, or in the user's cache directory when
that is read-only, or, when neither can be written, in a private folder of the temporary directory (numba itself would stop
there). ``NUMBA_CACHE_DIR`` overrides all three. Tests hold a slow, obvious twin of each kernel.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np


def _ensure_cache_folder() -> None:
    """Points numba at a fresh private folder when it could write its cache nowhere. Never at a folder of a guessable name:
    a cache holds code that is run."""
    if "NUMBA_CACHE_DIR" in os.environ:
        return
    package = Path(__file__).parent
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    candidates = [package / "__pycache__", package, user, *user.parents]
    for folder in candidates[:2] if package.is_dir() else []:
        if folder.is_dir() and os.access(folder, os.W_OK):
            return
    nearest = next((folder for folder in candidates[2:] if folder.is_dir()), None)
    if nearest is None or not os.access(nearest, os.W_OK):
        os.environ["NUMBA_CACHE_DIR"] = tempfile.mkdtemp(prefix="dnnc-numba-")


_ensure_cache_folder()

import numba  # noqa: E402  (the cache folder must be settled first)

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """``numba.njit(cache=True)``, typed."""
    jit: Any = numba.njit(cache=True, nogil=True)
    result: F = jit(function)
    return result


DONE, TOO_MANY, TOO_MUCH = 0, 1, 2


@compiled
def enumerate_ideals(
    succ_ptr: Any,
    succ: Any,
    indegree: Any,
    node_weight: Any,
    below: Any,
    made_ptr: Any,
    made: Any,
    read_ptr: Any,
    read: Any,
    readers: Any,
    low: Any,
    high: Any,
    band: int,
    max_visits: int,
    max_words: int,
    words_per_ideal: int,
    store: bool,
    bits: Any,
    weight: Any,
    cut_ptr: Any,
    cut: Any,
) -> Any:
    """Ideals whose weight lies in a window, by a depth-first walk (see the module).

    ``succ_ptr``/``succ``: successors of each node, once per edge; ``indegree``: matching counts. ``node_weight[n]``;
    ``below[v]``: weight of v and all that depends on it. ``made``, ``read``: tensors made and read per node;
    ``readers[h]``: number of readers. ``low``/``high``: windows, ascending and disjoint. ``band``: an ideal may hold node v
    only if its least missing node is >= v - band (>= n: no limit). Stops with TOO_MANY after ``max_visits`` ideals, with
    TOO_MUCH when over ``max_words`` 8-byte words would be held, at ``words_per_ideal`` each besides their cuts.

    A first call, with ``store`` false, only counts; a second fills ``bits[N, W]``, ``weight[N]``, ``cut_ptr[N+1]`` and
    ``cut``, the tensors cut by each ideal. Returns (status, visited, ideals in the windows, entries of ``cut``).
    """
    n = indegree.shape[0]
    tensors = readers.shape[0]
    words = (n + 63) // 64
    tensor_words = (tensors + 63) // 64
    windows = low.shape[0]
    one = np.uint64(1)
    current = np.zeros(words, np.uint64)
    ready = np.zeros(words, np.uint64)
    opened = np.zeros(max(tensor_words, 1), np.uint64)
    missing = indegree.copy()
    waiting = readers.copy()
    for v in range(n):
        if missing[v] == 0:
            ready[v >> 6] |= one << np.uint64(v & 63)
    chosen = np.empty(n + 1, np.int64)
    weights = np.zeros(n + 2)
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
        total += node_weight[v]
    fresh = True
    while True:
        if fresh:
            fresh = False
            visited += 1
            if visited > max_visits:
                status = 1
                break
            here = weights[depth]
            for w in range(windows):
                if low[w] <= here and here <= high[w]:
                    if store:
                        for k in range(words):
                            bits[count, k] = current[k]
                        weight[count] = here
                    for k in range(tensor_words):
                        if opened[k] == 0:
                            continue
                        word = opened[k]
                        for b in range(64):
                            if (word >> np.uint64(b)) & one:
                                if store:
                                    cut[used] = 64 * k + b
                                used += 1
                    if store:
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
            reach_low = weights[depth] + node_weight[v]
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
            for e in range(read_ptr[v], read_ptr[v + 1]):
                h = read[e]
                waiting[h] -= 1
                if waiting[h] == 0:
                    opened[h >> 6] &= ~(one << np.uint64(h & 63))
            for e in range(made_ptr[v], made_ptr[v + 1]):
                h = made[e]
                if waiting[h] > 0:
                    opened[h >> 6] |= one << np.uint64(h & 63)
            lost[depth] = gone
            lost[depth + 1] = gone
            weights[depth + 1] = reach_low
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
            for e in range(made_ptr[v], made_ptr[v + 1]):
                h = made[e]
                opened[h >> 6] &= ~(one << np.uint64(h & 63))
            for e in range(read_ptr[v], read_ptr[v + 1]):
                h = read[e]
                if waiting[h] == 0:
                    opened[h >> 6] |= one << np.uint64(h & 63)
                waiting[h] += 1
            last = v
            lost[depth] = max(lost[depth], below[v])
    return status, visited, count, used


@compiled
def sum_members(bits: Any, per_node: Any, total: Any) -> None:
    """``total[i, c]`` = sum of ``per_node[v, c]`` over the members v of ideal i, ascending."""
    count, words = bits.shape
    columns = per_node.shape[1]
    one = np.uint64(1)
    for i in range(count):
        for c in range(columns):
            total[i, c] = 0.0
        for k in range(words):
            word = bits[i, k]
            v = 64 * k
            while word:
                if word & one:
                    for c in range(columns):
                        total[i, c] += per_node[v, c]
                word >>= one
                v += 1


@compiled
def solve_family(
    trial: float,
    bits: Any,
    weight: Any,
    compute: Any,
    unsupported: Any,
    boundary: Any,
    cut_start: Any,
    cut_end: Any,
    cut: Any,
    producer: Any,
    reader_ptr: Any,
    reader: Any,
    transfer: Any,
    port: Any,
    comm: int,
    additive: bool,
    next_state: Any,
    ahead: Any,
    behind: Any,
    heaviest: float,
    slack: float,
    limit: Any,
    weights_before: Any,
    shared_ptr: Any,
    shared: Any,
    shared_bytes: Any,
    live: Any,
    forced: Any,
    start: int,
    max_tests: int,
    value: Any,
    parent: Any,
    via: Any,
    low_state: Any,
    high_state: Any,
    active: Any,
    actives: int,
) -> Any:
    """Least possible largest load over chains of ideals of the family, for every vector of devices used; with ``additive``, the
    least possible sum of transfers instead.

    The family is sorted so that J comes before I whenever J is inside I; its first member is empty, its last is full.
    ``trial``: no stage may cost more. Per ideal: ``bits[N, W]``, ``weight[N]``, ``compute[N, T]`` (sums over the kind's
    supported nodes), ``unsupported[N, T]`` (how many are not), ``boundary[N, P]`` (transfer of its whole cut per port
    class), its cut as ``cut[cut_start:cut_end]``, ``weights_before[N]`` (bytes of weights with one reader). ``transfer[P, H]``
    has one row per port class, then one of bytes; ``port[T]`` names the kind's class. States are vectors of devices used,
    numbered; ``next_state[S, T]`` adds one device of a kind or is -1. A state is entered at I only if weight[I] <=
    trial * ahead[S] and what remains <= trial * behind[S] (relative ``slack`` on both). ``heaviest`` is the largest
    weight a device can take per second of load. ``limit[T]``: bytes, -1 unlimited.

    Filled in: ``value[N, S]``, ``parent[N, S]`` (ideal before), ``via[N, S]`` (kind of the last stage); ``low_state[N]``,
    ``high_state[N]``: range of states reached; ``active[:actives]``: ideals reached. Works from ideal ``start`` until over
    ``max_tests`` pairs were tested, so that a caller can show progress and stop; eight pairs that their states alone rule out
    count as one, and so do eight tensors looked at. Returns (the ideal to go on from, actives, pairs tested, pairs priced).
    """
    count, words = bits.shape
    kinds = port.shape[0]
    states = next_state.shape[0]
    classes = transfer.shape[0] - 1
    most = trial * (1.0 + slack)
    total = weight[count - 1]
    one = np.uint64(1)
    receive = np.zeros(classes + 1)
    send = np.zeros(classes + 1)
    limited = False
    for t in range(kinds):
        if limit[t] >= 0:
            limited = True
    any_unsupported = False
    for t in range(kinds):
        if unsupported[count - 1, t] > 0:
            any_unsupported = True
    largest_live = 0
    for v in range(live.shape[0]):
        largest_live = max(largest_live, live[v])
    all_shared = 0
    for r in range(shared_bytes.shape[0]):
        all_shared += shared_bytes[r]
    tested = 0
    priced = 0
    passed = 0
    allowed = np.empty(states, np.bool_)
    short_step = states
    long_step = 0
    for s in range(states):
        for t in range(kinds):
            if next_state[s, t] >= 0:
                short_step = min(short_step, next_state[s, t] - s)
                long_step = max(long_step, next_state[s, t] - s)
    i = start
    while i < count and tested + passed // 8 <= max_tests:
        here = weight[i]
        allowed_low = states
        allowed_high = -1
        for s in range(states):
            allowed[s] = here <= most * ahead[s] + slack * total and total - here <= most * behind[s] + slack * total
            if allowed[s]:
                allowed_low = min(allowed_low, s)
                allowed_high = s
        if allowed_high < 0:
            i += 1
            continue
        reach = here - most * heaviest - slack * total
        entered = False
        for a in range(actives - 1, -1, -1):
            j = active[a]
            if weight[j] < reach:
                break
            if low_state[j] + short_step > allowed_high or high_state[j] + long_step < allowed_low:
                passed += 1
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
                if compute[i, t] - compute[j, t] <= most and not (any_unsupported and unsupported[i, t] != unsupported[j, t]):
                    useful = True
                    break
            if not useful:
                continue
            blocked = False
            for f in range(forced.shape[0]):
                h = forced[f]
                u = producer[h]
                if ((bits[i, u >> 6] & ~bits[j, u >> 6]) >> np.uint64(u & 63)) & one:
                    for e in range(reader_ptr[h], reader_ptr[h + 1]):
                        x = reader[e]
                        if (bits[i, x >> 6] >> np.uint64(x & 63)) & one:
                            blocked = True
                            break
                if blocked:
                    break
            if blocked:
                continue
            priced += 1
            passed += cut_end[i] - cut_start[i]
            for p in range(classes + 1):
                receive[p] = boundary[j, p]
                send[p] = 0.0
            for c in range(cut_start[i], cut_end[i]):
                h = cut[c]
                u = producer[h]
                if (bits[j, u >> 6] >> np.uint64(u & 63)) & one:
                    used = False
                    for e in range(reader_ptr[h], reader_ptr[h + 1]):
                        x = reader[e]
                        if ((bits[i, x >> 6] & ~bits[j, x >> 6]) >> np.uint64(x & 63)) & one:
                            used = True
                            break
                    if not used:
                        for p in range(classes + 1):
                            receive[p] -= transfer[p, h]
                else:
                    for p in range(classes):
                        send[p] += transfer[p, h]
            memory = np.int64(0)
            memory_known = False
            for t in range(kinds):
                if any_unsupported and unsupported[i, t] != unsupported[j, t]:
                    continue
                busy = compute[i, t] - compute[j, t]
                incoming = max(receive[port[t]], 0.0)
                outgoing = send[port[t]]
                if comm == 0:
                    busy = busy + incoming + outgoing
                elif comm == 1:
                    busy = max(busy, incoming + outgoing)
                else:
                    busy = max(busy, max(incoming, outgoing))
                if busy > most:
                    continue
                if limited and limit[t] >= 0:
                    certain = weights_before[i] - weights_before[j] + np.int64(np.rint(receive[classes]))
                    if certain > limit[t]:
                        continue
                    if certain + all_shared + largest_live > limit[t]:
                        if not memory_known:
                            memory_known = True
                            memory = certain
                            for r in range(shared_bytes.shape[0]):
                                for e in range(shared_ptr[r], shared_ptr[r + 1]):
                                    x = shared[e]
                                    if ((bits[i, x >> 6] & ~bits[j, x >> 6]) >> np.uint64(x & 63)) & one:
                                        memory += shared_bytes[r]
                                        break
                            peak = 0
                            for k in range(words):
                                word = bits[i, k] & ~bits[j, k]
                                if word:
                                    for b in range(64):
                                        if (word >> np.uint64(b)) & one:
                                            peak = max(peak, live[64 * k + b])
                            memory += peak
                        if memory > limit[t]:
                            continue
                for s in range(low_state[j], high_state[j] + 1):
                    after = next_state[s, t]
                    if after < 0 or not allowed[after]:
                        continue
                    worst = value[j, s] + incoming + outgoing if additive else max(value[j, s], busy)
                    if worst < value[i, after]:
                        value[i, after] = worst
                        parent[i, after] = j
                        via[i, after] = t
                        entered = True
                        low_state[i] = min(low_state[i], after)
                        high_state[i] = max(high_state[i], after)
        if entered:
            active[actives] = i
            actives += 1
        i += 1
    return i, actives, tested + passed // 8, priced


__all__ = ["DONE", "TOO_MANY", "TOO_MUCH", "compiled", "enumerate_ideals", "solve_family", "sum_members"]
