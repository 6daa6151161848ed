"""The pass: facets and plan it writes, what a person may ask for, and what it says when that cannot be."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

import pytest

from ir.core.diagnostics import Infeasible, InvalidInput, Severity
from ir.core.facets import StageSet
from ir.core.module import Func, Module, Plan, Resource, Splat
from ir.core.ops import Location
from ir.core.topology import Device, DeviceType, Host, Link, Topology
from ir.core.types import DType, TensorType
from passes.costs.network import network
from passes.framework.base import PassContext
from passes.partition.bridge import lattice_search
from passes.partition.bridge.explain import LEAST_SECONDS
from passes.partition.lattice.objective import Budget, Solution
from passes.partition.lattice.search.throughput import solve
from passes.partition.partition_pass import PartitionPass
from passes.partition.place import PlacePass
from passes.solvers.anytime import Progress
from passes.stages.from_ir import problem_of
from passes.stages.problem import Problem
from tests.passes.staging import chain, devices, op, value


def run(module: Module, topology: Topology, **options: object) -> Module:
    return PartitionPass(**options).run(module.extend([topology]), PassContext())  # type: ignore[arg-type]


def plan_of(module: Module) -> Plan:
    plan = module.first(Plan)
    assert plan is not None
    return plan


def stages_of(module: Module) -> list[int]:
    return [op_.facet(StageSet, StageSet(())).stages[0] for op_ in module.entry.ops]


def unequal(*memory: int | None) -> Topology:
    """Devices ``fast`` (type ``quick``, half the seconds) and ``slow`` (type ``t``)."""
    types = (DeviceType("quick", memory=memory[0] if memory else None), DeviceType("t", memory=memory[1] if memory else None))
    links = (Link("l", ("fast", "slow"), 1024.0, 0.0),)
    return Topology("@top", types, (Host("h"),), (Device("fast", "quick", "h"), Device("slow", "t", "h")), (), links)


def test_stages_and_plan() -> None:
    # Six ops of 3 s; a transfer costs 1 s at each end: 9 + 1 on two devices.
    module = run(chain([0] * 6, seconds=3.0), devices(2))
    assert stages_of(module) == [0, 0, 0, 1, 1, 1]
    plan = plan_of(module)
    assert (plan.value, plan.port_value, plan.bound, plan.status, plan.single) == (10.0, 10.0, 10.0, "optimal", 18.0)
    assert [(s.compute, s.receive, s.send, s.ops, s.device_type) for s in plan.stages] == [
        (9.0, 0.0, 1.0, 3, "t"),
        (9.0, 1.0, 0.0, 3, "t"),
    ]
    assert {"bound", "search"} <= set(dict(plan.certificate))


def test_a_device_that_does_not_help_is_left_out() -> None:
    module = run(chain([0] * 3, seconds=0.5), devices(3))
    assert stages_of(module) == [0, 0, 0]
    assert plan_of(module).value == 1.5


def test_stages_asked_for_are_made_even_when_they_cost() -> None:
    module = run(chain([0] * 3, seconds=0.5), devices(3), stages=3)
    assert stages_of(module) == [0, 1, 2]
    assert plan_of(module).value == 2.5


def test_unequal_devices_get_unequal_shares() -> None:
    ops = tuple(op("onnx.Relu", [f"%v{i - 1}" if i else "%x"], [f"%v{i}"], seconds={"quick": 1.0, "t": 2.0}) for i in range(9))
    module = run(Module("@m", (Func("@main", (value("%x"),), (value("%v8"),), ops),)), unequal())
    plan = plan_of(module)
    # Six seconds of compute and one of transfer on each.
    assert plan.value == 7.0
    assert sorted((s.device_type, s.ops) for s in plan.stages) == [("quick", 6), ("t", 3)]


def test_cut_falls_where_asked() -> None:
    module = run(chain([0] * 6, seconds=3.0), devices(2), cuts=("v0",))
    assert stages_of(module) == [0, 1, 1, 1, 1, 1]
    assert dict(plan_of(module).certificate)["cuts"] == "v0"
    assert plan_of(module).value == 16.0


def test_cut_parts_maker_and_every_reader() -> None:
    time = {"t": 1.0}
    ops = (
        op("onnx.A", ["%x"], ["%a"], seconds=time),
        op("onnx.B", ["%a"], ["%b"], seconds=time),
        op("onnx.C", ["%a", "%b"], ["%c"], seconds=time),
    )
    module = run(Module("@m", (Func("@main", (value("%x"),), (value("%c"),), ops),)), devices(3), cuts=("%a",))
    first, second, third = stages_of(module)
    assert first < second <= third


@pytest.mark.parametrize("name", ["v0", "%v0", "the node"])
def test_pin_by_result_or_node_name(name: str) -> None:
    module = chain([0] * 4)
    func = module.entry
    first = replace(func.ops[0], location=Location("main", "the node"))
    module = module.replace(func, replace(func, ops=(first, *func.ops[1:])))
    planned = run(module, devices(3), pins=(f"{name}=d2", "v3=d1"))
    plan = plan_of(planned)
    assert plan.stages[stages_of(planned)[0]].devices == ("d2",)
    assert plan.stages[stages_of(planned)[3]].devices == ("d1",)
    placed = plan_of(PlacePass().run(planned, PassContext()))
    assert placed.stages[stages_of(planned)[0]].devices == ("d2",)


def test_pins_to_one_device_share_a_stage() -> None:
    module = run(chain([0] * 6, seconds=3.0), devices(2), pins=("v0=d0", "v5=d0"))
    assert stages_of(module) == [0] * 6
    assert plan_of(module).single == 18.0


def test_pin_against_the_flow_says_so() -> None:
    with pytest.raises(Infeasible, match=r"close a cycle of devices.*%v0=d0 -> %v1=d1; %v1=d1 -> %v2=d0") as caught:
        run(chain([0] * 4), devices(2), pins=("v0=d0", "v1=d1", "v2=d0"))
    assert caught.value.diagnostics[0].where == "--pin"


@pytest.mark.parametrize(
    ("options", "where", "words", "hint"),
    [
        ({"cuts": ("v7",)}, "--cut v7", "no op makes a tensor called 'v7'", "%v"),
        ({"cuts": ("x",)}, "--cut x", "this is an input of the model", "inputs reach any stage"),
        ({"cuts": ("v3",)}, "--cut v3", "no op reads this tensor", "name one that is read"),
        ({"pins": ("v1=d9",)}, "--pin v1=d9", "no device is called 'd9'", "d0"),
        ({"pins": ("vv1=d0",)}, "--pin vv1=d0", "no op is called 'vv1'", "%v1"),
        ({"pins": ("v1",)}, "--pin v1", "expected NODE=DEVICE", "for example"),
        ({"pins": ("v1=d0", "%v1=d1")}, "--pin %v1=d1", "pinned to 'd0' as well", "keep one"),
        ({"comm": "fast"}, "partition", "comm is 'fast'", ""),
        ({"stages": -1}, "partition", "stages is -1", ""),
    ],
)
def test_what_names_nothing_is_told(options: dict[str, object], where: str, words: str, hint: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        run(chain([0] * 4), devices(2), **options)
    (found,) = caught.value.diagnostics
    assert found.where == where
    assert words in found.message
    assert hint in found.hint


def test_every_fault_of_cuts_is_told() -> None:
    with pytest.raises(InvalidInput) as caught:
        run(chain([0] * 4), devices(2), cuts=("nothing", "x", "v3"))
    assert len(caught.value.diagnostics) == 3


def test_more_stages_than_devices() -> None:
    with pytest.raises(Infeasible, match="3 stages were asked for, @top has 2 devices"):
        run(chain([0] * 4), devices(2), stages=3)


def test_more_stages_than_ops() -> None:
    with pytest.raises(Infeasible, match="the model has 2 ops that can be told apart"):
        run(chain([0] * 2), devices(3), stages=3)


def weighted(*sizes: int) -> Module:
    """A chain in which op i reads ``sizes[i]`` bytes of weights; its values are 1024 bytes."""
    resources = tuple(Resource(f"@w{i}", TensorType(DType.U8, (size,)), Splat(0)) for i, size in enumerate(sizes))
    ops = tuple(
        op("onnx.Add", [f"%v{i - 1}" if i else "%x", f"@w{i}"], [f"%v{i}"], seconds={"t": 1.0, "quick": 0.5})
        for i in range(len(sizes))
    )
    return Module("@m", (*resources, Func("@main", (value("%x"),), (value(f"%v{len(sizes) - 1}"),), ops)))


def test_memory_decides_the_split() -> None:
    # By seconds the split is 2 | 2; 20,000 bytes beside 30,000 do not fit 45,000.
    module = run(weighted(30_000, 20_000, 10_000, 1_000), devices(2, memory=45_000))
    assert stages_of(module) == [0, 1, 1, 1]
    first, second = plan_of(module).stages
    assert (first.weights, first.buffers) == (30_000, 0)
    assert (second.weights, second.buffers) == (31_000, 2048)
    assert second.workspace >= 2048


def test_what_only_the_program_keeps_alive_fills_no_stage() -> None:
    """While %b is made, the program holds %x for %c: 13,072 bytes. The stage that makes %b does not, and needs 12,048; it had
    been said to be proven that nothing fits."""
    weights = tuple(Resource(f"@w{i}", TensorType(DType.F32, (2500,)), Splat(0.0)) for i in range(2))
    ops = (
        op("onnx.Add", ["%x", "@w0"], ["%a"], seconds={"t": 1.0}),
        op("onnx.Relu", ["%a"], ["%b"], seconds={"t": 1.0}),
        op("onnx.Add", ["%x", "@w1"], ["%c"], seconds={"t": 1.0}),
    )
    module = Module("@m", (*weights, Func("@main", (value("%x"),), (value("%b"), value("%c")), ops)))
    found = run(module, devices(2, memory=12_500))
    assert stages_of(found) == [0, 0, 1]
    assert plan_of(found).bound <= plan_of(found).value


def test_memory_of_unequal_devices() -> None:
    module = run(weighted(1_000, 1_000, 50_000), unequal(20_000, 60_000))
    assert plan_of(module).stages[stages_of(module)[2]].device_type == "t"


def test_infeasible_says_which_device_and_by_how_many_bytes() -> None:
    # One op of 50,000 bytes of weights, alone: 50,000 + 2048 alive + 2048 of buffers (first of the pipeline: none).
    with pytest.raises(Infeasible) as caught:
        run(weighted(50_000, 10), devices(2, memory=40_000))
    (found,) = caught.value.diagnostics
    assert found.where == "@top"
    assert "each t (d0, d1) has 40000 bytes" in found.message
    assert (
        "stage 0 of the plan that comes nearest needs 52048 (50000 of weights, 2048 of workspace, 0 of buffers)"
        in found.message
    )
    assert "12048 short" in found.message
    assert found.hint


@pytest.mark.parametrize("replicas", [1, 0, 3])
def test_weights_over_all_memory_together_are_one_error(replicas: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many devices a stage may have, each counts once."""
    monkeypatch.setattr(lattice_search, "Budget", partial(Budget, ideals=1))
    with pytest.raises(Infeasible) as caught:
        run(weighted(50_000, 50_000, 50_000), devices(3, memory=40_000), replicas=replicas)
    (total,) = caught.value.diagnostics
    assert total.message == "the weights alone are 150000 bytes, all 3 devices have 120000: 30000 bytes short"
    assert (total.severity, total.where) == (Severity.ERROR, "@top")
    assert total.hint
    assert caught.value.proven


def test_the_memory_of_a_device_is_told_whole_where_it_runs_chunks() -> None:
    with pytest.raises(Infeasible) as caught:
        run(weighted(50_000, *[10] * 5), devices(3, memory=80_001), objective="training", chunks=2)
    (stage,) = caught.value.diagnostics
    assert "each t (d0, d1, d2) has 40000 bytes for each of 2 stages" in stage.message


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_search_that_ended_early_says_how_to_give_it_longer(replicas: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lattice_search, "Budget", partial(Budget, ideals=1))
    with pytest.raises(Infeasible) as caught:
        run(weighted(30_000, 30_000, 30_000), devices(2, memory=52_000), replicas=replicas)
    short, ended = caught.value.diagnostics
    assert (short.severity, ended.severity) == (Severity.ERROR, Severity.NOTE)
    assert "each t (d0, d1) has 52000 bytes" in short.message
    assert "--time-limit" in ended.hint
    assert not caught.value.proven


def test_buffers_of_an_edge_over_stages_fit_in_place() -> None:
    """%v0 skips over the stages between; place counts more buffers for it than the planner knows of. Whatever partition
    returns, place accepts, or partition said that nothing fits."""
    rng = random.Random(5)
    accepted = 0
    for _ in range(25):
        count = 6
        ops = []
        for i in range(count):
            operands = [f"%v{i - 1}" if i else "%x", *(f"%v{j}" for j in range(i - 1) if rng.random() < 0.4)]
            ops.append(op("onnx.Sum", operands, [f"%v{i}"], seconds={"t": 1.0 + rng.random()}))
        module = Module("@m", (Func("@main", (value("%x"),), (value(f"%v{count - 1}"),), tuple(ops)),))
        try:
            planned = run(module, devices(4, memory=rng.choice((9_000, 12_000, 16_000))), stages=4)
        except Infeasible:
            continue
        PlacePass().run(planned, PassContext())
        accepted += 1
    assert accepted > 5


def test_cut_between_ops_that_are_best_kept_together() -> None:
    planned = run(chain([0] * 4, seconds=0.1), devices(2), cuts=("v1",))
    assert stages_of(planned) == [0, 0, 1, 1]


def test_empty_function_has_one_empty_stage() -> None:
    module = Module("@m", (Func("@main", (value("%x"),), (value("%x"),), ()),))
    plan = plan_of(run(module, devices(2)))
    assert [stage.index for stage in plan.stages] == [0]
    assert plan.value == 0.0


def test_a_short_limit_ends_with_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the search has none by then (here: whenever it is asked for less than a second), it is given longer, for any."""
    asked: list[tuple[float, bool]] = []

    def slow(problem: Problem, budget: Budget, progress: Progress) -> Solution:
        asked.append((budget.seconds, budget.first))
        found = solve(problem, budget, progress)
        return replace(found, status="undecided", stages=None) if budget.seconds < 1 else found

    monkeypatch.setattr(lattice_search, "solve", slow)
    module = run(chain([0] * 6, seconds=3.0), devices(2), time_limit=0.01)
    assert (plan_of(module).value, asked) == (10.0, [(0.01, False), (LEAST_SECONDS, True)])


def test_no_time_at_all_ends_with_a_plan() -> None:
    plan = plan_of(run(chain([0] * 6, seconds=3.0), devices(2), time_limit=0.0))
    assert 9.0 <= plan.bound <= plan.value <= 18.0


def test_a_problem_is_checked_where_it_is_made() -> None:
    """Ops in an order that no verified module has."""
    module = chain([0, 0])
    module = module.replace(module.entry, replace(module.entry, ops=module.entry.ops[::-1]))
    with pytest.raises(ValueError, match="not in topological order"):
        problem_of(module, devices(1), network(devices(1)))


def test_a_slow_link_between_hosts_is_not_taken_for_a_port() -> None:
    """By ports, as fast as the links inside a host, stages on both hosts had been best: 20 times as slow on the real links."""
    from dnnc.compile.context import pass_context
    from ir.core.diagnostics import DiagnosticSink
    from tests.passes.partition.layouts.stage_oracle import costed
    from tests.passes.partition.layouts.test_stages import text_of

    module = costed(text_of([64, 64, 64, 64], False, [2, 2], [1, 3, 1, 3], 1e9, 1e6))
    for replicas in (0, 1):
        context = pass_context(DiagnosticSink())
        planned = PlacePass().run(PartitionPass(mesh="none", replicas=replicas).run(module, context), context)
        plan = planned.first(Plan)
        assert plan is not None
        assert plan.value < 1e-4
