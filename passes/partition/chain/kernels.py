"""The compiled loops of the dynamic programmes over sequences of stages and over units."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from passes.partition.layouts.problem.problem import Floats
from passes.solvers.kernels import compiled, part

SLOWEST, SUM, COUNT = 0, 1, 2
"""What is minimised: the largest seconds of a stage, their sum, the number of stages."""


@compiled
def programme(
    goal: int,
    limit: float,
    gaps: bool,
    blocks: NDArray[np.int32],
    seconds: Floats,
    least: Floats,
    value: Floats,
    way: NDArray[np.int32],
) -> int:
    """Finds the best plans that end at each place with so many stages; how many tables of blocks were gone through.

    ``blocks``, in the order of the second column: of each its first place, the one behind it, its shape, and its tables (-1:
    there is no such stage beside it) with no alike stage beside it, one behind, one before, both. ``seconds[table, i, j]``: of
    a stage, at most ``limit``; ``least[table, i, j]``: of those from j on. Fills ``value[stages, place, shape, alike, units]``,
    given as inf: the best, by the shape of its last stage (the last shape is that of the start) and whether the next one is
    alike; and ``way`` at the same places: the number of its last block, where its run begins, and the shape of the stage
    before, plus the number of shapes where that is alike. With any number of stages there is one layer, which reads itself."""
    layers, places, shapes, _, units = value.shape
    units -= 1
    count, none, chosen = 0, np.empty(units + 1), np.empty(units + 1, np.int32)
    for place in range(places if layers > 1 else 1):
        value[0, place, shapes - 1, 0, 0] = 0.0
    for layer in range(1 if layers > 1 else 0, layers):
        below, number = max(layer - 1, 0), 0
        for place in range(1, places):
            if gaps:
                _copy(value[layer, place - 1], way[layer, place - 1], value[layer, place], way[layer, place])
            else:
                value[layer, place, shapes - 1, 0, 0] = value[layer, 0, shapes - 1, 0, 0]
            while number < len(blocks) and blocks[number, 1] <= place:
                shape, source = blocks[number, 2], value[below, blocks[number, 0]]
                for other in range(2):  # after a stage that is alike, and after any other
                    ahead = source[shape, 1]
                    chosen[:] = shape + shapes
                    if other:
                        ahead = none
                        ahead[:], chosen[:] = np.inf, 0
                        for before in range(shapes):
                            for i in range(units + 1):
                                if before != shape and source[before, 0, i] < ahead[i]:
                                    ahead[i], chosen[i] = source[before, 0, i], before
                    reached = False
                    for i in range(units):
                        reached |= ahead[i] < np.inf
                    if not reached:
                        continue
                    for behind in range(2):
                        table = blocks[number, 3 + 2 * (1 - other) + behind]
                        if table >= 0:
                            rows = value[layer, place, shape, behind], way[layer, place, shape, behind]
                            _advance(goal, limit, ahead, seconds[table], least[table], chosen, number, *rows)
                            count += 1
                number += 1
    return count


@part
def _copy(value: Floats, way: NDArray[np.int32], to_value: Floats, to_way: NDArray[np.int32]) -> None:
    """Writes the values and ways of one place to another: an array assigned to a part of an array compiles for seconds."""
    for shape in range(value.shape[0]):
        for alike in range(value.shape[1]):
            for i in range(value.shape[2]):
                to_value[shape, alike, i] = value[shape, alike, i]
                for k in range(way.shape[3]):
                    to_way[shape, alike, i, k] = way[shape, alike, i, k]


@part
def _advance(
    goal: int,
    limit: float,
    ahead: Floats,
    table: Floats,
    least: Floats,
    came: NDArray[np.int32],
    number: int,
    value: Floats,
    way: NDArray[np.int32],
) -> None:
    """One more stage, on block ``number``: from plans of i units worth ``ahead[i]``, whose last stage has the shape
    ``came[i]``, to those of j, where they are better than ``value[j]``."""
    units = len(table)
    for i in range(units):
        if not ahead[i] < np.inf:
            continue
        for j in range(i + 1, units + 1):
            if not least[i, j] <= limit:
                break
            seconds = table[i, j]
            if not seconds <= limit:
                continue
            if goal == SLOWEST:
                found = max(ahead[i], seconds)
            elif goal == SUM:
                found = ahead[i] + seconds
            else:
                found = ahead[i] + 1.0
            if found < value[j]:
                value[j], way[j, 0], way[j, 1], way[j, 2] = found, number, i, came[i]


@compiled
def through(rows: Floats, table: Floats) -> Floats:
    """The (min, +) product of ``rows[i, p]`` and ``table[p, q]``."""
    found = np.full((len(rows), table.shape[1]), np.inf)
    for i in range(len(rows)):
        for p in range(table.shape[0]):
            before = rows[i, p]
            if before < np.inf:
                for q in range(table.shape[1]):
                    found[i, q] = min(found[i, q], before + table[p, q])
    return found


__all__ = ["COUNT", "SLOWEST", "SUM", "programme", "through"]
