"""Stages that unlike devices share in turns: against every plan of small problems, and as ``partition`` makes them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ir.core.diagnostics import InvalidInput
from ir.core.module import Func, Module, Plan, PlanStage, Schedule
from ir.core.topology import Device, DeviceType, Host, Link, Topology
from passes.framework.base import NoBetterPlan, PassContext
from passes.partition.decoding.planned import Wanted
from passes.partition.decoding.problem import DecodingPlan, SharedStage, shared
from passes.partition.decoding.turns import GAP, MOST_TURNS, TurnsSearch, planned_in_turns, redealt, turned
from passes.partition.partition_pass import PartitionPass
from passes.partition.place import PlacePass
from passes.partition.replay.assign import AssignPass
from passes.programs.schedule import SchedulePass
from passes.timeline.simulate import simulate
from tests.passes.partition.decoding.test_search import best_value, problem, with_borders
from tests.passes.staging import op, value

FEW = 4
"""Turns of a round at most, of which all plans are tried."""
ANY = Wanted("throughput", stages=0, replicas=0, seconds=10.0)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3), st.sampled_from([(1,), (2,), (1, 1), (2, 1)]), st.booleans(), st.integers(0, 10**6))
def test_no_plan_is_above_the_bound_and_the_plan_is_about_the_best(
    units: int, counts: tuple[int, ...], borders: bool, seed: int
) -> None:
    asked = problem(units, counts, (1,), seed, (1, FEW))
    asked = replace(asked, caches=asked.caches * 0, loops=False)
    asked = with_borders(asked, seed) if borders else asked
    best = best_value(asked)
    found = TurnsSearch(asked, GAP).run()
    plan = turned(asked, found, FEW) if found is not None else None
    assert (plan is None) == (best == 0)
    if found is not None and plan is not None:
        assert found.bound >= best * (1 - 1e-9)
        assert best / 1.1 <= plan.tokens_per_second <= best * (1 + 1e-9)
        assert not asked.stages or len(plan.stages) == asked.stages
        assert not asked.replicas or max(sum(stage.devices) for stage in plan.stages) <= asked.replicas


def test_a_round_is_the_shortest_that_is_about_as_good() -> None:
    """Of devices of which one is three times as fast a round has four turns; those of a stage of one type have one each."""
    base = problem(2, (2, 1), (1,), 0, (1, MOST_TURNS))
    seconds = base.seconds * 0 + [[[1.0, 3.0], [3.0, 9.0]]]
    asked = replace(base, seconds=seconds, caches=base.caches * 0, memory=(100.0, 100.0), loops=False)
    one = DecodingPlan((SharedStage(0, 2, (1, 1)),), 1, MOST_TURNS, 9.0)
    assert (plan := turned(asked, one, MOST_TURNS)).groups == 4
    assert plan.stages[0].shares == ((3,), (1,))
    assert plan.value == 3.0
    stages = SharedStage(0, 1, (0, 1)), SharedStage(1, 2, (2, 0))
    two = shared(asked, stages, 0, 7)
    assert two is not None
    assert [stage.shares for stage in two.stages] == [((), (1,)), ((1, 1), ())]
    assert two.value == 3.0
    assert turned(asked, two, MOST_TURNS).groups == 1, "without unlike devices in a stage there are no rounds"


def test_turns_are_dealt_again_by_what_devices_take_on_the_real_links() -> None:
    """The second stage was counted with equal devices, of which one receives over a slow link."""
    stages = SharedStage(0, 1, (1, 0), ((4,), ())), SharedStage(1, 2, (1, 1), ((2,), (2,)))
    found = DecodingPlan(stages, 1, 4, 3.0)
    rows = (
        PlanStage(0, "", ("f0",), compute=1.0, send=0.5),
        PlanStage(1, "", ("f1", "s0"), compute=2.0, receive=4.0, replicas=2, serves=(0, 1, 0, 1), steps=(2.0, 6.0)),
    )
    inf = float("inf")
    placed = Plan("@plan", "throughput", "sum", 3.0, 3.0, 1.0, "within-gap", inf, rows)
    again = redealt(found, placed, 4)
    assert again is not None
    assert again.value == 1.5
    assert [stage.shares for stage in again.stages] == [((4,), ()), ((3,), (1,))]
    alike = replace(placed, stages=(rows[0], replace(rows[1], steps=())))
    assert redealt(found, alike, 4) is None
    far = replace(placed, stages=(rows[0], replace(rows[1], steps=(1.0, 1000.0))))
    assert redealt(found, far, MOST_TURNS) is None, "one would have no turn"


def machines(fast: int, slow: int, *, bandwidth: float = 1024.0, memory: int | None = None) -> Topology:
    """Devices ``f0`` .. and ``s0`` .., each with a link to their host."""
    types = (DeviceType("fast", "f", (("f32", 1.0),), memory=memory), DeviceType("slow", "s", (("f32", 1.0),), memory=memory))
    names = [*((f"f{n}", "fast") for n in range(fast)), *((f"s{n}", "slow") for n in range(slow))]
    links = tuple(Link(f"l-{name}", (name, "h"), bandwidth, 0.0) for name, _ in names)
    return Topology("@top", types, (Host("h"),), tuple(Device(name, type_, "h") for name, type_ in names), (), links)


def model(fast: tuple[float, ...], slow: tuple[float, ...]) -> Module:
    """A chain of ops that take so many seconds on each type."""
    ops = tuple(
        op("onnx.Relu", [f"%v{i - 1}" if i else "%x"], [f"%v{i}"], seconds={"fast": one, "slow": other})
        for i, (one, other) in enumerate(zip(fast, slow, strict=True))
    )
    return Module("@m", (Func("@main", (value("%x"),), (value(f"%v{len(ops) - 1}"),), ops),))


def plan_of(module: Module) -> Plan:
    plan = module.first(Plan)
    assert plan is not None
    return plan


def test_copies_of_the_model_take_turns_by_their_speed() -> None:
    """Three samples in four go to the device that is three times as fast, which no pipeline of both is as quick as."""
    given = model((1.0, 1.0), (3.0, 3.0)).extend([machines(1, 1)])
    context = PassContext()
    module = planned_in_turns(given, machines(1, 1), ANY, context, "partition")
    (stage,) = plan_of(module).stages
    assert (stage.devices, stage.serves, stage.steps) == (("f0", "s0"), (0, 0, 0, 1), (2.0, 6.0))
    assert plan_of(module).value == plan_of(module).bound == 1.5
    assert plan_of(module).single == 2.0
    scheduled = SchedulePass().run(module, PassContext())
    schedule = scheduled.first(Schedule)
    assert schedule is not None
    assert schedule.period == pytest.approx(1.5)
    events = simulate(scheduled, 8)
    assert [(e.device, e.action.microbatch, e.start, e.end) for e in events if e.device == "s0"] == [
        ("s0", 3, 0.0, 6.0),
        ("s0", 7, 6.0, 12.0),
    ]
    assert max(event.end for event in events) == 12.0


def test_unlike_devices_share_a_stage_of_several() -> None:
    """The second op is slow on one type alone: what is left of the fast devices helps with the first."""
    given = model((1.0, 1.0), (1.5, 30.0)).extend([machines(2, 1, bandwidth=1e9)])
    module = planned_in_turns(given, machines(2, 1, bandwidth=1e9), ANY, PassContext(), "partition")
    plan = plan_of(module)
    assert plan.bound <= plan.value <= plan.bound * 1.02
    assert plan.value < min(1.0, plan.single), "what copies on the fast devices take"
    assert any(len({name[0] for name in stage.devices}) == 2 for stage in plan.stages)
    schedule = SchedulePass().run(module, PassContext()).first(Schedule)
    assert schedule is not None
    assert schedule.period == pytest.approx(plan.value, rel=0.02)


def test_a_device_that_does_not_hold_the_model_shares_a_stage_of_it() -> None:
    big = Device("s0", "slow", "h")
    top = machines(2, 1, bandwidth=1e9)
    top = replace(top, devices=tuple(replace(one, memory=4 * 1024) if one == big else one for one in top.devices))
    given = model((1.0,) * 6, (2.0,) * 6).extend([top])
    plan = plan_of(planned_in_turns(given, top, ANY, PassContext(), "partition"))
    assert plan.bound <= plan.value
    for stage in plan.stages:
        assert "s0" not in stage.devices or stage.memory <= 4 * 1024


def test_no_plan_is_made_where_a_better_one_is_known_or_none_fits() -> None:
    given = model((1.0, 1.0), (3.0, 3.0)).extend([machines(1, 1)])
    known = replace(plan_of(planned_in_turns(given, machines(1, 1), ANY, PassContext(), "partition")), value=1.4)
    with pytest.raises(NoBetterPlan) as raised:
        planned_in_turns(given, machines(1, 1), ANY, PassContext(incumbent=known), "partition")
    assert raised.value.bound == pytest.approx(1.5)
    tiny = machines(1, 1, memory=10)
    with pytest.raises(NoBetterPlan) as raised:
        planned_in_turns(model((1.0, 1.0), (3.0, 3.0)).extend([tiny]), tiny, ANY, PassContext(), "partition")
    assert raised.value.bound == float("inf")


def test_partition_searches_turns_unless_asked_for_other_plans() -> None:
    given = model((1.0, 1.0), (3.0, 3.0)).extend([machines(1, 1)])
    plan = plan_of(PartitionPass(mesh="none", replicas=0).run(given, PassContext()))
    assert plan.stages[0].serves == (0, 0, 0, 1)
    assert dict(plan.certificate)["kinds"].startswith("stages that unlike devices share; stages that may have replicas: ")
    for other in (
        PartitionPass(mesh="none", replicas=1),
        PartitionPass(mesh="none", replicas=0, comm="overlap"),
        PartitionPass(mesh="none", replicas=0, pins=("v0=f0",)),
    ):
        assert not any(stage.serves for stage in plan_of(other.run(given, PassContext())).stages)
    alike = model((1.0, 1.0), (3.0, 3.0)).extend([machines(2, 0)])
    assert "kinds" not in dict(plan_of(PartitionPass(mesh="none", replicas=0).run(alike, PassContext())).certificate)


def test_stages_may_end_where_no_value_crosses() -> None:
    """Two ops that read the argument alone, the second slow on one type: each has a stage of its own."""
    ops = (
        op("onnx.Relu", ["%x"], ["%v0"], seconds={"fast": 1.0, "slow": 1.0}),
        op("onnx.Neg", ["%x"], ["%v1"], seconds={"fast": 1.0, "slow": 90.0}),
    )
    top = machines(1, 1)
    given = Module("@m", (Func("@main", (value("%x"),), (value("%v0"), value("%v1")), ops),)).extend([top])
    plan = plan_of(planned_in_turns(given, top, ANY, PassContext(), "partition"))
    assert [stage.devices for stage in plan.stages] == [("s0",), ("f0",)]
    assert plan.value == plan.bound == 1.0


def test_rounds_are_shorter_where_their_buffers_do_not_fit() -> None:
    """The second stage has two devices, one seven times as fast. Each turn takes two buffers of 1 KiB on its device."""
    fast, slow = (6.0, 7.0), (900.0, 49.0)
    plans = []
    for memory in (None, 8 * 1024):
        top = machines(2, 1, bandwidth=1e9, memory=memory)
        given = model(fast, slow).extend([top])
        plans.append(plan_of(planned_in_turns(given, top, replace(ANY, stages=2), PassContext(), "partition")))
    rounds = [len(plan.stages[1].serves) for plan in plans]
    assert plans[0].stages[1].buffers == 2 * 1024 * plans[0].stages[1].serves.count(0)
    assert plans[0].stages[1].memory > 8 * 1024 >= plans[1].stages[1].memory
    assert rounds[1] < rounds[0]


def test_a_search_without_a_plan_has_the_bound_of_load_balance() -> None:
    """No time was left for one: with a third of the speed, the second device does a quarter of both ops."""
    top = machines(1, 1)
    given = model((1.0, 1.0), (3.0, 3.0)).extend([top])
    with pytest.raises(NoBetterPlan) as raised:
        planned_in_turns(given, top, replace(ANY, stages=2, seconds=0.0), PassContext(), "partition")
    assert raised.value.bound == pytest.approx(1.5)


def test_an_interrupt_leaves_the_best_plan_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: TurnsSearch, batch: int, groups: int) -> None:
        raise KeyboardInterrupt

    top = machines(2, 2)
    given = model((1.0, 1.0), (3.0, 3.0)).extend([top])
    monkeypatch.setattr(TurnsSearch, "try_one", interrupted)
    context = PassContext()
    plan = plan_of(planned_in_turns(given, top, ANY, context, "partition"))
    assert plan.value >= plan.bound > 0
    assert context.statistics["partition"]["interrupted"] == 1


def replayed(given: Module, plan: Plan, **more: object) -> Plan:
    """The plan, stated by a person with some other options."""
    certificate = dict(plan.certificate)
    names = [op.id.removeprefix("%") for op in given.entry.ops]
    options: dict[str, object] = {
        "ops": tuple(f"0:{name}" for name in names),
        "devices": tuple(f"0:{name}" for name in plan.stages[0].devices),
        "bound": plan.bound,
        "proof": certificate["bound"],
        "problem": certificate["problem"],
        **more,
    }
    module = AssignPass(**options).run(given, PassContext())  # type: ignore[arg-type]
    return plan_of(PlacePass().run(module, PassContext()))


def test_stated_turns_are_kept_and_so_is_the_bound() -> None:
    given = model((1.0, 1.0), (3.0, 3.0)).extend([machines(1, 1)])
    plan = plan_of(planned_in_turns(given, machines(1, 1), ANY, PassContext(), "partition"))
    again = replayed(given, plan, serves=("0:0,0,0,1",))
    assert (again.value, again.bound, again.status) == (1.5, 1.5, "optimal")
    other = replayed(given, plan, serves=("0:0,1",))
    assert (other.value, other.bound) == (3.0, 1.5)
    without = replayed(given, plan)
    assert (without.stages[0].serves, without.value) == ((0, 1), 3.0), "unlike devices without stated turns have one each"


def test_a_bound_of_plans_without_turns_is_none_of_plans_with_them() -> None:
    given = model((1.0, 1.0), (3.0, 3.0)).extend([machines(1, 1)])
    plan = plan_of(PartitionPass(mesh="none", replicas=0, comm="overlap").run(given, PassContext()))
    stated = replayed(given, replace(plan, stages=(PlanStage(0, "", ("f0", "s0")),)), comm="overlap", serves=("0:0,0,0,1",))
    assert stated.bound <= stated.value < plan.bound


def test_a_bound_holds_for_stages_of_whole_units_alone() -> None:
    """Both ops of each pair are in one unit, since three values cross between them."""
    seconds = {"fast": 1.0, "slow": 3.0}
    ops = (
        op("onnx.Relu", ["%x"], ["%v0"], seconds=seconds),
        op("onnx.Relu", ["%x"], ["%v1"], seconds=seconds),
        op("onnx.Add", ["%v0", "%v1"], ["%v2"], seconds=seconds),
    )
    given = Module("@m", (Func("@main", (value("%x"),), (value("%v2"),), ops),)).extend([machines(2, 2)])
    plan = plan_of(planned_in_turns(given, machines(2, 2), ANY, PassContext(), "partition"))
    stated: dict[str, object] = {"devices": ("0:f0", "0:s0", "1:f1", "1:s1"), "serves": ("0:0,0,0,1", "1:0,0,0,1")}
    along = replayed(given, plan, ops=("0:v0", "0:v1", "1:v2"), **stated)
    across = replayed(given, plan, ops=("0:v1", "1:v0", "1:v2"), **stated)
    assert along.bound == plan.bound
    assert dict(along.certificate)["bound"] == dict(plan.certificate)["bound"] != dict(across.certificate)["bound"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"serves": ("0:0,0",)}, "the replicas of its turns are listed as '0,0', and the stage has 2"),
        ({"serves": ("0:0,1,2",)}, "the replicas of its turns are listed as '0,1,2', and the stage has 2"),
        ({"serves": ("0:0,1",), "objective": "training", "microbatches": 2}, "its replicas are of different types"),
        (
            {"serves": ("0:0,0,1",), "objective": "training", "microbatches": 2, "devices": ("0:f0", "0:f1")},
            "it says which of its replicas have which turns, and the plan is for training",
        ),
        (
            {"serves": ("0:0,0,1",), "objective": "latency", "devices": ("0:f0", "0:f1")},
            "it says which of its replicas have which turns, and the plan is for latency",
        ),
        (
            {
                "ops": ("0:v0", "1:v1"),
                "devices": ("0:f0", "0:s0", "1:f1", "1:s1"),
                "serves": (f"0:{'0,' * 88}1", f"1:{'0,' * 96}1"),
            },
            "the turns of all stages meet again after 8633 microbatches, expected after 1024 at most",
        ),
        (
            {"ops": ("0:v0", "1:v1"), "devices": ("0:f0", "0:s0", "1:f0", "1:s0"), "serves": ("0:0,1",)},
            "its replicas have unlike turns, but stages 0 and 1 share devices",
        ),
    ],
)
def test_turns_that_cannot_be_are_refused(more: dict[str, object], message: str) -> None:
    given = model((1.0, 1.0), (3.0, 3.0)).extend([machines(2, 2)])
    plan = plan_of(planned_in_turns(given, machines(2, 2), ANY, PassContext(), "partition"))
    more = {"devices": ("0:f0", "0:s0"), **more}
    with pytest.raises(InvalidInput, match=message):
        replayed(given, plan, **more)
