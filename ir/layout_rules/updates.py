"""Layout rules of the ops that only training steps have.

An update works element by element: all its tensors have the layout of the weight. The mean over microbatches commutes with a
sum of terms, so a gradient stays ``P(sum)`` until it is reduced, once per step.
"""

from __future__ import annotations

from ir.layout_rules.draft import Draft, Draw
from ir.ops.grads import ACCUMULATE, ASSIGN, DETACH, DRAWS
from ir.ops.optimizers import EMA, STATE, WHOLE


def accumulate(draft: Draft) -> None:
    """The mean over the microbatches."""
    draft.tie_same((0, -1))
    draft.passes((0,))


def assign(draft: Draft) -> None:
    """A resource and its next value."""
    draft.tie_same((0, 1))


def detach(draft: Draft) -> None:
    """The operand, in any layout."""
    draft.tie_same((0, -1))
    draft.passes((0,))
    draft.no_gradient.add(0)


def draw(draft: Draft) -> None:
    """Every member draws the whole tensor and slices it, so it does not depend on how its reader is split."""


def optimizer(draft: Draft) -> None:
    """The weight, its gradient, its state, and what these become. The scalars behind them are whole."""
    tensors = 1 + len(draft.results)
    draft.tie_same((*range(tensors), *range(-1, -1 - len(draft.results), -1)))


def ema(draft: Draft) -> None:
    """The average and the weight."""
    draft.tie_same((0, 1, -1))


RULES: dict[str, Draw] = {
    ACCUMULATE: accumulate,
    ASSIGN: assign,
    DETACH: detach,
    **dict.fromkeys(DRAWS, draw),
    EMA: ema,
    **{f"grad.{name}": optimizer for name in STATE if name not in WHOLE},
}
"""By the op's full name."""

__all__ = ["RULES"]
