"""Greedy filling: devices take nodes in topological order until they are full, blind to transfers.

A device is full when the next node would take its compute over a level, or its memory over the limit, or cannot run on it. The
next device is of the fastest kind that runs the next node and has a device left. The level starts at load balance and rises by
``STEP``; of the first ``MOST_PLANS`` that find a place for every node the best is kept. The last tries leave the level, then
the memory, out.

Under latency, where load is no matter, an accelerator is filled to its memory (``latency``). Under PipeDream's objective a
stage has one machine, and memory, which depends on the stages that follow, is not looked at.
"""

from __future__ import annotations

import math

from passes.reference.baselines.case import Case, Limits, NoPlan
from passes.solvers.work import now
from passes.stages.lattice.dp import Stages
from passes.stages.problem import Problem

STEP = 1.02
MOST_PLANS = 16
_STEPS = 120
"""The level rises to ten times load balance before it is left out."""


def greedy(case: Case, limits: Limits) -> Stages:
    """At most one stage per device, in topological order. Raises NoPlan when even without limits a node finds no device."""
    if case.filled is not None:
        return case.filled()
    problem = case.chained.problem
    balance = case.bound[0]
    levels = [balance * STEP**step for step in range(_STEPS)] if balance > 0 else []
    limited = not case.replicated
    started = now()
    plans: dict[Stages, float] = {}
    for level, memory in [*((level, limited) for level in levels), (math.inf, limited), (math.inf, False)]:
        limits.progress("partition: greedy", None)
        late = now() - started > limits.seconds
        if len(plans) == MOST_PLANS or (plans and (late or (limited and not memory))):
            break
        if late and level < math.inf:
            continue
        filled = _fill(problem, level * (1 + 1e-12), memory)
        if filled is not None:
            stages = case.chained.stages(tuple((case.label(kind), units) for kind, units in filled))
            if stages not in plans:
                plans[stages] = case.evaluate(stages)[0]
    if not plans:
        raise NoPlan("in topological order, a node finds no device left that can run it")
    return min(plans, key=plans.__getitem__)


def _fill(problem: Problem, level: float, memory: bool) -> Stages | None:
    """Stages of (kind, units) that keep to the level and, where ``memory``, to memory; None when nodes are left over."""
    left = [kind.count for kind in problem.kinds]
    filling = _Filling(problem, level, memory)
    stages: list[tuple[int, tuple[int, ...]]] = []
    for unit in range(problem.size):
        if filling.take(unit):
            continue
        if filling.units:
            stages.append((filling.kind, tuple(filling.units)))
        # The speed of a kind is what it needs for this node: the fastest first, as given where they are alike.
        kinds = sorted((k for k, count in enumerate(left) if count), key=lambda k: float(problem.seconds[k, unit]))
        if not any(filling.start(kind, unit) for kind in kinds):
            return None
        left[filling.kind] -= 1
    if filling.units:
        stages.append((filling.kind, tuple(filling.units)))
    return tuple(stages)


class _Filling:
    """The device being filled. Its memory is that of ``passes.stages.problem`` without the buffers of what it
    receives."""

    def __init__(self, problem: Problem, level: float, memory: bool) -> None:
        self.problem, self.level, self.memory = problem, level, memory
        self.kind = -1
        self._empty()

    def _empty(self) -> None:
        self.units: list[int] = []
        self.held: set[int] = set()
        self.compute, self.bytes, self.live = 0.0, 0, 0

    def start(self, kind: int, unit: int) -> bool:
        """Opens a device of ``kind`` with ``unit``; whether it may take that."""
        self.kind = kind
        self._empty()
        return self.take(unit)

    def take(self, unit: int) -> bool:
        """Adds ``unit`` if that keeps to the limits."""
        if self.kind < 0:
            return False
        compute = self.compute + float(self.problem.seconds[self.kind, unit])
        if math.isinf(compute) or compute > self.level:
            return False
        new = [w for w in self.problem.touched[1][unit] if w not in self.held]
        size = self.bytes + sum(int(self.problem.weight_bytes[w]) for w in new)
        live = max(self.live, int(self.problem.live[unit]))
        limit = self.problem.kinds[self.kind].memory
        if self.memory and limit is not None and size + live > limit:
            return False
        self.held.update(new)
        self.compute, self.bytes, self.live = compute, size, live
        self.units.append(unit)
        return True
