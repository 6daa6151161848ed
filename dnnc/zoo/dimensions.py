"""Derives dimensions from others: heads that divide the hidden width, a feed-forward width in the published proportion.

Each function is a ``spec.Complete``, or returns one: it replaces zeros in ``values`` and returns the faults. So ``hidden=64``
alone makes a small model whose other dimensions keep their proportions.
"""

from __future__ import annotations

from dnnc.zoo.faults import NoMultiple, OddHeads, SequenceTooLong
from dnnc.zoo.spec import Complete, Value
from ir.core.diagnostics import Fault


def all_of(*parts: Complete) -> Complete:
    """Applies all parts in order and returns all their faults."""

    def complete(values: dict[str, Value]) -> list[Fault]:
        return [fault for part in parts for fault in part(values)]

    return complete


def heads(most: int, narrowest: int = 1) -> Complete:
    """``heads``: must divide ``hidden``. If 0: the largest divisor up to ``most`` whose heads are at least ``narrowest``
    wide."""

    def complete(values: dict[str, Value]) -> list[Fault]:
        hidden, count = int(values["hidden"]), int(values["heads"])
        if count == 0:
            fits = (n for n in range(1, most + 1) if hidden % n == 0 and hidden // n >= narrowest)
            values["heads"] = max(fits, default=1)
        elif hidden % count:
            fit = max(n for n in range(1, count + 1) if hidden % n == 0)
            return [NoMultiple("hidden", hidden, f"heads={count}", f"heads={fit}")]
        return []

    return complete


def grouped_heads(most: int) -> Complete:
    """``kv_heads``: must divide ``heads``. If 0: the largest divisor up to ``most``."""

    def complete(values: dict[str, Value]) -> list[Fault]:
        count, shared = int(values["heads"]), int(values["kv_heads"])
        fit = max(n for n in range(1, (shared or most) + 1) if count % n == 0)
        if shared and count % shared:
            return [NoMultiple("heads", count, f"kv_heads={shared}", f"kv_heads={fit}")]
        values["kv_heads"] = fit
        return []

    return complete


def even_heads(values: dict[str, Value]) -> list[Fault]:
    """Rotary embedding rotates pairs of elements, so the width of a head must be even."""
    width, odd = divmod(int(values["hidden"]), int(values["heads"]))
    if odd or width % 2 == 0:  # ``heads`` reports heads that do not divide hidden
        return []
    return [OddHeads(width, int(values["hidden"]), int(values["heads"]))]


def feed_forward(width: int, hidden: int, name: str = "ffn", multiple: int = 8) -> Complete:
    """Option ``name``. If 0: ``width / hidden`` times the model's hidden width, rounded up to a multiple of ``multiple``."""

    def complete(values: dict[str, Value]) -> list[Fault]:
        values[name] = int(values[name]) or -(-int(values["hidden"]) * width // (multiple * hidden)) * multiple
        return []

    return complete


def within_positions(values: dict[str, Value]) -> list[Fault]:
    """``seq`` must be at most ``positions``, the number of rows of the learned position embedding; of a model with caches,
    ``context``."""
    key = "context" if values.get("cache", "none") != "none" else "seq"
    length, positions = int(values[key]), int(values["positions"])
    return [SequenceTooLong(key, length, positions)] if length > positions else []
