"""The witness of a plan: the bound of each form of plans that was searched, and prices that prove it (``ir.text.witness``)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ir.core.module import Module, Plan
from ir.core.topology import Topology
from ir.text.witness import DEVICES, KEY, MESH, MESHES, REPLICAS, TURNS, Witness, witness_text
from passes.costs.learning import learning_seconds
from passes.costs.op_time import body_seconds
from passes.framework.base import Pass, PassContext
from passes.framework.registry import BOUND, PLANNERS
from passes.meshes.reshard_ops import plain
from passes.meshes.undecided import undifferentiated
from passes.stages.bounds import prices
from passes.stages.problem import Kind, Problem, precedence


def with_witness(plan: Plan, module: Module, topology: Topology, bounds: Mapping[str, float], memory: float) -> Plan:
    """The plan, whose certificate has a record for each form of ``bounds``; ``module``: with the plan, expanded; ``memory``:
    the price of a byte of a device, where one mesh was searched.

    The least of the bounds is made that of the plan, which later passes may have changed: what they did holds for all forms."""
    if not bounds:
        return plan
    own, told = device_prices(plan, module, topology), min(bounds.values())
    records = [
        Witness(form, plan.bound if bound == told or bound < plan.bound else bound, own, memory)
        for form, bound in sorted(bounds.items(), key=lambda item: item[0] == MESHES)
    ]
    return replace(plan, certificate=tuple(sorted({**dict(plan.certificate), KEY: witness_text(records)}.items())))


def proven(plan: Plan, pipeline: Sequence[Pass], context: PassContext) -> tuple[dict[str, float], float]:
    """The bound of each form of plans that was searched, and the price of memory, where one mesh was; of a plan that was given,
    the bound that it has, for its form."""
    counted = {key: text for name in PLANNERS for key, text in context.statistics.get(name, {}).items()}
    bounds = {key.removeprefix(BOUND): float(text) for key, text in counted.items() if key.startswith(BOUND)}
    if bounds:
        return bounds, float(counted.get("price", 0.0)) if MESH in bounds else 0.0
    form = next((str(getattr(step, "form")) for step in pipeline if step.name in PLANNERS), "")  # noqa: B009
    if not form:
        form = REPLICAS if any(stage.replicas > 1 for stage in plan.stages) else DEVICES
        form = TURNS if any(stage.serves for stage in plan.stages) and not plan.minimises.decodes else form
    return {MESHES if plan.on_meshes else form: plan.bound}, 0.0


def device_prices(plan: Plan, module: Module, topology: Topology) -> tuple[tuple[str, float], ...]:
    """The price of each type of device, so that those of all devices add up to 1 and the ops are worth as much as can be: the
    dual of fractional load balancing."""
    count = {type_.name: sum(device.type == type_.name for device in topology.devices) for type_ in topology.types}
    types = [type_ for type_ in topology.types if count[type_.name]]
    if len(types) == 1:
        return ((types[0].name, 1.0 / len(topology.devices)),)
    module = plain(undifferentiated(module))
    func = module.entry
    if plan.minimises.trains and plan.in_steps:
        rows = [[one.both for one in learning_seconds(module, type_)] for type_ in types]
    else:
        rows = [body_seconds(func.ops, type_, [value.name for value in func.results]) for type_ in types]
    seconds = np.array(rows, np.float64).reshape(len(types), len(func.ops))
    names = tuple(op.id for op in func.ops)
    none = np.zeros(len(func.ops), np.int64)
    kinds = tuple(Kind(type_.name, tuple(d.name for d in topology.devices if d.type == type_.name)) for type_ in types)
    order = precedence(names, len(kinds), [() for _ in names])
    problem = Problem(names, kinds, seconds, live=none, weight_bytes=none[:0], weight_readers=(), **order)
    found = {type_.name: float(price) for type_, price in zip(types, prices(problem), strict=True)}
    return tuple(sorted((name, price) for name, price in found.items() if math.isfinite(price)))
