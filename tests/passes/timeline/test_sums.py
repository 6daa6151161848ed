"""Sums of gradients beside the last backward pass: a simulated step takes what the plan counts."""

from __future__ import annotations

import pytest

from dnnc.onnx import DIALECTS
from ir.core.module import Plan, Schedule
from passes.framework.base import PassContext
from passes.partition.partition_pass import PartitionPass
from passes.partition.place import PlacePass
from passes.programs.schedule import SchedulePass
from passes.timeline.families import step
from passes.timeline.workload import Workload
from tests.passes.partition.bridge.test_steps import chain


def test_an_update_waits_for_the_sums_that_gradients_of_weights_alone_do_not_hide() -> None:
    """Where I and W are apart, W of the last microbatch, half of the pass, hides at least half of what the pass would."""
    load = Workload(
        compute=(1.0, 1.0),
        replicas=(("a", "b"), ("c", "d")),
        wires=(),
        backward=(2.0, 2.0),
        sync=(0.5, 0.5),
        weights=(1.0, 1.0),
        updates=frozenset((0, 1)),
        hidden=(0.8, 0.8),
    )
    assert load.seconds("U", 0) == 0.5
    assert load.seconds("U", 0, split=True) == pytest.approx(0.9)
    whole = step(load, 4, "zb-h1").period
    assert whole == pytest.approx(step(Workload(**{**_fields(load), "sync": (0.9, 0.9), "hidden": ()}), 4, "zb-h1").period)


def _fields(load: Workload) -> dict[str, object]:
    return {name: getattr(load, name) for name in Workload.__dataclass_fields__}


@pytest.mark.parametrize("replicas", [1, 2, 3])
@pytest.mark.parametrize("stages", [1, 2])
def test_a_simulated_step_takes_what_the_plan_counts(stages: int, replicas: int) -> None:
    """Of one stage whose replicas share microbatches evenly exactly that; of several no more, where stages are not equal."""
    module = chain([1024, 1024, 64, 1024, 512], stages * replicas)
    options = {"microbatches": 12, "stages": stages, "replicas": replicas}
    context = PassContext(dialects=DIALECTS)
    placed = PlacePass().run(PartitionPass(objective="training", **options).run(module, context), context)  # type: ignore[arg-type]
    plan = SchedulePass().run(placed, context)
    (found,), (schedule,) = plan.of_type(Plan), plan.of_type(Schedule)
    assert [stage.replicas for stage in found.stages] == [replicas] * stages
    assert all((stage.hidden > 0) == (replicas > 1) for stage in found.stages)
    assert schedule.period <= found.value * (1 + 1e-9)
    if stages == 1:
        assert schedule.period == pytest.approx(found.value)
