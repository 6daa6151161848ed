"""Any assignment of nodes to devices."""

from __future__ import annotations

import time

from dnnc.methods.base import Progress, Solved, SolvedStage, SolveOptions, does_not_fit, solved, takes
from ir.module import Module
from ir.topology import Topology

ANY_SECONDS = 120.0
"""Longest search over any split unless a limit is given: what a proof within 1 % takes on the public workloads."""


def any_throughput(module: Module, options: SolveOptions, progress: Progress) -> Solved:
    """Any assignment of nodes to devices: local search above, mixed-integer programmes below."""
    from passes.analyses.network import network
    from passes.partition import Budget, plan_costs
    from passes.partition.any_split import solve_any
    from passes.partition.from_ir import problem_of
    from passes.partition.from_workload import color_classes

    takes(options)
    topology = module.first(Topology)
    assert topology is not None, "solve checks it"
    start = time.perf_counter()
    problem = problem_of(module, topology, network(topology), comm=options.comm)
    built = time.perf_counter()
    seconds = ANY_SECONDS if options.time_limit is None else options.time_limit
    solution = solve_any(problem, Budget(seconds=seconds), progress, together=color_classes(module.entry))
    found = time.perf_counter()
    if solution.stages is None:
        raise does_not_fit(solution.status, topology)
    stages = tuple(
        SolvedStage(problem.kinds[cost.kind].type, cost.nodes, cost.load, cost.compute, cost.receive + cost.send, cost.memory)
        for cost in plan_costs(problem, solution.stages)
    )
    return solved(solution, stages, built - start, found - built)


__all__ = ["any_throughput"]
