"""The stages of a sharded module, each as a function of its own with what was decided for it (``written`` says how that stands
there)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypedDict

from ir.core.facets import SEPARATOR, WHOLE, ShardRule, StageSet
from ir.core.module import Func, Mesh, Module, Plan
from ir.core.ops import Op
from ir.core.topology import Topology
from ir.core.types import Replicate
from ir.ops.boxes import placements_of
from passes.costs.network import network
from passes.graph.graph import reads
from passes.meshes.costs.bill import Decisions
from passes.meshes.layouts import Placements
from passes.meshes.mesh import AXIS_NAMES, DeviceMesh, mesh_over
from passes.meshes.reshard_ops import bare_value, keeps, same_shape, without_reshards
from passes.meshes.synced import synced_in
from passes.meshes.undecided import undecided


@dataclass(frozen=True, slots=True)
class StagePart:
    """A stage as a function of its own, without layouts in its types, with what was decided for it."""

    index: int
    func: Func
    mesh: DeviceMesh
    decisions: Decisions


class Options(TypedDict):
    """Of ``price``."""

    microbatches: int


def sharded_plan(module: Module) -> Plan:
    """Raises ValueError where the module has no sharded plan."""
    plan = module.first(Plan)
    if plan is None or not all(stage.devices for stage in plan.stages):
        raise ValueError("the module has no sharded plan")
    return plan


def priced_under(module: Module) -> Options:
    """The options under which the plan was priced."""
    return {"microbatches": sharded_plan(module).microbatches}


def stage_parts(module: Module) -> Iterator[StagePart]:
    """Each stage of a sharded module, in order. Raises ValueError where there is no sharded plan."""
    plan, topology, plain = sharded_plan(module), module.first(Topology), without_reshards(module.entry)
    assert topology is not None
    func, resources = plain.func, module.resources
    bare = {op.id: op for op in undecided(module, copies=True).entry.ops}
    types = {name: resource.type for name, resource in resources.items()}
    values = {value.name: value for op in func.ops for value in op.results}
    named = {mesh.name: mesh for mesh in module.of_type(Mesh)}
    meshes = [named.get(stage.mesh) or Mesh("", ((AXIS_NAMES[0], 1),), stage.devices[:1]) for stage in plan.stages]
    home = {value.name: _stage_of(op) for op in func.ops for value in op.results}
    readers: dict[str, set[int]] = {}
    for op in func.ops:
        for name in reads(op):
            readers.setdefault(name, set()).add(_stage_of(op))

    def crossing(name: str, index: int, others: Iterable[int]) -> Placements:
        """How a value crosses between a stage and others: as it is made where all have meshes of one shape, else whole."""
        if all(same_shape(meshes[index], meshes[other]) for other in others):
            return placements_of(values[name].type, meshes[home[name]])
        return (Replicate(),) * len(meshes[index].axes)

    for index, (stage, mesh) in enumerate(zip(plan.stages, meshes, strict=True)):
        ops = [op for op in func.ops if _stage_of(op) == index]
        wanted = dict.fromkeys(name for op in ops for name in reads(op))
        entering = {name: crossing(name, index, [home[name]]) for name in wanted if home.get(name, index) != index}
        args = {arg.name: arg for arg in func.args} | {name: bare_value(values[name]) for name in entering}
        results = [value for value in func.results if home.get(value.name) == index]
        mine = [value.name for op in ops for value in op.results]
        decisions = Decisions(
            {op.id: _strategies(op, mesh) for op in ops},
            keeps(plain, types, index, mesh),
            {value.name: placements_of(plain.outputs.get(value.name, value.type), mesh) for value in results},
            entering,
            {name: crossing(name, index, others) for name in mine if (others := readers.get(name, set()) - {index})},
            frozenset(stage.learning),
            synced_in(resources, wanted),
        )
        part = replace(
            func,
            args=tuple(value for name, value in args.items() if name in wanted),
            results=tuple(map(bare_value, results)),
            ops=tuple(bare[op.id] for op in ops),
            attributes=(),
        )
        yield StagePart(index, part, mesh_over(topology, network(topology), mesh), decisions)


def _stage_of(op: Op) -> int:
    return op.facet(StageSet, StageSet((0,))).stages[0]


def _strategies(op: Op, mesh: Mesh) -> tuple[str, ...]:
    """The name of its strategy along each axis."""
    facet = op.facet(ShardRule)
    return tuple(facet.rule.split(SEPARATOR)) if facet else (WHOLE,) * len(mesh.axes)
