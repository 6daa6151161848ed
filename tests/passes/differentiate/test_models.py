"""Whole small models: the ops of ``differentiate`` against torch's autograd of the same forward ops, in f64."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from dnnc.zoo import catalogue
from ir import Module, StageSet
from passes.graph.graph import reads
from tests.passes.differentiate.oracle import compare, differentiated, values_of

MODELS = {
    "mlp": ("mlp,batch=3,layers=3,inputs=4,hidden=5,outputs=3", "cross-entropy:"),
    "gpt2": ("gpt2,batch=2,layers=1,hidden=8,heads=2,vocab=11,seq=3,positions=4", "cross-entropy:logits"),
}


@cache
def trained(name: str) -> Module:
    spec, loss = MODELS[name]
    module = catalogue.build(f"{spec},dtype=f64")
    return differentiated(module, f'training{{loss="{loss}",optimizer=sgd}},canonicalize')


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("recompute", ["none", "stage"])
def test_gradients_are_those_of_autograd(name: str, recompute: str) -> None:
    after = differentiated(trained(name), f"differentiate{{recompute={recompute}}}")
    compare(after, values_of(after, classes=3))


@settings(max_examples=4, deadline=None, phases=[Phase.generate])
@given(data=st.data())
def test_gradients_are_the_same_whatever_the_stages(data: st.DataObject) -> None:
    """Ops in random stages, none before what it reads: pieces of a weight's gradient in several stages add up to the same."""
    module = trained("gpt2")
    func = module.entry
    stages: dict[str, int] = {}
    ops = []
    for op in func.ops:
        least = max((stages.get(name, 0) for name in reads(op)), default=0)
        stage = min(2, least + data.draw(st.sampled_from((0, 0, 0, 1))))
        stages.update((value.name, stage) for value in op.results)
        ops.append(op.with_facets(StageSet((stage,))))
    staged = module.replace(func, replace(func, ops=tuple(ops)))
    recompute = data.draw(st.sampled_from(("none", "stage")))
    after = differentiated(staged, f"differentiate{{recompute={recompute}}}")
    compare(after, values_of(after, classes=3))
