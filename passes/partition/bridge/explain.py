"""Why there is no plan, and what would help: the text of ``Infeasible``.

Memory is the usual reason. A bisection finds the least number of bytes that, added to the memory of every limited device, allow
a plan; this plan shows which stage overflows which device, and by how much. Other reasons are found by dropping one demand of
the user at a time. Replicas are left out of all of it: a stage on several devices holds on each what it would hold on one, so
what does not fit without replicas does not fit with them.

``at_least_a_plan`` repeats a search that ended before it had a plan, so that no time limit is too short for one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import numpy as np

from ir.core.diagnostics import Diagnostic, Infeasible, Severity
from ir.core.module import Module
from ir.core.topology import Topology
from passes.costs.memory.footprint import Footprint
from passes.graph.graph import listing
from passes.graph.serving import IDS
from passes.partition.faults import (
    AskedTooMuch,
    MoreStagesThanDevices,
    MoreStagesThanOps,
    NearestPlan,
    NoDeviceRuns,
    NothingFits,
    NotProven,
    WeightsOverMemory,
)
from passes.partition.lattice.objective import Budget, Solution
from passes.partition.lattice.search.throughput import solve
from passes.solvers.work import now, unlimited
from passes.stages.problem import Kind, Problem, StageCost, plan_costs, pools

_QUICK = Budget(ideals=200_000, memory=128 << 20, pairs=4_000_000, seconds=2.0)
"""Of one attempt to solve a changed problem."""
_BISECTIONS = 24
ADVICE = "use more devices, devices with more memory, a smaller batch, or weights of fewer bits"
FEWER_CACHES = (
    "use more devices, devices with more memory, fewer --groups, a smaller --batch, "
    "a shorter --context, or weights of fewer bits"
)
HOLDS_LESS = "--recompute stage or another --schedule holds less"
_SECONDS = 8.0
"""Of the whole bisection. After these the error states the best shortage found, which may be more than the least."""

LEAST_SECONDS = 10.0
"""Time limit of a search that is repeated for a first plan."""

S = TypeVar("S", bound=Solution)
B = TypeVar("B", bound=Budget)


class Overfull(Infeasible):
    """No plan was found whose stages fit their devices; that of the search has so many ``stages``. There may be one: its value
    is not below ``bound``."""

    proven = False

    def __init__(self, fault: Diagnostic, stages: int, bound: float) -> None:
        super().__init__(fault)
        self.stages, self.bound = stages, bound


def at_least_a_plan(search: Callable[[B], S], budget: B) -> S:
    """``search(budget)``. Where its time is over with neither a plan nor a proof that there is none, and no plan of another
    kind is known (``Budget.beaten``), the search is repeated with ``LEAST_SECONDS`` and stops at its first plan."""
    solution = search(budget)
    if solution.status == "undecided" and math.isinf(budget.beaten) and budget.seconds < LEAST_SECONDS:
        with unlimited():
            return search(replace(budget, seconds=LEAST_SECONDS, first=True))
    return solution


def explain(
    problem: Problem, solution: Solution, topology: Topology, *, held: str = "weights", advice: str = ADVICE
) -> Infeasible:
    """The error, for the caller to raise, that says why ``problem`` has no plan in ``solution``; its ``proven`` is whether
    there certainly is none. ``held``: words for what the problem counts as weights; ``advice``: what would need less."""
    problem = _of_single_devices(problem)
    error = _explain(problem, solution, topology, held, advice)
    unsupported = not np.isfinite(problem.seconds).any(axis=0).all()
    error.proven = solution.status == "infeasible" or unsupported or _lacking(problem, topology) > 0
    return error


def over_all_memory(needed: int, topology: Topology, held: str, advice: str) -> Infeasible:
    """The error that any plan holds ``needed`` bytes, more than all devices together have. ``held``, ``advice``: as of
    ``explain``."""
    memory = sum(topology.memory(device) or 0 for device in topology.devices)
    fault = WeightsOverMemory(held, needed, len(topology.devices), memory, needed - memory, advice)
    return Infeasible(fault, where=topology.name)


def held_in(module: Module, *, training: bool, saved: bool = False) -> tuple[str, str]:
    """What stages hold besides workspace and buffers, in words, and what would need less memory. ``saved``: values that a
    training step saves for its backward pass are not part of the workspace."""
    if training:
        return "weights, their state and saved values" if saved else "weights and their state", f"{ADVICE}; {HOLDS_LESS}"
    if IDS in dict(module.entry.attributes):
        return "weights and caches", FEWER_CACHES
    return "weights and states" if module.states else "weights", ADVICE


def _of_single_devices(problem: Problem) -> Problem:
    """The problem without the kinds that are several devices (replicas)."""
    alone = sorted(set(pools(problem.kinds)))
    kinds = tuple(problem.kinds[k] for k in alone)
    return replace(problem, kinds=kinds, seconds=problem.seconds[alone], transfer=problem.transfer[alone])


def _lacking(problem: Problem, topology: Topology) -> int:
    """Bytes by which the weights exceed the memory of all devices together; 0 or less where they do not, or a device has no
    limit."""
    limits = [topology.memory(device) for device in topology.devices]
    return 0 if None in limits else sum(problem.weight_bytes.tolist()) - sum(limit or 0 for limit in limits)


def _explain(problem: Problem, solution: Solution, topology: Topology, held: str, advice: str) -> Infeasible:
    for v in range(problem.size):
        if not np.isfinite(problem.seconds[:, v]).any():
            types = ", ".join(sorted({kind.type for kind in problem.kinds}))
            return Infeasible(NoDeviceRuns(problem.names[v], types), where=topology.name)
    if problem.stages is not None and problem.stages > problem.devices:
        return Infeasible(MoreStagesThanDevices(problem.stages, topology.name, problem.devices), where="--stages")
    if problem.stages is not None and problem.stages > problem.size:
        return Infeasible(MoreStagesThanOps(problem.stages, problem.size), where="--stages")
    if _lacking(problem, topology) > 0:
        return over_all_memory(sum(problem.weight_bytes.tolist()), topology, held, advice)
    without_limits = replace(problem, kinds=tuple(replace(kind, memory=None) for kind in problem.kinds))
    if any(kind.memory is not None for kind in problem.kinds) and solve(without_limits, _QUICK).stages is not None:
        return _memory(problem, solution, topology, held, advice)
    return _demands(problem, solution, topology)


def _memory(problem: Problem, solution: Solution, topology: Topology, held: str, advice: str) -> Infeasible:
    """The error that says which kinds of devices lack how many bytes. ``held``, ``advice``: as of ``explain``."""

    def raised(extra: int) -> Problem:
        return replace(
            problem, kinds=tuple(replace(k, memory=None if k.memory is None else k.memory + extra) for k in problem.kinds)
        )

    started = now()
    whole = sum(problem.weight_bytes.tolist())
    low, high = 0, max(1, whole + 2 * int(problem.tensor_bytes.sum()) + int(problem.live.max(initial=0)))
    best = solve(raised(high), _QUICK)
    for _ in range(_BISECTIONS):
        if best.stages is None or high - low <= max(1, high >> 20) or now() - started > _SECONDS:
            break
        middle = (low + high) // 2
        attempt = solve(raised(middle), _QUICK)
        if attempt.stages is None:
            low = middle
        else:
            high, best = middle, attempt
    # Of each kind of device only the stage that lacks most bytes is reported.
    worst: dict[int, tuple[int, int, StageCost]] = {}
    for index, cost in enumerate(plan_costs(problem, best.stages or ())):
        limit = problem.kinds[cost.kind].memory
        if limit is not None and cost.memory - limit > max(0, worst.get(cost.kind, (0,))[0]):
            worst[cost.kind] = (cost.memory - limit, index, cost)
    messages = [
        short_of(problem.kinds[k], short, index, Footprint(cost.weights, cost.workspace, cost.buffers), held, topology, advice)
        for k, (short, index, cost) in sorted(worst.items())
    ]
    messages = messages or [NothingFits().at(topology.name)]
    if solution.status == "undecided":
        messages.append(replace(NotProven().at("partition"), severity=Severity.NOTE))
    return Infeasible(messages)


def short_of(kind: Kind, short: int, index: int, needs: Footprint, held: str, topology: Topology, advice: str) -> Diagnostic:
    """The message that stage ``index`` of the nearest plan, which ``needs`` so much, lacks ``short`` bytes on devices of this
    kind."""
    names = tuple(dict.fromkeys(kind.devices))
    chunks = kind.count // len(names)
    fault = NearestPlan(
        device=f"each {kind.type} ({listing(names)})" if len(names) > 1 else names[0],
        memory=kind.memory or 0,
        part=f" for each of {chunks} stages" if chunks > 1 else "",
        stage=index,
        needed=needs.total,
        weights=needs.weights,
        held=held,
        workspace=needs.workspace,
        buffers=needs.buffers,
        short=short,
        advice=advice,
    )
    return fault.at(topology.name)


def _demands(problem: Problem, solution: Solution, topology: Topology) -> Infeasible:
    """The error that says which demands of the user (cuts, stages, pins) would, if dropped alone, make a plan possible."""
    helps = []
    if problem.forced and solve(replace(problem, forced=()), _QUICK).stages is not None:
        helps.append("without --cut")
    if problem.stages is not None and solve(replace(problem, stages=None), _QUICK).stages is not None:
        helps.append(f"without --stages {problem.stages}")
    unsupported = np.isinf(problem.seconds)
    supported = np.where(unsupported, np.nanmax(np.where(unsupported, np.nan, problem.seconds), initial=0.0), problem.seconds)
    if unsupported.any() and solve(replace(problem, seconds=supported), _QUICK).stages is not None:
        helps.append("with other --pin (or devices that run every op)")
    claim = "no plan satisfies all demands" if solution.status == "infeasible" else "no plan was found within the budget"
    names = ", ".join(problem.tensor_names[h] for h in problem.forced)
    asked = [f"cuts at {names}"] if names else []
    if problem.stages is not None:
        asked.append(f"exactly {problem.stages} stages")
    asked.append(f"{problem.devices} devices")
    advice = f"a plan exists {', or '.join(helps)}" if helps else "use more devices or fewer cuts"
    return Infeasible(AskedTooMuch(claim, ", ".join(asked), advice), where=topology.name)
