"""What a search claims of a problem, beside the optimum by brute force, and which of its claims are wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

NEAR = 1e-9
"""Relative: sums of seconds in another order."""
SOLVED = 1e-7
"""Relative: the tolerance of integer programmes."""
NOTHING = 1e-12
"""Seconds that count as none, where the optimum is none."""
KINDS = ("bound", "optimal", "infeasible", "plan")
"""Of wrong claims: a bound above the optimum; an optimum that is none; that no plan fits where one does, or a plan where none
does; a plan that breaks a constraint or takes other seconds than it says."""


@dataclass(frozen=True, slots=True)
class Claim:
    """``optimum``: by brute force, inf where no plan fits; ``value`` is inf without a plan; ``faults``: of the plan, as its
    evaluation from the definition finds them. ``near``: relative, what counts as equal."""

    optimum: float
    status: str
    value: float
    bound: float
    faults: Sequence[str] = ()
    near: float = NEAR

    @property
    def proven(self) -> bool:
        return self.status in ("optimal", "infeasible")

    @property
    def wrong(self) -> tuple[str, ...]:
        """The kinds of what is wrong."""
        most, fits = self.optimum * (1 + self.near) or NOTHING, self.optimum < math.inf
        better = self.value < self.optimum * (1 - self.near)
        found = {
            "bound": self.bound > most,
            "optimal": self.status == "optimal" and self.value > most,
            "infeasible": self.status == "infeasible" if fits else self.value < math.inf,
            "plan": bool(self.faults) or (fits and better),
        }
        return tuple(kind for kind in KINDS if found[kind])

    def check(self) -> None:
        """Asserts that the claim is right, and proven."""
        assert not self.wrong, self
        assert self.proven, self
