"""Wrong claims are told by their kinds."""

from __future__ import annotations

import math

import pytest

from tests.passes.claims import Claim

INF = math.inf


@pytest.mark.parametrize(
    ("claim", "wrong"),
    [
        (Claim(2.0, "optimal", 2.0, 2.0), ()),
        (Claim(2.0, "within-gap", 3.0, 1.0), ()),
        (Claim(2.0, "undecided", INF, 1.0), ()),
        (Claim(INF, "infeasible", INF, INF), ()),
        (Claim(0.0, "optimal", 0.0, 0.0), ()),
        (Claim(2.0, "within-gap", 3.0, 2.1), ("bound",)),
        (Claim(2.0, "optimal", 3.0, 2.0), ("optimal",)),
        (Claim(2.0, "infeasible", INF, INF), ("bound", "infeasible")),
        (Claim(2.0, "infeasible", INF, 0.0), ("infeasible",)),
        (Claim(INF, "optimal", 2.0, 2.0), ("infeasible",)),
        (Claim(2.0, "optimal", 1.0, 1.0), ("plan",)),
        (Claim(2.0, "optimal", 2.0, 2.0, ["too large"]), ("plan",)),
    ],
)
def test_wrong_claims(claim: Claim, wrong: tuple[str, ...]) -> None:
    assert claim.wrong == wrong


def test_what_is_not_proven_fails() -> None:
    Claim(2.0, "optimal", 2.0, 2.0).check()
    with pytest.raises(AssertionError):
        Claim(2.0, "within-gap", 2.0, 1.0).check()
