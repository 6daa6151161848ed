"""Schedule: rows of a stream, its period and latency."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ir import print_symbol
from ir.core.diagnostics import InvalidInput
from ir.core.module import Action, Module, Plan, Schedule
from ir.core.ops import Value
from ir.core.topology import Link
from ir.core.types import DType, TensorType
from passes.framework.base import PassContext, needed
from passes.partition.place import PlacePass
from passes.programs.schedule import SchedulePass, as_scheduled
from passes.timeline.simulate import simulate
from tests.passes.staging import chain, devices, planned

CHAIN = PlacePass().run(planned(chain([0, 1, 2]), devices(3)), PassContext())


def scheduled(module: Module) -> Module:
    context = PassContext()
    return SchedulePass().run(PlacePass().run(module, context), context)


def schedule_of(module: Module) -> Schedule:
    schedule = scheduled(module).first(Schedule)
    assert schedule is not None
    return schedule


def test_rows_receive_run_and_send_with_earlier_stages_ahead() -> None:
    schedule = schedule_of(planned(chain([0, 1, 2]), devices(3)))
    rows = {device: [(a.kind, a.microbatch, a.channel) for a in actions] for device, actions in schedule.rows}
    assert rows == {
        "d0": [("F", 2, None), ("send", 2, 0)],
        "d1": [("recv", 1, 0), ("F", 1, None), ("send", 1, 1)],
        "d2": [("recv", 0, 1), ("F", 0, None)],
    }
    assert (schedule.kind, schedule.periodic, schedule.slots) == ("stream", True, 2)


def test_period_is_the_largest_load_and_latency_one_sample_through() -> None:
    schedule = schedule_of(planned(chain([0, 0, 1], seconds=3.0), devices(2)))
    assert schedule.period == 7.0  # stage 0: 6 of compute, 1 of sending
    assert schedule.latency == 6.0 + 1.0 + 1.0 + 3.0


def test_a_shared_link_makes_the_period_what_the_stream_shows() -> None:
    bus = (Link("bus", ("d0", "d1", "d2", "d3", "h"), 1024.0, shared=True),)
    module = scheduled(planned(chain([0, 1, 2, 3], seconds=0.1), devices(4, links=bus)))
    schedule = module.first(Schedule)
    assert schedule is not None
    assert schedule.period >= 3.0, "three messages of one second cross it for every sample"
    ends = [e.end for e in simulate(module, 120) if e.action.kind == "F" and e.action.stage == 3]
    assert (ends[100] - ends[40]) / 60 == pytest.approx(schedule.period, rel=0.02)


def test_scheduling_again_replaces_the_schedule() -> None:
    module = scheduled(planned(chain([0, 1]), devices(2)))
    assert SchedulePass().run(module, PassContext()) == module


def test_a_plan_without_devices_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no placed plan"):
        SchedulePass().run(planned(chain([0, 1]), devices(2)), PassContext())


def test_a_plan_of_unknown_sizes_stays_uncertain_whatever_its_rows_take() -> None:
    module = chain([0, 1])
    unknown = module.replace(module.entry, replace(module.entry, args=(Value("%x", TensorType(DType.F32, ("n",))),)))
    ops = tuple(replace(op, results=(replace(op.results[0], type=unknown.entry.args[0].type),)) for op in unknown.entry.ops)
    module = planned(unknown.replace(unknown.entry, replace(unknown.entry, ops=ops)), devices(2))
    plan = replace(needed(PlacePass().run(module, PassContext()), Plan), objective="training", microbatches=4)
    rows = Schedule("@schedule", "gpipe", (), microbatches=4, period=10.0, latency=10.0)
    assert (plan.status, as_scheduled(plan, rows, module).status) == ("within-gap", "within-gap")


def test_what_replicas_add_up_bounds_no_plan_without_them() -> None:
    """A stage on both devices is busy 6 s with a microbatch, 4 of them with sums of gradients: a plan without replicas has none
    of these, so its step of 4 takes 8 s on one device, not 12."""
    module = planned(chain([0]), devices(2), {0: ("d0", "d1")})
    plan = needed(PlacePass().run(module, PassContext()), Plan)
    (stage,) = plan.stages
    plan = replace(plan, objective="training", microbatches=4, stages=(replace(stage, compute=6.0, sync=8.0, replicas=2),))
    rows = Schedule("@schedule", "gpipe", (), microbatches=4, period=20.0, latency=20.0)
    assert as_scheduled(plan, rows, module).bound == 0.0


def stated(schedule: Schedule) -> tuple[Schedule, list[str]]:
    """What the pass makes of a stated schedule for ``CHAIN``, and what it warns of."""
    context = PassContext()
    found = SchedulePass(stated=print_symbol(schedule), source="plan.ir").run(CHAIN, context).first(Schedule)
    assert found is not None
    return found, [diagnostic.message for diagnostic in context.sink.diagnostics]


def test_stated_rows_are_kept_and_their_seconds_made_anew() -> None:
    own = SchedulePass().run(CHAIN, PassContext()).first(Schedule)
    assert own is not None
    assert stated(replace(own, period=7e9, latency=0.0)) == (own, []), "the compiler's own rows"
    behind = (("d0", (Action("F", 0, 3), Action("send", 0, 2, 0))), *own.rows[1:])  # the next F before each send
    slow = replace(own, rows=behind, kind="by hand")
    found, warnings = stated(slow)
    assert found == replace(own, rows=behind, period=4.0, latency=own.latency)
    assert warnings == ["these rows take 4 s per sample, those of the compiler 3 s"]
    wide, warnings = stated(replace(slow, slots=3))
    assert (wide.slots, wide.period, warnings) == (3, 3.0, []), "a further buffer is enough for that order"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": (("d0", (Action("F", 0, 0),)),)}, "the row of 'd0' lacks send of stage 0 for channel 0"),
        ({"rows": (("d9", (Action("F", 0, 0),)),)}, r"the row of 'd9' has F\(0, 0\), but stage 0 is on d0"),
        ({"periodic": False}, "the plan needs rows of one period of a stream"),
    ],
)
def test_stated_rows_that_do_not_fit_the_stages_are_refused(change: dict[str, object], message: str) -> None:
    own = SchedulePass().run(CHAIN, PassContext()).first(Schedule)
    assert own is not None
    with pytest.raises(
        InvalidInput, match=f"plan.ir: @schedule: error.E3022.: the schedule does not fit .*{message}"
    ) as raised:
        stated(replace(own, **change))  # type: ignore[arg-type]
    assert "delete the schedule" in raised.value.diagnostics[0].hint
