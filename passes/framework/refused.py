"""Searches after a plan that was refused because its devices hold more than its search counted.

A search counts the bytes of a stage before the backward ops and the order of work are written. ``place`` and ``schedule`` count
again what they have, and refuse a plan that does not fit (``Infeasible.needs``). Another plan may fit all the same.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from ir.core.diagnostics import DiagnosticSink, Infeasible
from ir.core.module import Module, Plan
from ir.core.topology import Topology
from passes.framework.base import PassContext
from passes.framework.registry import BOUND, PLANNERS
from passes.graph.sizes import assessed

ROUNDS = 4
"""Searches after the first."""
NOTE = "memory"
"""The entry of a certificate that says that the plan is of a later search."""
_PROVEN = (BOUND, "price")
"""How the names of counts begin that prove the bounds of a search."""

Step = Callable[[Module, PassContext], Module]


def within_memory(module: Module, context: PassContext, search: Step, rest: Step) -> Module:
    """The module after ``search``, which finds a plan, and ``rest``, which does not refuse it; each may run several times.
    Raises Infeasible where the first search finds no plan, and the first refusal where no other plan was found to fit."""
    began, warned = time.perf_counter(), len(context.sink.diagnostics)
    planned = search(module, context)
    try:
        return rest(planned, context)
    except Infeasible as error:
        plan, topology = planned.first(Plan), planned.first(Topology)
        if plan is None or topology is None or not error.needs:
            raise
        found = _search_again(module, context, search, rest, plan, error.needs, began)
        if found is None:
            raise
        module, inside = found
        context.sink.diagnostics[warned:] = inside.sink.diagnostics
        context.statistics.update(inside.statistics)
        return module


def _search_again(
    module: Module,
    context: PassContext,
    search: Step,
    rest: Step,
    first: Plan,
    needs: Mapping[str, tuple[int, int]],
    began: float,
) -> tuple[Module, PassContext] | None:
    """The module with the best plan of ``ROUNDS`` searches that is not refused, and its context. Limits of memory are lower
    than those of the ``first`` plan by what its search counted too little, and lower by the same factor again until a plan
    fits or none is found; then they are halfway between the lowest that were too high and the highest that were not. Plans
    within lower limits are some of all plans, so the bound of the first plan is one of theirs, too."""
    topology = module.first(Topology)
    assert topology is not None
    proven = {name: _of_bounds(context.statistics.get(name, {})) for name in PLANNERS}
    above, below, best = _memory(topology), dict[str, int](), None
    limits = _lowered(topology, needs)
    for _ in range(ROUNDS):
        left = context.clock - (time.perf_counter() - began)
        if left <= 0 or any(counted.get("interrupted") for counted in context.statistics.values()):
            break
        counts = {name: {**counted} for name, counted in context.statistics.items()}
        inside = replace(context, clock=left, sink=DiagnosticSink(), statistics=counts)
        lower = {name: limits[name] ** 2 // max(1, high) for name, high in above.items()}
        planned = _or_none(search, module.replace(topology, _limited(topology, limits)), inside)
        found = _or_none(rest, _as_of(first, planned, topology), inside) if planned is not None else None
        if found is not None and (best is None or _value(found) < _value(best[0])):
            best = found, inside
            for name, counted in proven.items():
                inside.count(name, **counted)
        if planned is None or found is not None:
            below = limits
        else:
            above = limits
        between = {name: (high + below.get(name, 0)) // 2 for name, high in above.items()}
        limits = between if below else lower
        if limits in (above, below):
            break
    return best


def _or_none(step: Step, module: Module, context: PassContext) -> Module | None:
    try:
        return step(module, context)
    except Infeasible:
        return None


def _value(module: Module) -> float:
    plan = module.first(Plan)
    return math.inf if plan is None else plan.value


def _memory(topology: Topology) -> dict[str, int]:
    """The bytes of each device that has a limit."""
    return {device.name: limit for device in topology.devices if (limit := topology.memory(device)) is not None}


def _lowered(topology: Topology, needs: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """The memory of devices, for those of ``needs`` (bytes held, and counted), and for those of their type that have as much,
    lower: what was counted, times what there is of what is held."""
    limits, types = _memory(topology), {device.name: device.type for device in topology.devices}
    lower: dict[tuple[str, int], int] = {}
    for name, (held, counted) in needs.items():
        kind = types[name], limits[name]
        lower[kind] = min(lower.get(kind, limits[name]), min(counted, limits[name]) * limits[name] // held)
    return {name: lower.get((types[name], limit), limit) for name, limit in limits.items()}


def _limited(topology: Topology, limits: Mapping[str, int]) -> Topology:
    """The topology whose devices have so much memory beside what their type reserves."""
    reserved = {device.name: topology.type(device.type).reserved for device in topology.devices}
    return replace(
        topology,
        devices=tuple(
            replace(device, memory=limits[device.name] + reserved[device.name]) if device.name in limits else device
            for device in topology.devices
        ),
    )


def _of_bounds(counted: Mapping[str, int | float | str]) -> dict[str, int | float | str]:
    """The counts of a search that prove its bounds."""
    return {key: value for key, value in counted.items() if key.startswith(_PROVEN)}


def _as_of(first: Plan, module: Module, topology: Topology) -> Module:
    """The module with its plan on ``topology``, with the bound of the ``first`` plan, and what that was proven of."""
    plan, limited = module.first(Plan), module.first(Topology)
    assert plan is not None
    assert limited is not None
    told = {**dict(plan.certificate), **{key: text for key, text in first.certificate if key in ("bound", "problem")}}
    if any(stage.mesh for one in (first, plan) for stage in one.stages):
        told.pop("problem", None)  # of a plan on meshes it is a digest of its stages, too
    told[NOTE] = "found by a later search: the plan of the first holds more than was counted"
    plan_ = replace(plan, certificate=tuple(sorted(told.items())))
    bounded = assessed(plan_, module.entry, plan.value, min(first.bound, plan.value))
    return module.replace(limited, topology).replace(plan, bounded)
