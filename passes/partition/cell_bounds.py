"""A lower bound by cells of ideals, refined where the cheapest plan passes.

Every boundary of a plan lies in some cell (``cells``), and a stage that begins in cell a and ends in cell b, on kind k, takes
at least

- its compute: the weight between the cells' ranges at the kind's price, or what surely lies in the stage;
- its transfers: a minimum cut (``cell_cuts``) between what surely lies in the stage and what surely does not. With compute in
  the same cut, less a Lagrange multiplier times the stage's weight, whose range is known, it is both together; and with bytes,
  which are limited, all three.

So the least largest stage over all ways from the empty ideal to the full one through cells, with the devices that there are,
is a lower bound, and a small programme finds it. At first a stage's transfers are those of its two boundaries, each by a
minimum cut of its own, less what both may cut. Then, again and again, the best way is looked at closer: its stages by cuts of
their own, and when that does not change it, one of its cells is split, until it is no cheaper than the best plan.

Invariants: every boundary of a plan of value below ``value`` lies in some cell; entries of ``least`` are lower bounds on such
a plan's stages. What is relaxed: stages on both sides of a cell may differ about the boundary between them, and memory but for
the weights that surely lie in a stage.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from passes.model.stages.lattice.dp import KeepOn
from passes.model.stages.lattice.tables import Tables
from passes.model.stages.problem import Floats
from passes.partition.cell_cuts import Cuts, Mask
from passes.partition.cells import SLACK, Cell, Space

MOST_NODES = 2_500
"""Nodes beyond which the tables of ancestors and descendants are too large."""
WINDOWS = 150
"""Ranges of weight at first."""
MOST_CELLS = 1_200
FEWEST_CELLS = 60
"""Cells with which nothing is worth a try."""
WORK = 3 * 10**7
"""Stages that one run of the programme looks at: tens of milliseconds."""
CUTS = 4
"""Minimum cuts per stage or boundary: multipliers tried."""
STEP = 0.1
"""The first change of a multiplier, in prices of a second."""
CHARGE = 0.1
"""The first price of a memory's bytes, in parts of a stage, where a cut asks for more of them than there are; it doubles."""
TORN = 0.1
"""A range of weight is split while it is wider than this part of the weight on which the stages at both sides do not agree."""
NARROW = 1e-5
"""Width of a range, in parts of a stage, below which it is not split."""
PRUNE = 32
"""Rounds from one look for cells that no better plan uses to the next."""


def applies(tables: Tables) -> bool:
    """Whether the tables are small enough, every vector of devices used is a state, and no kind's seconds are free."""
    small = 0 < tables.problem.size <= MOST_NODES and _most_cells(tables) >= FEWEST_CELLS
    return small and tables.states.every and bool((tables.price > 0).all())


def _most_cells(tables: Tables) -> int:
    return min(MOST_CELLS, math.isqrt(WORK // (len(tables.states.used) * len(tables.problem.kinds))))


@dataclass(frozen=True)
class _Stage:
    """A stage of a way: its kind, the cell where it begins, the one where it ends."""

    kind: int
    begin: int
    end: int

    @property
    def entry(self) -> tuple[int, int, int]:
        return self.kind, self.begin, self.end


class CellBounds:
    """See the module. Cell 0 is the empty ideal, cell 1 the full one; ``None`` stands where a cell was left out."""

    def __init__(self, tables: Tables, value: float) -> None:
        self.tables, self.value, self.bound = tables, value * (1 - 10 * SLACK), 0.0
        self.space, self.cuts = Space(tables), Cuts(tables)
        self.most, self.kinds = _most_cells(tables), len(tables.problem.kinds)
        self.cells: list[Cell | None] = []
        self.unused: list[int] = []
        nodes, nets = tables.problem.size, len(self.cuts.pins)
        self.inside, self.outside = np.zeros((self.most, nodes)), np.zeros((self.most, nodes))
        self.low, self.high = np.zeros(self.most), np.zeros(self.most)
        # Nets with a pin that may lie before the boundary, and with one that may lie behind it.
        self.made, self.read = np.zeros((self.most, nets)), np.zeros((self.most, nets))
        self.boundary = np.zeros((self.kinds, self.most))
        self.least = np.full((self.kinds, self.most, self.most), np.inf)
        self.looked = np.zeros(self.least.shape, np.bool_)
        self.held: dict[_Stage, Mask] = {}
        self.rounds = 0

    def run(self, value: float, keep_on: KeepOn) -> bool:
        """Raises ``bound`` as long as ``keep_on`` and what is left to do allow; may be called again, with the ``value`` of a
        better plan. False when there was no time for a start."""
        self.value = min(self.value, value * (1 - 10 * SLACK))
        if not self.cells and not self._start(keep_on):
            self.cells.clear()
            return False
        while self._refine() and keep_on(0, min(self.bound / self.value, 1.0)):
            self.rounds += 1
            if self.rounds % PRUNE == 0:
                self._prune()
        return True

    @property
    def reason(self) -> str:
        live = len(self.cells) - len(self.unused)
        return f"{live} sets of boundaries, by weight and by nodes: least transfers of a stage between any two, by minimum cuts"

    def _start(self, keep_on: KeepOn) -> bool:
        """Makes the first cells; False when stopped before."""
        for cell in self.space.grid(min(WINDOWS, self.most // 2)):
            if not keep_on(0, 0.0):
                return False
            at = len(self.cells)
            self.cells.append(cell)
            self.least[:, at, : at + 1], self.least[:, : at + 1, at] = 0.0, 0.0
            self._close(at)
            self._describe(at, [self._least_cut(kind, cell) for kind in range(self.kinds)])
        return True

    def _refine(self) -> bool:
        """Looks closer at the best way; False when nothing is left to do."""
        value = self._ahead()
        least = float(np.where(self.tables.states.final, value[:, 1], np.inf).min())
        self.bound = max(self.bound, min(least, self.value))
        if least >= self.value:
            return False
        way = self._way(value)
        fresh = [stage for stage in way if not self.looked[stage.entry]]
        for stage in fresh:
            self._look(stage)
        return any(self.least[stage.entry] > least for stage in fresh) or self._split(way, least)

    def _prune(self) -> None:
        """Leaves out the cells that no plan below ``value`` goes through."""
        through = np.maximum(self._ahead(), self._behind()).min(axis=0)
        for at in np.flatnonzero(through >= self.value).tolist():
            if at > 1 and self.cells[at] is not None:
                self._drop(at)

    def _describe(self, at: int, boundary: Sequence[float]) -> None:
        """Fills in what is plain of the cell at ``at``, whose boundaries move at least ``boundary`` on each kind, and raises
        what ``least`` says of stages from it and to it."""
        cell, cuts, count = self.cells[at], self.cuts, len(self.cells)
        assert cell is not None, "only cells are described"
        self.inside[at], self.outside[at] = cell.inside, cell.outside
        self.low[at], self.high[at] = cell.low, cell.high
        self.made[at] = np.bincount(cuts.net[cell.outside[cuts.pin]], minlength=len(cuts.pins)) < cuts.pins
        self.read[at] = np.bincount(cuts.net[cell.inside[cuts.pin]], minlength=len(cuts.pins)) < cuts.pins
        self.boundary[:, at] = boundary
        self.looked[:, at], self.looked[:, :, at] = False, False
        this, every = slice(at, at + 1), slice(0, count)
        for kind in range(self.kinds):
            for begin, end in ((this, every), (every, this)):
                known = self.least[kind, begin, end]
                np.maximum(known, self._plain(kind, begin, end), out=known)

    def _close(self, at: int) -> None:
        """No stage begins and ends in a cell of one ideal."""
        cell = self.cells[at]
        if cell is not None and not cell.open.any():
            self.least[:, at, at] = np.inf

    def _plain(self, kind: int, begin: slice, end: slice) -> Floats:
        """``[A, B]``: the least of stages that begin and end in some cells, without cuts of their own."""
        problem, price = self.tables.problem, float(self.tables.price[kind])
        slack = 2 * self.space.slack
        seconds, memory = problem.seconds[kind], problem.kinds[kind].memory
        runs = np.isfinite(seconds)
        never = self.inside[begin] @ self.outside[end].T > 0
        never |= self.high[None, end] < self.low[begin, None] - slack
        never |= (self.outside[begin] * ~runs) @ self.inside[end].T > 0
        if memory is not None:
            stored = (self.outside[begin] * self.tables.own_weights) @ self.inside[end].T
            never |= stored > memory * (1 + SLACK)
        compute = (self.outside[begin] * np.where(runs, seconds, 0.0)) @ self.inside[end].T
        compute = np.maximum(compute, (self.low[None, end] - self.high[begin, None] - slack) / price)
        both = (self.made[begin] * self.cuts.cost[kind]) @ self.read[end].T
        moved = np.maximum(self.boundary[kind, begin, None] + self.boundary[kind, None, end] - 2 * both, 0.0)
        load = {"overlap": np.maximum(compute, moved), "duplex": np.maximum(compute, moved / 2)}
        found: Floats = load.get(problem.comm, compute + moved) * (1 - SLACK) - SLACK * self.value
        return np.where(never, np.inf, found)

    def _least_cut(self, kind: int, cell: Cell) -> float:
        """The least that a boundary in the cell moves on ``kind``."""
        every = np.ones(self.tables.problem.size, np.bool_)
        nothing = np.zeros(len(every))
        step = STEP / float(self.tables.price[kind])
        found = self._search(kind, nothing, cell.inside, cell.outside, ~every, every, (cell.low, cell.high), 0.0, step)
        return max(found[0], 0.0)

    def _look(self, stage: _Stage) -> None:
        """The least load of a stage by cuts of its own."""
        begin, end = self.cells[stage.begin], self.cells[stage.end]
        assert begin is not None, "a way goes through cells"
        assert end is not None, "a way goes through cells"
        tables, slack = self.tables, 2 * self.space.slack
        seconds, price = tables.problem.seconds[stage.kind], float(tables.price[stage.kind])
        runs, adds = np.isfinite(seconds), tables.problem.comm == "sum"
        known = end.inside & begin.outside, begin.inside | end.outside | ~runs, end.inside, begin.outside
        weight = max(end.low - begin.high - slack, 0.0), end.high - begin.low + slack
        at, memory = -1.0 / price if adds else 0.0, tables.problem.kinds[stage.kind].memory
        compute = np.where(runs & adds, seconds, 0.0)
        least, held = self._search(stage.kind, compute, *known, weight, at, STEP / price)
        charge = CHARGE
        while held is not None and memory is not None and charge < CHARGE * 2**CUTS:
            if float(tables.own_weights[held].sum()) <= memory:
                break
            byte = charge * self.value / max(memory, 1)
            found, nodes = self._search(stage.kind, compute + byte * tables.own_weights, *known, weight, at, STEP / price)
            if found - byte * memory < least:
                break
            least, held, charge = found - byte * memory, nodes, 2 * charge
        self.looked[stage.entry] = True
        if held is None:
            self.least[stage.entry] = np.inf
            return
        self.held[stage] = held
        least = least / 2 if tables.problem.comm == "duplex" else least
        self.least[stage.entry] = max(self.least[stage.entry], least * (1 - SLACK) - SLACK * self.value)

    def _search(
        self,
        kind: int,
        seconds: Floats,
        sure: Mask,
        never: Mask,
        ends: Mask,
        begins: Mask,
        weight: tuple[float, float],
        multiplier: float,
        step: float,
    ) -> tuple[float, Mask | None]:
        """The least of ``seconds`` and cut of a set whose weight is in the range ``weight``, by the best of a few multipliers;
        and the set of that. inf and None where there is no set."""
        best, held = -math.inf, None
        low, high = -math.inf, math.inf  # multipliers at which the set weighs too much, and too little
        for _ in range(CUTS):
            found, nodes = self.cuts.least(kind, seconds + multiplier * self.space.weight, sure, never, ends, begins)
            if nodes is None:
                return math.inf, None
            found -= multiplier * weight[1 if multiplier > 0 else 0]
            if found > best:
                best, held = found, nodes
            reached = float(self.space.weight[nodes].sum())
            if weight[0] <= reached <= weight[1]:
                break
            if reached > weight[1]:
                low = multiplier
                multiplier = multiplier + step if high == math.inf else (low + high) / 2
            else:
                high = multiplier
                multiplier = multiplier - step if low == -math.inf else (low + high) / 2
            step *= 2
        return best, held

    def _ahead(self) -> Floats:
        """``[S, N]``: of each state and cell the least largest stage of a way there."""
        states, count = self.tables.states, len(self.cells)
        value = np.full((len(states.used), count), np.inf)
        value[0, 0] = 0.0
        for state in range(len(states.used)):
            for other in states.idle[state].tolist():
                if other >= 0:
                    np.minimum(value[other], value[state], out=value[other])
            here = np.flatnonzero(value[state] < self.value)
            for kind, other in enumerate(states.next[state].tolist()):
                if other >= 0 and len(here):
                    through = np.maximum(value[state, here, None], self.least[kind, here, :count])
                    np.minimum(value[other], through.min(axis=0), out=value[other])
        return value

    def _behind(self) -> Floats:
        """``[S, N]``: the same of a way from there to the full ideal."""
        states, count = self.tables.states, len(self.cells)
        value = np.full((len(states.used), count), np.inf)
        value[states.final, 1] = 0.0
        for state in range(len(states.used) - 1, -1, -1):
            for other in states.idle[state].tolist():
                if other >= 0:
                    np.minimum(value[state], value[other], out=value[state])
            for kind, other in enumerate(states.next[state].tolist()):
                there = np.flatnonzero(value[other] < self.value)
                if other >= 0 and len(there):
                    through = np.maximum(value[other][there], self.least[kind, :count][:, there])
                    np.minimum(value[state], through.min(axis=1), out=value[state])
        return value

    def _way(self, value: Floats) -> list[_Stage]:
        """The stages of a best way, given ``_ahead``."""
        states, count = self.tables.states, len(self.cells)
        pointers, sources, kinds = states.before
        state, here = int(np.where(states.final, value[:, 1], np.inf).argmin()), 1
        way: list[_Stage] = []
        while (state, here) != (0, 0):
            best = math.inf, True, -1, -1, -1
            for at in range(pointers[state], pointers[state + 1]):
                source, kind = int(sources[at]), int(kinds[at])
                through = np.maximum(value[source], self.least[kind, :count, here])
                within = float(through[here])
                through[here] = np.inf  # rather a stage that ends where it did not begin
                cell = int(through.argmin())
                best = min(best, (float(through[cell]), False, source, kind, cell), (within, True, source, kind, here))
            idle = (states.idle[:state] == state).any(axis=1) & (value[:state, here] <= value[state, here])
            if best[0] > value[state, here] or (best[1] and idle.any()):
                state = int(idle.argmax())
                continue
            _, inside, source, kind, cell = best
            if not inside:
                way.append(_Stage(kind, cell, here))
            state, here = source, cell
        return way[::-1]

    def _split(self, way: Sequence[_Stage], least: float) -> bool:
        """Splits the cell of the way at which most is lost; False where none can be."""
        best = None
        full = not self.unused and len(self.cells) >= self.most
        narrow = NARROW * self.value * float(self.tables.price.max())
        for stage, following in itertools.pairwise(way):
            cell, ahead, behind = self.cells[stage.end], self.held.get(stage), self.held.get(following)
            if cell is None or ahead is None or behind is None:
                continue
            torn = cell.open & (ahead == behind)
            width, conflict = cell.high - cell.low, TORN * float(self.space.weight[torn].sum())
            if width <= narrow and not torn.any():
                torn = cell.open  # both agree on what is no ideal, or not of such weight
                if not torn.any():
                    continue
            binding = max(self.least[stage.entry], self.least[following.entry]) >= least
            if best is None or (binding, max(width, conflict)) > best[0]:
                best = (binding, max(width, conflict)), stage.end, cell, torn, width > max(conflict, narrow)
        if best is None or full:
            return False
        _, at, cell, torn, wide = best
        self._replace(at, self.space.halves(cell) if wide else self.space.parted(cell, torn))
        return True

    def _replace(self, at: int, parts: Sequence[Cell]) -> None:
        """Puts ``parts``, two at most, which hold all ideals of the cell at ``at``, in its place."""
        before, rows, columns = self.boundary[:, at].copy(), self.least[:, at].copy(), self.least[:, :, at].copy()
        self._drop(at)
        for cell in parts:
            place = self.unused.pop() if self.unused else len(self.cells)
            if place == len(self.cells):
                self.cells.append(None)
            self.cells[place] = cell
            self.least[:, place], self.least[:, :, place] = rows, columns
            self.least[:, place, place] = 0.0
            self._close(place)
            cuts = [max(float(before[kind]), self._least_cut(kind, cell)) for kind in range(self.kinds)]
            self._describe(place, cuts)

    def _drop(self, at: int) -> None:
        self.cells[at] = None
        self.unused.append(at)
        self.least[:, at], self.least[:, :, at] = np.inf, np.inf
        self.held = {stage: nodes for stage, nodes in self.held.items() if at not in (stage.begin, stage.end)}


__all__ = ["CellBounds", "applies"]
