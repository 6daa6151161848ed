"""The compiled loops: enumerating ideals and the dynamic programme over a family of them. Arrays in, arrays out.

*Enumeration without a hash set.* Nodes are numbered topologically, so adding the nodes of an ideal in ascending order
passes only through ideals. Every ideal therefore has one parent, itself without its greatest node, and a depth-first walk
that only ever adds a node greater than the last one meets each ideal exactly once, in constant memory. Only ideals
inside a window are stored.

*The programme* takes any family of ideals sorted by weight (all of them, or a sample: then its value is an upper bound).
The cost of a stage I - J comes from the two boundaries: sent are the tensors cut by I and made outside J; received are
those cut by J, less those whose readers all lie outside I, and these are cut by I as well.

*Bounds on a stage from another.* Where seconds p and transfers are added, write B(I) for the transfers of the cut of I. For J
inside J' inside I: what I - J' parts and I - J does not is cut by J' and not by J; what is cut by J and not by J' is parted by
I - J and not by I - J'. So load(I - J) >= load(I - J') + p(J' - J) + B(J) - B(J'). In the same way, for J inside I' inside I:
load(I - J) >= load(I' - J) + p(I - I') + B(I) - B(I'). And a stage parts at least what only one of its boundaries cuts:
load(I - J) >= p(I - J) + |B(I) - B(J)|. Most pairs are refused by these, from pairs priced before.

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


DONE, TOO_MANY, TOO_MUCH = 0, 1, 2


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
    limit). Stops with TOO_MANY after ``max_visits`` ideals, with TOO_MUCH when over ``max_words`` 8-byte words would be held,
    at ``words_per_ideal`` each besides their cuts.

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


@compiled
def possible_states(
    trial: float,
    slack: float,
    apart: bool,
    sums: Any,
    marks: Any,
    first_sum: int,
    first_mark: int,
    total: Any,
    ahead: Any,
    behind: Any,
    with_ahead: Any,
    with_behind: Any,
    allowed: Any,
) -> Any:
    """``allowed[N, S]``: whether the ideal may be a boundary in the state when no load exceeds ``trial`` (``bounds`` says why).

    Column ``first_sum`` + x of ``sums`` is the weight at the prices of support x, with ``total[x]`` that of all nodes; columns
    ``first_mark`` + 2x and + 2x + 1 of ``marks`` are what the devices before and after the boundary must add for its cut.
    ``with_ahead[S]``, ``with_behind[S]``: the support of the devices used and left; ``ahead[S]``, ``behind[S]``: their price.
    ``apart``: compute and transfers are not added. Returns the number of ideals with a state, marked in the last column."""
    count, states = sums.shape[0], ahead.shape[0]
    most = trial * (1.0 + slack)
    found = 0
    for i in range(count):
        some = False
        for s in range(states):
            x, y = with_ahead[s], with_behind[s]
            done, sent = sums[i, first_sum + x], marks[i, first_mark + 2 * x]
            left, received = total[y] - sums[i, first_sum + y], marks[i, first_mark + 2 * y + 1]
            capacity = most * ahead[s] + slack * (total[x] + sent)
            room = most * behind[s] + slack * (total[y] + received)
            if apart:
                fits = done <= capacity and sent <= capacity and left <= room and received <= room
            else:
                fits = done + sent <= capacity and left + received <= room
            allowed[i, s] = fits
            some = some or fits
        allowed[i, states] = some
        found += some
    return found


@compiled
def solve_family(
    trial: float,
    floor: float,
    mode: int,
    additive: bool,
    shares: Any,
    caps: Any,
    bits: Any,
    weight: Any,
    compute: Any,
    lacking: Any,
    boundary: Any,
    busy: Any,
    moving: Any,
    bytes_before: Any,
    own_before: Any,
    turns: Any,
    turn_cost: Any,
    turn_side: Any,
    cut_start: Any,
    cut_end: Any,
    cut: Any,
    allowed: Any,
    pin_ptr: Any,
    pin: Any,
    lane_in: Any,
    lane_out: Any,
    transfer: Any,
    port: Any,
    price: Any,
    pred_ptr: Any,
    pred: Any,
    pred_kind: Any,
    idle: Any,
    slack: float,
    limit: Any,
    tensor_bytes: Any,
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
    link: Any,
    head: Any,
    stamp: Any,
    memo: Any,
    priced_at: Any,
    raw: Any,
) -> Any:
    """Least possible largest load over chains of ideals of the family, for every vector of devices used; with ``additive``, the
    least possible sum of transfers instead.

    The family is sorted so that J comes before I whenever J is inside I; its first member is empty, its last is full.
    ``trial``: no stage may cost more; what costs at most ``floor`` counts as ``floor``, and where that is reached nothing
    better is looked for. Per ideal: ``bits[N, W]``, ``weight[N]``, ``compute[N, G * T]`` (sums over the kind's supported nodes,
    side by side), ``lacking[N, T]`` (how many are not), ``boundary[N, L * P]`` (transfers of its whole cut per lane and port
    class), ``bytes_before`` (what its cut takes in buffers), ``own_before`` (bytes of weights with one reader), ``turns[N, Q]``
    (sums of signs; what they change by costs ``turn_cost[T, Q]`` on ``turn_side[Q]``), its cut as ``cut[cut_start:cut_end]``,
    ``allowed[N, S]`` (``possible_states``). Tensor h joins ``pin[pin_ptr[h]:pin_ptr[h + 1]]``, its maker first where it has a
    direction; ``transfer[P, H]`` goes to lane ``lane_in[h]`` of who receives and ``lane_out[h]`` of who sends. ``port[T]``
    names the kind's class, ``price[T]`` bounds the weight that it takes per second of load.

    ``busy[N, T]``, ``moving[N, T]``: seconds and transfers of the whole cut, as a load adds them up (unused where it does not).
    ``mode``: how a load adds up. For SIDES the two sides count ``shares[0]`` and ``shares[1]``, each at most its cap, and both
    together are at most ``caps[2]``. States are vectors of devices used, numbered: ``pred[pred_ptr[s]:pred_ptr[s + 1]]`` are
    those that one stage of kind ``pred_kind`` leads from to s; ``idle[S, D]`` are those with a device more, unused (-1: none).
    ``limit[T]``: bytes, -1 unlimited; ``tensor_bytes[H]``: of the buffers of a tensor received.

    Filled in: ``value[N, S]``, ``parent[N, S]`` (ideal before), ``via[N, S]`` (kind of the last stage). ``head[S]`` and
    ``link[N, S]`` chain the ideals reached in a state, the heaviest first: only those where no state with fewer devices is as
    good. ``stamp[N]``, ``memo[N, T]`` keep what was priced for the ideal at hand, ``priced_at[N]``,
    ``raw[N, T]`` what was priced last, over the trial value or not. Works from ideal ``start`` until over ``max_tests`` pairs
    were met. Returns (the ideal to go on from, pairs met, pairs priced).
    """
    count, words = bits.shape
    kinds = port.shape[0]
    states = idle.shape[0]
    classes = transfer.shape[0]
    lanes = boundary.shape[1] // max(classes, 1)
    most = trial * (1.0 + slack)
    edge = slack * weight[count - 1]
    added = mode == 0 or mode == 3
    one = np.uint64(1)
    infinite = np.inf
    moved = np.zeros((2, max(classes, 1)))
    largest_live = np.int64(0)
    for v in range(live.shape[0]):
        largest_live = max(largest_live, live[v])
    all_shared = np.int64(0)
    for r in range(shared_bytes.shape[0]):
        all_shared += shared_bytes[r]
    least = np.full(states, infinite)
    met = 0
    priced = 0
    i = start
    while i < count and met <= max_tests:
        here = weight[i]
        anchor = -1
        least[:] = infinite
        for x in range(states):
            if allowed[i, x] and least[x] > floor:
                best = least[x]
                for step in range(pred_ptr[x], pred_ptr[x + 1]):
                    s, t = pred[step], pred_kind[step]
                    reach = here - most * price[t] - edge
                    j = head[s] if head[s] != i else link[i, s]  # no stage is empty
                    while j >= 0 and weight[j] >= reach and best > floor:
                        before = value[j, s]
                        if before >= best:
                            j = link[j, s]
                            continue
                        met += 1
                        if stamp[j] != i:
                            stamp[j] = i
                            # Cheap reasons to refuse come first; the bounds are those of the module.
                            inside = False
                            for k in range(kinds):
                                memo[j, k] = infinite
                                low = busy[i, k] - busy[j, k]
                                if added:
                                    low += abs(moving[i, k] - moving[j, k]) - slack * (moving[i, k] + moving[j, k])
                                inside = inside or (low <= most and lacking[i, k] == lacking[j, k])
                            if inside:
                                for k in range(words):
                                    if bits[j, k] & ~bits[i, k]:
                                        inside = False
                                        break
                            if inside and added:
                                q = priced_at[j]
                                under = q >= 0
                                over = anchor >= 0
                                for k in range(words):
                                    under = under and bits[q, k] & ~bits[i, k] == 0
                                    over = over and bits[j, k] & ~bits[anchor, k] == 0
                                if under or over:
                                    inside = False
                                    for k in range(kinds):
                                        low = 0.0
                                        edge_of = slack * (busy[i, k] + 2 * moving[i, k] + 2 * moving[j, k])
                                        if under:
                                            low = raw[j, k] + busy[i, k] - busy[q, k] + moving[i, k] - moving[q, k]
                                            edge_of += slack * moving[q, k]
                                        if over:
                                            above = busy[anchor, k] - busy[j, k] + moving[j, k] - moving[anchor, k]
                                            low = max(low, raw[anchor, k] + above)
                                            edge_of += slack * moving[anchor, k]
                                        inside = inside or (low - edge_of <= most and lacking[i, k] == lacking[j, k])
                            if inside and forced.shape[0] > 0:
                                for f in range(forced.shape[0]):
                                    h = forced[f]
                                    u = pin[pin_ptr[h]]
                                    if ((bits[i, u >> 6] & ~bits[j, u >> 6]) >> np.uint64(u & 63)) & one:
                                        for e in range(pin_ptr[h] + 1, pin_ptr[h + 1]):
                                            v = pin[e]
                                            if (bits[i, v >> 6] >> np.uint64(v & 63)) & one:
                                                inside = False
                            if inside:
                                priced += 1
                                priced_at[j] = i
                                anchor = j
                                for g in range(lanes):
                                    for p in range(classes):
                                        moved[g, p] = boundary[j, g * classes + p]
                                received = bytes_before[j]
                                for c in range(cut_start[i], cut_end[i]):
                                    h = cut[c]
                                    old = False
                                    new = False
                                    for e in range(pin_ptr[h], pin_ptr[h + 1]):
                                        v = pin[e]
                                        if (bits[j, v >> 6] >> np.uint64(v & 63)) & one:
                                            old = True
                                            if new:
                                                break
                                        elif (bits[i, v >> 6] >> np.uint64(v & 63)) & one:
                                            new = True
                                            if old:
                                                break
                                    if not old:
                                        for p in range(classes):
                                            moved[lane_out[h], p] += transfer[p, h]
                                    elif not new:
                                        received -= tensor_bytes[h]
                                        for p in range(classes):
                                            moved[lane_in[h], p] -= transfer[p, h]
                                memory = np.int64(-1)
                                for k in range(kinds):
                                    first = max(moved[0, port[k]], 0.0)
                                    second = max(moved[1, port[k]], 0.0)
                                    load = compute[i, k] - compute[j, k]
                                    if mode == 0:
                                        load += first
                                    elif mode == 1:
                                        load = max(load, first)
                                    elif mode == 2:
                                        load = max(load, max(first, second))
                                    else:
                                        first += load
                                        second += compute[i, kinds + k] - compute[j, kinds + k]
                                        load = shares[0] * first + shares[1] * second
                                    raw[j, k] = load
                                    for q in range(turn_side.shape[0]):
                                        turned = turn_cost[k, q] * abs(turns[i, q] - turns[j, q])
                                        if turn_side[q] == 0:
                                            first += turned
                                        else:
                                            second += turned
                                        load += turned if mode != 3 else shares[turn_side[q]] * turned
                                    if load > most or lacking[i, k] != lacking[j, k]:
                                        continue
                                    if mode == 3 and (first > caps[0] or second > caps[1] or first + second > caps[2]):
                                        continue
                                    if limit[k] >= 0:
                                        certain = own_before[i] - own_before[j] + np.int64(np.rint(received))
                                        if certain > limit[k]:
                                            continue
                                        if certain + all_shared + largest_live > limit[k]:
                                            if memory < 0:
                                                memory = certain
                                                for r in range(shared_bytes.shape[0]):
                                                    for e in range(shared_ptr[r], shared_ptr[r + 1]):
                                                        v = shared[e]
                                                        if ((bits[i, v >> 6] & ~bits[j, v >> 6]) >> np.uint64(v & 63)) & one:
                                                            memory += shared_bytes[r]
                                                            break
                                                peak = np.int64(0)
                                                for w in range(words):
                                                    word = bits[i, w] & ~bits[j, w]
                                                    v = 64 * w
                                                    while word:
                                                        if word & one:
                                                            peak = max(peak, live[v])
                                                        word >>= one
                                                        v += 1
                                                memory += peak
                                            if memory > limit[k]:
                                                continue
                                    memo[j, k] = first + second if additive else load
                        worst = before + memo[j, t] if additive else max(max(before, memo[j, t]), floor)
                        if worst < best:
                            best = worst
                            value[i, x] = worst
                            parent[i, x] = j
                            via[i, x] = t
                        j = link[j, s]
            # A state with fewer devices and no larger value makes this one superfluous.
            if value[i, x] < least[x]:
                least[x] = value[i, x]
                link[i, x] = head[x]
                head[x] = i
            if least[x] < infinite:
                for d in range(idle.shape[1]):
                    if idle[x, d] >= 0:
                        least[idle[x, d]] = min(least[idle[x, d]], least[x])
        i += 1
    return i, met, priced


__all__ = [
    "DONE",
    "TOO_MANY",
    "TOO_MUCH",
    "compiled",
    "enumerate_ideals",
    "order_late",
    "order_thin",
    "possible_states",
    "prefixes",
    "solve_family",
    "weights_below",
]
