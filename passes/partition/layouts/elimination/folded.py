"""The choices of least ``seconds + price * bytes``: the inside of repeated copies is eliminated once for all of them.

A copy of a repeated part is a *cell*, ``(chain, number of the copy)``. Consecutive cells that meet their neighbours alike form
a run (``structure``). The first cell of a run is eliminated down to the variables that cross to its neighbours and those that
all copies share; ``stretches`` makes the table of the whole run from the table that is left, and that is one factor beside the
factors outside of runs. The way back gives each copy choices of its own. Time grows with the logarithm of the number of copies;
only the choices are written copy by copy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from passes.partition.layouts.elimination.elimination import BUDGET, Eliminated, Factor, Scope, eliminate, join
from passes.partition.layouts.elimination.model import Charges, Model, Owned
from passes.partition.layouts.elimination.stretches import Stretch, crossings, stretched
from passes.partition.layouts.elimination.structure import Run, structure_of
from passes.partition.layouts.problem.problem import ShardProblem

COPY_ENTRIES = 1 << 22
"""Entries of the table of one copy, at most."""


@dataclass(frozen=True, slots=True)
class Priced:
    """``bound``: ``seconds + price * bytes`` that no plan is below; what ``choices`` cost, where the search is exact."""

    choices: tuple[int, ...]
    bound: float


@dataclass(frozen=True, slots=True)
class EliminatedRun:
    """``inner``: the first copy of ``run``, eliminated down to ``scope``: the variables that all copies share, those of the
    copy before it, and those that it hands to the next. ``stretch``: all copies; ``factor``: its table over the variables at
    the ends of the run."""

    run: Run
    scope: Scope
    inner: Eliminated
    stretch: Stretch
    factor: Factor


@dataclass(frozen=True, slots=True)
class FoldedElimination:
    """The tables of a search at one price: ``outer`` eliminates the factors outside of runs and the one of each run."""

    model: Model
    runs: tuple[EliminatedRun, ...]
    outer: Eliminated


class FoldedSearch:
    """Searches of one problem at different prices of memory. ``plain_nodes`` are in no run, ``plain_values`` have factors that
    are in none."""

    def __init__(self, problem: ShardProblem, budget: int = BUDGET, until: float = math.inf) -> None:
        """``budget``: entries of the largest table; ``until``: as of ``eliminate``."""
        self.problem, self.budget, self.until = problem, budget, until
        self.exact = False
        """Whether the last search made no table in parts: a larger budget changes nothing."""
        self.structure = structure_of(problem.graph)
        self.charges = Charges(problem, self.structure.spread)
        model = Model(problem, self.charges)
        self.structure = replace(self.structure, runs=tuple(run for run in self.structure.runs if self.fits(model, run)))
        self.cells = {run: self.structure.cells[run] for run in self.structure.runs}
        in_run = np.zeros(problem.size, bool)
        for nodes in self.cells.values():
            in_run[nodes] = True
        self.plain_nodes = np.flatnonzero(~in_run).tolist()
        plain = [form.values[~in_run[form.nodes].all(axis=1)] for form in problem.graph.forms]
        self.plain_values = np.sort(np.concatenate([np.zeros(0, np.int64), *plain])).tolist()

    # -- one run -------------------------------------------------------------------------------------------------------

    def fits(self, model: Model, run: Run) -> bool:
        """Whether the tables of one copy, and of two that are joined, are small enough."""
        shared, before, _ = self.borders(model, run, self.copy_factors(model, run))
        common, state = (math.prod(model.sizes[v] for v in border) for border in (shared, before))
        return common * state**2 <= COPY_ENTRIES and common * state**3 <= BUDGET

    def copy_factors(self, model: Model, run: Run) -> list[Owned]:
        """Factors of the first copy of a run, those to the copy before included, those to the next not."""
        here, ahead = (run.chain, run.first), (run.chain, run.first + 1)
        nodes = self.problem.cells[run.chain][run.first]
        factors = [model.node_factor(node) for node in nodes]
        for number in self.structure.touching.get(here, ()):
            for owned in model.value_factors(number, frozenset(nodes)):
                cells = self.cells_of(owned)
                if here in cells and ahead not in cells:
                    factors.append(owned)
        return factors

    def cells_of(self, owned: Owned) -> set[tuple[int, int]]:
        """Cells that a factor has variables of."""
        places = self.structure.places
        return {places[node][:2] for node in owned.nodes if node in places}

    def handed_on(self, model: Model, chain: int, copy: int) -> Scope:
        """Variables of ``copy`` in factors with the next, in an order that all copies of a run share."""
        places, here = self.structure.places, (chain, copy)
        variables: dict[int, None] = {}
        for number in self.structure.crossing.get(here, ()):
            for owned in model.value_factors(number, ()):
                if self.cells_of(owned) >= {here, (chain, copy + 1)}:
                    variables.update((v, None) for v in owned.factor.scope if places[model.owner[v]][:2] == here)
        return tuple(variables)

    def borders(self, model: Model, run: Run, factors: Sequence[Owned]) -> tuple[Scope, Scope, Scope]:
        """Variables shared by all copies, those of the copy before the first, and those that the first hands to the next."""
        places = self.structure.places
        cells = {(run.chain, run.first - 1), (run.chain, run.first)}
        variables = {v for owned in factors for v in owned.factor.scope}
        shared = sorted(v for v in variables if places.get(model.owner[v], (-1, -1))[:2] not in cells)
        return tuple(shared), self.handed_on(model, run.chain, run.first - 1), self.handed_on(model, run.chain, run.first)

    def eliminated_run(self, model: Model, run: Run) -> EliminatedRun:
        factors = self.copy_factors(model, run)
        shared, before, behind = self.borders(model, run, factors)
        scope, last = (*shared, *before, *behind), self.handed_on(model, run.chain, run.last)
        inner = eliminate([owned.factor for owned in factors], model.sizes, scope, self.budget, self.until)
        table = np.ascontiguousarray(join(inner.left, scope, model.sizes))
        stretch = stretched(
            table.reshape([math.prod(model.sizes[v] for v in some) for some in (shared, before, behind)]), run.count
        )
        ends = (*shared, *before, *last)
        return EliminatedRun(run, scope, inner, stretch, Factor(ends, stretch.table.reshape([model.sizes[v] for v in ends])))

    # -- all -----------------------------------------------------------------------------------------------------------

    def plain_factors(self, model: Model) -> list[Owned]:
        """Factors outside of runs."""
        factors, nodes = [model.node_factor(node) for node in self.plain_nodes], frozenset(self.plain_nodes)
        for number in self.plain_values:
            factors += [owned for owned in model.value_factors(number, nodes) if self.is_plain(owned)]
        return factors

    def is_plain(self, owned: Owned) -> bool:
        """Whether a factor is outside of runs: it touches none, or leads from the last copy of one to the next cell."""
        cells = self.cells_of(owned)
        return all(
            (chain, copy) == (run.chain, run.last) and (chain, copy + 1) in cells
            for chain, copy in cells
            for run in self.structure.runs
            if run.chain == chain and run.first <= copy <= run.last
        )

    def eliminated(self, price: float) -> FoldedElimination:
        model = Model(self.problem, self.charges, price)
        runs = [self.eliminated_run(model, run) for run in self.structure.runs]
        factors = [owned.factor for owned in self.plain_factors(model)]
        outer = eliminate([*factors, *(run.factor for run in runs)], model.sizes, (), self.budget, self.until)
        self.exact = outer.exact and all(run.inner.exact for run in runs)
        return FoldedElimination(model, tuple(runs), outer)

    def cheapest(self, price: float) -> Priced:
        """The choices of least ``seconds + price * bytes``; good ones where the search is not exact."""
        tables = self.eliminated(price)
        values: dict[int, int] = {}
        tables.outer.trace(values)
        choices = np.zeros(self.problem.size, dtype=np.int64)
        for node in self.plain_nodes:
            choices[node] = values[tables.model.choice(node)]
        for run in tables.runs:
            self.write(tables.model, run, values, choices)
        return Priced(tuple(choices.tolist()), sum(float(factor.table) for factor in tables.outer.left))

    def write(self, model: Model, found: EliminatedRun, values: dict[int, int], choices: np.ndarray) -> None:
        """Writes the choices of a run's copies into ``choices``, given the values at its ends."""
        shape, sizes = found.stretch.table.shape, [model.sizes[v] for v in found.scope]
        shared, before, behind = reshaped([values[v] for v in found.factor.scope], found.factor.table.shape, shape)
        nodes = self.problem.cells[found.run.chain][found.run.first]
        choices_at: dict[tuple[int, int], list[int]] = {}
        for cell, ends in zip(self.cells[found.run], crossings(found.stretch, shared, before, behind), strict=True):
            if ends not in choices_at:
                inner = dict(zip(found.scope, reshaped((shared, *ends), shape, sizes), strict=True))
                found.inner.trace(inner)
                choices_at[ends] = [inner[model.choice(node)] for node in nodes]
            choices[cell] = choices_at[ends]


def reshaped(entry: Sequence[int], shape: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    """The position of an entry of a table of ``shape`` once the table is reshaped to ``other``."""
    number = int(np.ravel_multi_index(tuple(entry), tuple(shape))) if shape else 0
    return tuple(map(int, np.unravel_index(number, tuple(other)))) if other else ()


def least_memory(problem: ShardProblem) -> tuple[int, ...]:
    """The choices of least memory, of these the quickest, node by node: every choice goes with every other."""
    by_kind = [int(np.lexsort((kind.seconds, kind.memory))[0]) for kind in problem.node_kinds]
    return tuple(by_kind[kind] for kind in problem.kinds)
