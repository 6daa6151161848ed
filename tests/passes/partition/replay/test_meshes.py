"""Plans on meshes replayed: unedited the same to the last digit, edited priced anew, faulty located, nonsense never a crash."""

from __future__ import annotations

import copy
import itertools
import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from dnnc.build.plan_json import plan_text, plan_to_json
from dnnc.build.plan_reader import replay_from_json
from dnnc.compile.context import pass_context, with_topology
from dnnc.compile.load import load_model
from dnnc.machines.topology import load_topology
from dnnc.onnx import DIALECTS
from dnnc.report import plan_headline
from ir import parse_module, print_module, verify
from ir.core.diagnostics import DiagnosticSink, DnncError, Infeasible, InvalidInput
from ir.core.module import Module, Plan
from passes import parse_pipeline, pipeline_text
from passes.framework.manager import PassManager
from passes.graph.graph import cuts_of
from passes.meshes.costs.price import price
from passes.meshes.undecided import undecided
from passes.partition.partition_pass import PartitionPass
from passes.partition.replay.meshes import ReplayPass
from passes.plan.parts import stage_parts
from passes.prepare.cost import CostPass
from tests.passes.partition.layouts.stage_oracle import costed
from tests.passes.partition.layouts.test_stage_plans import MASKED
from tests.passes.partition.on_meshes import on_meshes

SEARCHED = "search of each stage, for these stages on these meshes"
BERT = "zoo:bert-base,layers=1,hidden=64,heads=8,vocab=128,seq=16,batch=4"
T5 = "zoo:t5-base,layers=1,hidden=64,heads=4,ffn=128,vocab=128,seq=16,batch=4"
PAIR = """
module @pair {opset.onnx = 20} {
  resource @up : tensor<64x256xf32> = declared
  resource @down : tensor<256x64xf32> = declared
  resource @three : tensor<3xf32> = declared
  func @main(%x : tensor<4x64xf32>) -> (%y : tensor<4x64xf32>) {
    %h = onnx.MatMul(%x, @up) : tensor<4x256xf32>
    %a = onnx.Relu(%h) : tensor<4x256xf32>
    %y = onnx.MatMul(%a, @down) : tensor<4x64xf32>
  }
  topology @four {
    type core {rates = {f32 = 1000000000.0}, memory_bandwidth = 1000000000.0MEMORY}
    host h
    device a {type = core, host = h}
    device b {type = core, host = h}
    device c {type = core, host = h}
    device d {type = core, host = h}
    link bus {ends = [a, b, c, d], bandwidth = 1000000000.0, latency = 0.0}
  }
}
"""


@lru_cache(maxsize=4)
def prepared(spec: str, topology: str = "preset:h100x4") -> Module:
    """A model with costs and machines, before ``partition``."""
    sink = DiagnosticSink()
    module = with_topology(load_model(spec, {}, sink).module, load_topology(topology, sink))
    return PassManager(parse_pipeline("canonicalize,unfuse,cost")).run(module, pass_context(sink))


@lru_cache(maxsize=8)
def pair(memory: str = "") -> Module:
    module = parse_module(PAIR.replace("MEMORY", f", memory = {memory}" if memory else ""))
    return CostPass().run(module, pass_context(DiagnosticSink()))


def run(step: PartitionPass | ReplayPass, module: Module) -> Module:
    return step.run(module, pass_context(DiagnosticSink()))


def written(module: Module) -> dict[str, Any]:
    """What plan.json holds, read again."""
    data = json.loads(plan_text(plan_to_json(module)))
    assert isinstance(data, dict)
    return data


def replayed(data: dict[str, Any], module: Module) -> Module:
    step = replay_from_json(data)
    assert isinstance(step, ReplayPass)
    found = run(step, module)
    assert verify(found, dialects=DIALECTS) == []
    return found


def plan_of(module: Module) -> Plan:
    plan = module.first(Plan)
    assert plan is not None
    return plan


def seconds(module: Module) -> list[float]:
    """Of each stage without transfers: decisions read from the module, priced by the walk."""
    bare, plan = undecided(module), plan_of(module)
    training = plan.objective == "training"
    parts = list(stage_parts(module))
    return [price(bare, p.func, p.mesh, p.decisions, training=training, microbatches=plan.microbatches).total for p in parts]


@pytest.mark.parametrize(
    ("spec", "step"),
    [
        (BERT, on_meshes(mesh="2x2")),
        (BERT, on_meshes(mesh="3")),
        pytest.param(T5, on_meshes(stages=0), marks=pytest.mark.slow),
        pytest.param(T5, on_meshes(mesh="2", stages=2, strategy="data"), marks=pytest.mark.slow),
        (T5, on_meshes(mesh="2", stages=2, training=True, microbatches=3)),
    ],
)
def test_an_unedited_plan_replays_to_the_same_module(spec: str, step: PartitionPass) -> None:
    """With its proof, and without its bound being looked for again."""
    module = run(step, prepared(spec))
    data = written(module)
    assert print_module(replayed(data, prepared(spec))) == print_module(module)


def test_memory_is_that_of_the_order_of_work() -> None:
    """GPipe holds all microbatches in every stage, 1F1B two and one."""
    module = run(on_meshes(mesh="2", stages=2, training=True, microbatches=8, family="gpipe"), pair())
    step = replay_from_json(written(module))
    assert isinstance(step, ReplayPass)
    held = {
        family: [stage.workspace for stage in plan_of(run(replace(step, family=family), pair())).stages]
        for family in ("", "gpipe")
    }
    assert held["gpipe"] == [stage.workspace for stage in plan_of(module).stages]
    assert held["gpipe"] > held[""]


def test_a_pass_that_replays_is_pipeline_text() -> None:
    """Reproducers hold it."""
    step = replay_from_json(written(run(on_meshes(mesh="2", stages=2), prepared(BERT))))
    assert parse_pipeline(pipeline_text((step,))) == (step,)


def test_an_op_with_copies_in_stages_is_listed_by_its_name() -> None:
    """A mask is made by each stage that reads it; one that lacks it is sent it, but not from a stage with a copy."""
    module = costed(MASKED)
    found = run(on_meshes(mesh="2", stages=2), module)
    data = written(found)
    one, two = (one["ops"] for one in data["stages"])
    assert "mask" in one
    assert "mask" in two
    assert print_module(replayed(data, module)) == print_module(found)
    copy = two.pop("mask")
    data["stages"][1]["weights"].pop("full")
    sent = plan_of(replayed(data, module))
    assert sent.stages[1].receive > plan_of(found).stages[1].receive
    two["mask"], two["h"] = copy, one["h"]
    with pytest.raises(InvalidInput, match="op 'h' is in stages 0, 1"):
        replayed(data, module)
    del two["h"]
    data["stages"] = [
        {"device": device, "ops": [*ops]}
        for device, ops in (("a", ["mask", "h", "a"]), ("b", ["g"]), ("c", ["y"]), ("d", ["mask"]))
    ]
    with pytest.raises(InvalidInput, match="op 'y' reads 'mask', which stages 0, 3 compute for themselves") as raised:
        replayed(data, module)
    assert raised.value.diagnostics[0].where == "plan.json: stage 2"


def test_numbers_of_the_file_are_not_believed() -> None:
    module = run(on_meshes(mesh="2x2"), prepared(BERT))
    data = written(module)
    data.update(value=1e-9, port_value=1e-9, single=1.0, status="optimal", gap=0.0)
    for stage in data["stages"]:
        stage["seconds"] = {key: 0.0 for key in stage["seconds"]}
        stage["memory"] = {key: 0 for key in stage["memory"]}
    again = plan_of(replayed(data, prepared(BERT)))
    plan = plan_of(module)
    assert (again.value, again.stages, again.single) == (plan.value, plan.stages, plan.single)
    data["bound"] = plan.bound / 2  # nobody proved that: it is looked for again
    assert plan_of(replayed(data, prepared(BERT))).bound == pytest.approx(plan.bound)


@pytest.mark.slow
@pytest.mark.parametrize("step", [on_meshes(mesh="4"), on_meshes(mesh="2x2"), on_meshes(mesh="2", stages=2)])
def test_a_bound_without_a_proof_is_searched_for(step: PartitionPass) -> None:
    """It is that of these stages on these meshes: of one mesh the bound of the search."""
    module = run(step, prepared(BERT))
    data, plan = written(module), plan_of(module)
    data["certificate"] = {}
    again = plan_of(replayed(data, prepared(BERT)))
    assert again.value == plan.value
    assert plan.bound * (1 - 1e-6) <= again.bound <= plan.value
    if step.stages == 1:
        assert again.bound == pytest.approx(plan.bound)
    assert dict(again.certificate)["plan"] == "given, not searched for"
    assert "with these stages on these meshes: lower bound" in plan_headline(again)


def test_an_edited_strategy_is_priced_anew() -> None:
    """The first product by row: its input is cut for nothing, its sum costs an all-reduce or what follows it."""
    module = run(on_meshes(mesh="4"), pair())
    data, plan = written(module), plan_of(module)
    (stage,) = data["stages"]
    assert stage["ops"] == {"h": {"x": "n"}, "a": {"x": "d1"}, "y": {"x": "k"}}
    assert stage["weights"] == {"up": {"x": "S(1)"}, "down": {"x": "S(0)"}}
    stage["ops"]["h"]["x"] = "k"
    kept = plan_of(replayed(data, pair()))
    # @up is still kept by column: 64 KiB to 16 KiB each way, 3 steps; %h is summed and cut, 4 KiB; the rest is as before
    assert kept.value == pytest.approx(plan.value + 3 * 65536 / 16 / 1e9 + 3 * 4096 / 4 / 1e9, rel=1e-3)
    stage["weights"]["up"]["x"] = "S(0)"
    moved = replayed(data, pair())
    assert plan_of(moved).value == pytest.approx(plan.value + 3 * 4096 / 4 / 1e9, rel=1e-3)
    assert seconds(moved) == [plan_of(moved).value]
    assert (plan_of(moved).bound, plan_of(moved).status) == (plan.bound, "within-gap")
    del stage["weights"]
    assert plan_of(replayed(data, pair())).value == plan_of(moved).value


def test_a_stage_cut_elsewhere_on_other_meshes() -> None:
    """From one mesh of four to two stages of two devices each, by hand; values, devices, axes as stated."""
    data = written(run(on_meshes(mesh="4"), pair()))
    first = {"device": ["d", "b"], "mesh": {"axes": {"rows": 2}}, "ops": {"h": {"rows": "n"}, "a": {"rows": "d1"}}}
    last = {"device": "a", "ops": ["y"]}
    data["stages"] = [first, last]
    module = replayed(data, pair())
    plan = plan_of(module)
    assert [s.devices for s in plan.stages] == [("d", "b"), ("a",)]
    one, two = seconds(module)
    # %a of 4 KiB is gathered from halves, then sent whole to the only device of the other stage
    assert plan.stages[0].send == plan.stages[1].receive == pytest.approx(4096e-9)
    assert [stage.working for stage in plan.stages] == [one, two]
    assert plan.stages[0].collectives == pytest.approx(2048e-9)
    assert plan.value == pytest.approx(max(one, two) + 4096e-9)
    assert 0 < plan.bound <= plan.value
    assert dict(plan.certificate)["bound"] == SEARCHED
    assert parse_module(print_module(module)) == module


def test_values_cross_in_parts_to_a_mesh_of_the_same_shape() -> None:
    """%h of 4 KiB is sent in halves, and gathered where it is read."""
    data = written(run(on_meshes(mesh="4"), pair()))
    first = {"device": ["a", "b"], "mesh": {"axes": {"x": 2}}, "ops": {"h": {"x": "n"}}}
    last = {"device": ["c", "d"], "mesh": {"axes": {"x": 2}}, "ops": {"a": {"x": "replicate"}, "y": {"x": "replicate"}}}
    data["stages"] = [first, last]
    one, two = plan_of(replayed(data, pair())).stages
    assert (one.collectives, two.collectives) == (0.0, pytest.approx(2048e-9))
    assert one.send == two.receive == pytest.approx(2048e-9)


@pytest.mark.parametrize(
    ("strategy", "stages"), [("data", 2), pytest.param("megatron", 3, marks=pytest.mark.slow), ("replicate", 2)]
)
def test_a_plan_by_name_is_cut_where_its_slowest_stage_is_quickest(strategy: str, stages: int) -> None:
    """No other cut of the chain, with ops split as in the plan of the whole and weights kept as costs least, is quicker."""
    module = parse_module(chain(2 * stages))
    module = CostPass().run(module, pass_context(DiagnosticSink()))
    whole = written(run(on_meshes(mesh="2", strategy=strategy), module))["stages"][0]["ops"]
    found = run(on_meshes(mesh="2", stages=stages, strategy=strategy), module)
    data = written(found)
    assert {name: row for stage in data["stages"] for name, row in stage["ops"].items()} == whole
    names, values = list(whole), []
    for cuts in itertools.combinations(range(1, len(names)), stages - 1):
        ends = [0, *cuts, len(names)]
        data["stages"] = [
            {
                "device": [f"d{2 * i}", f"d{2 * i + 1}"],
                "mesh": {"axes": {"x": 2}},
                "ops": {name: whole[name] for name in names[a:b]},
            }
            for i, (a, b) in enumerate(itertools.pairwise(ends))
        ]
        values.append(plan_of(replayed(data, module)).value)
    assert plan_of(found).value == pytest.approx(min(values))
    assert plan_of(found).bound <= plan_of(found).value


def test_megatron_in_stages_sends_parts_of_a_sum_between_hosts() -> None:
    """Only sums of activations may be split otherwise than in the plan of one mesh; the one that is cut crosses in parts."""
    module = prepared("zoo:gpt2,layers=2,qkv=separate,vocab=51200,hidden=2048,seq=1024,batch=4", "preset:2xa100x2")
    whole = written(run(on_meshes(mesh="2", strategy="megatron"), module))["stages"][0]["ops"]
    found = run(on_meshes(mesh="2", stages=2, strategy="megatron"), module)
    ops = {name: row for stage in written(found)["stages"] for name, row in stage["ops"].items()}
    makers = {value.name.lstrip("%"): op.name for op in found.entry.ops for value in op.results}
    other = {name for name, row in ops.items() if name in whole and row != whole[name]}
    assert {makers[name] for name in other} == {"onnx.Add"}
    crossing = [cut.tensor for cut in cuts_of(found.entry) if cut.tensor.name.lstrip("%") in other]
    assert crossing
    assert all("S(" in str(tensor.type) for tensor in crossing)


def chain(devices: int) -> str:
    """Products with activations between them, now few, now many, all of one width: cut anywhere, as much crosses."""
    ops, last = [], "%x"
    for i, name in enumerate("MRMRRRRRRRMMRRRRR"):
        operands = f"onnx.MatMul({last}, @w{i})" if name == "M" else f"onnx.Relu({last})"
        last = f"%v{i}"
        ops.append(f"    {last} = {operands} : tensor<8x64xf32>")
    names = ", ".join(f"d{i}" for i in range(devices))
    return "\n".join(
        [
            "module @chain {opset.onnx = 20} {",
            *(f"  resource @w{i} : tensor<64x64xf32> = declared" for i in (0, 2, 10, 11)),
            f"  func @main(%x : tensor<8x64xf32>) -> ({last} : tensor<8x64xf32>) {{",
            *ops,
            "  }",
            "  topology @some {",
            "    type core {rates = {f32 = 10000000000.0}, memory_bandwidth = 100000000.0}",
            "    host h",
            *(f"    device {name} {{type = core, host = h}}" for name in names.split(", ")),
            f"    link bus {{ends = [{names}], bandwidth = 1000000000.0, latency = 0.0}}",
            "  }",
            "}",
        ]
    )


# -- faults ------------------------------------------------------------------------------------------------------------


def stage(data: dict[str, Any]) -> dict[str, Any]:
    found = data["stages"][0]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    ("change", "where", "message"),
    [
        (
            lambda d: stage(d)["ops"]["h"].update(x="q"),
            "stage 0",
            "op 'h' (onnx.MatMul) has no strategy 'q' along x, an axis of 4",
        ),
        (lambda d: stage(d)["ops"]["h"].update(x="n; k"), "stage 0", "op 'h' (onnx.MatMul) has 2 strategies for 1 axes"),
        (lambda d: stage(d)["ops"]["h"].update(x=3), "stages[0].ops.h", "expected 'x' as text, found 3"),
        (lambda d: stage(d)["ops"]["h"].update(y="n"), "stages[0].ops.h", "the mesh has no axis 'y'; it has x"),
        (lambda d: stage(d)["ops"].update(h={}), "stages[0].ops.h", "nothing is said of axis 'x'"),
        (lambda d: stage(d)["ops"].update(g={"x": "n"}), "stage 0", "no op is called 'g'"),
        (lambda d: stage(d)["ops"].pop("a"), "", "op 'a' is in no stage"),
        (lambda d: stage(d).update(ops=["h", "a", "y"]), "stages[0].ops", "expected an object, found list"),
        (lambda d: stage(d).update(ops={}), "stages[0].ops", "the stage has no op"),
        (lambda d: stage(d)["mesh"]["axes"].update(x=3), "stage 0", "its mesh 3 has 3 places for 4 devices"),
        (lambda d: stage(d)["mesh"]["axes"].update(x=10**30), "stages[0].mesh.axes", "expected 'x' as a whole number"),
        (
            lambda d: stage(d)["mesh"]["axes"].update(x=-4),
            "stages[0].mesh.axes",
            "expected 'x' as a whole number from 1, found -4",
        ),
        (
            lambda d: stage(d)["mesh"].update(shares={"x": [1, 1, 1, 5000]}),
            "stage 0",
            "axis 'x' of its mesh has a share of 5000",
        ),
        (
            lambda d: stage(d)["mesh"].update(shares={"x": [1, 1, 0, 2]}),
            "stages[0].mesh.shares",
            "a share along 'x' is 0, expected 1 or more",
        ),
        (
            lambda d: stage(d)["mesh"].update(shares={"x": [1, 1, 1, 2], "z": [1]}),
            "stages[0].mesh.shares",
            "the mesh has no axis 'z'; it has x",
        ),
        (lambda d: stage(d).pop("mesh"), "stages[0]", "expected the list 'ops', found dict"),
        (lambda d: d.pop("sharding"), "stages[0].mesh", "the stage is on a mesh, and the plan has no 'sharding'"),
        (
            lambda d: stage(d).update(serves=[0, 0]),
            "stages[0].serves",
            "the stage says which replica has each turn, and the plan has 'sharding'",
        ),
        (lambda d: stage(d)["device"].__setitem__(1, "e"), "stage 0", "no device is called 'e'"),
        (lambda d: stage(d)["device"].__setitem__(1, "a"), "stage 0", "device 'a' is listed twice"),
        (lambda d: stage(d).update(device=[]), "stage 0", "it has no device; stages of a plan on meshes name theirs"),
        (
            lambda d: stage(d)["weights"]["up"].update(x="S(7)"),
            "stage 0",
            "weight 'up' cannot have the layout 'S(7)' on a mesh of 4",
        ),
        (lambda d: stage(d)["weights"]["up"].update(x="half"), "stages[0].weights.up", "'half' is no placement"),
        (lambda d: stage(d)["weights"].update(three={"x": "R"}), "stage 0", "the stage reads no weight 'three'"),
        (
            lambda d: stage(d)["weights"].update({f"w{n}": {"x": "R"} for n in range(6)}),
            "",
            "it is a plan of another model: it names 8 weights, of which this one has 2",
        ),
        (
            lambda d: stage(d)["outputs"]["y"].update(x="P(sum)"),
            "stage 0",
            "output 'y' cannot have the layout 'P(sum)' on a mesh of 4",
        ),
        (lambda d: stage(d)["outputs"].update(h={"x": "R"}), "stage 0", "the stage makes no output 'h'"),
        (
            lambda d: d.update(objective="pipedream"),
            "",
            "objective is 'pipedream', expected throughput, latency, ",
        ),
        (lambda d: d.update(comm="overlap"), "comm", "comm 'overlap' found; of plans that split tensors, 'sum' expected"),
        (lambda d: d.update(microbatches=4), "", "microbatches is 4, expected 1, or of a training step 1 or more"),
    ],
)
def test_faults_are_located(change: Callable[[dict[str, Any]], Any], where: str, message: str) -> None:
    data = json.loads(plans()[0])
    change(data)
    with pytest.raises(InvalidInput) as raised:
        replayed(data, pair())
    (fault,) = raised.value.diagnostics
    assert fault.message.startswith(message)
    assert fault.where.startswith(f"plan.json: {where}" if where else "plan.json")


def test_a_mesh_of_one_device_is_told_in_the_singular() -> None:
    data = json.loads(plans()[0])
    stage(data).update(device="a")
    with pytest.raises(InvalidInput, match=r"its mesh 4 has 4 places for 1 device\n") as raised:
        replayed(data, pair())
    assert raised.value.diagnostics[0].where == "plan.json: stage 0"


def test_strategies_that_an_axis_alone_would_have() -> None:
    """A batch of 4 is split by 2, not by 2 and 2 and then 2: the strategies that there are together are told."""
    data = written(run(on_meshes(mesh="2x2", strategy="replicate"), pair()))
    stage(data)["ops"]["h"] = {"x": "k", "y": "k"}
    assert plan_of(replayed(data, pair())).value > 0
    module = parse_module(PAIR.replace("MEMORY", "").replace("tensor<4x", "tensor<2x"))
    module = CostPass().run(module, pass_context(DiagnosticSink()))
    stage(data)["ops"]["h"] = {"x": "m", "y": "m"}
    with pytest.raises(InvalidInput, match=r"cannot be split by 'm; m' on a mesh of 2x2") as raised:
        replayed(data, module)
    assert "m; n" in raised.value.diagnostics[0].hint


def test_ops_in_the_wrong_stages() -> None:
    data = written(run(on_meshes(mesh="2", stages=2), pair()))
    one, two = data["stages"]
    one["ops"], two["ops"] = two["ops"], one["ops"]
    one["weights"], two["weights"] = two["weights"], one["weights"]
    one["outputs"], two["outputs"] = two["outputs"], one["outputs"]
    with pytest.raises(InvalidInput, match=r"stage 0 reads %\w, which stage 1 makes"):
        replayed(data, pair())
    one["ops"].update(two["ops"])
    with pytest.raises(InvalidInput, match=r"is in stages 0, 1"):
        replayed(data, pair())


def test_weights_that_do_not_fit() -> None:
    """Kept whole they need twice what each device has; how many bytes, and on which devices."""
    module = pair("70000")
    data = written(run(on_meshes(mesh="4"), module))
    for row in stage(data)["weights"].values():
        row["x"] = "R"
    message = (
        r"stage 0 needs 149504 bytes on a \(131072 of weights, 18432 of workspace, 0 of buffers\), 79504 more than there are"
    )
    with pytest.raises(Infeasible, match=message):
        replayed(data, module)


def test_buffers_count_as_memory() -> None:
    """A plan in stages that misses the memory by its buffers alone."""
    module = pair()
    data = written(run(on_meshes(mesh="2", stages=2), module))
    second = plan_of(replayed(data, module)).stages[1]
    assert second.buffers > 0
    with pytest.raises(Infeasible, match=r"stage 1 needs .* 1 more than there are"):
        replayed(data, pair(f"{second.memory - 1}"))


@pytest.mark.parametrize("memory", [-1, 80000])
def test_a_limit_of_memory_that_was_asked_for_is_kept(memory: int) -> None:
    """What the topology says counts no more, and what is proven under one limit is not under another."""
    module = pair("50000" if memory < 0 else "200000")
    found = run(on_meshes(mesh="2x2", memory=memory), module)
    data = written(found)
    assert data["sharding"] == {"memory": memory}
    assert print_module(replayed(data, module)) == print_module(found)
    data["sharding"]["memory"] = 100000
    assert dict(plan_of(replayed(data, module)).certificate)["bound"] == SEARCHED
    data["sharding"]["memory"] = 10000
    with pytest.raises(Infeasible):
        replayed(data, module)


def test_activations_of_chains_that_do_not_fit() -> None:
    """Values inside chains are alive where most is."""
    with pytest.raises(Infeasible, match="no plan that fits was found"):
        run(on_meshes(mesh="4", memory=96256), prepared("zoo:mlp,layers=3,hidden=32,batch=64"))


def padded(value: float) -> Module:
    """Of the sum that the second product makes, terms can be padded with 0, and with nothing else."""
    padding = f"resource @pads : tensor<4xi64> = inline([0, 0, 0, 1])\n  resource @fill : tensor<f32> = splat({value})"
    text = PAIR.replace("MEMORY", "").replace("resource @three : tensor<3xf32> = declared", padding).replace("%y", "%s")
    text = text.replace("(%s : tensor<4x64xf32>)", "(%y : tensor<4x65xf32>)")
    last = "    %s = onnx.MatMul(%a, @down) : tensor<4x64xf32>\n"
    module = parse_module(text.replace(last, f"{last}    %y = onnx.Pad(%s, @pads, @fill) : tensor<4x65xf32>\n"))
    return CostPass().run(module, pass_context(DiagnosticSink()))


def test_a_constant_that_decides_what_an_op_can_do_is_part_of_the_proof() -> None:
    """Another model of the same sizes has more plans."""
    data = written(run(on_meshes(mesh="4"), padded(1.0)))
    assert plan_of(replayed(data, padded(1.0))).status == "optimal"
    assert dict(plan_of(replayed(data, padded(0.0))).certificate)["bound"] == SEARCHED


# -- nonsense ----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def plans() -> list[str]:
    """Texts of three plans: on one mesh, in stages, and of a training step in stages."""
    steps = (
        on_meshes(mesh="4"),
        on_meshes(mesh="2", stages=2),
        on_meshes(mesh="2", stages=2, training=True, microbatches=2),
    )
    return [json.dumps(written(run(step, pair()))) for step in steps]


NUMBERS = [-1, 0, 1, 2, 10**40, 1e308, -0.5]
TEXTS = ["", "a", "x", "h", "n", "k", "R", "S(0)", "S(99999999)", "P(sum)", "0:h", "n; n", "\x00\n", "d" * 5000, "training"]
ROWS = [[], {}, [[]], ["a", "b"], ["h"], {"x": 2}, {"x": "n"}, {"": ""}, {"x": {"x": {}}}, [3, 1], [0, 0]]
POOL: list[Any] = [None, True, *NUMBERS, *TEXTS, *ROWS]


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all entries."""
    keys = data if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ()
    return [found for key in keys for found in ((*path, key), *places(data[key], (*path, key)))]


@given(st.data())
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
def test_nonsense_is_refused_or_makes_a_sound_plan(draw: st.DataObject) -> None:
    """Entries go, change their type or name, are exchanged or doubled: a plain error, or a module that is whole."""
    data = json.loads(draw.draw(st.sampled_from(plans())))
    for _ in range(draw.draw(st.integers(1, 3))):
        *way, last = draw.draw(st.sampled_from(places(data) or [("schema",)]))
        holder = data
        for key in way:
            holder = holder[key]
        kind = draw.draw(st.sampled_from(("drop", "put", "rename", "take", "double")))
        if kind == "put":
            holder[last] = copy.deepcopy(draw.draw(st.sampled_from(POOL)))  # a later step may change it
        elif kind == "take":
            *there, key = draw.draw(st.sampled_from(places(data)))
            other = data
            for part in there:
                other = other[part]
            holder[last] = json.loads(json.dumps(other[key]))
        elif kind == "rename" and isinstance(holder, dict):
            name = draw.draw(st.sampled_from([str(one) for one in POOL]))
            holder[name] = holder.pop(last)
        elif kind == "double" and isinstance(holder, list):
            holder.append(json.loads(json.dumps(holder[last])))
        else:
            del holder[last]
        if not places(data):
            break
    try:
        step = replay_from_json(data)
        found = step.run(pair(), pass_context(DiagnosticSink()))
    except DnncError as error:
        longest = max(len(str(fault)) for fault in error.diagnostics)
    else:
        longest = 0
    assert longest < 20_000  # a name of the file may be told in full
    if longest:
        return
    assert verify(found, dialects=DIALECTS) == []
    assert parse_module(print_module(found)) == found
    if isinstance(step, ReplayPass):
        plan = plan_of(found)
        assert 0 <= plan.bound <= plan.value
        assert parse_pipeline(pipeline_text((step,))) == (step,)


def test_how_gradients_are_synchronised_is_replayed() -> None:
    data = written(run(on_meshes(mesh="4", training=True, strategy="data"), pair()))
    assert "sync" not in data["stages"][0]
    stated = {"up": "sfb", "down": "ps(3)"}
    both = "1 by gathered factors (sfb), 1 through a server (ps), 1 summed by all members"
    for name in stated:  # every member has all of it
        data["stages"][0]["weights"][name] = {"x": "R"}
    data["stages"][0]["sync"] = stated
    module = replayed(data, pair())
    assert written(module)["stages"][0]["sync"] == stated
    assert plan_of(replayed(written(module), pair())) == plan_of(module)
    assert dict(plan_of(module).certificate)["synchronised"] == f"gradients of weights: {both}"
    stated["up"] = "reduce_scatter"
    both = "1 through a server (ps), 1 summed and updated in parts (reduce_scatter), 1 summed by all members"
    assert dict(plan_of(replayed(data, pair())).certificate)["synchronised"] == f"gradients of weights: {both}"


@pytest.mark.parametrize(
    ("sync", "training", "where", "message"),
    [
        ({"up": "ring"}, True, "stages[0].sync.up", "'ring' is no method of synchronisation"),
        ({"up": 3}, True, "stages[0].sync", "3"),
        ({"x": "sfb"}, True, "stage 0", "the gradient of 'x' cannot be synchronised by 'sfb': no weight is called so"),
        ({"three": "sfb"}, True, "stage 0", "it is no product of what members have rows of"),
        ({"up": "ps(4)"}, True, "stage 0", "members do not hold terms of it along an axis of that many"),
        ({"up": "sfb"}, False, "stage 0", "the plan trains nothing"),
    ],
)
def test_methods_that_a_weight_does_not_have(sync: dict[str, Any], training: bool, where: str, message: str) -> None:
    data = written(run(on_meshes(mesh="4", training=training, strategy="data"), pair()))
    data["stages"][0]["weights"]["up"] = {"x": "R"}
    data["stages"][0]["sync"] = sync
    with pytest.raises(InvalidInput, match=re.escape(message)) as raised:
        replayed(data, pair())
    assert where in raised.value.diagnostics[0].where
