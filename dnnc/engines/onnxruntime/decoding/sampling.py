"""The next token of a sequence from its logits: greedy, or drawn at a temperature from the most likely ones.

A drawn token depends on the logits, on the sequence's seed and on how many tokens were drawn before: not on the other sequences
of its group, nor on which process draws it. Imports no third party but numpy, because the process of a device must start fast.
"""

from __future__ import annotations

import numpy as np

from dnnc.onnx.elements import Array

_MASK = (1 << 64) - 1
_FIRST = 1024
"""Tokens among which ``top_p`` is looked for first: to order a whole vocabulary takes milliseconds."""


def next_token(logits: Array, *, temperature: float, top_k: int, top_p: float, seed: int, count: int) -> int:
    """A token by its logits (float ``[vocabulary]``).

    With ``temperature`` 0 the most likely one, the first of equals. Else token i is drawn with probability softmax(logits /
    temperature)_i among the ``top_k`` most likely ones (0: all), of which only the fewest remain whose probabilities sum to
    ``top_p`` or more. ``count``: tokens of the sequence that were drawn before."""
    if temperature <= 0:
        return int(np.argmax(logits))
    scaled = logits.astype(np.float64) / temperature
    scaled -= scaled.max()
    if not 0 < top_k < scaled.size and top_p >= 1:
        tokens, weights = None, np.exp(scaled)
    else:
        first = top_k if 0 < top_k < scaled.size else scaled.size
        whole = np.exp(scaled).sum() if first == scaled.size else 0.0
        tokens = _most_likely(scaled, min(first, _FIRST if top_p < 1 and first == scaled.size else first))
        weights = np.exp(scaled[tokens])
        if top_p < 1:
            whole = whole or float(weights.sum())
            if float(weights.sum()) < top_p * whole:
                tokens = _most_likely(scaled, first)
                weights = np.exp(scaled[tokens])
            kept = int(np.searchsorted(np.cumsum(weights), top_p * whole)) + 1
            tokens, weights = tokens[:kept], weights[:kept]
    sums = np.cumsum(weights)
    drawn = min(int(np.searchsorted(sums, uniform(seed, count) * sums[-1], side="right")), sums.size - 1)
    return drawn if tokens is None else int(tokens[drawn])


def uniform(seed: int, count: int) -> float:
    """Number ``count`` of the stream of random numbers in [0, 1) that ``seed`` begins: two rounds of SplitMix64 (Steele, Lea,
    Flood: Fast splittable pseudorandom number generators, 2014)."""
    return (_mixed(_mixed(seed) + count) >> 11) * 2.0**-53


def _mixed(word: int) -> int:
    word = (word + 0x9E3779B97F4A7C15) & _MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK
    return word ^ (word >> 31)


def _most_likely(scaled: Array, count: int) -> Array:
    """The ``count`` most likely tokens, the most likely one first; of equals the first."""
    if count < scaled.size:
        least = np.partition(scaled, scaled.size - count)[scaled.size - count]
        above, equal = np.flatnonzero(scaled > least), np.flatnonzero(scaled == least)
        some = np.sort(np.concatenate([above, equal[: count - above.size]]))
    else:
        some = np.arange(scaled.size)
    return some[np.argsort(-scaled[some], kind="stable")]
