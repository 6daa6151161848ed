"""Training solved: the shared search over units, with a dynamic programme that knows both sides of a load.

A load has a forward side (FW) and a backward side (BW). *sum*, the least max (FW + BW), is one programme over a family of
ideals. *split*, the least max FW + max BW, cannot be found with one number per ideal: which plan is best up to an ideal depends
on what follows. Instead the front of pairs (max FW, max BW) is walked from its end of largest FW. With no cap on FW but the
best value, find the least max BW, b; then, among plans with max BW at most b, the least max FW, f. Every plan not yet ruled out
has max FW below f (else it is no better on either side) and, to be better than the best value v so far, max FW below v - b,
since its max BW is at least b. The lower of the two is the next cap. The walk ends when no plan is under the cap: each step of
it is exact, so the best pair seen is the optimum of the family.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ir.core.outcomes import SLACK, TIGHT
from passes.partition.lattice.objective import Budget, SearchObjective, Solution
from passes.partition.lattice.search.search import Search
from passes.reference.training.problem import (
    OBJECTIVES,
    Replication,
    TrainingGraph,
    TrainingLoad,
    joins_of,
    one_sided,
    replicate_training,
    training_load,
    training_value,
    units,
)
from passes.solvers.anytime import Progress
from passes.stages.bounds import lower_bound, prices
from passes.stages.lattice.dp import Found, KeepOn, Stages, solve_family
from passes.stages.lattice.ideals import Family, possible
from passes.stages.lattice.tables import Tables
from passes.stages.problem import Kind, Problem, plan_loads
from passes.stages.reduce import members_of


@dataclass(frozen=True)
class TrainingSolution(Solution):
    """``stages`` holds the graph's own nodes, forward and backward; ``loads``: of each stage, over units; ``kinds``: of
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
        self.summed = self.problem = one_sided(units) if objective == "sum" else units
        self.price = prices(units)

    def bound(self) -> tuple[float, str]:
        """Of both sides together; for ``split`` also the sum of what holds for either side alone."""
        best, reason = lower_bound(self.problem, self.price)
        if self.objective == "split":
            parts = [replace(self.units, seconds=np.ascontiguousarray(seconds)) for seconds in joins_of(self.units).seconds]
            apart = sum(lower_bound(part, prices(part))[0] for part in parts)
            if apart > best:
                return apart, "forward and backward each at their own bound of load balance or largest node"
        return best, reason

    def value(self, stages: Stages) -> float:
        loads = plan_loads(self.summed, stages)
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
        """The best plan for *split* of value at most ``trial``; the walk ends at a plan of value at most ``floor``."""
        allowed, most = possible(tables, family, trial), trial * (1 + tables.slack)
        value, best, cap, backward = trial, None, math.inf, 0.0
        tested = priced = 0

        def least(weights: tuple[float, float], caps: tuple[float, float]) -> Found:
            """The plan whose largest weighted load is least and at most ``value``. ``weights``, ``caps``: of FW and of BW."""
            nonlocal tested, priced
            before, sides = tested, (*weights, *caps, most)
            found = solve_family(
                tables, family, value, lambda more, part: keep_on(before + more, part), sides=sides, allowed=allowed
            )
            tested, priced = tested + found.tested, priced + found.priced
            return found

        while True:
            found = least((0.0, 1.0), (min(cap, value), math.inf))
            if found.stages is not None:
                backward = found.value
                found = least((1.0, 0.0), (math.inf, backward))
            forward = found.value
            if found.stages is not None and forward + backward <= value:
                value, best = forward + backward, found.stages
            cap = min(forward, value - backward) * (1 - SLACK)
            if found.stages is None or cap <= 0 or (best is not None and value <= floor):
                return Found(best, value if best is not None else math.inf, tested, priced, found.complete)
