"""Shard: a layout for every value over a mesh of devices, at least modelled time, exact on the folded graph.

Meshes, layouts, what moves between layouts and what a plan costs are ``passes.model.spmd``. The parts, in the order of reading:

- ``problem``: ``ShardProblem``, nodes with choices and values with conversions, as numbers; what a plan costs;
- ``build``: from a function to that problem: layout rules, seconds by shard, gradients, memory, all that is assumed;
- ``fused``: what follows a product element by element and is fused into it, unless a layout is between;
- ``cells``, ``structure``: the repeated parts that ``fold`` finds, and which of them meet their neighbours alike;
- ``charges``, ``model``: a value's conversions as tables, once per (value, layout) however many readers;
- ``reduce``: choices that no cheapest plan needs go;
- ``elimination``, ``powers``: least sums of tables, and of equal steps in O(log r) products;
- ``marginals``: the way back, which tells what plans cost at least that take a choice, so that more choices go;
- ``folded``, ``descent``: one search over what repeats, at a price of memory; a plan bettered node by node;
- ``shares``: bounds and plans where a value has more readers than tables can hold;
- ``fronts``: bounds and plans between two prices of memory, by counting units of it;
- ``mixed``: plans between one that is too large and one that fits;
- ``fitting``: plans for which what they need of a device fits, activations and buffers too;
- ``search``: ``solve``, which puts it together: growing tables, fewer choices, memory by a Lagrangian, a bound always;
- ``programme``: the integer programme, which certifies what tables leave open;
- ``explain``: what a plan costs by layer and by op, and what others would;
- ``speeds``, ``candidates``: shares of unequal devices, and sets of devices, that are worth a search;
- ``one_mesh``: the search of the best plan on one of several meshes;
- ``named``: plans that people write by hand (data parallel, Megatron's, expert parallel), to compare with;
- ``decide``: what choices say of ops, weights and results;
- ``submeshes``, ``units``, ``constants``: where stages may lie, where a model may be cut, and what no stage is sent;
- ``borders``, ``crossings``: a stage as a problem of its own, and what its transfers cost at least;
- ``chains``: what every run of units costs at least, by multiplying the tables of its units;
- ``pipeline``, ``kernels``, ``bounding``, ``settled``, ``stages``: cuts, blocks and shardings chosen jointly, with a bound;
- ``shard_pass``, ``written``: the pass: meshes, layouts, strategies, stages and the plan written into the module;
- ``proof``: what a bound was proven for.

What is exact: without a memory limit, whatever is eliminated within the budget, with values of up to six readers or few enough
sets of layouts held; ``ShardPlan.status`` says ``optimal`` only where value and bound meet. Else value and bound are told.
"""

from passes.shard.build import ShardInput, build
from passes.shard.decide import decisions_of, truthful
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
from passes.shard.named import STRATEGIES, UnfitError, improved, named_plan
from passes.shard.outline import is_kept
from passes.shard.problem import NodeKind, ShardProblem, ValueKind, ValueNode
from passes.shard.search import NoPlanError, ShardPlan, solve
from passes.shard.shard_pass import ShardPass

__all__ = [
    "STRATEGIES",
    "Alternative",
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
