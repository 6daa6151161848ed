"""A layout for every value of a function over a mesh of devices, at least modelled time, exact on the folded graph.

Meshes, what moves between layouts and what a sharded op costs are ``passes.meshes``. The rooms here, from the top down:

- ``mesh``: a function as a whole, on the best of several meshes.
- ``decide``: what choices say of ops, weights and results.
- ``solver``: the plan of one problem, with a bound; ``elimination``: the exact search over its tables.
- ``problem``: nodes with choices and values with layouts, as numbers.

What is exact: without a memory limit, whatever is eliminated within the budget, with values of up to six readers; what else is
open the integer programme closes, if there is time. ``ShardPlan.status`` says ``optimal`` only where value and bound meet.
"""

from passes.partition.layouts.decide import decisions_of, truthful
from passes.partition.layouts.mesh.named import STRATEGIES, UnfitError, named_plan
from passes.partition.layouts.problem.build import ShardInput, build
from passes.partition.layouts.problem.graph import Graph, ValueNode
from passes.partition.layouts.problem.problem import NodeKind, ShardProblem, ValueKind
from passes.partition.layouts.solver.search import NoPlanError, ShardPlan, solve

__all__ = [
    "STRATEGIES",
    "Graph",
    "NoPlanError",
    "NodeKind",
    "ShardInput",
    "ShardPlan",
    "ShardProblem",
    "UnfitError",
    "ValueKind",
    "ValueNode",
    "build",
    "decisions_of",
    "named_plan",
    "solve",
    "truthful",
]
