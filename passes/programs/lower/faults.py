"""Faults of the pass ``lower``. Codes 39.."""

from __future__ import annotations

from ir.core.diagnostics import Fault


class OtherCollectives(Fault, code="W3901"):
    """The collectives of the programs take another time than the plan says: the plan or the decisions were edited."""

    message = "the collectives of stage {stage} take {counted:.4g} s by count, {stated:.4g} s by {plan}"
    hint = "run 'partition' again: the plan is not that of these decisions"
    stage: int
    counted: float
    stated: float
    plan: str


class NoReshard(Fault, code="E3902"):
    """No collectives turn one layout of a value into another one that the decisions ask for."""

    message = "{value} cannot be converted: {reason}"
    value: str
    reason: str
