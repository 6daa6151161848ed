"""The oracle of ``dnnc train --check``: where torch's own sums of gradients would be wrong, its are not."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="the extra 'train' is not installed")
pytest.importorskip("safetensors.torch", reason="the extra 'train' is not installed")

from dnnc.engines.torch.check.check import add_gradients  # noqa: E402


def test_gradients_that_are_views_of_one_tensor_are_summed_apart() -> None:
    """``torch.autograd.backward`` adds up the second microbatch's gradients of these biases in each other's elements."""
    biases = [torch.zeros(6, requires_grad=True) for _ in range(3)]
    samples = torch.arange(12.0).reshape(2, 2, 3)
    for x in samples:
        y = x
        for bias in biases:
            y = y + bias.reshape(2, 3)
        add_gradients(biases, torch.autograd.grad((y * y).sum(), biases))
    for bias in biases:
        assert torch.equal(bias.grad, 2 * samples.sum(0).reshape(6))


def test_a_weight_without_a_gradient_has_none() -> None:
    weight, other = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    add_gradients([weight, other], torch.autograd.grad((weight * 3).sum(), [weight, other], allow_unused=True))
    assert torch.equal(weight.grad, torch.full((2,), 3.0))
    assert other.grad is None
