"""One search over the folded graph at a price of memory: what copies have inside is eliminated once for all of them.

Consecutive copies that meet their neighbours alike form a run (``structure``). Of a run one copy is eliminated but for the
variables that cross to its neighbours and those that all copies share: a table over these, of which a stretch of copies is made
(``stretches``), one factor beside those outside of runs. The way back gives each copy its own choices; they are not tied. The
cost of a search grows with the logarithm of the number of copies, that of writing the choices down with their number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from passes.shard.elimination.elimination import BUDGET, Eliminated, Factor, Scope, eliminate, join
from passes.shard.elimination.marginals import Marginals
from passes.shard.elimination.model import Charges, Model, Owned
from passes.shard.elimination.stretches import Stretch, crossings, outsides, stretched
from passes.shard.elimination.structure import Run, structure_of
from passes.shard.problem.problem import Floats, ShardProblem

MOST_STATES = 1 << 22
"""Entries of the table of a copy."""


@dataclass(frozen=True, slots=True)
class Found:
    """One search at one price: ``total`` is the least sum, or below it where tables were made in parts or relaxed."""

    choices: tuple[int, ...]
    total: float


@dataclass(frozen=True, slots=True)
class Step:
    """A run. ``inner``: its first copy, eliminated but for ``scope``: what all copies share, what crosses from the copy before,
    and to the next. ``stretch``: all copies, of which ``whole`` is the table over the variables at the ends of the run."""

    run: Run
    scope: Scope
    inner: Eliminated
    stretch: Stretch
    whole: Factor


@dataclass(frozen=True, slots=True)
class Solved:
    """One search: ``outer`` eliminates the factors outside of runs and one for each of ``steps``."""

    model: Model
    steps: tuple[Step, ...]
    outer: Eliminated


class FoldedSearch:
    """Searches of one problem at different prices; what repeats is found once."""

    def __init__(self, problem: ShardProblem, budget: int = BUDGET, until: float = math.inf) -> None:
        """``budget``: entries of the largest table; ``until``: as of ``eliminate``."""
        self.problem, self.budget, self.until = problem, budget, until
        self.whole = False
        """Whether the last search made no table in parts: a larger budget changes nothing."""
        self.structure = structure_of(problem.graph)
        self.charges = Charges(problem, self.structure.spread)
        wide = self.too_wide()
        if wide:
            runs = tuple(run for run in self.structure.runs if run not in wide)
            self.structure = replace(self.structure, runs=runs)
        self.plain_nodes, self.plain_values = self.outside()
        self.free = frozenset(self.plain_nodes)
        self.cells = {run: np.array(problem.cells[run.chain][run.first : run.last + 1]) for run in self.structure.runs}

    def outside(self) -> tuple[list[int], list[int]]:
        """Nodes that are in no run, and values that have a factor outside of runs."""
        problem, places = self.problem, self.structure.places
        within: set[tuple[int, int]] = set()
        for run in self.structure.runs:
            within.update((run.chain, copy) for copy in range(run.first, run.last + 1))
        self.within = within
        nodes = [node for node in range(problem.size) if node not in places or places[node][:2] not in within]
        free = set(nodes)
        values = [
            number
            for number, value in enumerate(problem.values)
            if value.maker[0] in free or any(node in free for node, _ in value.readers)
        ]
        return nodes, values

    def too_wide(self) -> list[Run]:
        """Runs whose stretches would need too large tables, or that are not separable."""
        model = Model(self.problem, self.charges)
        wide = []
        for run in self.structure.runs:
            shared, before, _ = self.borders(model, run, self.step_factors(model, run))
            common, state = (math.prod(model.sizes[v] for v in border) for border in (shared, before))
            if common * state**2 > MOST_STATES or common * state**3 > BUDGET or not self.separable(run, model):
                wide.append(run)
        return wide

    def separable(self, run: Run, model: Model) -> bool:
        """Whether no table ties a copy to others than its neighbours and what all share."""
        places = self.structure.places
        for number in self.structure.touching.get((run.chain, run.first), ()):
            for owned in model.value_factors(number, frozenset(self.problem.cells[run.chain][run.first])):
                copies = {places[n][1] for n in owned.nodes if n in places and places[n][0] == run.chain}
                maker = self.problem.values[number].maker[0]
                strangers = [n for n in owned.nodes if n not in places or places[n][0] != run.chain]
                if len(copies) > 2 or (strangers and set(strangers) != {maker}) or (strangers and len(copies) > 1):
                    return False
        return True

    # -- one step ------------------------------------------------------------------------------------------------------

    def step_factors(self, model: Model, run: Run) -> list[Owned]:
        """Factors of the first copy of a run, those to the copy before included, those to the next not."""
        here, ahead = (run.chain, run.first), (run.chain, run.first + 1)
        places = self.structure.places
        nodes = frozenset(self.problem.cells[run.chain][run.first])
        found = [model.node_factor(node) for node in self.problem.cells[run.chain][run.first]]
        for number in self.structure.touching.get(here, ()):
            for owned in model.value_factors(number, nodes):
                cells = {places[node][:2] for node in owned.nodes if node in places}
                if here in cells and ahead not in cells:
                    found.append(owned)
        return found

    def cut(self, model: Model, chain: int, copy: int) -> tuple[int, ...]:
        """Variables of ``copy`` in factors with the next, in an order that all copies of a run share."""
        places = self.structure.places
        found: dict[int, None] = {}
        for number in self.structure.crossing.get((chain, copy), ()):
            for owned in model.value_factors(number, ()):
                cells = {places[node][:2] for node in owned.nodes if node in places}
                if (chain, copy + 1) in cells and (chain, copy) in cells:
                    found.update((v, None) for v in owned.factor.scope if places[model.owner[v]][:2] == (chain, copy))
        return tuple(found)

    def borders(self, model: Model, run: Run, factors: Sequence[Owned]) -> tuple[Scope, Scope, Scope]:
        """Variables shared by all copies, those of the copy before the first, and those of the first that the next reads."""
        places = self.structure.places
        cells = {(run.chain, run.first - 1), (run.chain, run.first)}
        scopes = {v for owned in factors for v in owned.factor.scope}
        shared = sorted(v for v in scopes if places.get(model.owner[v], (-1, -1))[:2] not in cells)
        return tuple(shared), self.cut(model, run.chain, run.first - 1), self.cut(model, run.chain, run.first)

    def step(self, model: Model, run: Run) -> Step:
        """The first copy is eliminated, and stretched over the run."""
        factors = self.step_factors(model, run)
        shared, before, behind = self.borders(model, run, factors)
        scope, last = (*shared, *before, *behind), self.cut(model, run.chain, run.last)
        inner = eliminate([owned.factor for owned in factors], model.sizes, scope, self.budget, self.until)
        table = np.ascontiguousarray(join(inner.left, scope, model.sizes))
        stretch = stretched(
            table.reshape([math.prod(model.sizes[v] for v in some) for some in (shared, before, behind)]), run.count
        )
        ends = (*shared, *before, *last)
        return Step(run, scope, inner, stretch, Factor(ends, stretch.table.reshape([model.sizes[v] for v in ends])))

    # -- all -----------------------------------------------------------------------------------------------------------

    def plain_factors(self, model: Model) -> list[Owned]:
        """Factors outside of runs."""
        factors = [model.node_factor(node) for node in self.plain_nodes]
        for number in self.plain_values:
            factors += [owned for owned in model.value_factors(number, self.free) if self.is_plain(owned)]
        return factors

    def run(self, price: float) -> Found:
        """The least of seconds plus ``price`` times bytes."""
        solved = self.solved(price)
        model, outer = solved.model, solved.outer
        total = sum(float(factor.table) for factor in outer.left)
        values: dict[int, int] = {}
        outer.trace(values)
        choices = np.zeros(self.problem.size, dtype=np.int64)
        for node in self.plain_nodes:
            choices[node] = values[model.choice(node)]
        for step in solved.steps:
            self.write(model, step, values, choices)
        return Found(tuple(choices.tolist()), total)

    def solved(self, price: float) -> Solved:
        """The tables of a search at this price."""
        model = Model(self.problem, self.charges, price)
        steps = [self.step(model, run) for run in self.structure.runs]
        factors = [owned.factor for owned in self.plain_factors(model)]
        outer = eliminate([*factors, *(step.whole for step in steps)], model.sizes, (), self.budget, self.until)
        self.whole = outer.exact and all(step.inner.exact for step in steps)
        return Solved(model, tuple(steps), outer)

    def least(self, price: float) -> list[Floats]:
        """For each kind of nodes and each choice, what any plan costs at least in which one of them takes it."""
        solved = self.solved(price)
        model = solved.model
        least = [np.full(len(kind.seconds), np.inf) for kind in self.problem.node_kinds]

        def noted(nodes: Iterable[int], marginals: Marginals) -> None:
            for node in nodes:
                kind = self.problem.kinds[node]
                np.minimum(least[kind], marginals.of[model.choice(node)], out=least[kind])

        outer = Marginals(model.sizes)
        outer.through(solved.outer, (), np.zeros(()), [step.whole for step in solved.steps])
        noted(self.plain_nodes, outer)
        for step in solved.steps:
            around = outsides(step.stretch, outer.outside[id(step.whole)].reshape(step.stretch.table.shape))
            inner = Marginals(model.sizes)
            inner.through(step.inner, step.scope, around[1][1].reshape([model.sizes[v] for v in step.scope]))
            noted(self.problem.cells[step.run.chain][step.run.first], inner)
        return least

    def is_plain(self, owned: Owned) -> bool:
        """Whether a factor is part of no step: it touches no run, or leads from the last copy of one to the next cell."""
        places = self.structure.places
        cells = {places[node][:2] for node in owned.nodes if node in places}
        touched = cells & self.within
        ends = {(run.chain, run.last) for run in self.structure.runs}
        return all(cell in ends and (cell[0], cell[1] + 1) in cells for cell in touched)

    def write(self, model: Model, step: Step, values: dict[int, int], choices: np.ndarray) -> None:
        """Writes down the choices of a run's copies, given the values at its ends."""
        shape, single = step.stretch.table.shape, [model.sizes[v] for v in step.scope]
        shared, before, behind = renumbered([values[v] for v in step.whole.scope], step.whole.table.shape, shape)
        nodes = self.problem.cells[step.run.chain][step.run.first]
        known: dict[tuple[int, int], list[int]] = {}
        for cell, ends in zip(self.cells[step.run], crossings(step.stretch, shared, before, behind), strict=True):
            if ends not in known:
                inner = dict(zip(step.scope, renumbered((shared, *ends), shape, single), strict=True))
                step.inner.trace(inner)
                known[ends] = [inner[model.choice(node)] for node in nodes]
            choices[cell] = known[ends]


def renumbered(entry: Sequence[int], shape: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    """The same entry of a table in another shape."""
    number = int(np.ravel_multi_index(tuple(entry), tuple(shape))) if shape else 0
    return tuple(map(int, np.unravel_index(number, tuple(other)))) if other else ()


def least_memory(problem: ShardProblem) -> Found:
    """Each node's least memory, then the least seconds of its own: a plan where anything fits, if no choice of one node rules
    out those of others, as none does here."""
    by_kind = [int(np.lexsort((kind.seconds, kind.memory))[0]) for kind in problem.node_kinds]
    choices = tuple(by_kind[kind] for kind in problem.kinds)
    return Found(choices, problem.memory(choices))


__all__ = ["FoldedSearch", "Found", "Solved", "Step", "least_memory", "renumbered"]
