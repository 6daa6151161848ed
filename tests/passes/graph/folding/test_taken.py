"""Stages that say which ops of the entry function they take: no op is printed twice, and expanding gives the stages back."""

from __future__ import annotations

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
from passes.graph.folding.taken import TAKE

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
