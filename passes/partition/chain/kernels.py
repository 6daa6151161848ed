"""The compiled loops of the dynamic programmes over sequences of stages and over units."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from passes.partition.layouts.problem.problem import Floats
from passes.solvers.kernels import compiled, part

SLOWEST, SUM, COUNT = 0, 1, 2
"""What is minimised: the largest seconds of a stage, their sum, the number of stages."""
ANY, OTHER, FRESH = 0, 2, 4
"""What the next stage is: any, where links to all are the same; not fresh; fresh (``Moves``). With 1 more: it is alike."""


class Moves(NamedTuple):
    """``pointer[s]``: where the moves from state s begin, of each the state that it leads to (``target``) and its ``block``;
    likewise ``idle`` states, in which more devices are idle. States have greater numbers than those that lead to them.
    ``fresh``: whether a move takes devices of untouched hosts alone. ``shape`` of each block, ``parts``: whether it tells a
    fresh stage behind it from others, which may be nearer, and ``tables[stage, block]`` (-1: there is no such stage; of any
    number of stages there is one row): 4 more with an alike stage before it, 2 more with one behind, 1 more with a fresh one
    behind.
    ``row[s, shape]``: number of the state with a last stage of that shape, -1 where there is none; the last shape is that of
    the start. ``follows[s, shape]``: whether a stage of that shape may be next."""

    pointer: NDArray[np.int32]
    target: NDArray[np.int32]
    block: NDArray[np.int32]
    fresh: NDArray[np.bool_]
    idle_pointer: NDArray[np.int32]
    idle: NDArray[np.int32]
    shape: NDArray[np.int32]
    parts: NDArray[np.bool_]
    tables: NDArray[np.int32]
    row: NDArray[np.int32]
    follows: NDArray[np.bool_]


@compiled
def neighbours(
    moves: NDArray[np.int32], idle: NDArray[np.int32], shape: NDArray[np.int32], states: int, shapes: int
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Of each state, which shapes the last stage may have (the start is a further one), and which the next. ``moves``: source,
    target and block, by source; ``idle``: source and target, by source."""
    last, following = np.zeros((states, shapes + 1), np.bool_), np.zeros((states, shapes + 1), np.bool_)
    last[0, shapes] = True
    move, pair = 0, 0
    for state in range(states):
        while move < len(moves) and moves[move, 0] == state:
            last[moves[move, 1], shape[moves[move, 2]]] |= last[state].any()
            move += 1
        while pair < len(idle) and idle[pair, 0] == state:
            last[idle[pair, 1]] |= last[state]
            pair += 1
    for state in range(states - 1, -1, -1):
        while move > 0 and moves[move - 1, 0] == state:
            move -= 1
            following[state, shape[moves[move, 2]]] = True
        while pair > 0 and idle[pair - 1, 0] == state:
            pair -= 1
            following[state] |= following[idle[pair, 1]]
    return last, following


@compiled
def programme(
    goal: int, limit: float, gaps: bool, moves: Moves, seconds: Floats, least: Floats, value: Floats, way: NDArray[np.int32]
) -> tuple[int, int]:
    """Finds the best plans that end in each state with so many stages; how many stages were looked at, and tables begun.

    ``seconds[table, i, j]``: of a stage, at most ``limit``; ``least[table, i, j]``: of those from j on. Fills
    ``value[stages, row, next, units]``, given as inf: the best, by what the next stage is; and ``way`` at the same places: the
    number of its last move, where its run begins, and the shape of the stage before, plus the number of shapes times what
    this stage was for that. With any number of stages there is one layer, which reads itself."""
    layers, units, shapes = value.shape[0], value.shape[3] - 1, moves.row.shape[1]
    best, whose = np.empty((2, 2, units + 1)), np.empty((2, 2, units + 1), np.int32)
    ahead, came = np.empty(units + 1), np.empty(units + 1, np.int32)
    value[0, moves.row[0, shapes - 1], 0, 0] = 0.0
    looked = begun = 0
    for layer in range(max(layers - 1, 1)):
        above = min(layer + 1, layers - 1)
        for state in range(len(moves.row)):
            for k in range(moves.idle_pointer[state], moves.idle_pointer[state + 1]):
                for shape in range(0 if gaps else shapes - 1, shapes):
                    if moves.row[state, shape] >= 0:
                        rows = moves.row[state, shape], moves.row[moves.idle[k], shape]
                        _copy(value[layer, rows[0]], way[layer, rows[0]], value[layer, rows[1]], way[layer, rows[1]])
            if moves.pointer[state] == moves.pointer[state + 1]:
                continue
            best[:], whose[:] = np.inf, -1
            for shape in range(shapes):
                if moves.row[state, shape] >= 0:
                    for fresh in range(2 if value.shape[2] > 2 else 1):
                        own = OTHER + 2 * fresh if value.shape[2] > 2 else ANY
                        _two_best(value[layer, moves.row[state, shape]], own, shape, shapes, best[fresh], whose[fresh])
            for move in range(moves.pointer[state], moves.pointer[state + 1]):
                block = moves.block[move]
                shape = moves.shape[block]
                fresh = int(moves.fresh[move]) if value.shape[2] > 2 else 0
                own = OTHER + 2 * fresh if value.shape[2] > 2 else ANY
                here, there = moves.row[state, shape], moves.row[moves.target[move], shape]
                for alike in range(2 if here >= 0 else 1):
                    rows = value[layer, max(here, 0)]
                    if not _before(alike, own, shape, shapes, rows, best[fresh], whose[fresh], ahead, came):
                        continue
                    for behind in range(2 if moves.follows[moves.target[move], shape] else 1):
                        for following in range(OTHER, FRESH + 1, 2) if moves.parts[block] else range(ANY, OTHER, 2):
                            table = moves.tables[layer, block, 4 * alike + 2 * behind + int(following == FRESH)]
                            if table >= 0:
                                rows_ = value[above, there, following + behind], way[above, there, following + behind]
                                looked += _advance(goal, limit, ahead, seconds[table], least[table], came, move, *rows_)
                                begun += 1
    return looked, begun


@part
def _two_best(rows: Floats, following: int, shape: int, shapes: int, best: Floats, whose: NDArray[np.int32]) -> None:
    """Keeps the best of several states before what is ``following`` and not alike, and the best of those of other shapes;
    ``whose``: as in ``way``."""
    for i in range(rows.shape[1]):
        own = following if rows[following, i] < rows[ANY, i] else ANY
        value, told = rows[own, i], shape + shapes * own
        if value < best[0, i]:
            best[1, i], whose[1, i] = best[0, i], whose[0, i]
            best[0, i], whose[0, i] = value, told
        elif value < best[1, i]:
            best[1, i], whose[1, i] = value, told


@part
def _before(
    alike: int,
    following: int,
    shape: int,
    shapes: int,
    rows: Floats,
    best: Floats,
    whose: NDArray[np.int32],
    ahead: Floats,
    came: NDArray[np.int32],
) -> bool:
    """The best plans behind which a stage of ``shape`` that is ``following`` may come, and their last stages as in ``way``;
    whether there is one. ``rows``: those of a last stage of this shape."""
    reached = False
    for i in range(len(ahead) - 1):
        if alike:
            own = following + 1 if rows[following + 1, i] < rows[ANY + 1, i] else ANY + 1
            ahead[i], came[i] = rows[own, i], shape + shapes * own
        else:
            second = int(whose[0, i] % shapes == shape)
            ahead[i], came[i] = best[second, i], whose[second, i]
        reached |= ahead[i] < np.inf
    return reached


@part
def _copy(value: Floats, way: NDArray[np.int32], to_value: Floats, to_way: NDArray[np.int32]) -> None:
    """Writes the values and ways of one row to another where they are better there."""
    for following in range(value.shape[0]):
        for i in range(value.shape[1]):
            if value[following, i] < to_value[following, i]:
                to_value[following, i] = value[following, i]
                for k in range(way.shape[2]):
                    to_way[following, i, k] = way[following, i, k]


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
) -> int:
    """One more stage, by move ``number``: from plans of i units worth ``ahead[i]``, whose last stage ``came[i]`` tells,
    to those of j, where they are better than ``value[j]``; how many stages were looked at."""
    units, looked = len(table), 0
    for i in range(units):
        if not ahead[i] < np.inf:
            continue
        for j in range(i + 1, units + 1):
            if not least[i, j] <= limit:
                break
            looked += 1
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
    return looked


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
