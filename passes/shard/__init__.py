"""Shard: a layout for every value over a mesh of devices, at least modelled time, exact on the folded graph.

Meshes, layouts, what moves between layouts and what a plan costs are ``passes.model.spmd``. The rooms here, from the top down:

- ``shard_pass``: the pass; ``explain``: what a plan costs by layer and by op, and what others would.
- ``stages``: cuts, devices and shardings chosen together; ``mesh``: a function as a whole, on the best of several meshes.
- ``plan``: what choices say of ops, weights and results, and how that is written into the module.
- ``solver``: the plan of one problem, with a bound; ``elimination``: the exact search over its tables.
- ``problem``: nodes with choices and values with layouts, as numbers.

What is exact: without a memory limit, whatever is eliminated within the budget, with values of up to six readers; what else is
open the integer programme closes, if there is time. ``ShardPlan.status`` says ``optimal`` only where value and bound meet.
"""

from passes.shard.explain import (
    Alternative,
    Layer,
    OpRow,
    StagePart,
    alternatives,
    layers,
    stage_parts,
    typical_block,
)
from passes.shard.mesh.named import STRATEGIES, UnfitError, improved, named_plan
from passes.shard.plan.decide import decisions_of, truthful
from passes.shard.problem.build import ShardInput, build
from passes.shard.problem.outline import is_kept
from passes.shard.problem.problem import Graph, NodeKind, ShardProblem, ValueKind, ValueNode
from passes.shard.shard_pass import ShardPass
from passes.shard.solver.search import NoPlanError, ShardPlan, solve

__all__ = [
    "STRATEGIES",
    "Alternative",
    "Graph",
    "Layer",
    "NoPlanError",
    "NodeKind",
    "OpRow",
    "ShardInput",
    "ShardPass",
    "ShardPlan",
    "ShardProblem",
    "StagePart",
    "UnfitError",
    "ValueKind",
    "ValueNode",
    "alternatives",
    "build",
    "decisions_of",
    "improved",
    "is_kept",
    "layers",
    "named_plan",
    "solve",
    "stage_parts",
    "truthful",
    "typical_block",
]
