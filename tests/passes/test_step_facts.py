"""Counted twice: the facts that a training step is planned by, against the ops that ``differentiate`` writes.

The flops of the gradients of products and convolutions are those of their backward ops, to the last one; of the whole step
within a part of a percent, since what is elementwise is a rounding beside them. What a plan says that a stage keeps of a
microbatch is what its ops of phases I and W read of the forward phase.
"""

from __future__ import annotations

import re
from collections import defaultdict

import pytest

from dnnc.driver import pass_context
from dnnc.frontends import load_model, load_topology
from ir.diagnostics import DiagnosticSink
from ir.facets import FORWARD, WEIGHT_GRADIENT, Cost, StageSet, phase_of
from ir.module import Module, Plan
from ir.types import type_bytes
from passes.framework.manager import PassManager
from passes.framework.pipeline import parse_pipeline
from passes.model.graph import reads
from passes.model.learning import is_float, learning, saved_values

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


def flops(module: Module, phases: str, kinds: tuple[str, ...] = ()) -> dict[str, int]:
    """Flops of the ops of these phases by location."""
    found: dict[str, int] = defaultdict(int)
    for op in module.entry.ops:
        cost = op.facet(Cost, Cost())
        if phase_of(op.facets) in phases and (not kinds or cost.kind in kinds):
            found[str(op.location)] += cost.flops
    return found


def test_gradients_of_products_cost_what_their_ops_do(step: tuple[Module, Module]) -> None:
    planned, whole = step
    inputs, weights = flops(whole, "I", ("matmul", "conv")), flops(whole, "W", ("matmul", "conv"))
    count = 0
    for op in planned.entry.ops:
        cost = op.facet(Cost, Cost())
        if cost.kind in ("matmul", "conv"):
            bias = sum(op.results[0].type.elements or 0 for name in op.operands[2:3] if name)  # type: ignore[union-attr]
            given = cost.input_grad, cost.weight_grad
            assert given == (inputs[str(op.location)], weights[str(op.location)] + (bias if cost.weight_grad else 0)), op.id
            count += 1
    assert count


def test_the_flops_of_a_step_are_those_of_its_ops(step: tuple[Module, Module]) -> None:
    planned, whole = step
    facts = [op.facet(Cost, Cost()) for op in planned.entry.ops]
    counted = sum(flops(whole, "I" + WEIGHT_GRADIENT).values())
    assert sum(cost.input_grad + cost.weight_grad for cost in facts) == pytest.approx(counted, rel=0.005)


def test_what_a_stage_keeps_is_what_its_backward_ops_read(step: tuple[Module, Module]) -> None:
    planned, whole = step
    learned = learning(planned)
    forward = {value.name: value for value in whole.entry.args}
    for op in whole.entry.ops:
        if phase_of(op.facets) == FORWARD:
            forward.update((value.name, value) for value in op.results)
    plan = planned.first(Plan)
    assert plan is not None
    for stage in range(len(plan.stages)):
        told: dict[str, int] = {}
        for op in planned.entry.ops:
            if stage in op.facet(StageSet, StageSet(())).stages:
                told.update(saved_values(op, learned))
        kept = {
            name: type_bytes(forward[name].type) or 0
            for op in whole.entry.ops
            if phase_of(op.facets) in ("I", "W") and stage in op.facet(StageSet, StageSet(())).stages
            for name in reads(op)
            if name in forward and is_float(forward[name].type)
        }
        assert sum(told.values()) == pytest.approx(sum(kept.values()), rel=0.02), f"stage {stage}"
