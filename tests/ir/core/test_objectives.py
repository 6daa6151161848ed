"""The table of objectives: what each is offered for, and that nobody plans for a name that it does not have."""

from __future__ import annotations

from dataclasses import replace

import pytest

import ir
from ir.core.diagnostics import UsageError
from ir.core.module import Module, Plan
from ir.core.objectives import OBJECTIVES, PIPEDREAM, THROUGHPUT, TRAINING, Planned, objective_of, offered


def test_an_objective_is_found_by_its_name() -> None:
    assert [objective_of(objective.name) for objective in OBJECTIVES] == list(OBJECTIVES)
    with pytest.raises(
        UsageError, match="found 'speed', expected throughput, latency, training, tokens, token-latency or pipedream"
    ):
        objective_of("speed")


def test_each_is_offered_where_there_is_a_search_for_it() -> None:
    assert PIPEDREAM in offered(Planned.PAPER)
    assert PIPEDREAM not in offered(Planned.OPS, Planned.MESHES, Planned.PROFILE)
    assert TRAINING in offered(Planned.OPS)
    assert all(objective.splits for objective in OBJECTIVES)


def test_a_plan_for_an_unknown_objective_is_refused() -> None:
    plan = Plan("@plan", THROUGHPUT.name, "sum", 1.0, 1.0, 1.0, "optimal", 1.0, ())
    assert not ir.verify(Module("@m", (plan,)), dialects={})
    (fault,) = ir.verify(Module("@m", (replace(plan, objective="speed"),)), dialects={})
    assert (
        "unknown objective 'speed'; expected one of throughput, latency, training, tokens, token-latency, pipedream"
        in fault.message
    )
