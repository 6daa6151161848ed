"""What ``dnnc compile`` says of all plans, on small random models and machines, against plans that no search made.

The bound holds for all that the certificate is of (``Case.claims``): no plan, found with other options or drawn at random and
priced by what replays a person's plan, is below it; optimal is said of a value that is the bound; and that nothing fits is said
to be proven only where nothing does. The same is held of plans that are steered. More cases: ``python -m tests.bench.oracles``.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from ir.core.diagnostics import Infeasible
from ir.core.module import Plan
from tests.dnnc.compile.whole_space import Case
from tests.passes.claims import SOLVED, Claim

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
    {"mesh": "auto", "strategy": "megatron", "stages": 0},
    {"mesh": "auto", "strategy": "replicate"},
    {"mesh": "auto", "shares": "equal"},
)


def claimed(seed: int, folder: Path, forced: int, placed: int, meshed: int) -> dict[str, Claim]:
    """What compilations of one case say, with no options and with ``forced`` other ones, beside the best of so many plans that
    no search made and of all that were found."""
    case = Case(seed, folder)
    told: list[tuple[dict[str, Any], Plan | Infeasible]] = []
    plans = [*case.replicated(placed), *case.meshed(meshed)]
    for options in ({}, *case.rng.sample(FORCED, forced)):
        answer = case.compiled(**options)
        if isinstance(answer, Plan):
            plans.append(case.found(answer, f"compile {options}"))
        if answer is not None:
            told.append((options, answer))
    claims = {}
    for options, answer in told:
        best = min((plan.value for plan in plans if case.claims(plan, **options)), default=math.inf)
        if isinstance(answer, Plan):
            claim = Claim(min(best, answer.value), answer.status, answer.value, answer.bound, near=SOLVED)
        else:
            bound = math.inf if answer.proven else answer.bound
            claim = Claim(best, "infeasible" if answer.proven else "undecided", math.inf, bound, near=SOLVED)
        claims[f"case {seed}, {options}"] = claim
    return claims


def check(seed: int, folder: Path, forced: int, placed: int, meshed: int) -> None:
    """One case, with so many other options and plans."""
    for told, claim in claimed(seed, folder, forced, placed, meshed).items():
        assert not claim.wrong, (told, claim)


def steered_claim(seed: int, folder: Path, most: int) -> tuple[object, Claim | None]:
    """What a compile says of a case that a person steers by pins, cuts, stages, replicas and the like, on devices that differ
    in hand-over, beside the best of ``most`` plans that do as asked (None where the options do not go together)."""
    case = Case(seed, folder, unlike_handover=True)
    asked = case.steered()
    answer = case.compiled(**asked.options)
    values = [plan.value for plan in case.steered_plans(asked, most)]
    if answer is None:
        return asked, None
    if isinstance(answer, Infeasible):
        bound = math.inf if answer.proven else answer.bound
        told = "infeasible" if answer.proven else "undecided"
        return asked, Claim(min(values, default=math.inf), told, math.inf, bound, near=SOLVED)
    return asked, Claim(min([*values, answer.value]), answer.status, answer.value, answer.bound, near=SOLVED)


def check_steered(seed: int, folder: Path, most: int) -> None:
    asked, claim = steered_claim(seed, folder, most)
    assert claim is None or not claim.wrong, (seed, asked, claim)


@pytest.mark.parametrize("seed", [0, 327, 359, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))])
def test_no_plan_is_below_the_bound(seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path, forced=1, placed=12, meshed=6)


@pytest.mark.slow
@pytest.mark.parametrize("first", [110, 130])
def test_no_plan_of_many_cases_is_below_the_bound(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 2):
        check(seed, tmp_path, forced=4, placed=25, meshed=20)


@pytest.mark.parametrize("seed", [*range(1000, 1004), 1039])
def test_no_plan_that_does_as_asked_is_below_the_bound(seed: int, tmp_path: Path) -> None:
    check_steered(seed, tmp_path, most=40)


@pytest.mark.slow
@pytest.mark.parametrize("first", [2000, 2060])
def test_no_plan_of_many_that_do_as_asked_is_below_the_bound(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 5):
        check_steered(seed, tmp_path, most=300)
