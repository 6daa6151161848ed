"""Builds: they run, they are equal bytes for equal input, weights lie once, and what is wrong is refused before anything is
written."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import ir
from dnnc.build.build import ANNOTATED, Build
from dnnc.build.segments import cut_stages, with_segments
from dnnc.build.timeline import predicted
from dnnc.build.trace import to_perfetto
from dnnc.check.reference import why_not_the_original
from dnnc.engines.onnxruntime.write import check_target, write_build, write_plan
from dnnc.engines.onnxruntime.write.annotate import annotation_faults
from dnnc.onnx import DIALECTS
from dnnc.onnx.weights import WeightFiles
from ir.core.attributes import attributes
from ir.core.diagnostics import InvalidInput, UsageError
from ir.core.module import Declared, External, Func, Module, Resource, Stage
from ir.core.ops import Op, Region, Value
from ir.core.types import DType, TensorType
from ir.system.digests import OpenFile
from passes.framework.base import PassContext
from passes.graph.folding import expand
from passes.programs.localize import LocalizePass
from tests.dnnc.engines.onnxruntime.building import lowered, model, run, session_of
from tests.dnnc.report.test_timeline import overlaps

FEEDS = {"x": np.linspace(-1, 1, 128, dtype=np.float32).reshape(4, 32)}


def expected() -> dict[str, np.ndarray]:
    from dnnc.onnx.weights import read_resource

    w = {r.name: read_resource(r, Path()) for r in model().of_type(Resource)}
    b = np.maximum(FEEDS["x"] @ w["@w0"], 0)
    return {"y": (b @ w["@w1"] + w["@bias"]) @ w["@w0"] + b, "b": b, "x": FEEDS["x"]}


def tree(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("weights", ["shared", "per-stage"])
@pytest.mark.parametrize("stages", [(0, 0, 0, 0, 0, 0), (0, 0, 0, 1, 1, 1), (0, 0, 1, 1, 2, 2), (0, 1, 2, 3, 4, 5)])
def test_stages_compute_the_model(tmp_path: Path, weights: str, stages: tuple[int, ...]) -> None:
    write_build(lowered(model(), stages), tmp_path, "zoo:small", tmp_path / "out", weights=weights)
    build = Build.open(tmp_path / "out")
    known = run(build, FEEDS)
    for name, wanted in expected().items():
        np.testing.assert_allclose(known[name], wanted, rtol=1e-4, atol=1e-5)
    session = session_of(str(build.folder / ANNOTATED))
    outputs = [port.name for port in build.outputs]
    for name, found in zip(outputs, session.run(outputs, {i.name: FEEDS["x"] for i in session.get_inputs()}), strict=True):
        np.testing.assert_allclose(found, expected()[name], rtol=1e-4, atol=1e-5)


def test_shared_weights_lie_once_and_unused_ones_nowhere(tmp_path: Path) -> None:
    write_build(lowered(model(), (0, 0, 1, 1, 2, 2)), tmp_path, "zoo:small", tmp_path / "out")
    assert (tmp_path / "out/stages/weights.data").stat().st_size == 2 * 4096


def test_per_stage_files_hold_what_their_stage_reads(tmp_path: Path) -> None:
    manifest = write_build(lowered(model(), (0, 0, 1, 1, 2, 2)), tmp_path, "zoo:small", tmp_path / "out", weights="per-stage")
    sizes = {name: entry["bytes"] for name, entry in manifest["files"].items() if name.endswith(".data")}
    assert sizes == {"stages/stage0.data": 4096, "stages/stage1.data": 4096, "stages/stage2.data": 4096}


def test_without_weights_there_is_no_data_file(tmp_path: Path) -> None:
    write_build(lowered(model(), (0, 0, 1, 1, 2, 2)), tmp_path, "zoo:small", tmp_path / "out", weights="none")
    assert [p.name for p in (tmp_path / "out").rglob("*.data")] == []
    assert Build.open(tmp_path / "out").weights == "none"


@pytest.mark.parametrize("weights", ["shared", "per-stage"])
def test_equal_input_gives_equal_bytes(tmp_path: Path, weights: str) -> None:
    for name in ("one", "two"):
        write_build(lowered(model(), (0, 0, 1, 1, 2, 2)), tmp_path, "zoo:small", tmp_path / name, weights=weights)
    assert tree(tmp_path / "one") == tree(tmp_path / "two")


def test_no_path_of_the_machine_is_written(tmp_path: Path) -> None:
    source = tmp_path / "model.onnx"
    source.write_bytes(b"whatever")
    write_build(lowered(model(), (0, 0, 0, 1, 1, 1)), tmp_path, str(source), tmp_path / "out")
    assert not [name for name, data in tree(tmp_path / "out").items() if os.fsencode(tmp_path) in data]


def test_the_source_is_found_again_until_it_changes(tmp_path: Path) -> None:
    source = tmp_path / "model.onnx"
    source.write_bytes(b"whatever")
    files = WeightFiles(tmp_path, {source.name: OpenFile(source.open("rb"))})
    write_build(lowered(model(), (0, 0, 0, 1, 1, 1)), files, str(source), tmp_path / "out")
    build = Build.open(tmp_path / "out")
    assert build.source.spec == "../model.onnx"
    assert why_not_the_original(build).endswith("does not open")
    source.write_bytes(b"whatever else")
    assert why_not_the_original(build).endswith("has changed since")


def test_plan_ir_is_the_whole_module_and_parses(tmp_path: Path) -> None:
    module = lowered(model(), (0, 0, 1, 1, 2, 2))
    write_build(module, tmp_path, "zoo:small", tmp_path / "out")
    written = expand(ir.load_module((tmp_path / "out/plan.ir").read_text(), dialects=DIALECTS))
    assert written == with_segments(module, cut_stages(module))
    assert Build.open(tmp_path / "out").program() == written
    assert LocalizePass().run(written, PassContext(dialects=DIALECTS)) == module


def test_the_trace_has_a_track_per_device(tmp_path: Path) -> None:
    write_build(lowered(model(), (0, 0, 1, 1, 2, 2)), tmp_path, "zoo:small", tmp_path / "out")
    events = json.loads((tmp_path / "out/trace.json").read_text())["traceEvents"]
    assert [e["args"]["name"] for e in events if e["name"] == "thread_name"] == ["d0", "d1", "d2"]
    assert sum(e["ph"] == "X" and e["cat"] == "F" for e in events) == 3 * 8


@pytest.mark.parametrize(("comm", "lanes"), [("overlap", ["", " transfers"]), ("duplex", ["", " in", " out"])])
def test_transfers_beside_compute_have_tracks_of_their_own(comm: str, lanes: list[str]) -> None:
    """A viewer drops bars that overlap within one track."""
    trace = to_perfetto({"predicted": predicted(lowered(model(), (0, 0, 1, 1, 2, 2), comm=comm), 6)})
    assert overlaps(trace) == []
    named = {event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"}
    assert {name for name in named if name.startswith("d1")} == {f"d1{lane}" for lane in lanes}


def test_every_node_is_annotated_and_the_annotations_verify(tmp_path: Path) -> None:
    write_build(lowered(model(), (0, 0, 1, 1, 2, 2)), tmp_path, "zoo:small", tmp_path / "out")
    proto = onnx.load(str(tmp_path / "out/annotated.onnx"), load_external_data=False)
    assert annotation_faults(proto, 3) == ()
    assert proto.ir_version >= 11
    (configuration,) = proto.configuration
    assert (configuration.name, list(configuration.device)) == ("dnnc", ["d0", "d1", "d2"])
    said = {
        node.output[0]: (node.device_configurations[0].pipeline_stage, {p.key: p.value for p in node.metadata_props})
        for node in proto.graph.node
    }
    assert said["a"][0] == 0
    assert said["y"][0] == 2
    assert (said["c"][1]["dnnc.stage"], said["c"][1]["dnnc.device"]) == ("1", "d1")
    onnx.checker.check_model(str(tmp_path / "out/annotated.onnx"))


def broken(change: str) -> onnx.ModelProto:
    """A correctly annotated model of one node, with one thing changed."""
    text = '<ir_version: 11, opset_import: ["": 20]> g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }'
    proto = onnx.parser.parse_model(text)
    configuration = proto.configuration.add(name="dnnc", num_devices=2, device=["a", "b"])
    node = proto.graph.node[0]
    entry = node.device_configurations.add(configuration_id="dnnc", pipeline_stage=1)
    node.metadata_props.add(key="dnnc.stage", value="1")
    spec = entry.sharding_spec.add(tensor_name="y", device=[0, 1])
    spec.sharded_dim.add(axis=-1)
    if change == "devices":
        configuration.num_devices = 3
    elif change == "twice":
        proto.configuration.add(name="dnnc", num_devices=1)
    elif change == "version":
        proto.ir_version = 10
    elif change == "id":
        entry.configuration_id = "other"
    elif change == "stage":
        entry.pipeline_stage = 2
    elif change == "metadata":
        node.metadata_props[0].value = "0"
    elif change == "tensor":
        spec.tensor_name = "z"
    elif change == "device":
        spec.device.append(2)
    elif change == "axis":
        spec.sharded_dim[0].axis = 2
    return proto


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ("devices", "'dnnc' has 3 devices and 2 device names"),
        ("twice", "configuration name 'dnnc' is empty or used twice"),
        ("version", "IR version 10 has no annotations, 11 is the first that has"),
        ("id", "y: unknown configuration 'other'"),
        ("stage", "y: stage 2 of 2"),
        ("metadata", "y: stage 1 annotated, '0' in its metadata"),
        ("tensor", "y: sharding of 'z', which is neither an input nor an output of the node"),
        ("device", "y: device 2 of 2"),
        ("axis", "y: axis 2 of 'y', which has rank 2"),
    ],
)
def test_wrong_annotations_are_found(change: str, fault: str) -> None:
    assert fault in annotation_faults(broken(change), 2)
    assert annotation_faults(broken(""), 2) == ()


def test_bodies_carry_their_parents_place_and_run(tmp_path: Path) -> None:
    vector = TensorType(DType.F32, (3,))
    then = Region((), (Op("onnx.Add", ("%a", "%a"), (Value("%t", vector),)),), ("%t",))
    other = Region((), (Op("onnx.Neg", ("%a",), (Value("%n", vector),)),), ("%n",))
    ops = (
        Op("onnx.Relu", ("%x",), (Value("%a", vector),)),
        Op("onnx.If", ("%cond",), (Value("%y", vector),), regions=(("else_branch", other), ("then_branch", then))),
    )
    func = Func("@main", (Value("%x", vector), Value("%cond", TensorType(DType.BOOL, ()))), (Value("%y", vector),), ops)
    module = Module("@branch", (func,), attributes({"opset.onnx": 20}))
    write_build(lowered(module, (0, 1)), tmp_path, "zoo:branch", tmp_path / "out")
    build = Build.open(tmp_path / "out")
    assert [c.tensor for c in build.stages[1].receives] == ["a"], "a value that only the bodies capture is received too"
    x = np.array([1, -2, 3], np.float32)
    assert run(build, {"x": x, "cond": np.array(True)})["y"].tolist() == [2, 0, 6]
    proto = onnx.load(str(build.folder / ANNOTATED))
    inner = [node for attribute in proto.graph.node[1].attribute for node in attribute.g.node]
    assert {p.value for node in inner for p in node.metadata_props if p.key == "dnnc.device"} == {"d1"}


def external_model(folder: Path, size: int) -> Module:
    data = np.random.default_rng(0).integers(0, 255, 100 + 4096, dtype=np.uint8).tobytes()
    (folder / "w.bin").write_bytes(data[:size])
    module = model()
    old = module.resources["@w0"]
    return module.replace(old, replace(old, data=External("w.bin", 100, 4096)))


def test_external_weights_are_copied_from_their_range(tmp_path: Path) -> None:
    module = lowered(external_model(tmp_path, 4196), (0, 0, 0, 1, 1, 1))
    write_build(module, tmp_path, "zoo:small", tmp_path / "out")
    assert (tmp_path / "out/stages/weights.data").read_bytes()[:4096] == (tmp_path / "w.bin").read_bytes()[100:]


def test_a_short_weight_file_leaves_nothing_behind(tmp_path: Path) -> None:
    module = lowered(external_model(tmp_path, 4000), (0, 0, 0, 1, 1, 1))
    with pytest.raises(InvalidInput, match=r"w\.bin' has 4000 bytes"):
        write_build(module, tmp_path, "zoo:small", tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["w.bin"]


def test_declared_weights_are_refused_but_a_plan_can_be_written(tmp_path: Path) -> None:
    module = model()
    old = module.resources["@w1"]
    module = lowered(module.replace(old, replace(old, data=Declared())), (0, 0, 0, 1, 1, 1))
    with pytest.raises(InvalidInput, match="declared without data"):
        write_build(module, tmp_path, "zoo:small", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    write_plan(module, tmp_path / "out")
    assert sorted(tree(tmp_path / "out")) == ["manifest.json", "plan.ir", "plan.json", "report.html", "trace.json"]
    with pytest.raises(InvalidInput, match="plan only"):
        Build.open(tmp_path / "out")


def test_a_module_that_is_not_lowered_or_not_placed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no stage programs"):
        write_build(model(), tmp_path, "", tmp_path / "out")
    module = lowered(model(), (0, 0, 0, 1, 1, 1))
    stage = module.first(Stage)
    assert stage is not None
    with pytest.raises(InvalidInput, match="stage 0 is on no device"):
        write_build(module.replace(stage, replace(stage, devices=())), tmp_path, "", tmp_path / "out")
    with pytest.raises(UsageError, match="'all' found, one of shared, per-stage, none expected"):
        write_build(module, tmp_path, "", tmp_path / "out", weights="all")


def test_a_build_is_replaced_and_a_foreign_directory_is_not(tmp_path: Path) -> None:
    module = lowered(model(), (0, 0, 0, 1, 1, 1))
    out = tmp_path / "out"
    write_build(module, tmp_path, "zoo:small", out, weights="per-stage")
    write_build(module, tmp_path, "zoo:small", out, weights="shared")
    assert sorted(p.name for p in (out / "stages").iterdir()) == ["stage0.onnx", "stage1.onnx", "weights.data"]
    foreign = tmp_path / "mine"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("years of work")
    for call in (lambda: write_build(module, tmp_path, "", foreign), lambda: check_target(foreign)):
        with pytest.raises(UsageError, match="was not written by dnnc"):
            call()
    assert (foreign / "thesis.txt").read_text() == "years of work"
