"""The best sequence of stages, given what each run of units costs on each block: dynamic programmes.

A plan cuts the units into runs, in order, and gives each a block of devices that those before have not taken; devices may stay
idle. What a stage pays for what crosses depends on whether the stage beside it has the same mesh shape and shares (``alike``:
parts cross as they lie) or not, and on whether it is *apart*, on none of its hosts, which may be far.
So a state is (stages used, devices taken (``taking``), units done, shape of the last stage and the place it left, whether the
next is alike, and apart): ``least`` minimises the largest seconds of a stage, in O(moves * units^2), ``shortest`` the sum of
the stages' seconds among plans whose stages stay below a limit, and ``in_turn`` both, of a stream with few microbatches in
flight. The number of stages may be fixed: then it is known of each how many microbatches it has in flight (``held``), hence how
much memory is left for weights.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ir.core.outcomes import TIGHT
from passes.partition.chain.submeshes import Block, Shape, Submeshes
from passes.partition.layouts.problem.problem import Floats
from passes.solvers.work import did, now


@dataclass(frozen=True, slots=True)
class Table:
    """``seconds[i, j]`` of the run of units i .. j - 1, inf where it cannot be; ``least[i, j]`` of ``seconds[i, j:]``."""

    seconds: Floats
    least: Floats

    @classmethod
    def of(cls, seconds: Floats) -> Table:
        return cls(seconds, np.minimum.accumulate(seconds[:, ::-1], axis=1)[:, ::-1])


Sides: TypeAlias = tuple[bool, bool, bool, bool, int]
"""What ``Tables`` takes of a stage beside its block."""
Tables: TypeAlias = Callable[[Block, bool, bool, bool, bool, int], Table]
"""Of the runs on a block, given whether there are stages before and behind it that are alike, whether these two are apart,
and of how many microbatches it holds what their backward passes need; 0 where that is not known."""
Held: TypeAlias = tuple[int, ...]
"""Of each stage of a stated number such microbatches, as of ``Tables``; empty for any number of stages."""


STEP = 5e-4
"""Relative: how near two limits on a stage's seconds may lie."""
HALVINGS = 2
"""Of what lies between two values of a step, one of which is proven to be a bound."""
MOST_COUNTED = 40
"""Such limits below which the stages are counted."""


@dataclass(frozen=True, slots=True)
class StageRun:
    """Units ``first .. behind - 1`` on a block; ``apart``: on none of the hosts of the stage before."""

    first: int
    behind: int
    block: Block
    apart: bool = False


class Interval(NamedTuple):
    """Plans whose slowest stage takes more than ``low`` seconds and at most ``high`` have ``few`` stages at least.
    ``is_counted``: whether to count these again would tell no more."""

    low: float
    high: float
    few: int
    is_counted: bool = False


@dataclass(frozen=True, slots=True)
class Sequenced:
    """``value``: what was minimised; inf, without runs, where nothing fits. Where that is the seconds of a step, ``fastest``:
    the plan whose slowest stage is the quickest, and ``intervals`` of the seconds of slowest stages."""

    value: float
    runs: tuple[StageRun, ...]
    fastest: tuple[StageRun, ...] = ()
    intervals: tuple[Interval, ...] = ()


def alike(runs: Sequence[StageRun]) -> list[tuple[bool, bool]]:
    """Of each stage of a plan, whether there are stages before and behind it of the same shape."""
    shapes = [run.block.shape for run in runs]
    same = [False, *(one == two for one, two in pairwise(shapes)), False]
    return list(pairwise(same))


def beside(runs: Sequence[StageRun], held: Held = ()) -> list[Sides]:
    """What ``Tables`` takes of each stage of a plan beside its block."""
    apart = list(pairwise([*(run.apart for run in runs), False]))
    numbers = held or (0,) * len(runs)
    return [(*sides, *both, number) for sides, both, number in zip(alike(runs), apart, numbers, strict=True)]


def least(programme: Programme, *, gaps: bool = True, limit: float = math.inf) -> Sequenced:
    """Least largest seconds; ``gaps``: whether devices may be left idle after the first stage where those of a host, or hosts,
    are taken in turn; ``limit``: nothing is found above."""
    return programme.best("slowest", limit, gaps)


def slowest(tables: Tables, runs: Sequence[StageRun], held: Held = ()) -> float:
    """Seconds of the slowest stage of a plan."""
    told = zip(runs, beside(runs, held), strict=True)
    return max(float(tables(run.block, *own).seconds[run.first, run.behind]) for run, own in told)


def shortest(programme: Programme, limit: float, stages: int = 0, *, gaps: bool = True) -> Sequenced:
    """Least sum of seconds of stages that each take at most ``limit``; ``stages``: of exactly so many."""
    return programme.best("sum", limit, gaps, stages)


def in_turn(programme: Programme, groups: int, *, gaps: bool = True) -> Sequenced:
    """Least period of a stream with ``groups`` microbatches in flight, max(slowest stage, sum of stages / groups). ``value`` is
    a bound of that, within ``STEP`` of the plan.

    With S(x) the least sum of stages that each take at most x, a plan is better than x only if S(x) <= groups x."""
    best = programme.best("sum", math.inf, gaps)
    if not best.runs:
        return best
    low, high = best.value / groups, programme.slowest(best.runs)
    if high <= low:
        return replace(best, value=low)
    low = max(low, programme.best("slowest", high, gaps).value)
    middle = low * (1 + STEP)
    while high > low * (1 + STEP):
        found = programme.best("sum", middle, gaps)
        if found.value <= groups * middle:
            best, high = found, middle
        else:
            low = middle
        middle = math.sqrt(low * high)
    return replace(best, value=low)


def flush(
    programme: Programme,
    microbatches: int,
    until: float = math.inf,
    step: float = STEP,
    known: Sequenced | None = None,
) -> Sequenced:
    """Least seconds of a step that fills the stages, runs ``microbatches`` and drains: ``(microbatches + stages - 1)`` times
    the slowest. ``value`` is a bound of that, within ``step`` of the plan unless the time ``until`` (of
    ``now``) was over or there were too many intervals. ``known``: what was found with tables that were nowhere
    above these.

    Plans whose slowest stage lies in ``(low, high]`` have at least as many stages as are needed below ``high``, which bounds
    them. In the interval with the least bound these are counted, unless they were with these tables, and it is halved, until it
    is narrow or near the best plan."""
    limit = programme.slowest(known.fastest) if known is not None and known.fastest else math.inf
    if known is not None and known.intervals and limit <= known.intervals[0].low:
        fastest = replace(known, value=limit, runs=known.fastest)
    else:
        fastest = programme.best("slowest", limit)
    if not fastest.runs:
        return fastest
    if programme.held:
        return replace(fastest, value=fastest.value * (microbatches + len(programme.held) - 1), fastest=fastest.runs)

    def worth(runs: Sequence[StageRun]) -> float:
        return (microbatches + len(runs) - 1) * programme.slowest(runs)

    quickest, best, under = fastest.value, fastest.runs, 0.0
    intervals = [Interval(quickest, quickest * (1 + step), 1), Interval(quickest * (1 + step), math.inf, 1)]
    if known is not None:
        best, under, intervals = min(known.runs, best, key=worth), known.value, list(known.intervals)
    *rest, last = intervals
    # Above the last every plan is worse than the best, whatever its number of stages.
    low = max(last.low, quickest)
    intervals = [Interval(max(one.low, quickest), one.high, one.few) for one in rest if one.high > quickest]
    intervals.append(Interval(low, max(low, worth(best) / microbatches), 1, True))
    waiting = [(one.low * (microbatches + one.few - 1), one) for one in intervals]
    heapq.heapify(waiting)
    for left in reversed(range(MOST_COUNTED)):
        bound, (low, high, few, is_counted) = waiting[0]
        bound = min(max(bound, under), worth(best))
        is_done = is_counted and high <= low * (1 + step)
        if worth(best) <= bound * (1 + step) or is_done or not left or now() > until:
            break
        at = math.sqrt(low * high) if is_counted else high
        found = programme.best("count", at).runs
        best = min((best, found), key=worth)
        heapq.heapreplace(waiting, (low * (microbatches + len(found) - 1), Interval(low, at, len(found), True)))
        if is_counted:
            heapq.heappush(waiting, (at * (microbatches + few - 1), Interval(at, high, few, True)))
    return Sequenced(bound, best, fastest.runs, tuple(sorted(one for _, one in waiting)))


def quicker(programme: Programme, microbatches: int, than: float, known: float, few: int = 1) -> Sequenced:
    """A plan whose step, as of ``flush``, takes at most ``than`` seconds; its ``value``: the most that each of its stages may
    take for that. ``few``: stages that such plans have at least. Where there is none, no runs, and ``value``: a lower bound on
    all steps from ``than`` to ``known``."""

    def found(step: float, stages: int = 1) -> Sequenced:
        """Of so many stages each may take so much. Where the fewest that do are more, plans of fewer than these are ruled out,
        and of as many each may take less."""
        while True:
            limit = step / (microbatches + stages - 1) * (1 + TIGHT)
            runs = programme.best("count", limit).runs
            if len(runs) <= stages:
                return Sequenced(limit, runs)
            stages = len(runs)

    first = found(than, few)
    if first.runs:
        return first
    low, high, middle = than, known, known
    for _ in range(1 + HALVINGS if known > than else 0):
        low, high = (low, middle) if found(middle).runs else (middle, high)
        if low == high:
            break
        middle = math.sqrt(low * high)
    return Sequenced(low, ())


class Transitions:
    """What the programmes over one set of blocks share: which blocks may follow which, and a stack of tables. Those that the
    next programme shares with the last are not copied again."""

    def __init__(self, meshes: Submeshes, units: int) -> None:
        from passes.partition.chain.kernels import Moves, neighbours

        self.meshes, self.units = meshes, units
        states, moves, idle = len(meshes.taking.states), meshes.moves, meshes.idle
        numbers: dict[Shape, int] = {}
        self.count = 1 + max((block.number for block in meshes.blocks), default=0)
        shape = np.zeros(self.count, np.int32)
        comes, goes = np.zeros(self.count, bool), np.zeros(self.count, bool)
        for block in meshes.blocks:
            shape[block.number] = numbers.setdefault(block.shape, len(numbers))
            comes[block.number], goes[block.number] = block.comes, block.goes
        shapes = len(numbers)  # the start, with no units done, has a shape of its own, the last
        pointers = [np.searchsorted(rows[:, 0], np.arange(states + 1)).astype(np.int32) for rows in (moves, idle)]
        apart = meshes.taking.apart
        ahead, behind = neighbours(moves, idle, shape, states, shapes, len(apart))
        ending: NDArray[np.bool_] = np.logical_or.reduce(ahead.reshape(states, shapes + 1, len(apart)), axis=2)
        before, after = _alike_beside(moves, shape, ending, behind, self.count)
        self.sides = list[tuple[Block, int, tuple[bool, bool, bool, bool]]]()
        """Of each block what may be beside it, with its place in ``Moves.tables``."""
        for block in meshes.blocks:
            options = before[block.number], after[block.number], block.comes, block.goes
            one, other, comes_, goes_ = ((False, True)[: 1 + option] for option in options)
            for sides in itertools.product(one, other, comes_, goes_):
                self.sides.append((block, int(np.dot(sides, (8, 4, 2, 1))), sides))
        row = np.where(ahead, np.cumsum(ahead).reshape(ahead.shape) - 1, -1).astype(np.int32)
        self.rows = int(ahead.sum())
        target, taken, entered, left, further = (rows.copy() for rows in (*moves.T[1:], idle[:, 1]))
        none = np.zeros((0, self.count, 16), np.int32)
        blocks = shape, comes, goes, none
        self.moves = Moves(pointers[0], target, taken, entered, left, pointers[1], further, *blocks, row, behind, apart)
        self.stack: dict[int, tuple[int, Table]] = {}
        """By identity of a table its number in ``seconds`` and ``least``."""
        self.seconds, self.least = (np.zeros((0, units, units + 1)) for _ in range(2))

    def tabled(self, tables: Tables, held: Held) -> NDArray[np.int32]:
        """``Moves.tables``, of tables that are now in the stack."""
        told, needed = np.full((max(len(held), 1), self.count, 16), -1, np.int32), dict[int, Table]()
        asked = list[tuple[int, int, int, int]]()
        for block, place, sides in self.sides:
            for stage, microbatches in enumerate(held or (0,)):
                table = tables(block, *sides, microbatches)
                needed[id(table)] = table
                asked.append((stage, block.number, place, id(table)))
        self.stack = kept = {key: entry for key, entry in self.stack.items() if key in needed}
        if len(needed) > len(self.seconds):
            self.seconds, self.least = (_longer(stack, 2 * len(needed)) for stack in (self.seconds, self.least))
        free = iter(sorted(set(range(len(self.seconds))).difference(number for number, _ in kept.values())))
        for key, table in needed.items():
            if key not in kept:
                number = next(free)
                self.seconds[number], self.least[number] = table.seconds, table.least
                kept[key] = number, table
        for stage, block_, place, key in asked:
            told[stage, block_, place] = kept[key][0]
        return told


class Programme:
    """The dynamic programmes over one set of tables and blocks; valid until the next is made of the same transitions."""

    def __init__(self, tables: Tables, transitions: Transitions, held: Held = ()) -> None:
        self.tables, self.transitions, self.held = tables, transitions, held
        self.meshes, self.units = transitions.meshes, transitions.units
        self.moves = transitions.moves._replace(tables=transitions.tabled(tables, held))
        self.stack = transitions.stack

    def slowest(self, runs: Sequence[StageRun]) -> float:
        """Seconds of the slowest stage of a plan."""
        return slowest(self.tables, runs, self.held)

    def best(self, goal: Literal["slowest", "sum", "count"], limit: float, gaps: bool = True, stages: int = 0) -> Sequenced:
        """``limit``: seconds of a stage at most; ``stages``: exactly so many, where those that are ``held`` do not tell."""
        from passes.partition.chain.kernels import COUNT, SLOWEST, SUM, programme

        if self.transitions.stack is not self.stack:
            raise AssertionError("a later programme has the tables of these transitions: make this one anew")
        number, stages = {"slowest": SLOWEST, "sum": SUM, "count": COUNT}[goal], len(self.held) or stages
        moves = self.moves
        if stages > len(moves.tables):
            moves = moves._replace(tables=np.repeat(moves.tables, stages, axis=0))
        size = (stages + 1, self.transitions.rows, 6 if moves.goes.any() else 2, self.units + 1)
        value, way = np.full(size, math.inf), np.empty((*size, 3), np.int32)
        looked, begun = programme(number, limit, gaps, moves, self.transitions.seconds, self.transitions.least, value, way)
        did("stage", looked)
        did("run", begun * self.units)
        ends = value[stages, :, :4:2, self.units]  # nothing is sent on
        total = float(ends.min(initial=math.inf))
        if not math.isfinite(total):
            return Sequenced(total, ())
        row, following = divmod(int(ends.argmin()), ends.shape[1])
        layer, j, following = stages, self.units, 2 * following
        runs, taken = list[tuple[int, int]](), list[int]()
        while j:  # from the last stage to the first
            move, i, before = way[layer, row, following, j].tolist()
            runs.append((i, j))
            taken.append(move)
            following, ending = divmod(before, self.moves.row.shape[1])
            row, layer, j = int(self.moves.row[self.meshes.moves[move, 0], ending]), max(layer - 1, 0), i
        blocks = self.meshes.realised(taken[::-1])
        entered, left = (places[taken[::-1]] for places in (self.moves.entered, self.moves.left))
        apart = np.zeros(len(runs), bool)
        apart[1:] = self.moves.apart[left[:-1], entered[1:]]
        each = zip(reversed(runs), blocks, apart.tolist(), strict=True)
        return Sequenced(total, tuple(StageRun(*run, *rest) for run, *rest in each))


def _longer(stack: Floats, count: int) -> Floats:
    """A stack with room for so many tables."""
    return np.concatenate([stack, np.empty((count - len(stack), *stack.shape[1:]))])


def _alike_beside(
    moves: NDArray[np.int32],
    shape: NDArray[np.int32],
    ahead: NDArray[np.bool_],
    behind: NDArray[np.bool_],
    count: int,
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Of each block, whether in some plan the stage before it, and that behind it, may have its shape."""
    found = np.zeros((2, count), bool)
    own = shape[moves[:, 2]]
    np.logical_or.at(found[0], moves[:, 2], ahead[moves[:, 0], own])
    np.logical_or.at(found[1], moves[:, 2], behind[moves[:, 1], own])
    return found[0], found[1]
