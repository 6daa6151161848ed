"""What the bound of a plan on meshes was proven for, as a digest that outlives the editing of the plan.

The bound is one of all plans that the search was free to choose among. Whatever those were, plans with the stages and meshes of
the plan that was found are among them. So the bound holds for every plan of this model on this topology under these options
that keeps stages and meshes, however it splits ops, keeps weights and hands out results.
"""

from __future__ import annotations

from collections.abc import Sequence

from ir.module import Module, Plan
from passes.analyses.identity import problem_digest
from passes.shard.mesh import DeviceMesh


def proven_for(module: Module, stages: Sequence[tuple[Sequence[int], DeviceMesh]], plan: Plan, *, uneven: bool) -> str:
    """``sha256:...`` of the module without decisions, the ``stages`` (positions of ops, mesh), ``uneven``, and of the plan its
    objective, microbatches and bound."""
    told = [f"{mesh.sizes} {mesh.shares} {mesh.devices} {sorted(ops)}" for ops, mesh in stages]
    return problem_digest(module, "\n".join([f"{plan.objective} {plan.microbatches} {plan.bound!r} {uneven}", *told]))


__all__ = ["proven_for"]
