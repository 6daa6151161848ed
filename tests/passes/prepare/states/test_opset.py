"""A module in a newer opset computes what it computed, or is refused."""

from __future__ import annotations

import numpy as np
import pytest

from dnnc.onnx import DIALECTS
from ir import load_module
from ir.core.diagnostics import InvalidInput
from ir.core.module import Module
from ir.verifier import verify
from passes.prepare.states.opset import raised
from tests.passes.running import assert_same_bits, run


def module(op: str, opset: int) -> Module:
    return load_module(
        f"""module @m {{ir_version = 8, opset.onnx = {opset}}} {{
          func @main(%x : tensor<4x6xf32>, %c : tensor<bool>) -> (%y : tensor<4x1xf32>) {{
            %y = onnx.If(%c) : tensor<4x1xf32>
              region then_branch() {{
                %a = {op}
                yield %a
              }}
              region else_branch() {{
                %b = onnx.ReduceMax(%x) {{axes = [1], keepdims = 1}} : tensor<4x1xf32>
                yield %b
              }}
          }}
        }}""",
        dialects=DIALECTS,
    )


@pytest.mark.parametrize("kind", ["Mean", "Max", "Min", "Prod", "L1", "L2", "LogSumExp", "SumSquare"])
@pytest.mark.parametrize("given", [True, False])
def test_axes_of_reductions_become_operands(kind: str, given: bool) -> None:
    before = module(f"onnx.Reduce{kind}(%x) {{axes = [1], keepdims = 1}} : tensor<4x1xf32>", 17)
    after = raised(before, 24, DIALECTS)
    assert verify(after, dialects=DIALECTS) == []
    inputs = {"x": np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32), "c": np.array(given)}
    assert_same_bits(run(before, inputs), run(after, inputs))


def test_what_changed_is_refused() -> None:
    with pytest.raises(InvalidInput, match="Pad of opset 17"):
        raised(pads(), 24, DIALECTS)
    with pytest.raises(InvalidInput, match="of opset 11"):
        raised(module("onnx.ReduceMean(%x) {axes = [1], keepdims = 1} : tensor<4x1xf32>", 11), 24, DIALECTS)
    newest = module("onnx.Relu(%x) : tensor<4x1xf32>", 17)
    assert raised(newest, 17, DIALECTS) is newest


def test_equal_parts_mean_the_same_since_opset_18() -> None:
    before = split("axis = 0, num_outputs = 2", 20)
    after = raised(before, 24, DIALECTS)
    assert verify(after, dialects=DIALECTS) == []
    inputs = {"x": np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)}
    assert_same_bits(run(before, inputs), run(after, inputs))
    with pytest.raises(InvalidInput, match="Split of opset 17"):
        raised(split("axis = 0", 17), 24, DIALECTS)


def split(parts: str, opset: int) -> Module:
    return load_module(
        f"""module @m {{ir_version = 8, opset.onnx = {opset}}} {{
          func @main(%x : tensor<4x4xf32>) -> (%y : tensor<2x4xf32>, %z : tensor<2x4xf32>) {{
            %y, %z = onnx.Split(%x) {{{parts}}} : tensor<2x4xf32>, tensor<2x4xf32>
          }}
        }}""",
        dialects=DIALECTS,
    )


def pads() -> Module:
    return load_module(
        """module @m {opset.onnx = 17} {
          resource @pads : tensor<4xi64> = inline([0, 0, 0, 1])
          func @main(%x : tensor<4x6xf32>) -> (%y : tensor<4x7xf32>) {
            %y = onnx.Pad(%x, @pads) : tensor<4x7xf32>
          }
        }""",
        dialects=DIALECTS,
    )
