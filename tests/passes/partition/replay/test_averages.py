"""All that read a running average which training moves are in one stage: on meshes, and in replayed plans."""

from __future__ import annotations

import pytest

from dnnc.compile.context import pass_context
from ir import parse_module
from ir.core.diagnostics import DiagnosticSink, InvalidInput
from ir.core.facets import StageSet
from ir.core.module import Module
from passes.partition.replay.assign import AssignPass
from passes.partition.replay.meshes import ReplayPass
from passes.prepare.cost import CostPass
from tests.passes.partition.on_meshes import on_meshes

TWICE = """
module @twice {opset.onnx = 20} {
  resource @up : tensor<64x64xf32> = declared
  resource @down : tensor<64x64xf32> = declared
  resource @scale : tensor<64xf32> = declared
  resource @bias : tensor<64xf32> = declared
  resource @mean : tensor<64xf32> = splat(0.0)
  resource @var : tensor<64xf32> = splat(1.0)
  func @main(%x : tensor<4x64xf32>) -> (%y : tensor<4x64xf32>) {
    %a = onnx.MatMul(%x, @up) : tensor<4x64xf32>
    %b, %m0, %v0 = onnx.BatchNormalization(%a, @scale, @bias, @mean, @var) {training_mode = 1} : tensor<4x64xf32>, tensor<64xf32>, tensor<64xf32>
    %c = onnx.Relu(%b) : tensor<4x64xf32>
    %d = onnx.MatMul(%c, @down) : tensor<4x64xf32>
    %e, %m1, %v1 = onnx.BatchNormalization(%d, @scale, @bias, @mean, @var) {training_mode = 1} : tensor<4x64xf32>, tensor<64xf32>, tensor<64xf32>
    %f = onnx.Sqrt(@var) : tensor<64xf32>
    %y = onnx.Mul(%e, %f) : tensor<4x64xf32>
  }
  topology @two {
    type core {rates = {f32 = 1000000000.0}, memory_bandwidth = 1000000000.0}
    host h
    device p {type = core, host = h}
    device q {type = core, host = h}
    link bus {ends = [p, q], bandwidth = 1000000000000.0, latency = 0.0}
  }
}
"""  # noqa: E501
READERS = ("%b", "%e", "%f")
DEVICES = ("0:p", "1:q")


def twice() -> Module:
    return CostPass().run(parse_module(TWICE), pass_context(DiagnosticSink()))


def stages(module: Module) -> dict[str, tuple[int, ...]]:
    return {op.id: op.facet(StageSet, StageSet(())).stages for op in module.entry.ops}


def listed(first: str, second: str) -> tuple[str, ...]:
    return (*(f"0:{name}" for name in first), *(f"1:{name}" for name in second))


def replay(ops: tuple[str, ...], kind: str) -> Module:
    step: AssignPass | ReplayPass
    if kind == "assign":
        step = AssignPass(ops, DEVICES, "training", source="plan.json", microbatches=2)
    else:
        step = ReplayPass(ops, DEVICES, "training", source="plan.json", microbatches=2, strategies=("",) * len(ops))
    return step.run(twice(), pass_context(DiagnosticSink()))


def test_stages_on_meshes_do_not_part_them() -> None:
    """Without that rule each stage would have one of the products."""
    found = stages(on_meshes(mesh="1", stages=2, training=True, microbatches=2).run(twice(), pass_context(DiagnosticSink())))
    assert {number for of_op in found.values() for number in of_op} == {0, 1}
    assert len({found[name] for name in READERS}) == 1


@pytest.mark.parametrize("kind", ["assign", "replay"])
def test_a_replayed_plan_that_parts_them_is_refused(kind: str) -> None:
    assert stages(replay(listed("a", "bcdefy"), kind))["%b"] == (1,)
    mean, var = (f"reads the running average '{name}', which op 'b' of stage 0 reads too" for name in ("mean", "var"))
    for first, second, told in (("abc", "defy", [f"op 'e' {mean}", f"op 'f' {var}"]), ("abcde", "fy", [f"op 'f' {var}"])):
        with pytest.raises(InvalidInput) as raised:
            replay(listed(first, second), kind)
        assert [fault.message for fault in raised.value.diagnostics] == told
        assert {(fault.code, fault.where) for fault in raised.value.diagnostics} == {("E3428", "plan.json: stage 1")}


def test_stages_that_all_have_every_reader_are_accepted() -> None:
    """Each then moves its averages alike."""
    assert stages(replay(listed("abcdef", "abcdefy"), "assign"))["%e"] == (0, 1)
    with pytest.raises(InvalidInput, match="op 'e' reads the running average 'mean'"):
        replay(listed("abcdef", "abcdy"), "assign")
