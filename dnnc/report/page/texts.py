"""Texts and numbers as the page holds them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ir.core.diagnostics import visible


def span(names: Sequence[str]) -> str:
    """The names, or the first, the last and their number where there are more than three."""
    return ", ".join(names) if len(names) <= 3 else f"{names[0]} .. {names[-1]} ({len(names)})"


def counted(number: int, word: str, plural: str = "") -> str:
    """``1 stage``, ``3 stages``."""
    return f"{number} {word if number == 1 else plural or f'{word}s'}"


def listed(parts: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))


def exact(seconds: float) -> float:
    """Ten significant digits, which a chart cannot tell from more."""
    return float(f"{seconds:.10g}")


def shown(value: Any) -> Any:
    """The data with control characters in texts escaped, infinities as None, and tuples as lists, at any depth."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {visible(str(key)): shown(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [shown(item) for item in value]
    return value
