"""Exact references for the search, which share with it only what a problem is: brute force, and the full integer programme.

The programme (solved by HiGHS): a binary per node and choice, of which one is taken; per value and reader a column for each
pair of a source and a need, whose sums are the maker's and the reader's choices (equality marginals, so that only the nodes'
columns must be whole); per value, source and key a column that is at least what any reader's pairs need of it, and costs once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import highspy
import numpy as np
from numpy.typing import NDArray

from passes.partition.layouts.problem.problem import Floats, ShardProblem


class Plans(NamedTuple):
    """Every assignment of a problem, in the order of ``itertools.product``: ``choices`` [node, plan], and its sums."""

    choices: NDArray[np.int64]
    seconds: Floats
    memory: Floats


def every_plan(problem: ShardProblem) -> Plans:
    """All plans with what they cost; the sums are spelled out here once more."""
    taken = [problem.node_kinds[kind] for kind in problem.kinds]
    counts = [len(kind.seconds) for kind in taken]
    numbers = np.arange(math.prod(counts))
    choices = np.array([numbers // math.prod(counts[node + 1 :]) % count for node, count in enumerate(counts)])
    seconds, memory = np.zeros(len(numbers)), np.zeros(len(numbers))
    for kind, chosen in zip(taken, choices, strict=True):
        seconds += kind.seconds[chosen]
        memory += kind.memory[chosen]
    for value in problem.values:
        weights, needs = problem.value_kinds[value.kind].weights, problem.value_kinds[value.kind].needs
        keys = np.array([[key in need for key in range(weights.shape[1])] for need in needs])
        paid = np.zeros((len(numbers), weights.shape[1]), bool)
        for node, port in value.readers:
            paid |= keys[taken[node].reads[port][choices[node]]]
        maker, result = value.maker
        source = taken[maker].makes[result][choices[maker]]
        seconds += np.where(paid, weights[source], 0.0).sum(axis=1)
    return Plans(choices, seconds, memory)


def brute_force(problem: ShardProblem, memory: float | None = None) -> float:
    """The least cost of any assignment, inf where none fits."""
    plans = every_plan(problem)
    fits = plans.memory <= (math.inf if memory is None else memory)
    return float(plans.seconds[fits].min(initial=np.inf))


class Programme:
    """Columns and rows of the integer programme."""

    def __init__(self) -> None:
        self.costs: list[float] = []
        self.upper: list[float] = []
        self.whole: list[bool] = []
        self.rows: list[tuple[float, float, list[tuple[int, float]]]] = []

    def column(self, cost: float, whole: bool = False) -> int:
        self.costs.append(cost)
        self.upper.append(1.0)
        self.whole.append(whole)
        return len(self.costs) - 1

    def solve(self, seconds: float) -> tuple[float, float, list[float]]:
        """Value, bound, columns."""
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(self.costs), len(self.rows)
        lp.col_cost_, lp.col_lower_ = np.array(self.costs), np.zeros(len(self.costs))
        lp.col_upper_ = np.array(self.upper)
        lp.row_lower_ = np.array([low for low, _, _ in self.rows])
        lp.row_upper_ = np.array([high for _, high, _ in self.rows])
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.cumsum([0, *(len(entries) for _, _, entries in self.rows)]).astype(np.int32)
        lp.a_matrix_.index_ = np.array([c for _, _, entries in self.rows for c, _ in entries], np.int32)
        lp.a_matrix_.value_ = np.array([v for _, _, entries in self.rows for _, v in entries])
        kinds = highspy.HighsVarType
        lp.integrality_ = [kinds.kInteger if whole else kinds.kContinuous for whole in self.whole]
        solver = highspy.Highs()
        settings = {"output_flag": False, "threads": 1, "time_limit": seconds, "mip_rel_gap": 0.0, "mip_abs_gap": 1e-6}
        for name, value in settings.items():
            solver.setOptionValue(name, value)
        solver.passModel(lp)
        solver.run()
        if solver.getModelStatus() == highspy.HighsModelStatus.kInfeasible:
            return np.inf, np.inf, []
        info = solver.getInfo()
        return info.objective_function_value, info.mip_dual_bound, list(solver.getSolution().col_value)


def integer_programme(
    problem: ShardProblem, memory: float | None = None, seconds: float = 60.0, scale: float = 1.0
) -> tuple[float, float, tuple[int, ...]]:
    """Value, bound and choices of the full programme; costs are multiplied by ``scale`` for the solver's tolerances."""
    programme = Programme()
    taken = [
        [programme.column(float(cost) * scale, whole=True) for cost in problem.node_kinds[kind].seconds]
        for kind in problem.kinds
    ]
    for columns in taken:
        programme.rows.append((1.0, 1.0, [(column, 1.0) for column in columns]))
    for value in problem.values:
        kind = problem.value_kinds[value.kind]
        maker, result = value.maker
        makes = problem.node_kinds[problem.kinds[maker]].makes[result]
        paid: dict[tuple[int, int], int] = {}
        for node, port in value.readers:
            reads = problem.node_kinds[problem.kinds[node]].reads[port]
            pairs = {(s, n): programme.column(0.0) for s in sorted(set(makes.tolist())) for n in sorted(set(reads.tolist()))}
            marginals(programme, pairs, 0, makes, taken[maker])
            marginals(programme, pairs, 1, reads, taken[node])
            for source in sorted(set(makes.tolist())):
                for key in sorted({key for n in set(reads.tolist()) for key in kind.needs[n]}):
                    weight = float(kind.weights[source, key])
                    if not weight:
                        continue
                    if (source, key) not in paid:
                        paid[source, key] = programme.column(weight * scale)
                    needing = [(column, -1.0) for (s, n), column in pairs.items() if s == source and key in kind.needs[n]]
                    programme.rows.append((0.0, np.inf, [(paid[source, key], 1.0), *needing]))
    if memory is not None:
        used = [
            (column, float(size))
            for kind, columns in zip(problem.kinds, taken, strict=True)
            for column, size in zip(columns, problem.node_kinds[kind].memory, strict=True)
            if size
        ]
        most = max(memory, 1e-300)
        programme.rows.append((-np.inf, memory / most, [(column, size / most) for column, size in used]))
    value_, bound, columns_ = programme.solve(seconds)
    choices = tuple(int(np.argmax([columns_[c] for c in row])) for row in taken) if columns_ else ()
    return value_ / scale, bound / scale, choices


def marginals(
    programme: Programme, pairs: dict[tuple[int, int], int], side: int, classes: np.ndarray, taken: Sequence[int]
) -> None:
    """The pairs of each class of one side sum to the node's choices of that class."""
    for found in sorted(set(classes.tolist())):
        entries = [(column, 1.0) for pair, column in pairs.items() if pair[side] == found]
        entries += [(taken[choice], -1.0) for choice, number in enumerate(classes.tolist()) if number == found]
        programme.rows.append((0.0, 0.0, entries))


__all__ = ["Plans", "brute_force", "every_plan", "integer_programme"]
