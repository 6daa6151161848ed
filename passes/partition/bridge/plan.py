"""What a search is asked, and how its solution becomes the stages of a plan: ops, devices and costs of each."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ir.core.facets import StageSet
from ir.core.module import Module, PlanStage
from ir.core.topology import Topology
from passes.costs.network import Network
from passes.graph.positional import spread
from passes.partition.lattice.objective import Parts, Solution
from passes.stages.problem import Kind, Problem, StageCost, plan_costs, pools
from passes.stages.reduce import Groups

if TYPE_CHECKING:
    from passes.partition.bridge.steps import Steps


@dataclass(frozen=True, eq=False)
class Asked:
    """What a search is asked. ``problem`` has a node per group of ops, ``fine`` and ``safe`` one per op. ``fine`` counts the
    least workspace that an op needs in any stage: what does not fit by that fits nowhere; ``safe`` the most: what fits by that
    fits. ``pins``: device by position of the op; ``steps``: of training, None for a stream or a sample."""

    module: Module
    topology: Topology
    net: Network
    fine: Problem
    safe: Problem
    groups: Groups
    problem: Problem
    pins: dict[int, str]
    steps: Steps | None

    def members(self, parts: Parts) -> list[tuple[int, ...]]:
        """Positions of each stage's ops, ascending."""
        return [tuple(sorted(op for node in nodes for op in self.groups[node])) for _, nodes in parts]


def plan_stages(
    problem: Problem, solution: Solution, members: Sequence[Sequence[int]], pinned: Set[str]
) -> tuple[PlanStage, ...]:
    """The stages of a plan, ``members`` the ops of each. A stage names its devices where the solution does, and where its
    device is ``pinned``."""
    assert solution.stages is not None
    parts = solution.parts
    pool_of = pools(problem.kinds)
    # Costs are what a device does for a sample that it runs itself: those of the kind without replicas.
    costs = plan_costs(problem, [(pool_of[solution.stages[owner][0]], nodes) for owner, nodes in parts])
    devices = solution.devices or [()] * len(solution.stages)
    stages = []
    for index, (cost, (owner, _)) in enumerate(zip(costs, parts, strict=True)):
        kind = problem.kinds[solution.stages[owner][0]]
        holds_pin = len(kind.devices) == 1 and kind.devices[0] in pinned
        stages.append(_plan_stage(index, cost, kind, kind.devices if holds_pin else devices[owner], len(members[index])))
    return tuple(stages) or (PlanStage(index=0, device_type=problem.kinds[0].type),)


def with_stages(module: Module, members: Sequence[Sequence[int]]) -> Module:
    """The module with each op's stage on it, and positional ops in each stage that needs them (``spread``)."""
    func = module.entry
    stage_of = {op: stage for stage, ops in enumerate(members) for op in ops}
    ops = tuple(op.with_facets(StageSet((stage_of[i],))) for i, op in enumerate(func.ops))
    return spread(module.replace(func, replace(func, ops=ops)))


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
