"""Training solved: units, then the shared search with a programme that knows both sides of a load.

*sum* is one programme over the family. *split*, the least max FW + max BW, is no programme with one number per state: which
plan is best up to an ideal depends on what follows. Instead the front of pairs (max FW, max BW) is walked from its far end.
With no cap on FW but the best value, find the least max BW, b; then, among plans with max BW at most b, the least max FW, f.
Every plan not yet ruled out has max FW below f (else it is no better on either side) and, to be better than the best value v
so far, max FW below v - b, since its max BW is at least b. That is the next cap. The walk ends when no plan is under the cap:
each step of it is exact, so the best pair seen is the optimum of the family.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from passes.model.stages.bounds import lower_bound, prices
from passes.model.stages.lattice.dp import Found, KeepOn, Stages, solve_family
from passes.model.stages.lattice.ideals import Family, Tables, possible
from passes.model.stages.problem import Kind, Problem, plan_loads
from passes.model.stages.reduce import members_of
from passes.partition.objective import SLACK, TIGHT, Budget, Progress, SearchObjective, Solution
from passes.partition.search.search import Search
from passes.partition.training.problem import (
    OBJECTIVES,
    Replication,
    TrainingGraph,
    TrainingLoad,
    joined,
    one_sided,
    replicate_training,
    training_load,
    training_value,
    units,
)


@dataclass(frozen=True)
class TrainingSolution(Solution):
    """``stages`` holds the graph's own nodes, forward and backward; ``loads``: the units of each stage evaluated; ``kinds``: of
    devices, what a stage names by position."""

    loads: tuple[TrainingLoad, ...] = ()
    kinds: tuple[Kind, ...] = ()


def solve_training(
    graph: TrainingGraph,
    objective: str = "sum",
    budget: Budget | None = None,
    progress: Progress = lambda label, fraction: None,
    replication: Replication | None = None,
) -> TrainingSolution:
    """The best plan that the budget finds, with a valid lower bound. ``objective``: ``sum`` (FW + BW) or ``split`` (max FW +
    max BW). ``replication``: of stages, its weights by node of the graph. Raises ValueError for another objective."""
    if objective not in OBJECTIVES:
        raise ValueError(f"objective is {objective!r}, expected one of {', '.join(OBJECTIVES)}")
    problem, nodes_of = units(graph)
    if replication is not None:
        weights = np.array([int(replication.weights[list(nodes)].sum()) for nodes in nodes_of], np.int64)
        problem = replicate_training(problem, replace(replication, weights=weights))
    found = Search(Training(problem, objective), budget or Budget(), progress).run()
    return TrainingSolution(
        **{**vars(found), "stages": found.stages and members_of(found.stages, nodes_of)},
        loads=tuple(training_load(problem, kind, inside) for kind, inside in found.stages or ()),
        kinds=problem.kinds,
    )


class Training(SearchObjective):
    """The objective as the search wants it: nodes are units, labels are kinds."""

    def __init__(self, units: Problem, objective: str) -> None:
        self.units, self.objective = units, objective
        self.whole = self.problem = one_sided(units) if objective == "sum" else units
        self.price = prices(units)

    def bound(self) -> tuple[float, str]:
        """Of both sides together; for ``split`` also the sum of what holds for either side alone."""
        best, reason = lower_bound(self.problem, self.price)
        if self.objective == "split":
            parts = [replace(self.units, seconds=np.ascontiguousarray(seconds)) for seconds in joined(self.units).seconds]
            apart = sum(lower_bound(part, prices(part))[0] for part in parts)
            if apart > best:
                return apart, "forward and backward each at their own bound of load balance or largest node"
        return best, reason

    def value(self, stages: Stages) -> float:
        loads = plan_loads(self.whole, stages)
        if loads is None:
            return math.inf
        for kind, nodes in stages:
            limit = self.units.kinds[kind].memory
            if limit is not None and int(self.units.weight_bytes[list(nodes)].sum()) > limit:
                return math.inf
        # The definition sums more exactly, but over every tensor: only the stages that may be the largest are asked.
        largest = np.flatnonzero((loads >= loads.max(axis=1, initial=0.0, keepdims=True) * (1 - TIGHT)).any(axis=0))
        return training_value(self.objective, [training_load(self.units, *stages[s]) for s in largest.tolist()])

    def dearest(self, stages: Stages) -> Sequence[int]:
        loads = [training_load(self.units, kind, nodes) for kind, nodes in stages]
        return max(loads, key=lambda load: load.forward + load.backward).nodes

    def programme(
        self, tables: Tables, family: Family, order: Sequence[int], trial: float, keep_on: KeepOn, floor: float = 0.0
    ) -> Found:
        if self.objective == "sum":
            return super().programme(tables, family, order, trial, keep_on, floor)
        return self._walk_front(tables, family, trial, keep_on, floor)

    def _walk_front(self, tables: Tables, family: Family, trial: float, keep_on: KeepOn, floor: float) -> Found:
        """See the module. A plan of value at most ``trial`` has both its sides within it; at ``floor`` the walk may end."""
        allowed, most = possible(tables, family, trial), trial * (1 + tables.slack)
        value, best, cap, backward = trial, None, math.inf, 0.0
        tested = priced = 0

        def least(shares: tuple[float, float], caps: tuple[float, float]) -> Found:
            """The plan whose largest share of a load, forward and backward, is least and at most ``value``, within the caps."""
            nonlocal tested, priced
            before, sides = tested, (*shares, *caps, most)
            found = solve_family(
                tables, family, value, lambda more, part: keep_on(before + more, part), sides=sides, allowed=allowed
            )
            tested, priced = tested + found.tested, priced + found.priced
            return found

        while True:
            last = least((0.0, 1.0), (min(cap, value), math.inf))
            if last.complete and last.stages is not None:
                backward = last.value
                last = least((1.0, 0.0), (math.inf, backward))
            if last.stages is not None and last.value + backward <= value:
                value, best = last.value + backward, last.stages
            cap = min(last.value, value - backward) * (1 - SLACK)
            if last.stages is None or cap <= 0 or (best is not None and value <= floor):
                return Found(best, value if best is not None else math.inf, tested, priced, last.complete)


__all__ = ["Training", "TrainingSolution", "solve_training"]
