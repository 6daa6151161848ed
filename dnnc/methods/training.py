"""Training: forward and backward nodes, the forward part contiguous."""

from __future__ import annotations

import time

from dnnc.methods.base import Progress, Solved, SolvedStage, SolveOptions, budget_of, does_not_fit, solved, takes
from ir.diagnostics import UsageError
from ir.module import Module
from ir.topology import Topology

TRAINING = {"1f1b": "sum", "gpipe": "split"}
"""What training minimises, by schedule: max (FW + BW), or max FW + max BW."""


def training(module: Module, options: SolveOptions, progress: Progress) -> Solved:
    """Forward and backward nodes of a colour on one device; the forward part contiguous."""
    from passes.analyses.network import network
    from passes.partition.from_workload import training_graph_of
    from passes.partition.training import solve_training

    schedule = options.schedule or "1f1b"
    takes(options, "--schedule")
    if schedule not in TRAINING:
        raise UsageError(f"--schedule of training takes {' or '.join(TRAINING)}, found '{schedule}'")
    if options.comm != "sum":
        raise UsageError("--comm is of throughput; training adds compute and transfers up")
    topology = module.first(Topology)
    assert topology is not None, "solve checks it"
    start = time.perf_counter()
    graph = training_graph_of(module, topology, network(topology))
    if not graph.backward.any():
        raise UsageError(f"{options.file} has no backward nodes", hint="--objective throughput, or pipedream for its profiles")
    built = time.perf_counter()
    solution = solve_training(graph, TRAINING[schedule], budget_of(options), progress)
    found = time.perf_counter()
    if solution.stages is None:
        raise does_not_fit(solution.status, topology)
    stages = tuple(
        SolvedStage(
            graph.kinds[kind].type,
            nodes,
            load.forward + load.backward,
            sum(load.compute),
            sum(load.transfers),
            load.memory,
        )
        for (kind, nodes), load in zip(solution.stages, solution.loads, strict=True)
    )
    return solved(solution, stages, built - start, found - built, {"schedule": schedule})


__all__ = ["training"]
