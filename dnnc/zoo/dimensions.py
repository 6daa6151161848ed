"""Dimensions that follow from others: heads that divide the hidden width, a feed-forward part in the published proportion.

Each function puts numbers in the place of zeros in ``values`` and returns what is wrong with them, as ``spec.Complete`` asks.
So a model cut to a hidden width of 64 keeps its shape without further options.
"""

from __future__ import annotations

from dnnc.zoo.spec import Complete, Value


def all_of(*parts: Complete) -> Complete:
    """One after another."""

    def complete(values: dict[str, Value]) -> list[str]:
        return [fault for part in parts for fault in part(values)]

    return complete


def heads(most: int, narrowest: int = 1) -> Complete:
    """``heads``: left at 0, the most up to ``most`` that divide ``hidden`` into heads no narrower than ``narrowest``."""

    def complete(values: dict[str, Value]) -> list[str]:
        hidden, count = int(values["hidden"]), int(values["heads"])
        if count == 0:
            fits = (n for n in range(1, most + 1) if hidden % n == 0 and hidden // n >= narrowest)
            values["heads"] = max(fits, default=1)
        elif hidden % count:
            fit = max(n for n in range(1, count + 1) if hidden % n == 0)
            return [f"hidden={hidden} is no multiple of heads={count}; heads={fit} would fit"]
        return []

    return complete


def grouped_heads(most: int) -> Complete:
    """``kv_heads``: left at 0, the most up to ``most`` that divide ``heads``."""

    def complete(values: dict[str, Value]) -> list[str]:
        count, shared = int(values["heads"]), int(values["kv_heads"])
        fit = max(n for n in range(1, (shared or most) + 1) if count % n == 0)
        if shared and count % shared:
            return [f"heads={count} is no multiple of kv_heads={shared}; kv_heads={fit} would fit"]
        values["kv_heads"] = fit
        return []

    return complete


def even_heads(values: dict[str, Value]) -> list[str]:
    """Rotary embedding turns pairs of a head's elements."""
    width, odd = divmod(int(values["hidden"]), int(values["heads"]))
    if odd or width % 2 == 0:  # what does not divide was told before
        return []
    return [f"heads are {width} wide, hidden={values['hidden']} over heads={values['heads']}; an even width was expected"]


def feed_forward(width: int, hidden: int, name: str = "ffn", multiple: int = 8) -> Complete:
    """``ffn``: left at 0, ``width / hidden`` times the hidden width, rounded up to a multiple of ``multiple``."""

    def complete(values: dict[str, Value]) -> list[str]:
        values[name] = int(values[name]) or -(-int(values["hidden"]) * width // (multiple * hidden)) * multiple
        return []

    return complete


def within_positions(values: dict[str, Value]) -> list[str]:
    """A learned position embedding knows so many positions."""
    seq, positions = int(values["seq"]), int(values["positions"])
    return [f"seq={seq} is longer than positions={positions}; add positions={seq}"] if seq > positions else []
