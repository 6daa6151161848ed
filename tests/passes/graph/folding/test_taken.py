"""Stages that say which ops of the entry function they take: no op is printed twice, and expanding gives the stages back."""

from __future__ import annotations

from dataclasses import replace

import pytest

import ir
from dnnc.compile.context import pass_context, with_topology
from dnnc.machines.topology import load_topology
from dnnc.onnx import DIALECTS
from dnnc.zoo import build
from ir.core.diagnostics import DiagnosticSink, InvalidInput
from ir.core.module import Module, Stage
from passes.framework.manager import PassManager
from passes.framework.pipeline import parse_pipeline
from passes.graph.folding import expand, fold
from passes.graph.folding.taken import TAKE, taking, with_ops

PIPELINES = {
    "devices": "canonicalize,cost,partition{stages=3},place,schedule,lower",
    "meshes": "canonicalize,unfuse,cost,partition{stages=2,mesh=2},lower",
}


def lowered(name: str) -> Module:
    module = with_topology(build("gpt2,layers=2,hidden=24,vocab=64,seq=16"), load_topology("preset:cpu-4", DiagnosticSink()))
    return PassManager(parse_pipeline(PIPELINES[name])).run(module, pass_context(DiagnosticSink()))


@pytest.mark.parametrize("name", PIPELINES)
def test_stages_take_ops_and_get_them_back(name: str) -> None:
    module = lowered(name)
    folded = fold(module)
    assert not ir.verify(folded, dialects=DIALECTS)
    assert expand(folded) == module
    assert fold(folded) == folded
    text = ir.print_module(folded)
    assert ir.load_module(text, dialects=DIALECTS) == folded
    assert text.count(TAKE) >= 2
    if name == "devices":  # what is left is what moves, and what stands between two sends
        left = [op for stage in folded.of_type(Stage) for op in stage.ops if op.dialect not in ("dnnc", "comm")]
        assert len(left) < 6


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("ops = [0, ", "ops = [1, ", "makes|reads|takes ops"),
        ("ops = [0, ", "ops = [100000, ", "takes ops 100000"),
        ("dnnc.take(%input_ids)", "dnnc.take()", "reads nothing, but the ops that it takes: %input_ids"),
    ],
)
def test_a_stage_that_takes_what_it_cannot_is_refused(before: str, after: str, words: str) -> None:
    text = ir.print_module(fold(lowered("devices")))
    assert before in text
    with pytest.raises(InvalidInput, match=words) as caught:
        expand(ir.parse_module(text.replace(before, after, 1)))
    assert caught.value.diagnostics[0].where.startswith("@stage")


def test_the_ops_of_a_take_are_a_first_one_and_a_count() -> None:
    text = ir.print_module(fold(lowered("devices")))
    with pytest.raises(InvalidInput, match="attribute 'ops' is the first op and how many"):
        ir.load_module(text.replace("ops = [0, ", "ops = [0, 1, ", 1), dialects=DIALECTS)


def test_what_no_op_reads_or_makes_is_no_value() -> None:
    """Of two operators between which the stage has one of its own, the last reads nothing in an absent operand's place, and
    the first makes nothing in an unused result's."""
    module = ir.load_module(
        """
        module @m {opset.onnx = 20} {
          func @main(%x : tensor<4xf32>) -> (%y : tensor<4xf32>) {
            %a = onnx.Relu(%x) : tensor<4xf32> stage<0>
            %b = onnx.Tanh(%a) : tensor<4xf32> stage<0>
            %c, _ = onnx.Dropout(%b) : tensor<4xf32>, unknown stage<0>
            %d = onnx.Exp(%c) : tensor<4xf32> stage<0>
            %e = onnx.Clip(%d, _, _) : tensor<4xf32> stage<0>
            %f = onnx.Abs(%e) : tensor<4xf32> stage<0>
            %y = onnx.Neg(%f) : tensor<4xf32> stage<0>
          }
        }
        """,
        dialects=DIALECTS,
    )
    own = [replace(op, name="onnx.Sin") if op.name == "onnx.Exp" else op for op in module.entry.ops]
    stage = Stage("@stage0", 0, ("a",), (), module.entry.results, tuple(own))
    (taken,) = taking(replace(module, symbols=(*module.symbols, stage)), module.entry).of_type(Stage)
    assert [op.name for op in taken.ops] == [TAKE, "onnx.Sin", TAKE]
    assert with_ops(taken, module.entry) == stage
