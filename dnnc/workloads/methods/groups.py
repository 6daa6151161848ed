"""Throughput on accelerators in groups, joined at a lower speed: ``dnnc solve --hierarchy``."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from dnnc.workloads.methods.base import SECONDS, Progress, Solved, SolvedStage, SolveOptions, topology_of
from ir.core.module import Module
from passes.model.work import now

if TYPE_CHECKING:
    from passes.model.stages.lattice.dp import Stages
    from passes.model.stages.problem import Problem
    from passes.partition import Solution
    from passes.partition.groups.solver import GroupPlan, Hierarchy

FLAT_SHARE = 0.4
"""Of the time: what the search with every link as fast as inside may take."""


def in_groups(module: Module, options: SolveOptions, progress: Progress) -> Solved:
    """Stages take accelerators in order, each in one group; a tensor from another group comes at the speed between groups, and
    is sent at it once when a reader is in another. The links of ``module`` are those inside a group.

    First the search with every link as fast as inside: its value is a lower bound. Then plans along its order that know both
    speeds, then the exact search over ideals and groups (``passes.partition.groups``). Nodes are numbered canonically first, so
    that nothing depends on the order of the file."""
    from passes.model.network import network
    from passes.model.stages.canonical import canonical_order
    from passes.model.stages.colocation import colocation
    from passes.model.stages.from_ir import problem_of
    from passes.model.stages.lattice.ideals import permuted
    from passes.model.stages.load import load
    from passes.model.stages.problem import stage_cost
    from passes.model.stages.reduce import ordered, quotient
    from passes.partition.bridge.explain import explain
    from passes.partition.groups.solver import Hierarchy, group_parts

    assert options.hierarchy is not None
    assert options.bandwidth is not None
    assert options.inner_bandwidth is not None
    started = time.perf_counter()
    topology = topology_of(module)
    fine = problem_of(module, topology, network(topology), comm=options.comm)
    groups = ordered(fine, colocation(module))
    joined = quotient(fine, groups)
    order = canonical_order(joined)
    problem = permuted(joined, order)
    inner = problem.transfer[0]
    slower = options.inner_bandwidth / options.bandwidth
    hierarchy = Hierarchy(options.hierarchy[1], (0.0, 0.0), (inner, inner * slower), once=True)
    built = time.perf_counter()
    flat, plan = _plan(problem, hierarchy, options, progress)
    if plan is None:
        raise explain(problem, flat, topology)
    found = []
    for stage, (compute, receive, send) in zip(plan.stages, group_parts(problem, hierarchy, plan.stages), strict=True):
        ops = tuple(sorted(op for v in stage.nodes for op in groups[order[v]]))
        busy, memory = load(options.comm, compute, receive, send), stage_cost(problem, stage.nodes, 0).memory
        found.append(SolvedStage("accelerator", ops, busy, compute, receive + send, memory, stage.replicas, device=stage.first))
    ended = time.perf_counter()
    optimal = plan.value <= plan.bound * (1 + 1e-9)
    counts = flat.statistics
    return Solved(
        plan.value,
        plan.value if optimal else plan.bound,
        "optimal" if optimal else "feasible",
        plan.reason,
        tuple(found),
        max(counts.ideals, plan.ideals),
        counts.transitions + plan.pairs,
        {"build": built - started, **counts.seconds, "search": ended - built},
        hierarchy_told(options) | ({"replicas": options.replicas} if options.replicas > 1 else {}),
        interrupted=plan.interrupted,
    )


def _plan(
    problem: Problem, hierarchy: Hierarchy, options: SolveOptions, progress: Progress
) -> tuple[Solution, GroupPlan | None]:
    """The search with every link as fast as inside, and the plan on both speeds; None where there is none."""
    from passes.model.interrupts import interruptible
    from passes.model.stages.bounds import best_bound, prices
    from passes.partition.groups.solver import best_along, best_packed, solve_groups
    from passes.partition.search.replicas import replicate

    assert options.hierarchy is not None
    began = now()
    seconds = SECONDS if options.time_limit is None else options.time_limit
    count, size = options.hierarchy
    replicas = min(options.replicas, size)
    flat = _flat(problem, 1, FLAT_SHARE * seconds / (1 if replicas == 1 else 2), progress)
    if flat.stages is None:
        # Replicas hold what one device would: where no plan without them fits, none does.
        return flat, None
    stages: Stages = flat.stages
    interrupted, bounding = flat.interrupted, flat
    if replicas > 1 and not interrupted:
        try:
            bounding = _flat(problem, replicas, FLAT_SHARE * seconds / 2, progress)
        except KeyboardInterrupt:  # before it had a plan; there is one
            interrupted = True
    interrupted = interrupted or bounding.interrupted
    bound, reason = bounding.bound, bounding.reason
    if replicas > 1 and (bounding is flat or bounding.stages is None):
        wide = replicate(problem, replicas)
        bound, reason = best_bound(wide, prices(wide))
    if not interrupted:
        try:
            with interruptible():
                progress("partition: groups", None)
                left = seconds - (now() - began)
                stages, _ = best_along(problem, hierarchy, stages, bound, left)
        except KeyboardInterrupt:
            interrupted = True
    plans = [[(1, nodes) for _, nodes in stages]]
    if bounding.stages is not None and bounding is not flat:
        plans.append([(_replicas(kind, replicas), nodes) for kind, nodes in bounding.stages])
    plan = best_packed(problem, hierarchy, count, plans, bound, f"{reason}, every link as fast as inside a group")
    assert plan is not None, "a stage on each device"
    if interrupted:
        plan = replace(plan, interrupted=True)
    else:
        left = seconds - (now() - began)
        plan = solve_groups(problem, hierarchy, count, plan, replicas=replicas, seconds=max(0.0, left), progress=progress)
    return flat, plan


def _replicas(kind: int, most: int) -> int:
    """Devices of a kind that ``replicated_kinds`` made of a single one."""
    if not 0 <= kind < most:
        raise AssertionError(f"kind {kind} is none of 1 to {most} devices")
    return kind + 1


def _flat(problem: Problem, replicas: int, seconds: float, progress: Progress) -> Solution:
    """The best plan where every link is as fast as inside, on the nodes of ``problem``."""
    from passes.model.stages.reduce import quotient, reduce
    from passes.partition import Budget, solve
    from passes.partition.bridge.explain import at_least_a_plan
    from passes.partition.search.replicas import replicate

    merged = reduce(problem)
    small = quotient(problem, merged)
    wide = small if replicas == 1 else replicate(small, replicas)
    found = at_least_a_plan(lambda budget: solve(wide, budget, progress), Budget(seconds=seconds))
    if found.stages is None:
        return found
    stages = tuple((kind, tuple(sorted(v for m in nodes for v in merged[m]))) for kind, nodes in found.stages)
    return replace(found, stages=stages)


def hierarchy_told(options: SolveOptions) -> dict[str, object]:
    """What a result says of groups; nothing where there are none."""
    if options.hierarchy is None:
        return {}
    groups, size = options.hierarchy
    return {"hierarchy": f"{groups}x{size}", "inner_bandwidth": options.inner_bandwidth}


__all__ = ["hierarchy_told", "in_groups"]
