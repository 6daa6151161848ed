"""Memory over time: a step by hand, what the rows of each family hold at once, and tensors that a stage file really keeps."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dnnc.compile.driver import CompileOptions, compile_model
from dnnc.compile.training import TrainingOptions
from dnnc.machines.topology import load_topology, topology_to_toml
from dnnc.onnx import DIALECTS
from dnnc.workloads.scheduled import scheduled
from ir import parse_module
from ir.core.attributes import attributes
from ir.core.diagnostics import DiagnosticSink, InvalidInput
from ir.core.module import Module, Plan, Program, Stage
from ir.core.topology import Topology
from ir.core.types import DType, Layout, Shard, TensorType
from ir.ops.rows import unrolled
from passes.costs.learning import RECOMPUTE
from passes.framework.base import PassContext, needed
from passes.graph.symbols import insert_symbols
from passes.meshes.costs.cross_mesh import Party
from passes.partition.place import PlacePass
from passes.programs.schedule import SchedulePass
from passes.timeline.families import step
from passes.timeline.memory import Held, _local_bytes, _Stash, memory_over_time, stage_memory
from passes.timeline.simulate import run_rows, simulate
from tests.passes.partition.layouts.models import prepared
from tests.passes.partition.layouts.test_stage_plans import SMALL
from tests.passes.partition.on_meshes import on_meshes
from tests.passes.staging import chain, devices, planned
from tests.passes.timeline.test_families import equal

GOLDEN = Path(__file__).parents[3] / "golden" / "passes" / "schedule"

STEP = """
module @m {opset.onnx = 20} {
  func @main(%x : tensor<8xf32>) -> (%loss : tensor<f32>) {
    %loss = onnx.ReduceSum(%x) : tensor<f32> stage<0>
  }
  topology @t {
    type t {rates = {f32 = 1.0}}
    host h
    device d0 {type = t, host = h}
  }
  stage @stage0 index 0 on [d0] (%x : tensor<8xf32>) -> (%loss : tensor<f32>) {
    %h = onnx.Relu(%x) : tensor<8xf32> stage<0>
    %y = onnx.Neg(%h) : tensor<8xf32> stage<0>
    %loss = onnx.ReduceSum(%y) : tensor<f32> stage<0>
    %h.grad = onnx.Neg(%h) : tensor<8xf32> stage<0> phase<I>
    %w.grad = onnx.Mul(%x, %h.grad) : tensor<8xf32> stage<0> phase<W>
    %sum = grad.accumulate(%w.grad) {microbatches = 2} : tensor<8xf32> stage<0> phase<U>
  }
  schedule @schedule {
    kind = "zb-h1"
    microbatches = 2
    row d0 [F(0, 0), F(0, 1), I(0, 0), W(0, 0), I(0, 1), W(0, 1), U(0, _)]
  }
  plan @plan {
    objective = training
    comm = sum
    value = 12.0
    port_value = 12.0
    bound = 0.0
    status = within-gap
    single = inf
    microbatches = 2
    stage {index = 0, device_type = t, devices = [d0], ops = 3, compute = 4.0, backward = 2.0, weights = 100}
  }
}
"""


def test_a_step_by_hand() -> None:
    """Saved: x until W, h until I, both 32 bytes; I keeps 32 for W. Working: y and the loss in F, the gradient of w in W."""
    module = parse_module(STEP)
    stage = stage_memory(module)[0]
    assert dict(stage.saved) == {("F", "W"): 32, ("F", "I"): 32, ("I", "W"): 32}
    assert dict(stage.working) == {"F": 36, "I": 0, "W": 32}
    held = memory_over_time(module, simulate(module))["d0"]
    levels = [after for (_, before), (_, after) in zip(held.steps, held.steps[1:], strict=False) if after != before]
    assert levels == [200, 164, 264, 228, 260, 228, 260, 164, 196, 164, 196, 100]
    assert (held.constant, held.peak) == (100, 264)


@pytest.mark.parametrize(("view", "more"), [("Flatten", 0), ("Neg", 32)])
def test_what_only_changes_a_shape_is_the_memory_of_its_operand(view: str, more: int) -> None:
    """I reads h and v, which is h under another shape: 32 bytes are saved for both, and 64 where v is another value."""
    viewed = f"%h = onnx.Relu(%x) : tensor<8xf32> stage<0>\n    %v = onnx.{view}(%h) : tensor<1x8xf32> stage<0>"
    text = STEP.replace("%h = onnx.Relu(%x) : tensor<8xf32> stage<0>", viewed).replace(
        "onnx.Neg(%h) : tensor<8xf32> stage<0> p", "onnx.Mul(%h, %v) : tensor<1x8xf32> stage<0> p"
    )
    stage = stage_memory(parse_module(text.replace("onnx.Neg(%h)", "onnx.Abs(%v)")))[0]
    assert dict(stage.saved) == {("F", "W"): 32, ("F", "I"): 32 + more, ("I", "W"): 32}
    assert dict(stage.working) == {"F": 36, "I": 0, "W": 32}


@pytest.mark.parametrize(("rows", "columns", "working"), [(2, 4, 64), (1, 8, 36)])
def test_a_transpose_is_copied_under_another_shape_unless_it_moves_no_element(rows: int, columns: int, working: int) -> None:
    """Of 32 bytes: y is the memory of h, which is saved; or it is a copy, alive beside the sum's operand."""
    made = (
        f"%t = onnx.Transpose(%h) : tensor<{columns}x{rows}xf32> stage<0>\n    %u = onnx.Flatten(%t) : tensor<8xf32> stage<0>"
    )
    text = STEP.replace("%y = onnx.Neg(%h)", f"{made}\n    %y = onnx.Neg(%u)")
    assert stage_memory(parse_module(text))[0].working["F"] == working


def test_a_transposed_weight_is_saved_for_no_microbatch() -> None:
    """I reads the weight by a view of it, and keeps nothing but x and h."""
    text = STEP.replace("%h = onnx.Relu(%x)", "%t = onnx.Transpose(@w) : tensor<8xf32> stage<0>\n    %h = onnx.Relu(%x)")
    text = text.replace("onnx.Neg(%h) : tensor<8xf32> stage<0> p", "onnx.Mul(%h, %t) : tensor<8xf32> stage<0> p")
    text = text.replace("  func", "  resource @w : tensor<8xf32> = declared\n  func")
    assert dict(stage_memory(parse_module(text))[0].saved) == {("F", "W"): 32, ("F", "I"): 32, ("I", "W"): 32}


@pytest.mark.parametrize(("microbatches", "backward"), [(1, 128 - 32), (2, 128)])
def test_the_only_gradient_of_a_step_is_held_once_it_is_made(microbatches: int, backward: int) -> None:
    """Weights count its 32 bytes, which are free while 128 are alive before it; of two, one waits for the sum, from then on."""
    first = "%h.grad = onnx.Neg(%h)"
    text = STEP.replace(first, f"%big = onnx.Neg(%h) : tensor<32xf32> stage<0> phase<I>\n    {first}")
    plan = text.replace("single = inf\n    microbatches = 2", f"single = inf\n    microbatches = {microbatches}")
    assert stage_memory(parse_module(plan))[0].backward == backward


TWO_READERS = """
module @m {opset.onnx = 20} {
  resource @w : tensor<32x32xf32> = declared optimizer<name = adam, size = 8192>
  func @main(%x : tensor<4x32xf32>) -> (%y : tensor<4x32xf32>) {
    %h = onnx.MatMul(%x, @w) : tensor<4x32xf32> shard<"replicate"> stage<0>
    %w.1 = comm.reshard(@w) : tensor<32x32xf32, @mesh[S(1)]> stage<0>
    %y = onnx.MatMul(%h, %w.1) : tensor<4x32xf32, @mesh[S(1)]> shard<"n"> stage<0>
  }
  topology @t {
    type t {rates = {f32 = 1.0}}
    host h
    device d0 {type = t, host = h}
    device d1 {type = t, host = h}
  }
  mesh @mesh [x = 2] on [d0, d1]
  plan @plan {
    objective = training
    comm = sum
    value = 1.0
    port_value = 1.0
    bound = 0.0
    status = within-gap
    single = inf
    microbatches = 2
    stage {index = 0, device_type = t, devices = [d0, d1], ops = 2, compute = 1.0, mesh = @mesh}
  }
}
"""


def test_a_weight_that_is_read_in_two_layouts_has_one_gradient() -> None:
    """Of 4096 bytes: read whole, and in halves."""
    assert stage_memory(parse_module(TWO_READERS))[0].working["W"] == 4096


def test_a_stream_holds_the_same_but_for_the_pass_that_runs() -> None:
    context = PassContext()
    module = SchedulePass().run(PlacePass().run(planned(chain([0, 0]), devices(1)), context), context)
    held = memory_over_time(module, simulate(module, 2))["d0"]
    assert held == Held(held.constant, ((0.0, 0), (0.0, 2048), (2.0, 0), (2.0, 2048), (4.0, 0)))


def test_a_module_without_a_plan_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no placed plan"):
        memory_over_time(chain([0]), [])


@pytest.fixture(scope="module")
def plan_alone() -> Module:
    """Three stages on meshes of two, of 6 microbatches, without backward ops."""
    return SchedulePass().run(three_stages("none"), PassContext())


@functools.cache
def three_stages(recompute: str) -> Module:
    """A searched plan of three stages on meshes of two, of 6 microbatches."""
    before = prepared(f"{SMALL.replace('layers=2', 'layers=3')},batch=4")[0]
    told = replace(before.entry, attributes=attributes({RECOMPUTE: recompute}))
    given = insert_symbols(before.replace(before.entry, told), (load_topology("preset:cpu-8", DiagnosticSink()),))
    return on_meshes(training=True, microbatches=6, mesh="2", stages=3).run(given, PassContext())


@pytest.mark.parametrize(("family", "most"), [("gpipe", [6, 6, 6]), ("1f1b", [3, 2, 1]), ("zb-h1", [3, 3, 3])])
def test_a_family_holds_what_it_has_in_flight(plan_alone: Module, family: str, most: list[int]) -> None:
    module = SchedulePass(family=family).run(plan_alone, PassContext())
    plan, stages = module.first(Plan), stage_memory(module)
    assert plan is not None
    held = memory_over_time(module, simulate(module))
    for row, stage, flight in zip(plan.stages, stages, most, strict=True):
        assert stage.of_microbatch > 0
        for device in row.devices:
            wanted = stage.constant + flight * stage.of_microbatch
            assert wanted <= held[device].peak <= wanted + stage.busy(("F", "I", "W"))


@pytest.mark.parametrize("family", ["gpipe", "zb-h1", "zb-h2"])
def test_a_plan_tells_what_its_rows_hold(plan_alone: Module, family: str) -> None:
    module = SchedulePass(family=family).run(plan_alone, PassContext())
    plan = module.first(Plan)
    assert plan is not None
    held = memory_over_time(module, simulate(module))
    assert [row.memory for row in plan.stages] == [max(held[device].peak for device in row.devices) for row in plan.stages]
    again = SchedulePass(family=family).run(module, PassContext()).first(Plan)
    assert again is not None
    assert [row.memory for row in again.stages] == [row.memory for row in plan.stages]


@pytest.mark.parametrize("kind", ["interleaved", "zb-v"])
def test_stages_of_a_device_hold_its_peak_together(kind: str) -> None:
    text = (GOLDEN / f"{kind.replace('-', '_')}.out.ir").read_text()
    module = parse_module(text)
    plan = module.first(Plan)
    assert plan is not None
    for device, held in memory_over_time(module, simulate(module)).items():
        assert held.peak == sum(row.memory for row in plan.stages if device in row.devices) > 0


@pytest.mark.parametrize("recompute", ["none", "stage"])
def test_the_search_charges_what_1f1b_holds(recompute: str) -> None:
    """Counted twice: by the planner from prices of strategies, and on the rows. Where stages run their forward pass again, the
    second of three holds what it received of two microbatches; the first two have buffers for gradients that come back."""
    searched = three_stages(recompute)
    module = SchedulePass().run(searched, PassContext())
    held, plan = memory_over_time(module, simulate(module)), searched.first(Plan)
    assert plan is not None
    for row in plan.stages:
        assert [held[device].peak / row.memory for device in row.devices] == pytest.approx([0.97] * 2, abs=0.03)
    first, second, third = (row.buffers for row in plan.stages)
    assert (first + third, 2 * first) == (second, second)


def test_an_input_of_the_model_is_alive_until_its_last_reader() -> None:
    """Of 1024 bytes, as is the result of the one op that reads it: ``place`` counts both, and so do rows of a stream."""
    context = PassContext()
    module = PlacePass().run(planned(chain([0]), devices(1)), context)
    row = needed(module, Plan).stages[0]
    held = memory_over_time(module, simulate(SchedulePass().run(module, context), 1))["d0"]
    assert held.peak == row.memory == row.workspace == 2048


@pytest.mark.parametrize(
    ("microbatches", "gradients", "kind"),
    [
        (1, 1, {"stages": 2, "replicas": 1, "mesh": "none"}),
        (2, 2, {"stages": 2, "replicas": 1, "mesh": "none"}),
        (
            2,
            2,
            {"stages": 1, "replicas": 2, "mesh": "none"},
        ),  # one microbatch each, copied into a bucket
        (4, 2, {"stages": 1, "replicas": 2, "mesh": "none"}),
        (1, 1, {"mesh": "2"}),
        (2, 2, {"mesh": "2"}),
    ],
)
def test_a_plan_tells_what_its_programs_hold(microbatches: int, gradients: int, kind: dict[str, Any], tmp_path: Path) -> None:
    """As ``simulate`` counts it from the ops of the programs: of weights that make up nearly all of a stage, themselves, two
    numbers of adam, their gradients, and from the second microbatch of a device on the gradients of that beside the sums."""
    step, machines = TrainingOptions(loss="mse:y"), tmp_path / "machines.toml"
    text = topology_to_toml(load_topology("preset:cpu-2,cores=2", DiagnosticSink()))
    machines.write_text(re.sub(r"(?m)^training = .*", "", text))  # sums as quick as that make replicas worth while
    options = CompileOptions(
        "zoo:mlp,layers=3,hidden=128,batch=1", str(machines), tmp_path / "build", objective="training",
        training=step, microbatches=microbatches, **kind,
    )  # fmt: skip
    plan = compile_model(options).plan
    module = scheduled(tmp_path / "build", "", DiagnosticSink())
    held = memory_over_time(module, simulate(module, microbatches))
    for row in plan.stages:
        assert [held[device].peak for device in row.devices] == [row.memory] * len(row.devices)
        assert row.memory / row.weights == pytest.approx((3 + gradients) / 4, abs=0.06)


def test_what_comes_from_a_mesh_of_another_shape_is_held_whole() -> None:
    split = TensorType(DType.F32, (8, 4), layout=Layout("@two", (Shard(0),)))
    two, four, one = Party(("a", "b"), (2,)), Party(("c", "d", "e", "f"), (4,)), Party(("g",))
    meshes = {"@two": two, "@other": replace(two, devices=("h", "i")), "@four": four}
    sides = (two, meshes["@other"], four, one)
    assert [_local_bytes(split, side, meshes) for side in sides] == [64, 64, 128, 128]


def test_a_stage_file_keeps_just_the_bytes_that_are_told(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from dnnc.build.snapshot import Snapshot
    from dnnc.build.training import Step, file_name
    from dnnc.engines.torch.files import TrainingFiles
    from tests.dnnc.engines.torch.training_builds import compiled

    folder = compiled(tmp_path / "build")
    module = scheduled(folder, "", DiagnosticSink())
    unlowered = module.without(Stage, Program)
    assert [one.of_microbatch for one in stage_memory(unlowered)] == [one.of_microbatch for one in stage_memory(module)]
    files = TrainingFiles(Snapshot.open(folder))
    step, weights = Step.of(module, DIALECTS), files.initial.tensors()
    sent = {"x": torch.ones(4, 784), "target": torch.ones(4, 10)}
    for stage, memory in zip(step.stages, stage_memory(module), strict=True):
        program, _ = step.program(stage, step.ranks[stage.devices[0]])
        functions = files.functions(file_name(step, stage, program))
        made, _, saved = functions["forward"](weights, sent, {}, None)
        sent |= made
        assert sum(tensor.nbytes for tensor in saved.values()) == memory.of_microbatch > 0


def test_auto_has_no_more_in_flight_than_devices_have_memory_for(plan_alone: Module) -> None:
    """Memory for two microbatches of the first stage, which would have three."""
    stage, topology = stage_memory(plan_alone)[0], plan_alone.first(Topology)
    assert topology is not None
    limit = stage.constant + stage.busy(("F", "I", "W")) + 2 * stage.of_microbatch
    small = replace(topology, types=tuple(replace(type_, memory=limit) for type_ in topology.types))

    def peak(module: Module) -> int:
        module = SchedulePass(family="auto").run(module, PassContext())
        plan = module.first(Plan)
        assert plan is not None
        held = memory_over_time(module, simulate(module))
        return max(held[device].peak for device in plan.stages[0].devices)

    assert peak(plan_alone.replace(topology, small)) <= limit < peak(plan_alone)


@pytest.mark.parametrize(("family", "microbatches", "versions"), [("pipedream", 1, [3, 2, 1, 0]), ("2bw", 4, [1, 1, 1, 1])])
def test_old_versions_of_weights_are_held(family: str, microbatches: int, versions: list[int]) -> None:
    """4 equal stages: the first has 4 microbatches in flight."""
    load = replace(equal(4), sync=(0.5,) * 4)
    schedule = step(load, microbatches, family)
    stashes = [_Stash(microbatches, 10) for _ in versions]
    held, most = [0] * 4, [0] * 4
    for event in run_rows(load, unrolled(schedule, load.flow, 8 * microbatches)):
        stage = event.action.stage
        held[stage] += stashes[stage].see(event.action)
        most[stage] = max(most[stage], held[stage])
    assert most == [10 * count for count in versions]
    assert held == [0] * 4  # nothing is under way


@pytest.mark.parametrize(("family", "microbatches", "versions"), [("pipedream", 1, [2, 1, 0]), ("2bw", 3, [1, 1, 1])])
def test_old_versions_of_weights_are_counted_once(family: str, microbatches: int, versions: list[int], tmp_path: Path) -> None:
    """Weights that make up nearly all of a stage, with their gradient and two numbers of adam: four times their bytes, and five
    where the gradient of one microbatch is added to that of others."""
    asked = TrainingOptions(loss="mse:y", schedule=family)
    model = "zoo:mlp,layers=3,hidden=256,inputs=256,outputs=256,batch=1"
    options = CompileOptions(
        model, "preset:cpu-3,cores=3,memory=8GiB", tmp_path, stages=3, microbatches=microbatches, objective="training",
        training=asked, plan_only=True,
    )  # fmt: skip
    plan = compile_model(options).plan
    weights = 4 * 257 * 256
    assert [row.weights for row in plan.stages] == [4 * weights] * 3
    wanted = [4 + count + (microbatches > 1) for count in versions]
    assert [row.memory / weights for row in plan.stages] == pytest.approx(wanted, abs=0.2)
