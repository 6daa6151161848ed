"""What the bound of a plan on meshes was proven for, as a digest that outlives the editing of the plan.

The bound is one of all plans that the search was free to choose among. Whatever those were, plans with the stages and meshes of
the plan that was found are among them. So the bound holds for every plan of this model on this topology under these options
that keeps stages and meshes, however it splits ops, keeps weights and hands out results.

Which plans there are depends on more than sizes: layout rules read constants, and an optimizer has state of a weight.
"""

from __future__ import annotations

from collections.abc import Sequence

from ir.core.facets import OptimizerState
from ir.core.module import Module, Plan, Resource
from ir.layout_rules import rules
from passes.costs.learning import avoids_sums
from passes.graph.digest import problem_digest
from passes.meshes.mesh import DeviceMesh


def proven_for(
    module: Module,
    stages: Sequence[tuple[Sequence[int], DeviceMesh, Sequence[str]]],
    plan: Plan,
    *,
    uneven: bool,
    memory: int,
) -> str:
    """``sha256:...`` of the module without decisions, the ``stages`` (positions of ops, mesh, devices of all replicas),
    ``uneven``, ``memory``, and of the plan its objective, microbatches and bound, and whether its plans may avoid sums of
    gradients."""
    told = [f"{mesh.sizes} {mesh.shares} {tuple(devices)} {sorted(ops)}" for ops, mesh, devices in stages]
    for resource in module.of_type(Resource):
        state = [facet.size for facet in resource.facets if isinstance(facet, OptimizerState)]
        told += [f"{resource.name} {state}"] if state else []
    drawn = [rule for _, rule in rules(module)]
    texts = {id(rule): str(rule) for rule in drawn}  # equal ops share their rule
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts.values()))}
    told += [*numbers, str([numbers[texts[id(rule)]] for rule in drawn])]
    among = " unsummed" if avoids_sums(module) else ""
    options = f"{plan.objective} {plan.microbatches} {plan.bound!r} {uneven} {memory} {among}"
    return problem_digest(module, "\n".join([options, *told]))
