"""The compiled loops of the dynamic programmes over sequences of stages and over units."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from passes.partition.chain.taking import NO_HOST
from passes.partition.layouts.problem.problem import Floats
from passes.solvers.kernels import compiled, part

SLOWEST, SUM, COUNT = 0, 1, 2
"""What is minimised: the largest seconds of a stage, their sum, the number of stages."""
ANY, NEAR, APART = 0, 2, 4
"""Where the next stage is: anywhere, where links to all are the same; maybe on a host of this one; on none of its hosts. With 1
more: it is alike."""


class Moves(NamedTuple):
    """``pointer[s]``: where the moves from state s begin, of each the state that it leads to (``target``) and its ``block``;
    likewise ``idle`` states, in which more devices are idle. States have greater numbers than those that lead to them.
    Of the hosts that a move takes devices of, a *place* tells those of which some were taken before (``entered``), and those
    of which it leaves some (``left``): the devices of the next stage can be on a host of this one only where it enters the
    place that this one left, and where not ``apart[left, entered]``.
    ``shape`` of each block; ``comes`` and ``goes``: whether links from a stage before it, or to one behind it, are others where
    that is apart; and ``tables[stage, block]`` (-1: there is no such stage; of any number of stages there is one row): 8 more
    with an alike stage before it, 4 more with one behind, 2 more with one apart before, 1 more with one apart behind.
    A stage ends with a shape and the place that it left, ``shape * len(apart) + left``; the last shape is that of the start.
    ``row[s, ending]``: number of the state whose last stage ended so, -1 where there is none. ``follows[s, shape]``: whether a
    stage of that shape may be next."""

    pointer: NDArray[np.int32]
    target: NDArray[np.int32]
    block: NDArray[np.int32]
    entered: NDArray[np.int32]
    left: NDArray[np.int32]
    idle_pointer: NDArray[np.int32]
    idle: NDArray[np.int32]
    shape: NDArray[np.int32]
    comes: NDArray[np.bool_]
    goes: NDArray[np.bool_]
    tables: NDArray[np.int32]
    row: NDArray[np.int32]
    follows: NDArray[np.bool_]
    apart: NDArray[np.bool_]


@compiled
def neighbours(
    moves: NDArray[np.int32], idle: NDArray[np.int32], shape: NDArray[np.int32], states: int, shapes: int, places: int
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Of each state, how the last stage may have ended (``Moves``), and which shapes the next may have. ``moves``: source,
    target, block, and places entered and left, by source; ``idle``: source and target, by source."""
    last, following = np.zeros((states, (shapes + 1) * places), np.bool_), np.zeros((states, shapes + 1), np.bool_)
    last[0, shapes * places + NO_HOST] = True
    move, pair = 0, 0
    for state in range(states):
        while move < len(moves) and moves[move, 0] == state:
            # Element by element, here and below: for whole rows numba compiles a message on shapes that differ, in seconds.
            for ending in range(last.shape[1]):
                last[moves[move, 1], shape[moves[move, 2]] * places + moves[move, 4]] |= last[state, ending]
            move += 1
        while pair < len(idle) and idle[pair, 0] == state:
            for ending in range(last.shape[1]):
                last[idle[pair, 1], ending] |= last[state, ending]
            pair += 1
    for state in range(states - 1, -1, -1):
        while move > 0 and moves[move - 1, 0] == state:
            move -= 1
            following[state, shape[moves[move, 2]]] = True
        while pair > 0 and idle[pair - 1, 0] == state:
            pair -= 1
            for form in range(shapes + 1):
                following[state, form] |= following[idle[pair, 1], form]
    return last, following


@compiled
def programme(
    goal: int, limit: float, gaps: bool, moves: Moves, seconds: Floats, least: Floats, value: Floats, way: NDArray[np.int32]
) -> tuple[int, int]:
    """Finds the best plans that end in each state with so many stages; how many stages were looked at, and tables begun.

    ``seconds[table, i, j]``: of a stage, at most ``limit``; ``least[table, i, j]``: of those from j on. Fills
    ``value[stages, row, next, units]``, given as inf: the best, by what the next stage is; and ``way`` at the same places: the
    number of its last move, where its run begins, and how the stage before ended, plus the number of endings times what
    this stage was for that. With any number of stages there is one layer, which reads itself."""
    layers, units, endings, places = value.shape[0], value.shape[3] - 1, moves.row.shape[1], len(moves.apart)
    start, is_told = endings - places, value.shape[2] > 2
    best, whose = np.empty((places, 2, 2, units + 1)), np.empty((places, 2, 2, units + 1), np.int32)
    ahead, came = np.empty((2, units + 1)), np.empty((2, units + 1), np.int32)
    value[0, moves.row[0, start + NO_HOST], 0, 0] = 0.0
    short, looked = _within(limit, moves.tables, seconds, least, goal == COUNT)
    begun = 0
    for layer in range(max(layers - 1, 1)):
        above = min(layer + 1, layers - 1)
        for state in range(len(moves.row)):
            for k in range(moves.idle_pointer[state], moves.idle_pointer[state + 1]):
                for ending in range(0 if gaps else start, endings):
                    if moves.row[state, ending] >= 0:
                        rows = moves.row[state, ending], moves.row[moves.idle[k], ending]
                        _copy(value[layer, rows[0]], way[layer, rows[0]], value[layer, rows[1]], way[layer, rows[1]])
            if moves.pointer[state] == moves.pointer[state + 1]:
                continue
            _best_before(moves, state, is_told, value[layer], best, whose)
            for move in range(moves.pointer[state], moves.pointer[state + 1]):
                block = moves.block[move]
                shape = moves.shape[block]
                there = moves.row[moves.target[move], shape * places + moves.left[move]]
                for alike in range(2):
                    _before(alike, moves, move, state, is_told, value[layer], best, whose, ahead, came)
                    for apart in range(2 if moves.comes[block] else 1):
                        if not _reached(ahead[apart]):
                            continue
                        for behind in range(2 if moves.follows[moves.target[move], shape] else 1):
                            for following in range(NEAR, APART + 1, 2) if moves.goes[block] else range(ANY, NEAR, 2):
                                sides = 8 * alike + 4 * behind + 2 * apart + int(following == APART)
                                table = moves.tables[layer, block, sides]
                                if table >= 0:
                                    rows_ = value[above, there, following + behind], way[above, there, following + behind]
                                    if goal == COUNT:
                                        looked += _count(ahead[apart], short[table], came[apart], move, *rows_)
                                    else:
                                        costs = seconds[table], least[table]
                                        looked += _advance(goal, limit, ahead[apart], *costs, came[apart], move, *rows_)
                                    begun += 1
    return looked, begun


@part
def _best_before(moves: Moves, state: int, is_told: bool, value: Floats, best: Floats, whose: NDArray[np.int32]) -> None:
    """Fills ``best[entered, apart]``: of the plans that end in a state, by the place that the next stage enters and whether it
    is apart from the last, the best before what is not alike, and the best of other shapes than that; ``whose``: as ``way``."""
    endings, places = moves.row.shape[1], len(moves.apart)
    best[:] = np.inf
    wanted = np.zeros(places, np.bool_)
    for move in range(moves.pointer[state], moves.pointer[state + 1]):
        wanted[moves.entered[move]] = True
    for ending in range(endings):
        row = moves.row[state, ending]
        if row < 0:
            continue
        for entered in range(places):
            if wanted[entered]:
                apart = int(moves.apart[ending % places, entered])
                own = NEAR + 2 * apart if is_told else ANY
                _two_best(value[row], own, ending, endings, places, best[entered, apart], whose[entered, apart])


@part
def _two_best(
    rows: Floats, following: int, ending: int, endings: int, places: int, best: Floats, whose: NDArray[np.int32]
) -> None:
    """Keeps the best of several states before what is ``following`` and not alike, and the best of those of other shapes;
    ``whose``: as in ``way``."""
    for i in range(rows.shape[1]):
        own = following if rows[following, i] < rows[ANY, i] else ANY
        value, told = rows[own, i], ending + endings * own
        same = best[0, i] < np.inf and whose[0, i] % endings // places == ending // places
        if value < best[0, i]:
            if not same:
                best[1, i], whose[1, i] = best[0, i], whose[0, i]
            best[0, i], whose[0, i] = value, told
        elif value < best[1, i] and not same:
            best[1, i], whose[1, i] = value, told


@part
def _before(
    alike: int,
    moves: Moves,
    move: int,
    state: int,
    is_told: bool,
    value: Floats,
    best: Floats,
    whose: NDArray[np.int32],
    ahead: Floats,
    came: NDArray[np.int32],
) -> None:
    """Fills ``ahead[apart]`` with the best plans behind which the stage of a move may come, and ``came`` with their last stages
    as in ``way``; ``ahead[0]`` with the best of all where the block's links to both are the same."""
    endings, places, entered, block = moves.row.shape[1], len(moves.apart), moves.entered[move], moves.block[move]
    shape = moves.shape[block]
    ahead[:] = np.inf
    for apart in range(2):
        into = apart if moves.comes[block] else 0
        if not alike:
            for i in range(ahead.shape[1] - 1):
                value_, told = best[entered, apart, 0, i], whose[entered, apart, 0, i]
                if value_ < np.inf and told % endings // places == shape:
                    value_, told = best[entered, apart, 1, i], whose[entered, apart, 1, i]
                if value_ < ahead[into, i]:
                    ahead[into, i], came[into, i] = value_, told
            continue
        following = (NEAR + 2 * apart if is_told else ANY) + 1
        for left in range(places):
            row = moves.row[state, shape * places + left]
            if row >= 0 and moves.apart[left, entered] == bool(apart):
                for i in range(ahead.shape[1] - 1):
                    own = following if value[row, following, i] < value[row, ANY + 1, i] else ANY + 1
                    if value[row, own, i] < ahead[into, i]:
                        ahead[into, i], came[into, i] = value[row, own, i], shape * places + left + endings * own


@part
def _reached(ahead: Floats) -> bool:
    """Whether there is a plan."""
    return bool((ahead < np.inf).any())


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
def _within(
    limit: float, tables: NDArray[np.int32], seconds: Floats, least: Floats, wanted: bool
) -> tuple[NDArray[np.uint64], int]:
    """Of the tables that moves have, where that is ``wanted``: bit ``j % 64`` of ``[table, i, j // 64]`` says whether the stage
    of units i .. j - 1 takes at most ``limit``; and how many stages were looked at."""
    count, units, ends = seconds.shape
    short, looked = np.zeros((count if wanted else 1, units, ends // 64 + 1), np.uint64), 0
    used = np.zeros(count, np.bool_)
    for number in tables.flat:
        used[number] |= wanted and number >= 0  # -1: no table, and the last one for numpy, which stays as it is
    for table in range(count):
        for i in range(units if used[table] else 0):
            for j in range(i + 1, ends):
                if not least[table, i, j] <= limit:
                    break
                looked += 1
                short[table, i, j // 64] |= np.uint64(seconds[table, i, j] <= limit) << np.uint64(j % 64)
    return short, looked


@part
def _count(
    ahead: Floats, short: NDArray[np.uint64], came: NDArray[np.int32], number: int, value: Floats, way: NDArray[np.int32]
) -> int:
    """``_advance`` for the fewest stages: of the units behind which a stage may end (``short``, as of ``_within``) it looks at
    those alone that as few stages have not reached."""
    units, looked, fewest = len(short), 0, -1.0
    reached = np.zeros(short.shape[1], np.uint64)  # by as few as that
    for i in range(units):
        if not ahead[i] < np.inf:
            continue
        if ahead[i] + 1.0 != fewest:
            fewest, looked = ahead[i] + 1.0, looked + units
            reached[:] = 0
            for j in range(units + 1):
                reached[j // 64] |= np.uint64(value[j] <= fewest) << np.uint64(j % 64)
        for word in range(len(reached)):
            new = short[i, word] & ~reached[word]
            reached[word] |= new
            j = 64 * word
            while new:
                if new & np.uint64(1):
                    value[j], way[j, 0], way[j, 1], way[j, 2] = fewest, number, i, came[i]
                new, j, looked = new >> np.uint64(1), j + 1, looked + 1
    return looked


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
            found = max(ahead[i], seconds) if goal == SLOWEST else ahead[i] + seconds
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
