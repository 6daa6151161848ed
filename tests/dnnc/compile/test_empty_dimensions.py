"""A dimension of size 0: a cache before its first token."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from dnnc.build.build import Build
from dnnc.cli import main
from dnnc.data.generate import random_inputs
from dnnc.engines.onnxruntime import run_build
from tests.dnnc.onnx.models import model

CACHED = """g (float[B, P, 8] past, float[B, S, 8] x) => (float[B, S, 8] y, float[B, T, 8] present) {
  k = MatMul(x, w)
  present = Concat <axis = 1> (past, k)
  turned = Transpose <perm = [0, 2, 1]> (present)
  scores = MatMul(x, turned)
  weights = Softmax <axis = -1> (scores)
  mixed = MatMul(weights, present)
  y = MatMul(mixed, w)
}"""


@pytest.mark.parametrize(
    "options",
    [
        ["--stages", "2"],
        *(pytest.param(more, marks=pytest.mark.slow) for more in ([], ["--mesh", "2"], ["--objective", "latency"])),
    ],
    ids=" ".join,
)
def test_a_cache_before_its_first_token(options: list[str], tmp_path: Path) -> None:
    proto = model(CACHED)
    weights = np.random.default_rng(0).standard_normal((8, 8), np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    path, out = str(tmp_path / "cached.onnx"), str(tmp_path / "build")
    onnx.save(proto, path)
    dims = [part for dim in ("B=4", "P=0", "S=6", "T=S") for part in ("--dim", dim)]
    assert main(["compile", path, "-t", "preset:cpu-2", "-o", out, *dims, *options]) == 0
    build = Build.open(out)
    inputs = random_inputs(build, seed=1)
    assert inputs["past"].shape == (4, 0, 8)
    found = run_build(build, [inputs]).outputs[0]
    expected = onnxruntime.InferenceSession(path).run(["y", "present"], inputs)
    for name, value in zip(("y", "present"), expected, strict=True):
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6)
    assert main(["check", out]) == 0
