"""Throughput: the least possible largest load, exact whenever the lattice of ideals can be walked within the budget.

The objective as the shared search wants it (``search``): its lower bounds are those of load balance, largest node and transfers
that cannot be avoided (``bounds``); its programme is that of ``dp``. Of the optimal plans it keeps one with the least sum of
transfers: on real links a tensor sent to two stages is sent twice, and what nobody needs to move cannot be late.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy

import numpy as np

from passes.model.stages.arrays import distinct
from passes.model.stages.bounds import best_bound, prices
from passes.model.stages.lattice.dp import Found, KeepOn, Stages, solve_family
from passes.model.stages.lattice.ideals import Family, Tables
from passes.model.stages.load import load
from passes.model.stages.problem import Floats, Problem, crowding, part_of, plan_costs, stage_cost, violations, within
from passes.model.stages.reduce import Groups, memory_can_bind
from passes.partition.heuristics.segments import segmented
from passes.partition.search.search import TIGHT, Budget, Progress, Search, Solution, Statistics


def solve(problem: Problem, budget: Budget | None = None, progress: Progress = lambda label, fraction: None) -> Solution:
    """The best contiguous plan that the budget finds, with a valid lower bound."""
    return Search(Throughput(problem), budget or Budget(), progress).run()


class Throughput:
    """See the module; stages are (kind, nodes)."""

    contracts = True

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.price = prices(problem)
        self.limited = memory_can_bind(problem)

    def bound(self) -> tuple[float, str]:
        return best_bound(self.problem, self.price)

    def value(self, stages: Stages) -> float:
        if not stages or self.limited or self.problem.forced or self.problem.stages is not None:
            faults = violations(self.problem, stages)
            return math.inf if faults else max((cost.load for cost in plan_costs(self.problem, stages)), default=0.0)
        loads = self._loads(stages)
        if loads is None:
            return math.inf
        # The definition sums more exactly, but over every tensor: only the stages that may be the largest are asked.
        largest = [stages[s] for s in np.flatnonzero(loads >= loads.max() * (1 - TIGHT)).tolist()]
        return max(stage_cost(self.problem, nodes, kind).load for kind, nodes in largest)

    def _loads(self, stages: Stages) -> Floats | None:
        """The load of every stage, by summing arrays; None for a plan that breaks a constraint (memory is not looked at)."""
        problem, count = self.problem, len(stages)
        place = np.full(problem.size, -1, np.int64)
        for s, (_, nodes) in enumerate(stages):
            place[list(nodes)] = s
        whole = sum(len(nodes) for _, nodes in stages) == problem.size and all(nodes for _, nodes in stages)
        kinds = [kind for kind, _ in stages]
        if not whole or (place < 0).any() or crowding(problem.kinds, kinds):
            return None
        _, reader, tensor = problem.reading
        made, read = place[problem.producer], place[reader]
        if (read < made[tensor]).any():
            return None
        moved = distinct((tensor * count + read)[read > made[tensor]])
        receiver, received = moved % count, moved // count
        sent = distinct(received)
        kind_of = np.array(kinds)
        compute = np.bincount(place, weights=problem.seconds[kind_of[place], np.arange(problem.size)], minlength=count)
        into = np.bincount(receiver, weights=problem.transfer[kind_of[receiver], received], minlength=count)
        out = np.bincount(made[sent], weights=problem.transfer[kind_of[made[sent]], sent], minlength=count)
        loads = [load(problem.comm, *parts) for parts in zip(compute.tolist(), into.tolist(), out.tolist(), strict=True)]
        return None if math.inf in loads else np.array(loads)

    def programme(
        self, tables: Tables, family: Family, order: Sequence[int], trial: float, keep_on: KeepOn, floor: float = 0.0
    ) -> Found:
        return solve_family(tables, family, trial, keep_on, floor=floor)

    def dearest(self, stages: Stages) -> Sequence[int]:
        return max(plan_costs(self.problem, stages), key=lambda cost: cost.load).nodes

    def part(self, nodes: Sequence[int]) -> Throughput:
        return Throughput(part_of(self.problem, nodes))

    def within(self, value: float) -> Throughput:
        narrowed = within(self.problem, value)
        return self if narrowed is self.problem else Throughput(narrowed)

    def segmented(self, groups: Groups) -> Throughput:
        other = copy(self)
        other.problem = segmented(self.problem, groups)
        return other

    def tighten(self, tables: Tables, family: Family, bound: float, value: float) -> float:
        return bound

    def moved(self) -> Floats | None:
        return None

    def starts(self, tables: Tables, bound: float, value: float, max_visits: int, keep_on: KeepOn) -> float:
        return bound

    def polish(self, tables: Tables, family: Family, value: float, keep_on: KeepOn) -> Stages | None:
        if not self.problem.tensor_bytes.any():
            return None  # a workload that states seconds: there are no links to spare
        return solve_family(tables, family, value, keep_on, additive=True).stages


__all__ = ["TIGHT", "Budget", "Progress", "Solution", "Statistics", "Throughput", "solve"]
