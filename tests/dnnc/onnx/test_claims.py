"""What a model states wrongly of its own values: a shape is ignored with one warning, other elements are refused, as by
onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray

from dnnc.cli import main
from dnnc.onnx import import_model
from ir.core.diagnostics import DiagnosticSink, InvalidInput
from tests.dnnc.onnx.models import load, model, save

BRANCHES = "y = If (c) <then_branch = t () => ({p} p) {{ p = Relu(x) }}, else_branch = e () => (float[4] q) {{ q = Neg(x) }}>"
REPEATED = "y = Loop (n, c, x) <body = b (int64 i, bool k, {a} a) => (bool k2, {s} s) {{ k2 = Identity(k)\n s = Relu(a) }}>"

SHAPES = {
    "output, size": ("float[4] x", "float[5] y", "y = Relu(x)", "tensor<5xf32> for 'y', which is tensor<4xf32>"),
    "output, rank": ("float[4] x", "float[4,1] y", "y = Relu(x)", "tensor<4x1xf32> for 'y', which is tensor<4xf32>"),
    "output, name": ("float[N] x", "float[N] y", "y = Concat <axis = 0> (x, x)", "which is tensor<8xf32>"),
    "branch, size": ("float[4] x, bool c", "float[4] y", BRANCHES.format(p="float[5]"), "tensor<5xf32> for 'p'"),
    "branch, rank": ("float[4] x, bool c", "float[4] y", BRANCHES.format(p="float[5,1]"), "tensor<5x1xf32> for 'p'"),
    "behind branches": (
        "float[4] x, bool c",
        "float[4] y",
        "y = If (c) <then_branch = t () => (p) { p = Abs(x) }, else_branch = e () => (q) { q = ReduceMax <keepdims = 0> (x) }>",
        "tensor<4xf32> for 'y', which is tensor<f32>",
    ),
    "behind a loop": (
        "float[4] x, bool c, int64 n",
        "float[4] y",
        "y = Loop (n, c, x) <body = b (int64 i, bool k, a) => (bool k2, s) { k2 = Identity(k)\n s = ReduceSum(a) }>",
        "tensor<4xf32> for 'y', which is tensor<1xf32>",
    ),
    "body, size": (
        "float[4] x, bool c, int64 n",
        "float[4] y",
        REPEATED.format(a="float[5]", s="float[5]"),
        "tensor<5xf32> for 's', which is tensor<4xf32>",
    ),
}
ELEMENTS = {
    "output": ("float[4] x", "int64[4] y", "y = Relu(x)", "tensor<4xi64> for 'y', which is tensor<4xf32>"),
    "branch": ("float[4] x, bool c", "float[4] y", BRANCHES.format(p="int64[4]"), "tensor<4xi64> for 'p'"),
    "body": (
        "float[4] x, bool c, int64 n",
        "float[4] y",
        REPEATED.format(a="int64[4]", s="float[4]"),
        "tensor<*xi64> for 'a'",
    ),
}
GIVEN: dict[str, NDArray[Any]] = {"x": np.arange(-2, 2, dtype=np.float32), "c": np.array(True), "n": np.array(2)}


def _text(inputs: str, outputs: str, body: str) -> onnx.ModelProto:
    return model(f"g ({inputs}) => ({outputs}) {{ {body} }}")


@pytest.mark.parametrize("case", SHAPES)
def test_a_wrong_shape_is_ignored_with_one_warning(tmp_path: Path, case: str) -> None:
    inputs, outputs, body, said = SHAPES[case]
    proto, sink = _text(inputs, outputs, body), DiagnosticSink()
    module = load(proto, tmp_path, {"N": 4} if "N" in inputs else {}, sink)
    assert [said in fault.message for fault in sink.diagnostics if "contradict" in fault.message] == [True]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    made = session.run(None, {value.name: GIVEN[value.name] for value in session.get_inputs()})
    shape = module.entry.results[0].type.shape  # type: ignore[union-attr]
    assert shape is None or all(dim in (None, size) for dim, size in zip(shape, made[0].shape, strict=True))


@pytest.mark.parametrize("case", ELEMENTS)
def test_other_elements_are_refused(tmp_path: Path, case: str) -> None:
    *text, said = ELEMENTS[case]
    proto = _text(*text)
    with pytest.raises(InvalidInput, match=said.replace("*", r"\*")):
        load(proto, tmp_path)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    with pytest.raises(Exception, match=r"[Tt]ype"):
        onnxruntime.InferenceSession(proto.SerializeToString(), options)


def test_a_default_of_another_shape_is_refused(tmp_path: Path) -> None:
    proto = _text("float[4] x, float[3] w", "float[4] y", "y = Add(x, w)")
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(4, np.float32), "w"))
    with pytest.raises(InvalidInput, match="the model states tensor<3xf32> for input 'w', whose default is tensor<4xf32>"):
        load(proto, tmp_path)


def test_names_of_outputs_alone_make_no_sizes_equal(tmp_path: Path) -> None:
    """Two sizes that depend on data have one name: the model says that they are equal, and nothing proves it."""
    proto = _text("float[5] x, bool[5] c", "float[k] p, float[k] q", "p = Compress(x, c)\n q = Relu(p)")
    module = import_model(save(proto, tmp_path), dims={}, sink=DiagnosticSink()).module
    assert [str(value.type) for value in module.entry.results] == ["tensor<? x f32>", "tensor<? x f32>"]


def test_a_wrong_size_that_depends_on_data_harms_no_run(tmp_path: Path) -> None:
    """Three elements are stated, four come, as in onnxruntime; what an unknown operator makes is what is stated."""
    proto = _text("float[4] x, bool[4] c", "float[3] y", "p = Compress <axis = 0> (x, c)\n y = Relu(p)")
    build = str(tmp_path / "build")
    assert main(["compile", str(save(proto, tmp_path)), "-t", "preset:cpu-2", "-o", build]) == 0
    arrays, made = str(tmp_path / "in.npz"), str(tmp_path / "out.npz")
    np.savez(arrays, x=np.ones(4, np.float32), c=np.ones(4, bool))
    assert main(["run", build, "--inputs", arrays, "--outputs", made]) == 0
    with np.load(made) as found:
        assert found["y"].shape == (4,)
    assert main(["check", build, "--inputs", arrays]) == 0
    head = '<ir_version: 10, opset_import: ["": 20, "mine": 1]>\n'
    module = load(model("g (float[4] x) => (float[3] y) { p = mine.Op(x)\n y = Relu(p) }", head), tmp_path)
    assert str(module.entry.results[0].type) == "tensor<3xf32>"


@pytest.mark.parametrize(
    "plan", [["--mesh", "2"], *(pytest.param(plan, marks=pytest.mark.slow) for plan in (["--cut", "a"], []))]
)
def test_every_command_believes_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str], plan: list[str]) -> None:
    proto = _text("float[8,16] x, float[16,16] w", "float[8,5] y", "a = MatMul(x, w)\n y = Relu(a)")
    path, build = str(save(proto, tmp_path)), str(tmp_path / "build")
    assert main(["compile", path, "-t", "preset:cpu-2", "-o", build, *plan]) == 0
    assert capsys.readouterr().err.count("contradict inference") == 1
    assert main(["run", build]) == 0
    assert main(["check", build]) == 0


GROWING = "y = Loop (n, c, x) <body = b (int64 i, bool k, float[a,3] s) => (bool k2, {o} o) {{ k2 = Identity(k)\n o = {op} }}>"
UNBELIEVED = {
    "body": GROWING.format(o="float[2,3]", op="Concat <axis = 0> (s, s)") + "\n z = Abs(y)",
    "result": GROWING.format(o="o", op="Concat <axis = 0> (s, s)").replace("o o", "o") + "\n z = Abs(y)",
}


@pytest.mark.parametrize("stated", ["", "y", "z"])
@pytest.mark.parametrize("case", UNBELIEVED)
def test_what_is_stated_of_a_growing_loop_gives_no_size(tmp_path: Path, case: str, stated: str) -> None:
    proto, sink = _text("float[2,3] x, bool c, int64 n", "int64 size", UNBELIEVED[case] + "\n size = Size(z)"), DiagnosticSink()
    if stated:
        proto.graph.value_info.append(onnx.helper.make_tensor_value_info(stated, onnx.TensorProto.FLOAT, [2, 3]))
    module = load(proto, tmp_path, {}, sink)
    assert "onnx.Size" in [op.name for op in module.entry.ops]
    warnings = [fault for fault in sink.diagnostics if "contradict" in fault.message]
    assert len(warnings) == (case == "body" or stated == "y")


def test_what_is_stated_of_an_unknown_operator_in_a_loop_counts(tmp_path: Path) -> None:
    body = GROWING.format(o="float[2,3]", op="com.acme.Act(s)")
    proto = _text("float[2,3] x, bool c, int64 n", "float[2,3] y", body)
    proto.opset_import.append(onnx.helper.make_opsetid("com.acme", 1))
    module = load(proto, tmp_path, {})
    assert str(module.entry.results[0].type) == "tensor<2x3xf32>"
