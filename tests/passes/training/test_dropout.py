"""Dropouts that drop: the ops they become, in plans and in the backward pass."""

from __future__ import annotations

import pytest

import ir
from dnnc.compile.context import pass_context
from dnnc.machines.topology import load_topology
from dnnc.onnx.opdefs import DIALECTS
from ir import DiagnosticSink, InvalidInput, Module
from ir.core.facets import StageSet
from ir.layout_rules import Kind, rules
from ir.ops.grads import GRAD_OPS, MASK
from passes.framework.base import PassContext
from passes.framework.manager import PassManager
from passes.framework.pipeline import parse_pipeline
from passes.training import TrainingPass
from tests.counted_twice import check_step
from tests.passes.differentiate.oracle import by_ops, compare, differentiated, values_of
from tests.passes.training.dropping import dropping

STEP = 'training{loss="mse:y",optimizer=sgd,dropout=on},canonicalize'


def loaded(text: str) -> Module:
    return ir.load_module(text, dialects=DIALECTS)


@pytest.mark.parametrize("recompute", ["none", "stage"])
def test_gradients_are_those_of_autograd_under_the_same_masks(recompute: str) -> None:
    after = differentiated(loaded(dropping(3)), f"{STEP},differentiate{{recompute={recompute}}}")
    values = values_of(after)
    compare(after, values)
    masks = [op for op in after.entry.ops if op.name == MASK]
    assert len(masks) == (3 if recompute == "none" else 6)
    assert len({op.attributes for op in masks}) == 3  # those made again are the same ones
    loss, _ = by_ops(after, values)
    assert by_ops(after, {**values, "%dropout.seed": values["%dropout.seed"] + 1})[0] != loss
    renumbered = loaded(ir.print_module(after).replace("{number = 1, ", "{number = 7, "))
    assert by_ops(renumbered, values)[0] != loss


def test_a_mask_stands_in_the_stage_of_what_reads_it() -> None:
    """Each mask alone before all that follows it would be an ideal: 2 ** 24 of them."""
    sink = DiagnosticSink()
    module = loaded(dropping(24)).extend([load_topology("preset:a100x2", sink)])
    head = f"{STEP},cost,partition{{objective=training,stages=2}},place"
    planned = PassManager(parse_pipeline(head)).run(module, pass_context(sink))
    stages = {value.name: op.facet(StageSet) for op in planned.entry.ops for value in op.results}
    masked = [op for op in planned.entry.ops if op.operands[0].endswith(".mask")]
    assert len(masked) == 24
    assert all(op.facet(StageSet) == stages[op.operands[0]] for op in masked)
    assert len(set(stages.values())) == 2
    whole = PassManager(parse_pipeline("differentiate,cost")).run(planned, pass_context(sink))
    assert check_step(planned, whole) == 2


def test_a_mask_is_whole_on_every_member() -> None:
    """Members that each drew a part would draw the same numbers for other elements."""
    ((_, rule),) = [pair for pair in rules(differentiated(loaded(dropping(1)), STEP)) if pair[0].name == MASK]
    assert rule is not None
    assert {factor.kind for factor in rule.factors} == {Kind.WHOLE}


def test_without_a_dropout_a_person_is_told() -> None:
    sink = DiagnosticSink()
    module = loaded(dropping(2).replace("onnx.Dropout(%h0.r, @ratio)", "onnx.Relu(%h0.r)").replace("0.25", "0.0"))
    after = TrainingPass(loss="mse:y", dropout="on").run(module, PassContext(dialects=DIALECTS, sink=sink))
    assert [value.name for value in after.entry.args] == ["%x", "%target"]
    (told,) = sink.diagnostics
    assert "the model has no Dropout that drops anything" in str(told)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("splat(0.25)", "splat(1.0)", "its ratio is 1, not at least 0 and below 1"),
        ("onnx.Dropout(%h0.r, @ratio)", "onnx.com.microsoft.BitmaskDropout(%h0.r, @ratio)", "BitmaskDropout cannot train"),
    ],
)
def test_what_no_mask_can_be_made_of(old: str, new: str, told: str) -> None:
    with pytest.raises(InvalidInput, match=told) as caught:
        TrainingPass(loss="mse:y", dropout="on").run(loaded(dropping(2).replace(old, new)), PassContext(dialects=DIALECTS))
    assert caught.value.diagnostics[0].where == "main/drop0 (%h0.y)"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("grad.mask(%s) {number = 0, ratio = 1.0} : tensor<4xf32>", "between 0 and 1 of the elements, not 1.0"),
        ("grad.mask(%s) {number = -1, ratio = 0.5} : tensor<4xf32>", "draws are numbered from 0, not -1"),
        ("grad.mask(%x) {number = 0, ratio = 0.5} : tensor<4xf32>", "takes its seed as tensor<i64>, not %x of tensor<4xf32>"),
        ("grad.mask(%s) {number = 0, ratio = 0.5} : tensor<4xi64>", "gives a tensor of floats, not tensor<4xi64>"),
    ],
)
def test_a_mask_that_is_none(text: str, told: str) -> None:
    assert MASK in GRAD_OPS
    program = f"module @m {{\n  func @main(%x : tensor<4xf32>, %s : tensor<i64>) -> () {{\n    %m = {text}\n  }}\n}}\n"
    with pytest.raises(InvalidInput, match=told):
        ir.load_module(program, dialects=DIALECTS)
