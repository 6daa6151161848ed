"""Reshards that a person wrote, other than ``partition`` would: what fits together lowers and runs, the rest is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ir
from dnnc.onnx import DIALECTS
from ir.core.diagnostics import InvalidInput
from passes.meshes.undecided import undecided
from tests.passes.meshes.interpreter import run_lowered
from tests.passes.meshes.planning import TWO_MESHES, inputs_of, lowered

TWO_LAYOUTS_CROSS = """
    %h = onnx.Relu(%x.1) : tensor<8x64xf32, @mesh0[S(0)]> shard<"d0"> stage<0>
    %h.1 = comm.reshard(%h) : tensor<8x64xf32> stage<0>
    %z = onnx.Exp(%h.1) : tensor<8x64xf32> shard<"replicate"> stage<1>
    %h.2 = comm.reshard(%h) : tensor<8x64xf32, @mesh1[S(0)]> stage<1>
    %y = onnx.Exp(%h.2) : tensor<8x64xf32, @mesh1[S(0)]> shard<"d0"> stage<1>
"""
A_RESULT_LEAVES_ANOTHER_STAGE = """
    %h = onnx.Relu(%x.1) : tensor<8x64xf32, @mesh0[S(0)]> shard<"d0"> stage<0>
    %y.0 = onnx.Exp(%h) : tensor<8x64xf32, @mesh0[S(0)]> shard<"d0"> stage<0>
    %y = comm.reshard(%y.0) : tensor<8x64xf32, @mesh1[S(0)]> stage<1>
    %h.1 = comm.reshard(%h) : tensor<8x64xf32> stage<1>
    %z = onnx.Exp(%h.1) : tensor<8x64xf32> shard<"replicate"> stage<1>
"""
MODULE = (
    """
module @m {opset.onnx = 20} {
  func @main(%%x : tensor<8x64xf32>) -> (%%y : tensor<8x64xf32, @mesh1[S(0)]>, %%z : tensor<8x64xf32>) {shard.memory = 0} {
    %%x.1 = comm.reshard(%%x) : tensor<8x64xf32, @mesh0[S(0)]> stage<0>%s
  }
"""
    + TWO_MESHES
    + """\
  plan @plan {
    objective = throughput
    comm = sum
    value = 1.0
    port_value = 1.0
    bound = 0.0
    status = within-gap
    single = inf
    stage {index = 0, device_type = core, devices = [a, b], ops = 1, compute = 1.0, weights = 0, workspace = 0, mesh = @mesh0}
    stage {index = 1, device_type = core, devices = [c, d], ops = 2, compute = 1.0, weights = 0, workspace = 0, mesh = @mesh1}
  }
}
"""
)


def test_two_layouts_of_a_value_cross() -> None:
    """Both cannot be received under the name that the model gives them."""
    module = ir.load_module(MODULE % TWO_LAYOUTS_CROSS.rstrip(), dialects=DIALECTS)
    inputs = inputs_of(undecided(module))
    found = run_lowered(lowered(module), inputs, Path())
    for name in ("%y", "%z"):
        np.testing.assert_allclose(found[name], np.exp(np.maximum(inputs["x"], 0)), rtol=1e-6)


def test_a_result_leaves_the_stage_that_makes_it() -> None:
    module = ir.load_module(MODULE % A_RESULT_LEAVES_ANOTHER_STAGE.rstrip(), dialects=DIALECTS)
    with pytest.raises(InvalidInput, match="result %y leaves stage 1, but stage 0 makes it"):
        lowered(module)
