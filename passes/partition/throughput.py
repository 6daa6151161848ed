"""Throughput: the least possible largest load, exact whenever the lattice of ideals can be walked within the budget.

The objective as the shared search wants it (``search``): its lower bounds are those of load balance, largest node and transfers
that cannot be avoided (``bounds``); its programme is that of ``dp``. Of the optimal plans it keeps one with the least sum of
transfers: on real links a tensor sent to two stages is sent twice, and what nobody needs to move cannot be late.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from passes.partition.bounds import best_bound, prices
from passes.partition.dp import Found, KeepOn, Stages, solve_family
from passes.partition.ideals import Family, Tables
from passes.partition.problem import Problem, plan_costs, violations
from passes.partition.search import TIGHT, Budget, Progress, Search, Solution, Statistics


def solve(problem: Problem, budget: Budget | None = None, progress: Progress = lambda label, fraction: None) -> Solution:
    """The best contiguous plan that the budget finds, with a valid lower bound."""
    return Search(Throughput(problem), budget or Budget(), progress).run()


class Throughput:
    """See the module; stages are (kind, nodes)."""

    contracts = True

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.price = prices(problem)

    def bound(self) -> tuple[float, str]:
        return best_bound(self.problem, self.price)

    def value(self, stages: Stages) -> float:
        if violations(self.problem, stages):
            return math.inf
        return max((cost.load for cost in plan_costs(self.problem, stages)), default=0.0)

    def programme(
        self, tables: Tables, family: Family, order: Sequence[int], trial: float, keep_on: KeepOn, floor: float = 0.0
    ) -> Found:
        return solve_family(tables, family, trial, keep_on, floor=floor)

    def tighten(self, tables: Tables, family: Family, bound: float, value: float) -> float:
        return bound

    def polish(self, tables: Tables, family: Family, value: float, keep_on: KeepOn) -> Stages | None:
        return solve_family(tables, family, value, keep_on, additive=True).stages


__all__ = ["TIGHT", "Budget", "Progress", "Solution", "Statistics", "Throughput", "solve"]
