"""The outcome of a search: one of four words, in plans, results, reports and JSON alike; and how values are compared."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, cast, get_args

TIGHT = 1e-9
"""Relative distance at which a value meets its bound, and at which two values count as equal: rounding of sums of seconds."""
SLACK = 1e-11
"""Relative: what rounding may add to one sum. By as much a bound that is one is lowered."""
AGREE = 1e-6
"""Relative: how far two sums of the same seconds, counted in different ways, may lie apart."""

Outcome: TypeAlias = Literal["optimal", "within-gap", "infeasible", "undecided"]
"""What a search found and proved, of its model of costs and of the plans that its options allow:

- ``optimal``: a plan, and a proof that no plan is better: its value meets the lower bound.
- ``within-gap``: a plan, and a lower bound that is proven and below its value. The gap, ``value / bound - 1``, stands beside
  it; it is infinite where the bound is 0, so that nothing is proven. A plan that was made with unknown sizes is never more than
  this: its value and bound hold only for the sizes that it assumed.
- ``infeasible``: no plan, and a proof that none exists.
- ``undecided``: no plan, and no proof that none exists.
"""

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

_EARLIER: dict[str, Outcome] = {
    "feasible": "within-gap",
    "uncertain": "within-gap",  # made with unknown sizes, as the certificate says
    "unknown": "undecided",
    "unfit": "undecided",  # a plan that breaks a limit is none
}
"""The words of plans and results that earlier versions wrote."""


def outcome(value: float, bound: float, slack: float = TIGHT) -> Outcome:
    """The outcome of a search with a plan, in seconds. ``slack``: relative distance at which the value meets the bound."""
    return "optimal" if value <= bound * (1 + slack) else "within-gap"


def translated(word: str) -> str:
    """The outcome that a word of an earlier version means today; any other word as it is."""
    return _EARLIER.get(word, word)


def read_outcome(word: Any) -> Outcome:
    """The outcome that a document states, also by a word of an earlier version. Raises ValueError for anything else."""
    known = translated(word) if isinstance(word, str) else word
    if known not in OUTCOMES:
        raise ValueError(f"no outcome: expected one of {', '.join(OUTCOMES)}")
    return cast(Outcome, known)
