"""The best sequence of stages, given what each run of units costs on each block: dynamic programmes.

A plan cuts the units into runs and gives them blocks of devices, both in order; devices may stay idle. What a stage pays for
what crosses depends on whether the stage beside it has the same mesh shape (``alike``: parts cross as they lie) or not. So a
state is (stages used, devices used, units done, shape of the last stage, whether the next is alike): ``least`` minimises the
largest seconds of a stage, in O(blocks * units^2), ``shortest`` the sum of the stages' seconds among plans whose stages stay
below a limit. The number of stages may be fixed.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from passes.model.work import did, now
from passes.shard.problem.problem import Floats
from passes.shard.stages.submeshes import Block, Submeshes


@dataclass(frozen=True, slots=True)
class Table:
    """``seconds[i, j]`` of the run of units i .. j - 1, inf where it cannot be; ``least[i, j]`` of ``seconds[i, j:]``."""

    seconds: Floats
    least: Floats

    @classmethod
    def of(cls, seconds: Floats) -> Table:
        return cls(seconds, np.minimum.accumulate(seconds[:, ::-1], axis=1)[:, ::-1])


Tables: TypeAlias = Callable[[Block, bool, bool], Table]
"""Of the runs on a block, given whether there are stages before and behind it that are alike."""


STEP = 5e-4
"""Relative: how near two limits on a stage's seconds may lie."""
MOST_HALVED = 40
"""Intervals of such limits that are looked into."""


@dataclass(frozen=True, slots=True)
class StageRun:
    """Units ``first .. behind - 1`` on a block."""

    first: int
    behind: int
    block: Block


@dataclass(frozen=True, slots=True)
class Sequenced:
    """``value``: what was minimised; inf, without runs, where nothing fits. ``fastest``: where that is the seconds of a step,
    the plan whose slowest stage is the quickest."""

    value: float
    runs: tuple[StageRun, ...]
    fastest: tuple[StageRun, ...] = ()


def alike(runs: Sequence[StageRun]) -> list[tuple[bool, bool]]:
    """Of each stage of a plan, whether there are stages before and behind it of the same shape."""
    shapes = [run.block.mesh.sizes for run in runs]
    same = [False, *(one == two for one, two in pairwise(shapes)), False]
    return list(pairwise(same))


def least(
    tables: Tables, meshes: Submeshes, units: int, stages: int = 0, *, gaps: bool = True, limit: float = math.inf
) -> Sequenced:
    """Least largest seconds; ``stages``: exactly so many, 0 for any; ``gaps``: whether devices may stay idle between stages,
    and not only before the first and behind the last; ``limit``: nothing is found above."""
    return _programme(tables, meshes, units, stages, "slowest", limit, gaps)


def slowest(tables: Tables, runs: Sequence[StageRun]) -> float:
    """Seconds of the slowest stage of a plan."""
    sides = zip(runs, alike(runs), strict=True)
    return max(float(tables(run.block, *side).seconds[run.first, run.behind]) for run, side in sides)


def shortest(tables: Tables, meshes: Submeshes, units: int, limit: float, stages: int = 0, *, gaps: bool = True) -> Sequenced:
    """Least sum of seconds of stages that each take at most ``limit``."""

    return _programme(tables, meshes, units, stages, "sum", limit, gaps)


@dataclass(slots=True)
class _Cell:
    """All plans that end at one device, with so many stages: ``value[shape, alike, units]``, and of the best one the number of
    its last block, where its run begins, and the shape of the stage before (plus the number of shapes where that is alike)."""

    value: Floats
    block: NDArray[np.int32]
    start: NDArray[np.int32]
    shape: NDArray[np.int32]

    @classmethod
    def empty(cls, shapes: int, units: int) -> _Cell:
        size = (shapes, 2, units + 1)
        block, start, shape = (np.full(size, -1, np.int32) for _ in range(3))
        return cls(np.full(size, math.inf), block, start, shape)


def flush(
    tables: Tables,
    meshes: Submeshes,
    units: int,
    microbatches: int,
    stages: int = 0,
    until: float = math.inf,
    step: float = STEP,
    known: Sequenced | None = None,
) -> Sequenced:
    """Least seconds of a step that fills the stages, runs ``microbatches`` and drains: ``(microbatches + stages - 1)`` times
    the slowest. ``value`` is a bound of that, within ``step`` of the plan unless the time ``until`` (of
    ``now``) was over or there were too many intervals. ``known``: what was found with tables that were nowhere
    above these.

    Plans whose slowest stage lies in ``(low, high]`` have at least as many stages as are needed below ``high``, which bounds
    them; the interval with the least bound is halved, until it is narrow or near the best plan."""
    limit = slowest(tables, known.fastest) if known is not None and known.fastest else math.inf
    fastest = least(tables, meshes, units, stages, limit=limit)
    if not fastest.runs:
        return fastest
    if stages:
        return replace(fastest, value=fastest.value * (microbatches + stages - 1))

    def fewest(limit: float) -> tuple[StageRun, ...]:
        return _programme(tables, meshes, units, 0, "count", limit, True).runs

    def worth(runs: Sequence[StageRun]) -> float:
        return (microbatches + len(runs) - 1) * slowest(tables, runs)

    near = fastest.value * (1 + step)
    low = fewest(near)
    best = min((low, fastest.runs, *((known.runs,) if known is not None else ())), key=worth)
    under = known.value if known is not None else 0.0

    def interval(low: float, high: float, few: int) -> tuple[float, float, float, int]:
        return low * (microbatches + few - 1), low, high, few

    # Above the last of the intervals every plan is worse than the best, whatever its number of stages.
    intervals = [interval(fastest.value, near, len(low)), interval(near, max(near, worth(best) / microbatches), 1)]
    heapq.heapify(intervals)
    for left in reversed(range(MOST_HALVED)):
        bound, start, end, few = intervals[0]
        bound = min(max(bound, under), worth(best))
        if worth(best) <= bound * (1 + step) or end <= start * (1 + step) or not left or now() > until:
            break
        middle = math.sqrt(start * end)
        found = fewest(middle)
        best = min((best, found), key=worth)
        heapq.heapreplace(intervals, interval(start, middle, len(found)))
        heapq.heappush(intervals, interval(middle, end, few))
    return Sequenced(bound, best, fastest.runs)


def _programme(
    tables: Tables,
    meshes: Submeshes,
    units: int,
    stages: int,
    goal: Literal["slowest", "sum", "count"],
    limit: float,
    gaps: bool,
) -> Sequenced:
    """``limit``: seconds of a stage at most."""
    from passes.shard.stages.kernels import COUNT, SLOWEST, SUM, advance

    number_of = {"slowest": SLOWEST, "sum": SUM, "count": COUNT}[goal]
    # With any number of stages there is one layer, which reads itself.
    numbers: dict[tuple[int, ...], int] = {}
    shapes = [numbers.setdefault(block.mesh.sizes, len(numbers)) for block in meshes.blocks]
    by_end: dict[int, list[int]] = {}
    for number, block in enumerate(meshes.blocks):
        by_end.setdefault(block.behind, []).append(number)
    places = sorted({0, meshes.devices, *(block.first for block in meshes.blocks), *by_end})
    # The start, with no units done, has a shape of its own.
    count = len(numbers) + 1
    cells = {(layer, 0): _Cell.empty(count, units) for layer in range(stages + 1)}
    cells[0, 0].value[-1, 0, 0] = 0.0
    for layer in range(1, stages + 1) if stages else range(1):
        below = layer - 1 if stages else 0
        for previous, d in pairwise(places):
            if stages and below == 0:
                cells.setdefault((0, d), cells[0, 0])
            if gaps:
                cell = cells[layer, d] = _copy(cells[layer, previous])
            else:
                cell = cells[layer, d] = _Cell.empty(count, units)
                cell.value[-1, 0, 0] = cells[layer, 0].value[-1, 0, 0]
            for number in by_end.get(d, ()):
                block, shape = meshes.blocks[number], shapes[number]
                source = cells[below, block.first].value
                others = source[:, 0].copy()
                others[shape] = np.inf
                same = np.full(units + 1, shape + count, np.int32)  # alike
                ways = ((source[shape, 1], same), (others.min(axis=0), others.argmin(axis=0).astype(np.int32)))
                for before, (ahead, came) in zip((True, False), ways, strict=True):
                    if not np.isfinite(ahead[:units]).any():
                        continue
                    for behind in (False, True):
                        at = (shape, int(behind))
                        table = tables(block, before, behind)
                        rows = (cell.value[at], cell.block[at], cell.start[at], cell.shape[at])
                        advance(number_of, limit, ahead, table.seconds, table.least, came, number, *rows)
                        did("run", units**2)
    return _traced(cells, meshes, stages, units, count, places)


def _copy(cell: _Cell) -> _Cell:
    return _Cell(cell.value.copy(), cell.block.copy(), cell.start.copy(), cell.shape.copy())


def _traced(
    cells: dict[tuple[int, int], _Cell], meshes: Submeshes, stages: int, units: int, shapes: int, places: Sequence[int]
) -> Sequenced:
    """The best plan, from its last stage to its first; ``places``: numbers of devices that have a cell."""
    ends = np.array([cells[stages, d].value[:, 0, units] for d in places])
    total = float(ends.min())
    if not math.isfinite(total):
        return Sequenced(total, ())
    place, shape = (int(number) for number in np.unravel_index(ends.argmin(), ends.shape))
    d = places[place]
    layer, j, alike = stages, units, 0
    runs: list[StageRun] = []
    while j:
        cell = cells[layer, d]
        block, i = meshes.blocks[int(cell.block[shape, alike, j])], int(cell.start[shape, alike, j])
        runs.append(StageRun(i, j, block))
        alike, shape = divmod(int(cell.shape[shape, alike, j]), shapes)
        j, d, layer = i, block.first, max(layer - 1, 0)
    return Sequenced(total, tuple(reversed(runs)))


__all__ = ["STEP", "Sequenced", "StageRun", "Table", "Tables", "alike", "flush", "least", "shortest", "slowest"]
