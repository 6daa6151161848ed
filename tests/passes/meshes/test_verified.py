"""INV21: collectives in a lowered stage must do to layouts what they say."""

from __future__ import annotations

import numpy as np
import pytest

import ir
from dnnc.onnx import DIALECTS
from passes.prepare.cost import CostPass
from tests.passes.meshes.planning import lowered, random_plan, through

SOURCE = """
module @m {opset.onnx = 20} {
  resource @w : tensor<32x32xf32> = random(normal, seed = 1)
  func @main(%x : tensor<4x32xf32>) -> (%y : tensor<4x32xf32>) {
    %y = onnx.MatMul(%x, @w) : tensor<4x32xf32>
  }
}
"""


def text() -> str:
    """A stage that gathers its weight, which is kept by columns."""
    module = through(ir.parse_module(SOURCE), CostPass())
    for seed in range(100):
        found = ir.print_module(lowered(random_plan(module, [(2,)], np.random.default_rng(seed))[0]))
        if "@mesh[S(1)]> = random" in found and "comm.all_gather(@w)" in found:
            return found
    raise AssertionError("no plan gathers the weight")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("dim = 1", "dim = 0", "on its axis it makes R of S(0), no more"),
        ("dim = 1", "dim = 2", "has dim 2, but"),
        ('axis = "x"', 'axis = "y"', "which is no axis of @mesh"),
        ("all_gather", "all_reduce", "on its axis it makes R of P(sum), no more"),
    ],
)
def test_a_kept_weight_is_gathered_as_it_lies(old: str, new: str, message: str) -> None:
    before = text()
    line = next(line for line in before.splitlines() if "comm.all_gather(@w)" in line)
    assert ir.verify(ir.parse_module(before), dialects=DIALECTS) == []
    changed = ir.parse_module(before.replace(line, line.replace(old, new)))
    assert any("INV21" in str(fault) and message in str(fault) for fault in ir.verify(changed, dialects=DIALECTS))
