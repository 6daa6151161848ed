"""Writes where each node runs into the unsplit model: ONNX's multi-device annotations (IR version 11) and node metadata.

The configuration ``dnnc`` lists the devices stage by stage: the first device of a stage, or all devices of its mesh in
row-major order. Each node of the main graph has a pipeline stage in it. For viewers, each node also has the metadata
``dnnc.stage`` (all stages of a replicated op) and ``dnnc.device``; nodes inside If, Loop and Scan have those of the outer node.
The label ``layer_ann`` is for ONNX Runtime (``one_session.py``).

A node on a mesh also has the layout of each input, as it reads it, and of each output (``ShardingSpecProto`` and the proposal
"ONNX Multi-Device"). Shards are numbered in row-major order over the sharded axes; shard i is on ``device[i]``, or on a group
of devices if ``device[i]`` is a negative key into ``index_to_device_group_map``. Communication is implicit: an input is
resharded to the layout that the node states. ONNX has no specs for terms of a sum and for shards of unequal shares; such
layouts are in the metadata ``dnnc.partial`` and ``dnnc.shares``. The op's strategy is in ``dnnc.shard``.

``onnx.checker`` ignores all of this, so ``annotation_faults`` checks it.
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
    """Adds the annotations to ``model``, which has the ops of ``func`` under the same value names. ``module`` has the layouts
    of stages on meshes, and is needed only for these. A node that is no op of ``func`` gets stage 0: it copies an input or a
    weight to an output."""
    model.ir_version = max(model.ir_version, IR_VERSION)
    devices = [stage.devices if stage.mesh else stage.devices[:1] for stage in stages]
    configuration = model.add_device_configuration(CONFIGURATION, device_names=[name for names in devices for name in names])
    stages_of = {value.name[1:]: op.facet(StageSet, StageSet(())).stages for op in func.ops for value in op.results}
    sharding = None
    if any(stage.mesh for stage in stages):
        assert module is not None, "the layouts of stages on meshes are in the module"
        sharding = _Sharding(module, devices)
    for node in model.graph:
        of_node = next((stages_of[output.name] for output in node.outputs if output.name in stages_of), (0,))
        node.set_pipeline_stage(configuration, of_node[0])
        if sharding is not None:
            sharding.annotate(node)
        for inner in _with_bodies(node):
            inner.metadata_props["dnnc.stage"] = ",".join(map(str, of_node))
            inner.metadata_props[LABEL] = label(of_node[0])
            inner.metadata_props["dnnc.device"] = ",".join(name for index in of_node for name in devices[index])


class _Sharding:
    """Adds the layouts of operands and results to nodes on meshes. ``devices``: of each stage, as the configuration lists
    them."""

    def __init__(self, module: Module, devices: Sequence[Sequence[str]]) -> None:
        from passes.meshes.decided import decided

        self.decided = decided(module)
        self.ops = self.decided.func.ops
        self.op_of = {value.name[1:]: number for number, op in enumerate(self.ops) for value in op.results}
        self.types: dict[str, Type] = {value.name: value.type for value in module.entry.args}
        self.types.update((resource.name, resource.type) for resource in module.of_type(Resource))
        self.types.update((value.name, value.type) for op in self.ops for value in op.results)
        self.first_device = [sum(map(len, devices[:index])) for index in range(len(devices))]
        self.specs: dict[tuple[int, tuple[int, ...], Placements], _Spec] = {}

    def annotate(self, node: onnx_ir.Node) -> None:
        """Adds the layouts of ``node`` to its configuration and its metadata."""
        number = next((self.op_of[output.name] for output in node.outputs if output.name in self.op_of), None)
        if number is None:
            return
        op, stage = self.ops[number], self.decided.members[number][0]
        mesh = self.decided.meshes[stage]
        if not mesh.axes:
            return
        whole: Placements = (Replicate(),) * len(mesh.axes)
        wanted = self.decided.wants[number] or (whole,) * len(op.operands)
        layouts = [(value, name, layout) for value, name, layout in zip(node.inputs, op.operands, wanted, strict=False)]
        layouts += [(v, r.name, self.decided.lies[r.name]) for v, r in zip(node.outputs, op.results, strict=False) if r.name]
        specs: dict[int, onnx_ir.ShardingSpec] = {}
        partial = {}
        unequal = {}
        for value, name, layout in layouts:
            shape = shape_of(self.types[name]) if name else None
            if value is None or shape is None:
                continue
            if reduction_of(layout):
                partial[value.name or ""] = ", ".join(map(str, layout))
            elif any(isinstance(p, Shard) and max(shares) > 1 for p, shares in zip(layout, mesh.cuts, strict=True)):
                unequal[value.name or ""] = ", ".join(map(str, layout))
            else:
                specs.setdefault(id(value), self.spec(stage, mesh, shape, layout).of(value))
        (entry,) = node.device_configurations
        node.device_configurations = (replace(entry, sharding_specs=tuple(specs.values())),)
        facet = op.facet(ShardRule)
        node.metadata_props["dnnc.shard"] = facet.rule if facet else ""
        if partial:
            node.metadata_props["dnnc.partial"] = "; ".join(f"{name}: {layout}" for name, layout in partial.items())
        if unequal:
            shares = " x ".join(":".join(map(str, along)) for along in mesh.cuts)
            layouts_text = "; ".join(f"{name}: {layout}" for name, layout in unequal.items())
            node.metadata_props["dnnc.shares"] = f"{layouts_text} by {shares}"

    def spec(self, stage: int, mesh: Mesh, shape: tuple[int, ...], layout: Placements) -> _Spec:
        """The spec of a tensor of ``shape`` with ``layout`` on the mesh of a stage; cached."""
        key = (stage, shape, layout)
        if key not in self.specs:
            type_ = TensorType(DType.F32, shape)
            holders: dict[Box, list[int]] = {}
            for member in range(len(mesh.devices)):
                holders.setdefault(box(type_, layout, mesh, member), []).append(self.first_device[stage] + member)
            dims = sorted({placement.dim for placement in layout if isinstance(placement, Shard)})
            counts = [
                math.prod(size for placement, (_, size) in zip(layout, mesh.axes, strict=True) if placement == Shard(dim))
                for dim in dims
            ]
            groups = tuple(tuple(holders[part]) for part in sorted(holders))
            self.specs[key] = _Spec(groups, tuple((dim, shape[dim], count) for dim, count in zip(dims, counts, strict=True)))
        return self.specs[key]


@dataclass(frozen=True, slots=True)
class _Spec:
    """A layout for any tensor of one shape. ``groups[i]``: the devices that hold shard i; ``dims``: of each sharded axis its
    number, its length and its number of shards."""

    groups: tuple[tuple[int, ...], ...]
    dims: tuple[tuple[int, int, int], ...]

    def of(self, value: onnx_ir.Value) -> onnx_ir.ShardingSpec:
        import onnx_ir

        replicated = any(len(group) > 1 for group in self.groups)
        keys = tuple(-1 - number if replicated else group[0] for number, group in enumerate(self.groups))
        entries = zip(keys, self.groups, strict=True) if replicated else ()
        return onnx_ir.ShardingSpec(
            value,
            keys,
            tuple(onnx_ir.IndexToDeviceGroupMapEntry(key, group) for key, group in entries),
            tuple(onnx_ir.ShardedDim(axis, (onnx_ir.SimpleShardedDim(size, count),)) for axis, size, count in self.dims),
        )


def annotation_faults(model: onnx.ModelProto, stages: int) -> tuple[str, ...]:
    """What is wrong with the multi-device annotations of a model of ``stages`` stages, a sentence each; empty when nothing is.

    Checked: (1) configurations have unique names, and as many device names as devices; (2) each node refers to known
    configurations, each once, with a stage below ``stages``; (3) the sharding specs of a node name its values, each once; a
    spec names axes within the rank, each once, as many shards as devices or groups, and devices of the configuration, each
    once; (4) each node of the main graph has a stage in ``dnnc``, which is among those of its metadata."""
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
        entries = {entry.configuration_id: entry for entry in node.device_configurations}
        if len(entries) != len(node.device_configurations):
            faults.append(f"{where}: one configuration is referred to twice")
        for name, entry in entries.items():
            if name not in counts:
                faults.append(f"{where}: unknown configuration '{name}'")
            if entry.HasField("pipeline_stage") and not 0 <= entry.pipeline_stage < stages:
                faults.append(f"{where}: stage {entry.pipeline_stage} of {stages}")
            named = [spec.tensor_name for spec in entry.sharding_spec]
            faults += [f"{where}: two shardings of '{twice}'" for twice in sorted({n for n in named if named.count(n) > 1})]
            for spec in entry.sharding_spec:
                faults += _spec_faults(where, spec, node, shapes, counts.get(name, 0))
        own = entries.get(CONFIGURATION)
        in_metadata = {item.key: item.value for item in node.metadata_props}.get("dnnc.stage", "")
        if own is None or not own.HasField("pipeline_stage"):
            faults.append(f"{where}: it has no stage")
        elif str(own.pipeline_stage) not in in_metadata.split(","):
            faults.append(f"{where}: stage {own.pipeline_stage} annotated, '{in_metadata}' in its metadata")
    return tuple(faults)


def _spec_faults(
    where: str, spec: onnx.ShardingSpecProto, node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]], devices: int
) -> Iterator[str]:
    """What is wrong with a sharding spec of ``node``. ``shapes`` as ``_shapes`` returns them; ``devices``: their number."""
    name = spec.tensor_name
    if name not in (*node.input, *node.output):
        yield f"{where}: sharding of '{name}', which is neither an input nor an output of the node"
    groups = {entry.key: list(entry.value) for entry in spec.index_to_device_group_map}
    holders = [device for key in spec.device for device in groups.get(key, [key])]
    for device in holders:
        if not 0 <= device < devices:
            yield f"{where}: device {device} of {devices}"
    if len(set(holders)) < len(holders):
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
    """Shapes of the values whose rank is stated; 0 stands for a dimension that is no number."""
    shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        if value.type.HasField("tensor_type") and value.type.tensor_type.HasField("shape"):
            shapes[value.name] = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
    return shapes


def _with_bodies(node: onnx_ir.Node) -> Iterator[onnx_ir.Node]:
    """The node and all nodes inside its subgraphs."""
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
