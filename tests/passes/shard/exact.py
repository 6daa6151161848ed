"""Exact references for the search, which share with it only what a problem is: brute force, and the full integer programme.

The programme (solved by HiGHS): a binary per node and choice, of which one is taken; per value and reader a column for each
pair of a source and a need, whose sums are the maker's and the reader's choices (equality marginals, so that only the nodes'
columns must be whole); per value, source and key a column that is at least what any reader's pairs need of it, and costs once.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import highspy
import numpy as np

from passes.shard.problem.problem import ShardProblem


def brute_force(problem: ShardProblem, memory: float | None = None) -> float:
    """The least cost of any assignment, inf where none fits; the sum is spelled out here once more."""
    best = np.inf
    for choices in itertools.product(*(range(len(problem.node_kinds[kind].seconds)) for kind in problem.kinds)):
        taken = [problem.node_kinds[kind] for kind in problem.kinds]
        if memory is not None and sum(kind.memory[c] for kind, c in zip(taken, choices, strict=True)) > memory:
            continue
        cost = sum(kind.seconds[c] for kind, c in zip(taken, choices, strict=True))
        for value in problem.values:
            source = taken[value.maker[0]].makes[value.maker[1]][choices[value.maker[0]]]
            paid = set()
            for node, port in value.readers:
                paid |= set(problem.value_kinds[value.kind].needs[taken[node].reads[port][choices[node]]])
            cost += sum(problem.value_kinds[value.kind].weights[source, key] for key in paid)
        best = min(best, cost)
    return float(best)


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


__all__ = ["brute_force", "integer_programme"]
