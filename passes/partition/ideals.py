"""Families of ideals, and the arrays that the kernels take.

A ``Family`` is a set of ideals of one problem, sorted so that an ideal comes after those inside it, with what the programme
needs to price a stage between two of them. The whole lattice makes the programme exact; any family that holds the empty
and the full ideal makes its value an upper bound. Families here: every ideal in a window of weights, those near one
topological order (``band``), and the prefixes of an order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from passes.partition.bounds import node_weights
from passes.partition.problem import COMM, Floats, Ints, Problem, pools, slots

BIG = 1e300
"""A trial value that prunes nothing, finite so that 0 * BIG is 0."""


def csr(rows: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    """Rows of indices as (pointers, indices)."""
    pointers = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=pointers[1:])
    return pointers, np.fromiter(itertools.chain.from_iterable(rows), np.int64, int(pointers[-1]))


@dataclass(frozen=True)
class States:
    """What of the devices is used, numbered, with what is ahead and behind at the given prices.

    ``next[S, T]``: the state with one more device of a kind, -1 where there is none; ``ahead[S]``: price of the devices
    used; ``behind[S]``: of those that may still be used; ``final[S]``: the state may be the last; ``used[S]``: devices
    (at least); ``every``: no way to give devices to stages is left out."""

    next: Ints
    ahead: Floats
    behind: Floats
    final: np.ndarray[Any, np.dtype[np.bool_]]
    used: Ints
    every: bool


MOST_STATES = 4096
"""Vectors of devices used beyond which only sequences are tried: nine different devices and more."""


def states(problem: Problem, price: Floats, sequence: Sequence[int] = ()) -> States:
    """All vectors of devices used, in mixed radix; or, with a ``sequence`` of kinds (one entry per device), only stages on
    its devices in its order, any of them left out. Where stages may have replicas and their number is prescribed, that of the
    stages so far is a digit too."""
    if sequence:
        return _sequence_states(problem, price, sequence)
    pool_of = pools(problem.kinds)
    alone = list(dict.fromkeys(pool_of))
    counted = problem.stages is not None and len(alone) < len(problem.kinds)
    most = np.array([problem.kinds[k].count for k in alone] + [problem.stages or 0] * counted)
    strides = np.cumprod([1, *(most[:-1] + 1)]).astype(np.int64)
    total = int(np.prod(most + 1))
    numbers = np.arange(total)
    digits = (numbers[:, None] // strides) % (most + 1)
    devices = digits[:, : len(alone)]
    used = devices.sum(axis=1)
    made = digits[:, -1] if counted else used
    bound = problem.devices if problem.stages is None else problem.stages
    following = np.full((total, len(problem.kinds)), -1, np.int64)
    for k, kind in enumerate(problem.kinds):
        step = np.zeros(len(most), np.int64)
        step[alone.index(pool_of[k])] = kind.replicas
        step[len(alone) :] = 1
        fits = (digits + step <= most).all(axis=1) & (made < bound)
        following[fits, k] = numbers[fits] + step @ strides
    left = most[: len(alone)] - devices
    remaining = np.where(made < bound, problem.devices, 0) if counted else np.maximum(bound - made, 0)
    behind = np.zeros(total)
    for place in np.argsort(-price[alone], kind="stable"):
        taken = np.minimum(left[:, place], remaining)
        behind += taken * price[alone[place]]
        remaining = remaining - taken
    final = np.ones(total, np.bool_) if problem.stages is None else made == problem.stages
    return States(following, devices @ price[alone], behind, final, used, True)


def sequences(problem: Problem) -> list[tuple[int, ...]]:
    """What ``Tables`` takes as ``sequence``: nothing where every vector of devices used can be carried at every ideal, else
    orders of devices to try, each a kind per device; speed is that of the whole model."""
    alone = sorted(set(pools(problem.kinds)))
    stages = 1 if problem.stages is None or len(alone) == len(problem.kinds) else problem.stages + 1
    if stages * math.prod(problem.kinds[k].count + 1 for k in alone) <= MOST_STATES:
        return [()]
    seconds = np.where(np.isfinite(problem.seconds), problem.seconds, np.nan)
    speed = np.nan_to_num(np.nanmean(np.column_stack([seconds, np.zeros(len(problem.kinds))]), axis=1))
    given = [k for k in alone for _ in range(problem.kinds[k].count)]
    fast = sorted(given, key=lambda k: (speed[k], k))
    return list(dict.fromkeys([tuple(given), tuple(fast), tuple(reversed(fast))]))


def _sequence_states(problem: Problem, price: Floats, sequence: Sequence[int]) -> States:
    """State (p, u): the devices before position p were used or left out, u of them used (0 when their number is free)."""
    devices, kinds, pool_of = len(sequence), len(problem.kinds), pools(problem.kinds)
    levels = 1 if problem.stages is None else problem.stages + 1
    prices = price[list(sequence)]
    following = np.full(((devices + 1) * levels, kinds), -1, np.int64)
    ahead, behind = np.zeros(len(following)), np.zeros(len(following))
    used = np.zeros(len(following), np.int64)
    for position in range(devices + 1):
        for level in range(levels):
            state = position * levels + level
            used[state] = level if levels > 1 else position
            ahead[state], behind[state] = prices[:position].sum(), prices[position:].sum()
            for later in range(devices - 1, position - 1, -1):
                step = 0 if levels == 1 else 1
                for k, kind in enumerate(problem.kinds):
                    taken = tuple(sequence[later : later + kind.replicas])
                    if level + step < levels and taken == (pool_of[k],) * kind.replicas:
                        following[state, k] = (later + kind.replicas) * levels + level + step
    final = np.ones(len(following), np.bool_) if problem.stages is None else used == problem.stages
    return States(following, ahead, behind, final, used, False)


class Tables:
    """A problem as the kernels want it. ``weight``: node weights at the prices; ``sequence``: as for ``states``."""

    def __init__(self, problem: Problem, price: Floats, sequence: Sequence[int] = ()) -> None:
        n = problem.size
        self.problem = problem
        self.price = price
        self.weight = node_weights(problem, price)
        self.sequence = tuple(sequence)
        self.states = states(problem, price, sequence)
        self.reader_ptr, self.reader = csr(problem.consumers)
        made: list[list[int]] = [[] for _ in range(n)]
        read: list[list[int]] = [[] for _ in range(n)]
        following: list[set[int]] = [set() for _ in range(n)]
        for h, readers in enumerate(problem.consumers):
            maker = int(problem.producer[h])
            made[maker].append(h)
            following[maker].update(readers)
            for v in readers:
                read[v].append(h)
        self.successors = [sorted(s) for s in following]
        self.made_ptr, self.made = csr(made)
        self.read_ptr, self.read = csr(read)
        self.succ_ptr, self.succ = csr(self.successors)
        self.indegree = np.bincount(self.succ, minlength=n).astype(np.int64)
        self.readers = np.diff(self.reader_ptr)
        rows, self.port = np.unique(problem.transfer, axis=0, return_inverse=True)
        self.port = self.port.reshape(-1).astype(np.int64)
        self.transfer = np.vstack([rows, slots(problem.comm) * problem.tensor_bytes.astype(np.float64)[None, :]])
        self.limit = np.array([-1 if k.memory is None else k.memory for k in problem.kinds], np.int64)
        self.seconds = np.where(np.isfinite(problem.seconds), problem.seconds, 0.0)
        self.lacking = np.isinf(problem.seconds)
        self.own_weights = np.zeros(n, np.int64)
        shared = []
        for size, readers in zip(problem.weight_bytes, problem.weight_readers, strict=True):
            if len(readers) == 1:
                self.own_weights[readers[0]] += size
            elif readers:
                shared.append((int(size), readers))
        self.shared_ptr, self.shared = csr([readers for _, readers in shared])
        self.shared_bytes = np.array([size for size, _ in shared], np.int64)
        self.comm = COMM.index(problem.comm)
        self.forced = np.array(problem.forced, np.int64)
        self.slack = 1e-12 * max(n, 1)

    @cached_property
    def words_per_ideal(self) -> int:
        """Eight-byte words that one ideal takes: its bits, twice while they are sorted, what the family holds of it besides
        its cut, and the value, parent and kind (13 bytes) of every state of the programme."""
        kinds, rows = len(self.problem.kinds), len(self.transfer)
        return 2 * ((self.problem.size + 63) // 64) + 5 * kinds + 2 * rows + 8 + (13 * len(self.states.used) + 7) // 8

    @cached_property
    def below(self) -> Floats:
        """Weight of each node and of all that depends on it."""
        n = self.problem.size
        reach = [0] * n
        result = np.zeros(n)
        for v in range(n - 1, -1, -1):
            mask = 1 << v
            for u in self.successors[v]:
                mask |= reach[u]
            reach[v] = mask
            members = np.unpackbits(np.frombuffer(mask.to_bytes((n + 7) // 8, "little"), np.uint8), bitorder="little")[:n]
            result[v] = self.weight @ members
        return result

    def windows(self, trial: float) -> tuple[Floats, Floats]:
        """Ascending, disjoint ranges of weight that a boundary may have when no load exceeds ``trial``."""
        total = float(self.weight.sum())
        most = trial * (1 + self.slack)
        reachable = self.states
        low = np.maximum(total - most * reachable.behind - 2 * self.slack * total, 0.0)
        high = np.minimum(most * reachable.ahead, total) + self.slack * total
        ranges = sorted((a, b) for a, b in zip(low.tolist(), high.tolist(), strict=True) if a <= b)
        merged: list[list[float]] = []
        for a, b in [(0.0, 0.0), *ranges, (total - 2 * self.slack * total, total + self.slack * total)]:
            if merged and a <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], b)
            else:
                merged.append([a, b])
        return np.array([a for a, _ in merged]), np.array([b for _, b in merged])


@dataclass(frozen=True)
class Family:
    """Ideals with their prices; see ``kernels.solve_family`` for the meaning of each array. ``complete``: it holds every
    ideal that a plan of load at most ``trial`` can use. ``visited``: ideals walked over to find them."""

    bits: np.ndarray[Any, np.dtype[np.uint64]]
    weight: Floats
    compute: Floats
    unsupported: Ints
    boundary: Floats
    cut_start: Ints
    cut_end: Ints
    cut: np.ndarray[Any, np.dtype[np.int32]]
    weights_before: Ints
    trial: float
    complete: bool
    visited: int

    @property
    def size(self) -> int:
        return len(self.weight)


def family(
    tables: Tables, bits: Any, weight: Any, cut_ptr: Any, cut: Any, trial: float, complete: bool, visited: int
) -> Family:
    """Sorts ideals and sums what the programme needs, cuts a few thousand ideals at a time to keep memory low."""
    from passes.partition import kernels

    size = np.bitwise_count(bits).sum(axis=1)
    order = np.lexsort((size, weight))
    bits, weight = np.ascontiguousarray(bits[order]), weight[order]
    kinds = len(tables.problem.kinds)
    per_node = np.hstack(
        [tables.seconds.T, tables.lacking.T.astype(np.float64), tables.own_weights[:, None].astype(np.float64)]
    )
    sums = np.empty((len(weight), per_node.shape[1]))
    kernels.sum_members(bits, per_node, sums)
    boundary = np.zeros((len(weight), tables.transfer.shape[0]))
    for start in range(0, len(weight), 16384):
        pointers = cut_ptr[start : start + 16385]
        entries, lengths = cut[pointers[0] : pointers[-1]], np.diff(pointers)
        owner = np.repeat(np.arange(len(lengths)), lengths)
        for p, row in enumerate(tables.transfer):
            boundary[start : start + 16384, p] = np.bincount(owner, weights=row[entries], minlength=len(lengths))
    return Family(
        bits,
        weight,
        np.ascontiguousarray(sums[:, :kinds]),
        np.rint(sums[:, kinds : 2 * kinds]).astype(np.int64),
        np.ascontiguousarray(boundary[order]),
        cut_ptr[:-1][order],
        cut_ptr[1:][order],
        cut,
        np.rint(sums[:, -1]).astype(np.int64),
        trial,
        complete,
        visited,
    )


def _walk(tables: Tables, trial: float, band: int | None, max_visits: int, max_words: int) -> partial[Any]:
    """The kernel of the enumeration, given all but what to store."""
    from passes.partition import kernels

    low, high = tables.windows(trial)
    return partial(
        kernels.enumerate_ideals,
        tables.succ_ptr,
        tables.succ,
        tables.indegree,
        tables.weight,
        tables.below,
        tables.made_ptr,
        tables.made,
        tables.read_ptr,
        tables.read,
        tables.readers,
        low,
        high,
        tables.problem.size if band is None else band,
        max_visits,
        max_words,
        tables.words_per_ideal,
    )


_NOTHING = np.empty((0, 0), np.uint64), np.empty(0), np.empty(0, np.int64), np.empty(0, np.int32)


def count_ideals(tables: Tables, trial: float, most: int) -> int | None:
    """Ideals walked over to find those that can be boundaries of a plan of load at most ``trial``; None when over ``most``."""
    status, visited, _, _ = _walk(tables, trial, None, most, 1 << 62)(False, *_NOTHING)
    found: int = visited
    return found if status == 0 else None


def lattice(
    tables: Tables, trial: float, *, band: int | None = None, max_visits: int = 10**7, max_words: int = 10**7
) -> Family | None:
    """Every ideal that can be a boundary of a plan of load at most ``trial``; None when over budget: ``max_visits`` ideals
    walked over, ``max_words`` 8-byte words held by the family and the programme over it. With ``band``, only those in which
    no node is in while one more than ``band`` places before it is out: near the problem's own order."""
    n = tables.problem.size
    walk = _walk(tables, trial, band, max_visits, max_words)
    status, visited, count, entries = walk(False, *_NOTHING)
    if status:
        return None
    bits, weight = np.zeros((count, max(1, (n + 63) // 64)), np.uint64), np.empty(count)
    cut_ptr, cut = np.zeros(count + 1, np.int64), np.empty(entries, np.int32)
    walk(True, bits, weight, cut_ptr, cut)
    return family(tables, bits, weight, cut_ptr, cut, trial, band is None or band >= n, int(visited))


def members(tables: Tables, bits: Any) -> tuple[int, ...]:
    """Nodes of one ideal (or difference of two), ascending."""
    flags = np.unpackbits(np.ascontiguousarray(bits).view(np.uint8), bitorder="little")[: tables.problem.size]
    return tuple(np.flatnonzero(flags).tolist())


def permuted(problem: Problem, order: Iterable[int]) -> Problem:
    """The same problem with node ``order[i]`` called i; ``order`` must be topological."""
    old = list(order)
    new = {v: i for i, v in enumerate(old)}
    return Problem(
        names=tuple(problem.names[v] for v in old),
        kinds=problem.kinds,
        seconds=np.ascontiguousarray(problem.seconds[:, old]),
        producer=np.array([new[int(v)] for v in problem.producer], np.int64),
        consumers=tuple(tuple(sorted(new[v] for v in readers)) for readers in problem.consumers),
        transfer=problem.transfer,
        tensor_bytes=problem.tensor_bytes,
        tensor_names=problem.tensor_names,
        live=problem.live[old],
        weight_bytes=problem.weight_bytes,
        weight_readers=tuple(tuple(sorted(new[v] for v in readers)) for readers in problem.weight_readers),
        comm=problem.comm,
        forced=problem.forced,
        stages=problem.stages,
    )


__all__ = [
    "BIG",
    "Family",
    "States",
    "Tables",
    "count_ideals",
    "csr",
    "family",
    "lattice",
    "members",
    "permuted",
    "sequences",
    "states",
]
