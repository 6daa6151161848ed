"""Splits that are not contiguous as stages in one order: their pieces, and what the passes behind partition make of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnnc.onnx import DIALECTS
from ir.core.diagnostics import Infeasible, UsageError
from ir.core.facets import StageSet
from ir.core.module import Func, Module, Plan, Resource, Schedule, Splat
from ir.core.topology import Device, DeviceType, Host, Link, Topology
from ir.core.types import DType, TensorType
from ir.verifier import verify
from passes.costs.network import network
from passes.framework.base import PassContext
from passes.partition.place import PlacePass
from passes.programs.lower import LowerPass
from passes.programs.schedule import SchedulePass
from passes.reference.pieces import pieces
from passes.reference.reference_pass import ReferencePass
from passes.stages.from_ir import problem_of
from passes.stages.problem import Problem
from passes.timeline.simulate import simulate
from tests.passes.partition.instances import random_problem
from tests.passes.reference.any_brute import brute_force_any
from tests.passes.staging import chain, devices, op, planned, value


def fewest(problem: Problem, sets: Sequence[Sequence[int]]) -> int:
    """The least number of pieces, over every order of turns and every part of what a device could do in one."""
    home = {v: d for d, nodes in enumerate(sets) for v in nodes}
    before = {v: set() for v in range(problem.size)}
    for u, readers in zip(problem.producer, problem.consumers, strict=True):
        for v in readers:
            before[v].add(int(u))
    level, count = {(frozenset(), -1)}, 0
    while not any(len(done) == problem.size for done, _ in level):
        count += 1
        following = set()
        for done, _ in level:
            for device in range(len(sets)):
                grown = [done]
                seen = {done}
                while grown:
                    here = grown.pop()
                    for v in sets[device]:
                        if v not in here and before[v] <= here and (wider := here | {v}) not in seen:
                            seen.add(wider)
                            grown.append(wider)
                following |= {(wider, device) for wider in seen if wider != done}
        level = following
    assert len(home) == problem.size
    return count


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3))
def test_pieces_are_few_and_in_order(seed: int, count: int) -> None:
    problem = random_problem(seed, nodes=7, memory=False, demands=False)
    rng = random.Random(seed)
    homes = [rng.randrange(count) for _ in range(problem.size)]
    sets = [[v for v in range(problem.size) if homes[v] == d] for d in range(count)]
    found = pieces(problem, sets)
    place = {v: i for i, (_, nodes) in enumerate(found) for v in nodes}
    assert sorted(place) == list(range(problem.size)) == sorted(v for _, nodes in found for v in nodes)
    assert all(homes[v] == owner for owner, nodes in found for v in nodes)
    assert all(
        place[int(u)] <= place[v] for u, readers in zip(problem.producer, problem.consumers, strict=True) for v in readers
    )
    assert all(a[0] != b[0] for a, b in pairwise(found))
    assert len(found) == fewest(problem, sets)


def test_stages_of_one_device_take_turns() -> None:
    """a -> b -> a: each hand-over takes a second at both ends; three ops of 2 s."""
    module = planned(chain([0, 1, 2], seconds=2.0), devices(2), {0: ("d0",), 1: ("d1",), 2: ("d0",)})
    context = PassContext()
    module = LowerPass().run(SchedulePass().run(PlacePass().run(module, context), context), context)
    assert verify(module, dialects=DIALECTS) == []
    plan, schedule = module.first(Plan), module.first(Schedule)
    assert plan is not None
    assert schedule is not None
    assert plan.value == 2 * 2 + 2 * 1  # d0: two ops, one tensor out, one in
    assert [device for device, _ in schedule.rows] == ["d0", "d1"]
    assert schedule.period == 6.0
    assert schedule.latency == 3 * 2 + 4 * 1
    ends = [event.end for event in simulate(module, 60) if event.action.kind == "F" and event.action.stage == 2]
    assert (ends[50] - ends[20]) / 30 == pytest.approx(6.0)


def test_what_passes_within_a_device_is_free() -> None:
    plan = PlacePass().run(planned(chain([0, 1]), devices(2), {0: ("d0",), 1: ("d0",)}), PassContext()).first(Plan)
    assert plan is not None
    assert plan.value == 2.0
    assert [(stage.receive, stage.send) for stage in plan.stages] == [(0.0, 0.0), (0.0, 0.0)]


def test_stages_of_one_device_share_its_memory() -> None:
    """Each stage needs two vectors of workspace or buffers and more; both do not fit where one does."""
    given_ = {0: ("d0",), 1: ("d1",), 2: ("d0",)}
    alone = PlacePass().run(planned(chain([0, 1, 2]), devices(2), given_), PassContext()).first(Plan)
    assert alone is not None
    most = max(stage.memory for stage in alone.stages)
    with pytest.raises(Infeasible, match="of other stages there"):
        PlacePass().run(planned(chain([0, 1, 2]), devices(2, memory=most), given_), PassContext())


def test_options_of_contiguous_splits_are_refused() -> None:
    module = chain([0, 0]).extend([devices(2)])
    for options, flag in (({"stages": 2}, "--stages"), ({"replicas": 2}, "--replicas")):
        with pytest.raises(UsageError, match=f"{flag}: not an option of split=any"):
            ReferencePass(split="any", **options).run(module, PassContext())


def there_and_back() -> Module:
    """Three ops in a row: the middle one runs on type ``other`` alone, the others on ``t`` alone."""
    kinds = ("t", "other", "t")
    ops = [op("onnx.Relu", [f"%v{i - 1}" if i else "%x"], [f"%v{i}"], seconds={k: 3.0}) for i, k in enumerate(kinds)]
    types = (DeviceType("t"), DeviceType("other"))
    links = (Link("l", ("a", "b"), 1024.0, 0.0),)
    topology = Topology("@top", types, (Host("h"),), (Device("a", "t", "h"), Device("b", "other", "h")), (), links)
    return Module("@m", (Func("@main", (value("%x"),), (value("%v2"),), tuple(ops)), topology))


def test_a_split_that_no_contiguous_one_replaces() -> None:
    with pytest.raises(Infeasible):
        ReferencePass().run(there_and_back(), PassContext())
    module = ReferencePass(split="any").run(there_and_back(), PassContext())
    plan = module.first(Plan)
    assert plan is not None
    assert [op_.facet(StageSet, StageSet(())).stages for op_ in module.entry.ops] == [(0,), (1,), (2,)]
    assert [stage.devices for stage in plan.stages] == [("a",), ("b",), ("a",)]
    assert (plan.value, plan.bound, plan.status) == (8.0, 8.0, "optimal")
    assert dict(plan.certificate)["split"] == "any"
    assert verify(module, dialects=DIALECTS) == []
    final = PlacePass().run(module, PassContext()).first(Plan)
    assert final is not None
    assert (final.value, final.port_value, final.status) == (8.0, 8.0, "optimal")


def test_where_memory_may_bind_the_bound_is_of_all_plans() -> None:
    """The search counts the pieces of a device as held at once, so plans that it leaves out may fit and be better. Every plan
    holds its weights: what is proven with these alone counts."""
    free = ReferencePass(split="any").run(chain([0] * 6, seconds=3.0).extend([devices(2)]), PassContext()).first(Plan)
    tight = ReferencePass(split="any").run(chain([0] * 6, seconds=3.0).extend([devices(2, memory=9_000)]), PassContext())
    plan = tight.first(Plan)
    assert free is not None
    assert plan is not None
    assert (free.value, free.bound, free.status) == (10.0, 10.0, "optimal")
    assert (plan.value, plan.bound, plan.status) == (10.0, 10.0, "optimal")


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_bounds_where_memory_binds_hold_for_weights_alone(seed: int) -> None:
    """No bound is above the best assignment of all that holds its weights, and none below balance."""
    rng = random.Random(seed)
    count = rng.randint(2, 6)
    weights = [Resource(f"@w{v}", TensorType(DType.F32, (rng.choice((64, 128, 512)),)), Splat(0)) for v in range(count)]
    ops = tuple(
        op(
            "onnx.Custom",
            [f"%v{rng.randrange(v)}" if v else "%x", f"@w{v}"],
            [f"%v{v}"],
            seconds={"t": float(rng.choice((1, 2, 3)))},
        )
        for v in range(count)
    )
    func = Func("@main", (value("%x"),), (value(f"%v{count - 1}"),), ops)
    topology = devices(rng.randint(2, 3), memory=rng.choice((4_000, 6_000, 9_000)))
    module = Module("@m", (*weights, func, topology))
    try:
        plan = ReferencePass(split="any", time_limit=5.0).run(module, PassContext()).first(Plan)
    except Infeasible:
        return
    assert plan is not None
    problem = problem_of(module, topology, network(topology))
    weightless = replace(problem, live=0 * problem.live, tensor_bytes=0 * problem.tensor_bytes)
    least = brute_force_any(weightless)
    balance = float(problem.seconds[0].sum()) / len(topology.devices)
    assert balance * (1 - 1e-9) <= plan.bound <= least * (1 + 1e-9)
    assert plan.bound <= plan.value * (1 + 1e-12)


def test_pieces_that_cost_what_they_save_are_not_made() -> None:
    """Nodes that hand over and take back gain nothing once every hand-over is paid for: as many stages as devices remain, and
    the certificate tells what is received."""
    plan = ReferencePass(split="any").run(chain([0] * 6, seconds=3.0).extend([devices(2)]), PassContext()).first(Plan)
    assert plan is not None
    assert len(plan.stages) == 2
    assert dict(plan.certificate)["boundaries"] == "transfers per sample: 1, pairs of devices: 1"


def test_a_contiguous_answer_has_one_stage_per_device() -> None:
    """Where going back and forth does not pay the plan is what the contiguous split gives."""
    module = chain([0] * 6, seconds=3.0).extend([devices(2)])
    plan = ReferencePass(split="any").run(module, PassContext()).first(Plan)
    assert plan is not None
    assert plan.value == 10.0
    assert [stage.devices for stage in plan.stages] == [(), ()]


def test_no_time_at_all_ends_with_a_plan() -> None:
    module = chain([0] * 6, seconds=3.0).extend([devices(2)])
    plan = ReferencePass(split="any", time_limit=0.0).run(module, PassContext()).first(Plan)
    assert plan is not None
    assert 9.0 <= plan.bound <= plan.value <= 18.0
