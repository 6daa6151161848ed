"""What a search for a plan is asked, and the stages that a solution of it stands for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ir.module import Module
from ir.topology import Topology
from passes.model.network import Network
from passes.model.stages.problem import Problem
from passes.model.stages.reduce import Groups
from passes.partition.bridge.pieces import pieces
from passes.partition.bridge.plan import Parts, in_order
from passes.partition.objective import PieceSolution, Solution

if TYPE_CHECKING:
    from passes.partition.bridge.steps import Steps


@dataclass(frozen=True, eq=False)
class Asked:
    """What a search is asked: ``fine`` has a node per op, ``problem`` one per group of them. Their workspaces are the least
    that an op may need in any stage, those of ``safe``, a node per op as well, the most: what fits it fits, and what does not
    fit ``fine`` fits nowhere. ``pins``: device by position of the op; ``steps``: of training, None of a stream or a sample;
    ``apart``: a device may run several stages."""

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
        """The stages of the plan: (position in the solution's, nodes) each, in pipeline order."""
        stages = solution.stages or ()
        if isinstance(solution, PieceSolution):
            return solution.parts
        return pieces(self.problem, [nodes for _, nodes in stages]) if self.apart else in_order(stages)

    def members(self, parts: Parts) -> list[tuple[int, ...]]:
        """Positions of each stage's ops, ascending."""
        return [tuple(sorted(op for node in nodes for op in self.groups[node])) for _, nodes in parts]


__all__ = ["Asked"]
