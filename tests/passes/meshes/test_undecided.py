"""Whoever decides stages takes out what was decided before."""

from __future__ import annotations

from functools import cache

import pytest

import ir
from dnnc.compile.context import pass_context
from dnnc.machines.topology import load_topology
from ir.core.diagnostics import DiagnosticSink
from ir.core.module import Module
from passes import parse_pipeline
from passes.framework.manager import PassManager
from passes.meshes.undecided import copied, undecided

MASKED = """
module @m {opset.onnx = 20} {
  resource @shape : tensor<2xi64> = inline([64, 64])
  resource @u : tensor<64x64xf32> = random(normal, seed = 1)
  resource @v : tensor<64x64xf32> = random(normal, seed = 2)
  func @main(%x : tensor<64x64xf32>) -> (%y : tensor<64x64xf32>) {
    %ones = onnx.ConstantOfShape(@shape) {value = dense(tensor<1xf32>, [1.0])} : tensor<64x64xf32>
    %mask = onnx.Trilu(%ones) : tensor<64x64xf32>
    %a = onnx.MatMul(%x, @u) : tensor<64x64xf32>
    %b = onnx.Softmax(%a) {axis = 1} : tensor<64x64xf32>
    %c = onnx.Mul(%b, %mask) : tensor<64x64xf32>
    %d = onnx.MatMul(%c, @v) : tensor<64x64xf32>
    %e = onnx.Softmax(%d) {axis = 1} : tensor<64x64xf32>
    %y = onnx.Mul(%e, %mask) : tensor<64x64xf32>
  }
}
"""
SPLIT = "partition{stages=2,mesh=2}"
"""Two stages, each with a mask of its own."""


def through(module: Module, pipeline: str) -> Module:
    return PassManager(parse_pipeline(pipeline)).run(module, pass_context(DiagnosticSink()))


@cache
def costed() -> Module:
    module = ir.load_module(MASKED)
    return through(module.extend([load_topology("preset:h100x4", DiagnosticSink())]), "cost")


def test_the_own_copies_of_stages_go() -> None:
    sharded = through(costed(), SPLIT)
    assert set(copied(sharded.entry).values()) == {"%ones", "%mask"}
    assert undecided(sharded) == costed()


def test_an_undecided_entry_stays_the_same_object() -> None:
    assert undecided(costed()).entry is costed().entry


@pytest.mark.parametrize(
    "again",
    ["partition{stages=1,mesh=2,strategy=replicate}", "partition{stages=1,mesh=2x2}", SPLIT, "partition{stages=2},place"],
)
@pytest.mark.parametrize("first", ["partition{stages=1,mesh=2,strategy=data}", SPLIT])
def test_deciding_again_is_as_deciding_once(first: str, again: str) -> None:
    once, twice = through(costed(), f"{again},lower"), through(costed(), f"{first},lower,{again},lower")
    assert ir.verify(twice) == []
    assert twice == once


def test_stages_on_meshes_have_their_devices() -> None:
    """``place`` had counted such a plan as one without meshes."""
    sharded = through(costed(), SPLIT)
    assert through(sharded, "place") == sharded
