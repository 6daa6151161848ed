"""The pass ``shard``: a mesh over the devices of the topology, a strategy for each op, a layout for each value.

Reads the entry function (a folded module is expanded first), costs, resources and the topology. Writes a ``mesh`` symbol; on
each op ``shard<"strategy; strategy">``, the name of a strategy of its layout rule per mesh axis; layouts on results and
resources that are not replicated; and the function attributes ``shard.*``: ``seconds`` modelled for one run (one training
step with ``training``), the ``bound`` that no plan is below, ``status``, and ``outputs``: results of the function that leave
in another layout than they are made in. ``build`` states what the model counts.

Without ``mesh``, every shape of one or two axes over all devices is searched and the cheapest kept; ``bound`` is then the least
of all shapes. Invariant: the plan's seconds have been counted a second time, by ``price``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from ir.attributes import attributes
from ir.diagnostics import Infeasible, InvalidInput, UsageError
from ir.facets import ShardRule
from ir.module import Func, Mesh, Module, Resource
from ir.ops import Op, Value
from ir.topology import Topology
from ir.types import Layout, Partial, Replicate, TensorType, Type
from passes.analyses.network import network
from passes.base import Pass, PassContext
from passes.fold import expand, folding
from passes.shard.build import SEPARATOR, ShardInput, build
from passes.shard.decide import decisions_of
from passes.shard.layouts import Placements
from passes.shard.mesh import mesh_of, read_shape, shapes
from passes.shard.price import Bill, Decisions, price
from passes.shard.search import NoPlanError, ShardPlan, solve

AGREE = 1e-6
"""Relative: how far two sums of the same seconds may lie apart."""


@dataclass(frozen=True)
class ShardPass(Pass):
    """Split ops and values over a mesh of all devices, at least modelled time.

    ``mesh``: sizes of its axes (``8``, ``2x4``); empty: the best of one or two axes. ``training``: count the backward pass and
    the synchronisation of gradients. ``tied``: all copies of a repeated layer choose alike (for comparison). ``uneven``: shards
    may differ in length. ``memory``: bytes of weights per device at most; 0: those of the topology; -1: no limit.
    """

    name: ClassVar[str] = "shard"
    mesh: str = ""
    training: bool = False
    tied: bool = False
    uneven: bool = False
    memory: int = 0
    time_limit: float = 60.0

    def run(self, module: Module, context: PassContext) -> Module:
        """Raises InvalidInput for a module without a topology or a mesh that it does not have, Infeasible where the weights do
        not fit."""
        topology = module.first(Topology)
        if topology is None:
            raise InvalidInput("the module has no topology", where=module.name, hint="give one with -t")
        if not self.time_limit > 0:
            raise UsageError(f"time-limit is {self.time_limit}, expected seconds above 0", where=self.name)
        if self.memory < -1:
            raise UsageError(f"memory is {self.memory}, expected bytes, 0 or -1", where=self.name)
        module = expand(module)
        count = len(topology.devices)
        tried = [read_shape(self.mesh, count)] if self.mesh else list(shapes(count))
        given, plan, bound = self.best(module, topology, tried, context)
        decisions = decisions_of(given, plan.choices)
        bill = price(module, module.entry, given.mesh, decisions, training=self.training, uneven=self.uneven)
        assert math.isclose(bill.total, plan.value, rel_tol=AGREE, abs_tol=1e-15), (bill.total, plan.value)
        if given.unsharded:
            context.sink.warn(f"no layout rule for {', '.join(given.unsharded)}: replicated", where=self.name)
        _count(context, given, plan, bill)
        return _written(module, given, plan, bound, decisions)

    def best(
        self, module: Module, topology: Topology, tried: Sequence[tuple[int, ...]], context: PassContext
    ) -> tuple[ShardInput, ShardPlan, float]:
        """The cheapest plan over all shapes, and the least bound."""
        func = module.entry
        found = context.analyses.get(folding, func, module)
        ends = time.perf_counter() + self.time_limit
        best: tuple[ShardInput, ShardPlan] | None = None
        bounds: list[float] = []
        faults: list[tuple[float, float, str]] = []
        for number, sizes in enumerate(tried):
            mesh = mesh_of(topology, context.analyses.get(network, topology), sizes)
            limit = None if self.memory < 0 else self.memory or mesh.memory
            given = build(module, func, mesh, found, training=self.training, uneven=self.uneven)
            left = max(0.1, (ends - time.perf_counter()) / (len(tried) - number))
            context.progress(f"mesh {mesh}", number / len(tried))
            try:
                plan = solve(given.problem, memory=limit, tie=self.tied, seconds=left, progress=context.progress)
            except NoPlanError as error:
                faults.append((error.least, float(limit or 0), str(mesh)))
                continue
            bounds.append(plan.bound)
            if best is None or plan.value < best[1].value:
                best = given, plan
        if best is None:
            least, limit_, shape = min(faults)
            over = math.ceil(least - limit_)
            raise Infeasible(
                f"weights need {math.ceil(least)} bytes per device on mesh {shape}, {over} more than there are",
                where=topology.name,
                hint="use more devices",
            )
        return *best, min(bounds)


def _count(context: PassContext, given: ShardInput, plan: ShardPlan, bill: Bill) -> None:
    context.count(
        ShardPass.name,
        mesh=str(given.mesh),
        compute=bill.compute,
        communication=bill.communication,
        collectives=len(bill.collectives),
        weights=math.ceil(bill.memory),
        replicated=len(given.unsharded),
        reason=plan.reason,
    )


def _written(module: Module, given: ShardInput, plan: ShardPlan, bound: float, decisions: Decisions) -> Module:
    """The module with the decisions in it."""
    func, problem = given.func, given.problem
    taken = {symbol.name for symbol in module.symbols}
    name = next(name for i in range(len(taken) + 1) if (name := f"@mesh{i or ''}") not in taken)
    lies: dict[str, Placements] = {}
    for value in problem.values:
        node, result = value.maker
        if node < len(func.ops):
            made = func.ops[node].results[result].name
            lies[made] = given.layouts[made].placements[problem.node(node).makes[result][plan.choices[node]]]

    def laid(type_: Type, placements: Placements | None) -> Type:
        if not isinstance(type_, TensorType) or placements is None or all(isinstance(p, Replicate) for p in placements):
            return type_
        return replace(type_, layout=Layout(name, placements))

    def value_of(value: Value) -> Value:
        return Value(value.name, laid(value.type, lies.get(value.name)))

    def op_of(op: Op) -> Op:
        marked = op.with_facets(ShardRule(SEPARATOR.join(decisions.strategies[op.id])))
        return replace(marked, results=tuple(map(value_of, op.results)))

    moved = [
        f"{value} {Layout(name, layout)}"
        for value, layout in decisions.outputs.items()
        if any(isinstance(p, Partial) for p in lies[value]) or layout != lies[value]
    ]
    told = {
        **{key: attribute.value for key, attribute in func.attributes},
        "shard.bound": min(bound, plan.value),
        "shard.seconds": plan.value,
        "shard.status": "optimal" if plan.value <= bound * (1 + AGREE) else "feasible",
        **({"shard.outputs": tuple(moved)} if moved else {}),
    }
    written: Func = replace(
        func,
        ops=tuple(map(op_of, func.ops)),
        results=tuple(map(value_of, func.results)),
        attributes=attributes(told),
    )
    mesh = Mesh(name, tuple((axis.name, axis.size) for axis in given.mesh.axes), given.mesh.devices)
    symbols = tuple(
        written
        if symbol is func
        else replace(symbol, type=laid(symbol.type, decisions.kept.get(symbol.name)))
        if isinstance(symbol, Resource)
        else symbol
        for symbol in module.symbols
    )
    return Module(module.name, (*symbols, mesh), module.attributes)


__all__ = ["ShardPass"]
