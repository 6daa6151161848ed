"""Throughput: the least possible largest load, exact whenever the lattice of ideals can be walked within the budget.

The objective as the shared search wants it (``search``): its lower bounds are those of load balance, largest node and cuts
(``bounds``); its programme is that of ``dp``. Of the optimal plans it keeps one with the least sum of transfers: on real links
a tensor sent to two stages is sent twice, and what nobody needs to move cannot be late.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ir.core.outcomes import TIGHT, Outcome
from passes.partition.lattice.objective import Budget, SearchObjective, Solution
from passes.partition.lattice.search.search import Search
from passes.solvers.anytime import Progress, Statistics
from passes.stages.bounds import best_bound, prices
from passes.stages.lattice.dp import KeepOn, Stages, solve_family
from passes.stages.lattice.ideals import Family
from passes.stages.lattice.tables import Tables
from passes.stages.problem import Problem, plan_costs, plan_loads, stage_cost, violations
from passes.stages.reduce import memory_can_bind


def solve(problem: Problem, budget: Budget | None = None, progress: Progress = lambda label, fraction: None) -> Solution:
    """The best contiguous plan that the budget finds, with a valid lower bound."""
    if problem.stages == 1 and problem.size:
        return _in_one_stage(problem, budget or Budget())
    return Search(Throughput(problem), budget or Budget(), progress).run()


def _in_one_stage(problem: Problem, budget: Budget) -> Solution:
    """The best plan of one stage: there is one for each kind. None where it is not below the value of the incumbent."""
    objective, nodes = Throughput(problem), tuple(range(problem.size))
    value, kind = min((objective.value(((kind, nodes),)), kind) for kind in range(len(problem.kinds)))
    done = Statistics(ideals=2, stored=2, tested=1, transitions=len(problem.kinds))
    reason = "one stage was tried on every kind of device"
    if value < budget.beaten:
        return Solution(value=value, bound=value, status="optimal", reason=reason, stages=((kind, nodes),), statistics=done)
    status: Outcome = "infeasible" if math.isinf(value) else "undecided"
    return Solution(value=math.inf, bound=value, status=status, reason=reason, stages=None, statistics=done)


class Throughput(SearchObjective):
    """See the module; stages are (kind, nodes)."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.price = prices(problem)

    def bound(self) -> tuple[float, str]:
        return best_bound(self.problem, self.price)

    def value(self, stages: Stages) -> float:
        problem = self.problem
        if not stages or problem.forced or problem.stages is not None or memory_can_bind(problem):
            faults = violations(problem, stages)
            return math.inf if faults else max((cost.load for cost in plan_costs(problem, stages)), default=0.0)
        loads = plan_loads(problem, stages)
        if loads is None:
            return math.inf
        # The definition sums more exactly, but over every tensor: only the stages that may be the largest are asked.
        largest = [stages[s] for s in np.flatnonzero(loads[0] >= loads.max() * (1 - TIGHT)).tolist()]
        return max(stage_cost(problem, nodes, kind).load for kind, nodes in largest)

    def dearest(self, stages: Stages) -> Sequence[int]:
        return max(plan_costs(self.problem, stages), key=lambda cost: cost.load).nodes

    def polish(self, tables: Tables, family: Family, value: float, keep_on: KeepOn) -> Stages | None:
        if not self.problem.tensor_bytes.any():
            return None  # a workload that states seconds: there are no links to spare
        return solve_family(tables, family, value, keep_on, additive=True).stages
