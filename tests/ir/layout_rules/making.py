"""What random instances of ops are made of: hypothesis draws lengths, attributes and which optional operands there are;
elements come from a drawn seed. Lengths reach 8, so that 2 and 4 members get shards, equal and unequal ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.ir.layout_rules.harness import Array, Case

LENGTHS = (1, 2, 3, 4, 4, 5, 6, 8, 8)


class Maker:
    """Draws what a case is made of."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.random = np.random.default_rng(draw(st.integers(0, 1 << 20)))

    def length(self, *among: int) -> int:
        return self.draw(st.sampled_from(among or LENGTHS))

    def shape(self, least: int = 1, most: int = 3) -> tuple[int, ...]:
        return tuple(self.length() for _ in range(self.draw(st.integers(least, most))))

    def pick(self, *among: Any) -> Any:
        return self.draw(st.sampled_from(among))

    def flag(self) -> bool:
        return self.draw(st.booleans())

    def axis(self, rank: int) -> int:
        return self.draw(st.integers(-rank, rank - 1))

    def some(self, items: list[int]) -> list[int]:
        return sorted(self.draw(st.sets(st.sampled_from(items)))) if items else []

    def floats(self, *shape: int, low: float = -1, high: float = 1) -> Array:
        return np.asarray(self.random.uniform(low, high, shape), np.float32)

    def indices(self, bound: int, *shape: int, low: int | None = None) -> Array:
        return np.asarray(self.random.integers(-bound if low is None else low, bound, shape))

    def broadcast(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A shape that broadcasts to ``shape``."""
        kept = [length if self.flag() else 1 for length in shape]
        return tuple(kept[self.draw(st.integers(0, len(shape))) :])


Make = Callable[[Maker], Case]


def shape_operand(*lengths: int) -> Array:
    return np.array(lengths, np.int64)
