"""Layout rules of the ops that only training steps have.

An update works element by element: all its tensors have the layout of the weight. The mean over microbatches commutes with a
sum of terms, so a gradient stays ``P(sum)`` until it is reduced, once per step.
"""

from __future__ import annotations

from ir.layout_rules.draft import Draft, Draw
from ir.ops.grads import ACCUMULATE, ASSIGN, COUNTS, DETACH, MASK, STATE


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


def mask(draft: Draft) -> None:
    """Every member makes the whole mask and slices it, so the mask does not depend on how its reader is split."""


def _optimizer(name: str) -> Draw:
    def draw(draft: Draft) -> None:
        operands = len(draft.operands) - int(name in COUNTS)
        draft.tie_same((*range(operands), *range(-1, -1 - len(draft.results), -1)))

    return draw


RULES: dict[str, Draw] = {
    ACCUMULATE: accumulate,
    ASSIGN: assign,
    DETACH: detach,
    MASK: mask,
    **{f"grad.{name}": _optimizer(name) for name in STATE},
}
"""By the op's full name."""

__all__ = ["RULES"]
