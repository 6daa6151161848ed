"""The dynamic programme over a family of ideals: from a trial value to stages.

``solve_family`` finds the least possible largest load among plans whose boundaries are ideals of the family and in which
no stage costs more than the family's trial value. With a complete family, "nothing found" proves that the optimum is
larger than the trial value, and something found is the optimum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from passes.partition.ideals import Family, Tables, members

Stages: TypeAlias = tuple[tuple[int, tuple[int, ...]], ...]
"""Stages in pipeline order: kind, nodes."""


KeepOn: TypeAlias = Callable[[int, float], bool]
"""Whether to go on, given the pairs tested and the part done."""
SLICE = 500_000
"""Pairs between two questions: up to a tenth of a second."""


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
) -> Found:
    """The least largest load at most ``trial``; with ``additive``, the least sum of transfers of a plan of load at most that.

    Exact over the family, unless ``keep_on`` stops it: that is asked every few million pairs, with the pairs tested so far and
    the part of the ideals done. Ties go to fewer devices, then to the first found, deterministically."""
    from passes.partition import kernels

    count, states = family.size, len(tables.states.used)
    value = np.full((count, states), np.inf)
    parent = np.full((count, states), -1, np.int32)
    via = np.full((count, states), -1, np.int8)
    low_state, high_state = np.full(count, states, np.int32), np.full(count, -1, np.int32)
    active = np.zeros(count, np.int32)
    value[0, 0] = 0.0
    low_state[0] = high_state[0] = 0
    ideal, actives, tested, priced = 1, 1, 0, 0
    while ideal < count:
        ideal, actives, tests, prices = kernels.solve_family(
            trial,
            family.bits,
            family.weight,
            family.compute,
            family.unsupported,
            family.boundary,
            family.cut_start,
            family.cut_end,
            family.cut,
            tables.problem.producer,
            tables.reader_ptr,
            tables.reader,
            tables.transfer,
            tables.port,
            tables.comm,
            additive,
            tables.states.next,
            tables.states.ahead,
            tables.states.behind,
            float(tables.price.max()),
            tables.slack,
            tables.limit,
            family.weights_before,
            tables.shared_ptr,
            tables.shared,
            tables.shared_bytes,
            tables.problem.live,
            tables.forced,
            ideal,
            SLICE,
            value,
            parent,
            via,
            low_state,
            high_state,
            active,
            actives,
        )
        tested, priced = tested + int(tests), priced + int(prices)
        if ideal < count and not keep_on(tested, ideal / count):
            return Found(None, float("inf"), tested, priced, False)
    last = np.where(tables.states.final, value[-1], np.inf)
    least = last.min()
    if not np.isfinite(least):
        return Found(None, float("inf"), tested, priced)
    ties = np.flatnonzero(last <= least * (1 + 1e-12))
    state = int(ties[np.lexsort((ties, tables.states.used[ties]))[0]])
    stages: list[tuple[int, tuple[int, ...]]] = []
    last_ideal = family.size - 1
    while last_ideal > 0:
        before, kind = int(parent[last_ideal, state]), int(via[last_ideal, state])
        stages.append((kind, members(tables, family.bits[last_ideal] & ~family.bits[before])))
        # Of the states that lead here, the first of least value: it is one that the programme came from, or as good.
        sources = np.flatnonzero(tables.states.next[:, kind] == state)
        state = int(sources[value[before, sources].argmin()])
        last_ideal = before
    return Found(tuple(reversed(stages)), float(least), tested, priced)


__all__ = ["Found", "Stages", "solve_family"]
