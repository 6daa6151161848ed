"""Every plan that a test compiles is counted twice: what its stages cost, and what the programs of their devices do.

The count reads local types, the ops of programs and the topology, and nothing of the search. A plan says the seconds of the
slowest member of each op, so the seconds of any one member are at most those; those of a stage on one device, or on one for
each sample in turn, are what is counted."""

from __future__ import annotations

import math

from ir.diagnostics import InvalidInput
from ir.facets import BackwardTime, Measured, Time
from ir.module import Module, Plan
from ir.topology import Topology
from passes.framework.base import PassContext
from passes.localize import LocalizePass
from passes.model.folding import expand
from passes.model.spmd import count
from tests.passes.model.spmd.worked import worked

NEAR = 1e-6
ABOVE = 1e-2
"""Relative: of a Gemm the bias is added in one of its terms alone, which the plan spreads."""


def check_counts(module: Module) -> int:
    """Asserts that the plan of a module with programs costs what its programs do; returns how many stages were compared. Stages
    whose seconds were given or measured say nothing of programs."""
    plan, topology = module.first(Plan), module.first(Topology)
    timed = any(isinstance(facet, Time | BackwardTime | Measured) for op in module.entry.ops for facet in op.facets)
    if plan is None or topology is None or timed or plan.minimises.trains:
        return 0
    try:
        members, collectives = worked(module), count(module)
    except InvalidInput:  # a size that nobody knows
        return 0
    compared = 0
    for stage in plan.stages:
        own = [member.seconds for member in members if member.stage == stage.index]
        exchanged = math.fsum(one.seconds for one in collectives if one.stage == stage.index)
        if not own or not stage.devices:
            continue
        told = f"stage {stage.index} of {plan.name}: {stage.compute:.6g} s of compute, its programs {max(own):.6g} s"
        types = {device.name: topology.type(device.type) for device in topology.devices}
        counted = max(own) + max((types[device].handover for device in stage.devices if len(plan.stages) > 1), default=0.0)
        if stage.mesh:
            assert counted <= stage.compute * (1 + ABOVE), told
            assert math.isclose(exchanged, stage.collectives, rel_tol=NEAR, abs_tol=1e-15), (
                f"stage {stage.index} of {plan.name}: {stage.collectives:.6g} s of collectives, counted {exchanged:.6g} s"
            )
        else:
            assert math.isclose(stage.compute, counted, rel_tol=NEAR), told
        compared += 1
    return compared


def localized_and_counted(self: LocalizePass, module: Module, context: PassContext) -> Module:
    """The pass ``localize``, with the check behind it where a search made the plan."""
    result = _LOCALIZE(self, module, context)
    if {"partition", "shard"} & context.statistics.keys():
        check_counts(expand(result))
    return result


_LOCALIZE = LocalizePass.run

__all__ = ["check_counts", "localized_and_counted"]
