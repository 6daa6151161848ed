"""Loops, scans and branches that trained weights reach: written as plain ops, their gradients are those of the model as it was,
by central differences in f64 on ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

from dnnc.onnx.importer.read import import_model
from ir.core.diagnostics import DiagnosticSink, InvalidInput
from ir.core.module import Module
from ir.core.ops import all_ops
from passes.framework.manager import PassManager
from passes.framework.pipeline import parse_pipeline
from tests.passes.differentiate.numeric import Numbers

oracle: Any = pytest.importorskip("tests.passes.differentiate.oracle", reason="the extra 'train' is not installed")

HEAD = '<ir_version: 9, opset_import: ["" : 20]> main (double[2,3] x) => (double[] y)'
BODIES = {
    "a loop that gives each step": """
      n = Constant<value = int64 {3}>()  go = Constant<value = bool {1}>()
      last, all = Loop(n, go, x) <body = step (int64 i, bool c, double[2,3] h) => (bool d, double[2,3] k, double[2,3] kept)
        { d = Identity(c)  m = MatMul(h, w)  k = Tanh(m)  f = Cast<to = 11>(i)  kept = Mul(k, f) }>
      a = ReduceSum<keepdims = 0>(last)  b = ReduceSumSquare<keepdims = 0>(all)  y = Add(a, b)""",
    "a loop without a condition": """
      n = Constant<value = int64 {2}>()
      last = Loop(n, , x) <body = step (int64 i, bool c, double[2,3] h) => (bool d, double[2,3] k)
        { d = Constant<value = bool {1}>()  k = MatMul(h, w) }>
      s = Mul(last, last)  y = ReduceSum<keepdims = 0>(s)""",
    "a loop without a trip": """
      n = Constant<value = int64 {0}>()  v = MatMul(x, w)
      last = Loop(n, , v) <body = step (int64 i, bool c, double[2,3] h) => (bool d, double[2,3] k)
        { d = Identity(c)  k = MatMul(h, w) }>
      s = Mul(last, last)  y = ReduceSum<keepdims = 0>(s)""",
    "a scan of columns, backward": """
      zero = Constant<value = double[2] {0.0, 0.0}>()  v = MatMul(x, w)
      last, all = Scan(zero, v) <num_scan_inputs = 1, scan_input_axes = [1], scan_input_directions = [1],
          scan_output_axes = [1], scan_output_directions = [1],
          body = step (double[2] h, double[2] p) => (double[2] k, double[2] g)
        { t = Add(h, p)  k = Tanh(t)  g = Mul(k, p) }>
      a = ReduceSum<keepdims = 0>(last)  c = Mul(all, x)  b = ReduceSum<keepdims = 0>(c)  y = Add(a, b)""",
    "a scan in a loop": """
      n = Constant<value = int64 {2}>()
      last = Loop(n, , x) <body = outer (int64 i, bool c, double[2,3] h) => (bool d, double[2,3] k)
        { d = Identity(c)  zero = Constant<value = double[3] {0.0, 0.0, 0.0}>()
          end, k = Scan(zero, h) <num_scan_inputs = 1, body = inner (double[3] p, double[3] r) => (double[3] q, double[3] g)
            { t = Add(p, r)  m = MatMul(t, w)  q = Tanh(m)  g = Mul(q, r) }> }>
      y = ReduceSum<keepdims = 0>(last)""",
    "a branch by values": """
      v = MatMul(x, w)  a = ReduceSum<keepdims = 0>(v)  nought = Constant<value = double {0.0}>()  up = Greater(a, nought)
      r = If(up) <then_branch = one () => (double[2,3] p) { p = Tanh(v) },
          else_branch = two () => (double[2,3] q) { q = Mul(v, v) }>
      y = ReduceSum<keepdims = 0>(r)""",
}  # fmt: skip
WEIGHT = np.random.default_rng(0).normal(size=(3, 3)) * 0.7
INPUT = np.random.default_rng(1).normal(size=(2, 3))


def model_of(name: str) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f"{HEAD} <double[3,3] w> {{ {BODIES[name]} }}")
    del model.graph.value_info[0]
    model.graph.initializer.append(onnx.numpy_helper.from_array(WEIGHT, "w"))
    return model


def step_of(model: onnx.ModelProto, folder: Path) -> Module:
    path = folder / "model.onnx"
    onnx.save(model, str(path))
    module = import_model(path, dims={}, sink=DiagnosticSink()).module
    pipeline = "training{loss=output:y,optimizer=sgd},canonicalize,differentiate"
    return PassManager(parse_pipeline(pipeline)).run(module, oracle.context())


def loss_of(model: onnx.ModelProto, weight: Any, given: Any) -> float:
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weight, "w"))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    (loss,) = onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, {"x": given})
    return float(loss)


@pytest.mark.parametrize("name", BODIES)
def test_gradients_are_those_of_the_model_as_it_was(name: str, tmp_path: Path) -> None:
    model = model_of(name)
    step = step_of(model, tmp_path)
    assert not [op for op in step.entry.ops if op.regions]
    numbers = Numbers(step)
    for given in (INPUT, -INPUT):  # either branch
        loss, gradients = numbers({"x": given, "w.w": WEIGHT})
        assert loss == pytest.approx(loss_of(model, WEIGHT, given), rel=1e-9)
        direction, length = np.random.default_rng(2).normal(size=(3, 3)), 1e-6
        high, low = (loss_of(model, WEIGHT + sign * length * direction, given) for sign in (1, -1))
        assert float(np.sum(gradients["@w"] * direction)) == pytest.approx((high - low) / (2 * length), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("goes_on", ["all", "up"])
def test_a_loop_that_values_end_is_refused(goes_on: str, tmp_path: Path) -> None:
    text = BODIES["a loop without a condition"]
    body = "b = ReduceSum<keepdims = 0>(h)  o = Constant<value = double {9.0}>()  d = Less(b, o)"
    model_text = text.replace("d = Constant<value = bool {1}>()", body)
    if goes_on == "up":
        model_text = text.replace("n = Constant<value = int64 {2}>()", "e = ReduceSum<keepdims = 0>(x)  n = Cast<to = 7>(e)")
    BODIES["ended"] = model_text
    try:
        with pytest.raises(InvalidInput, match=r"onnx\.Loop, which holds a body that runs as its values say"):
            step_of(model_of("ended"), tmp_path)
    finally:
        del BODIES["ended"]


def test_a_model_that_infers_keeps_its_loop(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model_of("a scan in a loop"), str(path))
    module = import_model(path, dims={}, sink=DiagnosticSink()).module
    after = PassManager(parse_pipeline("canonicalize")).run(module, oracle.context())
    assert [op.name for op in all_ops(after.entry.ops)].count("onnx.Scan") == 1
