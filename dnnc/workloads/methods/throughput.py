"""Throughput by contiguous splits: the pass ``partition``."""

from __future__ import annotations

from dnnc.workloads.methods.base import Progress, Solved, SolvedStage, SolveOptions, takes
from dnnc.workloads.methods.groups import in_groups
from dnnc.workloads.methods.partition import run_partition
from ir.core.module import Module


def throughput(module: Module, options: SolveOptions, progress: Progress) -> Solved:
    """The pass ``partition``: exact dynamic programming over ideals."""
    from passes.partition.partition_pass import PartitionPass
    from passes.stages.load import stage_seconds

    takes(options, "--hierarchy", "--replicas")
    if options.hierarchy is not None:
        return in_groups(module, options, progress)
    result = run_partition(module, options, progress, PartitionPass(comm=options.comm, replicas=options.replicas, hosts=False))
    stages = [
        SolvedStage(
            stage.device_type,
            ops,
            stage_seconds(stage, result.plan.comm),
            stage.compute / stage.replicas,
            (stage.receive + stage.send) / stage.replicas,
            stage.memory,
            stage.replicas,
        )
        for stage, ops in zip(result.plan.stages, result.members, strict=True)
        if ops
    ]
    return result.solved(stages, {"replicas": options.replicas} if options.replicas > 1 else {})
