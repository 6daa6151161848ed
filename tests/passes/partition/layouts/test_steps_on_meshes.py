"""Training steps in stages on meshes: what their sums of gradients and hand-over are counted as, by bounds and by values."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, reject, settings

from dnnc.compile.context import pass_context
from ir.core.diagnostics import DiagnosticSink
from ir.core.module import Plan
from passes.costs import exchange
from tests.passes.partition.layouts.stage_oracle import TooMany, costed
from tests.passes.partition.layouts.test_stages import SEEDS, blocks_of, claimed_of_chain, searched, text_of
from tests.passes.partition.on_meshes import on_meshes


@pytest.mark.parametrize("seed", [4, 8, 15])
def test_brute_force_lies_between_bound_and_value_where_sums_travel_beside_the_backward_pass(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every gradient is a bucket, as those of large models are: of small ones the sum begins when the last is made."""
    monkeypatch.setattr(exchange, "LAST", 1)
    assert not claimed_of_chain(seed, "training").wrong


@pytest.mark.slow
@given(SEEDS)
@settings(deadline=None, max_examples=8, suppress_health_check=list(HealthCheck))
def test_no_plan_is_below_the_bound_where_sums_travel_beside_the_backward_pass(seed: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(exchange, "LAST", 1)
        try:
            assert not claimed_of_chain(seed, "training").wrong
        except TooMany:
            reject()


@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize("near", [3e7, 1e8])
@pytest.mark.parametrize("products", [3, 4, 5])
def test_no_plan_on_one_mesh_is_below_the_bound_of_any_number_of_stages(products: int, near: float, microbatches: int) -> None:
    """The search for stages had counted sums of gradients behind the backward pass, beside which they travel."""
    text = text_of([64] * (products + 1), False, [2], [1, 1], near, 1e9).replace("tensor<4x", "tensor<64x")
    module = costed(text)
    one, any_ = (
        on_meshes(stages=stages, training=True, microbatches=microbatches)
        .run(module, pass_context(DiagnosticSink()))
        .first(Plan)
        for stages in (1, 0)
    )
    assert one is not None
    assert any_ is not None
    assert any_.bound <= one.value * (1 + 1e-9)
    assert any_.bound <= any_.value


def test_the_bound_counts_what_stages_of_a_training_step_hand_over() -> None:
    """It had been left out on meshes, and of a tiny model it is nearly all."""
    text = text_of([64] * 5, False, [4], [1] * 4, 1e9, 1e9).replace("overhead = 1e-6", "overhead = 1e-6, handover = 1e-3")
    module = costed(text)
    meshes = blocks_of(module, training=True)
    bound, value = searched(module, meshes, 2, 4)
    assert value >= (4 + 2 - 1) * 1e-3
    assert bound >= 0.95 * value
    alone, _ = searched(module, meshes, 1, 4)
    assert alone < 1e-3, "one stage hands nothing over"
