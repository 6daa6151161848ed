"""Outputs of a stage whose elements numpy has, lacks, and that are strings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from dnnc.check.check import CheckOptions, check_build
from dnnc.compile.driver import CompileOptions, compile_model
from dnnc.engines.onnxruntime import run_build
from dnnc.engines.onnxruntime.session.program import Program
from dnnc.engines.onnxruntime.transport.codec import Raw, from_user
from dnnc.engines.onnxruntime.transport.edges import ValueSpec
from dnnc.onnx.elements import BY_NAME
from ir.core.diagnostics import InvalidInput
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


BESIDE = {
    "float[3] x": "z = SequenceConstruct(x, x)",
    "float[3] x, string[3] s": "z = StringConcat(s, s)",
}
"""What keeps onnxruntime from binding, by the inputs of the program."""


def _beside(inputs: str, type_: str) -> onnx.ModelProto:
    kind = "string[3]" if "string" in inputs else "seq(float[3])"
    to = onnx.TensorProto.DataType.Value(type_.upper())
    text = f"g ({inputs}) => ({type_}[3] y, {kind} z) {{ y = Cast <to = {to}> (x)\n {BESIDE[inputs]} }}"
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')


@pytest.mark.parametrize("inputs", BESIDE)
def test_what_cannot_be_bound_keeps_its_element_type(inputs: str) -> None:
    number = BY_NAME["float8_e4m3fn"].number
    program = Program(_beside(inputs, "float8e4m3fn").SerializeToString(), (ValueSpec("y", number, (3,)), ValueSpec("z")))
    feeds = {"x": np.ones(3, np.float32), "s": np.array(list("abc"), object)}
    made = program.run({name: from_user(value) for name, value in feeds.items()})["y"]
    assert isinstance(made, Raw)
    assert (made.element, made.data.tolist()) == (number, [56] * 3)


@pytest.mark.parametrize("type_", ["int4", "uint4", "bfloat16"])
@pytest.mark.parametrize(("inputs", "said"), [*zip(BESIDE, ("that hands out a sequence", "that reads strings"), strict=True)])
def test_what_onnxruntime_does_not_hand_out_is_refused_at_compile(tmp_path: Path, inputs: str, said: str, type_: str) -> None:
    path = save(_beside(inputs, type_), tmp_path)
    with pytest.raises(InvalidInput, match=rf"does not hand out 'y', tensor\({type_}\), of a program {said}"):
        compile_model(CompileOptions(str(path), "preset:cpu-1", tmp_path / "build"))
