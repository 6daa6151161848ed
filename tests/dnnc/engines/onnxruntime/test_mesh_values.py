"""Values of rare kinds on meshes, in builds that check and run: scalars that are terms, shapes that data decides, weights that
nothing but the caller reads, small parts of fused weights.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ir
from dnnc.build.build import Build
from dnnc.check.check import check_build
from dnnc.engines.onnxruntime import Pipeline
from dnnc.engines.onnxruntime.write import write_build
from ir.core.diagnostics import InvalidInput
from ir.core.module import Module
from passes.prepare.canonicalize.unfuse import UnfusePass
from passes.prepare.cost import CostPass
from passes.programs.schedule import SchedulePass
from tests.dnnc.sealing import edit
from tests.passes.meshes.members import localized
from tests.passes.meshes.planning import inputs_of, lowered, random_plan, through
from tests.passes.running import run

SCALAR = """
module @m {opset.onnx = 20} {
  func @main(%x : tensor<4x8xf32>) -> (%y : tensor<4x8xf32>) {
    %s = onnx.ReduceSum(%x) {keepdims = 0} : tensor<f32>
    %y = onnx.Mul(%x, %s) : tensor<4x8xf32>
  }
}
"""
DYNAMIC = """
module @m {opset.onnx = 20} {
  resource @w : tensor<8x8xf32> = random(normal, seed = 1)
  func @main(%x : tensor<4x8xf32>) -> (%n : tensor<2 x "n" x i64>, %y : tensor<4x8xf32>, %t : tensor<? x 2 x i64>) {
    %h = onnx.MatMul(%x, @w) : tensor<4x8xf32>
    %n = onnx.NonZero(%h) : tensor<2 x "n" x i64>
    %y = onnx.Relu(%h) : tensor<4x8xf32>
    %t = onnx.Transpose(%n) {perm = [1, 0]} : tensor<? x 2 x i64>
  }
}
"""
HANDED = """
module @m {opset.onnx = 20} {
  resource @big : tensor<40x40xf32> = random(normal, seed = 1)
  resource @small : tensor<4xf32> = random(normal, seed = 2)
  func @main(%x : tensor<4x8xf32>) -> (%y : tensor<4x8xf32>, @big : tensor<40x40xf32>, @small : tensor<4xf32>) {
    %y = onnx.Relu(%x) : tensor<4x8xf32>
  }
}
"""
HEADS = """
module @m {opset.onnx = 20} {
  resource @w : tensor<WIDTHx24xf32> = random(normal, seed = 1)
  resource @b : tensor<24xf32> = random(normal, seed = 2)
  resource @five : tensor<5xi64> = inline([2, 3, 4, 3, 2])
  resource @i0 : tensor<i64> = inline([0])
  resource @i1 : tensor<i64> = inline([1])
  resource @i2 : tensor<i64> = inline([2])
  func @main(%x : tensor<2x3xWIDTHxf32>) -> (%q : tensor<2x4x3x2xf32>, %k : tensor<2x4x3x2xf32>, %v : tensor<2x4x3x2xf32>) {
    %p = onnx.MatMul(%x, @w) : tensor<2x3x24xf32>
    %a = onnx.Add(%p, @b) : tensor<2x3x24xf32>
    %r = onnx.Reshape(%a, @five) : tensor<2x3x4x3x2xf32>
    %t = onnx.Transpose(%r) {perm = [3, 0, 2, 1, 4]} : tensor<3x2x4x3x2xf32>
    %q = onnx.Gather(%t, @i0) {axis = 0} : tensor<2x4x3x2xf32>
    %k = onnx.Gather(%t, @i1) {axis = 0} : tensor<2x4x3x2xf32>
    %v = onnx.Gather(%t, @i2) {axis = 0} : tensor<2x4x3x2xf32>
  }
}
"""


def written(module: Module, shapes: list[tuple[int, ...]], seed: int, folder: Path, weights: str = "shared") -> Path:
    """A build by random decisions."""
    decided, _ = random_plan(module, shapes, np.random.default_rng(seed))
    write_build(localized(lowered(through(decided, SchedulePass()))), folder, "", folder / "build", weights=weights)
    return folder / "build"


def right(module: Module, shapes: list[tuple[int, ...]], seed: int, folder: Path, weights: str = "shared") -> None:
    """A build by random decisions checks, and its processes give what the module does."""
    build = Build.open(written(module, shapes, seed, folder, weights))
    report = check_build(build)
    assert report.passed, report.error()
    inputs = [inputs_of(module, number) for number in range(2)]
    with Pipeline(build) as pipeline:
        found = pipeline.run(inputs).outputs
    for given, outputs in zip(inputs, found, strict=True):
        for name, expected in run(module, given, folder).items():
            assert outputs[name].shape == expected.shape
            np.testing.assert_allclose(outputs[name], expected, rtol=1e-4, atol=1e-4)


def parsed(text: str) -> Module:
    return through(ir.parse_module(text), CostPass())


def test_terms_of_a_scalar_cross_stages(tmp_path: Path) -> None:
    right(parsed(SCALAR), [(2,), (2,)], 0, tmp_path)


@pytest.mark.parametrize("shapes", [[(1,), (2,)], pytest.param([(2, 2), (2,)], marks=pytest.mark.slow)])
def test_shapes_that_data_decides_cross_whole(shapes: list[tuple[int, ...]], tmp_path: Path) -> None:
    right(parsed(DYNAMIC), shapes, 0, tmp_path)


@pytest.mark.parametrize("weights", ["shared", pytest.param("per-stage", marks=pytest.mark.slow)])
def test_weights_that_only_leave(weights: str, tmp_path: Path) -> None:
    right(parsed(HANDED), [(2,)], 0, tmp_path, weights)


@pytest.mark.parametrize(("width", "weights"), [(4, "shared"), pytest.param(40, "per-stage", marks=pytest.mark.slow)])
def test_interleaved_heads_are_split(width: int, weights: str, tmp_path: Path) -> None:
    """Parts of small weights lie in the models, of large ones in files; heads are no contiguous columns of either."""
    module = through(ir.parse_module(HEADS.replace("WIDTH", str(width))), UnfusePass(), CostPass())
    assert sum(op.name == "onnx.MatMul" for op in module.entry.ops) == 3
    right(module, [(2,)], 0, tmp_path, weights)


def test_a_channel_to_no_stage_is_refused(tmp_path: Path) -> None:
    folder = written(parsed(SCALAR), [(2,), (2,)], 0, tmp_path)
    edit(folder, ("peer = 1}", f"peer = {10**12}}}"))
    with pytest.raises(InvalidInput, match="the peer of channel 0 is 1000000000000, which is no other stage"):
        Build.open(folder)
