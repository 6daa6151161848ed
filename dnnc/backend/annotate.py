"""Where each node runs, written into the unsplit model: ONNX's multi-device annotations (IR version 11) and node metadata.

One configuration ``dnnc`` lists the devices so that device number i is the (first) device of stage i; every node of the
graph states its pipeline stage in it. Viewers show metadata, so each node has ``dnnc.stage`` and ``dnnc.device`` as well,
with all stages of a replicated op; nodes inside If, Loop and Scan run where their parent runs.

``onnx.checker`` looks at none of this, so ``annotation_faults`` verifies what was written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ir.facets import StageSet
from ir.module import Func, Stage

if TYPE_CHECKING:
    import onnx
    import onnx_ir

CONFIGURATION = "dnnc"
IR_VERSION = 11


def annotate(model: onnx_ir.Model, func: Func, stages: tuple[Stage, ...]) -> None:
    """Adds the annotations to ``model``, which holds the ops of ``func`` under the same value names. Raises ValueError when a
    node of the graph makes nothing that an op of ``func`` makes."""
    model.ir_version = max(model.ir_version, IR_VERSION)
    devices = [stage.devices[0] for stage in stages]
    configuration = model.add_device_configuration(CONFIGURATION, device_names=devices)
    members = {value.name[1:]: op.facet(StageSet, StageSet(())).stages for op in func.ops for value in op.results}
    made_at_exit = _handed_through(func, members)
    for node in model.graph:
        held = next((members[output.name] for output in node.outputs if output.name in members), None)
        if held is None:
            held = next((made_at_exit[o.name] for o in node.outputs if o.name in made_at_exit), (0,))
        node.set_pipeline_stage(configuration, held[0])
        for inner in _with_bodies(node):
            inner.metadata_props["dnnc.stage"] = ",".join(map(str, held))
            inner.metadata_props["dnnc.device"] = ",".join(devices[index] for index in held)


def annotation_faults(model: onnx.ModelProto, stages: int) -> tuple[str, ...]:
    """What is wrong with the multi-device annotations of a model of ``stages`` stages; empty when nothing is.

    Checked: configurations named once, with as many device names as devices; every annotation refers to one of them, with a
    stage below ``stages``; sharding specs name a value of their node, an axis inside its rank where that is known, and
    devices of the configuration; every node of the graph has a stage and the metadata says the same."""
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
    ranks = _ranks(model.graph)
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
            for spec in entry.sharding_spec:
                faults += _spec_faults(where, spec, node, ranks, counts.get(name, 0))
        own = found.get(CONFIGURATION)
        said = {item.key: item.value for item in node.metadata_props}.get("dnnc.stage", "")
        if own is None or not own.HasField("pipeline_stage"):
            faults.append(f"{where}: it has no stage")
        elif str(own.pipeline_stage) not in said.split(","):
            faults.append(f"{where}: stage {own.pipeline_stage} annotated, '{said}' in its metadata")
    return tuple(faults)


def _spec_faults(
    where: str, spec: onnx.ShardingSpecProto, node: onnx.NodeProto, ranks: Mapping[str, int], devices: int
) -> Iterator[str]:
    if spec.tensor_name not in (*node.input, *node.output):
        yield f"{where}: sharding of '{spec.tensor_name}', which the node neither reads nor makes"
    groups = {entry.key: len(entry.value) for entry in spec.index_to_device_group_map}
    for device in spec.device:
        if device not in groups and not 0 <= device < devices:
            yield f"{where}: device {device} of {devices}"
    rank = ranks.get(spec.tensor_name)
    for dim in spec.sharded_dim:
        if rank is not None and not -rank <= dim.axis < rank:
            yield f"{where}: axis {dim.axis} of '{spec.tensor_name}', which has rank {rank}"


def _ranks(graph: onnx.GraphProto) -> dict[str, int]:
    ranks = {tensor.name: len(tensor.dims) for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        if value.type.HasField("tensor_type") and value.type.tensor_type.HasField("shape"):
            ranks[value.name] = len(value.type.tensor_type.shape.dim)
    return ranks


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
