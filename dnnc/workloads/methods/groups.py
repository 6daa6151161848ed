"""Throughput on groups of accelerators with slower links between groups: ``dnnc solve --hierarchy``."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from dnnc.workloads.methods.base import SECONDS, Progress, Solved, SolvedStage, SolveOptions, topology_of
from ir.core.module import Module
from ir.core.outcomes import outcome
from passes.solvers.work import now

if TYPE_CHECKING:
    from passes.partition.lattice.groups.solver import GroupPlan, Hierarchy
    from passes.partition.lattice.objective import Solution
    from passes.stages.lattice.dp import Stages
    from passes.stages.problem import Problem

FLAT_SHARE = 0.4
"""Share of the time for the search that assumes the bandwidth inside a group everywhere."""


def in_groups(module: Module, options: SolveOptions, progress: Progress) -> Solved:
    """Stages take accelerators in order, each within one group. A tensor from another group is received at the bandwidth
    between groups, and is sent at it, once, if a reader is in another group. The links of ``module`` are those inside a group.

    First a search assumes the bandwidth inside a group everywhere; its value is a lower bound. Then its order is cut with both
    bandwidths, then the exact search over ideals and groups runs (``passes.partition.lattice.groups``). Nodes are numbered
    canonically, so that nothing depends on the order of the file."""
    from passes.costs.network import network
    from passes.partition.bridge.explain import explain
    from passes.partition.lattice.groups.solver import Hierarchy, group_parts
    from passes.stages.canonical import canonical_order
    from passes.stages.colocation import colocation
    from passes.stages.from_ir import problem_of
    from passes.stages.load import load
    from passes.stages.problem import stage_cost
    from passes.stages.reduce import ordered, permuted, quotient

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
    stages = []
    for stage, (compute, receive, send) in zip(plan.stages, group_parts(problem, hierarchy, plan.stages), strict=True):
        ops = tuple(sorted(op for v in stage.nodes for op in groups[order[v]]))
        busy, memory = load(options.comm, compute, receive, send), stage_cost(problem, stage.nodes, 0).memory
        stages.append(
            SolvedStage("accelerator", ops, busy, compute, receive + send, memory, stage.replicas, device=stage.first)
        )
    ended = time.perf_counter()
    status = outcome(plan.value, plan.bound)
    counts = flat.statistics
    return Solved(
        plan.value,
        plan.value if status == "optimal" else plan.bound,
        status,
        plan.reason,
        tuple(stages),
        max(counts.ideals, plan.ideals),
        counts.transitions + plan.pairs,
        {"build": built - started, **counts.seconds, "search": ended - built},
        hierarchy_told(options) | ({"replicas": options.replicas} if options.replicas > 1 else {}),
        interrupted=plan.interrupted,
    )


def _plan(
    problem: Problem, hierarchy: Hierarchy, options: SolveOptions, progress: Progress
) -> tuple[Solution, GroupPlan | None]:
    """The search with the bandwidth inside a group everywhere, and the plan for both bandwidths, None if there is none."""
    from passes.partition.lattice.groups.solver import best_along, best_packed, solve_groups
    from passes.partition.lattice.search.replicas import replicate
    from passes.solvers.anytime import interruptible
    from passes.stages.bounds import best_bound, prices

    assert options.hierarchy is not None
    began = now()
    seconds = SECONDS if options.time_limit is None else options.time_limit
    count, size = options.hierarchy
    replicas = min(options.replicas, size)
    flat = _flat(problem, 1, FLAT_SHARE * seconds / (1 if replicas == 1 else 2), progress)
    if flat.stages is None:
        # A replica holds what a single device would: if no plan without replicas fits, none does.
        return flat, None
    stages: Stages = flat.stages
    interrupted, bounding = flat.interrupted, flat
    if replicas > 1 and not interrupted:
        try:
            bounding = _flat(problem, replicas, FLAT_SHARE * seconds / 2, progress)
        except KeyboardInterrupt:  # no plan with replicas yet; the one without them is used
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
    """Number of replicas that a kind of ``replicated_kinds`` stands for."""
    if not 0 <= kind < most:
        raise AssertionError(f"kind {kind} is none of 1 to {most} devices")
    return kind + 1


def _flat(problem: Problem, replicas: int, seconds: float, progress: Progress) -> Solution:
    """The best plan with the bandwidth inside a group everywhere, on the nodes of ``problem``."""
    from passes.partition.bridge.explain import at_least_a_plan
    from passes.partition.lattice.objective import Budget
    from passes.partition.lattice.search.replicas import replicate
    from passes.partition.lattice.search.throughput import solve
    from passes.stages.reduce import quotient, reduce

    merged = reduce(problem)
    small = quotient(problem, merged)
    wide = small if replicas == 1 else replicate(small, replicas)
    solution = at_least_a_plan(lambda budget: solve(wide, budget, progress), Budget(seconds=seconds))
    if solution.stages is None:
        return solution
    stages = tuple((kind, tuple(sorted(v for m in nodes for v in merged[m]))) for kind, nodes in solution.stages)
    return replace(solution, stages=stages)


def hierarchy_told(options: SolveOptions) -> dict[str, object]:
    """The fields of a result about groups; empty without groups."""
    if options.hierarchy is None:
        return {}
    groups, size = options.hierarchy
    return {"hierarchy": f"{groups}x{size}", "inner_bandwidth": options.inner_bandwidth}
