"""Splits that need not be contiguous: any assignment of nodes to devices, for throughput and for training.

Data may then flow back and forth between devices. ``Boundaries`` counts these transfers, and those of the best contiguous plan.
Nodes are numbered canonically, as for the baselines.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from dnnc.workloads.methods.base import (
    Boundaries,
    Progress,
    Solved,
    SolvedStage,
    SolveOptions,
    does_not_fit,
    solved,
    takes,
    topology_of,
)
from dnnc.workloads.methods.canonical import canonical_module, in_file_order
from dnnc.workloads.methods.training import SCHEDULES, read_graph
from ir.core.module import Module

if TYPE_CHECKING:
    from passes.partition.lattice.objective import Budget
    from passes.reference.assignment.solver import AnySolution

ANY_SECONDS = 120.0
"""Longest search without a limit. It suffices for a bound within 1 % on the public workloads."""


def any_throughput(module: Module, options: SolveOptions, progress: Progress) -> Solved:
    """Any assignment of nodes to devices: local search for a plan, mixed-integer programmes for the bound."""
    from passes.costs.network import network
    from passes.partition.bridge.explain import at_least_a_plan
    from passes.reference.assignment.solver import solve_any
    from passes.reference.from_workload import color_classes
    from passes.stages.from_ir import problem_of
    from passes.stages.problem import plan_costs

    takes(options)
    topology = topology_of(module)
    start = time.perf_counter()
    module, order = canonical_module(module)
    problem = problem_of(module, topology, network(topology), comm=options.comm)
    built = time.perf_counter()
    classes = color_classes(module.entry)
    solution = at_least_a_plan(lambda budget: solve_any(problem, budget, progress, together=classes), _budget(options))
    solved_at = time.perf_counter()
    if solution.stages is None:
        raise does_not_fit(solution.status, topology)
    stages = tuple(
        SolvedStage(problem.kinds[cost.kind].type, cost.nodes, cost.load, cost.compute, cost.receive + cost.send, cost.memory)
        for cost in plan_costs(problem, solution.stages)
    )
    edges = [(int(u), v) for u, readers in zip(problem.producer, problem.consumers, strict=True) for v in readers]
    boundaries = _boundaries(solution, edges)
    return solved(solution, in_file_order(stages, order), built - start, solved_at - built, boundaries=boundaries)


def any_training(module: Module, options: SolveOptions, progress: Progress) -> Solved:
    """Any assignment of colours to devices; the forward and backward nodes of a colour stay together."""
    from passes.partition.bridge.explain import at_least_a_plan
    from passes.reference.assignment.training import solve_any_training

    takes(options, "--schedule")
    topology = topology_of(module)
    start = time.perf_counter()
    module, order = canonical_module(module)
    graph, schedule = read_graph(module, options)
    built = time.perf_counter()
    solution = at_least_a_plan(
        lambda budget: solve_any_training(graph, SCHEDULES[schedule], budget, progress), _budget(options)
    )
    solved_at = time.perf_counter()
    if solution.stages is None:
        raise does_not_fit(solution.status, topology)
    stages = tuple(
        SolvedStage(
            graph.kinds[kind].type, nodes, load.forward + load.backward, sum(load.compute), sum(load.transfers), load.memory
        )
        for (kind, nodes), load in zip(solution.stages, solution.loads, strict=True)
    )
    boundaries = _boundaries(solution, graph.edges)
    return solved(solution, in_file_order(stages, order), built - start, solved_at - built, {"schedule": schedule}, boundaries)


def _budget(options: SolveOptions) -> Budget:
    from passes.partition.lattice.objective import Budget

    return Budget(seconds=ANY_SECONDS if options.time_limit is None else options.time_limit)


def _boundaries(solution: AnySolution, edges: Iterable[tuple[int, int]]) -> Boundaries:
    """The transfers of a plan. ``edges``: producer and reader; a producer has one output."""
    edges = list(edges)
    assert solution.stages is not None, "called with a plan"
    pairs, transfers = _crossings(solution.stages, edges)
    if solution.contiguous is None:
        return Boundaries(pairs, transfers)
    return Boundaries(pairs, transfers, solution.contiguous_value, *_crossings(solution.contiguous, edges))


def _crossings(stages: Sequence[tuple[int, Sequence[int]]], edges: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Number of ordered pairs of stages with a transfer, and of tensors received, each once per receiving stage."""
    place = {v: s for s, (_, nodes) in enumerate(stages) for v in nodes}
    crossing = [(u, v) for u, v in edges if place[u] != place[v]]
    return len({(place[u], place[v]) for u, v in crossing}), len({(u, place[v]) for u, v in crossing})
