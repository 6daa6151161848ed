"""Latency plans of models: pieces as stages, what place makes of them, and which options do not go with them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnnc.onnx import DIALECTS
from ir.core.diagnostics import Infeasible, UsageError
from ir.core.facets import StageSet
from ir.core.module import Func, Module, Plan, Schedule
from ir.core.topology import Device, DeviceType, Host, Link, Topology
from ir.verifier import verify
from passes.framework.base import PassContext
from passes.partition.place import PlacePass
from passes.programs.lower import LowerPass
from passes.programs.schedule import SchedulePass
from passes.reference.reference_pass import ReferencePass
from tests.passes.partition.lattice.groups.test_along_order import random_module
from tests.passes.staging import chain, devices, op, value


def plan_of(module: Module) -> Plan:
    plan = module.first(Plan)
    assert plan is not None
    return plan


def branches(count: int, seconds: float) -> Module:
    """One op that so many read side by side, and one that joins them."""
    ops = [op("onnx.Relu", ["%x"], ["%s"], seconds={"t": 1.0})]
    ops += [op("onnx.Relu", ["%s"], [f"%b{i}"], seconds={"t": seconds}) for i in range(count)]
    ops.append(op("onnx.Sum", [f"%b{i}" for i in range(count)], ["%y"], seconds={"t": 1.0}))
    return Module("@m", (Func("@main", (value("%x"),), (value("%y"),), tuple(ops)),))


def test_branches_run_side_by_side() -> None:
    """Alone 1 + 9 + 9 + 1 s. One branch on the other device costs two tensors of a second each way, beside the other branch."""
    module = branches(2, 9.0).extend([devices(2)])
    alone = plan_of(ReferencePass(objective="latency").run(module, PassContext()))
    assert alone.value == 20.0
    found = ReferencePass(objective="latency", pieces=3).run(module, PassContext())
    plan = plan_of(found)
    # First 1 + 1 sent; then 9 + 1 in + 1 out on either side; then 1 + 1 in.
    assert plan.value < 20.0
    assert (plan.objective, plan.status) == ("latency", "optimal")
    assert dict(plan.certificate)["pieces"] == "3"
    assert all(len(stage.devices) == 1 for stage in plan.stages)
    context = PassContext()
    final = LowerPass().run(SchedulePass().run(PlacePass().run(found, context), context), context)
    assert verify(final, dialects=DIALECTS) == []
    assert plan_of(final).value == plan.value == plan_of(final).port_value
    schedule = final.first(Schedule)
    assert schedule is not None
    assert schedule.latency <= plan.value  # what leaves a stage is read at once there, not when all of it has left


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3))
def test_place_values_one_sample_as_the_search_does(seed: int, pieces: int) -> None:
    """On links that are all alike the routes are what the ports say; more pieces are never worse."""
    module = random_module(seed).extend([devices(2)])
    context = PassContext()
    plans = [ReferencePass(objective="latency", pieces=q).run(module, context) for q in (1, pieces)]
    few, many = (plan_of(found) for found in plans)
    assert many.value <= few.value * (1 + 1e-9)
    placed = plan_of(PlacePass().run(plans[1], context))
    assert placed.value == pytest.approx(many.value)
    assert placed.bound <= placed.value * (1 + 1e-9)
    per_device = [stage.devices for stage in many.stages]
    assert max(per_device.count(names) for names in per_device) <= pieces
    stage_of = [op_.facet(StageSet, StageSet((0,))).stages[0] for op_ in plans[1].entry.ops]
    assert sorted(set(stage_of)) == list(range(len(many.stages)))


def test_a_model_that_fits_is_planned_where_counting_every_input_of_an_op_would_refuse_it() -> None:
    """Five ops of which each keeps two tensors of 1024 bytes alive: one device of 4096 bytes runs them all."""
    module = chain([0] * 5).extend([devices(2, memory=4096)])
    plan = plan_of(PlacePass().run(ReferencePass(objective="latency").run(module, PassContext()), PassContext()))
    assert (plan.value, plan.status, len(plan.stages)) == (5.0, "optimal", 1)
    assert "held at once" not in dict(plan.certificate)["bound"]
    with pytest.raises(Infeasible, match=r"bytes too many|short"):
        PlacePass().run(
            ReferencePass(objective="latency").run(chain([0] * 5).extend([devices(2, memory=1024)]), PassContext()),
            PassContext(),
        )


def test_slower_routes_make_it_later_not_the_bound() -> None:
    """The second and third device are far from the first; the search knows the best port only."""
    names = ("a", "b", "c")
    links = (Link("near", ("b", "c"), 4096.0, 0.0), Link("far", ("a", "b"), 64.0, 0.0))
    topology = Topology("@top", (DeviceType("t"),), (Host("h"),), tuple(Device(n, "t", "h") for n in names), (), links)
    plan = plan_of(
        PlacePass().run(
            ReferencePass(objective="latency", pieces=2).run(branches(3, 9.0).extend([topology]), PassContext()), PassContext()
        )
    )
    assert plan.bound <= plan.port_value <= plan.value


@settings(max_examples=4, deadline=None)
@given(st.integers(2, 4), st.sampled_from([1.0, 64.0, 512.0]), st.integers(2, 3))
def test_on_slow_links_none_is_later_than_the_devices_of_one_host(count: int, far: float, pieces: int) -> None:
    """Ports are as fast as the links inside hosts, so the best plan on ports goes from host to host where it should not."""
    devices_ = tuple(Device(name, "t", f"h{name[0]}") for name in ("a0", "a1", "b0", "b1"))
    links = (*(Link(f"in {h}", (f"{h}0", f"{h}1"), 8192.0, 0.0) for h in "ab"), Link("out", ("a1", "b0"), far, 0.0))
    topology = Topology("@top", (DeviceType("t"),), (Host("ha"), Host("hb")), devices_, (), links)
    module = branches(count, 9.0)

    def planned(topology: Topology) -> Plan:
        found = ReferencePass(objective="latency", pieces=pieces).run(module.extend([topology]), PassContext())
        return plan_of(PlacePass().run(found, PassContext()))

    plan, one_host = planned(topology), planned(replace(topology, hosts=(Host("ha"),), devices=devices_[:2], links=links[:1]))
    assert plan.bound <= plan.value <= min(one_host.value, plan.single) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stages": 2}, "--stages: not an option of objective=latency"),
        ({"replicas": 2}, "--replicas: not an option of objective=latency"),
        ({"comm": "overlap"}, "--comm: not an option of objective=latency"),
        ({"cuts": ("v0",)}, "--cut: not an option of objective=latency"),
        ({"objective": "throughput", "pieces": 2}, "--pieces: not an option of objective=throughput"),
        ({"split": "any"}, "there is no split=any of objective=latency"),
    ],
)
def test_what_does_not_go_together(options: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ReferencePass(**{"objective": "latency", **options}).run(chain([0, 0]).extend([devices(2)]), PassContext())  # type: ignore[arg-type]


def test_devices_with_free_transfers_are_no_cpus_of_a_model() -> None:
    type_ = DeviceType("t", free_transfers=True)
    topology = Topology("@top", (type_,), (Host("h"),), (Device("a", "t", "h"),))
    with pytest.raises(UsageError, match="with free transfers"):
        ReferencePass(objective="latency").run(chain([0]).extend([topology]), PassContext())
