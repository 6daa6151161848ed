"""Predicted timelines of stages on meshes: collectives are bars of their own, and add up to what the plan says."""

from __future__ import annotations

import numpy as np
import pytest

from dnnc.build.timeline import COLLECTIVE, predicted
from dnnc.build.trace import to_perfetto
from ir.core.module import Plan
from passes.programs.schedule import SchedulePass
from tests.dnnc.report.test_timeline import overlaps
from tests.passes.meshes.graphs import random_module
from tests.passes.meshes.planning import lowered, random_plan, through


def test_collectives_stand_behind_the_compute_of_their_sample() -> None:
    decided, _ = random_plan(random_module(2, 12), [(2, 2), (2,)], np.random.default_rng(2))
    module = lowered(through(decided, SchedulePass()))
    plan = module.first(Plan)
    assert plan is not None
    events = predicted(module, 3)
    for stage in plan.stages:
        for device in stage.devices:
            bars = [event for event in events if event.track == device]
            compute = sum(event.end - event.start for event in bars if event.kind == "F")
            collectives = sum(event.end - event.start for event in bars if event.kind == COLLECTIVE)
            assert compute + collectives == pytest.approx(3 * stage.working, rel=1e-6)
    titles = {dict(event.args)["collective"] for event in events if event.kind == COLLECTIVE}
    assert titles
    assert overlaps(to_perfetto({"predicted": events})) == []
