"""Solves PipeDream's objective: the search of ``passes.partition.lattice.search`` with a dynamic programme over replicated
stages.

A plan is a chain of ideals; between two of them lies a stage, which runs on r machines (its replicas). The programme walks the
ideals backward; its state is an ideal and the number of machines for all that is outside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from passes.costs.memory.footprint import slots
from passes.partition.lattice.objective import Budget, SearchObjective, Solution
from passes.partition.lattice.search.search import Search, per_ideal
from passes.reference.pipedream.problem import (
    Machines,
    Profile,
    Replicated,
    StageTime,
    in_flight,
    plan_faults,
    stage_times,
    weight_copies,
)
from passes.reference.pipedream.starts import start_bound
from passes.solvers.anytime import Progress
from passes.solvers.work import did
from passes.stages.lattice.dp import SLICE, Found, KeepOn, Stages
from passes.stages.lattice.ideals import Family, members
from passes.stages.lattice.tables import Tables
from passes.stages.problem import Floats, Kind, Problem
from passes.stages.reduce import Groups


@dataclass(frozen=True)
class PipeDreamSolution(Solution):
    """``stages``: (0, nodes), as all machines are of kind 0; ``replicas``: the number of machines of each stage; ``times``: the
    times of each stage."""

    replicas: tuple[int, ...] = ()
    times: tuple[StageTime, ...] = ()


def solve_pipedream(
    profile: Profile,
    machines: Machines,
    budget: Budget | None = None,
    progress: Progress = lambda label, fraction: None,
) -> PipeDreamSolution:
    """The best plan that the budget finds under PipeDream's objective, with a valid lower bound, in seconds per minibatch."""
    profile.check()
    found = Search(PipeDream(profile, machines), budget or Budget(), progress).run()
    plan: Replicated = found.stages or ()
    return PipeDreamSolution(
        **{**vars(found), "stages": found.stages and tuple((0, nodes) for _, nodes in plan)},
        replicas=tuple(r for r, _ in plan),
        times=stage_times(profile, machines, plan),
    )


class PipeDream(SearchObjective):
    """The objective as ``SearchObjective`` asks for it. Nodes are those of ``profile``; the label of a stage is its number of
    machines. Seconds are per minibatch."""

    contracts = False

    def __init__(self, profile: Profile, machines: Machines) -> None:
        self.profile, self.machines = profile, machines
        self.price = np.array([1.0 / machines.count])
        self.per_node = np.column_stack([profile.seconds, profile.weights, profile.stored]).astype(np.float64)
        made = [v for v in range(profile.size) if profile.readers[v]]
        self.problem = Problem(
            names=profile.names,
            kinds=(Kind("machine", tuple(str(m) for m in range(machines.count))),),
            seconds=profile.seconds[None, :].astype(np.float64),
            producer=np.array(made, np.int64),
            consumers=tuple(profile.readers[v] for v in made),
            transfer=np.zeros((1, len(made))),  # not added to seconds here: the programme below knows them by their bytes
            tensor_bytes=profile.output[made],
            tensor_names=tuple(profile.names[v] for v in made),
            live=np.zeros(profile.size, np.int64),
            weight_bytes=profile.weights,
            weight_readers=tuple((v,) for v in range(profile.size)),
        )

    def bound(self) -> tuple[float, str]:
        """The larger of two lower bounds: all compute spread evenly over all machines; of the slowest node, its seconds on the
        number of machines that suits it best, synchronisation of its weights included."""
        balance = float(self.profile.seconds.sum()) / self.machines.count
        r = np.arange(1, self.machines.most_replicas + 1)
        sync = 4.0 * (r - 1) / (self.machines.bandwidth * r)
        alone = ((self.profile.seconds[:, None] + sync * self.profile.weights[:, None]) / r).min(axis=1)
        largest = int(alone.argmax()) if self.profile.size else 0
        if self.profile.size and alone[largest] > balance:
            return float(alone[largest]), f"largest node: {self.profile.names[largest]} on as many machines as suit it"
        return balance, f"load balance: all compute spread evenly over {self.machines.count} machines"

    def value(self, stages: Stages) -> float:
        if plan_faults(self.profile, self.machines, stages):
            return math.inf
        return max((stage.time for stage in stage_times(self.profile, self.machines, stages)), default=0.0)

    def dearest(self, stages: Stages) -> Sequence[int]:
        return max(stage_times(self.profile, self.machines, stages), key=lambda stage: stage.time).nodes

    def part(self, nodes: Sequence[int]) -> PipeDream:
        chosen, place = list(nodes), {v: i for i, v in enumerate(nodes)}
        profile = Profile(
            names=tuple(self.profile.names[v] for v in nodes),
            seconds=self.profile.seconds[chosen],
            output=self.profile.output[chosen],
            stored=self.profile.stored[chosen],
            weights=self.profile.weights[chosen],
            readers=tuple(tuple(place[w] for w in self.profile.readers[v] if w in place) for v in nodes),
        )
        return PipeDream(profile, self.machines)

    def within(self, value: float) -> PipeDream:
        return self  # of one kind, whose seconds are at most ``value`` a machine together; transfers are not subtracted

    def segmented(self, groups: Groups, problem: Problem) -> PipeDream:
        other = super().segmented(groups, problem)
        other.per_node = np.array([self.per_node[list(nodes)].sum(axis=0) for nodes in groups])
        return other

    def moved(self) -> Floats | None:
        if not self.machines.straight:
            return None
        return np.asarray(self.problem.tensor_bytes * (2.0 / self.machines.bandwidth), np.float64)

    def starts(self, tables: Tables, bound: float, value: float, max_visits: int, keep_on: KeepOn) -> float:
        moved = self.moved()
        if moved is None:
            return bound
        return start_bound(tables, moved, self.machines.count, bound, value, max_visits, keep_on)

    def _moved(self, tables: Tables, family: Family) -> Floats:
        """Seconds ``[I]`` to move all tensors that leave each ideal, and their gradients back, between two single machines."""
        moved: Floats = family.marks[:, tables.at_bytes] * (2.0 / (self.machines.bandwidth * slots(self.problem.comm)))
        return moved

    def _reach(self, tables: Tables, family: Family, trial: float) -> tuple[Floats, Floats]:
        """The least and the most compute seconds, ``[M+1]`` each, in an ideal that is a boundary with m machines for what is
        outside it, in plans of value at most ``trial``. This is a relaxation, in which any two ideals are nested: a stage on r
        machines has at most r ``trial`` seconds, and a boundary is an ideal whose tensors one stage can receive in time. So
        from a boundary at w seconds a stage on r machines reaches at most the largest boundary up to w + r ``trial``."""
        from passes.reference.pipedream import kernels

        low, high = np.empty(self.machines.count + 1), np.empty(self.machines.count + 1)
        # The family's weights are at the price of one machine.
        seconds = family.weight * self.machines.count
        kernels.reach(trial, 1e-11, self.machines.most_replicas, seconds, self._moved(tables, family), low, high)
        return low, high

    def programme(
        self, tables: Tables, family: Family, order: Sequence[int], trial: float, keep_on: KeepOn, floor: float = 0.0
    ) -> Found:
        from passes.reference.pipedream import kernels

        count, most = family.size, self.machines.count
        depth = range(1, most + 1)
        rules = kernels.Rules(
            machines=most,
            most_replicas=self.machines.most_replicas,
            sync=4.0 / self.machines.bandwidth,
            group=self.machines.group,
            slower=self.machines.slower,
            memory=-1.0 if self.machines.memory is None else float(self.machines.memory),
            copies=np.array([0, *(weight_copies(self.machines, in_flight(self.machines, q, 1)) for q in depth)], np.float64),
            flight=np.array([0, *(in_flight(self.machines, q, 1) for q in depth)], np.float64),
        )
        seconds, weights, stored = map(np.ascontiguousarray, per_ideal(family, self.per_node[list(order)]).T)
        low, high = self._reach(tables, family, trial)
        ideals = kernels.Ideals(family.bits, seconds, weights, stored, self._moved(tables, family), low, high)
        table = kernels.Table(
            value=np.full((count, most + 1), np.inf),
            following=np.full((count, most + 1), -1, np.int32),
            replicas=np.zeros((count, most + 1), np.int16),
            low=np.full(count, most + 1, np.int32),
            high=np.full(count, -1, np.int32),
            active=np.zeros(count, np.int32),
        )
        value = table.value
        value[-1, 0] = 0.0
        table.low[-1] = table.high[-1] = 0
        table.active[0] = count - 1
        ideal, actives, tested, priced = count - 2, 1, 0, 0
        while ideal >= 0:
            ideal, actives, tests, prices = kernels.solve_replicated(
                trial, tables.slack, rules, ideals, table, ideal, SLICE, actives
            )
            tested, priced = tested + int(tests), priced + int(prices)
            did("tested", int(tests))
            did("transition", int(prices))
            if ideal >= 0 and not keep_on(tested, 1 - ideal / count):
                return Found(None, float("inf"), tested, priced, False)
        least = value[0].min()
        if not np.isfinite(least):
            return Found(None, float("inf"), tested, priced)
        # Ties go to fewer machines, then to the first found.
        left = int(np.flatnonzero(value[0] <= least * (1 + 1e-12))[0])
        stages: list[tuple[int, tuple[int, ...]]] = []
        here = 0
        while here < count - 1:
            after, r = int(table.following[here, left]), int(table.replicas[here, left])
            stages.append((r, members(tables, family.bits[after] & ~family.bits[here])))
            here, left = after, left - r
        return Found(tuple(stages), float(least), tested, priced)
