"""Assign: a given plan becomes stages and devices; every fault of it is reported with its stage."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ir.core.diagnostics import InvalidInput, UsageError
from ir.core.facets import StageSet
from ir.core.module import Func, Module, Plan
from ir.core.ops import Location
from ir.core.topology import Device, DeviceType, Host, Link, Topology
from passes.framework.base import PassContext, needed
from passes.partition.partition_pass import PartitionPass
from passes.partition.place import PlacePass
from passes.partition.replay.assign import AssignPass
from tests.passes.staging import chain, devices, op, value


def bare_chain(count: int, topology: Topology | None = None) -> Module:
    module = chain([0] * count)
    entry = module.entry
    ops = tuple(
        replace(o, facets=tuple(f for f in o.facets if not isinstance(f, StageSet)), location=Location("main", f"node{i}"))
        for i, o in enumerate(entry.ops)
    )
    return module.replace(entry, replace(entry, ops=ops)).extend([topology or devices(2)])


def assign(module: Module, *ops: str, devices: tuple[str, ...] = ()) -> Module:
    return AssignPass(ops=ops, devices=devices, source="plan.json").run(module, PassContext())


def members(module: Module) -> list[tuple[int, ...]]:
    return [o.facet(StageSet, StageSet(())).stages for o in module.entry.ops]


def faults(module: Module, *ops: str, devices: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    with pytest.raises(InvalidInput) as raised:
        assign(module, *ops, devices=devices)
    return [(d.where, d.message) for d in raised.value.diagnostics]


def test_ops_by_value_with_and_without_sigil_and_by_node() -> None:
    module = assign(bare_chain(3), "0:%v0", "0:v1", "1:node2")
    assert members(module) == [(0,), (0,), (1,)]


def test_the_plan_is_feasible_with_a_bound_and_keeps_devices_through_place() -> None:
    module = assign(bare_chain(3), "0:v0", "1:v1", "1:v2", devices=("0:d1", "1:d0"))
    plan = module.first(Plan)
    assert plan is not None
    assert plan.status == "within-gap"
    assert plan.bound == pytest.approx(1.5), "three ops of a second on two devices"
    assert plan.single == pytest.approx(3.0)
    assert [stage.devices for stage in plan.stages] == [("d1",), ("d0",)]
    final = PlacePass().run(module, PassContext()).first(Plan)
    assert final is not None
    assert [stage.devices for stage in final.stages] == [("d1",), ("d0",)]
    assert final.bound <= final.port_value <= final.value == 3.0


def test_an_op_in_two_stages_is_replicated() -> None:
    assert members(assign(bare_chain(2), "0:v0", "1:v0", "1:v1")) == [(0, 1), (1,)]


def test_a_stage_without_a_device_is_placed_on_any_type() -> None:
    module = PlacePass().run(assign(bare_chain(2), "0:v0", "1:v1"), PassContext())
    plan = module.first(Plan)
    assert plan is not None
    assert all(stage.devices and stage.device_type == "t" for stage in plan.stages)


def test_replicas_share_the_load_and_the_bound_allows_it() -> None:
    module = assign(bare_chain(1), "0:v0", devices=("0:d0", "0:d1"))
    plan = PlacePass().run(module, PassContext()).first(Plan)
    assert plan is not None
    assert (plan.bound, plan.value) == (0.5, 0.5)


def test_a_model_that_fits_no_device_has_no_single_value() -> None:
    plan = assign(bare_chain(2, devices(2, memory=10)), "0:v0", "1:v1").first(Plan)
    assert plan is not None
    assert plan.single == math.inf


def test_every_fault_is_reported_with_its_stage() -> None:
    found = faults(bare_chain(3), "0:v0", "0:v0", "1:v9", "1:v1", devices=("0:d0", "1:d7"))
    assert found == [
        ("plan.json: stage 0", "op 'v0' is listed twice"),
        ("plan.json: stage 1", "no op is called 'v9'"),
        ("plan.json: main/node2 (%v2)", "op 'v2' is in no stage"),
        ("plan.json: stage 1", "no device is called 'd7'"),
    ]


def test_a_slip_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(InvalidInput) as raised:
        assign(bare_chain(1), "0:v00")
    assert raised.value.diagnostics[0].hint == "did you mean 'v0'?"


def test_many_faults_of_one_kind_are_counted() -> None:
    found = faults(bare_chain(20), "0:v0")
    assert [message for _, message in found[:2]] == ["op 'v1' is in no stage", "op 'v2' is in no stage"]
    assert found[-1][1] == "14 more ops are in no stage"
    assert len(found) == 6


def test_a_plan_of_another_model_is_told_in_one_fault() -> None:
    """Neither the nearest names, which have nothing to do with it, nor the ops that are in no stage."""
    ops = ("0:v0", *(f"0:v{n}" for n in range(100, 106)))
    for made_for, hint in (
        ("zoo:unet", "it was made for zoo:unet: compile that"),
        ("", "compile the model that it was made for"),
    ):
        with pytest.raises(InvalidInput) as raised:
            AssignPass(ops=ops, devices=("0:d7",), source="plan.json", made_for=made_for).run(bare_chain(20), PassContext())
        (fault,) = raised.value.diagnostics
        assert fault.where == "plan.json"
        assert fault.message == "it is a plan of another model: it names 7 ops, of which this one has 1"
        assert fault.hint == f"{hint}, or plan this one anew"
    assert len(faults(bare_chain(20), *ops, *(f"0:v{n}" for n in range(1, 6)))) > 1, "half of its ops are in the model"


def test_a_value_that_would_travel_back_names_both_ops() -> None:
    (fault,) = faults(bare_chain(2), "1:v0", "0:v1")
    assert fault == ("main/node1 (%v1)", "stage 0 reads %v0, which stage 1 makes (main/node0 (%v0))")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("0:d0", "0:d0"), "device 'd0' is listed twice"),
        (("5:d0",), "stage 5 has a device but no op"),
    ],
)
def test_faulty_devices(given: tuple[str, ...], message: str) -> None:
    assert [m for _, m in faults(bare_chain(2), "0:v0", "1:v1", devices=given)] == [message]


def test_stages_share_all_their_devices_or_none() -> None:
    found = faults(bare_chain(2), "0:v0", "1:v1", devices=("0:d0", "1:d0", "1:d1"))
    assert [m for _, m in found] == ["device 'd0' already runs stage 1", "device 'd0' already runs stage 0"]
    plan = assign(bare_chain(3), "0:v0", "1:v1", "2:v2", devices=("0:d0", "1:d1", "2:d0")).first(Plan)
    assert plan is not None
    assert [stage.devices for stage in plan.stages] == [("d0",), ("d1",), ("d0",)]


def test_a_node_name_used_twice_is_ambiguous() -> None:
    ops = tuple(replace(op("onnx.A", ["%x"], [f"%v{i}"]), location=Location("main", "same")) for i in range(2))
    module = Module("@m", (Func("@main", (value("%x"),), (value("%v1"),), ops), devices(1)))
    assert faults(module, "0:same", "0:v0", "0:v1") == [("plan.json: stage 0", "2 nodes are called 'same'")]


def test_an_entry_without_a_stage_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="'v0' found, 'STAGE:NAME' expected"):
        assign(bare_chain(1), "v0")


def test_a_proven_bound_is_not_that_of_plans_that_run_an_op_twice() -> None:
    """Two readers of a cheap op's large output: no plan that runs it once is below 7.1 s, one that runs it twice takes 5.1."""
    ops = [op("onnx.Relu", ["%x"], ["%s"], seconds={"t": 0.1})]
    ops += [op("onnx.Relu", ["%s"], [f"%b{i}"], seconds={"t": 5.0}) for i in range(2)]
    module = Module("@m", (Func("@main", (value("%x"),), (value("%b0"), value("%b1")), tuple(ops)), devices(2)))
    context = PassContext()
    searched = PlacePass().run(PartitionPass().run(module, context), context).first(Plan)
    assert searched is not None
    assert searched.value > 6.0
    proof = {"bound": searched.bound, "problem": dict(searched.certificate)["problem"]}
    twice = AssignPass(ops=("0:s", "0:b0", "1:s", "1:b1"), devices=("0:d0", "1:d1"), **proof)
    plan = PlacePass().run(twice.run(module, context), context).first(Plan)
    assert plan is not None
    assert plan.bound <= plan.value == 5.1


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_a_proven_bound_is_not_that_of_another_objective(objective: str) -> None:
    """A word in plan.json made the bound of a stream one of latency."""
    module, context = bare_chain(3), PassContext()
    searched = PartitionPass(mesh="none").run(module, context).first(Plan)
    assert searched is not None
    proof = {"bound": searched.bound, "problem": dict(searched.certificate)["problem"], "proof": "the search"}
    stated = AssignPass(ops=("0:v0", "1:v1", "1:v2"), devices=("0:d0", "1:d1"), objective=objective, **proof)  # type: ignore[arg-type]
    plan = stated.run(module, context).first(Plan)
    assert plan is not None
    assert (dict(plan.certificate)["bound"] == "the search") == (objective == "throughput")


def test_the_bound_of_a_stated_plan_is_no_more_than_plans_of_other_kinds_take() -> None:
    """The one op takes a second on a device, and its replicas take it in turns."""
    module, context = bare_chain(1), PassContext()
    plan = assign(module, "0:v0", devices=("0:d0",)).first(Plan)
    best = PartitionPass(mesh="none", replicas=0).run(module, context).first(Plan)
    assert plan is not None
    assert best is not None
    assert plan.bound == best.value == 0.5


def test_replicas_of_unlike_ports_pay_for_the_slowest() -> None:
    named = tuple(Device(name, "t", "h") for name in "abc")
    links = (Link("ab", ("a", "h"), 1024.0, 0.0), Link("bb", ("b", "h"), 512.0, 0.0), Link("cb", ("c", "h"), 1024.0, 0.0))
    topology = Topology("@top", (DeviceType("t"),), (Host("h"),), named, (), links)
    received = []
    for replicas in (("1:a", "1:b"), ("1:a",)):
        plan = PlacePass().run(assign(bare_chain(2, topology), "0:v0", "1:v1", devices=("0:c", *replicas)), PassContext())
        received.append(needed(plan, Plan).stages[1].receive)
    assert received[0] == 2 * received[1]
