"""Latency of one sample: accelerators run pieces one after another, and the number of CPUs is not limited."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from dnnc.workloads.methods.base import (
    Progress,
    Solved,
    SolvedPiece,
    SolvedStage,
    SolveOptions,
    does_not_fit,
    takes,
    topology_of,
)
from dnnc.workloads.methods.faults import CommOnlyForThroughput, LatencyNotDefined, TooManyKinds
from ir.core.diagnostics import UsageError
from ir.core.module import Module
from ir.core.objectives import LATENCY

if TYPE_CHECKING:
    from passes.reference.latency import BuiltLatency, LatencyProblem, Schedule
    from passes.stages.problem import Problem

CPUS = "cpus"
"""Name of all CPUs together in an answer."""


def latency(module: Module, options: SolveOptions, progress: Progress) -> Solved:
    """The least time of one sample, by an exact search over the lattice of ideals."""
    from passes.partition.bridge.explain import at_least_a_plan
    from passes.reference.latency import LatencyBudget, TooManyKindsError, solve_latency

    topology = topology_of(module)
    start = time.perf_counter()
    throughput, built = read_latency(module, options)
    loaded = time.perf_counter()
    budget = LatencyBudget() if options.time_limit is None else LatencyBudget(seconds=options.time_limit)
    try:
        solution = at_least_a_plan(lambda part: solve_latency(built.problem, part, progress), budget)
    except TooManyKindsError as error:
        raise UsageError(TooManyKinds(str(error)), where=topology.name) from None
    solved_at = time.perf_counter()
    if solution.schedule is None:
        raise does_not_fit(solution.status, topology)
    counts = solution.statistics
    search = sum(counts.seconds.values())
    return Solved(
        solution.value,
        solution.bound,
        solution.status,
        solution.reason,
        stages_of(throughput, built, solution.schedule),
        counts.ideals,
        counts.transitions,
        {"build": loaded - start, **counts.seconds, "compile": solved_at - loaded - search, "search": search},
        {"pieces": options.pieces},
        interrupted=solution.interrupted,
    )


def read_latency(module: Module, options: SolveOptions) -> tuple[Problem, BuiltLatency]:
    """The throughput problem and the latency problem of the same nodes and devices. Raises UsageError for options of other
    objectives."""
    from passes.costs.network import network
    from passes.reference.from_workload import color_classes
    from passes.reference.latency import latency_problem
    from passes.stages.from_ir import problem_of

    takes(options, "--pieces")
    if options.comm != "sum":
        raise UsageError(CommOnlyForThroughput(LATENCY.name))
    topology = topology_of(module)
    throughput = problem_of(module, topology, network(topology))
    free = [topology.type(kind.type).free_transfers for kind in throughput.kinds]
    try:
        return throughput, latency_problem(throughput, free, color_classes(module.entry), options.pieces)
    except ValueError as error:
        raise UsageError(LatencyNotDefined(str(error)), where=topology.name) from None


def stages_of(throughput: Problem, built: BuiltLatency, plan: Schedule) -> tuple[SolvedStage, ...]:
    """Accelerators in the order in which they start, then all CPUs as one stage if they have nodes."""
    stages = _stages(built.problem, plan)
    if built.cpu is not None and plan.on_cpu:
        stages.append(_on_cpus(built.problem, plan, throughput.kinds[built.cpu].type))
    return tuple(stages)


def _stages(problem: LatencyProblem, plan: Schedule) -> list[SolvedStage]:
    """Accelerators, in the order in which they start."""
    rows: dict[tuple[int, int], list[int]] = {}
    for p, piece in enumerate(plan.pieces):
        rows.setdefault((piece.kind, piece.device), []).append(p)
    stages = []
    for (kind, _), own in sorted(rows.items(), key=lambda row: (plan.times[row[1][0]].start, row[1][0])):
        ops = tuple(sorted(v for p in own for v in plan.pieces[p].nodes))
        compute = sum(plan.times[p].compute for p in own)
        transfer = sum(plan.times[p].receive + plan.times[p].send for p in own)
        pieces = tuple(SolvedPiece(plan.pieces[p].nodes, plan.times[p].start, plan.times[p].finish) for p in own)
        stages.append(
            SolvedStage(
                problem.kinds[kind].type,
                ops,
                compute + transfer,
                compute,
                transfer,
                sum(int(problem.size[v]) for v in ops),
                pieces=pieces,
            )
        )
    return stages


def _on_cpus(problem: LatencyProblem, plan: Schedule, type_: str) -> SolvedStage:
    """All CPUs as one stage: their nodes, and the sum of their times."""
    ops = plan.on_cpu
    busy = float(problem.cpu[list(ops)].sum())
    return SolvedStage(type_, ops, busy, busy, 0.0, sum(int(problem.size[v]) for v in ops), name=CPUS)
