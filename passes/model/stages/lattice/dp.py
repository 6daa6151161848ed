"""The dynamic programme over a family of ideals: from a trial value to stages.

``solve_family`` finds the least possible largest load among plans whose boundaries are ideals of the family and in which
no stage costs more than the trial value. With a complete family, "nothing found" proves that the optimum is
larger than the trial value, and something found is the optimum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from passes.model.stages.lattice.ideals import Family, Tables, members, possible
from passes.model.work import did

Stages: TypeAlias = tuple[tuple[int, tuple[int, ...]], ...]
"""Stages in pipeline order: kind, nodes."""


KeepOn: TypeAlias = Callable[[int, float], bool]
"""Whether to go on, given the pairs tested and the part done."""
SLICE = 500_000
"""Pairs between two questions: up to a tenth of a second."""
FREE = 1.0, 1.0, np.inf, np.inf, np.inf
"""Shares of the two sides of a load, the most of each, and of both."""


@dataclass(frozen=True)
class Found:
    """The best plan of a family (``stages`` is None when there is none at most the trial value), and pairs of ideals tested
    for inclusion and priced in full. ``complete``: the family was searched to its end."""

    stages: Stages | None
    value: float
    tested: int
    priced: int
    complete: bool = True


def solve_family(
    tables: Tables,
    family: Family,
    trial: float,
    keep_on: KeepOn = lambda tested, part: True,
    additive: bool = False,
    floor: float = 0.0,
    sides: tuple[float, float, float, float, float] = FREE,
    allowed: np.ndarray[Any, np.dtype[np.bool_]] | None = None,
) -> Found:
    """The least largest load at most ``trial``; with ``additive``, the least sum of transfers of a plan of load at most that.

    Exact over the family, unless ``keep_on`` stops it: that is asked every few hundred thousand pairs, with the pairs tested so
    far and the part of the ideals done. Loads up to ``floor`` count as equally good. ``sides``, for loads of two sides: their
    shares in what is minimised, the most of each and of both. ``allowed``: ``possible`` at the trial value, where that is
    known. Ties go to fewer devices, then to the first found, deterministically."""
    from passes.model.stages.lattice import kernels

    states, problem = tables.states, tables.problem
    count, kinds, classes = family.size, len(problem.kinds), len(tables.transfer)
    value = np.full((count, len(states.used)), np.inf)
    parent = np.full(value.shape, -1, np.int32)
    via = np.full(value.shape, -1, np.int16)
    link = np.full(value.shape, -1, np.int32)
    head = np.full(len(states.used), -1, np.int32)
    stamp, memo = np.full(count, -1, np.int32), np.empty((count, kinds))
    priced_at, raw = np.full(count, -1, np.int32), np.empty((count, kinds))
    value[0, 0] = 0.0
    head[0] = 0
    sums, marks = family.sums, family.marks
    weight = family.weight
    compute = np.ascontiguousarray(sums[:, 1 : tables.at_lacking])
    lacking = np.ascontiguousarray(sums[:, tables.at_lacking : tables.at_weights])
    boundary = np.ascontiguousarray(marks[:, : tables.lanes * classes])
    received = np.ascontiguousarray(marks[:, tables.at_bytes])
    if tables.lanes == 1:
        busy, moving = compute[:, :kinds], boundary[:, tables.port]
    else:
        parts = compute.reshape(count, -1, kinds), boundary.reshape(count, tables.lanes, classes)[:, :, tables.port]
        weights = np.array(sides[: parts[0].shape[1]])
        busy, moving = weights @ parts[0], np.array(sides[:2]) @ parts[1]
    own = np.rint(sums[:, tables.at_weights]).astype(np.int64)
    turns = np.ascontiguousarray(sums[:, tables.at_turns : tables.at_supports])
    if allowed is None:
        allowed = possible(tables, family, trial)
    shares, caps = np.array(sides[:2]), np.array(sides[2:])
    ideal, tested, priced = 1, 0, 0
    while ideal < count:
        ideal, tests, prices = kernels.solve_family(
            trial,
            -1.0 if additive else floor,
            tables.mode,
            additive,
            shares,
            caps,
            family.bits,
            weight,
            compute,
            lacking,
            boundary,
            np.ascontiguousarray(busy),
            np.ascontiguousarray(moving),
            received,
            own,
            turns,
            tables.turn_cost,
            tables.turn_side,
            family.cut_start,
            family.cut_end,
            family.cut,
            allowed,
            tables.pin_ptr,
            tables.pin,
            tables.lane_in,
            tables.lane_out,
            tables.transfer,
            tables.port,
            tables.price,
            *states.before,
            states.idle,
            tables.slack,
            tables.limit,
            tables.tensor_bytes,
            tables.shared_ptr,
            tables.shared,
            tables.shared_bytes,
            problem.live,
            tables.forced,
            ideal,
            SLICE,
            value,
            parent,
            via,
            link,
            head,
            stamp,
            memo,
            priced_at,
            raw,
        )
        tested, priced = tested + int(tests), priced + int(prices)
        did("tested", int(tests))
        did("transition", int(prices))
        if ideal < count and not keep_on(tested, ideal / count):
            return Found(None, float("inf"), tested, priced, False)
    last = np.where(states.final, value[-1], np.inf)
    least = last.min()
    if not np.isfinite(least):
        return Found(None, float("inf"), tested, priced)
    ties = np.flatnonzero(last <= least * (1 + 1e-12))
    state = int(ties[np.lexsort((ties, states.used[ties]))[0]])
    stages: list[tuple[int, tuple[int, ...]]] = []
    here = count - 1
    while here > 0:
        before, kind = int(parent[here, state]), int(via[here, state])
        stages.append((kind, members(tables, family.bits[here] & ~family.bits[before])))
        # Of the states that lead here, the first of least value: it is one that the programme came from, or as good.
        sources = np.flatnonzero(states.next[:, kind] == state)
        state = int(sources[value[before, sources].argmin()])
        here = before
    return Found(tuple(reversed(stages)), float(least), tested, priced)


__all__ = ["SLICE", "Found", "KeepOn", "Stages", "solve_family"]
