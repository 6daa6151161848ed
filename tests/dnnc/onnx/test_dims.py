"""Dimensions of inputs: which are one, how each is bound, and what contradicts what."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import helper

from dnnc.onnx import import_model
from dnnc.onnx.model import require_bound
from ir.core.diagnostics import DiagnosticSink, InvalidInput, UsageError
from tests.dnnc.onnx.models import load, model, save

DECODER = """decoder (float[batch, seq, 8] x, float[batch, past, 8] cache, float[batch, total] mask)
=> (float[batch, seq, 8] y) {
  present = Concat <axis = 1> (cache, x)
  keys = Transpose <perm = [0, 2, 1]> (present)
  scores = MatMul(x, keys)
  one = Constant <value_ints = [1]> ()
  wide = Unsqueeze(mask, one)
  MASKED
  p = Softmax <axis = -1> (masked)
  y = MatMul(p, present)
}"""
MASKS = {
    "added": "masked = Add(scores, wide)",
    "expanded by the shape of the scores": "s = Shape(scores) full = Expand(wide, s) masked = Add(scores, full)",
}


def _named(*names: str | None) -> onnx.ModelProto:
    """A model of one input whose dimensions have these names; None: no name at all."""
    proto = model(f"g (float[{', '.join('d' for _ in names)}] x) => (y) {{ y = Relu(x) }}")
    for dim, name in zip(proto.graph.input[0].type.tensor_type.shape.dim, names, strict=True):
        dim.Clear()
        if name is not None:
            dim.dim_param = name
    return proto


@pytest.mark.parametrize("name", ["?", "", "None", "unk__12", "unknown", "-1", "*", None])
def test_two_unnamed_dims_are_two(tmp_path: Path, name: str | None) -> None:
    module = load(_named(name, name), tmp_path, {"x.0": 48, "x.1": 192})
    assert str(module.entry.args[0].type) == "tensor<48x192xf32>"
    assert str(module.entry.results[0].type) == "tensor<48x192xf32>"
    assert str(load(_named(name, name), tmp_path).entry.args[0].type) == "tensor<x_dim0 x x_dim1 x f32>"


@pytest.mark.parametrize("name", ["batch", "N", "s72", "unk_batch", "none_of_it"])
def test_a_shared_name_is_one_dim(tmp_path: Path, name: str) -> None:
    module = load(_named(name, name), tmp_path, {"x.0": 48})
    assert str(module.entry.args[0].type) == "tensor<48x48xf32>"


def test_a_name_that_looks_like_a_place_is_a_name(tmp_path: Path) -> None:
    module = load(_named("d", "x.0"), tmp_path, {"x.0": 5})
    assert str(module.entry.args[0].type) == "tensor<d x 5 x f32>"


@pytest.mark.parametrize(
    ("dims", "words"),
    [
        ({"x.2": 4}, "input 'x' has 2 dimensions"),
        ({"x.0": 4, "x_dim0": 5}, "--dim x.0=4 contradicts it"),
        ({"y.0": 4}, "no dimension 'y.0'"),
    ],
)
def test_wrong_places_are_usage_errors(tmp_path: Path, dims: dict[str, int | str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        load(_named("?", "?"), tmp_path, dims)


def test_a_number_that_the_model_states_is_not_bound_to_another(tmp_path: Path) -> None:
    proto = model("g (float[n, 3] x) => (y) { y = Relu(x) }")
    assert str(load(proto, tmp_path, {"x.0": 2, "x.1": 3}).entry.args[0].type) == "tensor<2x3xf32>"
    with pytest.raises(UsageError, match="dimension 1 of input 'x' is 3"):
        load(proto, tmp_path, {"x.1": 4})


@pytest.mark.slow
@pytest.mark.parametrize("mask", ["added", "expanded by the shape of the scores"])
def test_lengths_that_contradict_each_other_are_told(tmp_path: Path, mask: str) -> None:
    proto = model(DECODER.replace("MASKED", MASKS[mask]))
    dims: dict[str, int | str] = {"batch": 1, "seq": 1, "past": 4}
    load(proto, tmp_path, {**dims, "total": 5})
    with pytest.raises(UsageError, match="contradict each other") as raised:
        load(proto, tmp_path, {**dims, "total": 9})
    assert "--dim seq=1 --dim past=4 --dim total=9" in str(raised.value)
    assert "batch" not in str(raised.value)
    with pytest.raises(UsageError, match="--dim length=4 --dim total=9"):
        load(proto, tmp_path, {"batch": 1, "seq": 1, "past": "length", "length": 4, "total": 9})


def test_one_size_that_passes_nowhere_is_told(tmp_path: Path) -> None:
    proto = model("g (float[n] x, float[4] w) => (y) { y = Add(x, w) }")
    with pytest.raises(UsageError, match="no input of this size passes"):
        load(proto, tmp_path, {"n": 3})


def test_a_size_that_a_reshape_cannot_take_is_told(tmp_path: Path) -> None:
    text = "g (float[n, 8] x) => (y) { k = Constant <value_ints = [17, 8]> () h = Relu(x) y = Reshape(h, k) }"
    assert str(load(model(text), tmp_path, {"n": 17}).entry.results[0].type) == "tensor<17x8xf32>"
    with pytest.raises(UsageError, match=r"--dim n=64: .*E1711.*no input of this.*\(Reshape, makes 'y'\): 'h' has") as raised:
        load(model(text), tmp_path, {"n": 64})
    assert "the shape [64, 8], 512 elements; its target [17, 8] has 136" in str(raised.value)


def test_a_branch_never_taken_contradicts_nothing(tmp_path: Path) -> None:
    text = """g (bool c, float[n] x) => (float[?] y) {
      y = If (c) <then_branch = a () => (float[?] t) { t = Identity(x) },
                  else_branch = b () => (float[?] e) {
                    w = Constant <value_floats = [1.0, 2.0, 3.0, 4.0]> () e = Add(x, w) }>
    }"""
    module = load(model(text), tmp_path, {"n": 3})
    assert str(module.entry.args[1].type) == "tensor<3xf32>"


@pytest.mark.parametrize("noted", [-1, 1, 7])
def test_what_an_exporter_noted_of_outputs_contradicts_nothing(tmp_path: Path, noted: int) -> None:
    """PaddlePaddle writes -1 for what it does not know; others note the batch size that they traced with."""
    proto = model("g (float[?, 3] x) => (float[n, 3] y) { h = Relu(x) y = Identity(h) }")
    dim = proto.graph.output[0].type.tensor_type.shape.dim[0]
    dim.Clear()
    dim.dim_value = noted
    module = load(proto, tmp_path, {"x.0": 2})
    assert str(module.entry.args[0].type) == "tensor<2x3xf32>"
    assert str(module.entry.ops[0].results[0].type) == "tensor<2x3xf32>"


@pytest.mark.slow
def test_thousands_of_names(tmp_path: Path) -> None:
    """Their sum alone would take onnxruntime's inference minutes; not all of them are told."""
    names = [f"x{index}" for index in range(4000)]
    inputs = [helper.make_tensor_value_info(name, 1, [f"d{name}", 2]) for name in names]
    graph = helper.make_graph([helper.make_node("Concat", names, ["y"], axis=0)], "g", inputs, [onnx.ValueInfoProto(name="y")])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    module = import_model(save(proto, tmp_path), dims={}, sink=DiagnosticSink()).module
    with pytest.raises(InvalidInput) as raised:
        require_bound(module, "m.onnx")
    assert len(raised.value.diagnostics) == 20
    assert "(and 3980 more dimensions)" in str(raised.value)
