"""Sums over microbatches, which are in place: nothing else may have their elements."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="the extra 'train' is not installed")
pytest.importorskip("safetensors.torch", reason="the extra 'train' is not installed")

from dnnc.engines.torch.trainer import accumulate  # noqa: E402


def test_a_sum_is_the_first_term_where_nothing_else_has_its_elements() -> None:
    sums: dict[str, Any] = {}
    term, other = torch.ones(4), torch.ones(4)
    accumulate(sums, {"a": term}, [other])
    assert sums["a"] is term
    accumulate(sums, {"a": other}, [])
    assert torch.equal(term, torch.full((4,), 2.0))


def test_a_view_of_what_another_stage_was_handed_is_copied() -> None:
    """Two stages of one rank get their biases' gradients of a tensor that one hands to the other."""
    handed = torch.ones(2, 2)
    one: dict[str, Any] = {}
    other: dict[str, Any] = {}
    accumulate(one, {"a": handed.reshape(4)}, [handed])
    accumulate(other, {"b": handed.reshape(4)}, [*one.values()])
    for sums in (one, other):
        accumulate(sums, dict.fromkeys(sums, torch.ones(4)), [])
        assert torch.equal(*sums.values(), torch.full((4,), 2.0))


def test_terms_of_two_sums_are_copied() -> None:
    sums: dict[str, Any] = {}
    term = torch.ones(4)
    for _ in range(2):
        accumulate(sums, {"a": term, "b": term}, [])
    assert torch.equal(sums["a"], torch.full((4,), 2.0))
    assert torch.equal(sums["b"], torch.full((4,), 2.0))
