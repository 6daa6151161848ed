"""Throughput by contiguous splits: the pass ``partition``."""

from __future__ import annotations

from dataclasses import replace

from dnnc.methods.base import SECONDS, Progress, Solved, SolvedStage, SolveOptions, takes
from dnnc.methods.groups import in_groups
from ir.diagnostics import DiagnosticSink
from ir.facets import StageSet
from ir.module import Module, Plan


def throughput(module: Module, options: SolveOptions, progress: Progress) -> Solved:
    """The pass ``partition``: exact dynamic programming over ideals."""
    from dnnc.driver import pass_context
    from passes.framework.manager import PassManager
    from passes.model.stages.load import stage_seconds
    from passes.partition import PartitionPass

    takes(options, "--hierarchy", "--replicas")
    if options.hierarchy is not None:
        return in_groups(module, options, progress)
    context = pass_context(DiagnosticSink(), progress)
    solver = PartitionPass(comm=options.comm, replicas=options.replicas)
    solver = replace(solver, anytime=True, time_limit=SECONDS if options.time_limit is None else options.time_limit)
    module = PassManager((solver,), verify=False).run(module, context)
    plan = module.first(Plan)
    assert plan is not None, "the pass makes a plan"
    members: list[list[int]] = [[] for _ in plan.stages]
    for v, op in enumerate(module.entry.ops):
        for index in op.facet(StageSet, StageSet(())).stages:
            members[index].append(v)
    stages = tuple(
        SolvedStage(
            stage.device_type,
            tuple(ops),
            stage_seconds(stage, plan.comm),
            stage.compute / stage.replicas,
            (stage.receive + stage.send) / stage.replicas,
            stage.memory,
            stage.replicas,
        )
        for stage, ops in zip(plan.stages, members, strict=True)
        if ops
    )
    counted = context.statistics["partition"]
    phases = {name: value for name, value in counted.items() if isinstance(value, float)}
    del phases["seconds"]  # what is left of them turns the plan into IR
    build, search = phases.pop("build"), phases.pop("search")
    seconds = {"build": build, **phases, "search": search}
    reason = dict(plan.certificate).get("bound", "")
    interrupted = bool(counted["interrupted"])
    ideals, transitions = int(counted["ideals"]), int(counted["transitions"])
    defined = {"replicas": options.replicas} if options.replicas > 1 else {}
    return Solved(
        plan.value,
        plan.bound,
        plan.status,
        reason,
        stages,
        ideals,
        transitions,
        seconds,
        defined,
        interrupted=interrupted,
    )


__all__ = ["throughput"]
