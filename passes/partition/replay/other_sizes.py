"""The stages and the layouts of a plan on meshes, on the same model of other sizes.

Each op of both models has the stage and the strategies that it has in the plan, each weight lies as it does there; what an op
costs is of its own sizes. An op that the planned module lacks runs whole on each member of the stage that
``passes.plan.other_sizes`` gives it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ir.core.facets import SEPARATOR, WHOLE, ShardRule, StageSet
from ir.core.module import Mesh, Module, Plan
from ir.core.ops import Op
from ir.core.topology import Topology
from ir.core.types import Dim, TensorType
from ir.layout_rules.moves import aligned
from passes.costs.network import network
from passes.framework.base import PassContext, needed
from passes.framework.registry import PASSES
from passes.graph.folding import expand
from passes.graph.graph import reads
from passes.graph.positional import spread
from passes.meshes.decided import meshes_of
from passes.meshes.mesh import AXIS_NAMES, DeviceMesh, mesh_over
from passes.meshes.reshard_ops import keeps, without_reshards
from passes.meshes.undecided import copied, undecided
from passes.partition.replay.stage_by_stage import StageByStage, Stated
from passes.plan.other_sizes import cut_alike
from passes.plan.written import written

RESHAPES = ("onnx.Reshape", "onnx.Flatten")


def laid_alike(planned: Module, other: Module, context: PassContext) -> Module:
    """``other`` with the stages of ``planned`` on its meshes, and a plan of its own; both expanded. Raises InvalidInput where
    an op cannot be split as in the plan."""
    topology, plan, decided = needed(planned, Topology), needed(planned, Plan), without_reshards(planned.entry)
    of, meshes = copied(planned.entry), meshes_of(planned)
    strategies: dict[int, dict[str, str]] = {index: {} for index in range(len(meshes))}
    ops: dict[str, Op] = {}
    for op in decided.func.ops:
        original = of.get(op.id, op.id)
        for index in (own := op.facet(StageSet, StageSet(())).stages):
            strategies[index][original] = rule.rule if (rule := op.facet(ShardRule)) is not None else ""
        if original in ops:
            own = tuple(sorted({*ops[original].facet(StageSet, StageSet(())).stages, *own}))
        ops[original] = (ops.get(original) or op).with_facets(StageSet(own))
    alone = undecided(planned)
    staged = tuple(ops[op.id] for op in alone.entry.ops)
    merged = planned.replace(planned.entry, replace(alone.entry, ops=staged))
    module = spread(cut_alike(merged, other))
    types = {name: resource.type for name, resource in planned.resources.items()}
    stated, func = [], module.entry
    before, after = _shapes(merged), _shapes(module)
    for index, mesh in enumerate(meshes):
        axes, others = len(mesh.axes), () if mesh.axes else plan.stages[index].devices[1:]
        own = tuple(i for i, op in enumerate(func.ops) if index in op.facet(StageSet, StageSet(())).stages)
        read = {name for i in own for name in reads(func.ops[i])}
        kept = {name[1:]: lies for name, lies in keeps(decided, types, index, mesh).items() if name in read}
        known, whole = strategies[index], SEPARATOR.join([WHOLE] * axes)
        texts = {
            op.id: _renamed(known.get(op.id, whole), ops.get(op.id), op, before, after) for op in (func.ops[i] for i in own)
        }
        stated.append(Stated(own, _over(topology, mesh), texts, kept if axes else {}, {}, f"stage {index}", others))
    module = expand(PASSES["cost"]().run(undecided(module), context))  # each op had the facts of ``planned``
    stages = StageByStage(module, topology, context, stated, training=False, memory=-1, microbatches=1)
    empty = replace(plan, value=math.inf, port_value=math.inf, bound=0.0, stages=(), certificate=())
    return written(module, stages.staged(), empty, memory=-1)


def _shapes(module: Module) -> dict[str, Sequence[Dim]]:
    types = {name: resource.type for name, resource in module.resources.items()}
    types.update((value.name, value.type) for value in module.entry.args)
    types.update((value.name, value.type) for op in module.entry.ops for value in op.results)
    return {name: type_.shape or () for name, type_ in types.items() if isinstance(type_, TensorType)}


def _renamed(
    strategy: str, planned: Op | None, other: Op, before: Mapping[str, Sequence[Dim]], after: Mapping[str, Sequence[Dim]]
) -> str:
    """The strategy of an op for its own sizes. Reshape numbers its factors by groups of dimensions longer than 1
    (``ir.layout_rules.moves``), so that of the same dimension of the result may have another number: heads of
    ``2x1x32 -> 2x1x4x8`` and of ``2x5x32 -> 2x5x4x8``. A factor of a dimension that has length 1 here is whole."""
    if planned is None or planned.name not in RESHAPES:
        return strategy
    was, now = (_factors(op, shapes) for op, shapes in ((planned, before), (other, after)))
    dims = {name: dim for dim, name in was.items()}
    return SEPARATOR.join(now.get(dims[name], WHOLE) if name in dims else name for name in strategy.split(SEPARATOR))


def _factors(op: Op, shapes: Mapping[str, Sequence[Dim]]) -> dict[int, str]:
    """The factors of a Reshape by the dimension of the result that each splits; none where a length is no number."""
    source, target = ([dim for dim in shapes[name] if isinstance(dim, int)] for name in (op.operands[0], op.results[0].name))
    if (len(source), len(target)) != (len(shapes[op.operands[0]]), len(shapes[op.results[0].name])):
        return {}
    return {places[1]: f"d{number}" for number, (places, _) in enumerate(aligned(source, target))}


def _over(topology: Topology, mesh: Mesh) -> DeviceMesh:
    """The mesh of a stage, of one member where it is on no mesh."""
    one = mesh if mesh.axes else Mesh("@alone", ((AXIS_NAMES[0], 1),), mesh.devices)
    return mesh_over(topology, network(topology), one).limited(-1)
