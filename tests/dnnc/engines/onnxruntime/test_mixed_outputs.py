"""Outputs of a stage whose elements numpy has, lacks, and that are strings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from dnnc.check.check import CheckOptions, check_build
from dnnc.compile.driver import CompileOptions, compile_model
from dnnc.engines.onnxruntime import run_build
from tests.dnnc.onnx.models import model, save

TEXT = """g (float[2, 3] x) => (string[2, 3] s, int4[2, 3] q, float[2, 3] y)
  <float scale = {1}> {
  s = Cast <to = 8> (x)
  q = QuantizeLinear(x, scale, none)
  y = Neg(x)
}"""


@pytest.mark.slow
def test_strings_beside_narrow_integers(tmp_path: Path) -> None:
    proto = model(TEXT)
    proto.opset_import[0].version = 21
    proto.ir_version = 10
    proto.graph.initializer.append(onnx.helper.make_tensor("none", onnx.TensorProto.INT4, [], [0]))
    compile_model(CompileOptions(str(save(proto, tmp_path)), "preset:cpu-1", tmp_path / "build"))
    made = run_build(tmp_path / "build", {"x": np.ones((2, 3), np.float32)}).outputs[0]
    assert made["s"].tolist() == [["1"] * 3] * 2
    assert np.asarray(made["q"]).astype(int).tolist() == [[1] * 3] * 2
    assert check_build(tmp_path / "build", CheckOptions()).passed
