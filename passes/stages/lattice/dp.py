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

from passes.solvers.work import did
from passes.stages.lattice.ideals import Family, members, possible
from passes.stages.lattice.kernel_arrays import Aim, Devices, Held, Ideals, Table, Tensors
from passes.stages.lattice.tables import Tables

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
    from passes.stages.lattice import kernels

    count = family.size
    ideals = _ideals(tables, family, sides, possible(tables, family, trial) if allowed is None else allowed)
    tensors, devices, held = _arrays(tables)
    table = _table(count, len(tables.states.used), len(tables.problem.kinds))
    most, least = trial * (1.0 + tables.slack), -1.0 if additive else floor
    aim = Aim(most, least, tables.mode, additive, np.array(sides[:2]), np.array(sides[2:]), tables.slack)
    ideal, tested, priced = 1, 0, 0
    while ideal < count:
        ideal, tests, prices = kernels.solve_family(aim, ideals, tensors, devices, held, ideal, SLICE, table)
        tested, priced = tested + int(tests), priced + int(prices)
        did("tested", int(tests))
        did("transition", int(prices))
        if ideal < count and not keep_on(tested, ideal / count):
            return Found(None, float("inf"), tested, priced, False)
    value, stages = _plan(tables, family, table)
    return Found(stages, value, tested, priced)


def _ideals(tables: Tables, family: Family, sides: tuple[float, ...], allowed: np.ndarray[Any, np.dtype[np.bool_]]) -> Ideals:
    """The family as the kernel takes it; ``sides``: as for ``solve_family``."""
    kinds, classes, sums, marks = len(tables.problem.kinds), len(tables.transfer), family.sums, family.marks
    compute = np.ascontiguousarray(sums[:, 1 : tables.at_lacking])
    boundary = np.ascontiguousarray(marks[:, : tables.lanes * classes])
    if tables.lanes == 1:
        busy, moving = compute[:, :kinds], boundary[:, tables.port]
    else:
        parts = compute.reshape(family.size, -1, kinds), boundary.reshape(family.size, tables.lanes, classes)[:, :, tables.port]
        weights = np.array(sides[: parts[0].shape[1]])
        busy, moving = weights @ parts[0], np.array(sides[:2]) @ parts[1]
    return Ideals(
        bits=family.bits,
        weight=family.weight,
        compute=compute,
        lacking=np.ascontiguousarray(sums[:, tables.at_lacking : tables.at_weights]),
        boundary=boundary,
        busy=np.ascontiguousarray(busy),
        moving=np.ascontiguousarray(moving),
        bytes_before=np.ascontiguousarray(marks[:, tables.at_bytes]),
        own_before=np.rint(sums[:, tables.at_weights]).astype(np.int64),
        turns=np.ascontiguousarray(sums[:, tables.at_turns : tables.at_supports]),
        cut_start=family.cut_start,
        cut_end=family.cut_end,
        cut=family.cut,
        allowed=allowed,
    )


def _arrays(tables: Tables) -> tuple[Tensors, Devices, Held]:
    """The problem as the kernel takes it."""
    tensors = Tensors(
        tables.pin_ptr,
        tables.pin,
        tables.lane_in,
        tables.lane_out,
        tables.transfer,
        tables.tensor_bytes,
        tables.forced,
        tables.turn_cost,
        tables.turn_side,
    )
    devices = Devices(tables.port, tables.price, tables.limit, tables.handover, *tables.states.before, tables.states.idle)
    live = tables.problem.live
    most = int(tables.shared_bytes.sum()) + int(live.max(initial=0))
    return tensors, devices, Held(tables.shared_ptr, tables.shared, tables.shared_bytes, live, most)


def _table(count: int, states: int, kinds: int) -> Table:
    """The table with the empty ideal reached."""
    table = Table(
        value=np.full((count, states), np.inf),
        parent=np.full((count, states), -1, np.int32),
        via=np.full((count, states), -1, np.int16),
        link=np.full((count, states), -1, np.int32),
        head=np.full(states, -1, np.int32),
        stamp=np.full(count, -1, np.int32),
        memo=np.empty((count, kinds)),
        priced_at=np.full(count, -1, np.int32),
        raw=np.empty((count, kinds)),
    )
    table.value[0, 0] = 0.0
    table.head[0] = 0
    return table


def _plan(tables: Tables, family: Family, table: Table) -> tuple[float, Stages | None]:
    """The least value of the full ideal and its stages; inf and None where it was not reached."""
    states = tables.states
    last = np.where(states.final, table.value[-1], np.inf)
    least = last.min()
    if not np.isfinite(least):
        return float("inf"), None
    ties = np.flatnonzero(last <= least * (1 + 1e-12))
    state = int(ties[np.lexsort((ties, states.used[ties]))[0]])
    stages: list[tuple[int, tuple[int, ...]]] = []
    here = family.size - 1
    while here > 0:
        before, kind = int(table.parent[here, state]), int(table.via[here, state])
        stages.append((kind, members(tables, family.bits[here] & ~family.bits[before])))
        # Of the states that lead here, the first of least value: it is one that the programme came from, or as good.
        sources = np.flatnonzero(states.next[:, kind] == state)
        state = int(sources[table.value[before, sources].argmin()])
        here = before
    return float(least), tuple(reversed(stages))
