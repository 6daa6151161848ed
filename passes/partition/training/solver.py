"""Training solved: units, exact reductions, then the shared search with a programme that knows both sides of a load.

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

from passes.partition.bounds import lower_bound, prices
from passes.partition.dp import SLICE, Found, KeepOn, Stages
from passes.partition.ideals import BIG, Family, Tables, csr, members
from passes.partition.problem import Floats, Ints, Kind, Problem, pools
from passes.partition.replicas import Replication, replicate_training
from passes.partition.search import Objective, Search, per_ideal
from passes.partition.throughput import Budget, Progress, Solution
from passes.partition.training.problem import (
    OBJECTIVES,
    TrainingGraph,
    TrainingLoad,
    TrainingProblem,
    training_faults,
    training_load,
    training_value,
    units,
)
from passes.partition.training.reduce import reduce_training

STEP = 1e-11
"""Relative step below a value that counts as different from it."""


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
    reduced, units_of = reduce_training(problem, objective)
    found = Search(_Training(reduced, objective), budget or Budget(), progress).run()
    if found.stages is None:
        return TrainingSolution(found.status, None, found.value, found.bound, found.reason, found.statistics)
    plan = [(kind, sorted(v for group in inside for v in units_of[group])) for kind, inside in found.stages]
    return TrainingSolution(
        found.status,
        tuple((kind, tuple(sorted(node for unit in inside for node in nodes_of[unit]))) for kind, inside in plan),
        found.value,
        found.bound,
        found.reason,
        found.statistics,
        tuple(training_load(problem, kind, inside) for kind, inside in plan),
        problem.kinds,
    )


def training_objective(problem: TrainingProblem, objective: str) -> Objective:
    """What a search over ideals of ``problem`` needs to know; its stages hold units."""
    return _Training(problem, objective)


class _Training:
    """The objective as the search wants it: nodes are units, labels are kinds."""

    def __init__(self, training: TrainingProblem, objective: str) -> None:
        self.training, self.objective = training, objective
        self.problem = _precedence(training, training.seconds.sum(axis=0))
        self.price = prices(self.problem)

    def bound(self) -> tuple[float, str]:
        """Of both sides together; for ``split`` also the sum of what holds for either side alone."""
        best, reason = lower_bound(self.problem, self.price)
        if self.objective == "split":
            parts = [_precedence(self.training, self.training.seconds[side]) for side in (0, 1)]
            apart = sum(lower_bound(part, prices(part))[0] for part in parts)
            if apart > best:
                return apart, "forward and backward each at their own bound of load balance or largest node"
        return best, reason

    def value(self, stages: Stages) -> float:
        if training_faults(self.training, stages):
            return math.inf
        return training_value(self.objective, [training_load(self.training, kind, nodes) for kind, nodes in stages])

    def tighten(self, family: Family, bound: float, value: float) -> float:
        return bound

    def programme(self, tables: Tables, family: Family, order: Sequence[int], trial: float, keep_on: KeepOn) -> Found:
        sides = _Sides(self.training, tables, family, order, trial, keep_on)
        if self.objective == "sum":
            return sides.least(trial, 1.0, 1.0)
        return self._walk_front(sides, trial)

    def _walk_front(self, sides: _Sides, trial: float) -> Found:
        """See the module. A plan of value at most ``trial`` has both its sides within it."""
        value, best, cap, backward = trial, None, math.inf, 0.0
        tested = priced = 0
        while True:
            runs = [sides.least(value, 0.0, 1.0, forward_cap=min(cap, value))]
            if runs[0].complete and runs[0].stages is not None:
                backward = runs[0].value
                runs.append(sides.least(value, 1.0, 0.0, backward_cap=backward))
            tested += sum(run.tested for run in runs)
            priced += sum(run.priced for run in runs)
            last = runs[-1]
            if last.stages is not None and last.value + backward <= value:
                value, best = last.value + backward, last.stages
            cap = min(last.value, value - backward) * (1 - STEP)
            if last.stages is None or cap <= 0:
                return Found(best, value if best is not None else math.inf, tested, priced, last.complete)


class _Sides:
    """A family priced for both sides, and runs of the programme over it."""

    def __init__(
        self, training: TrainingProblem, tables: Tables, family: Family, order: Sequence[int], trial: float, keep_on: KeepOn
    ) -> None:
        from passes.partition.training import kernels

        self.tables, self.family, self.trial, self.keep_on = tables, family, trial, keep_on
        self.tested = 0
        old = list(order)
        new = {v: i for i, v in enumerate(old)}
        kinds = len(training.kinds)
        seconds = np.where(np.isfinite(training.seconds), training.seconds, 0.0)[:, :, old]
        sums = per_ideal(family, np.vstack([seconds[0], seconds[1]]).T)
        self.forward, self.backward = np.ascontiguousarray(sums[:, :kinds]), np.ascontiguousarray(sums[:, kinds:])
        self.pin_ptr, self.pin = csr([[new[v] for v in pins] for pins in training.pins])
        self.side = training.side
        rows, port = np.unique(training.transfer, axis=0, return_inverse=True)
        self.transfer, self.port = np.ascontiguousarray(rows), port.reshape(-1).astype(np.int64)
        tensors = len(training.pins)
        nothing = np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros((0, 0), np.uint64)
        entries = kernels.parted_tensors(family.bits, self.pin_ptr, self.pin, False, *nothing)
        self.cut_ptr, self.cut = np.zeros(family.size + 1, np.int64), np.empty(entries, np.int32)
        self.parted = np.zeros((family.size, max(1, (tensors + 63) // 64)), np.uint64)
        kernels.parted_tensors(family.bits, self.pin_ptr, self.pin, True, self.cut_ptr, self.cut, self.parted)
        self.alone = _alone(tables)
        owner = np.repeat(np.arange(family.size), np.diff(self.cut_ptr))
        classes = len(rows)
        self.boundary = np.zeros((family.size, 2 * classes))
        for side in (0, 1):
            for p in range(classes):
                costs = np.where(self.side == side, rows[p], 0.0)[self.cut]
                self.boundary[:, side * classes + p] = np.bincount(owner, weights=costs, minlength=family.size)

    def least(
        self,
        trial: float,
        forward_share: float,
        backward_share: float,
        forward_cap: float = math.inf,
        backward_cap: float = math.inf,
    ) -> Found:
        """The plan whose largest share of a load is least and at most ``trial``, within the caps."""
        from passes.partition.training import kernels

        tables, family, states = self.tables, self.family, self.tables.states
        count = family.size
        value = np.full((count, len(states.used)), np.inf)
        parent, via = np.full(value.shape, -1, np.int32), np.full(value.shape, -1, np.int8)
        low, high = np.full(count, len(states.used), np.int32), np.full(count, -1, np.int32)
        active = np.zeros(count, np.int32)
        value[0, 0] = 0.0
        reached = np.zeros(count, np.uint64)
        reached[0] = 1
        low[0] = high[0] = 0
        ideal, actives, tested, priced = 1, 1, 0, 0
        while ideal < count:
            ideal, actives, tests, prices_ = kernels.solve_sides(
                trial,
                min(self.trial, BIG),
                forward_share,
                backward_share,
                forward_cap,
                backward_cap,
                family.bits,
                family.weight,
                self.forward,
                self.backward,
                family.unsupported,
                family.weights_before,
                self.cut_ptr,
                self.cut,
                self.parted,
                self.boundary,
                self.pin_ptr,
                self.pin,
                self.side,
                self.transfer,
                self.port,
                states.next,
                states.ahead,
                states.behind,
                *self.alone,
                float(tables.price.max()),
                tables.slack,
                tables.limit,
                ideal,
                SLICE,
                value,
                parent,
                via,
                low,
                high,
                reached,
                active,
                actives,
            )
            tested, priced = tested + int(tests), priced + int(prices_)
            if ideal < count and not self.keep_on(self.tested + tested, ideal / count):
                return Found(None, math.inf, tested, priced, False)
        self.tested += tested
        last = np.where(states.final, value[-1], np.inf)
        least = last.min()
        if not np.isfinite(least):
            return Found(None, math.inf, tested, priced)
        ties = np.flatnonzero(last <= least * (1 + 1e-12))
        state = int(ties[np.lexsort((ties, states.used[ties]))[0]])
        stages: list[tuple[int, tuple[int, ...]]] = []
        here = count - 1
        while here > 0:
            before, kind = int(parent[here, state]), int(via[here, state])
            stages.append((kind, members(tables, family.bits[here] & ~family.bits[before])))
            sources = np.flatnonzero(states.next[:, kind] == state)
            state = int(sources[value[before, sources].argmin()])
            here = before
        return Found(tuple(reversed(stages)), float(least), tested, priced)


def _alone(tables: Tables) -> tuple[Ints, Floats, Ints, Floats]:
    """Of every state: the one kind of device used so far (-1: none or several), their number, and the same of what is left. Of
    kinds that share devices the one without replicas stands for all: r devices at most T each do at most r T of its work."""
    kinds, states = tables.problem.kinds, tables.states
    only_ahead, only_behind = (np.full(len(states.used), -1, np.int64) for _ in range(2))
    devices_ahead, devices_behind = np.zeros(len(states.used)), np.zeros(len(states.used))
    if not states.every:
        return only_ahead, devices_ahead, only_behind, devices_behind
    pool_of = pools(kinds)
    used = {0: dict.fromkeys(pool_of, 0)}
    for state in range(len(states.used)):  # a state comes after those with fewer devices
        for kind, after in enumerate(states.next[state].tolist()):
            if after >= 0:
                pool = pool_of[kind]
                used[after] = used[state] | {pool: used[state][pool] + kinds[kind].replicas}
        left = {pool: kinds[pool].count - count for pool, count in used[state].items()}
        for counts, only, devices in ((used[state], only_ahead, devices_ahead), (left, only_behind, devices_behind)):
            present = [pool for pool, count in counts.items() if count]
            if len(present) == 1:
                only[state], devices[state] = present[0], counts[present[0]]
    return only_ahead, devices_ahead, only_behind, devices_behind


def _precedence(training: TrainingProblem, seconds: Floats) -> Problem:
    """What the walk over the lattice needs: seconds, bytes, and tensors that cost nothing for who precedes whom."""
    makers = [v for v, targets in enumerate(training.following) if targets]
    return Problem(
        names=training.names,
        kinds=training.kinds,
        seconds=np.ascontiguousarray(seconds),
        producer=np.array(makers, np.int64),
        consumers=tuple(training.following[v] for v in makers),
        transfer=np.zeros((len(training.kinds), len(makers))),
        tensor_bytes=np.zeros(len(makers), np.int64),
        tensor_names=tuple(training.names[v] for v in makers),
        live=np.zeros(training.count, np.int64),
        weight_bytes=training.size,
        weight_readers=tuple((v,) for v in range(training.count)),
    )


__all__ = ["TrainingSolution", "solve_training", "training_objective"]
