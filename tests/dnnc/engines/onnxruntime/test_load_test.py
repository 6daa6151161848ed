"""A build counts as done when onnxruntime opens its programs: what it refuses is told at compile, and nothing is written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from dnnc.check.check import CheckOptions, check_build
from dnnc.compile.driver import CompileOptions, compile_model
from dnnc.engines.onnxruntime import run_build
from ir.core.diagnostics import ExitCode, InvalidInput
from tests.dnnc.onnx.models import model

BRANCHES = """g (bool c, float[n] x) => (float[m] z) {
  h = Relu(x)
  y = If (c) <then_branch = a () => (float[k] t) { t = Identity(h) },
              else_branch = b () => (float[k] e) {
                w = Constant <value_floats = [1.0, 2.0, 3.0, 4.0]> () e = Add(h, w) }>
  z = Neg(y)
}"""
"""Two branches, each for inputs of its own sizes, as a voice detector has one for each sample rate."""


def _save(text: str, folder: Path) -> Path:
    path = folder / "m.onnx"
    onnx.save(model(text), path)
    return path


@pytest.mark.parametrize(("length", "flag"), [(3, True), pytest.param(4, False, marks=pytest.mark.slow)])
def test_a_branch_never_taken_may_contradict_the_dims(tmp_path: Path, length: int, flag: bool) -> None:
    path = _save(BRANCHES, tmp_path)
    out = tmp_path / "out"
    compile_model(CompileOptions(str(path), "preset:cpu-2", out, dims={"n": length}, cuts=("h",)))
    x = np.arange(length, dtype=np.float32)
    inputs = {"c": np.array(flag), "x": x}
    result = run_build(out, inputs)
    np.testing.assert_array_equal(result.outputs[0]["z"], -x if flag else -(x + np.arange(1, 5, dtype=np.float32)))
    np.savez(tmp_path / "in.npz", **inputs)
    assert check_build(out, CheckOptions(tmp_path / "in.npz")).passed


def test_what_onnxruntime_refuses_is_told_with_its_node_and_nothing_is_written(tmp_path: Path) -> None:
    proto = model("g (float[4] x) => (float[4] y) { h = Relu(x) y = my.Odd(h) }")
    proto.opset_import.add(domain="my", version=1)
    proto.graph.node[1].name = "the_odd_one"
    path, out = tmp_path / "m.onnx", tmp_path / "out"
    onnx.save(proto, path)
    with pytest.raises(InvalidInput) as raised:
        compile_model(CompileOptions(str(path), "preset:cpu-1", out))
    assert raised.value.exit_code is ExitCode.INVALID_INPUT
    text = str(raised.value)
    assert "stage 0" in text
    assert "my.Odd" in text
    assert "the_odd_one" in text
    assert str(tmp_path / ".") not in text.replace(str(path), "")
    assert not out.exists()
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.onnx"]
    result = compile_model(CompileOptions(str(path), "preset:cpu-1", out, load_test=False))
    assert "load-test" not in result.seconds
    assert out.is_dir()


@pytest.mark.parametrize("weights", ["shared", "per-stage", "none"])
def test_programs_are_loaded_where_they_have_their_weights(tmp_path: Path, weights: str) -> None:
    result = compile_model(CompileOptions("zoo:mlp,weights=random", "preset:cpu-2", tmp_path / "out", weights=weights))
    assert ("load-test" in result.seconds) == (weights != "none")
    assert result.seconds["write"] >= 0
