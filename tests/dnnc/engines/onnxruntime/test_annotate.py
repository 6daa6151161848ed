"""Sharding specs in annotated.onnx mean, by ONNX's own definition, what the plan says of every value."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from dnnc.compile.driver import CompileOptions, compile_model
from dnnc.engines.onnxruntime.write.annotate import annotation_faults
from ir.core.module import Mesh, Module, Plan
from ir.ops.boxes import box, shape_of
from passes.meshes.decided import decided

SPEC = "zoo:bert-base,layers=1,hidden=32,heads=4,vocab=64,seq=8,batch=4"


def built(out: Path, mesh: str, strategy: str = "", stages: int | None = None) -> tuple[Module, onnx.ModelProto]:
    options = CompileOptions(SPEC, "preset:cpu-4,cores=4", out, mesh=mesh, strategy=strategy, stages=stages, weights="none")
    result = compile_model(options)
    return result.module, onnx.load(str(out / "annotated.onnx"), load_external_data=False)


def shards(spec: onnx.ShardingSpecProto, shape: tuple[int, ...]) -> dict[int, np.ndarray]:
    """What each device holds of a tensor that numbers its elements: the loops of the proposal, spelled out."""
    parts = [np.arange(np.prod(shape)).reshape(shape)]
    for dim in spec.sharded_dim:
        (one,) = dim.simple_sharding
        assert one.dim_value == shape[dim.axis]
        width = shape[dim.axis] // one.num_shards
        parts = [
            np.take(part, range(i * width, (i + 1) * width), axis=dim.axis) for part in parts for i in range(one.num_shards)
        ]
    groups = {entry.key: list(entry.value) for entry in spec.index_to_device_group_map}
    assert len(parts) == len(spec.device)
    return {device: part for key, part in zip(spec.device, parts, strict=True) for device in groups.get(key, [key])}


@pytest.mark.parametrize(
    ("mesh", "strategy"),
    [
        ("4", "megatron"),
        pytest.param("2x2", "megatron", marks=pytest.mark.slow),
        ("2x2", "data"),
        pytest.param("4", "replicate", marks=pytest.mark.slow),
    ],
)
def test_specs_are_the_boxes_of_the_members(mesh: str, strategy: str, tmp_path: Path) -> None:
    module, proto = built(tmp_path / "b", mesh, strategy)
    assert annotation_faults(proto, 1) == ()
    (named,) = module.of_type(Mesh)
    assert list(proto.configuration[0].device) == list(named.devices)
    told = decided(module)
    types = {value.name: value.type for op in told.func.ops for value in op.results}
    nodes = {name: node for node in proto.graph.node for name in node.output}
    seen = 0
    for op, wants in zip(told.func.ops, told.wants, strict=True):
        node = nodes[op.results[0].name[1:]]
        specs = {spec.tensor_name: spec for spec in node.device_configurations[0].sharding_spec}
        rows = [(value.name, told.lies[value.name]) for value in op.results]
        rows += [(name, lies) for name, lies in zip(op.operands, wants or (), strict=False) if name in types]
        for name, lies in rows:
            if any("P" in str(placement) for placement in lies):
                assert name[1:] not in specs
                assert name[1:] in {p.key: p.value for p in node.metadata_props}["dnnc.partial"]
                continue
            shape = shape_of(types[name])
            assert shape is not None
            held = shards(specs[name[1:]], shape)
            numbers = np.arange(np.prod(shape)).reshape(shape)
            assert sorted(held) == list(range(4))
            for member, part in held.items():
                cut = tuple(slice(start, start + length) for start, length in box(types[name], lies, named, member))
                assert np.array_equal(part, numbers[cut]), (name, member)
            seen += 1
    assert seen > 40


def test_devices_of_several_stages(tmp_path: Path) -> None:
    """Devices of the second stage are numbered behind those of the first."""
    module, proto = built(tmp_path / "b", "2", stages=2)
    assert annotation_faults(proto, 2) == ()
    plan = module.first(Plan)
    assert plan is not None
    assert list(proto.configuration[0].device) == [name for stage in plan.stages for name in stage.devices]
    for node in proto.graph.node:
        entry = node.device_configurations[0]
        held = {
            device
            for spec in entry.sharding_spec
            for key in spec.device
            for device in {e.key: list(e.value) for e in spec.index_to_device_group_map}.get(key, [key])
        }
        assert held <= {2 * entry.pipeline_stage, 2 * entry.pipeline_stage + 1}
    assert onnx.load(str(tmp_path / "b" / "annotated.onnx"), load_external_data=False) == proto


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ("", ""),
        ("shards", "'y' has 3 shards on 2 devices"),
        ("length", "axis 0 of 'y' has length 6, not 5"),
        ("too many", "axis 0 of 'y' is cut into 7 shards"),
        ("twice", "two shardings of 'y'"),
        ("axis twice", "an axis of 'y' is cut twice"),
        ("device twice", "a device holds two shards of 'y'"),
        ("group", "device 9 of 4"),
    ],
)
def test_wrong_specs_are_found(change: str, fault: str) -> None:
    text = '<ir_version: 11, opset_import: ["": 20]> g (float[6,3] x) => (float[6,3] y) { y = Relu(x) }'
    proto = onnx.parser.parse_model(text)
    proto.configuration.add(name="dnnc", num_devices=4)
    node = proto.graph.node[0]
    entry = node.device_configurations.add(configuration_id="dnnc", pipeline_stage=0)
    node.metadata_props.add(key="dnnc.stage", value="0")
    spec = entry.sharding_spec.add(tensor_name="y", device=[-1, -2])
    spec.index_to_device_group_map.add(key=-1, value=[0, 1])
    spec.index_to_device_group_map.add(key=-2, value=[2, 3])
    one = spec.sharded_dim.add(axis=0).simple_sharding.add(dim_value=6, num_shards=2)
    match change:
        case "shards":
            one.num_shards = 3
        case "length":
            one.dim_value = 5
        case "too many":
            one.num_shards = 7
        case "twice":
            entry.sharding_spec.add(tensor_name="y")
        case "axis twice":
            spec.sharded_dim.add(axis=0)
        case "device twice":
            spec.index_to_device_group_map[1].value[:] = [1, 2]
        case "group":
            spec.index_to_device_group_map[1].value[:] = [2, 9]
    faults = annotation_faults(proto, 1)
    assert any(fault in found for found in faults) if fault else faults == ()
