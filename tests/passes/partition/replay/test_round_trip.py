"""Every kind of plan that the search makes, written to ``plan.json`` and replayed: the same value, bound and status."""

from __future__ import annotations

import json
from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from dnnc.build.plan_json import plan_to_json
from dnnc.build.plan_reader import replay_from_json
from dnnc.compile.context import pass_context
from ir.core.diagnostics import DiagnosticSink
from ir.core.module import Module, Plan
from ir.text.witness import OF_BOUND
from passes.framework.base import Pass, needed
from passes.partition.partition_pass import PartitionPass
from passes.partition.place import PlacePass
from tests.passes.partition.layouts.test_stages import costed, text_of

FORMS = (
    {"mesh": "none", "replicas": 0},
    {"mesh": "none", "replicas": 2},
    {"mesh": "none", "replicas": 0, "stages": 1},
    {"mesh": "none", "stages": 2},
    {"mesh": "any", "replicas": 0},
    {"mesh": "any", "stages": 2},
    {"mesh": "auto", "stages": 0, "replicas": 0},
    {"mesh": "auto", "stages": 1},
    {"mesh": "auto", "stages": 2},
)


def on_unlike_hosts(rng: Random) -> Module:
    """A chain of products, on hosts of one to two devices, each of which has a port of its own."""
    skips, hosts = rng.random() < 0.5, rng.choice(([2], [1, 1], [2, 1], [2, 2], [1, 1, 1]))
    widths = [rng.choice((2, 8, 64)) for _ in range(rng.choice((3, 4, 5)))]
    if skips:
        widths[-1] = widths[1]
    text = text_of(widths, skips, hosts, [rng.choice((1, 1, 3)) for _ in range(sum(hosts))], 1e9, rng.choice((1e7, 1e8)))
    lines = [
        line.replace("= 1000000000.0,", f"= {rng.choice((1e7, 1e8, 1e9))},") if "link ld" in line else line
        for line in text.splitlines()
    ]
    return costed("\n".join(lines).replace("tensor<4x", f"tensor<{rng.choice((2, 4, 12))}x"))


def planned(step: Pass, module: Module) -> Module:
    context = pass_context(DiagnosticSink())
    return PlacePass().run(step.run(module, context), context)


@pytest.mark.slow
@given(st.integers(0, 10**6), st.sampled_from(FORMS), st.sampled_from((0, 0, 1, 2, 4)))
@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
def test_a_plan_that_was_found_replays_to_the_same_value_bound_and_status(
    seed: int, form: dict[str, object], microbatches: int
) -> None:
    module = on_unlike_hosts(Random(seed))
    training = {"objective": "training", "microbatches": microbatches} if microbatches else {}
    found = planned(PartitionPass(**{**form, **training}), module)  # type: ignore[arg-type]
    again = planned(replay_from_json(json.loads(json.dumps(plan_to_json(found)))), module)
    plan, replayed = needed(found, Plan), needed(again, Plan)
    assert (replayed.value, replayed.bound, replayed.status) == (plan.value, plan.bound, plan.status)
    assert replayed.stages == plan.stages
    told = [{key: text for key, text in one.certificate if key in OF_BOUND} for one in (plan, replayed)]
    assert told[0] == told[1]
