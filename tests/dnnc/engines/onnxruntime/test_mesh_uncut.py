"""On meshes, values of element types that no runtime cuts (strings, 4-bit integers, 8-bit floats) are whole on each member:
what is compiled runs, and what leaves the stages is that of onnxruntime on the unsplit model."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from dnnc.check.check import check_build
from dnnc.cli import main
from dnnc.compile.driver import CompileOptions, compile_model
from dnnc.engines.onnxruntime import run_build
from ir.core.diagnostics import InvalidInput

TYPES = {
    "string": TensorProto.STRING,
    "int4": TensorProto.INT4,
    "uint4": TensorProto.UINT4,
    "float8_e4m3fn": TensorProto.FLOAT8E4M3FN,
    "float8_e5m2": TensorProto.FLOAT8E5M2,
}


def model(folder: Path, kind: str) -> Path:
    """Products around a value of the type, which leaves the model and, where it is no string, is computed with."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Cast", ["h"], ["q"], to=TYPES[kind]),
        helper.make_node("Identity", ["h"], ["b"]) if kind == "string" else helper.make_node("Cast", ["q"], ["b"], to=1),
        helper.make_node("MatMul", ["b", "w"], ["y"]),
    ]
    weight = np.random.default_rng(0).integers(-1, 2, (64, 64)).astype(np.float32)
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, [64, 64])],
        [helper.make_tensor_value_info("y", 1, [64, 64]), helper.make_tensor_value_info("q", TYPES[kind], [64, 64])],
        initializer=[onnx.numpy_helper.from_array(weight, "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), folder / "m.onnx")
    return folder / "m.onnx"


@pytest.mark.parametrize(
    ("kind", "strategy"),
    [
        ("string", ()),
        pytest.param("uint4", (), marks=pytest.mark.slow),
        pytest.param("float8_e4m3fn", (), marks=pytest.mark.slow),
        ("int4", ("--strategy", "replicate")),
    ],
)
def test_what_no_runtime_cuts_is_whole(tmp_path: Path, kind: str, strategy: tuple[str, ...]) -> None:
    path, out = model(tmp_path, kind), tmp_path / "out"
    assert main(["compile", str(path), "-t", "preset:cpu-2", "--mesh", "2", *strategy, "-o", str(out), "-q"]) == 0
    x = np.random.default_rng(1).integers(-1, 2, (64, 64)).astype(np.float32)
    found = run_build(out, {"x": x}).outputs[0]
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    expected = session.run_with_ort_values(None, {"x": onnxruntime.OrtValue.ortvalue_from_numpy(x)})[0].numpy()
    np.testing.assert_allclose(found["y"], expected, rtol=1e-5)
    assert found["q"].dtype == (object if kind == "string" else getattr(ml_dtypes, kind))
    assert check_build(out).passed


@pytest.mark.parametrize("objective", ["throughput", pytest.param("latency", marks=pytest.mark.slow)])
def test_small_constants_are_cut_beforehand(tmp_path: Path, objective: str) -> None:
    """Zero points of 64 columns: other constants of that size stand on every device, where each member cuts its own part."""
    random, out = np.random.default_rng(0), tmp_path / "out"
    graph = helper.make_graph(
        [
            helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"], axis=1),
            helper.make_node("MatMul", ["x", "w"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", 1, [4, 512])],
        [helper.make_tensor_value_info("y", 1, [4, 64])],
        initializer=[
            helper.make_tensor("q", TYPES["uint4"], [512, 64], random.integers(0, 16, 512 * 64)),
            onnx.numpy_helper.from_array(np.full(64, 0.1, np.float32), "s"),
            helper.make_tensor("z", TYPES["uint4"], [64], random.integers(0, 16, 64)),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, tmp_path / "m.onnx")
    asked = CompileOptions(str(tmp_path / "m.onnx"), "preset:cpu-2", out, mesh="2", objective=objective)
    assert len(compile_model(asked).plan.stages[0].devices) == 2
    assert check_build(out).passed


def test_a_stated_plan_that_cuts_it_is_refused(tmp_path: Path) -> None:
    path, out = model(tmp_path, "int4"), tmp_path / "out"
    compile_model(CompileOptions(str(path), "preset:cpu-2", out, mesh="2"))
    plan = json.loads((out / "plan.json").read_text())
    (name,) = [op for op in plan["stages"][0]["ops"] if "q" in op]
    plan["stages"][0]["ops"][name] = {"x": "d0"}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(InvalidInput, match="together it has replicate"):
        compile_model(CompileOptions(str(path), "preset:cpu-2", tmp_path / "again", plan=tmp_path / "plan.json"))
