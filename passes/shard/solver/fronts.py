"""Bounds and plans under a memory limit between two prices: memory counted in whole units beside its price.

At one price of memory all copies of a layer choose alike, so the plans found at neighbouring prices are far apart and the
Lagrangian bound is below any plan by up to what one copy gains. Here an elimination keeps a *front* for each entry of its
tables: the least priced cost by the number of units of memory that are taken. With ``units[choice]`` the whole units in what a
choice needs beyond the least one of its node, a plan within the limit takes at most ``most`` of them, so

    seconds >= min over k <= most of (least of seconds + price * rest over plans that take k units) - price * rest left,

where the *rest* is what units round away, and no more of it is left than the limit has beyond ``k`` units, nor than choices
have in all. Fronts are added by (min, +) convolution. An entry is left out where every plan that takes it costs more than
``target`` at this price (``marginals``); the result then bounds the plans up to the target only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from passes.model.work import did, now
from passes.shard.elimination.elimination import PIECE, Eliminated, Factor, Scope, join
from passes.shard.elimination.folded import FoldedSearch, Step, renumbered
from passes.shard.elimination.marginals import Marginals
from passes.shard.elimination.stretches import ENDS, MIDDLE, Stretch, outsides, sizes_of
from passes.shard.problem.problem import TIGHT, Floats, Integers, ShardProblem

MOST_UNITS = 512
"""Units that the limit is divided into, at most."""
MOST_ENTRIES = 1 << 16
"""Entries of one table that are looked at; where more could be of a plan within the target, there are no fronts."""
TRIED = 4
"""Numbers of units for which a plan is written down."""


class TooManyError(Exception):
    """A table has too many entries that could be of a plan within the target, or time is over."""


Front = Floats
"""``[k]``: the least of seconds and the price of what ``k`` units round away, inf where none is better than with fewer."""
Table = dict[tuple[int, ...], Front]
"""Fronts by the entry of a factor."""


def added(fronts: Sequence[Front]) -> list[Front]:
    """The fronts of the sums of the first one, two, ... of ``fronts``."""
    sums = [fronts[0]]
    for front in fronts[1:]:
        one, two = sums[-1], front
        if np.isfinite(two).sum() < np.isfinite(one).sum():
            one, two = two, one
        total = np.full(len(one), np.inf)
        for k in np.flatnonzero(np.isfinite(one)):
            np.minimum(total[k:], one[k] + two[: len(two) - k], out=total[k:])
            did("shift", 1)
        sums.append(total)
    return sums


def parted(fronts: Sequence[Front], units: int) -> list[int]:
    """Units of each of ``fronts`` in the least sum that takes ``units``."""
    sums, parts = added(fronts), []
    for before, front in zip(reversed(sums[:-1]), reversed(fronts[1:]), strict=True):
        parts.append(int(np.argmin(before[units::-1] + front[: units + 1])))
        units -= parts[-1]
    return [units, *reversed(parts)]


@dataclass(slots=True)
class _Tree:
    """Fronts of the messages of one elimination; ``units_of[id(table)]``: of the tables of nodes."""

    sizes: dict[int, int]
    outside: dict[int, Floats]
    units_of: dict[int, Integers]
    paid: Floats
    """``[k]``: the price of ``k`` units."""
    target: float
    ends: float
    tables: dict[int, Table] = field(default_factory=dict)

    def fronts(self, factors: Sequence[Factor], scope: Scope, entry: tuple[int, ...]) -> list[Front] | None:
        """Fronts that add up to the sum of ``factors`` at an entry of their joined table: that of all that is fixed first; None
        where there is none."""
        place = dict(zip(scope, entry, strict=True))
        fixed, units, fronts = 0.0, 0, []
        for factor in factors:
            index = tuple(place[variable] for variable in factor.scope)
            if id(factor) in self.tables:
                front = self.tables[id(factor)].get(index)
                if front is None:
                    return None
                fronts.append(front)
            else:
                fixed += float(factor.table[index])
                if id(factor.table) in self.units_of:
                    units += int(self.units_of[id(factor.table)][index])
        if units >= len(self.paid):
            return None
        start = np.full(len(self.paid), np.inf)
        start[units] = fixed - self.paid[units]
        return [start, *fronts]

    def entries(self, factors: Sequence[Factor], scope: Scope, outside: Floats) -> Iterator[tuple[int, ...]]:
        """Those of the joined table that may be of a plan within the target."""
        if np.prod([self.sizes[variable] for variable in scope], dtype=np.float64) > PIECE:
            raise TooManyError
        total = np.asarray(join(factors, scope, self.sizes) + outside)
        alive = np.argwhere(total <= self.target)
        if len(alive) > MOST_ENTRIES:
            raise TooManyError
        yield from map(tuple, alive.tolist())

    def sum(self, factors: Sequence[Factor], scope: Scope, outside: Floats, kept: int) -> Table:
        """Fronts of the sum of ``factors`` over ``scope``, least over all but the first ``kept`` variables; ``outside``: what
        the rest costs at least."""
        least: Table = {}
        for entry in self.entries(factors, scope, outside):
            self.in_time()
            fronts = self.fronts(factors, scope, entry)
            if fronts is not None:
                front = added(fronts)[-1]
                before = least.get(entry[:kept])
                least[entry[:kept]] = front if before is None else np.minimum(before, front)
        around = np.broadcast_to(outside, [self.sizes[variable] for variable in scope]) if scope else outside
        none = (0,) * (len(scope) - kept)
        pruned = ((entry, self.pruned(front, float(around[(*entry, *none)]))) for entry, front in least.items())
        return {entry: front for entry, front in pruned if np.isfinite(front).any()}

    def in_time(self) -> None:
        """Raises TooManyError once time is over."""
        if now() > self.ends:
            raise TooManyError

    def pruned(self, front: Front, outside: float) -> Front:
        """Without what is no better than with fewer units, or beyond the target."""
        fewer = np.concatenate([[np.inf], np.minimum.accumulate(front)[:-1]])
        return np.where((front < fewer) & (front + self.paid + outside <= self.target), front, np.inf)

    def through(self, eliminated: Eliminated) -> None:
        """Makes the fronts of all messages."""
        for bucket in eliminated.buckets:
            for part, message in zip(bucket.parts, bucket.messages, strict=True):
                outside = self.outside[id(message)][..., None]
                self.tables[id(message)] = self.sum(part, (*message.scope, bucket.variable), outside, len(message.scope))

    def spread(
        self, factors: Sequence[Factor], scope: Scope, entry: tuple[int, ...], units: int, units_of_message: dict[int, int]
    ) -> None:
        """Tells each message among ``factors`` its part of ``units``."""
        fronts = self.fronts(factors, scope, entry)
        assert fronts is not None
        messages = [factor for factor in factors if id(factor) in self.tables]
        units_of_message.update(zip(map(id, messages), parted(fronts, units)[1:], strict=True))

    def traced(
        self, eliminated: Eliminated, scope: Scope, entry: tuple[int, ...], units: int
    ) -> tuple[dict[int, int], dict[int, int]]:
        """The values of all variables, given those that were kept and the units of their sum; and the units of each message,
        by its ``id``."""
        values, units_of_message = dict(zip(scope, entry, strict=True)), dict[int, int]()
        self.spread(eliminated.left, scope, entry, units, units_of_message)
        for bucket in reversed(eliminated.buckets):
            (part,), (message,) = bucket.parts, bucket.messages
            here = tuple(values[variable] for variable in message.scope)
            units, scope = units_of_message[id(message)], (*message.scope, bucket.variable)
            best, value = np.inf, -1
            for choice in range(self.sizes[bucket.variable]):
                fronts = self.fronts(part, scope, (*here, choice))
                cost = added(fronts)[-1][units] if fronts is not None else np.inf
                if cost < best:
                    best, value = cost, choice
            values[bucket.variable] = value
            self.spread(part, scope, (*here, value), units, units_of_message)
        return values, units_of_message


def unit_of(problem: ShardProblem, room: float) -> float:
    """Bytes of a unit, a part of what some choice adds, that rounds little away, and ``room`` has at most ``MOST_UNITS``:
    by so much the limit is above what any plan needs."""
    often = np.bincount(problem.kinds, minlength=len(problem.node_kinds))
    added_ = [kind.memory - kind.memory.min() for kind in problem.node_kinds]
    sizes = sorted({float(size) for one in added_ for size in one.tolist() if room / MOST_UNITS < size <= room}, reverse=True)
    candidates = [size / part for size in sizes[:64] for part in (1, 2, 3, 4, 6, 8) if size / part > room / MOST_UNITS]

    def lost(unit: float) -> float:
        """Bytes, and a little of the unit: of those that lose the same the smaller."""
        rest = [np.mod(one[one <= room] * (1 + TIGHT), unit).sum() for one in added_]
        return float(often @ np.array(rest)) + unit * 1e-3

    return min(candidates, key=lost, default=room / MOST_UNITS)


class Fronts:
    """The fronts of one folded search at one price."""

    def __init__(self, search: FoldedSearch, price: float, memory: float, value: float) -> None:
        """Of plans of at most ``value`` seconds that need at most ``memory`` bytes. Raises TooManyError."""
        self.search, self.price, self.memory = search, price, memory
        problem = search.problem
        least = float(sum(problem.node(node).memory.min() for node in range(problem.size)))
        room = max(memory - least, 0.0)
        unit = unit_of(problem, room)
        most = int(room * (1 + TIGHT) / unit) if unit else 0
        self.solved = search.solved(price)
        if not search.whole:
            raise TooManyError
        model = self.solved.model
        beyond = [kind.memory - kind.memory.min() for kind in problem.node_kinds]
        units = [np.floor(one * (1 + TIGHT) / unit) if unit else 0.0 * one for one in beyond]
        most_left = [float((one - unit * own)[own <= most].max()) for one, own in zip(beyond, units, strict=True)]
        rest = sum(most_left[kind] for kind in problem.kinds)
        paid: Floats = price * unit * np.arange(most + 1, dtype=np.float64)
        self.unpaid = price * np.minimum(memory - unit * np.arange(most + 1), least + rest)
        target = (value + price * memory) * (1 + TIGHT)
        outer = Marginals(model.sizes, keep=True)
        outer.through(self.solved.outer, (), np.zeros(()), [step.whole for step in self.solved.steps])
        units_of = {id(table): units[kind].astype(np.int64) for kind, table in model.unary.items()}
        self.outer = _Tree(model.sizes, outer.outside, units_of, paid, target, search.until)
        self.inner: list[dict[int, _Tree]] = []
        for step in self.solved.steps:
            self.step(step, outer.outside[id(step.whole)])
        self.outer.through(self.solved.outer)
        fronts = self.outer.fronts(self.solved.outer.left, (), ())
        self.front = added(fronts)[-1] if fronts is not None else np.full(most + 1, np.inf)
        self.values = self.front - self.unpaid

    @property
    def bound(self) -> float:
        """Seconds that no plan up to the target is below; inf where there is none."""
        return float(self.values.min()) * (1 - TIGHT)

    def fitting(self) -> list[tuple[int, ...]]:
        """A few plans that fit, those first that promise most."""
        promising = [int(k) for k in np.argsort(self.values, kind="stable")[:TRIED] if np.isfinite(self.values[k])]
        plans = map(self.plan, promising)
        return [choices for choices in plans if self.search.problem.memory(choices) <= self.memory]

    def step(self, step: Step, outside: Floats) -> None:
        """The fronts of a run: of one copy, then of all stretches of copies."""
        shape, trees, tables = step.stretch.table.shape, dict[int, _Tree](), dict[int, Table]()
        around = outsides(step.stretch, outside.reshape(shape))
        for count, (stretch, outside_) in reversed(around.items()):
            if stretch.parts is None:
                scope, inner, sizes = step.scope, step.inner, self.outer.sizes
            else:
                scope, inner, sizes = ENDS, stretch.parts.inner, dict(sizes_of(stretch.table))
            outside_ = outside_.reshape([sizes[v] for v in scope])
            marginals = Marginals(sizes, keep=True)
            marginals.through(inner, scope, outside_)
            tree = trees[count] = replace(self.outer, sizes=sizes, outside=marginals.outside, tables={})
            if stretch.parts is not None:
                pairs = zip(stretch.parts.factors, stretch.parts.halves, strict=True)
                tree.tables.update((id(factor), tables[half.count]) for factor, half in pairs)
            tree.through(inner)
            tables[count] = tree.sum(inner.left, scope, outside_, len(scope))
            if stretch.parts is None:
                tables[count] = _renumbered(tables[count], outside_.shape, shape)
        self.inner.append(trees)
        self.outer.tables[id(step.whole)] = _renumbered(tables[step.run.count], shape, step.whole.table.shape)

    # -- plans ---------------------------------------------------------------------------------------------------------

    def plan(self, units: int) -> tuple[int, ...]:
        """The choices of the plan of least priced cost that takes ``units``."""
        model, outer = self.solved.model, self.solved.outer
        values, units_of_message = self.outer.traced(outer, (), (), units)
        choices = np.zeros(self.search.problem.size, dtype=np.int64)
        for node in self.search.plain_nodes:
            choices[node] = values[model.choice(node)]
        for trees, step in zip(self.inner, self.solved.steps, strict=True):
            shape, single = step.stretch.table.shape, [model.sizes[v] for v in step.scope]
            entry = renumbered([values[v] for v in step.whole.scope], step.whole.table.shape, shape)
            nodes = self.search.problem.cells[step.run.chain][step.run.first]
            known: dict[tuple[tuple[int, ...], int], list[int]] = {}
            ends = self.copies(trees, step.stretch, entry, units_of_message[id(step.whole)])
            for cell, key in zip(self.search.cells[step.run], ends, strict=True):
                if key not in known:
                    inner = trees[1].traced(step.inner, step.scope, renumbered(key[0], shape, single), key[1])[0]
                    known[key] = [inner[model.choice(node)] for node in nodes]
                choices[cell] = known[key]
        return tuple(choices.tolist())

    def copies(
        self, trees: Mapping[int, _Tree], stretch: Stretch, entry: tuple[int, ...], units: int
    ) -> list[tuple[tuple[int, ...], int]]:
        """Of each copy of a stretch the entry of its table and its units."""
        if stretch.parts is None:
            return [(entry, units)]
        values, units_of = trees[stretch.count].traced(stretch.parts.inner, ENDS, entry, units)
        shared, before, behind = entry
        (one, two), (first, second) = stretch.parts.halves, stretch.parts.factors
        return [
            *self.copies(trees, one, (shared, before, values[MIDDLE]), units_of[id(first)]),
            *self.copies(trees, two, (shared, values[MIDDLE], behind), units_of[id(second)]),
        ]


def _renumbered(table: Table, shape: Sequence[int], other: Sequence[int]) -> Table:
    """The same entries of a table in another shape."""
    return {renumbered(entry, shape, other): front for entry, front in table.items()}


__all__ = ["Fronts", "TooManyError"]
