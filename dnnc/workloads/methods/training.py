"""Training: forward and backward nodes, split so that the forward nodes are contiguous."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from dnnc.workloads.methods.base import (
    Progress,
    Solved,
    SolvedStage,
    SolveOptions,
    budget_of,
    does_not_fit,
    solved,
    takes,
    topology_of,
)
from dnnc.workloads.methods.faults import (
    BandwidthUnknown,
    CommOnlyForThroughput,
    MicrobatchesMissing,
    NoBackwardNodes,
    UnknownSchedule,
)
from dnnc.workloads.methods.partition import run_partition
from ir.core.diagnostics import UsageError
from ir.core.module import Module
from ir.core.objectives import TRAINING
from ir.core.topology import Topology

if TYPE_CHECKING:
    from passes.reference.training import TrainingGraph
    from passes.reference.training.problem import Replication

SCHEDULES = {"1f1b": "sum", "gpipe": "split"}
"""What training minimises, by schedule; sum: max over devices of FW + BW, split: max FW + max BW."""


def training(module: Module, options: SolveOptions, progress: Progress) -> Solved:
    """All nodes of a colour are on one device, or on each of its replicas; the split of forward nodes is contiguous."""
    from passes.partition.bridge.explain import at_least_a_plan
    from passes.reference.training import solve_training
    from passes.stages.problem import pools

    takes(options, "--schedule", "--replicas", *(["--microbatches"] if options.replicas > 1 else []))
    topology = topology_of(module)
    start = time.perf_counter()
    graph, schedule = read_graph(module, options)
    if options.replicas == 1 and SCHEDULES[schedule] == "sum":
        return _by_pass(module, options, progress, graph, schedule)
    replication = _replication(options, schedule, topology, graph) if options.replicas > 1 else None
    built = time.perf_counter()
    solution = at_least_a_plan(
        lambda budget: solve_training(graph, SCHEDULES[schedule], budget, progress, replication), budget_of(options)
    )
    solved_at = time.perf_counter()
    if solution.stages is None:
        raise does_not_fit(solution.status, topology)
    stages = []
    for (chosen, nodes), load in zip(solution.stages, solution.loads, strict=True):
        kind = solution.kinds[chosen]
        sync = 0.0
        if replication is not None:
            own = pools(solution.kinds)[chosen]
            sync = replication.sync(own, kind.replicas) * float(replication.weights[list(nodes)].sum())
        stages.append(
            SolvedStage(
                kind.type,
                nodes,
                load.forward + load.backward,
                max(0.0, sum(load.compute) - sync),
                sum(load.transfers) + sync,
                load.memory,
                kind.replicas,
            )
        )
    defined: dict[str, Any] = {"schedule": schedule}
    if replication is not None:
        defined |= {"replicas": options.replicas, "microbatches": options.microbatches}
    return solved(solution, tuple(stages), built - start, solved_at - built, defined)


def _by_pass(module: Module, options: SolveOptions, progress: Progress, graph: TrainingGraph, schedule: str) -> Solved:
    """By the pass ``reference``, whose forward and backward stage of a device become one stage here."""
    from passes.reference.reference_pass import ReferencePass
    from passes.reference.training import training_load, units

    result = run_partition(module, options, progress, ReferencePass(objective=TRAINING.name))
    problem, nodes_of = units(graph)
    unit_of = {v: unit for unit, nodes in enumerate(nodes_of) for v in nodes}
    devices: dict[object, tuple[str, list[int]]] = {}
    for stage, ops in zip(result.plan.stages, result.members, strict=True):
        devices.setdefault(stage.devices or stage.index, (stage.device_type, []))[1].extend(ops)
    stages = []
    for type_, positions in devices.values():
        kind = next(k for k, known in enumerate(graph.kinds) if known.type == type_)
        load = training_load(problem, kind, sorted({unit_of[v] for v in positions}))
        busy, compute, transfers = load.forward + load.backward, sum(load.compute), sum(load.transfers)
        stages.append(SolvedStage(type_, tuple(sorted(positions)), busy, compute, transfers, load.memory))
    return result.solved(stages, {"schedule": schedule})


def read_graph(module: Module, options: SolveOptions) -> tuple[TrainingGraph, str]:
    """The graph and the schedule. Raises UsageError for options of other objectives, and without backward nodes."""
    from passes.costs.network import network
    from passes.reference.from_workload import training_graph_of

    schedule = options.schedule or "1f1b"
    if schedule not in SCHEDULES:
        raise UsageError(UnknownSchedule(TRAINING.name, schedule, tuple(SCHEDULES)))
    if options.comm != "sum":
        raise UsageError(CommOnlyForThroughput(TRAINING.name))
    topology = topology_of(module)
    graph = training_graph_of(module, topology, network(topology))
    if not graph.backward.any():
        raise UsageError(NoBackwardNodes(options.file))
    return graph, schedule


def _replication(options: SolveOptions, schedule: str, topology: Topology, graph: TrainingGraph) -> Replication:
    """The cost of replicas: each averages as many bytes of gradients as it has parameters. The format does not separate
    parameters from activations, so the size of forward nodes is used, an upper bound."""
    from passes.costs.network import network
    from passes.reference.training.problem import Replication

    if not topology.links:
        raise UsageError(BandwidthUnknown("the averaging of gradients among replicas"))
    if schedule == "gpipe" and options.microbatches is None:
        raise UsageError(MicrobatchesMissing())
    net = network(topology)
    bandwidths = []
    for kind in graph.kinds:
        free = topology.type(kind.type).free_transfers
        bandwidths.append(math.inf if free else net.port(kind.devices[0]).bandwidth)
    weights = np.where(graph.backward, 0, graph.size)
    return Replication(options.replicas, weights, tuple(bandwidths), options.microbatches)
