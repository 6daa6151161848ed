"""What a search is asked, and how its solution becomes the stages of a plan: ops, devices and costs of each."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from ir.core.facets import Group, StageSet
from ir.core.module import Func, Module, PlanStage
from ir.core.topology import Topology
from passes.model.network import Network
from passes.model.stages.lattice.dp import Stages
from passes.model.stages.problem import Kind, Problem, StageCost, plan_costs, pools
from passes.model.stages.reduce import Groups
from passes.partition.bridge.pieces import pieces
from passes.partition.objective import PieceSolution, PlacedSolution, Solution

if TYPE_CHECKING:
    from passes.partition.bridge.steps import Steps

Parts: TypeAlias = tuple[tuple[int, tuple[int, ...]], ...]
"""Stages of a plan in pipeline order: the position of the solution's stage that it is part of, and its nodes."""


@dataclass(frozen=True, eq=False)
class Asked:
    """What a search is asked. ``problem`` has a node per group of ops, ``fine`` and ``safe`` one per op. ``fine`` counts the
    least workspace that an op needs in any stage: what does not fit by that fits nowhere; ``safe`` the most: what fits by that
    fits. ``pins``: device by position of the op; ``steps``: of training, None for a stream or a sample; ``apart``: a stage of
    the solution may be cut into several of the plan, all on its device."""

    module: Module
    topology: Topology
    net: Network
    fine: Problem
    safe: Problem
    groups: Groups
    problem: Problem
    pins: dict[int, str]
    steps: Steps | None
    apart: bool

    def parts(self, solution: Solution) -> Parts:
        """The stages of the plan."""
        stages = solution.stages or ()
        if isinstance(solution, PieceSolution):
            return solution.parts
        return pieces(self.problem, [nodes for _, nodes in stages]) if self.apart else uncut(stages)

    def members(self, parts: Parts) -> list[tuple[int, ...]]:
        """Positions of each stage's ops, ascending."""
        return [tuple(sorted(op for node in nodes for op in self.groups[node])) for _, nodes in parts]


def plan_stages(
    problem: Problem,
    solution: Solution,
    parts: Parts,
    members: Sequence[Sequence[int]],
    pinned: Set[str],
    *,
    name_all: bool,
) -> tuple[PlanStage, ...]:
    """The stages of a plan, ``members`` the ops of each. A stage names its devices where the solution does, where stages share
    a device, where its device is ``pinned``, and with ``name_all``."""
    assert solution.stages is not None
    pool_of = pools(problem.kinds)
    # Costs are what a device does for a sample that it runs itself: those of the kind without replicas.
    costs = plan_costs(problem, [(pool_of[solution.stages[owner][0]], nodes) for owner, nodes in parts])
    shared = name_all or len(parts) > len(solution.stages)
    devices = own_devices(problem, solution) if shared else [()] * len(parts)
    if isinstance(solution, PlacedSolution):
        devices = list(solution.devices)
    stages = []
    for index, (cost, (owner, _)) in enumerate(zip(costs, parts, strict=True)):
        kind = problem.kinds[solution.stages[owner][0]]
        holds_pin = len(kind.devices) == 1 and kind.devices[0] in pinned
        stages.append(_plan_stage(index, cost, kind, kind.devices if holds_pin else devices[owner], len(members[index])))
    return tuple(stages) or (PlanStage(index=0, device_type=problem.kinds[0].type),)


def uncut(stages: Stages) -> Parts:
    """Each stage of a solution as a stage of the plan."""
    return tuple((position, nodes) for position, (_, nodes) in enumerate(stages))


def boundaries_text(problem: Problem, parts: Parts) -> str:
    """How many tensors devices receive for a sample, each once per stage that reads it, and over how many pairs."""
    home = {v: (owner, index) for index, (owner, nodes) in enumerate(parts) for v in nodes}
    crossing = {
        (h, home[v])
        for h, (maker, readers) in enumerate(zip(problem.producer.tolist(), problem.consumers, strict=True))
        for v in readers
        if home[v][0] != home[maker][0]
    }
    pairs = {(home[int(problem.producer[h])][0], owner) for h, (owner, _) in crossing}
    return f"transfers per sample: {len(crossing)}, pairs of devices: {len(pairs)}"


def own_devices(problem: Problem, solution: Solution) -> list[tuple[str, ...]]:
    """A device for each stage of the solution, the first of its kind that is free."""
    free = [list(kind.devices) for kind in problem.kinds]
    return [(free[kind].pop(0),) for kind, _ in solution.stages or ()]


def with_stages(module: Module, members: Sequence[Sequence[int]]) -> Module:
    """The module with each op's stage on it."""
    func = module.entry
    stage_of = {op: stage for stage, ops in enumerate(members) for op in ops}
    ops = tuple(op.with_facets(StageSet((stage_of[i],))) for i, op in enumerate(func.ops))
    return module.replace(func, replace(func, ops=ops))


def contracted_groups(func: Func, comm: str) -> Groups | None:
    """The groups of ``contract``, positions of the ops of each; None where it did not run, or for another ``comm``."""
    groups: dict[int, list[int]] = {}
    for i, op in enumerate(func.ops):
        label = op.facet(Group)
        if label is None:
            return None
        groups.setdefault(label.group, []).append(i)
    return tuple(map(tuple, groups.values())) if groups and _contract_attribute(func, "comm") == comm else None


def contracted_inexactly(func: Func) -> bool:
    """Whether the groups of ``contract`` may keep together what every best plan parts."""
    return _contract_attribute(func, "guarantee") not in (None, "exact")


def _contract_attribute(func: Func, name: str) -> object:
    return next((value.value for key, value in func.attributes if key == f"contract.{name}"), None)


def _plan_stage(index: int, cost: StageCost, kind: Kind, devices: tuple[str, ...], ops: int) -> PlanStage:
    return PlanStage(
        index=index,
        device_type=kind.type,
        devices=devices,
        ops=ops,
        compute=cost.compute,
        receive=cost.receive,
        send=cost.send,
        weights=cost.weights,
        workspace=cost.workspace,
        buffers=cost.buffers,
        replicas=kind.replicas,
    )


__all__ = [
    "Asked",
    "Parts",
    "boundaries_text",
    "contracted_groups",
    "contracted_inexactly",
    "own_devices",
    "plan_stages",
    "uncut",
    "with_stages",
]
