"""Why there is no plan, and what would help: the text of ``Infeasible``.

Memory is the usual reason. The least number of bytes that every limited device would need besides what it has is found by
bisection, solving with raised limits; the plan that it allows tells which stage overflows which device, and by how much. Other
reasons are found by dropping one demand at a time.

``at_least_a_plan`` repeats a search that ended before it had a plan, so that no time limit is too short for one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np

from ir.diagnostics import Diagnostic, Infeasible
from ir.topology import Topology
from passes.model.stages.problem import Problem, StageCost, plan_costs
from passes.model.stages.reduce import Groups
from passes.model.work import now, unlimited
from passes.partition.objective import Budget, Solution
from passes.partition.search.throughput import solve

_QUICK = Budget(ideals=200_000, memory=128 << 20, pairs=4_000_000, seconds=2.0)
_BISECTIONS = 24
_HINT = "use more devices, devices with more memory, a smaller batch, or weights of fewer bits"
_SECONDS = 8.0
"""Of all bisections: after these the shortage is told as it is known."""

LEAST_SECONDS = 10.0
"""Of a search that is repeated until its first plan."""

S = TypeVar("S", bound=Solution)
B = TypeVar("B", bound=Budget)


def at_least_a_plan(search: Callable[[B], S], budget: B) -> S:
    """The solution within the budget. Where its time was over without a plan or a proof that there is none, and there is no
    plan of another kind (``Budget.beaten``): the first plan that a search of ``LEAST_SECONDS`` finds."""
    solution = search(budget)
    if solution.status == "unknown" and math.isinf(budget.beaten) and budget.seconds < LEAST_SECONDS:
        with unlimited():
            return search(replace(budget, seconds=LEAST_SECONDS, first=True))
    return solution


def check_separable(fine: Problem, groups: Groups, pins: Mapping[int, str]) -> None:
    """Raises Infeasible when a cut or a pin asks to part ops that must share a stage: those of one group."""
    faults = []
    label = {op: g for g, members in enumerate(groups) for op in members}
    for h in fine.forced:
        inside = [v for v in fine.consumers[h] if label[v] == label[int(fine.producer[h])]]
        if inside:
            maker, reader = fine.names[int(fine.producer[h])], fine.names[inside[0]]
            faults.append(
                Diagnostic(
                    f"{maker} and {reader} must share a stage, so no cut falls between them",
                    where=f"--cut {fine.tensor_names[h]}",
                    hint="a quantisation, a shared weight or a value of unknown size joins them; cut before or after",
                )
            )
    for members in groups:
        devices = sorted({pins[op] for op in members if op in pins})
        if len(devices) > 1:
            names = ", ".join(f"{fine.names[op]}={pins[op]}" for op in members if op in pins)
            faults.append(
                Diagnostic(
                    f"{names}: these ops must share a stage, hence a device", where="--pin", hint="pin them to one device"
                )
            )
    if faults:
        raise Infeasible(faults)


def explain(problem: Problem, solution: Solution, topology: Topology, *, training: bool = False) -> Infeasible:
    """The error for a problem without a plan; ``proven`` where there surely is none. ``training``: the problem counts
    gradients, optimizer state and saved values as weights."""
    error = _explain(problem, solution, topology, "weights, their state and saved values" if training else "weights")
    error.proven = solution.status == "infeasible" or not np.isfinite(problem.seconds).any(axis=0).all()
    return error


def _explain(problem: Problem, solution: Solution, topology: Topology, held: str) -> Infeasible:
    for v in range(problem.size):
        if not np.isfinite(problem.seconds[:, v]).any():
            types = ", ".join(sorted({kind.type for kind in problem.kinds}))
            return Infeasible(f"no device can run {problem.names[v]} (device types: {types})", where=topology.name)
    if problem.stages is not None and problem.stages > problem.devices:
        return Infeasible(
            f"{problem.stages} stages were asked for, {topology.name} has {problem.devices} devices",
            where="--stages",
            hint="use fewer stages or more devices",
        )
    if problem.stages is not None and problem.stages > problem.size:
        return Infeasible(
            f"{problem.stages} stages were asked for, the model has {problem.size} ops that can be told apart",
            where="--stages",
            hint=f"ask for at most {problem.size}",
        )
    without_limits = replace(problem, kinds=tuple(replace(kind, memory=None) for kind in problem.kinds))
    if any(kind.memory is not None for kind in problem.kinds) and solve(without_limits, _QUICK).stages is not None:
        return _memory(problem, solution, topology, held)
    return _demands(problem, solution, topology)


def _memory(problem: Problem, solution: Solution, topology: Topology, held: str) -> Infeasible:
    """Which device is short, and by how many bytes; ``held``: what the weights of the problem are."""

    def raised(extra: int) -> Problem:
        return replace(
            problem, kinds=tuple(replace(k, memory=None if k.memory is None else k.memory + extra) for k in problem.kinds)
        )

    started = now()
    whole = sum(int(b) for b in problem.weight_bytes)
    low, high = 0, max(1, whole + 2 * int(problem.tensor_bytes.sum()) + int(problem.live.max(initial=0)))
    best = solve(raised(high), _QUICK)
    for _ in range(_BISECTIONS):
        if best.stages is None or high - low <= max(1, high >> 20) or now() - started > _SECONDS:
            break
        middle = (low + high) // 2
        found = solve(raised(middle), _QUICK)
        if found.stages is None:
            low = middle
        else:
            high, best = middle, found
    messages = []
    # Of each kind of device only the stage that lacks most bytes is told.
    worst: dict[int, tuple[int, int, StageCost]] = {}
    for index, cost in enumerate(plan_costs(problem, best.stages or ())):
        limit = problem.kinds[cost.kind].memory
        if limit is not None and cost.memory - limit > max(0, worst.get(cost.kind, (0,))[0]):
            worst[cost.kind] = (cost.memory - limit, index, cost)
    for k, (short, index, cost) in sorted(worst.items()):
        kind = problem.kinds[k]
        names = ", ".join(kind.devices[:4]) + (", ..." if kind.count > 4 else "")
        device = kind.devices[0] if kind.count == 1 else f"each {kind.type} ({names})"
        messages.append(
            Diagnostic(
                f"{device} has {kind.memory} bytes; stage {index} of the plan that comes nearest needs {cost.memory} "
                f"({cost.weights} of {held}, {cost.workspace} of workspace, {cost.buffers} of buffers): {short} short",
                where=topology.name,
                hint=_HINT if held == "weights" else f"{_HINT}; --recompute stage or another --schedule holds less",
            )
        )
    have = sum((kind.memory or 0) * kind.count for kind in problem.kinds)
    if all(kind.memory is not None for kind in problem.kinds) and whole > have:
        messages.insert(
            0,
            Diagnostic(
                f"the {held} alone are {whole} bytes, all {problem.devices} devices have {have}: {whole - have} bytes short",
                where=topology.name,
            ),
        )
    if solution.status == "unknown":
        messages.append(
            Diagnostic(
                "the search ended at its budget, so this is not proven",
                where="partition",
                hint="raise max-ideals or time-limit",
            )
        )
    return Infeasible(messages or [Diagnostic("no plan fits the devices' memory", where=topology.name)])


def _demands(problem: Problem, solution: Solution, topology: Topology) -> Infeasible:
    """Which demand, dropped, would make a plan possible."""
    helps = []
    if problem.forced and solve(replace(problem, forced=()), _QUICK).stages is not None:
        helps.append("without --cut")
    if problem.stages is not None and solve(replace(problem, stages=None), _QUICK).stages is not None:
        helps.append(f"without --stages {problem.stages}")
    lacking = np.isinf(problem.seconds)
    supported = np.where(lacking, np.nanmax(np.where(lacking, np.nan, problem.seconds), initial=0.0), problem.seconds)
    if lacking.any() and solve(replace(problem, seconds=supported), _QUICK).stages is not None:
        helps.append("with other --pin (or devices that run every op)")
    claim = "no plan satisfies all demands" if solution.status == "infeasible" else "no plan was found within the budget"
    names = ", ".join(problem.tensor_names[h] for h in problem.forced)
    asked = [f"cuts at {names}"] if names else []
    if problem.stages is not None:
        asked.append(f"exactly {problem.stages} stages")
    asked.append(f"{problem.devices} devices")
    return Infeasible(
        f"{claim}: {', '.join(asked)}",
        where=topology.name,
        hint=f"a plan exists {', or '.join(helps)}" if helps else "use more devices or fewer cuts",
    )


__all__ = ["LEAST_SECONDS", "at_least_a_plan", "check_separable", "explain"]
