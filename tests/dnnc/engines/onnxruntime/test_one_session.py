"""``session.json``: the plan of a build as one ONNX Runtime session runs it, and the plans for which there is none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from dnnc.compile.driver import CompileOptions, compile_model
from dnnc.engines.onnxruntime.write.one_session import LABEL, SESSION, session_settings
from dnnc.machines.topology import read_topology
from dnnc.onnx.ort import load_onnxruntime
from ir.core.module import Stage
from ir.core.topology import Topology
from tests.dnnc.onnx.models import model

MODEL = """g (bool c, float[4] x) => (float[4] z) {
  h = Sin(x)
  y = If (c) <then_branch = a () => (float[4] t) { t = Exp(h) }, else_branch = b () => (float[4] e) { e = Cos(h) }>
  z = Neg(y)
}"""
GUIDE = Path(__file__).resolve().parents[4] / "dnnc" / "README.md"


def run(path: Path, inputs: dict[str, Any], rules: dict[str, str]) -> Any:
    ort = load_onnxruntime()
    options = ort.SessionOptions()
    options.log_severity_level = 4
    for key, value in rules.items():
        options.add_session_config_entry(key, value)
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]).run(None, inputs)


@pytest.mark.parametrize("weights", ["shared", "per-stage"])
def test_one_session_runs_the_plan_and_gives_the_bits_of_the_model(tmp_path: Path, weights: str) -> None:
    source = "zoo:mlp,layers=3,hidden=16,batch=4,weights=random"
    compile_model(CompileOptions(source, "preset:cpu-2", tmp_path / "build", stages=2, weights=weights))
    session = json.loads((tmp_path / "build" / SESSION).read_text())
    assert session["providers"] == [["CPUExecutionProvider", {}]]
    rules = session["options"]
    assert rules == {"session.layer_assignment_settings": "CPUExecutionProvider(=stage0, =stage1)"}
    x = {"x": np.random.default_rng(1).standard_normal((4, 784)).astype(np.float32)}
    path = tmp_path / "build" / session["model"]
    np.testing.assert_array_equal(run(path, x, rules)[0], run(path, x, {})[0])
    with pytest.raises(Exception, match="Invalid layering config"):  # so onnxruntime reads the option
        run(path, x, {key: value.replace("(", "") for key, value in rules.items()})


def test_onnxruntime_knows_a_provider_for_every_label(tmp_path: Path) -> None:
    onnx.save(model(MODEL), tmp_path / "m.onnx")
    compile_model(CompileOptions(str(tmp_path / "m.onnx"), "preset:cpu-2", tmp_path / "build", cuts=("h",)))
    proto = onnx.load(tmp_path / "build" / "annotated.onnx")
    inner = [node for outer in proto.graph.node for a in outer.attribute if a.HasField("g") for node in a.g.node]
    labels = {
        node.output[0]: prop.value for node in (*proto.graph.node, *inner) for prop in node.metadata_props if prop.key == LABEL
    }
    assert labels == {"h": "stage0", "y": "stage1", "t": "stage1", "e": "stage1", "z": "stage1"}
    (example,) = (block for block in GUIDE.read_text().split("```") if block.startswith("python") and SESSION in block)
    logged = f"import onnxruntime; onnxruntime.set_default_logger_severity(1)\n{example.removeprefix('python')}"
    said = subprocess.run([sys.executable, "-c", logged], capture_output=True, text=True, cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    assert "Matched 2 out of 2 rules" in said.stderr


MACHINES = """version = 1
hosts = [{ name = "h" }, { name = "g" }]
types.cpu = "preset:cpu-1"
types.named = { like = "cpu", provider = "CPUExecutionProvider" }
types.gpu = { like = "preset:t4", provider = "CUDAExecutionProvider" }
types.mute = "preset:t4"
devices = [
  { name = "cpu", count = 2, type = "cpu", host = "h" }, { name = "gpu", count = 2, type = "gpu", host = "h" },
  { name = "far", type = "cpu", host = "g" }, { name = "mute", type = "mute", host = "h" },
  { name = "named", type = "named", host = "h" },
]
links = [{ mesh = ["h", "g", "devices of h", "devices of g"], bandwidth = "1 GB/s" }]
"""


@pytest.fixture(scope="module")
def machines() -> Topology:
    return read_topology(MACHINES, name="t")


def settings(machines: Topology, *devices: tuple[str, ...]) -> dict[str, Any] | None:
    stages = [Stage(f"@s{i}", i, on, (), (), ()) for i, on in enumerate(devices)]
    return session_settings(stages, machines, "m.onnx")


def test_stages_are_listed_by_provider_and_the_cpu_stands_last(machines: Topology) -> None:
    found = settings(machines, ("cpu0",), ("gpu1",), ("cpu1", "named"), ("gpu1",))
    assert found is not None
    assert found["providers"] == [["CUDAExecutionProvider", {"device_id": "1"}], ["CPUExecutionProvider", {}]]
    rules = found["options"]["session.layer_assignment_settings"]
    assert rules == "CPUExecutionProvider(=stage0, =stage2); CUDAExecutionProvider(=stage1, =stage3)"


@pytest.mark.parametrize(
    "devices",
    [(("gpu0",), ("gpu1",)), (("gpu0", "gpu1"),), (("cpu0", "gpu0"),), (("cpu0",), ("far",)), (("cpu0",), ("mute",))],
    ids=["two GPUs", "a stage on two GPUs", "a stage on a CPU and a GPU", "two hosts", "no provider"],
)
def test_plans_that_one_session_cannot_run_have_none(machines: Topology, devices: tuple[tuple[str, ...], ...]) -> None:
    assert settings(machines, *devices) is None
