"""The next token of a sequence: against the same by sorting the whole vocabulary, and how often each is drawn."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dnnc.engines.onnxruntime.decoding.sampling import next_token, uniform


def by_sorting(logits: Any, temperature: float, top_k: int, top_p: float, number: float) -> int:
    """``next_token`` for a random number of [0, 1)."""
    shares = np.exp((logits.astype(np.float64) - logits.max()) / temperature)
    order = np.argsort(-logits, kind="stable")[: top_k or None]
    if top_p < 1:
        order = order[: int(np.searchsorted(np.cumsum(shares[order]), top_p * shares[order].sum())) + 1]
    elif not 0 < top_k < len(logits):
        order = np.arange(len(logits))
    sums = np.cumsum(shares[order])
    return int(order[min(int(np.searchsorted(sums, number * sums[-1], side="right")), len(order) - 1)])


@given(
    st.lists(st.integers(-8, 8), min_size=1, max_size=40),
    st.sampled_from([0.5, 1.0, 3.0]),
    st.integers(0, 50),
    st.sampled_from([0.1, 0.5, 0.95, 1.0]),
    st.integers(-(2**63) + 1, 2**63 - 1),
    st.integers(0, 1000),
)
def test_drawn_tokens(values: list[int], temperature: float, top_k: int, top_p: float, seed: int, count: int) -> None:
    logits = np.array(values, np.float32) / 2
    token = next_token(logits, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, count=count)
    assert token == by_sorting(logits, temperature, top_k, top_p, uniform(seed, count))


@given(st.sampled_from([0.2, 0.6, 0.99999]), st.sampled_from([0.1, 100.0]), st.integers(0, 9))
def test_a_large_vocabulary(top_p: float, temperature: float, seed: int) -> None:
    """Most of the probability lies among the first thousand tokens, or far beyond them."""
    logits = np.random.default_rng(3).normal(0, 4, 5000).astype(np.float32)
    token = next_token(logits, temperature=temperature, top_k=0, top_p=top_p, seed=seed, count=0)
    assert token == by_sorting(logits, temperature, 0, top_p, uniform(seed, 0))


def test_greedy_takes_the_first_of_equals() -> None:
    logits = np.array([0, 3, 1, 3], np.float32)
    assert next_token(logits, temperature=0, top_k=1, top_p=0.1, seed=9, count=4) == 1


def test_tokens_are_drawn_as_often_as_their_probability_says() -> None:
    shares = np.array([0.1, 0.2, 0.3, 0.4])
    drawn = Counter(
        next_token(np.log(shares), temperature=1, top_k=0, top_p=1, seed=seed, count=count)
        for seed in range(40)
        for count in range(100)
    )
    assert all(abs(drawn[token] / 4000 - share) < 0.03 for token, share in enumerate(shares))
