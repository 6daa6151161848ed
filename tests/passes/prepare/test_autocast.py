"""Mixed precision: casts before what must be of another type, and nothing else."""

from __future__ import annotations

import pytest

from dnnc.onnx import DIALECTS
from ir import parse_module
from ir.core.diagnostics import InvalidInput
from ir.core.types import DType, TensorType
from passes.framework.base import PassContext
from passes.prepare.autocast import NARROW, AutocastPass
from tests.golden import ROOT

TEXT = (ROOT / "passes/autocast/types.ir").read_text(encoding="utf-8")
MACHINES = """
  topology @t {
    type fast {rates = {bf16 = 2.0, f32 = 1.0}}
    type slow {rates = {f32 = 1.0}}
    host h
    device d0 {type = fast, host = h}
    device d1 {type = OTHER, host = h}
  }
}
"""


def test_without_its_casts_the_program_is_the_same() -> None:
    """Each op reads what it read, or a cast of that; types of arguments, results and resources stay."""
    before = parse_module(TEXT, "types.ir")
    after = AutocastPass().run(before, PassContext(dialects=DIALECTS))
    source: dict[str, str] = {}
    kept = []
    for op in after.entry.ops:
        if op.name == "onnx.Cast":
            source[op.results[0].name] = source.get(op.operands[0], op.operands[0])
        else:
            kept.append((op.name, tuple(source.get(name, name) for name in op.operands)))
    renamed = {f"{value.name}.bf16": value.name for value in before.entry.results}  # a result that is narrow before its cast
    kept = [(name, tuple(renamed.get(one, one) for one in operands)) for name, operands in kept]
    assert kept == [(op.name, op.operands) for op in before.entry.ops]
    assert (after.entry.args, after.entry.results) == (before.entry.args, before.entry.results)
    assert after.resources == before.resources


@pytest.mark.parametrize("name", ["bf16", "f16"])
def test_operands_of_an_op_have_one_type(name: str) -> None:
    before = parse_module(TEXT, "types.ir")
    func = AutocastPass(name).run(before, PassContext(dialects=DIALECTS)).entry
    types = {arg.name: arg.type for arg in func.args} | {key: one.type for key, one in before.resources.items()}
    types |= {value.name: value.type for op in func.ops for value in op.results}
    for op in func.ops:
        found = [types[one] for one in op.operands]
        floats = {type_.dtype for type_ in found if isinstance(type_, TensorType) and type_.dtype.is_float}
        if op.name not in ("onnx.BatchNormalization", "onnx.Cast"):
            assert len(floats) <= 1, op
        if op.name in NARROW:
            assert floats == {DType(name)}


@pytest.mark.parametrize(
    ("op", "wide"),
    [
        ("onnx.Add(%h, @scalar) : tensor<4x8x", False),
        ("onnx.Add(%h, @one) : tensor<4x8x", False),
        ("onnx.Add(%h, @tensor) : tensor<4x8x", True),
        ("onnx.DFT(%h) {axis = 0, onesided = 0} : tensor<4x2x", True),
    ],
)
def test_what_is_wide_behind_a_product(op: str, wide: bool) -> None:
    """A constant of one element is a scalar, which widens nothing, unless it has two dimensions; PyTorch transforms no bf16."""
    text = f"""module @m {{opset = 20}} {{
  resource @scalar : tensor<f32> = splat(1.0)
  resource @one : tensor<1xf32> = splat(1.0)
  resource @tensor : tensor<1x1xf32> = splat(1.0)
  func @main(%x: tensor<4x2xf32>, %w: tensor<2x8xf32>) -> (%z: tensor<f32>) {{
    %h = onnx.MatMul(%x, %w) : tensor<4x8xf32>
    %y = {op}f32>
    %z = onnx.ReduceSum(%y) {{keepdims = 0}} : tensor<f32>
  }}
}}"""
    ops = AutocastPass().run(parse_module(text, "wide.ir"), PassContext(dialects=DIALECTS)).entry.ops
    (made,) = (op.results[0].type for op in ops if op.results[0].name == "%y")
    assert isinstance(made, TensorType)
    assert (made.dtype is DType.F32) is wide


def test_a_device_type_without_a_rate_is_refused() -> None:
    text = TEXT.rstrip().removesuffix("}") + MACHINES
    AutocastPass().run(parse_module(text.replace("OTHER", "fast"), "m.ir"), PassContext(dialects=DIALECTS))
    with pytest.raises(InvalidInput) as caught:
        AutocastPass().run(parse_module(text.replace("OTHER", "slow"), "m.ir"), PassContext(dialects=DIALECTS))
    assert str(caught.value).startswith(
        "--dtype bf16: error[E4001]: device type 'slow' states no rate of bf16\n  hint: it states f32;"
    )


def test_an_element_type_that_is_none() -> None:
    with pytest.raises(ValueError, match="dtype is bf16 or f16, not 'f64'"):
        AutocastPass("f64")
