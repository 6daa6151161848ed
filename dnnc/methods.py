"""How to solve a workload: one method per objective and split, listed in ``METHODS``.

A method takes the module of a workload (``dnnc.work`` ops and a topology) and gives stages with a bound, in seconds and bytes;
``dnnc.solve`` tells them in the file's words. To add a method is to write it here and to list it. A workload that no
plan fits raises Infeasible.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from ir.diagnostics import DiagnosticSink, Infeasible, UsageError
from ir.facets import StageSet
from ir.module import Module, Plan
from ir.topology import Topology

if TYPE_CHECKING:
    from passes.partition import Budget, Solution

ANY_SECONDS = 120.0
"""Longest search over any split unless a limit is given: what a proof within 1 % takes on the public workloads."""
TRAINING = {"1f1b": "sum", "gpipe": "split"}
"""What training minimises, by schedule: max (FW + BW), or max FW + max BW."""
Progress: TypeAlias = Callable[[str, float | None], None]


@dataclass(frozen=True, slots=True)
class SolveOptions:
    """What to solve and how. ``objective`` empty: as the file suggests. ``accelerators``, ``cpus``, ``memory`` (bytes each),
    ``bandwidth`` (bytes per second) stand over the file's. ``forward``: leave backward nodes out. ``time_limit``: seconds of
    search, None for the method's own. Of PipeDream's objective: ``straight``: one machine per stage; ``schedule``: what memory
    holds; ``microbatches`` between two flushes."""

    file: str
    format: str = ""
    objective: str = ""
    split: str = "contiguous"
    comm: str = "sum"
    accelerators: int | None = None
    cpus: int | None = None
    memory: int | None = None
    bandwidth: float | None = None
    forward: bool = False
    time_limit: float | None = None
    straight: bool = False
    schedule: str = ""
    microbatches: int | None = None


@dataclass(frozen=True, slots=True)
class SolvedStage:
    """A stage on ``replicas`` devices of ``kind``: positions of its ops, seconds that each device is busy per sample, the
    compute and the transfers in it, and bytes on each."""

    kind: str
    ops: tuple[int, ...]
    load: float
    compute: float
    transfer: float
    memory: int
    replicas: int = 1


@dataclass(frozen=True, slots=True)
class Solved:
    """What a method gives. ``stages`` in pipeline order; ``reason``: how the bound was reached; ``seconds`` by phase,
    ``search`` the whole search. ``options``: what else defines the objective."""

    value: float
    bound: float
    status: str
    reason: str
    stages: tuple[SolvedStage, ...]
    ideals: int = 0
    transitions: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


Method: TypeAlias = Callable[[Module, SolveOptions, Progress], Solved]


def _throughput(module: Module, options: SolveOptions, progress: Progress) -> Solved:
    """The pass ``partition``: exact dynamic programming over ideals."""
    from dnnc.driver import pass_context
    from dnnc.report import stage_seconds
    from passes.manager import PassManager
    from passes.partition import PartitionPass

    _takes(options)
    context = pass_context(DiagnosticSink(), progress)
    solver = PartitionPass(objective="throughput", comm=options.comm)
    if options.time_limit is not None:
        solver = replace(solver, time_limit=options.time_limit)
    module = PassManager((solver,), verify=False).run(module, context)
    plan = module.first(Plan)
    assert plan is not None, "the pass makes a plan"
    members: list[list[int]] = [[] for _ in plan.stages]
    for v, op in enumerate(module.entry.ops):
        for index in op.facet(StageSet, StageSet(())).stages:
            members[index].append(v)
    stages = tuple(
        SolvedStage(
            stage.device_type,
            tuple(ops),
            stage_seconds(stage, plan.comm),
            stage.compute,
            stage.receive + stage.send,
            stage.memory,
        )
        for stage, ops in zip(plan.stages, members, strict=True)
        if ops
    )
    counted = context.statistics["partition"]
    phases = {name: value for name, value in counted.items() if isinstance(value, float)}
    total, build = phases.pop("seconds"), phases.pop("build")
    seconds = {"build": build, **phases, "search": total - build}
    reason = dict(plan.certificate).get("bound", "")
    ideals, transitions = int(counted["ideals"]), int(counted["transitions"])
    return Solved(plan.value, plan.bound, plan.status, reason, stages, ideals, transitions, seconds)


def _pipedream(module: Module, options: SolveOptions, progress: Progress) -> Solved:
    """PipeDream's programme over replicated stages, exact. Machines are the accelerators and the links between them."""
    import time

    from passes.partition.from_workload import profile_of
    from passes.partition.pipedream import SCHEDULES, Machines, solve_pipedream

    if options.comm != "sum":
        raise UsageError("--comm is of throughput; PipeDream's objective is the largest of compute and transfers")
    schedule = options.schedule or SCHEDULES[0]
    if schedule not in SCHEDULES:
        raise UsageError(f"--schedule takes {', '.join(SCHEDULES)}, found '{schedule}'")
    if schedule == "gpipe" and options.microbatches is None:
        raise UsageError("--schedule gpipe needs the number of microbatches", hint="add --microbatches N")
    topology = module.first(Topology)
    assert topology is not None, "solve checks it"
    devices = [device for device in topology.devices if device.type == "accelerator"]
    if not devices:
        raise UsageError("PipeDream's objective is of accelerators, and there is none", hint="add --accelerators N")
    if not topology.links:
        raise UsageError("PipeDream's objective needs the bandwidth of the links", hint="add --bandwidth, such as 10GB/s")
    start = time.perf_counter()
    profile = profile_of(module, topology.type("accelerator"))
    machines = Machines(
        count=len(devices),
        bandwidth=min(link.bandwidth for link in topology.links),
        straight=options.straight,
        memory=topology.memory(devices[0]),
        schedule=schedule,
        microbatches=options.microbatches,
    )
    built = time.perf_counter()
    solution = solve_pipedream(profile, machines, _budget(options), progress)
    found = time.perf_counter()
    if solution.stages is None:
        raise _does_not_fit(solution.status, topology)
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
    defined = {"straight": options.straight, "schedule": schedule, "microbatches": options.microbatches}
    return _solved(solution, stages, built - start, found - built, defined)


def _any_throughput(module: Module, options: SolveOptions, progress: Progress) -> Solved:
    """Any assignment of nodes to devices: local search above, mixed-integer programmes below."""
    import time

    from passes.analyses.network import network
    from passes.partition import Budget, plan_costs
    from passes.partition.any_split import solve_any
    from passes.partition.from_ir import problem_of
    from passes.partition.from_workload import color_classes

    _takes(options)
    topology = module.first(Topology)
    assert topology is not None, "solve checks it"
    start = time.perf_counter()
    problem = problem_of(module, topology, network(topology), comm=options.comm)
    built = time.perf_counter()
    seconds = ANY_SECONDS if options.time_limit is None else options.time_limit
    solution = solve_any(problem, Budget(seconds=seconds), progress, together=color_classes(module.entry))
    found = time.perf_counter()
    if solution.stages is None:
        raise _does_not_fit(solution.status, topology)
    stages = tuple(
        SolvedStage(problem.kinds[cost.kind].type, cost.nodes, cost.load, cost.compute, cost.receive + cost.send, cost.memory)
        for cost in plan_costs(problem, solution.stages)
    )
    return _solved(solution, stages, built - start, found - built)


def _training(module: Module, options: SolveOptions, progress: Progress) -> Solved:
    """Forward and backward nodes of a colour on one device; the forward part contiguous."""
    import time

    from passes.analyses.network import network
    from passes.partition.from_workload import training_graph_of
    from passes.partition.training import solve_training

    schedule = options.schedule or "1f1b"
    _takes(options, "--schedule")
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
    solution = solve_training(graph, TRAINING[schedule], _budget(options), progress)
    found = time.perf_counter()
    if solution.stages is None:
        raise _does_not_fit(solution.status, topology)
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
    return _solved(solution, stages, built - start, found - built, {"schedule": schedule})


def _solved(
    solution: Solution,
    stages: tuple[SolvedStage, ...],
    build: float,
    search: float,
    options: dict[str, Any] | None = None,
) -> Solved:
    counts = solution.statistics
    return Solved(
        solution.value,
        solution.bound,
        solution.status,
        solution.reason,
        stages,
        counts.ideals,
        counts.transitions,
        {"build": build, **counts.seconds, "search": search},
        options or {},
    )


def _takes(options: SolveOptions, *flags: str) -> None:
    """Raises UsageError for an option of other objectives; ``flags`` are those that this one has."""
    given = {"--straight": options.straight, "--schedule": options.schedule, "--microbatches": options.microbatches}
    wrong = [flag for flag, value in given.items() if value and flag not in flags]
    if wrong:
        raise UsageError(f"{', '.join(wrong)}: not an option of this objective", hint="it is of --objective pipedream")


def _budget(options: SolveOptions) -> Budget:
    from passes.partition import Budget

    return Budget() if options.time_limit is None else Budget(seconds=options.time_limit)


def _does_not_fit(status: str, topology: Topology) -> Infeasible:
    """The error where a search without an explanation of its own found no plan."""
    limits = sorted({topology.memory(device) for device in topology.devices} - {None}, key=lambda size: size or 0)
    memory = f" of {limits[0]} bytes of memory" if limits else ""
    proven = status == "infeasible"
    words = "no plan fits" if proven else "the search ended at its budget without a plan that fits"
    error = Infeasible(
        f"{words} {len(topology.devices)} devices{memory}", where=topology.name, hint="use more devices or more memory"
    )
    error.proven = proven
    return error


METHODS: dict[tuple[str, str], Method] = {
    ("throughput", "contiguous"): _throughput,
    ("throughput", "any"): _any_throughput,
    ("training", "contiguous"): _training,
    ("pipedream", "contiguous"): _pipedream,
}
"""How to solve, by objective and split."""

__all__ = ["METHODS", "Method", "Progress", "SolveOptions", "Solved", "SolvedStage"]
