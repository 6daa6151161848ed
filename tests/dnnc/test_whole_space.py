"""What ``dnnc compile`` says of all plans, on small random models and machines, against plans that no search made.

The bound holds for all that the certificate is of (``Case.claims``): no plan, found with other options or drawn at random and
priced by what replays a person's plan, is below it; optimal is said of a value that is the bound; and that nothing fits is said
to be proven only where nothing does.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from ir.diagnostics import Infeasible
from ir.module import Plan
from tests.dnnc.whole_space import Case

FORCED: tuple[dict[str, Any], ...] = (
    {"mesh": "none"},
    {"mesh": "none", "replicas": 1},
    {"mesh": "none", "stages": 2},
    {"replicas": 1},
    {"stages": 1},
    {"stages": 2},
    {"stages": 3},
    {"mesh": "auto"},
    {"mesh": "auto", "stages": 0},
    {"mesh": "auto", "stages": 2},
    {"mesh": "2"},
    {"mesh": "2", "stages": 0},
    {"mesh": "3"},
    {"mesh": "4", "stages": 0},
    {"mesh": "2x2"},
    {"mesh": "auto", "strategy": "data"},
    {"mesh": "auto", "strategy": "tied"},
    {"mesh": "auto", "strategy": "megatron", "stages": 0},
    {"mesh": "auto", "strategy": "replicate"},
    {"mesh": "auto", "shares": "equal"},
)
SLACK = 1e-7
"""Relative: sums of seconds in another order."""


def check(seed: int, folder: Path, forced: int, placed: int, meshed: int) -> None:
    """One case, with so many other options and plans."""
    case = Case(seed, folder)
    told: list[tuple[dict[str, Any], float, Plan | Infeasible]] = []
    plans = [*case.replicated(placed), *case.meshed(meshed)]
    for options in ({}, *case.rng.sample(FORCED, forced)):
        answer = case.compiled(**options)
        if isinstance(answer, Plan):
            plans.append(case.found(answer, f"compile {options}"))
            told.append((options, answer.bound, answer))
        elif answer is not None:
            told.append((options, math.inf if answer.proven else answer.bound, answer))
    for options, bound, answer in told:
        best = min((plan for plan in plans if case.claims(plan, **options)), key=lambda plan: plan.value, default=None)
        assert best is None or bound <= best.value * (1 + SLACK), f"case {seed}, {options}: bound {bound}, but {best}"
        if not isinstance(answer, Infeasible) and answer.status == "optimal":
            assert answer.value <= bound * (1 + SLACK), f"case {seed}, {options}"


@pytest.mark.parametrize("seed", [*range(8), 327, 359])
def test_no_plan_is_below_the_bound(seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path, forced=1, placed=12, meshed=6)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 300, 10))
def test_no_plan_of_many_cases_is_below_the_bound(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 10):
        check(seed, tmp_path, forced=4, placed=25, meshed=20)
