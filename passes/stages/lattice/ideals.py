"""Families of ideals, with what the programme needs to price a stage between two of them.

A ``Family`` is a set of ideals of one problem, sorted so that an ideal comes after those inside it. The whole lattice makes the
programme exact; any family that holds the empty and the full ideal makes its value an upper bound. Families here: every ideal
in the windows of a trial value (``lattice``), those of them near the numbering of the nodes (``band``), and the prefixes of a
topological order (``prefixes``). Ideals that no state allows (``tables``) are left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from passes.solvers.work import did
from passes.stages.arrays import Ints, grouped
from passes.stages.lattice.kernel_arrays import Here, Limits, Stored
from passes.stages.lattice.tables import Tables
from passes.stages.problem import Floats

BIG = 1e300
"""A trial value that prunes nothing, finite so that 0 * BIG is 0."""
TOO_MUCH = 2
"""Status of a walk that would hold more words than allowed."""
ROOM = 4096
"""Ideals for which there is room at first; when they are more, as many as the budget allows. Untouched memory is free."""
CUTS = 12
"""Entries of a cut per ideal for which there is room then."""


@dataclass(frozen=True)
class Family:
    """Ideals with their prices; see ``kernels.solve_family`` for the meaning of each array. ``complete``: it holds every
    ideal that a plan of load at most ``trial`` can use. ``visited``: ideals walked over to find them. ``sums`` and ``marks``
    are of the node columns and tensor columns of ``tables``."""

    bits: np.ndarray[Any, np.dtype[np.uint64]]
    sums: Floats
    marks: Floats
    cut_start: Ints
    cut_end: Ints
    cut: np.ndarray[Any, np.dtype[np.int32]]
    trial: float
    complete: bool
    visited: int

    @property
    def size(self) -> int:
        return len(self.bits)

    @property
    def weight(self) -> Floats:
        return np.ascontiguousarray(self.sums[:, 0])

    def only(self, kept: Ints) -> Family:
        """The ideals at the positions ``kept``, ascending; what is left may miss some that a plan can use."""
        return replace(
            self,
            bits=np.ascontiguousarray(self.bits[kept]),
            sums=np.ascontiguousarray(self.sums[kept]),
            marks=np.ascontiguousarray(self.marks[kept]),
            cut_start=self.cut_start[kept],
            cut_end=self.cut_end[kept],
            complete=False,
        )


def possible(tables: Tables, family: Family, trial: float) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """``[N, S + 1]``: the states in which an ideal may be a boundary at ``trial``; last, whether there is one."""
    from passes.stages.lattice import kernels

    allowed = np.empty((family.size, len(tables.states.used) + 1), np.bool_)
    kernels.possible_states(
        trial,
        tables.slack,
        tables.apart,
        family.sums,
        family.marks,
        (tables.at_supports, tables.at_marks, tables.at_weights),
        tables.support_total,
        tables.states.ahead,
        tables.states.behind,
        tables.states.with_ahead,
        tables.states.with_behind,
        float(tables.own_weights.sum()),
        tables.states.room_ahead,
        tables.states.room_behind,
        allowed,
    )
    return allowed


def _sorted(tables: Tables, family: Family) -> Family:
    """The ideals that some state allows, by weight, then by size; the first and the last in any case."""
    kept = possible(tables, family, family.trial)[:, -1]
    size = np.bitwise_count(family.bits) @ np.ones(family.bits.shape[1], np.int64)
    kept |= (size == 0) | (size == tables.problem.size)
    chosen = np.flatnonzero(kept)
    order = chosen[np.lexsort((size[chosen], family.sums[chosen, 0]))]
    return replace(family.only(order), complete=family.complete)


def _walk(
    tables: Tables, trial: float, band: int | None, max_visits: int, max_words: int, room: int, entries: int
) -> tuple[Stored, tuple[int, int, int, int]]:
    """``walk_kernels.enumerate_ideals`` with room for so many ideals and entries of their cuts: what is stored and returned."""
    from passes.stages.lattice import walk_kernels

    n, tensors = tables.problem.size, len(tables.pins)
    low, high = tables.windows(trial)
    first = np.zeros(64 * ((n + 63) // 64), np.bool_)
    first[:n] = tables.indegree == 0
    here = Here(
        inside=np.zeros((n + 63) // 64, np.uint64),
        ready=np.packbits(first, bitorder="little").view(np.uint64),
        opened=np.zeros((tensors + 63) // 64, np.uint64),
        missing=tables.indegree.copy(),
        held=np.zeros(tensors, np.int64),
    )
    stored = Stored(
        bits=np.zeros((room, max(1, (n + 63) // 64)), np.uint64),
        sums=np.empty((room, tables.node_columns.shape[1])),
        marks=np.empty((room, tables.tensor_columns.shape[1])),
        cut_ptr=np.zeros(room + 1, np.int64),
        cut=np.empty(entries, np.int32),
    )
    limits = Limits(low, high, n if band is None else band, max_visits, max_words, tables.words_per_ideal)
    ended = walk_kernels.enumerate_ideals(tables.graph, limits, here, stored)
    did("ideal", ended[1])
    return stored, ended


def count_ideals(tables: Tables, trial: float, most: int) -> int | None:
    """Ideals walked over to find those that can be boundaries of a plan of load at most ``trial``; None when over ``most``."""
    _, (status, visited, _, _) = _walk(tables, trial, None, most, 1 << 62, 0, 0)
    return visited if status == 0 else None


def lattice(
    tables: Tables, trial: float, *, band: int | None = None, max_visits: int = 10**7, max_words: int = 10**7
) -> Family | None:
    """Every ideal that can be a boundary of a plan of load at most ``trial``; None when over budget: ``max_visits`` ideals
    walked over, ``max_words`` 8-byte words held by the family and the programme over it. With ``band``, only those in which
    no node is in while one more than ``band`` places before it is out: near the problem's own order."""
    most = max_words // tables.words_per_ideal + 1
    for room in sorted({min(ROOM, most), most}):
        words = max_words if room == most else room * tables.words_per_ideal
        stored, (status, visited, count, entries) = _walk(tables, trial, band, max_visits, words, room, CUTS * room)
        if status != TOO_MUCH:
            break
    if status:
        return None
    if entries > len(stored.cut):
        stored, _ = _walk(tables, trial, band, max_visits, max_words, count, entries)
    bits, sums, marks, cut_ptr, cut = stored
    complete = band is None or band >= tables.problem.size
    start, end = cut_ptr[:count], cut_ptr[1 : count + 1]
    return _sorted(tables, Family(bits[:count], sums[:count], marks[:count], start, end, cut, trial, complete, visited))


def prefixes(tables: Tables, order: Iterable[int], trial: float) -> Family:
    """The prefixes of a topological order that can be boundaries of a plan of load at most ``trial``."""
    n = tables.problem.size
    walked = np.fromiter(order, np.int64, n)
    place = np.empty(n, np.int64)
    place[walked] = np.arange(n)
    bits = np.zeros((n + 1, max(1, (n + 63) // 64)), np.uint64)
    added = np.arange(1, n + 1)
    bits[added, walked >> 6] = np.uint64(1) << (walked & 63).astype(np.uint64)
    np.bitwise_or.accumulate(bits, axis=0, out=bits)
    sums = np.zeros((n + 1, tables.node_columns.shape[1]))
    np.cumsum(tables.node_columns[walked], axis=0, out=sums[1:])
    # The prefixes after the first node of a tensor and before its last cut it.
    first, last = np.zeros((2, len(tables.pins)), np.int64)
    if len(tables.pins):
        first = np.minimum.reduceat(place[tables.pin], tables.pin_ptr[:-1])
        last = np.maximum.reduceat(place[tables.pin], tables.pin_ptr[:-1])
    lengths = last - first
    tensor = np.repeat(np.arange(len(lengths)), lengths)
    prefix = np.arange(len(tensor)) - np.repeat(np.cumsum(lengths) - lengths, lengths) + first[tensor] + 1
    cut_ptr, cut = grouped(prefix, tensor, n + 1)
    prefix = np.repeat(np.arange(n + 1), np.diff(cut_ptr))
    columns = [np.bincount(prefix, weights=column[cut], minlength=n + 1) for column in tables.tensor_columns.T]
    marks: Floats = np.column_stack(columns).astype(np.float64)
    family = Family(bits, sums, marks, cut_ptr[:-1], cut_ptr[1:], cut.astype(np.int32), trial, False, n + 1)
    return _sorted(tables, family)


def among(tables: Tables, ideals: np.ndarray[Any, np.dtype[np.bool_]], trial: float) -> Family:
    """The ideals that are rows of ``ideals[N, n]``, each once, that can be boundaries of a plan of load at most ``trial``."""
    words = max(1, (tables.problem.size + 63) // 64)
    packed = np.zeros((len(ideals), 8 * words), np.uint8)
    packed[:, : (tables.problem.size + 7) // 8] = np.packbits(ideals, axis=1, bitorder="little")
    first = np.unique(packed.view(np.uint64), axis=0, return_index=True)[1]
    bits, rows = np.ascontiguousarray(packed[first]).view(np.uint64), ideals[first]
    inside = np.zeros((len(rows), len(tables.pins)), np.int64)
    if len(tables.pins):
        inside = np.add.reduceat(rows[:, tables.pin], tables.pin_ptr[:-1], axis=1, dtype=np.int64)
    ideal, tensor = np.nonzero((inside > 0) & (inside < tables.pins))
    start = np.searchsorted(ideal, np.arange(len(rows) + 1))
    sums = rows.astype(np.float64) @ tables.node_columns
    marks = ((inside > 0) & (inside < tables.pins)).astype(np.float64) @ tables.tensor_columns
    cut = tensor.astype(np.int32)
    return _sorted(tables, Family(bits, sums, marks, start[:-1], start[1:], cut, trial, False, len(rows)))


def members(tables: Tables, bits: Any) -> tuple[int, ...]:
    """Nodes of one ideal (or difference of two), ascending."""
    flags = np.unpackbits(np.ascontiguousarray(bits).view(np.uint8), bitorder="little")[: tables.problem.size]
    return tuple(np.flatnonzero(flags).tolist())
