"""PipeDream's objective: training by replicated stages."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

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
    NoAccelerators,
    UnknownSchedule,
)
from dnnc.workloads.methods.groups import hierarchy_told
from ir.core.diagnostics import UsageError
from ir.core.module import Module
from ir.core.objectives import PIPEDREAM

if TYPE_CHECKING:
    from passes.reference.pipedream import Machines, Profile


def pipedream(module: Module, options: SolveOptions, progress: Progress) -> Solved:
    """PipeDream's dynamic programme over replicated stages, which is exact. Machines are accelerators and their links."""
    from passes.reference.pipedream import solve_pipedream

    start = time.perf_counter()
    profile, machines, defined = read_problem(module, options)
    built = time.perf_counter()
    solution = solve_pipedream(profile, machines, budget_of(options), progress)
    solved_at = time.perf_counter()
    if solution.stages is None:
        raise does_not_fit(solution.status, topology_of(module))
    stages = tuple(
        SolvedStage(
            "accelerator",
            stage.nodes,
            stage.time,
            stage.compute,
            stage.sync + max(stage.receive, stage.send),
            math.ceil(stage.memory),
            stage.replicas,
        )
        for stage in solution.times
    )
    return solved(solution, stages, built - start, solved_at - built, defined)


def read_problem(module: Module, options: SolveOptions) -> tuple[Profile, Machines, dict[str, Any]]:
    """The profile, its machines, and the parameters of the objective. Raises UsageError for options of other objectives."""
    from passes.reference.from_workload import profile_of
    from passes.reference.pipedream import SCHEDULES, Machines

    takes(options, "--straight", "--schedule", "--microbatches", "--hierarchy")
    if options.comm != "sum":
        raise UsageError(CommOnlyForThroughput(PIPEDREAM.name))
    schedule = options.schedule or SCHEDULES[0]
    if schedule not in SCHEDULES:
        raise UsageError(UnknownSchedule(PIPEDREAM.name, schedule, tuple(SCHEDULES)))
    if schedule == "gpipe" and options.microbatches is None:
        raise UsageError(MicrobatchesMissing())
    topology = topology_of(module)
    devices = [device for device in topology.devices if device.type == "accelerator"]
    if not devices:
        raise UsageError(NoAccelerators())
    if not topology.links:
        raise UsageError(BandwidthUnknown("--objective pipedream"))
    profile = profile_of(module, topology.type("accelerator"))
    machines = Machines(
        count=len(devices),
        bandwidth=min(link.bandwidth for link in topology.links),
        straight=options.straight,
        memory=topology.memory(devices[0]),
        schedule=schedule,
        microbatches=options.microbatches,
        group=0 if options.hierarchy is None else options.hierarchy[1],
        between=math.inf if options.hierarchy is None or options.bandwidth is None else options.bandwidth,
    )
    defined: dict[str, object] = {"straight": options.straight, "schedule": schedule, "microbatches": options.microbatches}
    defined |= hierarchy_told(options)
    return profile, machines, defined
