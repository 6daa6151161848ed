"""Counted twice: the facts that a training step is planned by, against the ops that ``differentiate`` writes.

The flops of the gradients of products and convolutions are those of their backward ops, to the last one; of the whole step
within a part of a percent, since what is elementwise is a rounding beside them. What a plan says that a stage keeps of a
microbatch is what its ops of phases I and W read of the forward phase.
"""

from __future__ import annotations

import re

import pytest

from dnnc.compile.context import pass_context
from dnnc.compile.load import load_model
from dnnc.machines.topology import load_topology
from ir.core.diagnostics import DiagnosticSink
from ir.core.facets import INPUT_GRADIENT, WEIGHT_GRADIENT, Cost, phase_of
from ir.core.module import Module
from passes.framework.manager import PassManager
from passes.framework.pipeline import parse_pipeline
from tests.counted_twice import check_step

MODELS = {
    "zoo:mlp,hidden=32,batch=8": "mse:y",
    "zoo:gpt2,layers=2,hidden=64,heads=2,seq=16,vocab=50": "cross-entropy:logits",
    "zoo:bert-base,layers=2,hidden=64,seq=16,vocab=50,positions=16": "mse:pooler_output",
    "zoo:resnet50,image=32": "mse:y",
}
STAGES = 2


@pytest.fixture(scope="module", params=MODELS, ids=lambda name: re.split("[:,]", name)[1])
def step(request: pytest.FixtureRequest) -> tuple[Module, Module]:
    """A planned step in two stages, and the same with its backward ops, costs counted on them."""
    sink = DiagnosticSink()
    model = load_model(request.param, {}, sink, allow_missing_weights=True).module
    module = model.extend([load_topology("preset:a100x2", sink)])
    head = f"training{{loss={MODELS[request.param]}}},canonicalize,cost,partition{{objective=training,stages={STAGES}}},place"
    planned = PassManager(parse_pipeline(head)).run(module, pass_context(sink))
    return planned, PassManager(parse_pipeline("differentiate,cost")).run(planned, pass_context(sink))


def test_the_flops_of_a_step_are_those_of_its_ops(step: tuple[Module, Module]) -> None:
    planned, whole = step
    facts = [op.facet(Cost, Cost()) for op in planned.entry.ops]
    backward = (op.facet(Cost, Cost()) for op in whole.entry.ops if phase_of(op.facets) in (INPUT_GRADIENT, WEIGHT_GRADIENT))
    counted = sum(cost.flops for cost in backward)
    assert sum(cost.input_grad + cost.weight_grad for cost in facts) == pytest.approx(counted, rel=0.005)


def test_each_stage_does_and_keeps_what_it_is_planned_by(step: tuple[Module, Module]) -> None:
    assert check_step(*step) == STAGES
