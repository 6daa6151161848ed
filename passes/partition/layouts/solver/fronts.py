"""Bounds and plans under a memory limit: beside its price, memory is counted in whole units.

At one price of memory all copies of a layer choose alike, so the plans of neighbouring prices are far apart, and the Lagrangian
bound is below every plan by up to what one copy gains. Counting tells copies apart. A choice needs some bytes more than the
least that its node can do with: of these, ``units[choice]`` whole units and a remainder. Plans that fit take at most ``most``
units. An elimination keeps for each entry of its tables a *front*:

    front[k] = least of seconds + price * (bytes - k units), over what takes k units in all

and since the bytes beyond ``k`` units are at most ``limit - k units``, and at most the least bytes and all remainders together,

    seconds >= min over k <= most of front[k] - price * min(limit - k units, least bytes + largest remainders).

Fronts are added by (min, +) convolution. An entry is left out where ``marginals`` say that every plan that has it costs more
than ``target`` at this price; the result then bounds only plans up to the target.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ir.core.outcomes import TIGHT
from passes.partition.layouts.elimination.elimination import PIECE, Eliminated, Factor, Scope, join
from passes.partition.layouts.elimination.folded import EliminatedRun, FoldedSearch, reshaped
from passes.partition.layouts.elimination.marginals import Marginals
from passes.partition.layouts.elimination.stretches import ENDS, MIDDLE, Stretch, outsides, sizes_of
from passes.partition.layouts.problem.problem import Floats, Integers, ShardProblem
from passes.solvers.work import did, now

MOST_UNITS = 512
"""Units that the limit is divided into, at most."""
MOST_ENTRIES = 1 << 16
"""Entries of one table that are looked at; where more could be of a plan within the target, there are no fronts."""
TRIED = 4
"""Numbers of units for which a plan is sought."""


class TooManyError(Exception):
    """A table has too many entries that could be of a plan within the target, or time is over."""


Front = Floats
"""By number of units; inf where fewer units cost no more."""
Table = dict[tuple[int, ...], Front]
"""Fronts by the entry of a factor."""


def running_sums(fronts: Sequence[Front]) -> list[Front]:
    """The sums of the first one, two, ... of ``fronts``."""
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


def split_units(fronts: Sequence[Front], units: int) -> list[int]:
    """Units of each of ``fronts`` in the least sum that takes ``units``."""
    sums, parts = running_sums(fronts), []
    for before, front in zip(reversed(sums[:-1]), reversed(fronts[1:]), strict=True):
        parts.append(int(np.argmin(before[units::-1] + front[: units + 1])))
        units -= parts[-1]
    return [units, *reversed(parts)]


@dataclass(slots=True)
class _Tree:
    """The fronts of the messages of one elimination. ``outside``: of its messages, as of ``Marginals``; ``units_of``: units of
    the choices of a kind of nodes, by the ``id`` of the table of what they cost; ``paid[k]``: the price of ``k`` units."""

    sizes: dict[int, int]
    outside: dict[int, Floats]
    units_of: dict[int, Integers]
    paid: Floats
    target: float
    until: float
    tables: dict[int, Table] = field(default_factory=dict)
    """The fronts of a message, by its ``id``."""

    def fronts(self, factors: Sequence[Factor], scope: Scope, entry: tuple[int, ...]) -> list[Front] | None:
        """Fronts whose sum is that of ``factors`` at an entry of their joined table: first one for all factors that are no
        messages, then one per message. None where no plan up to the target has the entry."""
        value_of = dict(zip(scope, entry, strict=True))
        fixed, units, fronts = 0.0, 0, []
        for factor in factors:
            index = tuple(value_of[variable] for variable in factor.scope)
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
        """Entries of the joined table of ``factors`` that may be part of a plan up to the target."""
        if np.prod([self.sizes[variable] for variable in scope], dtype=np.float64) > PIECE:
            raise TooManyError
        total = np.asarray(join(factors, scope, self.sizes) + outside)
        alive = np.argwhere(total <= self.target)
        if len(alive) > MOST_ENTRIES:
            raise TooManyError
        yield from map(tuple, alive.tolist())

    def summed(self, factors: Sequence[Factor], scope: Scope, outside: Floats, kept: int) -> Table:
        """Fronts of the sum of ``factors`` over ``scope``, least over all but the first ``kept`` variables; ``outside``: what
        the rest costs at least."""
        least: Table = {}
        for entry in self.entries(factors, scope, outside):
            if now() > self.until:
                raise TooManyError
            fronts = self.fronts(factors, scope, entry)
            if fronts is not None:
                front = running_sums(fronts)[-1]
                before = least.get(entry[:kept])
                least[entry[:kept]] = front if before is None else np.minimum(before, front)
        around = np.broadcast_to(outside, [self.sizes[variable] for variable in scope]) if scope else outside
        any_other = (0,) * (len(scope) - kept)
        pruned = ((entry, self.pruned(front, float(around[(*entry, *any_other)]))) for entry, front in least.items())
        return {entry: front for entry, front in pruned if np.isfinite(front).any()}

    def pruned(self, front: Front, outside: float) -> Front:
        """The front without numbers of units that are no better than fewer, or beyond the target."""
        fewer = np.concatenate([[np.inf], np.minimum.accumulate(front)[:-1]])
        return np.where((front < fewer) & (front + self.paid + outside <= self.target), front, np.inf)

    def through(self, eliminated: Eliminated) -> None:
        """Fills ``tables``."""
        for bucket in eliminated.buckets:
            for part, message in zip(bucket.parts, bucket.messages, strict=True):
                outside = self.outside[id(message)][..., None]
                self.tables[id(message)] = self.summed(part, (*message.scope, bucket.variable), outside, len(message.scope))

    def units_by_message(
        self, factors: Sequence[Factor], scope: Scope, entry: tuple[int, ...], units: int
    ) -> Iterator[tuple[int, int]]:
        """The ``id`` of each message among ``factors``, and how many of the ``units`` of their sum it takes."""
        fronts = self.fronts(factors, scope, entry)
        assert fronts is not None
        messages = (id(factor) for factor in factors if id(factor) in self.tables)
        return zip(messages, split_units(fronts, units)[1:], strict=True)

    def traced(
        self, eliminated: Eliminated, scope: Scope, entry: tuple[int, ...], units: int
    ) -> tuple[dict[int, int], dict[int, int]]:
        """The values of all variables in the least plan that has ``entry`` of ``scope`` and takes ``units``; and the units of
        each message, by its ``id``."""
        values = dict(zip(scope, entry, strict=True))
        units_of_message = dict(self.units_by_message(eliminated.left, scope, entry, units))
        for bucket in reversed(eliminated.buckets):
            (part,), (message,) = bucket.parts, bucket.messages
            here = tuple(values[variable] for variable in message.scope)
            units, scope = units_of_message[id(message)], (*message.scope, bucket.variable)
            best, value = np.inf, -1
            for choice in range(self.sizes[bucket.variable]):
                fronts = self.fronts(part, scope, (*here, choice))
                cost = running_sums(fronts)[-1][units] if fronts is not None else np.inf
                if cost < best:
                    best, value = cost, choice
            values[bucket.variable] = value
            units_of_message.update(self.units_by_message(part, scope, (*here, value), units))
        return values, units_of_message


def unit_of(problem: ShardProblem, extra: Sequence[Floats], room: float) -> float:
    """Bytes of a unit that rounds little away. ``extra``: by kind of nodes, what each choice needs beyond the least one;
    ``room``: by how much the limit is above what every plan needs, at most ``MOST_UNITS`` units."""
    often = np.bincount(problem.kinds, minlength=len(problem.node_kinds))
    sizes = sorted({float(size) for one in extra for size in one.tolist() if room / MOST_UNITS < size <= room}, reverse=True)
    candidates = [size / part for size in sizes[:64] for part in (1, 2, 3, 4, 6, 8) if size / part > room / MOST_UNITS]

    def lost(unit: float) -> float:
        """Bytes that are rounded away; a little of the unit, so that among equals the smaller one is chosen."""
        rest = [np.mod(one[one <= room] * (1 + TIGHT), unit).sum() for one in extra]
        return float(often @ np.array(rest)) + unit * 1e-3

    return min(candidates, key=lost, default=room / MOST_UNITS)


class Fronts:
    """The fronts of one folded search at one price. ``seconds[k]``: no plan up to the target that fits and takes ``k`` units is
    quicker."""

    def __init__(self, search: FoldedSearch, price: float, memory: float, value: float) -> None:
        """Of plans of at most ``value`` seconds that need at most ``memory`` bytes. Raises TooManyError."""
        self.search, self.memory = search, memory
        problem = search.problem
        least = float(sum(problem.node(node).memory.min() for node in range(problem.size)))
        room = max(memory - least, 0.0)
        extra = [kind.memory - kind.memory.min() for kind in problem.node_kinds]
        unit = unit_of(problem, extra, room)
        most = int(room * (1 + TIGHT) / unit) if unit else 0
        self.tables = search.eliminated(price)
        if not search.exact:
            raise TooManyError
        model, runs = self.tables.model, self.tables.runs
        units = [np.floor(one * (1 + TIGHT) / unit) if unit else 0.0 * one for one in extra]
        remainder = [float((one - unit * own)[own <= most].max()) for one, own in zip(extra, units, strict=True)]
        remainders = sum(remainder[kind] for kind in problem.kinds)
        paid: Floats = price * unit * np.arange(most + 1, dtype=np.float64)
        target = (value + price * memory) * (1 + TIGHT)
        outer = Marginals(model.sizes, keep=True)
        outer.through(self.tables.outer, (), np.zeros(()), [run.factor for run in runs])
        units_of = {id(table): units[kind].astype(np.int64) for kind, table in model.unary.items()}
        self.outer = _Tree(model.sizes, outer.outside, units_of, paid, target, search.until)
        self.inner = [self.run_trees(run, outer.outside[id(run.factor)]) for run in runs]
        self.outer.through(self.tables.outer)
        fronts = self.outer.fronts(self.tables.outer.left, (), ())
        front = running_sums(fronts)[-1] if fronts is not None else np.full(most + 1, np.inf)
        self.seconds = front - price * np.minimum(memory - unit * np.arange(most + 1), least + remainders)

    @property
    def bound(self) -> float:
        """Seconds that no plan up to the target is below; inf where there is none."""
        return float(self.seconds.min()) * (1 - TIGHT)

    def fitting(self) -> list[tuple[int, ...]]:
        """A few plans that fit, those of the least bound first."""
        promising = [int(k) for k in np.argsort(self.seconds, kind="stable")[:TRIED] if np.isfinite(self.seconds[k])]
        plans = map(self.plan, promising)
        return [choices for choices in plans if self.search.problem.memory(choices) <= self.memory]

    def run_trees(self, run: EliminatedRun, outside: Floats) -> dict[int, _Tree]:
        """The fronts of a run, by the number of copies of a stretch: of one copy first, last of all."""
        shape, trees, tables = run.stretch.table.shape, dict[int, _Tree](), dict[int, Table]()
        around = outsides(run.stretch, outside.reshape(shape))
        for count, (stretch, rest) in reversed(around.items()):
            if stretch.parts is None:
                scope, inner, sizes = run.scope, run.inner, self.outer.sizes
            else:
                scope, inner, sizes = ENDS, stretch.parts.inner, dict(sizes_of(stretch.table))
            rest = rest.reshape([sizes[v] for v in scope])
            marginals = Marginals(sizes, keep=True)
            marginals.through(inner, scope, rest)
            tree = trees[count] = replace(self.outer, sizes=sizes, outside=marginals.outside, tables={})
            if stretch.parts is not None:
                pairs = zip(stretch.parts.factors, stretch.parts.halves, strict=True)
                tree.tables.update((id(factor), tables[half.count]) for factor, half in pairs)
            tree.through(inner)
            tables[count] = tree.summed(inner.left, scope, rest, len(scope))
            if stretch.parts is None:
                tables[count] = _reshaped(tables[count], rest.shape, shape)
        self.outer.tables[id(run.factor)] = _reshaped(tables[run.run.count], shape, run.factor.table.shape)
        return trees

    # -- plans ---------------------------------------------------------------------------------------------------------

    def plan(self, units: int) -> tuple[int, ...]:
        """The choices of the plan of least priced cost that takes ``units``."""
        model = self.tables.model
        values, units_of_message = self.outer.traced(self.tables.outer, (), (), units)
        choices = np.zeros(self.search.problem.size, dtype=np.int64)
        for node in self.search.plain_nodes:
            choices[node] = values[model.choice(node)]
        for trees, run in zip(self.inner, self.tables.runs, strict=True):
            shape, sizes = run.stretch.table.shape, [model.sizes[v] for v in run.scope]
            ends = reshaped([values[v] for v in run.factor.scope], run.factor.table.shape, shape)
            nodes = self.search.problem.cells[run.run.chain][run.run.first]
            choices_at: dict[tuple[tuple[int, ...], int], list[int]] = {}
            copies = self.copies(trees, run.stretch, ends, units_of_message[id(run.factor)])
            for cell, (entry, taken) in zip(self.search.cells[run.run], copies, strict=True):
                if (entry, taken) not in choices_at:
                    inner, _ = trees[1].traced(run.inner, run.scope, reshaped(entry, shape, sizes), taken)
                    choices_at[entry, taken] = [inner[model.choice(node)] for node in nodes]
                choices[cell] = choices_at[entry, taken]
        return tuple(choices.tolist())

    def copies(
        self, trees: Mapping[int, _Tree], stretch: Stretch, entry: tuple[int, ...], units: int
    ) -> list[tuple[tuple[int, ...], int]]:
        """The entry of the table of each copy of a stretch and the units that the copy takes, where the stretch has ``entry``
        and takes ``units``."""
        if stretch.parts is None:
            return [(entry, units)]
        values, units_of = trees[stretch.count].traced(stretch.parts.inner, ENDS, entry, units)
        shared, before, behind = entry
        (one, two), (first, second) = stretch.parts.halves, stretch.parts.factors
        return [
            *self.copies(trees, one, (shared, before, values[MIDDLE]), units_of[id(first)]),
            *self.copies(trees, two, (shared, values[MIDDLE], behind), units_of[id(second)]),
        ]


def _reshaped(table: Table, shape: Sequence[int], other: Sequence[int]) -> Table:
    """A table of ``shape``, reshaped to ``other``."""
    return {reshaped(entry, shape, other): front for entry, front in table.items()}


__all__ = ["Fronts", "TooManyError"]
