"""Plans that have replicas of one stage beside a mesh in another: found without an option, run by a process per device,
checked, proven and replayed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from dnnc.check.check import CheckOptions, check_build
from dnnc.check.proof.build import prove
from dnnc.check.witness.verify import verify_build
from dnnc.compile.driver import CompileOptions, CompileResult, compile_model
from dnnc.engines.onnxruntime import run_build
from ir.core.diagnostics import Infeasible, InvalidInput
from ir.core.module import Mesh
from ir.core.outcomes import TIGHT

CONVOLUTIONS = 3
"""Convolutions of few weights, which two stages cannot share evenly; then a product whose weight no device has room for."""
MACHINES = """
version = 1
[types.core]
kind = "cpu"
rates = { f32 = "50 GFLOP/s" }
memory_bandwidth = "10 GB/s"
memory = "300 KiB"
overhead = "20 us"
[[devices]]
name = "d{0..3}"
type = "core"
[[links]]
mesh = "d*"
bandwidth = "1 GB/s"
latency = "20 us"
"""


def model(folder: Path) -> str:
    generator = np.random.default_rng(0)
    ops = "".join(f"c{i} = Conv <pads = [1, 1, 1, 1]> (r{i}, k{i})  r{i + 1} = Relu(c{i})  " for i in range(CONVOLUTIONS))
    names = ", ".join(f"float[16,16,3,3] k{i}" for i in range(CONVOLUTIONS))
    text = f"""<ir_version: 10, opset_import: ["" : 17]>
    g (float[1,16,32,32] r0) => (float[1,10] y) <{names}, float[1024,96] w0, float[96,10] w1> {{
      {ops}
      m = MaxPool <kernel_shape = [4, 4], strides = [4, 4]> (r{CONVOLUTIONS})
      f = Flatten(m)  p = MatMul(f, w0)  q = Relu(p)  y = MatMul(q, w1) }}"""
    graph = onnx.parser.parse_model(text)
    del graph.graph.initializer[:]
    shapes = {**{f"k{i}": (16, 16, 3, 3) for i in range(CONVOLUTIONS)}, "w0": (1024, 96), "w1": (96, 10)}
    weights = ((name, 0.1 * generator.standard_normal(shape)) for name, shape in shapes.items())
    graph.graph.initializer.extend(numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights)
    path = folder / "model.onnx"
    onnx.save_model(graph, str(path))
    return str(path)


def compiled(folder: Path, out: str, machines: str = MACHINES, **options: object) -> CompileResult:
    (folder / "machines.toml").write_text(machines)
    return compile_model(CompileOptions(model(folder), str(folder / "machines.toml"), folder / out, **options))  # type: ignore[arg-type]


def test_replicas_beside_a_mesh_run_and_are_checked_proven_and_replayed(tmp_path: Path) -> None:
    found = compiled(tmp_path, "b").plan
    convolutions, products = found.stages
    assert (convolutions.replicas, convolutions.devices, convolutions.mesh) == (2, ("d0", "d1"), "")
    assert (products.replicas, products.devices) == (1, ("d2", "d3"))
    assert products.mesh
    each = (convolutions.working + convolutions.send) / 2, products.working + products.receive
    assert found.value == pytest.approx(max(each))
    for other in ({"mesh": "auto"}, {"mesh": "auto", "stages": 0}, {"replicas": 1}):
        assert compiled(tmp_path, "other", plan_only=True, **other).plan.value > 1.03 * found.value
    with pytest.raises(Infeasible):
        compiled(tmp_path, "other", plan_only=True, mesh="none")

    report = check_build(tmp_path / "b", CheckOptions(samples=5, seed=1))
    assert report.passed
    assert prove(tmp_path / "b").proven
    verified = verify_build(tmp_path / "b")
    assert not verified.violations
    assert verified.value == pytest.approx(found.value), "counted again, from the program"
    run = run_build(tmp_path / "b", {"r0": np.ones((5, 1, 16, 32, 32), np.float32)})
    assert {(event.stage, event.device, event.microbatch % 2) for event in run.events if event.action == "F"} >= {
        (0, "d0", 0),
        (0, "d1", 1),
        (1, "d2", 0),
        (1, "d3", 1),
    }

    for source in ("plan.json", "plan.ir"):
        again = compiled(tmp_path, "again", plan=tmp_path / "b" / source).plan
        assert (again.value, again.bound, again.status, again.stages) == (found.value, found.bound, found.status, found.stages)


def test_a_stated_plan_may_put_more_replicas_beside_a_mesh(tmp_path: Path) -> None:
    """What a person edits into plan.json: a stage with a list of devices and no mesh has replicas."""
    machines = MACHINES.replace("d{0..3}", "d{0..4}")
    compiled(tmp_path, "b", plan_only=True)
    path = tmp_path / "plan.json"
    data = json.loads((tmp_path / "b" / "plan.json").read_text())
    assert data["stages"][0]["device"] == ["d0", "d1"]
    data["stages"][0]["device"], data["stages"][1]["device"] = ["d4", "d0", "d1"], ["d2", "d3"]
    path.write_text(json.dumps(data))
    plan = compiled(tmp_path, "b", machines, plan=path).plan
    assert plan.stages[0].replicas == 3
    assert plan.bound <= plan.value
    assert check_build(tmp_path / "b", CheckOptions(samples=4)).passed


def test_replicas_of_a_stated_plan_are_of_one_type(tmp_path: Path) -> None:
    other = '[types.other]\nlike = "core"\n[[devices]]\nname = "e"\ntype = "other"\n'
    machines = MACHINES.replace("[[links]]", f"{other}[[links]]").replace('mesh = "d*"', 'mesh = ["d*", "e"]')
    compiled(tmp_path, "b", plan_only=True)
    path = tmp_path / "plan.json"
    data = json.loads((tmp_path / "b" / "plan.json").read_text())
    data["stages"][0]["device"] = ["d0", "e"]
    path.write_text(json.dumps(data))
    with pytest.raises(InvalidInput, match="replicas are of different types"):
        compiled(tmp_path, "b", machines, plan=path, plan_only=True)


UNEQUAL = """
version = 1
[types.fast]
kind = "cpu"
rates = { f32 = "4 GFLOP/s" }
memory_bandwidth = "10 GB/s"
memory = "1300 KiB"
[types.slow]
like = "fast"
rates = { f32 = "2 GFLOP/s" }
memory = "1100 KiB"
[[devices]]
name = "a"
type = "fast"
[[devices]]
name = "b"
type = "slow"
[[devices]]
name = "c"
type = "fast"
[[devices]]
name = "d"
type = "slow"
[[links]]
mesh = ["a", "b", "c", "d"]
bandwidth = "1 GB/s"
latency = "2 us"
"""


def shares(result: CompileResult) -> list[object]:
    return [mesh.shares for mesh in result.module.of_type(Mesh)]


@pytest.mark.slow
def test_stages_on_unequal_devices_have_uneven_parts(tmp_path: Path) -> None:
    """A device that is twice as fast gets twice as much, in each of two stages; equal parts, with like devices together, take
    1.1 times as long."""
    (tmp_path / "unequal.toml").write_text(UNEQUAL)
    spec = "zoo:mlp,layers=4,inputs=384,hidden=384,outputs=384,batch=48"

    def planned(**options: object) -> CompileResult:
        return compile_model(CompileOptions(spec, str(tmp_path / "unequal.toml"), tmp_path / "b", **options))  # type: ignore[arg-type]

    found = planned(mesh="2", stages=2)
    assert [stage.devices for stage in found.plan.stages] == [("a", "b"), ("c", "d")]
    assert shares(found) == [((2, 1),), ((2, 1),)]
    assert check_build(tmp_path / "b", CheckOptions(samples=3)).passed
    assert prove(tmp_path / "b").proven
    again = planned(plan=tmp_path / "b" / "plan.json", plan_only=True)
    assert (again.plan.value, again.plan.stages) == (found.plan.value, found.plan.stages)
    assert planned(mesh="2", stages=2, shares="equal", plan_only=True).plan.value > 1.1 * found.plan.value


@pytest.mark.slow
def test_a_training_step_has_uneven_parts_in_stages(tmp_path: Path) -> None:
    """Where no host has two like devices, which would have equal parts."""
    hosts = UNEQUAL.replace("[[devices]]", '[[hosts]]\nname = "h"\n[[hosts]]\nname = "i"\n[[devices]]', 1)
    for name, host in zip("abcd", "hhii", strict=True):
        hosts = hosts.replace(f'name = "{name}"\n', f'name = "{name}"\nhost = "{host}"\n')
    (tmp_path / "unequal.toml").write_text(hosts)
    spec = "zoo:mlp,layers=4,inputs=96,hidden=96,outputs=96,batch=48"
    options = {"objective": "training", "microbatches": 4, "mesh": "2", "stages": 2}
    found = compile_model(CompileOptions(spec, str(tmp_path / "unequal.toml"), tmp_path / "b", **options))  # type: ignore[arg-type]
    assert shares(found) == [((2, 1),), ((2, 1),)]
    assert prove(tmp_path / "b").proven


def test_a_mesh_may_have_three_of_five_devices(tmp_path: Path) -> None:
    """Sizes that do not divide the number of devices had been left out."""
    machines = MACHINES.replace("d{0..3}", "d{0..4}").replace('memory = "300 KiB"', 'memory = "200 KiB"')
    plan = compiled(tmp_path, "b", machines).plan
    assert [(stage.replicas, len(stage.devices), bool(stage.mesh)) for stage in plan.stages] == [(2, 2, False), (1, 3, True)]
    assert check_build(tmp_path / "b", CheckOptions(samples=3)).passed


NARROW = """version = 1
[types.board]
kind = "cpu"
rates = {f32 = "4 GFLOP/s"}
memory_bandwidth = "1 GB/s"
memory = "117 KiB"
overhead = "1 us"
handover = "1 us"
[[devices]]
name = "d"
count = 4
type = "board"
[[links]]
mesh = "d*"
bandwidth = "1 GB/s"
latency = "10 us"
"""


def test_replicas_that_do_not_fit_hide_no_plan_without_them(tmp_path: Path) -> None:
    """Plans with replicas exceed the memory once buffers and workspace are counted; plans on meshes alone fit as they are."""
    text = """<ir_version: 10, opset_import: ["" : 17]> g (float[32,48] x) => (float[32,48] s2)
      <float[48,48] m0w, float[48,256] bw, float[256,48] cw, float[48,48] m1w, float[48,48] m2w> {
      m0 = MatMul(x, m0w)  s0 = Softmax(m0)  bv = MatMul(s0, bw)  cv = MatMul(bv, cw)  m1 = MatMul(cv, m1w)  s1 = Softmax(m1)
      m2 = MatMul(s1, m2w)  s2 = Softmax(m2) }"""
    graph = onnx.parser.parse_model(text)
    del graph.graph.initializer[:]
    shapes = {"m0w": (48, 48), "bw": (48, 256), "cw": (256, 48), "m1w": (48, 48), "m2w": (48, 48)}
    weights = ((name, np.ones(shape, np.float32)) for name, shape in shapes.items())
    graph.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in weights)
    onnx.save_model(graph, str(tmp_path / "m.onnx"))
    (tmp_path / "m.toml").write_text(NARROW)

    def value(out: str, **options: Any) -> float:
        asked = CompileOptions(
            str(tmp_path / "m.onnx"), str(tmp_path / "m.toml"), tmp_path / out, plan_only=True, report=False, **options
        )
        return compile_model(asked).plan.value

    assert value("free") <= value("without", replicas=1) * (1 + TIGHT)


@pytest.mark.slow
def test_a_weight_of_two_stages_leaves_a_plan_that_is_replayed(tmp_path: Path) -> None:
    """The search on meshes counts its update in both stages, the trainer makes it in one: the plan is below the bound of what
    is counted in both."""
    gpt2 = "zoo:gpt2,layers=2,hidden=64,heads=2,vocab=1000,positions=32,seq=16,batch=4,weights=declared"
    step: dict[str, Any] = {"objective": "training", "microbatches": 4, "mesh": "auto", "stages": 3}
    first = compile_model(CompileOptions(gpt2, "preset:h100x3", tmp_path / "first", plan_only=True, **step)).plan
    replayed = CompileOptions(gpt2, "preset:h100x3", tmp_path / "again", plan_only=True, plan=tmp_path / "first" / "plan.json")
    again = compile_model(replayed).plan
    assert again.value == pytest.approx(first.value)
    assert again.bound <= again.value
