"""Baselines: simpler ways to split, evaluated by the same definition as the exact search (``passes.reference.baselines``).

``baseline`` is a method like any other. ``compare_all`` runs every baseline that is defined for the objective, each within a
share of the time, and returns a result for each, also without a plan or with one that does not fit. Nodes are numbered
canonically first, so a baseline does not depend on their order in the file.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dnnc.workloads.methods.base import Progress, Solved, SolvedStage, SolveOptions, takes, topology_of
from dnnc.workloads.methods.canonical import canonical_module, in_file_order
from dnnc.workloads.methods.faults import (
    BaselineDoesNotFit,
    BaselineWithoutPlan,
    ExpertMissing,
    KindWithoutDevice,
    MethodWithoutPipeline,
    ReplicasNotOfObjective,
    UnknownMethod,
)
from ir.core.diagnostics import Infeasible, UsageError
from ir.core.module import Module
from ir.core.objectives import LATENCY, PIPEDREAM, TRAINING
from ir.core.outcomes import Outcome, outcome

if TYPE_CHECKING:
    from passes.reference.baselines import Case, Plan
    from passes.stages.lattice.dp import Stages

EXACT, EXPERT = "exact", "expert"
NAMES = (EXACT, "one-device", "greedy", "topological", "pipedream-style", "local-search", "metis", EXPERT)
"""Names of methods, as in ``passes.reference.baselines``, which takes long to load; a test compares the two."""
SECONDS = 10.0
"""Longest search of one baseline without --time-limit."""
SHARE = 0.2
"""Share of --time-limit for one baseline; all of them get half of it. Only the local search needs more than
milliseconds."""


@dataclass(frozen=True, slots=True)
class MethodResult:
    """One method in a comparison. ``value`` in seconds, inf without a plan; ``fits``: whether the memory suffices, None without
    a plan; ``why``: the limits that the plan breaks, or why there is none. To ``status`` a plan that breaks a limit is none."""

    method: str
    value: float
    split: str
    fits: bool | None
    status: Outcome
    seconds: float
    why: str = ""


def baseline(module: Module, objective: str, options: SolveOptions, progress: Progress) -> Solved:
    """The plan of ``options.method``. Raises Infeasible if it has none within all limits, UsageError if the method is not
    defined for the objective."""
    _check(objective, options)
    start = time.perf_counter()
    module, order = canonical_module(module)
    case, defined = case_of(module, objective, options)
    built = time.perf_counter()
    seconds = SECONDS if options.time_limit is None else options.time_limit
    plan = _run(options.method, module, case, options, seconds, progress)
    solved_at = time.perf_counter()
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
        seconds={"build": built - start, "search": solved_at - built},
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
    """A result per baseline, in the order of ``NAMES``; of the expert only with a file. Raises UsageError if no baseline is
    defined for the objective."""
    from passes.reference.baselines import LOOSE

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
            rows.append(MethodResult(name, math.inf, "", None, "undecided", took, plan))
        else:
            status: Outcome = "undecided" if plan.faults else _status(plan)
            rows.append(MethodResult(name, plan.value, plan.split, plan.fits, status, took, "; ".join(plan.faults[:2])))
    return tuple(rows)


def _check(objective: str, options: SolveOptions) -> None:
    if options.method == EXPERT and not options.expert:
        raise UsageError(ExpertMissing())
    if options.method not in NAMES:
        raise UsageError(UnknownMethod(options.method, NAMES))
    if options.method in ("local-search", "metis") and objective == PIPEDREAM.name:
        raise UsageError(MethodWithoutPipeline(options.method))


def _status(plan: Plan) -> Outcome:
    return outcome(plan.value, plan.bound)


def _run(name: str, module: Module, case: Case, options: SolveOptions, seconds: float, progress: Progress) -> Plan | str:
    """The evaluated plan, or the reason why there is none."""
    from passes.reference.baselines import BASELINES, Limits, NoPlan, expert, judge

    try:
        if name == EXPERT:
            stages = expert(case, _expert_stages(options.expert, module, case), [str(op.get("id")) for op in module.entry.ops])
        else:
            stages = BASELINES[name](case, Limits(seconds, progress))
        return judge(case, stages)
    except NoPlan as error:
        return str(error)


def _expert_stages(path: str, module: Module, case: Case) -> Stages:
    """The stages of the expert's file: a kind, or a number of replicas, and nodes. Raises InvalidInput, UsageError."""
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
    """The problem for baselines, and the parameters of the objective as the exact methods state them."""
    from passes.costs.network import network
    from passes.reference.baselines import latency_case, pipedream_case, throughput_case, training_case
    from passes.reference.from_workload import color_classes
    from passes.stages.colocation import colocation
    from passes.stages.from_ir import problem_of

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
