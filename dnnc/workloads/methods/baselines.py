"""Baselines: other ways to split, judged by the definition that the exact search is judged by (``passes.partition.baselines``).

``baseline`` is a method like any other. ``compare_all`` runs every one that makes sense for the objective, each within its part
of the time, and gives a row for each, those without a plan and those whose plan does not fit included. Nodes are numbered
canonically first: what a baseline makes of a workload does not depend on the order of its file.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dnnc.workloads.faults import (
    BaselineDoesNotFit,
    BaselineWithoutPlan,
    ExpertMissing,
    KindWithoutDevice,
    MethodWithoutPipeline,
    ReplicasNotOfObjective,
    UnknownMethod,
)
from dnnc.workloads.methods.base import Progress, Solved, SolvedStage, SolveOptions, takes, topology_of
from dnnc.workloads.methods.canonical import canonical_module, in_file_order
from ir.core.diagnostics import Infeasible, UsageError
from ir.core.module import Module
from ir.core.objectives import LATENCY, PIPEDREAM, TRAINING

if TYPE_CHECKING:
    from passes.model.stages.lattice.dp import Stages
    from passes.partition.baselines import Case, Plan

EXACT, EXPERT = "exact", "expert"
NAMES = (EXACT, "one-device", "greedy", "topological", "pipedream-style", "local-search", "metis", EXPERT)
"""Names of methods; tests hold them equal to those of ``passes.partition.baselines``, which takes long to load."""
SECONDS = 10.0
"""Longest search of one baseline unless a limit is given."""
SHARE = 0.2
"""Of a limit for all: what one baseline may take, half of it going to all of them. Only the local search needs more than
milliseconds."""


@dataclass(frozen=True, slots=True)
class MethodResult:
    """One method in a comparison. ``value`` in seconds, inf without a plan; ``fits``: its memory, None without a plan;
    ``why``: what keeps it from being feasible."""

    method: str
    value: float
    split: str
    fits: bool | None
    status: str
    seconds: float
    why: str = ""


def baseline(module: Module, objective: str, options: SolveOptions, progress: Progress) -> Solved:
    """The plan of ``options.method``. Raises Infeasible where it has none that keeps to every limit, UsageError where the
    method makes no sense for the objective."""
    _check(objective, options)
    start = time.perf_counter()
    module, order = canonical_module(module)
    case, defined = case_of(module, objective, options)
    built = time.perf_counter()
    seconds = SECONDS if options.time_limit is None else options.time_limit
    plan = _run(options.method, module, case, options, seconds, progress)
    found = time.perf_counter()
    if isinstance(plan, str) or plan.faults:
        name = options.method
        fault = BaselineWithoutPlan(name, plan) if isinstance(plan, str) else BaselineDoesNotFit(name, tuple(plan.faults))
        error = Infeasible(fault, where=options.file)
        error.proven = False
        raise error
    return Solved(
        plan.value,
        plan.bound,
        _status(plan),
        f"a baseline proves nothing; {plan.reason}",
        in_file_order(_stages(module, case, plan, options), order),
        seconds={"build": built - start, "search": found - built},
        options=defined,
        split=plan.split,
    )


def _stages(module: Module, case: Case, plan: Plan, options: SolveOptions) -> tuple[SolvedStage, ...]:
    if plan.schedule is not None:
        from dnnc.workloads.methods.latency import read_latency, stages_of

        return stages_of(*read_latency(module, options), plan.schedule)
    return tuple(
        SolvedStage(case.kinds[load.kind].type, load.nodes, load.load, load.compute, load.transfer, load.memory, load.replicas)
        for load in plan.stages
    )


def compare_all(module: Module, objective: str, options: SolveOptions, progress: Progress) -> tuple[MethodResult, ...]:
    """A row per baseline, in the order of ``NAMES``; that of an expert where there is a file. Raises UsageError where no
    baseline makes sense for the objective."""
    from passes.partition.baselines import LOOSE

    _check(objective, replace(options, method=EXACT))
    module, _ = canonical_module(module)
    case, _ = case_of(module, objective, options)
    started = time.perf_counter()
    limit = math.inf if options.time_limit is None else options.time_limit
    rows = []
    for name in NAMES[1:]:
        if (name in LOOSE and case.loose is None) or (name == EXPERT and not options.expert):
            continue
        start = time.perf_counter()
        left = limit / 2 - (start - started)
        plan = _run(name, module, case, options, max(0.0, min(SECONDS, SHARE * limit, left)), progress)
        took = time.perf_counter() - start
        if isinstance(plan, str):
            rows.append(MethodResult(name, math.inf, "", None, "unknown", took, plan))
        else:
            status = "unfit" if plan.faults else _status(plan)
            rows.append(MethodResult(name, plan.value, plan.split, plan.fits, status, took, "; ".join(plan.faults[:2])))
    return tuple(rows)


def _check(objective: str, options: SolveOptions) -> None:
    if options.method == EXPERT and not options.expert:
        raise UsageError(ExpertMissing())
    if options.method not in NAMES:
        raise UsageError(UnknownMethod(options.method, NAMES))
    if options.method in ("local-search", "metis") and objective == PIPEDREAM.name:
        raise UsageError(MethodWithoutPipeline(options.method))


def _status(plan: Plan) -> str:
    return "optimal" if plan.value <= plan.bound * (1 + 1e-9) else "feasible"


def _run(name: str, module: Module, case: Case, options: SolveOptions, seconds: float, progress: Progress) -> Plan | str:
    """The judged plan, or why there is none."""
    from passes.partition.baselines import BASELINES, Limits, NoPlan, expert, judge

    try:
        if name == EXPERT:
            stages = expert(case, _given(options.expert, module, case), [str(op.get("id")) for op in module.entry.ops])
        else:
            stages = BASELINES[name](case, Limits(seconds, progress))
        return judge(case, stages)
    except NoPlan as error:
        return str(error)


def _given(path: str, module: Module, case: Case) -> Stages:
    """The expert's stages as labels and nodes. Raises InvalidInput, UsageError."""
    from dnnc.workloads.methods.expert_file import read_expert

    positions = {op.get("id"): v for v, op in enumerate(module.entry.ops)}
    kinds = {kind.type: k for k, kind in reversed(list(enumerate(case.kinds)))}
    stages = []
    types = {device.name: device.type for device in topology_of(module).devices}
    for type_, nodes, devices in read_expert(path, positions, types):
        if type_ not in kinds:
            raise UsageError(KindWithoutDevice(type_), where=path)
        if devices > 1 and not case.replicated:
            raise UsageError(ReplicasNotOfObjective(), where=path)
        stages.append((devices if case.replicated else kinds[type_], nodes))
    return tuple(stages)


def case_of(module: Module, objective: str, options: SolveOptions) -> tuple[Case, dict[str, object]]:
    """What baselines see of the module, and what else defines the objective (as the exact methods say it)."""
    from passes.model.network import network
    from passes.model.stages.colocation import colocation
    from passes.model.stages.from_ir import problem_of
    from passes.partition.baselines import latency_case, pipedream_case, throughput_case, training_case
    from passes.partition.bridge.from_workload import color_classes

    if objective == PIPEDREAM.name:
        from dnnc.workloads.methods.pipedream import read_problem

        profile, machines, defined = read_problem(module, options)
        return pipedream_case(profile, machines), defined
    if objective == LATENCY.name:
        from dnnc.workloads.methods.latency import read_latency

        problem, built = read_latency(module, options)
        case = throughput_case(problem, colocation(module), color_classes(module.entry))
        return latency_case(case, built), {"pieces": options.pieces}
    topology = topology_of(module)
    net = network(topology)
    if objective == TRAINING.name:
        from dnnc.workloads.methods.training import SCHEDULES, read_graph

        takes(options, "--schedule")
        graph, schedule = read_graph(module, options)
        return training_case(graph, problem_of(module, topology, net), SCHEDULES[schedule]), {"schedule": schedule}
    takes(options)
    problem = problem_of(module, topology, net, comm=options.comm)
    return throughput_case(problem, colocation(module), color_classes(module.entry)), {}


__all__ = ["EXACT", "EXPERT", "NAMES", "MethodResult", "baseline", "case_of", "compare_all"]
