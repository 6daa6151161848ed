"""Plans in stages as they are written: what verifies, what adds up, constants of several stages, and plans out of time."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from dnnc.compile.context import pass_context
from dnnc.onnx import DIALECTS
from ir import parse_module, print_module, verify
from ir.core.diagnostics import DiagnosticSink, DnncError, Infeasible, UsageError
from ir.core.module import Mesh, Module, Plan, Schedule
from ir.core.topology import Topology
from passes.costs.network import network
from passes.framework.base import NoBetterPlan
from passes.graph.folding import folding
from passes.partition.chain.bounding import Bounding
from passes.partition.chain.pipeline import StageRun
from passes.partition.chain.solved import SolvedStages
from passes.partition.chain.stages import StageSearch
from passes.partition.layouts.solver.search import ENOUGH_PROVEN
from passes.plan.written import written
from passes.programs.schedule import SchedulePass
from passes.solvers.anytime import Limits
from passes.timeline.families import step
from passes.timeline.simulate import simulate
from passes.timeline.workload import largest_load, workload
from tests.passes.partition.layouts.stage_oracle import Oracle, costed
from tests.passes.partition.layouts.test_stages import blocks_of, searched, text_of
from tests.passes.partition.on_meshes import on_meshes

MASKED = """
module @m {opset.onnx = 20} {
  resource @full : tensor<64x64xf32> = splat(1.0)
  resource @w0 : tensor<64x64xf32> = declared
  resource @w1 : tensor<64x64xf32> = declared
  func @main(%x : tensor<64x64xf32>) -> (%y : tensor<64x64xf32>) {
    %mask = onnx.Trilu(@full) : tensor<64x64xf32>
    %h = onnx.MatMul(%x, @w0) : tensor<64x64xf32>
    %a = onnx.Add(%h, %mask) : tensor<64x64xf32>
    %g = onnx.MatMul(%a, @w1) : tensor<64x64xf32>
    %y = onnx.Add(%g, %mask) : tensor<64x64xf32>
  }
  topology @t {
    type t {rates = {f32 = 1e9}, memory_bandwidth = 1e9}
    host h
    device a {type = t, host = h}
    device b {type = t, host = h}
    device c {type = t, host = h}
    device d {type = t, host = h}
    link bus {ends = [a, b, c, d], bandwidth = 1e8}
  }
}
"""


def test_constants_are_made_by_each_stage() -> None:
    """A mask is not sent: both stages have the op, the second under a name of its own, and the plan says so."""
    from ir.core.facets import StageSet
    from passes.graph.graph import cuts_of

    module = on_meshes(mesh="2", stages=2).run(costed(MASKED), pass_context(DiagnosticSink()))
    masks = [op for op in module.entry.ops if op.name == "onnx.Trilu"]
    assert [op.facet(StageSet) for op in masks] == [StageSet((0,)), StageSet((1,))]
    assert [op.id for op in masks] == ["%mask", "%mask.stage1"]
    assert [cut.tensor.name for cut in cuts_of(module.entry)] == ["%a"]
    assert verify(module, dialects=DIALECTS) == []
    plan = module.first(Plan)
    assert plan is not None
    assert plan.value == pytest.approx(largest_load(workload(module)), rel=1e-9)


@pytest.mark.parametrize("strategy", ["", "data"])
@pytest.mark.parametrize("biased", [False, True])
def test_a_constant_product_costs_the_same_whoever_reads_it(biased: bool, strategy: str) -> None:
    """One op in each stage reads it, and would be fused into it were it alone there: it is made once, and sent."""
    from passes.programs.lower import LowerPass
    from tests.passes.meshes.worked import worked

    product = "%mask = onnx.MatMul(@full, @full)"
    if biased:
        product = "%m = onnx.MatMul(@full, @full) : tensor<64x64xf32>\n    %mask = onnx.Add(%m, @full)"
    text = MASKED.replace("%mask = onnx.Trilu(@full)", product)
    for name, before in (("q", "Add(%h, %mask)"), ("s", "Add(%g, %mask)")):
        result = {"q": "%a", "s": "%y"}[name]
        after = f"%{name} = onnx.Relu(%mask) : tensor<64x64xf32>\n    {result} = onnx.{before.replace('%mask', f'%{name}')}"
        text = text.replace(f"{result} = onnx.{before}", after.replace("Add", "Sub"))
    text = text.replace("memory_bandwidth = 1e9", "memory_bandwidth = 1e9, overhead = 1e-6, efficiency = {epilogue = 1.0}")
    module = on_meshes(mesh="2", stages=2, strategy=strategy).run(costed(text), pass_context(DiagnosticSink()))
    plan = module.first(Plan)
    assert plan is not None
    members = worked(LowerPass().run(module, pass_context(DiagnosticSink())))
    for stage in plan.stages:
        assert max(one.seconds for one in members if one.stage == stage.index) == pytest.approx(stage.compute, rel=1e-9)


@pytest.mark.parametrize("strategy", ["", "data"])
def test_gradients_of_a_product_of_weights_made_in_another_stage_are_summed_once(strategy: str) -> None:
    """The second stage reads what the first one made of weights alone: it too sums once a step, not per microbatch."""
    text = MASKED.replace("%mask = onnx.Trilu(@full)", "%mask = onnx.MatMul(@w0, @w1)").replace("Add(%g", "MatMul(%g")
    options = {"mesh": "2", "stages": 2, "strategy": strategy, "training": True, "microbatches": 4}
    module = on_meshes(**options).run(costed(text), pass_context(DiagnosticSink()))  # type: ignore[arg-type]
    plan = module.first(Plan)
    assert plan is not None
    assert len(plan.stages) == 2
    assert plan.bound <= plan.value
    if strategy:  # two weights and one gradient of the product are all-reduced, the other is gathered; the weights are updated
        assert plan.stages[1].learning == ("%mask",)
        assert plan.stages[1].sync == pytest.approx(3.5 * 16384 / 1e8 + 2 * 7 * 16384 / 1e9, rel=1e-9)


def test_nothing_is_better_than_a_plan_of_a_module_without_ops() -> None:
    text = MASKED[: MASKED.index("    %mask")] + MASKED[MASKED.index("  }\n  topology") :]
    module = costed(text.replace("%y : tensor<64x64xf32>", ""))
    mesh = on_meshes().run(module, pass_context(DiagnosticSink())).first(Plan)
    assert mesh is not None
    assert (mesh.value, mesh.bound) == (0, 0)
    with pytest.raises(NoBetterPlan):
        on_meshes(stages=0).run(module, replace(pass_context(DiagnosticSink()), incumbent=mesh))


def test_a_chain_is_cut_before_any_op_whatever_its_widths() -> None:
    """A stage on each of two equal devices holds half of the products, though the last ones make the smallest values."""
    text = text_of([64, 64, 64, 32, 16, 8], False, [1, 1], [1, 1], 1e12, 1e12)
    for memory in ("", ", memory = 36000"):  # all products but the last hold 43008 bytes of weights
        module = costed(text.replace("overhead = 1e-6", f"overhead = 1e-6{memory}"))
        assert Oracle(module).units.count == 5
        plan = on_meshes(mesh="1", stages=2).run(module, pass_context(DiagnosticSink())).first(Plan)
        assert plan is not None
        assert max(stage.working for stage in plan.stages) < 0.65 * sum(stage.working for stage in plan.stages)


def sharded(spec: str, topology: str, **options: object) -> Module:
    from dnnc.machines.topology.read import load_topology
    from passes.graph.symbols import insert_symbols
    from tests.passes.partition.layouts.models import prepared

    module = insert_symbols(prepared(spec)[0], (load_topology(topology, DiagnosticSink()),))
    context = pass_context(DiagnosticSink())
    return SchedulePass().run(on_meshes(**options).run(module, context), context)  # type: ignore[arg-type]


SMALL = "zoo:gpt2,layers=2,hidden=64,heads=8,vocab=128,seq=16"


@pytest.mark.parametrize(
    "options",
    [
        {"mesh": "2x2", "stages": 2},
        {"stages": 0},
        pytest.param({"mesh": "1", "stages": 4}, marks=pytest.mark.slow),
        pytest.param({"mesh": "2x4"}, marks=pytest.mark.slow),
    ],
)
def test_what_is_written_is_a_plan(options: dict[str, object]) -> None:
    """It verifies, reads back equal, its period is its value, and every member has a row."""
    module = sharded(SMALL, "preset:cpu-8", **options)
    assert verify(module, dialects=DIALECTS) == []
    assert parse_module(print_module(module)) == module
    plan, schedule = module.first(Plan), module.first(Schedule)
    assert plan is not None
    assert schedule is not None
    assert plan.bound <= plan.value
    if len(plan.stages) > 1:
        assert plan.value == pytest.approx(largest_load(workload(module)), rel=1e-9)
    assert schedule.period == pytest.approx(plan.value, rel=1e-9)
    used = [device for stage in plan.stages for device in stage.devices]
    assert sorted(device for device, _ in schedule.rows) == sorted(used)
    assert len(set(used)) == len(used)
    meshes = {mesh.name: mesh for mesh in module.of_type(Mesh)}
    for stage in plan.stages:
        assert (stage.mesh == "") == (len(stage.devices) == 1)
        if stage.mesh:
            assert meshes[stage.mesh].devices == stage.devices
    events = simulate(module, 4)
    done = {(event.device, event.action.stage, event.action.microbatch) for event in events if event.action.kind == "F"}
    assert len(done) == 4 * len(used)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"mesh": "2x2", "stages": 3}, DnncError, "need 12 devices"),
        ({"stages": -1}, UsageError, "stages is -1"),
        ({"stages": 2, "training": True, "microbatches": -1}, UsageError, "microbatches is -1"),
        ({"stages": 2, "shares": "3,1"}, UsageError, "shares is for one mesh"),
        ({"stages": 8, "memory": 1}, Infeasible, r"stage \d needs at least \d+ bytes on .* of weights"),
    ],
)
def test_faults_are_told(options: dict[str, object], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        sharded(SMALL, "preset:cpu-8", **options)


def test_a_training_step_fills_and_drains() -> None:
    module = sharded(SMALL, "preset:cpu-4", mesh="2", stages=2, training=True, microbatches=6)
    plan = module.first(Plan)
    assert plan is not None
    assert plan.objective == "training"
    slowest = max(stage.working + stage.receive + stage.send for stage in plan.stages)
    filling, real = (6 + 2 - 1) * slowest, step(workload(module), 6).period
    assert plan.value == pytest.approx(max(filling, real), rel=1e-9)
    assert plan.value <= filling * 1.05
    assert verify(module, dialects=DIALECTS) == []


def test_a_plan_whose_sums_come_last_is_worth_what_its_step_takes() -> None:
    """The second stage, on four devices behind slow links, is quick but for its sums, which no other stage waits beside."""
    text = text_of([128, 128, 8, 128, 128], False, [4, 1], [1, 1, 1, 1, 2], 1e7, 1e8).replace("tensor<4x", "tensor<64x")
    module = costed(text)
    topology = module.first(Topology)
    assert topology is not None
    blocks = blocks_of(module, training=True)
    found = folding(module.entry, module)
    search = StageSearch(Bounding(module, topology, network(topology), found, blocks, training=True, microbatches=8))
    one = next(block for block in blocks.blocks if block.mesh.devices == ("d10",))
    four = next(block for block in blocks.blocks if block.mesh.sizes == (4,))
    made = search.solver.solve((StageRun(0, 2, one), StageRun(2, search.bounding.units.count, four)), math.inf)
    assert isinstance(made, SolvedStages)
    solved, spent = search.valued(made)
    told = Plan("@plan", "training", "sum", 0.0, 0.0, 0.0, "within-gap", 0.0, (), microbatches=8)
    plan = written(module, solved.staged, told).first(Plan)
    assert plan is not None
    assert solved.value == pytest.approx(plan.value)
    assert solved.value > 1.1 * search.worth(made.seconds)
    assert max(spent) == spent[1] == pytest.approx(solved.value / (8 + 2 - 1))


def test_without_time_there_is_a_plan_all_the_same() -> None:
    """It is one on the meshes whose problem is built anyway, its bound one of all plans; no problem is built out of time."""
    from dnnc.machines.topology.read import load_topology
    from passes.graph.symbols import insert_symbols
    from tests.passes.partition.layouts.models import prepared

    spec = SMALL.replace("layers=2", "layers=1")
    module = insert_symbols(prepared(spec)[0], (load_topology("preset:cpu-4", DiagnosticSink()),))
    topology = module.first(Topology)
    assert topology is not None
    for microbatches in (0, 4):
        meshes = blocks_of(module, training=microbatches > 0)
        bounding = Bounding(
            module,
            topology,
            network(topology),
            prepared(spec)[1],
            meshes,
            training=microbatches > 0,
            microbatches=max(1, microbatches),
        )
        plan = StageSearch(bounding, Limits(seconds=0.0, gap=ENOUGH_PROVEN)).run(0)
        assert plan is not None
        built = [form.cutter is not None for form in bounding.forms]
        assert len(built) > sum(built) == 1
        number = built.index(False)
        assert not bounding.built_by(number, 0.0)
        assert bounding.forms[number].cutter is None
        bound, value = searched(module, meshes, microbatches=microbatches)
        assert plan.bound <= value * (1 + 1e-6)
        assert bound <= plan.value * (1 + 1e-6)
