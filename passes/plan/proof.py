"""What the bound of a plan that a search on meshes found was proven for, as a digest that outlives the editing of the plan.

The bound is one of all plans that the search was free to choose among. Whatever those were, plans with the stages and meshes of
the plan that was found are among them. So the bound holds for every plan of this model on this topology under these options
that keeps stages and meshes, however it splits ops, keeps weights and hands out results.

Which plans there are depends on more than sizes: layout rules read constants, and an optimizer has state of a weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ir.core.facets import OptimizerState, StageSet
from ir.core.module import Mesh, Module, Plan, Resource
from ir.layout_rules import rules
from passes.costs.learning import avoids_sums
from passes.graph.digest import Among, problem_digests
from passes.meshes.costs.cross_mesh import Party
from passes.meshes.mesh import DeviceMesh
from passes.meshes.reshard_ops import plain
from passes.meshes.undecided import copied, undecided


def proven_again(module: Module) -> Module:
    """The module, which ``written`` made, with a certificate for a bound that was lowered since."""
    plan = module.first(Plan)
    assert plan is not None
    certificate = {**dict(plan.certificate), "problem": proof_of(module, plan)}
    return module.replace(plan, replace(plan, certificate=tuple(sorted(certificate.items()))))


def proof_of(module: Module, plan: Plan) -> str:
    """``proven_for`` of a module whose ops have their stages, and of its plan."""
    original, meshes, without = copied(module.entry), {mesh.name: mesh for mesh in module.of_type(Mesh)}, undecided(module)
    position = {op.id: number for number, op in enumerate(without.entry.ops)}
    members: list[list[int]] = [[] for _ in plan.stages]
    for op in plain(module).entry.ops:
        for index in op.facet(StageSet, StageSet(())).stages:
            members[index].append(position[original.get(op.id, op.id)])
    stages = []
    for ops, stage in zip(members, plan.stages, strict=True):
        mesh = meshes.get(stage.mesh)
        sizes, shares = ((size for _, size in mesh.axes), mesh.shares) if mesh is not None else ((1,), ())
        stages.append((ops, Party((), tuple(sizes), shares), stage.devices))
    told = {key: attribute.value for key, attribute in module.entry.attributes}
    memory = told.get("shard.memory", 0)
    return proven_for(without, stages, plan, memory=int(str(memory)))


def proven_for(
    module: Module,
    stages: Sequence[tuple[Sequence[int], DeviceMesh | Party, Sequence[str]]],
    plan: Plan,
    *,
    memory: int,
) -> str:
    """``sha256:...`` of the module without decisions, the ``stages`` (positions of ops, mesh, devices of all replicas),
    ``memory``, and of the plan its objective, microbatches and bound, and whether its plans may avoid sums of
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
    options = f"{plan.objective} {plan.microbatches} {plan.bound!r} {memory} {among}"
    return problem_digests(module, "\n".join([options, *told]), [Among()])[0]
