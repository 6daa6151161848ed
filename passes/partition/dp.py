"""The dynamic programme over a family of ideals: from a trial value to stages.

``solve_family`` finds the least possible largest load among plans whose boundaries are ideals of the family and in which
no stage costs more than the family's trial value. With a complete family, "nothing found" proves that the optimum is
larger than the trial value, and something found is the optimum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from passes.partition.ideals import Family, Tables, members

Stages: TypeAlias = tuple[tuple[int, tuple[int, ...]], ...]
"""Stages in pipeline order: kind, nodes."""


@dataclass(frozen=True)
class Found:
    """The best plan of a family (``stages`` is None when there is none at most the trial value), and pairs of ideals tested
    for inclusion and priced in full. ``complete``: the family was searched to its end."""

    stages: Stages | None
    value: float
    tested: int
    priced: int
    complete: bool = True


def solve_family(tables: Tables, family: Family, trial: float, max_tests: int = 10**10) -> Found:
    """Exact over the family unless more than ``max_tests`` pairs would be tested; ties go to fewer devices, then to the
    first found, deterministically."""
    from passes.partition import kernels

    price = tables.price
    complete, value, parent, via, tested, priced = kernels.solve_family(
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
        tables.states.next,
        tables.states.ahead,
        tables.states.behind,
        float(price.max()),
        tables.slack,
        tables.limit,
        family.weights_before,
        tables.shared_ptr,
        tables.shared,
        tables.shared_bytes,
        tables.problem.live,
        tables.forced,
        max_tests,
    )
    if not complete:
        return Found(None, float("inf"), int(tested), int(priced), False)
    last = np.where(tables.states.final, value[-1], np.inf)
    least = last.min()
    if not np.isfinite(least):
        return Found(None, float("inf"), int(tested), int(priced))
    ties = np.flatnonzero(last <= least * (1 + 1e-12))
    state = int(ties[np.lexsort((ties, tables.states.used[ties]))[0]])
    stages: list[tuple[int, tuple[int, ...]]] = []
    ideal = family.size - 1
    while ideal > 0:
        before, kind = int(parent[ideal, state]), int(via[ideal, state])
        stages.append((kind, members(tables, family.bits[ideal] & ~family.bits[before])))
        state = int(np.flatnonzero(tables.states.next[:, kind] == state)[0])
        ideal = before
    return Found(tuple(reversed(stages)), float(least), int(tested), int(priced))


__all__ = ["Found", "Stages", "solve_family"]
