"""``dnnc verify-plan DIR``: what a plan claims holds, what is tampered with is named, and the prices and the plain search prove
no more than is true."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dnnc.build.plan_json import plan_to_json
from dnnc.check.witness.bound import proven
from dnnc.check.witness.exhaustive import searched
from dnnc.check.witness.facts import CLOSE, Facts, facts_of
from dnnc.check.witness.verify import verified, verify_build
from dnnc.cli import main
from dnnc.onnx import DIALECTS
from ir import load_module
from ir.core.diagnostics import DiagnosticSink
from ir.core.facets import Transfer
from ir.core.module import Module
from ir.core.topology import Link, Topology
from ir.text.witness import DEVICES, MESHES, REPLICAS, TURNS, Witness, read_witness, witness_text
from passes.framework.base import PassContext, needed
from passes.graph.folding import expand
from passes.graph.sizes import sized_results
from passes.partition.on_meshes import MeshesSearch
from passes.partition.partition_pass import PartitionPass
from passes.partition.place import PlacePass
from tests.passes.partition.bridge.test_on_links import random_module
from tests.passes.partition.layouts.test_stages import random_chain

MLP = "zoo:mlp,layers=3,hidden=8,inputs=8,outputs=8,batch=4"
WIDE = "zoo:mlp,layers=4,hidden=512,inputs=512,outputs=512,batch=64"
TRAINING = ("--objective", "training", "--loss", "mse:y", "--microbatches", "4")
UNEQUAL = """
version = 1
name = "unequal"
[types]
slow = "preset:p100"
fast = "preset:v100"
[[hosts]]
name = "h"
[[devices]]
name = "a"
type = "slow"
host = "h"
[[devices]]
name = "b"
type = "fast"
host = "h"
[[links]]
name = "bus"
ends = ["a", "b"]
bandwidth = "10 GB/s"
latency = "1 us"
"""
CASES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "stages": (WIDE, "preset:cpu-2", ("--stages", "2", "--replicas", "1")),
    "stages on unequal devices": (WIDE, "unequal", ("--stages", "2", "--mesh", "none")),
    "overlap": (WIDE, "unequal", ("--comm", "overlap")),
    "replicas": (WIDE, "preset:cpu-4", ()),
    "one mesh": (WIDE, "preset:h100x4", ("--mesh", "4")),
    "a mesh of one device": (WIDE, "preset:h100x4", ("--mesh", "1")),
    "training on a mesh of one device": (MLP, "preset:cpu-2", (*TRAINING, "--mesh", "1")),
    "two axes": (WIDE, "preset:h100x4", ("--mesh", "2x2")),
    "meshes in stages": (WIDE, "preset:h100x4", ("--mesh", "2", "--stages", "2")),
    "convolutions on a mesh": ("zoo:resnet50,image=64,weights=declared", "preset:cpu-2", ("--mesh", "2")),
    "stages of replicas": ("zoo:bert-small,layers=2", "preset:2xrtx3090x2", ("--stages", "2", "--mesh", "none")),
    "latency": (WIDE, "preset:cpu-2", ("--objective", "latency")),
    "pieces": (WIDE, "unequal", ("--objective", "latency", "--pieces", "2")),
    "training": (WIDE, "preset:cpu-2", TRAINING),
    "training in stages": (WIDE, "preset:cpu-2", (*TRAINING, "--stages", "2", "--replicas", "1", "--mesh", "none")),
    "training on replicas": (WIDE, "preset:h100x4", (*TRAINING, "--mesh", "none")),
    "gpipe": (WIDE, "preset:cpu-2", (*TRAINING, "--stages", "2", "--mesh", "none", "--schedule", "gpipe")),
    "zb-h1": (
        WIDE,
        "preset:cpu-2",
        (*TRAINING, "--microbatches", "2", "--stages", "2", "--mesh", "none", "--schedule", "zb-h1"),
    ),
    "zb-h2": (
        WIDE,
        "preset:cpu-2",
        (*TRAINING, "--microbatches", "2", "--stages", "2", "--mesh", "none", "--schedule", "zb-h2"),
    ),
    "training on a mesh": (WIDE, "preset:h100x4", (*TRAINING, "--mesh", "4")),
    "training in stages on meshes": (WIDE, "preset:h100x4", (*TRAINING, "--mesh", "2", "--stages", "2")),
}
CAPTURED = """
module @captured {opset.onnx = 20} {
  resource @w : tensor<64x64xf32> = random(normal, seed = 1)
  resource @v : tensor<64x64xf32> = random(normal, seed = 2)
  func @main(%x : tensor<8x64xf32>, %c : tensor<bool>) -> (%y : tensor<8x64xf32>) {
    %z = onnx.If(%c) : tensor<8x64xf32>
      region then_branch() {
        %a = onnx.MatMul(%x, @w) : tensor<8x64xf32>
        yield %a
      }
      region else_branch() {
        %b = onnx.Relu(%x) : tensor<8x64xf32>
        yield %b
      }
    %y = onnx.MatMul(%z, @v) : tensor<8x64xf32>
  }
}
"""
COUNTED = CASES.keys() - {"gpipe", "zb-h1", "zb-h2", "training in stages on meshes"}


def compiled(folder: Path, model: str, machines: str, *options: str) -> Path:
    """A plan alone."""
    if machines == "unequal":
        (folder / "unequal.toml").write_text(UNEQUAL)
        machines = str(folder / "unequal.toml")
    out = folder / "plan"
    assert main(["compile", model, "-t", machines, "--plan-only", "-q", "-o", str(out), *options]) == 0
    return out


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    model, machines, options = CASES[request.param]
    return request.param, compiled(tmp_path_factory.mktemp("plans"), model, machines, *options)


def test_what_a_plan_claims_holds(case: tuple[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    name, directory = case
    capsys.readouterr()
    assert main(["verify-plan", str(directory), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    told = json.loads((directory / "plan.json").read_text())
    assert found["ok"]
    assert (found["value"] is not None) == (name in COUNTED), found["uncounted"]
    assert found["claimed"] == {key: told[key] for key in ("value", "bound", "gap")}
    assert found["proven"] <= told["value"] * (1 + CLOSE)
    assert found["proofs"]
    assert found["proven"] > 0


def test_a_stage_may_do_without_buffers_of_what_passes_over_stages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The third stage reads what the first made: a third buffer of it lets all three work at once, two will do."""
    weight = onnx.numpy_helper.from_array(np.zeros((256, 256), np.float32), "w")
    value = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4, 256]) for name in ("x", "y")]
    nodes = [onnx.helper.make_node("MatMul", [a, "w"], [b]) for a, b in itertools.pairwise(("x", "h", "g", "f"))]
    nodes.append(onnx.helper.make_node("Add", ["f", "h"], ["y"]))
    model = onnx.helper.make_model(onnx.helper.make_graph(nodes, "skip", value[:1], value[1:], [weight]))
    onnx.save(model, tmp_path / "skip.onnx")
    plan = compiled(tmp_path, str(tmp_path / "skip.onnx"), "preset:cpu-3", "--cut", "h", "--cut", "g", "--mesh", "none")
    needed = [sum(stage["memory"].values()) for stage in json.loads((plan / "plan.json").read_text())["stages"]]
    for lacking, code in ((4096, 0), (4097, 4)):
        text = "version = 1\ninclude = 'preset:cpu-3'\n"
        text += f"[[devices]]\nname = 'd{{0..2}}'\ntype = 'core'\nmemory = '{max(needed) - lacking} B'\n"
        text += "[[links]]\nmesh = ['d{0..2}']\nbandwidth = '10 GB/s'\n"
        (tmp_path / "tight.toml").write_text(text)
        capsys.readouterr()
        arguments = ["--plan-only", "--cut", "h", "--cut", "g", "--mesh", "none", "-o", str(tmp_path / "tight")]
        assert main(["compile", str(tmp_path / "skip.onnx"), "-t", str(tmp_path / "tight.toml"), *arguments]) == code
        if code == 0:
            assert "W3026" in capsys.readouterr().err
            assert main(["verify-plan", str(tmp_path / "tight")]) == 0


def edited(directory: Path, folder: Path, name: str, change: Callable[[str], str]) -> Path:
    """A copy of a plan with one file changed."""
    for file in ("plan.json", "plan.ir"):
        text = (directory / file).read_text()
        after = change(text) if file == name else text
        assert file != name or after != text, "the edit changes nothing"
        (folder / file).write_text(after)
    return folder


def scaled(key: str, by: float) -> Callable[[str], str]:
    """The first number behind ``key = `` in IR text, so many times."""
    return lambda text: re.sub(rf"(\b{key} = )([0-9.e+-]+)", lambda m: m[1] + repr(float(m[2]) * by), text, count=1)


def in_json(**values: Any) -> Callable[[str], str]:
    return lambda text: json.dumps({**json.loads(text), **values})


def in_stage(**values: Any) -> Callable[[str], str]:
    def change(text: str) -> str:
        plan = json.loads(text)
        plan["stages"][0] |= values
        return json.dumps(plan)

    return change


TAMPERED: dict[str, tuple[str, Callable[[str], str], str]] = {
    "value": ("plan.json", in_json(value=1e-9), "'value' is 1e-09"),
    "value of the text": ("plan.ir", scaled("value", 0.5), "the value is"),
    "an infinite value": (
        "plan.ir",
        lambda text: re.sub(r"(\bvalue = )[0-9.e+-]+", r"\g<1>inf", text, count=1),
        "the value is inf",
    ),
    "bound": ("plan.json", in_json(bound=1e-9), "'bound' is 1e-09"),
    "bound of the text": ("plan.ir", scaled("bound", 0.9), "'bound' is"),
    "gap": ("plan.json", in_json(gap=0.5), "'gap' is 0.5"),
    "status": ("plan.json", in_json(status="undecided"), "'status' is 'undecided'"),
    "schema": ("plan.json", in_json(schema="dnnc.plan/1"), "'schema' is 'dnnc.plan/1'"),
    "single": ("plan.json", in_json(single=1.0), "'single' is 1.0"),
    "seconds of a stage": ("plan.json", in_stage(seconds={"compute": 9}), "'stages[0].seconds.compute' is 9"),
    "memory of a stage": ("plan.json", in_stage(memory={"weights": 9}), "'stages[0].memory.weights' is 9"),
    "certificate": ("plan.json", in_json(certificate={"bound": "trust me"}), "'certificate.bound' is 'trust me'"),
    "witness": ("plan.json", in_json(witness=[]), "'witness' has 0 entries, in plan.ir 1"),
    "price": (
        "plan.ir",
        lambda text: re.sub(r"core=0\.5", "core=0.25", text),
        "'witness[0].prices.core' is 0.5",
    ),
    "form": (
        "plan.ir",
        lambda text: text.replace('"devices ', '"meshes '),
        "'witness[0].plans' is 'devices'",
    ),
    "no witness": ("plan.ir", lambda text: text.replace('"devices ', '"device '), "the witness is no text of a witness"),
    "compute": ("plan.ir", scaled("compute", 0.5), "stage 0: compute is"),
    "send": ("plan.ir", scaled("send", 2.0), "stage 0: send is"),
    "weights": ("plan.ir", lambda text: re.sub(r"(weights = )\d+", r"\g<1>7", text, count=1), "stage 0: weights are 7 bytes"),
    "device": ("plan.ir", lambda text: re.sub(r"devices = \[cpu0\]", "devices = [cpu7]", text), "cpu7, which is no device"),
    "one device twice": ("plan.ir", lambda text: text.replace("devices = [cpu1]", "devices = [cpu0]"), ""),
    "an op moved": ("plan.ir", lambda text: re.sub(r"stage<1>", "stage<0>", text, count=1), "'stages[0].ops' has"),
    "an op moved back": ("plan.ir", lambda text: re.sub(r"stage<0>", "stage<1>", text, count=1), "flows backward"),
}


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("staged"), *CASES["stages"][:2], *CASES["stages"][2])


@pytest.mark.parametrize("name", TAMPERED)
def test_what_is_tampered_with_is_named(name: str, staged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, change, expected = TAMPERED[name]
    directory = edited(staged, tmp_path, file, change)
    capsys.readouterr()
    code = main(["verify-plan", str(directory)])
    out, err = capsys.readouterr()
    assert (code, out) in ((5, ""), (3, "")), err  # 3: the verifier of the IR found it first
    assert expected in err or code == 3, err


def test_the_workspace_of_a_device_beside_a_mesh_is_counted() -> None:
    """In stages on meshes only that of meshes is not."""
    module = random_chain(Random(14))
    module = MeshesSearch(stages=0, replicas=0, device_memory=3200).run(module, PassContext(dialects=DIALECTS))
    facts = facts_of(module, "plan.ir")
    single = next(stage for stage in facts.plan.stages if not stage.mesh)
    assert facts.plan.on_meshes
    assert not verified(facts, plan_to_json(facts.whole)).violations
    stages = tuple(replace(stage, workspace=stage.workspace - 4 * (stage is single)) for stage in facts.plan.stages)
    lying = facts_of(module.replace(facts.plan, replace(facts.plan, stages=stages)), "plan.ir")
    wanted = f"stage {single.index}: workspace are {single.workspace - 4} bytes, counted {single.workspace}"
    assert verified(lying, plan_to_json(lying.whole)).violations == [wanted]


def test_weights_that_a_branch_captures_are_counted_on_a_mesh(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "captured.ir").write_text(CAPTURED)
    out = tmp_path / "plan"
    options = ("--mesh", "2", "--stages", "2", "--plan-only", "-q", "-o", str(out))
    assert main(["compile", str(tmp_path / "captured.ir"), "-t", "preset:cpu-4,cores=4", *options]) == 0
    assert main(["verify-plan", str(out)]) == 0, capsys.readouterr()


def test_a_plan_of_an_older_dnnc_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It said whether parts may differ in length, and of memory only what was asked for."""
    out = compiled(tmp_path, WIDE, "preset:h100x4", "--mesh", "4")
    for name, own, older in (
        ("plan.ir", "shard.memory = 0", "shard.uneven = 0"),
        ("plan.json", '"sharding": {"memory": 0}', '"sharding": {"uneven": false}'),
    ):
        text = (out / name).read_text()
        assert own in text
        (out / name).write_text(text.replace(own, older))
    assert main(["verify-plan", str(out)]) == 0, capsys.readouterr()
    assert main(["compile", WIDE, "-t", "preset:h100x4", "--plan", str(out / "plan.ir"), "--plan-only", "-o", str(out)]) == 0
    assert "gpu0..gpu3" in capsys.readouterr().out


def test_consistent_lies_are_found(staged: Path, tmp_path: Path) -> None:
    """Value, bound and witness that agree with each other, in both files, but not with the ops."""

    def lying(text: str) -> str:
        text = scaled("value", 0.5)(scaled("port_value", 0.5)(scaled("bound", 0.5)(text)))
        return re.sub(r'witness = "[^"]*"', "", text).replace(", }", "}").replace("{, ", "{").replace(", ,", ",")

    module = load_module(lying((staged / "plan.ir").read_text()), "plan.ir", dialects=DIALECTS)
    claims = plan_to_json(expand(module))
    found = verified(facts_of(module, "plan.ir"), claims)
    assert any("the value is" in text for text in found.violations)


def test_a_bound_that_is_too_high_is_found_by_search(staged: Path) -> None:
    module = load_module((staged / "plan.ir").read_text(), "plan.ir", dialects=DIALECTS)
    facts = facts_of(module, "plan.ir")
    plan = replace(facts.plan, certificate=())  # in any number of stages
    free = Facts(facts.module, facts.whole, plan, facts.topology)
    best, note = searched(free, Witness(DEVICES, 0.0))
    assert best is not None
    assert "downsets" in note
    assert proven(free, Witness(DEVICES, 0.0, (("core", 0.5),))) <= best * (1 + CLOSE)


def test_a_search_of_a_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = compiled(tmp_path, WIDE, "unequal", "--mesh", "none")
    found = verify_build(directory, search=True)
    assert not found.violations
    turns, proof = found.proofs
    assert proof.searched is not None
    assert proof.searched >= proof.claimed * (1 - CLOSE)
    assert (turns.plans, turns.searched, turns.note) == (TURNS, None, "plans of unlike turns are not searched plainly")
    assert turns.proven >= turns.claimed * 0.999, "two devices share all ops in proportion to their speed"
    capsys.readouterr()
    assert main(["verify-plan", str(directory), "--search"]) == 0
    assert "a plain search" in capsys.readouterr().out


def test_a_search_in_as_many_stages_as_were_asked_for(staged: Path) -> None:
    """What prices prove of all plans is less than what a search proves of those in two stages."""
    found = verify_build(staged, search=True)
    assert not found.violations
    assert found.proofs[0].searched is not None
    assert found.proofs[0].least >= found.bound * (1 - CLOSE)


def test_what_is_too_large_says_so(tmp_path: Path) -> None:
    directory = compiled(tmp_path, "zoo:bert-small,layers=2", "preset:cpu-2", "--mesh", "none")
    found = verify_build(directory, search=True)
    assert not found.violations
    assert "not searched plainly" in found.proofs[0].note


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["plan.json"], "it is a file, expected a RESULT beside it"),
        (["plan.json", "plan.json", "--search"], "it is a file, expected a directory"),
        ([".", "--comm", "sum"], "--comm given with a directory"),
        ([".", "--cpus", "0"], "--cpus given with a directory"),
        ([".", "plan.json"], "RESULT given with a directory"),
    ],
)
def test_options_that_do_not_fit(
    arguments: list[str], expected: str, staged: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(staged)
    assert main(["verify-plan", *arguments]) == 2
    assert expected in capsys.readouterr().err


def test_a_directory_without_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify-plan", str(tmp_path / "nothing")]) == 3
    assert "no such file; expected a workload file, or a directory" in capsys.readouterr().err
    assert main(["verify-plan", str(tmp_path)]) == 3
    (tmp_path / "plan.json").write_text("{}")
    (tmp_path / "plan.ir").write_text("module @m {\n  func @main() -> () {\n  }\n}\n")
    assert main(["verify-plan", str(tmp_path)]) == 3
    assert "it has no plan" in capsys.readouterr().err


# -- random problems ---------------------------------------------------------------------------------------------------

MACHINES = """
  topology @machines {
    type x {kind = gpu}
    type y {kind = gpu}
    host h {cores = 4}
    device a {type = x, host = h}
    device b {type = x, host = h}
    device c {type = y, host = h}
    link bus {ends = [a, b, c], bandwidth = 1000.0, latency = 0.001}
  }
"""
UNLIKE_PORTS = """
  topology @machines {
    type x {kind = gpu}
    type y {kind = gpu}
    host h {cores = 4}
    device a {type = x, host = h}
    device b {type = x, host = h}
    device c {type = y, host = h}
    link la {ends = [a, h], bandwidth = 1000.0, latency = 0.001}
    link lb {ends = [b, h], bandwidth = 300.0, latency = 0.001}
    link lc {ends = [c, h], bandwidth = 1000.0, latency = 0.001}
  }
"""


@st.composite
def modules(draw: st.DrawFn) -> Module:
    """A few units of work on three devices of two types, the first two of which are of one and may have unlike ports."""
    machines = draw(st.sampled_from([MACHINES, UNLIKE_PORTS]))
    count = draw(st.integers(1, 5))
    lines = []
    for number in range(count):
        before = draw(st.sets(st.integers(0, number - 1), max_size=2)) if number else set()
        x, y = (draw(st.integers(1, 9)) / 8 for _ in range(2))
        operands = ", ".join(f"%n{other}" for other in sorted(before))
        size = draw(st.integers(0, 300))
        times = f"time<@x = {x}, @y = {y}>" if draw(st.booleans()) else f"time<@x = {x}>"
        lines.append(f"    %n{number} = dnnc.work({operands}) {{id = {number}, size = {size}}} : bytes<{size}> {times}")
    func = "\n".join(["  func @main() -> () {", *lines, "  }"])
    return load_module(f"module @work {{\n{func}\n{machines}}}\n", "work.ir", dialects=DIALECTS)


def planned(module: Module, **options: Any) -> Facts:
    context = PassContext(dialects=DIALECTS)
    return facts_of(PlacePass().run(PartitionPass(**options).run(module, context), context), "work.ir")


@settings(max_examples=25)
@given(modules(), st.sampled_from([1, 0]), st.sampled_from(["sum", "overlap", "duplex"]), st.floats(0, 1), st.data())
def test_prices_prove_no_more_than_is_true(module: Module, replicas: int, comm: str, price: float, data: st.DataObject) -> None:
    """Whatever they are; and no bound of a search is above what a plain search finds, nor that above the value."""
    facts = planned(module, replicas=replicas, comm=comm)
    form = REPLICAS if replicas == 0 else DEVICES
    record = Witness(form, facts.plan.bound, (("x", price), ("y", data.draw(st.floats(0, 1)))))
    best, _ = searched(facts, record)
    assert best is not None
    assert proven(facts, record) <= best * (1 + CLOSE)
    assert facts.plan.bound <= best * (1 + CLOSE)
    assert best <= facts.plan.value * (1 + CLOSE)
    found = verified(facts, plan_to_json(facts.whole))
    assert not found.violations
    assert found.value is not None


def on_hosts(seed: int) -> Module:
    """A training step on hosts of one to three devices, whose own links may differ, or which have an adapter each that leads
    from host to host; some seconds of transfers are stated."""
    module, rng = random_module(seed, training=True), Random(seed)
    topology = needed(module, Topology)
    unlike, stated = rng.random() < 0.5, rng.random() < 0.3
    links = [
        replace(one, bandwidth=one.bandwidth * rng.choice((1, 1, 0.1)) if unlike else one.bandwidth) for one in topology.links
    ]
    if rng.random() < 0.4:
        wide = rng.choice((0.3, 1, 3)) * min(one.bandwidth for one in links)
        links += [Link(f"own-{device.name}", (device.name, "hub"), wide, 1e-8) for device in topology.devices]
    seconds = [tuple(10 ** rng.uniform(-5, -3) for _ in sized_results(op)) for op in module.entry.ops if stated]
    ops = (
        [op.with_facets(Transfer(own)) for op, own in zip(module.entry.ops, seconds, strict=True)]
        if stated
        else module.entry.ops
    )
    module = module.replace(topology, replace(topology, links=tuple(links)))
    return module.replace(module.entry, replace(module.entry, ops=tuple(ops)))


@settings(max_examples=20)
@given(st.integers(0, 1 << 20), st.sampled_from([1, 2, 4, 8]), st.sampled_from([0, 0, 2]))
@example(2264, 8, 0)  # nodes that replicas add up gradients of were joined to others, as if they were free to move
def test_no_bound_on_hosts_is_above_what_a_plain_search_finds(seed: int, microbatches: int, stages: int) -> None:
    context = PassContext(dialects=DIALECTS, sink=DiagnosticSink())
    search = PartitionPass(objective="training", replicas=0, microbatches=microbatches, stages=stages)
    facts = facts_of(PlacePass().run(search.run(on_hosts(seed), context), context), "plan.ir")
    best, note = searched(facts, Witness(REPLICAS, 0.0))
    assert best is not None, note
    assert facts.plan.bound <= best * (1 + CLOSE)
    assert best <= facts.plan.value * (1 + CLOSE)


def brute_force(facts: Facts, most: int) -> float:
    """Every way to give the ops to stages in order and the stages to devices, up to ``most`` of one type each, from the
    definition of a load."""
    count, devices = len(facts.ops), facts.topology.devices
    rows = {type_.name: facts.seconds(type_, range(count)) for type_ in facts.types}
    best = math.inf
    for stages in range(1, min(count, len(devices)) + 1):
        for home in itertools.product(range(stages), repeat=count):
            if set(home) != set(range(stages)):
                continue
            if any(home[r] < home[t.maker] for t in facts.tensors for r in t.readers):
                continue
            for owners in itertools.product(range(stages + 1), repeat=len(devices)):
                on = [[d for d, owner in zip(devices, owners, strict=True) if owner == stage] for stage in range(stages)]
                if any(not 1 <= len(own) <= most or len({device.type for device in own}) > 1 for own in on):
                    continue
                loads = []
                for stage, device in ((stage, device) for stage, own in enumerate(on) for device in own):
                    port = facts.net.port(device.name)
                    compute = sum(rows[device.type][v] for v in range(count) if home[v] == stage)
                    seconds = [port.latency + t.size / port.bandwidth for t in facts.tensors]
                    ends = [(home[t.maker], {home[r] for r in t.readers}) for t in facts.tensors]
                    got = sum(s for s, (m, to) in zip(seconds, ends, strict=True) if m != stage and stage in to)
                    gave = sum(s for s, (m, to) in zip(seconds, ends, strict=True) if m == stage and to - {stage})
                    loads.append((compute + got + gave) / len(on[stage]))
                best = min(best, max(loads))
    return best


@settings(max_examples=25)
@given(modules(), st.sampled_from([1, 0]))
def test_the_plain_search_finds_what_brute_force_finds(module: Module, replicas: int) -> None:
    facts = planned(module, replicas=replicas)
    best, _ = searched(facts, Witness(DEVICES if replicas else REPLICAS, 0.0))
    assert best == pytest.approx(brute_force(facts, replicas or 3), rel=1e-9)


# -- texts -------------------------------------------------------------------------------------------------------------

RECORDS = st.builds(
    Witness,
    st.sampled_from([DEVICES, REPLICAS, MESHES]),
    st.floats(0, allow_nan=False),
    st.dictionaries(st.text(alphabet='ab =;"\\\n', min_size=1, max_size=5), st.floats(0, 1e300), max_size=3).map(
        lambda prices: tuple(sorted(prices.items()))
    ),
)


@settings(max_examples=50)
@given(st.lists(RECORDS, max_size=3))
def test_texts_are_read_back(records: list[Witness]) -> None:
    assert read_witness(witness_text(records)) == tuple(records)


def test_numbers_of_arrays_are_written_plainly() -> None:
    record = Witness(DEVICES, np.float64(0.5), (("core", np.float64(0.25)),), np.float64(2.0))
    assert witness_text([record]) == "devices 0.5 2.0/byte core=0.25"


@pytest.mark.parametrize("text", ["x 1", "devices", "devices a", "devices 1 a", "devices -1", "devices 1 a=-1", "; devices 1"])
def test_what_is_no_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected|could not convert"):
        read_witness(text)
