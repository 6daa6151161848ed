"""The compiled forward search over labels; see ``kernels`` for what a label is and for its bound.

Ideals are passed once, smaller first, so a label is only extended when all that could dominate it are there. A label dominates
another of the same ideal when it has as many pieces left and everything is ready no later. When accelerators run
several pieces a label also knows, per accelerator, the pieces run, the bytes held and when it is free, and per colour where
it lives; then all of these must be as good, and colours be at the same place.

So that labels which differ in nothing that matters are the same (``settle``): an accelerator that has run all its pieces is
``FULL``, whatever it holds; what is free or ready before anything that is left can start is so just then; and accelerators of a
kind stand in the order of what they have done, ``order`` telling which each was in the label before.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from passes.reference.latency.kernels import (
    NEVER,
    bytes_of,
    digits,
    leaves,
    mark_read,
    meets,
    place,
    seconds_of,
    step_of,
    supersets,
)
from passes.solvers.kernels import compiled, part

OPEN, CPU = -1, -2
"""Where a colour lives (``home``) while none of its nodes has run, and when they are on CPUs; else an accelerator."""
FULL = 1 << 62
"""Bytes held by an accelerator that has no piece left."""
COUNT, SPARE, COMPARED = 0, 1, 2
"""Entries of ``counts``: labels ever taken from the pool, the first of the chain of those given back, labels compared."""


class Pool(NamedTuple):
    """Labels. ``ready[:, 0]``: the latest end of what nobody reads any more, then the frontier in its order; ``promise``: no
    plan that goes on from here ends before; ``device``: of the step that led here (CPU: -2); ``after``: the next label of the
    ideal, ``head`` the first, ``held`` their number. ``used``, ``bytes``, ``free``, ``order`` per accelerator
    and ``home`` per colour are empty when accelerators run one piece. ``kind_of``: of each accelerator; ``device`` numbers them
    as the label before has them."""

    ready: Any
    promise: Any
    k: Any
    parent: Any
    ideal: Any
    device: Any
    after: Any
    head: Any
    held: Any
    used: Any
    bytes: Any
    free: Any
    home: Any
    order: Any
    kind_of: Any
    counts: Any


class Tails(NamedTuple):
    """What is known of the way on: ``tail`` from where ``start`` and ``stride`` say (``kernels.tails``)."""

    stride: Any
    start: Any
    tail: Any


class Limits(NamedTuple):
    """Of a search: no end at ``most`` or later, at most ``width`` labels per ideal and ``pieces`` per accelerator; ``slack``
    for rounding."""

    most: float
    slack: float
    pieces: int
    width: int


@part
def dominates(pool: Any, a: int, b: int, wide: int, stride: Any, slack: float) -> bool:
    """Whether label a is at least as good as label b of the same ideal."""
    for x in range(wide):
        if pool.ready[a, x] > pool.ready[b, x] + slack:
            return False
    devices = pool.used.shape[1]
    for t in range(0 if devices else len(stride) - 1):  # what is used says what is left
        if digits(pool.k[a], t, stride) < digits(pool.k[b], t, stride):
            return False
    for d in range(devices):
        if (
            pool.used[a, d] > pool.used[b, d]
            or pool.bytes[a, d] > pool.bytes[b, d]
            or pool.free[a, d] > pool.free[b, d] + slack
        ):
            return False
    same = True
    for c in range(pool.home.shape[1]):
        same = same and pool.home[a, c] == pool.home[b, c]
    return same


@part
def take(pool: Any) -> Any:
    """A label from the pool, -1 when there is none."""
    x = pool.counts[SPARE]
    if x >= 0:
        pool.counts[SPARE] = pool.after[x]
        return x
    x = pool.counts[COUNT]
    if x == len(pool.k):
        return -1
    pool.counts[COUNT] += 1
    return x


@part
def give_back(pool: Any, x: int) -> None:
    pool.after[x] = pool.counts[SPARE]
    pool.counts[SPARE] = x


@part
def offer(pool: Any, x: int, wide: int, stride: Any, width: int, slack: float) -> Any:
    """Puts label x, whose fields are set, to its ideal, unless it is dominated or the ideal is full of more promising ones.
    The chain is in the order of promises, and only what promises as much is tested for being as good. Returns the promise
    of the label given up for want of room, infinite when none was."""
    i = pool.ideal[x]
    before, y = -1, pool.head[i]
    while y >= 0 and pool.promise[y] <= pool.promise[x]:
        pool.counts[COMPARED] += 1
        if dominates(pool, y, x, wide, stride, slack):
            give_back(pool, x)
            return NEVER
        before, y = y, pool.after[y]
    if y < 0 and pool.held[i] == width:
        lost = pool.promise[x]
        give_back(pool, x)
        return lost
    pool.after[x] = y
    if before < 0:
        pool.head[i] = x
    else:
        pool.after[before] = x
    pool.held[i] += 1
    last = x
    while y >= 0:
        pool.counts[COMPARED] += 1
        following = pool.after[y]
        if dominates(pool, x, y, wide, stride, 0.0):
            pool.after[last] = following
            give_back(pool, y)
            pool.held[i] -= 1
        else:
            before, last = last, y
        y = following
    if pool.held[i] <= width:
        return NEVER
    lost = pool.promise[last]
    pool.after[before] = -1
    give_back(pool, last)
    pool.held[i] -= 1
    return lost


@part
def promise_of(lattice: Any, pool: Any, x: int, tails: Tails) -> Any:
    """No plan that goes on from label x ends before this."""
    _, start, tail = tails
    i = pool.ideal[x]
    wide = lattice.front_ptr[i + 1] - lattice.front_ptr[i] + 1
    onward = start[i] + pool.k[x] * wide
    best = max(pool.ready[x, 0], tail[onward])
    for y in range(1, wide):
        best = max(best, pool.ready[x, y] + tail[onward + y])
    return best


@part
def colours_agree(graph: Any, lattice: Any, pool: Any, x: int, j: int, i: int, device: int) -> bool:
    """Whether every colour that has nodes in i - j may live on ``device`` after label x."""
    for c in range(pool.home.shape[1]):
        if pool.home[x, c] != OPEN and pool.home[x, c] != device and meets(graph.colours[c], lattice.bits[j], lattice.bits[i]):
            return False
    return True


@part
def inherit(graph: Any, lattice: Any, pool: Any, x: int, parent: int, j: int, i: int, device: int, k: int) -> None:
    """Sets what label x, reached from ``parent`` by the step i - j on ``device``, has besides times."""
    pool.parent[x] = parent
    pool.ideal[x] = i
    pool.device[x] = device
    pool.k[x] = k
    for d in range(pool.used.shape[1]):
        pool.order[x, d] = d
        pool.used[x, d] = pool.used[parent, d]
        pool.bytes[x, d] = pool.bytes[parent, d]
        pool.free[x, d] = pool.free[parent, d]
    for c in range(pool.home.shape[1]):
        if not leaves(graph.colours[c], lattice.bits[i]):
            pool.home[x, c] = OPEN  # all of them have run: where is of no matter any more
        else:
            pool.home[x, c] = device if meets(graph.colours[c], lattice.bits[j], lattice.bits[i]) else pool.home[parent, c]


@part
def repeated(pool: Any, x: int, device: int) -> bool:
    """Whether an accelerator of the same kind before ``device`` is unused, as it is: then that one stands for both."""
    if pool.used[x, device]:
        return False
    found = False
    for d in range(device):
        found = found or (pool.kind_of[d] == pool.kind_of[device] and not pool.used[x, d])
    return found


@part
def settle(graph: Any, lattice: Any, pool: Any, x: int, pieces: int) -> bool:
    """Brings label x to its normal form; false when a colour lives where no piece is left."""
    i = pool.ideal[x]
    soonest = NEVER
    for c in range(lattice.cover_ptr[i], lattice.cover_ptr[i + 1]):
        v = lattice.cover_node[c]
        begins = 0.0
        for y in range(graph.maker_ptr[v], graph.maker_ptr[v + 1]):
            begins = max(begins, pool.ready[x, place(lattice, i, graph.makers[y])])
        soonest = min(soonest, begins)
    if soonest < NEVER:
        for y in range(lattice.front_ptr[i + 1] - lattice.front_ptr[i] + 1):
            pool.ready[x, y] = max(pool.ready[x, y], soonest)
    devices = pool.used.shape[1]
    for c in range(pool.home.shape[1]):
        if pool.home[x, c] >= 0 and pool.used[x, pool.home[x, c]] == pieces:
            return False
    for d in range(devices):
        pool.free[x, d] = max(pool.free[x, d], soonest)
        if pool.used[x, d] == pieces:
            pool.bytes[x, d], pool.free[x, d] = FULL, NEVER
    for d in range(1, devices):
        e = d
        while e > 0 and pool.kind_of[e - 1] == pool.kind_of[e] and later(pool, x, e - 1, e):
            swap(pool, x, e - 1)
            e -= 1
    return True


@part
def later(pool: Any, x: int, a: int, b: int) -> bool:
    """Whether accelerator a of label x has done more than b."""
    if pool.used[x, a] != pool.used[x, b]:
        return bool(pool.used[x, a] > pool.used[x, b])
    if pool.bytes[x, a] != pool.bytes[x, b]:
        return bool(pool.bytes[x, a] > pool.bytes[x, b])
    return bool(pool.free[x, a] > pool.free[x, b])


@part
def swap(pool: Any, x: int, d: int) -> None:
    """Swaps accelerators d and d + 1 of label x."""
    e = d + 1
    pool.used[x, d], pool.used[x, e] = pool.used[x, e], pool.used[x, d]
    pool.bytes[x, d], pool.bytes[x, e] = pool.bytes[x, e], pool.bytes[x, d]
    pool.free[x, d], pool.free[x, e] = pool.free[x, e], pool.free[x, d]
    pool.order[x, d], pool.order[x, e] = pool.order[x, e], pool.order[x, d]
    for c in range(pool.home.shape[1]):
        if pool.home[x, c] == d:
            pool.home[x, c] = e
        elif pool.home[x, c] == e:
            pool.home[x, c] = d


@compiled
def search(
    graph: Any,
    lattice: Any,
    pool: Any,
    tails: Tails,
    limits: Limits,
    dropped: float,
    queue: Any,
    stamp: Any,
    at: Any,
    work: int,
) -> Any:
    """Extends the labels of ideals, from the step ``at`` on (of an ideal, its number, and how many pieces begin there, found
    in ``queue``), until about ``work`` labels are extended or compared. Labels that promise ``most`` or more are cut. Returns
    (the next step, the least promise dropped, labels extended)."""
    stride, most, pieces = tails.stride, limits.most, limits.pieces
    kinds = len(graph.limit)
    done = 0
    source = np.empty(len(graph.cpu) + 1, np.int64)
    read = np.empty(len(graph.cpu) + 1, np.bool_)
    j, q, count = at
    while j < len(lattice.bits) - 1:
        if done + pool.counts[COMPARED] > work:
            return (j, q, count), dropped, done
        if q == 0 and pool.head[j] >= 0:
            count = supersets(graph, lattice, j, most, queue, stamp)
            done += count
        if pool.head[j] < 0 or q == lattice.cover_ptr[j + 1] - lattice.cover_ptr[j] + count:
            j, q = j + 1, 0
            continue
        v, i = step_of(graph, lattice, j, q, queue)
        q += 1
        if i < 0:
            continue
        known = False
        wide = lattice.front_ptr[i + 1] - lattice.front_ptr[i] + 1
        for t in range(1 if v >= 0 else kinds):
            cost = graph.cpu[v] if v >= 0 else seconds_of(graph, lattice, j, i, t, graph.limit[t])
            done += 0 if v >= 0 else len(graph.ops) // 32  # a model's bytes: a look at each op
            if cost >= most:
                continue
            if not known:
                known = True
                mark_read(graph, lattice, j, i, read)
                for y in range(1, wide):
                    source[y] = place(lattice, j, lattice.front[lattice.front_ptr[i] + y - 1])
            size: Any = np.int64(0) if v >= 0 else bytes_of(graph, lattice, j, i)
            x = pool.head[j]
            while x >= 0:
                parent, x = x, pool.after[x]
                if v < 0 and digits(pool.k[parent], t, stride) == 0:
                    continue
                done += 1
                begins = 0.0
                for y in range(lattice.front_ptr[j + 1] - lattice.front_ptr[j]):
                    if read[y]:
                        begins = max(begins, pool.ready[parent, y + 1])
                if begins + cost >= most:
                    continue
                devices = 0 if v >= 0 else pool.used.shape[1]
                for d in range(max(1, devices)):
                    end = begins + cost
                    if devices:
                        if pool.kind_of[d] != t or pool.used[parent, d] == pieces or repeated(pool, parent, d):
                            continue
                        if pool.bytes[parent, d] + size > graph.limit[t]:
                            continue
                        end = max(begins, pool.free[parent, d]) + cost
                    device = CPU if v >= 0 else d if devices else t
                    if not colours_agree(graph, lattice, pool, parent, j, i, device):
                        continue
                    z = take(pool)
                    if z < 0:
                        dropped = min(dropped, pool.promise[parent])
                        continue
                    inherit(graph, lattice, pool, z, parent, j, i, device, pool.k[parent] - (0 if v >= 0 else stride[t]))
                    if devices:
                        pool.used[z, d] += 1
                        pool.bytes[z, d] += size
                        pool.free[z, d] = end
                    dropped = min(dropped, arrive(graph, lattice, pool, z, parent, end, source, wide, tails, limits))
    return (j, q, count), dropped, done


@part
def arrive(
    graph: Any, lattice: Any, pool: Any, z: int, x: int, end: float, source: Any, wide: int, tails: Tails, limits: Limits
) -> Any:
    """Sets the times of label z, reached from x by a step that ends at ``end`` and makes what has no ``source``, and offers it.
    Returns the promise of the label given up for want of room."""
    pool.ready[z, 0] = pool.ready[x, 0]
    fresh = False
    for y in range(1, wide):
        if source[y]:
            pool.ready[z, y] = pool.ready[x, source[y]]
        else:
            fresh = True
            pool.ready[z, y] = end
    if not fresh:
        pool.ready[z, 0] = max(pool.ready[z, 0], end)
    alive = settle(graph, lattice, pool, z, limits.pieces)
    pool.promise[z] = promise_of(lattice, pool, z, tails)
    if not alive or pool.promise[z] >= limits.most:
        give_back(pool, z)
        return NEVER
    return offer(pool, z, wide, tails.stride, limits.width, limits.slack)
