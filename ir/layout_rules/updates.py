"""Layout rules of the ops that only training steps have.

An update works element by element, with sums that ops before it make: all its tensors have the layout of the weight. The mean
over microbatches commutes with a sum of terms, so a gradient stays ``P(sum)`` until it is reduced, once per step.
"""

from __future__ import annotations

from ir.layout_rules.draft import Draft, Draw, UnfitError
from ir.layout_rules.rule import Kind
from ir.ops.grads import ACCUMULATE, ASSIGN, DETACH, DRAWS
from ir.ops.optimizers import ADAFACTOR, ADAFACTOR_SQUARES, EMA, FACTORED_SUMS, STATE


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


def adafactor(draft: Draft) -> None:
    """As ``optimizer``, but states of rows and of columns lack a dimension of the weight, and so do their sums."""
    states, last = len(draft.results) - 1, len(draft.operands)
    if draft.get("shape") is None:
        raise UnfitError("it makes its sums itself, of whole tensors")
    labels = _labels(draft.rank(0))
    terms = {0: labels["weight"], 1: labels["weight"], -1: labels["weight"]}
    for place, name in enumerate(("row_var", "col_var")[:states] if states > 1 else ("weight",)):
        terms[2 + place] = terms[-2 - place] = labels[name]
    if states > 1:
        first = last - len(FACTORED_SUMS)
        terms |= {first + place: labels[name] for place, name in enumerate(FACTORED_SUMS)}
    draft.tie_labels(terms)


def adafactor_squares(draft: Draft) -> None:
    """A sum over all elements of the gradient, each of which needs what is of its row and its column."""
    labels = _labels(draft.rank(0))
    factored = ("row_var", "col_var", *FACTORED_SUMS)
    behind = factored if len(draft.operands) > 4 else ("weight",)
    terms = {0: labels["weight"], **{3 + place: labels[name] for place, name in enumerate(behind)}}
    draft.tie_labels(terms, dict.fromkeys(labels["weight"], Kind.SUM))


def _labels(rank: int) -> dict[str, list[str]]:
    """The dimensions that tensors beside a weight of this rank share with it; empty for those of length 1."""
    weight = [f"d{dim}" for dim in range(rank)]
    row, column, both = [*weight[:-1], ""], [*weight[:-2], "", *weight[-1:]], [*weight[:-2], "", ""]
    return {
        **{"weight": weight, "row_var": row, "col_var": column},
        **dict(zip(FACTORED_SUMS, (row, column, both, both), strict=True)),
    }


def ema(draft: Draft) -> None:
    """The average and the weight."""
    draft.tie_same((0, 1, -1))


RULES: dict[str, Draw] = {
    ACCUMULATE: accumulate,
    ASSIGN: assign,
    DETACH: detach,
    **dict.fromkeys(DRAWS, draw),
    EMA: ema,
    **{f"grad.{name}": optimizer for name in STATE},
    ADAFACTOR: adafactor,
    ADAFACTOR_SQUARES: adafactor_squares,
}
"""By the op's full name."""
