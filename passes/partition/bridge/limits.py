"""Short time limits: less search is asked for, not none."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from passes.model.work import unlimited
from passes.partition.search.search import Budget, Solution

if TYPE_CHECKING:
    from passes.partition.latency import LatencyBudget, LatencySolution

LEAST_SECONDS = 10.0
"""Of the search before no plan is told for want of time."""

S = TypeVar("S", bound="Solution | LatencySolution")
B = TypeVar("B", Budget, "LatencyBudget")


def at_least_a_plan(search: Callable[[B], S], budget: B) -> S:
    """The solution within the budget; where its time was over before there was any plan, of another kind included, or a proof
    that there is none, that of ``LEAST_SECONDS``."""
    solution = search(budget)
    if solution.status == "unknown" and math.isinf(getattr(budget, "beaten", math.inf)) and budget.seconds < LEAST_SECONDS:
        with unlimited():
            return search(replace(budget, seconds=LEAST_SECONDS))
    return solution


__all__ = ["LEAST_SECONDS", "at_least_a_plan"]
