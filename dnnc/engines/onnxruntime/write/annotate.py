"""Where each node runs, written into the unsplit model: ONNX's multi-device annotations (IR version 11) and node metadata.

One configuration ``dnnc`` lists the devices: the (first) device of each stage or, of a stage on a mesh, all of them row by row.
Every node of the graph states its pipeline stage in it. Viewers show metadata, so each node has ``dnnc.stage`` and
``dnnc.device`` as well, with all stages of a replicated op; nodes inside If, Loop and Scan run where their parent runs. The
label ``layer_ann`` is ONNX Runtime's own (``one_session.py``).

A node on a mesh states how each of its inputs is cut when it runs, and how its outputs lie then (``ShardingSpecProto``, and the
proposal "ONNX Multi-Device" behind it): shards are counted row by row over the sharded axes, shard i is on ``device[i]``, and
where several devices hold the same shard, ``device[i]`` is a negative key into ``index_to_device_group_map``. Communication is
implicit there as it is in a layout: an input is brought to the form that the node states. A term of a sum cannot be said, nor
parts in another proportion than equal ones: such a value has no spec, so it is what follows from the inputs; metadata has it
(``dnnc.partial``, ``dnnc.shares``), beside the strategy (``dnnc.shard``).

``onnx.checker`` looks at none of this, so ``annotation_faults`` verifies what was written.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dnnc.engines.onnxruntime.write.one_session import LABEL, label
from ir.core.facets import ShardRule, StageSet
from ir.core.module import Func, Mesh, Module, Resource, Stage
from ir.core.types import DType, Replicate, Shard, TensorType, Type
from ir.ops.boxes import Box, Placements, box, reduction_of, shape_of

if TYPE_CHECKING:
    import onnx
    import onnx_ir

CONFIGURATION = "dnnc"
IR_VERSION = 11


def annotate(model: onnx_ir.Model, func: Func, stages: tuple[Stage, ...], module: Module | None = None) -> None:
    """Adds the annotations to ``model``, which holds the ops of ``func`` under the same value names. ``module`` says what was
    decided for stages on meshes, and is needed where there are any. Raises ValueError when a node of the graph makes nothing
    that an op of ``func`` makes."""
    model.ir_version = max(model.ir_version, IR_VERSION)
    own = [stage.devices if stage.mesh else stage.devices[:1] for stage in stages]
    configuration = model.add_device_configuration(CONFIGURATION, device_names=[name for names in own for name in names])
    members = {value.name[1:]: op.facet(StageSet, StageSet(())).stages for op in func.ops for value in op.results}
    made_at_exit = _handed_through(func, members)
    sharding = None
    if any(stage.mesh for stage in stages):
        assert module is not None, "stages on meshes say nothing of how values lie"
        sharding = _Sharding(module, own)
    for node in model.graph:
        held = next((members[output.name] for output in node.outputs if output.name in members), None)
        if held is None:
            held = next((made_at_exit[o.name] for o in node.outputs if o.name in made_at_exit), (0,))
        node.set_pipeline_stage(configuration, held[0])
        if sharding is not None:
            sharding.state(node)
        for inner in _with_bodies(node):
            inner.metadata_props["dnnc.stage"] = ",".join(map(str, held))
            inner.metadata_props[LABEL] = label(held[0])
            inner.metadata_props["dnnc.device"] = ",".join(name for index in held for name in own[index])


class _Sharding:
    """States how nodes on meshes read and make their values; equal layouts of equal shapes are drawn once."""

    def __init__(self, module: Module, own: Sequence[Sequence[str]]) -> None:
        from passes.model.spmd.decided import decided

        self.decided = decided(module)
        self.ops = self.decided.func.ops
        self.number = {value.name[1:]: (i, r) for i, op in enumerate(self.ops) for r, value in enumerate(op.results)}
        self.types: dict[str, Type] = {value.name: value.type for value in module.entry.args}
        self.types.update((resource.name, resource.type) for resource in module.of_type(Resource))
        self.types.update((value.name, value.type) for op in self.ops for value in op.results)
        self.first = [sum(map(len, own[:index])) for index in range(len(own))]
        self.drawn: dict[tuple[int, tuple[int, ...], Placements], _Spec] = {}

    def state(self, node: onnx_ir.Node) -> None:
        """Adds the specs of a node to its configuration."""
        position = next((self.number[o.name][0] for o in node.outputs if o.name in self.number), None)
        if position is None:
            return
        op, stage = self.ops[position], self.decided.members[position][0]
        mesh = self.decided.meshes[stage]
        if not mesh.axes:
            return
        whole: Placements = (Replicate(),) * len(mesh.axes)
        wants = self.decided.wants[position] or (whole,) * len(op.operands)
        rows = [(value, name, lies) for value, name, lies in zip(node.inputs, op.operands, wants, strict=False)]
        rows += [(v, r.name, self.decided.lies[r.name]) for v, r in zip(node.outputs, op.results, strict=False) if r.name]
        specs: dict[int, onnx_ir.ShardingSpec] = {}
        partial = {}
        unequal = {}
        for value, name, lies in rows:
            shape = shape_of(self.types[name]) if name else None
            if value is None or shape is None:
                continue
            if reduction_of(lies):
                partial[value.name or ""] = ", ".join(map(str, lies))
            elif any(isinstance(p, Shard) and max(shares) > 1 for p, shares in zip(lies, mesh.cuts, strict=True)):
                unequal[value.name or ""] = ", ".join(map(str, lies))
            else:
                specs.setdefault(id(value), self.spec(stage, mesh, shape, lies).of(value))
        (entry,) = node.device_configurations
        node.device_configurations = (replace(entry, sharding_specs=tuple(specs.values())),)
        facet = op.facet(ShardRule)
        node.metadata_props["dnnc.shard"] = facet.rule if facet else ""
        if partial:
            node.metadata_props["dnnc.partial"] = "; ".join(f"{name}: {lies}" for name, lies in partial.items())
        if unequal:
            shares = " x ".join(":".join(map(str, along)) for along in mesh.cuts)
            told = "; ".join(f"{name}: {lies}" for name, lies in unequal.items())
            node.metadata_props["dnnc.shares"] = f"{told} by {shares}"

    def spec(self, stage: int, mesh: Mesh, shape: tuple[int, ...], lies: Placements) -> _Spec:
        key = (stage, shape, lies)
        if key not in self.drawn:
            type_ = TensorType(DType.F32, shape)
            holders: dict[Box, list[int]] = {}
            for member in range(len(mesh.devices)):
                holders.setdefault(box(type_, lies, mesh, member), []).append(self.first[stage] + member)
            dims = sorted({placement.dim for placement in lies if isinstance(placement, Shard)})
            counts = [
                math.prod(size for placement, (_, size) in zip(lies, mesh.axes, strict=True) if placement == Shard(dim))
                for dim in dims
            ]
            groups = tuple(tuple(holders[part]) for part in sorted(holders))
            self.drawn[key] = _Spec(groups, tuple((dim, shape[dim], count) for dim, count in zip(dims, counts, strict=True)))
        return self.drawn[key]


@dataclass(frozen=True, slots=True)
class _Spec:
    """``groups[shard]``: the devices that hold it; ``dims``: axis, its length, into how many shards."""

    groups: tuple[tuple[int, ...], ...]
    dims: tuple[tuple[int, int, int], ...]

    def of(self, value: onnx_ir.Value) -> onnx_ir.ShardingSpec:
        import onnx_ir

        shared = any(len(group) > 1 for group in self.groups)
        keys = tuple(-1 - number if shared else group[0] for number, group in enumerate(self.groups))
        entries = zip(keys, self.groups, strict=True) if shared else ()
        return onnx_ir.ShardingSpec(
            value,
            keys,
            tuple(onnx_ir.IndexToDeviceGroupMapEntry(key, group) for key, group in entries),
            tuple(onnx_ir.ShardedDim(axis, (onnx_ir.SimpleShardedDim(size, count),)) for axis, size, count in self.dims),
        )


def annotation_faults(model: onnx.ModelProto, stages: int) -> tuple[str, ...]:
    """What is wrong with the multi-device annotations of a model of ``stages`` stages; empty when nothing is.

    Checked: configurations named once, with as many device names as devices; every annotation refers to one of them, with a
    stage below ``stages``; sharding specs name a value of their node, each once, an axis inside its rank where that is known,
    each once, as many shards as devices or groups of them, and devices of the configuration, each with one shard; every node of
    the graph has a stage and the metadata says the same."""
    faults = []
    counts: dict[str, int] = {}
    for configuration in model.configuration:
        if configuration.name in counts or not configuration.name:
            faults.append(f"configuration name '{configuration.name}' is empty or used twice")
        if configuration.num_devices < 1 or len(configuration.device) not in (0, configuration.num_devices):
            faults.append(
                f"'{configuration.name}' has {configuration.num_devices} devices and {len(configuration.device)} device names"
            )
        counts[configuration.name] = configuration.num_devices
    if CONFIGURATION not in counts:
        faults.append(f"configuration '{CONFIGURATION}' is missing")
    if model.ir_version < IR_VERSION:
        faults.append(f"IR version {model.ir_version} has no annotations, {IR_VERSION} is the first that has")
    shapes = _shapes(model.graph)
    for node in model.graph.node:
        where = node.name or next(iter(node.output), node.op_type)
        found = {entry.configuration_id: entry for entry in node.device_configurations}
        if len(found) != len(node.device_configurations):
            faults.append(f"{where}: one configuration is referred to twice")
        for name, entry in found.items():
            if name not in counts:
                faults.append(f"{where}: unknown configuration '{name}'")
            if entry.HasField("pipeline_stage") and not 0 <= entry.pipeline_stage < stages:
                faults.append(f"{where}: stage {entry.pipeline_stage} of {stages}")
            named = [spec.tensor_name for spec in entry.sharding_spec]
            faults += [f"{where}: two shardings of '{twice}'" for twice in sorted({n for n in named if named.count(n) > 1})]
            for spec in entry.sharding_spec:
                faults += _spec_faults(where, spec, node, shapes, counts.get(name, 0))
        own = found.get(CONFIGURATION)
        said = {item.key: item.value for item in node.metadata_props}.get("dnnc.stage", "")
        if own is None or not own.HasField("pipeline_stage"):
            faults.append(f"{where}: it has no stage")
        elif str(own.pipeline_stage) not in said.split(","):
            faults.append(f"{where}: stage {own.pipeline_stage} annotated, '{said}' in its metadata")
    return tuple(faults)


def _spec_faults(
    where: str, spec: onnx.ShardingSpecProto, node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]], devices: int
) -> Iterator[str]:
    """``shapes``: 0 for a dimension without a number."""
    name = spec.tensor_name
    if name not in (*node.input, *node.output):
        yield f"{where}: sharding of '{name}', which the node neither reads nor makes"
    groups = {entry.key: list(entry.value) for entry in spec.index_to_device_group_map}
    held = [device for key in spec.device for device in groups.get(key, [key])]
    for device in held:
        if not 0 <= device < devices:
            yield f"{where}: device {device} of {devices}"
    if len(set(held)) < len(held):
        yield f"{where}: a device holds two shards of '{name}'"
    shape = shapes.get(name)
    counts = [one.num_shards for dim in spec.sharded_dim for one in dim.simple_sharding]
    for dim in spec.sharded_dim:
        if shape is not None and not -len(shape) <= dim.axis < len(shape):
            yield f"{where}: axis {dim.axis} of '{name}', which has rank {len(shape)}"
            continue
        length = shape[dim.axis] if shape is not None else 0
        for one in dim.simple_sharding:
            if length and one.HasField("dim_value") and len(dim.simple_sharding) == 1 and one.dim_value != length:
                yield f"{where}: axis {dim.axis} of '{name}' has length {length}, not {one.dim_value}"
            if one.num_shards < 1 or (length and one.num_shards > length):
                yield f"{where}: axis {dim.axis} of '{name}' is cut into {one.num_shards} shards"
    if len({dim.axis for dim in spec.sharded_dim}) < len(spec.sharded_dim):
        yield f"{where}: an axis of '{name}' is cut twice"
    if counts and math.prod(counts) != len(spec.device):
        yield f"{where}: '{name}' has {math.prod(counts)} shards on {len(spec.device)} devices or groups"


def _shapes(graph: onnx.GraphProto) -> dict[str, tuple[int, ...]]:
    """Of the values whose rank is stated; 0 stands for a dimension without a number."""
    shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        if value.type.HasField("tensor_type") and value.type.tensor_type.HasField("shape"):
            shapes[value.name] = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
    return shapes


def _handed_through(func: Func, members: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Stages of outputs that no op makes: the exporter may add a node that copies an input or a weight to them."""
    return {value.name[1:]: (0,) for value in func.results if value.name[1:] not in members}


def _with_bodies(node: onnx_ir.Node) -> Iterator[onnx_ir.Node]:
    import onnx_ir

    yield node
    for attribute in node.attributes.values():
        if attribute.is_ref():
            continue
        graphs: tuple[onnx_ir.Graph, ...] = ()
        if attribute.type is onnx_ir.AttributeType.GRAPH:
            graphs = (attribute.as_graph(),)
        elif attribute.type is onnx_ir.AttributeType.GRAPHS:
            graphs = tuple(attribute.as_graphs())
        for graph in graphs:
            for inner in graph:
                yield from _with_bodies(inner)
