"""Throughput on accelerators in groups, joined at a lower speed: ``dnnc solve --hierarchy``."""

from __future__ import annotations

import math
import time
from dataclasses import replace

from dnnc.methods.base import Progress, Solved, SolvedStage, SolveOptions
from ir.module import Module
from ir.topology import Topology


def in_groups(module: Module, options: SolveOptions, progress: Progress) -> Solved:
    """Stages take accelerators in order, group after group; a tensor from another group comes at the speed between groups, and
    is sent at it once when a reader is in another. The links of ``module`` are those inside a group.

    First the exact search with every link as fast as inside: its value is a lower bound. Then plans along its order that know
    both speeds (``passes/partition/hierarchy.py``)."""
    from dnnc.methods.throughput import throughput
    from passes.analyses.network import network
    from passes.partition.colocation import colocation
    from passes.partition.from_ir import problem_of
    from passes.partition.hierarchy import Hierarchy, best_along, plan_value, stage_parts
    from passes.partition.problem import load, stage_cost
    from passes.partition.reduce import ordered, quotient

    assert options.hierarchy is not None
    assert options.bandwidth is not None
    assert options.inner_bandwidth is not None
    flat = throughput(module, replace(options, hierarchy=None), progress)
    started = time.perf_counter()
    topology = module.first(Topology)
    assert topology is not None, "solve checks it"
    fine = problem_of(module, topology, network(topology), comm=options.comm)
    groups = ordered(fine, colocation(module))
    problem = quotient(fine, groups)
    label = {op: g for g, ops in enumerate(groups) for op in ops}
    stages = tuple((0, tuple(sorted({label[op] for op in stage.ops}))) for stage in flat.stages)
    inner = problem.transfer[0]
    slower = options.inner_bandwidth / options.bandwidth
    hierarchy = Hierarchy(options.hierarchy[1], (0.0, 0.0), (inner, inner * slower), once=True)
    progress("partition: groups", None)
    left = math.inf if options.time_limit is None else options.time_limit - flat.seconds["search"]
    try:
        best, value = best_along(problem, hierarchy, stages, flat.bound, 0.0 if flat.interrupted else left)
    except KeyboardInterrupt:
        best, value = stages, plan_value(problem, hierarchy, stages)
        flat = replace(flat, interrupted=True)
    found = []
    for (kind, nodes), (compute, receive, send) in zip(best, stage_parts(problem, hierarchy, best), strict=True):
        ops = tuple(sorted(op for node in nodes for op in groups[node]))
        busy = load(options.comm, compute, receive, send)
        found.append(SolvedStage("accelerator", ops, busy, compute, receive + send, stage_cost(problem, nodes, kind).memory))
    spent = time.perf_counter() - started
    optimal = value <= flat.bound * (1 + 1e-9)
    return replace(
        flat,
        value=value,
        bound=value if optimal else flat.bound,
        status="optimal" if optimal else "feasible",
        reason=f"{flat.reason}, every link as fast as inside a group",
        stages=tuple(found),
        seconds={**flat.seconds, "groups": spent, "search": flat.seconds["search"] + spent},
        options=hierarchy_told(options),
    )


def hierarchy_told(options: SolveOptions) -> dict[str, object]:
    """What a result says of groups; nothing where there are none."""
    if options.hierarchy is None:
        return {}
    groups, size = options.hierarchy
    return {"hierarchy": f"{groups}x{size}", "inner_bandwidth": options.inner_bandwidth}


__all__ = ["hierarchy_told", "in_groups"]
