"""A batch normalisation that trains gives its running averages of the weights, in every run and on every plan."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dnnc.check.check import CheckOptions, check_build
from dnnc.compile.driver import CompileOptions, compile_model
from dnnc.engines.onnxruntime import run_build
from dnnc.engines.onnxruntime.write.overwritten import copy_overwritten
from tests.dnnc.onnx.models import model, save

NODE = "y, m, v = BatchNormalization <training_mode = 1, momentum = 0.5> (h, one, none, mean, variance)"
TEXT = f"""g (float[4, 3] x) => (float[4, 3] z, float[3] s)
  <float[3] one = {{1, 1, 1}}, float[3] none = {{0, 0, 0}}, float[3] mean = {{1, 2, 3}}, float[3] variance = {{1, 1, 1}}> {{
  h = Relu(x)
  {NODE}
  z = Neg(y)
  t = Add(m, v)
  s = Add(t, mean)
}}"""
GIVEN = f"""g (float[4, 3] x, float[3] mean, float[3] variance) => (float[4, 3] z, float[3] s)
  <float[3] one = {{1, 1, 1}}, float[3] none = {{0, 0, 0}}> {{
  h = Relu(x)
  {NODE}
  z = Neg(y)
  t = Add(m, v)
  s = Add(t, mean)
}}"""
INSIDE = f"""g (float[4, 3] x, bool c) => (float[4, 3] z, float[3] s)
  <float[3] one = {{1, 1, 1}}, float[3] none = {{0, 0, 0}}, float[3] mean = {{1, 2, 3}}, float[3] variance = {{1, 1, 1}}> {{
  h = Relu(x)
  z, s = If (c) <then_branch = t () => (p, q) {{ {NODE}
    p = Neg(y)
    t = Add(m, v)
    q = Add(t, mean) }},
    else_branch = e () => (a, b) {{ a = Identity(h)
    b = Identity(mean) }}>
}}"""
X = np.random.default_rng(5).normal(size=(4, 3)).astype(np.float32)
MEAN, VARIANCE = np.array([1, 2, 3], np.float32), np.ones(3, np.float32)


def _right() -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    h = np.maximum(X, 0).astype(np.float64)
    return 0.5 * MEAN + 0.5 * h.mean(0) + 0.5 * VARIANCE + 0.5 * h.var(0) + MEAN


@pytest.mark.parametrize(
    ("text", "more", "cuts"),
    [
        pytest.param(TEXT, {}, (), marks=pytest.mark.slow),
        (TEXT, {}, ("h",)),
        pytest.param(GIVEN, {"mean": MEAN, "variance": VARIANCE}, ("h",), marks=pytest.mark.slow),
        (INSIDE, {"c": np.array(True)}, ("h",)),
    ],
    ids=["weights", "weights of a second stage", "inputs", "branch"],
)
def test_running_averages_are_of_the_weights(
    tmp_path: Path, text: str, more: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]], cuts: tuple[str, ...]
) -> None:
    build = tmp_path / "build"
    given = {name: value.copy() for name, value in more.items()}
    compile_model(CompileOptions(str(save(model(text), tmp_path)), "preset:cpu-2", build, cuts=cuts, replicas=1))
    for result in run_build(build, [{"x": X, **given}] * 3).outputs:
        np.testing.assert_allclose(result["s"], _right(), rtol=1e-5)
    report = check_build(build, CheckOptions(samples=3))
    assert report.passed
    assert report.original


def test_a_batch_normalisation_in_a_branch_of_a_function_is_given_copies() -> None:
    proto = model(
        """g (bool c, float[4,3] x, float[3] s, float[3] m, float[3] v) => (float[4,3] y) { y = loc.F(c, x, s, m, v) }
<domain: "loc", opset_import: ["" : 17]>
F (c, x, s, m, v) => (y) { y = If (c) <
  then_branch = t () => (p) { p, a, b = BatchNormalization <training_mode = 1> (x, s, s, m, v) },
  else_branch = e () => (q) { q = Neg(x) }> }"""
    )
    copy_overwritten(proto)
    branch = proto.functions[0].node[0].attribute[0].g
    assert [node.op_type for node in branch.node] == ["RandomUniformLike", "Sub"] * 2 + ["BatchNormalization"]
    assert list(branch.node[-1].input[3:]) == ["m.copy", "v.copy"]
