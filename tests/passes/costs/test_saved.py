"""What ops are planned to keep of a microbatch is what their backward ops read."""

from __future__ import annotations

import pytest

from ir import DiagnosticSink, parse_module
from passes.differentiate import DifferentiatePass
from passes.framework.base import PassContext
from passes.prepare.cost import CostPass
from passes.training import TrainingPass
from tests.counted_twice import check_step

STEP = """
module @m {{opset.onnx = 20}} {{
  resource @w : tensor<64x64xf32> = declared
  resource @b : tensor<64xf32> = declared
  func @main(%x : tensor<32x64xf32>) -> (%loss : tensor<f32>) {{
    %h = onnx.MatMul(%x, @w) : tensor<32x64xf32> stage<0>
{body}
    %loss = onnx.ReduceMean(%y) {{keepdims = 0}} : tensor<f32> stage<0>
  }}
}}
"""
BODIES = {
    "a base": ["%y = onnx.Pow(%h, @two) : tensor<32x64xf32>"],
    "an exponent": ["%y = onnx.Pow(%x, %h) : tensor<32x64xf32>"],
    "both": ["%e = onnx.Exp(%h) : tensor<32x64xf32>", "%y = onnx.Pow(%e, %h) : tensor<32x64xf32>"],
    "a result that others keep, too": [
        "%p = onnx.Pow(%x, @b) : tensor<32x64xf32>",
        "%q = onnx.Mul(%p, %h) : tensor<32x64xf32>",
        "%y = onnx.Mul(%q, %q) : tensor<32x64xf32>",
    ],
    "a view of a weight": [
        "%t = onnx.Transpose(@w) : tensor<64x64xf32>",
        "%q = onnx.MatMul(%h, %t) : tensor<32x64xf32>",
        "%y = onnx.Mul(%q, %q) : tensor<32x64xf32>",
    ],
    "two views of a value": [
        "%t = onnx.Transpose(%h) : tensor<64x32xf32>",
        "%q = onnx.MatMul(%h, %t) : tensor<32x32xf32>",
        "%r = onnx.MatMul(%q, %h) : tensor<32x64xf32>",
        "%y = onnx.Mul(%r, %r) : tensor<32x64xf32>",
    ],
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_what_is_planned_to_be_kept_is_what_backward_ops_read(body: list[str]) -> None:
    text = STEP.format(body="\n".join(f"    {line} stage<0>" for line in body))
    if "@two" in text:
        text = text.replace("  func", "  resource @two : tensor<f32> = splat(2.0)\n  func", 1)
    context = PassContext(sink=DiagnosticSink())
    planned = CostPass().run(TrainingPass(loss="output:loss").run(parse_module(text), context), context)
    assert check_step(planned, CostPass().run(DifferentiatePass().run(planned, context), context)) == 1
