"""The schedule of a training step: 1F1B by hand, its times against a longest path, and never above the plan's formula."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnnc.machines.topology import load_topology
from dnnc.onnx import DIALECTS
from ir import parse_module, print_module, verify
from ir.core.diagnostics import DiagnosticSink
from ir.core.module import Action, Module, Plan, Schedule
from ir.core.types import TensorType
from ir.ops.rows import BACKWARD, COMPUTE, UPDATE
from passes.costs.network import network
from passes.graph.symbols import insert_symbols
from passes.meshes.costs.bill import Bill
from passes.meshes.costs.price import price
from passes.meshes.mesh import mesh_of
from passes.meshes.staged import Staged
from passes.partition.layouts import build, decisions_of, named_plan
from passes.plan.written import written
from passes.timeline.families import step
from passes.timeline.simulate import run_rows, simulate
from passes.timeline.workload import Wire, Workload, workload
from tests.passes.partition.layouts.models import prepared
from tests.passes.partition.layouts.test_stage_plans import SMALL, sharded


def loaded(
    forward: list[float], backward: list[float], wires: list[Wire], sync: list[float] | None = None, comm: str = "sum"
) -> Workload:
    devices = tuple((f"d{s}",) for s in range(len(forward)))
    return Workload(
        tuple(forward), devices, tuple(wires), comm, backward=tuple(backward), sync=tuple(sync or [0.0] * len(forward))
    )


def gradient(wire: Wire) -> Wire:
    """The way back of the gradient of what a wire carries: its ends are busy as long."""
    return Wire(wire.target, wire.source, wire.receive, wire.send, made="I", read="I")


def of_stages(load: Workload, microbatches: int) -> list[float]:
    """What the plan charges each stage of a microbatch: both passes, transfers both ways, its part of the synchronisation."""
    spent = [f + b + s / microbatches for f, b, s in zip(load.compute, load.backward, load.sync, strict=True)]
    for wire in load.wires:
        spent[wire.source] += wire.send
        spent[wire.target] += wire.receive
    return spent


def formula(load: Workload, microbatches: int) -> float:
    return (microbatches + len(load.compute) - 1) * max(of_stages(load, microbatches))


def test_two_stages_by_hand() -> None:
    load = loaded([2.0, 1.0], [3.0, 2.0], [Wire(0, 1, 0.5, 0.25), gradient(Wire(0, 1, 0.5, 0.25))], [0.0, 4.0])
    schedule = step(load, 2)
    rows = {device: [(a.kind, a.microbatch, a.channel) for a in actions] for device, actions in schedule.rows}
    assert rows == {
        "d0": [
            *[("F", 0, None), ("send", 0, 0), ("F", 1, None), ("send", 1, 0)],
            *[("recv", 0, 1), ("B", 0, None), ("recv", 1, 1), ("B", 1, None)],
        ],
        "d1": [
            *[("recv", 0, 0), ("F", 0, None), ("B", 0, None), ("send", 0, 1)],
            *[("recv", 1, 0), ("F", 1, None), ("B", 1, None), ("send", 1, 1), ("U", None, None)],
        ],
    }
    assert (schedule.kind, schedule.periodic, schedule.microbatches) == ("1f1b", False, 2)
    events = run_rows(load, schedule_rows(schedule))
    ends = {(e.device, e.action.kind, e.action.microbatch): e.end for e in events}
    # d1: receives from 2.5, runs F and B until 5.75, sends until 6; the second from 6 until 9.5, then synchronises.
    assert ends["d1", "B", 0] == 5.75
    assert ends["d1", "U", None] == 13.5
    assert ends["d0", "recv", 0] == 6.5
    assert ends["d0", "B", 0] == 9.5
    assert ends["d0", "B", 1] == 9.5 + 0.5 + 3.0
    assert schedule.period == schedule.latency == 13.5


def schedule_rows(schedule: Schedule) -> dict[str, list[Action]]:
    return {device: list(actions) for device, actions in schedule.rows}


def longest_path(load: Workload, microbatches: int) -> float:
    """When a step ends, from the definition: each stage does one thing after the other in the order of 1F1B, a pass with what
    it receives and sends as one; what another stage sends is there when that sending has ended."""
    count = len(load.compute)

    def order(s: int) -> list[tuple[str, int]]:
        """Backward pass k is behind the first of forward pass k + (stages behind this one) and the last of all."""
        forward = [("F", m, m) for m in range(microbatches)]
        backward = [("B", m, min(m + count - 1 - s, microbatches - 1)) for m in range(microbatches)]
        return [(kind, m) for kind, m, _ in sorted(forward + backward, key=lambda row: (row[2], row[0] == "B", row[1]))]

    orders = [order(s) for s in range(count)]

    @cache
    def sent(s: int, kind: str, m: int, channel: int) -> float:
        """When the sending of a value, or a gradient, has ended."""
        outgoing = sending(s, kind)
        return ended(s, kind, m) + sum(cost for c, cost in outgoing[: [c for c, _ in outgoing].index(channel) + 1])

    def sending(s: int, kind: str) -> list[tuple[int, float]]:
        made = "F" if kind == "F" else "I"
        return [(c, w.send) for c, w in enumerate(load.wires) if w.source == s and w.made == made]

    @cache
    def ended(s: int, kind: str, m: int) -> float:
        """When the compute of a pass has ended."""
        place = orders[s].index((kind, m))
        clock = 0.0
        if place:
            before = orders[s][place - 1]
            clock = ended(s, *before) + sum(cost for _, cost in sending(s, before[0]))
        for c, w in enumerate(load.wires):
            if w.target == s and w.made == ("F" if kind == "F" else "I"):
                clock = max(clock, sent(w.source, kind, m, c)) + w.receive
        return clock + (load.compute if kind == "F" else load.backward)[s]

    last = [ended(s, *orders[s][-1]) + sum(cost for _, cost in sending(s, orders[s][-1][0])) for s in range(count)]
    return max(clock + sync for clock, sync in zip(last, load.sync, strict=True))


@st.composite
def loads(draw: st.DrawFn, comm: str = "sum") -> Workload:
    count = draw(st.integers(1, 6))
    seconds = st.floats(0.0, 1.0)
    pairs = [(i, i + 1) for i in range(count - 1)]
    if count > 2:
        ends = st.lists(st.integers(0, count - 1), min_size=2, max_size=2, unique=True)
        pairs += [(min(pair), max(pair)) for pair in draw(st.lists(ends, max_size=3))]
    wires = [Wire(a, b, draw(seconds), draw(seconds)) for a, b in sorted(pairs)]
    wires += [gradient(wire) for wire in wires if draw(st.booleans()) or wire.target == wire.source + 1]
    sync = [draw(seconds) * 4 if draw(st.booleans()) else 0.0 for _ in range(count)]
    times = [[draw(seconds) for _ in range(count)] for _ in range(2)]
    return loaded(times[0], times[1], wires, sync, comm)


@given(loads(), st.integers(1, 9))
@settings(deadline=None, max_examples=35)
def test_a_step_takes_its_longest_path_and_never_more_than_the_formula(load: Workload, microbatches: int) -> None:
    schedule = step(load, microbatches)
    assert schedule.period == schedule.latency == pytest.approx(longest_path(load, microbatches), rel=1e-9)
    unsynced = replace(load, sync=(0.0,) * len(load.compute))
    assert step(unsynced, microbatches).period <= formula(unsynced, microbatches) * (1 + 1e-9)
    assert schedule.period <= formula(unsynced, microbatches) * (1 + 1e-9) + max(load.sync)
    assert schedule.period >= microbatches * max(of_stages(load, microbatches)) * (1 - 1e-9)


@given(st.integers(1, 8), st.integers(1, 12), st.floats(0.01, 1.0), st.floats(0.01, 1.0), st.floats(0.0, 5.0))
@settings(deadline=None, max_examples=30)
def test_equal_stages_take_just_the_formula(
    stages: int, microbatches: int, forward: float, backward: float, sync: float
) -> None:
    """Without transfers; what all synchronise comes on top, but for the part that the formula has of it."""
    wires = [Wire(s, s + 1, 0.0, 0.0) for s in range(stages - 1)]
    wires += [gradient(wire) for wire in wires]
    load = loaded([forward] * stages, [backward] * stages, wires)
    assert step(load, microbatches).period == pytest.approx((microbatches + stages - 1) * (forward + backward), rel=1e-9)
    assert step(load, microbatches).period == pytest.approx(formula(load, microbatches), rel=1e-9)
    synced = replace(load, sync=(sync,) * stages)
    assert step(synced, microbatches).period == pytest.approx(formula(load, microbatches) + sync, rel=1e-9)


@pytest.mark.parametrize("comm", ["overlap", "duplex"])
def test_transfers_in_lanes_of_their_own_make_no_step_longer(comm: str) -> None:
    @given(loads(comm), st.integers(1, 6))
    @settings(deadline=None, max_examples=20)
    def check(load: Workload, microbatches: int) -> None:
        assert step(load, microbatches).period <= step(replace(load, comm="sum"), microbatches).period * (1 + 1e-9)

    check()


@given(loads(), st.integers(1, 9))
@settings(deadline=None, max_examples=40)
def test_few_microbatches_are_in_flight_and_gradients_are_synchronised_last(load: Workload, microbatches: int) -> None:
    count = len(load.compute)
    for stage, (_, actions) in enumerate(step(load, microbatches).rows):
        flight, most = 0, 0
        done: dict[str, list[int | None]] = defaultdict(list)
        for action in actions:
            flight += {COMPUTE: 1, BACKWARD: -1}.get(action.kind, 0)
            most = max(most, flight)
            done[action.kind].append(action.microbatch)
        assert done[COMPUTE] == done[BACKWARD] == list(range(microbatches))
        assert most == min(microbatches, count - stage)
        assert done[UPDATE] == ([None] if load.sync[stage] else [])
        assert not load.sync[stage] or actions[-1].kind == UPDATE


def test_a_link_that_transfers_share_is_busy_both_ways() -> None:
    """Half duplex: a value and a gradient do not cross it at once; by a link each way they would."""
    shared = ((("link", 1.0),),)
    there = Wire(0, 1, 1.0, 1.0, ((("there", 1.0),),))
    back = replace(gradient(there), media=((("back", 1.0),),))
    load = loaded([0.1, 0.1], [0.1, 0.1], [replace(there, media=shared), replace(back, media=shared)])
    assert step(load, 4).period >= 8.0
    assert step(load, 4).period >= step(replace(load, wires=(there, back)), 4).period


def planned(module: Module) -> tuple[Plan, Schedule]:
    plan, schedule = module.first(Plan), module.first(Schedule)
    assert plan is not None
    assert schedule is not None
    return plan, schedule


@pytest.mark.parametrize(
    ("options", "microbatches"),
    [
        ({"mesh": "2", "stages": 2}, 6),
        ({"mesh": "1", "stages": 4}, 2),
        ({"mesh": "4", "strategy": "data"}, 1),  # the whole batch at once, over four
    ],
)
def test_a_sharded_plan_is_scheduled(options: dict[str, object], microbatches: int) -> None:
    """All that the plan charges is in the rows once: passes, both ways of transfers, the update."""
    module = sharded(f"{SMALL},batch=4", "preset:cpu-8", training=True, microbatches=microbatches, **options)
    assert verify(module, dialects=DIALECTS) == []
    assert parse_module(print_module(module)) == module
    plan, schedule = planned(module)
    assert plan.microbatches == schedule.microbatches == microbatches
    load = workload(module)
    assert any(wire.made == "I" for wire in load.wires) == (len(plan.stages) > 1)
    charged = [stage.working + stage.receive + stage.send for stage in plan.stages]
    assert of_stages(load, microbatches) == pytest.approx(charged, rel=1e-9)
    assert all(0 < stage.backward < stage.working for stage in plan.stages)
    assert plan.value == pytest.approx(max(formula(load, microbatches), schedule.latency), rel=1e-9)
    assert max(charged) * microbatches * (1 - 1e-9) <= schedule.latency
    assert plan.bound <= formula(load, microbatches) * (1 + 1e-9)
    events = simulate(module)
    assert max(event.end for event in events) == schedule.latency
    for kind in (COMPUTE, BACKWARD):
        done = [(e.device, e.action.microbatch) for e in events if e.action.kind == kind]
        assert sorted(done) == sorted((d, m) for stage in plan.stages for d in stage.devices for m in range(microbatches))
    assert sum(event.action.kind == UPDATE for event in events) == sum(len(stage.devices) for stage in plan.stages)


@pytest.mark.slow
def test_a_value_is_never_below_the_step() -> None:
    """The first stage synchronises longest, behind the last backward pass, and is not the slowest: its step takes longer than
    filling, running and draining at the pace of the slowest."""
    model = "zoo:bert-base,layers=2,hidden=64,heads=2,seq=4,vocab=16000,batch=2"
    options: dict[str, object] = {"mesh": "2", "stages": 2, "strategy": "data", "microbatches": 4}
    module = sharded(model, "preset:cpu-8", training=True, **options)
    plan, schedule = planned(module)
    assert formula(workload(module), 4) * (1 + 1e-6) < schedule.latency == pytest.approx(plan.value, rel=1e-9)
    assert plan.status == "within-gap"


def gathered(bill: Bill) -> float:
    """Seconds in which weights are gathered for a forward pass."""
    return sum(one.seconds for one in bill.collectives if one.value.startswith("@") and not one.backward)


def test_what_a_step_takes_is_told_apart() -> None:
    """By samples over four devices: weights apart, a plan costs without its backward pass what inference does, and a step of
    six microbatches synchronises as long as one of one."""
    bare, found = prepared(f"{SMALL},batch=4")
    topology = load_topology("preset:cpu-4", DiagnosticSink())
    module = insert_symbols(bare, (topology,))
    mesh = mesh_of(topology, network(topology), (4,))
    given = build(module, module.entry, mesh, found, training=True)
    data = named_plan(module, given, "data")
    decisions, ops = decisions_of(given, data.choices), tuple(range(len(module.entry.ops)))
    synced = []
    for microbatches in (1, 6):
        bill = price(module, module.entry, mesh, decisions, training=True, microbatches=microbatches)
        plan = Plan("@plan", "training", "sum", bill.total, bill.total, 0.0, "within-gap", 1.0, (), (), microbatches)
        decided = written(module, [Staged(ops, mesh, decisions, bill)], plan).first(Plan)
        assert decided is not None
        stage = decided.stages[0]
        inference = price(module, module.entry, mesh, decisions)
        forward = stage.working - stage.backward - stage.sync / microbatches
        assert forward - gathered(bill) == pytest.approx(inference.total - gathered(inference), rel=1e-9)
        synced.append(stage.sync - bill.update * microbatches + gathered(bill))
    assert synced[0] == pytest.approx(synced[1], rel=1e-9)
    sizes = [resource.type.nbytes or 0 for resource in module.resources.values() if isinstance(resource.type, TensorType)]
    ring = sum(mesh.axes[0].rings.reduce_seconds(4, size) for size in sizes if size > 4)
    assert ring / 2 < synced[0] <= ring * (1 + 1e-9), "a ring sums a gradient, or half of it gathers the weight; not all learn"
