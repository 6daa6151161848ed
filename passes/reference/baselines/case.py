"""What a baseline sees of a workload under an objective, and how its plan is judged.

A baseline chooses who sits where; it never says what that is worth. ``judge`` values its stages by the definition of the
objective (``evaluate``), and finds out by itself whether the split is contiguous and which limits it breaks. So a baseline can
neither flatter itself nor pass an unfit plan for a fit one.

A case holds two views of the nodes of the workload:

- ``chained``: units for contiguous splits (colours and cycles joined), in a topological order of who precedes whom;
- ``loose``: classes for any split (colours joined, cycles not), None where the objective has contiguous splits only.

Each is a ``Problem`` over its units, with seconds, bytes and (``loose``) transfers. A stage is (label, nodes of the workload):
the label is a kind of device, or under PipeDream's objective the number of its machines.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from passes.graph.graph import ordered_groups
from passes.partition.lattice.objective import SearchObjective
from passes.solvers.anytime import Progress
from passes.stages.lattice.dp import Stages
from passes.stages.problem import Kind, Problem
from passes.stages.reduce import Groups, members_of

if TYPE_CHECKING:
    from passes.reference.latency import Schedule


class NoPlan(Exception):
    """A baseline has no plan at all; the text says why."""


@dataclass(frozen=True)
class Limits:
    """``seconds`` that a baseline which searches may take; ``progress`` is called often enough for an interrupt."""

    seconds: float = 10.0
    progress: Progress = lambda label, fraction: None


@dataclass(frozen=True)
class Units:
    """``members[u]``: the nodes of the workload that are unit u of ``problem``."""

    problem: Problem
    members: Groups

    def stages(self, stages: Stages) -> Stages:
        """Stages of units as stages of nodes; empty ones are left out."""
        return members_of(tuple((label, units) for label, units in stages if units), self.members)


@dataclass(frozen=True)
class StageLoad:
    """A stage evaluated: its kind of device, seconds that each of its devices is busy, the compute and the transfers in it,
    bytes on each."""

    kind: int
    nodes: tuple[int, ...]
    load: float
    compute: float
    transfer: float
    memory: int
    replicas: int = 1


@dataclass(frozen=True)
class Case:
    """See the module. ``evaluate``: the objective of stages and each of them evaluated, from the definition, limits left aside
    (inf where a device cannot run a node). ``bound`` holds for contiguous plans, ``loose_bound`` for any.
    ``judged`` and ``filled``: of an objective that has its own way to judge stages, and its own greedy filling."""

    kinds: tuple[Kind, ...]
    chained: Units
    loose: Units | None
    programme: SearchObjective
    evaluate: Callable[[Stages], tuple[float, tuple[StageLoad, ...]]]
    bound: tuple[float, str]
    loose_bound: tuple[float, str]
    replicated: bool = False
    judged: Callable[[Stages], Plan] | None = None
    filled: Callable[[], Stages] | None = None

    def label(self, kind: int) -> int:
        """The label of a stage on one device of ``kind``."""
        return 1 if self.replicated else kind


@dataclass(frozen=True)
class Plan:
    """A judged plan: ``stages`` in pipeline order where it is ``contiguous``. ``faults``: limits that it breaks, as text, of
    which ``fits`` tells those of memory apart; empty for a feasible plan. ``bound``: what no plan of its sort goes below.
    ``schedule``: of latency, in place of ``stages``."""

    stages: tuple[StageLoad, ...]
    value: float
    contiguous: bool
    fits: bool
    faults: tuple[str, ...]
    bound: float
    reason: str
    schedule: Schedule | None = None

    @property
    def split(self) -> str:
        return "contiguous" if self.contiguous else "any"


def judge(case: Case, stages: Stages) -> Plan:
    """The plan of ``stages``, which hold every node of the workload once. Raises NoPlan where it breaks more than limits: a
    device that cannot run a node, a colour torn apart, no pipeline where the objective needs one."""
    stages = tuple((label, tuple(sorted(nodes))) for label, nodes in stages if nodes)
    placed = sorted(v for _, nodes in stages for v in nodes)
    if placed != list(range(len(placed))):
        raise AssertionError("a baseline places every node once")
    if case.judged is not None:
        return case.judged(stages)
    ordered = in_order(case.chained, stages)
    if ordered is None and case.loose is None:
        raise NoPlan("the split is not contiguous, and this objective has no other")
    home = {v: s for s, (_, nodes) in enumerate(stages) for v in nodes}
    for members in (case.loose or case.chained).members:
        if len({home[v] for v in members}) > 1:
            raise NoPlan("it tears nodes of one colour apart")
    value, loads = case.evaluate(stages if ordered is None else ordered)
    for load in loads:
        if math.isinf(load.compute):
            raise NoPlan(f"it puts a node on {case.kinds[load.kind].type}, which cannot run it")
    faults, fits = [], True
    for k, kind in enumerate(case.kinds):
        if (used := sum(load.replicas for load in loads if load.kind == k)) > kind.count:
            faults.append(f"it uses {used} devices of kind {kind.type}, there are {kind.count}")
    for s, load in enumerate(loads):
        limit = case.kinds[load.kind].memory
        if limit is not None and load.memory > limit:
            fits = False
            faults.append(f"stage {s} needs {load.memory} bytes, its {case.kinds[load.kind].type} has {limit}")
    bound, reason = case.loose_bound if ordered is None else case.bound
    return Plan(loads, value, ordered is not None, fits, tuple(faults), min(bound, value), reason)


def in_order(units: Units, stages: Stages) -> Stages | None:
    """The stages in an order in which data flows forward only, ties by first node; None when there is none, or when a stage
    holds a part of a unit."""
    home = {v: s for s, (_, nodes) in enumerate(stages) for v in nodes}
    of = []
    for members in units.members:
        if len(places := {home[v] for v in members}) > 1:
            return None
        of.append(places.pop())
    rank = sorted(range(len(stages)), key=lambda s: stages[s][1][0])
    place = {s: r for r, s in enumerate(rank)}
    reading = zip(units.problem.producer.tolist(), units.problem.consumers, strict=True)
    edges = ((place[of[maker]], place[of[reader]]) for maker, readers in reading for reader in readers)
    order = ordered_groups(len(stages), edges)
    return tuple(stages[rank[r]] for r in order) if len(order) == len(stages) else None
