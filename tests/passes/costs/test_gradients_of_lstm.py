"""A step is planned with the bytes that its backward ops are counted with."""

from __future__ import annotations

import pytest

from ir import DiagnosticSink, parse_module
from passes.costs.memory.stage import StageOps, stage_bytes
from passes.differentiate import DifferentiatePass
from passes.framework.base import PassContext
from passes.prepare.cost import CostPass
from passes.training import TrainingPass

LSTM = """
module @m {opset.onnx = 20} {
  resource @w : tensor<1x32x8xf32> = declared
  resource @r : tensor<1x32x8xf32> = declared
  func @main(%x : tensor<64x4x8xf32>) -> (%loss : tensor<f32>) {
    %y = onnx.LSTM(%x, @w, @r) {hidden_size = 8} : tensor<64x1x4x8xf32>
    %loss = onnx.ReduceMean(%y) {keepdims = 0} : tensor<f32>
  }
}
"""


def test_the_gradient_of_an_lstm_is_planned_with_what_its_kernel_works_in() -> None:
    context = PassContext(sink=DiagnosticSink())
    planned = CostPass().run(TrainingPass(loss="output:loss").run(parse_module(LSTM), context), context)
    written = CostPass().run(DifferentiatePass().run(planned, context), context)
    (one,), (other,) = (
        stage_bytes(module, [StageOps(module.entry.args, module.entry.ops)], 2) for module in (planned, written)
    )
    # The gradient of a mean is a view of one number, which counts whole as long as it is not written out.
    assert 0.99 * other.backward <= one.backward <= 1.07 * other.backward
    assert one.backward > 17 * 64 * 4 * 8 * 4
    assert one.of_microbatch == pytest.approx(other.of_microbatch, rel=0.01)
