"""Shard: a layout for every value over a mesh of devices, at least modelled time, exact on the folded graph.

Meshes, layouts, what moves between layouts, what a plan costs and how it stands in a module are ``passes.model.spmd``. The
rooms here, from the top down:

- ``shard_pass``: the pass; ``explain``: what other plans would cost.
- ``stages``: cuts, devices and shardings chosen together; ``mesh``: a function as a whole, on the best of several meshes.
- ``decide``: what choices say of ops, weights and results.
- ``solver``: the plan of one problem, with a bound; ``elimination``: the exact search over its tables.
- ``problem``: nodes with choices and values with layouts, as numbers.

What is exact: without a memory limit, whatever is eliminated within the budget, with values of up to six readers; what else is
open the integer programme closes, if there is time. ``ShardPlan.status`` says ``optimal`` only where value and bound meet.
"""

from passes.shard.decide import decisions_of, truthful
from passes.shard.explain import Alternative, alternatives
from passes.shard.mesh.named import STRATEGIES, UnfitError, named_plan
from passes.shard.problem.build import ShardInput, build
from passes.shard.problem.problem import Graph, NodeKind, ShardProblem, ValueKind, ValueNode
from passes.shard.shard_pass import ShardPass
from passes.shard.solver.search import NoPlanError, ShardPlan, solve

__all__ = [
    "STRATEGIES",
    "Alternative",
    "Graph",
    "NoPlanError",
    "NodeKind",
    "ShardInput",
    "ShardPass",
    "ShardPlan",
    "ShardProblem",
    "UnfitError",
    "ValueKind",
    "ValueNode",
    "alternatives",
    "build",
    "decisions_of",
    "named_plan",
    "solve",
    "truthful",
]
