"""``dnnc compile --mesh``: tensors split over a mesh, from the options to programs that compute what the model does."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dnnc.cli import main
from dnnc.compile.driver import CompileOptions, build_pipeline
from ir.core.diagnostics import UsageError
from passes import parse_pipeline, pipeline_text

BERT = "zoo:bert-base,layers=2,hidden=64,heads=8,vocab=128,seq=16,batch=4"
MLP = "zoo:mlp,batch=8,hidden=64"
FOUR = "preset:cpu-4,cores=4"


UNEQUAL = """
version = 1

[types.fast]
kind = "cpu"
rates = { f32 = "200 GFLOP/s" }
memory = "4 GiB"
memory_bandwidth = "40 GB/s"

[types.slow]
like = "fast"
rates = { f32 = "2 GFLOP/s" }
memory_bandwidth = "1 GB/s"

[[devices]]
name = "fast"
type = "fast"

[[devices]]
name = "slow"
type = "slow"

[[links]]
ends = ["fast", "slow"]
bandwidth = "1 MB/s"
latency = "1 ms"
"""


def dnnc(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    code = main(list(map(str, arguments)))
    out, err = capsys.readouterr()
    assert code == 0, err
    return out


def compiled(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    data = json.loads(dnnc(capsys, "compile", *arguments, "--json"))
    assert data["schema"] == "dnnc.compile/2"
    assert isinstance(data, dict)
    return data


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """What is said; nothing is written."""
    out = Path(arguments[arguments.index("-o") + 1])
    assert main(["compile", *map(str, arguments)]) == 2
    assert not out.exists()
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (MLP, ("--mesh", "3")),
        pytest.param(BERT, ("--mesh", "2x2", "--strategy", "megatron"), marks=pytest.mark.slow),
        (BERT, ("--mesh", "2", "--stages", "2")),
    ],
)
def test_what_is_built_computes_what_the_model_does(
    model: str, options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = dnnc(capsys, "compile", model, "-t", FOUR, "-o", tmp_path / "b", *options)
    heads = ["stage", "mesh", "ops", "seconds", "compute", "collectives", "transfers", "memory", "share"]
    assert out.splitlines()[0].split() == heads
    assert f"dnnc check {tmp_path / 'b'}" in out
    assert "passed" in dnnc(capsys, "check", tmp_path / "b")


def test_json_tells_meshes_and_collectives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = (BERT, "-t", FOUR, "-o", tmp_path / "b", "--plan-only")
    data = compiled(capsys, *common, "--mesh", "2x2", "--strategy", "megatron")
    (stage,) = data["stages"]
    assert stage["mesh"] == [2, 2]
    assert stage["devices"] == ["cpu0", "cpu1", "cpu2", "cpu3"]
    assert stage["seconds"] == pytest.approx(stage["compute"] + stage["collectives"])
    assert data["objective"] == pytest.approx(stage["seconds"])
    assert data["certificate"]["strategy"] == "megatron"
    assert data["bound"] <= data["objective"]
    assert data["seconds"]["search"] > 0
    assert data["pipeline"] == "canonicalize,unfuse,cost,fold,partition{stages=1,mesh=2x2,strategy=megatron},place,schedule"
    staged = compiled(capsys, *common, "--mesh", "2", "--stages", "2")
    assert [stage["mesh"] for stage in staged["stages"]] == [[2], [2]]


def test_mesh_and_stages_are_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Chosen freely, a plan is never slower than one that is asked for."""
    common = (BERT, "-t", "preset:h100x4", "-o", tmp_path / "b", "--plan-only")
    given = compiled(capsys, *common, "--mesh", "4")
    auto = compiled(capsys, *common, "--mesh", "auto")
    assert auto["objective"] <= given["objective"] * (1 + 1e-9)
    assert len(auto["stages"]) == 1
    joint = compiled(capsys, *common, "--mesh", "auto", "--stages", "auto")
    assert joint["objective"] <= auto["objective"] * (1 + 1e-3)


def test_one_device_hands_nothing_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of two stages each computes less, but for the hand-over; one device is the better plan."""
    (tmp_path / "two.ir").write_text(
        "module @m {opset.onnx = 20} {\n"
        "  resource @w0 : tensor<64x64xf32> = declared\n  resource @w1 : tensor<64x64xf32> = declared\n"
        "  func @main(%x : tensor<64x64xf32>) -> (%v1 : tensor<64x64xf32>) {\n"
        "    %v0 = onnx.MatMul(%x, @w0) : tensor<64x64xf32>\n    %v1 = onnx.MatMul(%v0, @w1) : tensor<64x64xf32>\n  }\n}\n"
    )
    (tmp_path / "four.toml").write_text(
        'version = 1\n[types.c]\nrates = { f32 = "3.33 GFLOP/s" }\nmemory_bandwidth = "22 GB/s"\nhandover = "150 us"\n'
        '[[devices]]\nname = "d{0..3}"\ntype = "c"\n'
        '[[links]]\nends = ["host", "devices of host"]\nbandwidth = "1 GB/s"\nlatency = "10 us"\n'
    )
    asked = [tmp_path / "two.ir", "-t", tmp_path / "four.toml", "--mesh", "1", "--plan-only", "-o", tmp_path / "build"]
    found, alone = (compiled(capsys, *asked, "--stages", stages) for stages in ("auto", "1"))
    assert len(found["stages"]) == 1
    assert found["stages"][0]["seconds"] == pytest.approx(alone["stages"][0]["seconds"])
    assert found["status"] == "optimal"


def test_explanation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Layers with their collectives, a block op by op, and other plans, as tables."""
    arguments = (BERT, "-t", "preset:h100x4", "-o", tmp_path / "b", "--plan-only", "--mesh", "4", "--explain")
    out = dnnc(capsys, "compile", *arguments, "--strategy", "megatron")
    assert "encoder.layer.0 .. encoder.layer.1" in out
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line.strip()}
    assert "S(1)" in rows["intermediate.dense.matmul"]
    assert "all-reduce" in rows["output.dense.matmul"]
    assert rows["megatron"][3] == "1.00x"
    assert {"found", "data", "one", "expert"} <= rows.keys()
    data = compiled(capsys, *arguments)
    told = data["explanation"]
    assert sum(layer["compute"] for layer in told["layers"]) == pytest.approx(data["stages"][0]["compute"])
    assert sum(layer["communication"] for layer in told["layers"]) == pytest.approx(data["stages"][0]["collectives"])
    by_name = {row["plan"]: row for row in told["comparison"]}
    assert by_name["found"]["ratio"] == 1.0
    assert by_name["found"]["fits"]
    assert by_name["Megatron"]["ratio"] >= 1 - 1e-9
    assert by_name["expert parallel"]["missing"]
    assert by_name["one device"]["seconds"] == data["single"]
    assert {row["operator"] for row in told["block"]["ops"]} >= {"onnx.MatMul", "onnx.Softmax"}


def test_programs_of_a_training_step_need_a_loss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unless the model is of the zoo and has one output."""
    arguments = (BERT, "-t", FOUR, "-o", tmp_path / "b", "--mesh", "4", "--objective", "training")
    said = refused(capsys, *arguments)
    assert "the model's outputs are: last_hidden_state, pooler_output" in said
    assert "--loss cross-entropy:last_hidden_state" in said
    assert "--plan-only" in said
    mlp = compiled(capsys, MLP, "-t", FOUR, "-o", tmp_path / "mlp", "--objective", "training")
    assert mlp["pipeline"].startswith("training{loss=cross-entropy:y}")
    data = compiled(capsys, *arguments, "--plan-only")
    assert data["kind"] == "training"
    assert "per training step" in dnnc(capsys, "compile", *arguments, "--plan-only")
    events = json.loads((tmp_path / "b" / "trace.json").read_text())["traceEvents"]
    assert {event["cat"] for event in events if "cat" in event} >= {"F", "B"}
    assert json.loads((tmp_path / "b" / "plan.json").read_text())["microbatches"] == 1


QUICK = UNEQUAL.replace("1 MB/s", "10 GB/s").replace("1 ms", "1 us")


@pytest.mark.parametrize(
    "options",
    [
        (),
        pytest.param(("--mesh", "2"), marks=pytest.mark.slow),
        pytest.param(("--mesh", "1", "--stages", "2"), marks=pytest.mark.slow),
    ],
)
def test_one_sample_alone_is_split_over_a_mesh(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    """Its devices work at once, those of stages one after the other; plans are replayed, run, checked and proven."""
    machine, build, again = tmp_path / "two.toml", tmp_path / "b", tmp_path / "again"
    machine.write_text(QUICK.replace('"2 GFLOP/s"', '"200 GFLOP/s"').replace('"1 GB/s"', '"40 GB/s"'))
    found = compiled(capsys, BERT, "-t", machine, "-o", build, "--objective", "latency", *options)
    alone = compiled(capsys, BERT, "-t", machine, "-o", tmp_path / "alone", "--objective", "latency", "--mesh", "none")
    if "--stages" in options:  # one after the other
        assert alone["objective"] < found["objective"]
        seconds = [stage["compute"] + stage["receive"] + stage["send"] for stage in found["stages"]]
        assert found["objective"] == pytest.approx(sum(seconds))
    else:
        assert found["objective"] < 0.6 * alone["objective"]
    assert found["bound"] <= found["objective"]
    replayed = compiled(capsys, BERT, "-t", machine, "-o", again, "--plan", build / "plan.json")
    assert replayed["objective"] == pytest.approx(found["objective"])
    assert main(["verify-plan", str(build)]) == 0
    assert main(["run", str(build)]) == 0
    assert main(["check", str(build)]) == 0
    assert "passed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--mesh", "2", "--cut", "x"), ("--cut",)),
        (("--mesh", "2", "--pin", "a=cpu0", "--replicas", "2"), ("--pin", "--replicas")),
        (("--mesh", "2", "--plan", "plan.json"), ("--plan",)),
        (("--mesh", "2", "--split", "any"), ("--split",)),
        (("--mesh", "2", "--comm", "overlap"), ("--comm",)),
        (("--mesh", "2", "--pieces", "2"), ("--pieces",)),
        (("--mesh", "2", "--passes", "canonicalize,cost"), ("--mesh", "partition")),
        (("--mesh", "2", "--stages", "2", "--microbatches", "4"), ("--microbatches", "--objective training")),
        (("--microbatches", "4"), ("--microbatches", "--objective training")),
        (("--strategy", "data"), ("--strategy", "--mesh")),
        (("--explain", "--mesh", "none"), ("--explain", "--mesh")),
        (("--explain", "--pin", "a=cpu0"), ("--explain", "--mesh")),
        (("--stages", "two"), ("--stages", "two")),
    ],
)
def test_contradictions(
    options: tuple[str, ...], words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, MLP, "-t", FOUR, "-o", tmp_path / "b", *options)
    assert all(word in said for word in words), said
    assert "hint" in said or "expected" in said or "--passes" in said or "not latency" in said


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--mesh", "8"), 4, ("8 places", "4 devices", "smaller mesh")),
        (("--mesh", "2y"), 2, ("2y", "2x4")),
        (("--mesh", "1x4"), 2, ("axis of 1",)),
        (("--mesh", "2x2x2x2"), 2, ("4 axes",)),
        (("--mesh", "4", "--strategy", "expert"), 3, ("expert", "no experts")),
        (("--mesh", "2", "--stages", "3"), 4, ("6 devices", "fewer stages")),
    ],
)
def test_meshes_that_there_are_not(
    options: tuple[str, ...], code: int, words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is that of stages without a mesh: more than there are devices is infeasible."""
    assert main(["compile", MLP, "-t", FOUR, "-o", str(tmp_path / "b"), *options]) == code
    said = capsys.readouterr().err
    assert all(word in said for word in words), said
    assert not (tmp_path / "b").exists()


def test_a_split_that_is_not_worth_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model of one element."""
    (tmp_path / "one.ir").write_text(
        "module @one {opset.onnx = 20} {\n  func @main(%x : tensor<1xf32>) -> (%y : tensor<1xf32>) {\n"
        "    %y = onnx.Relu(%x) : tensor<1xf32>\n  }\n}\n"
    )
    out = dnnc(capsys, "compile", tmp_path / "one.ir", "-t", FOUR, "-o", tmp_path / "b", "--mesh", "3", "--plan-only")
    assert "no split is worth its exchange" in out
    assert "not used: cpu3 (--mesh 3 was asked for)" in out


@pytest.mark.parametrize("strategy", ["megatron", "replicate"])
def test_a_plan_by_name_is_not_advised_on(strategy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It was not searched for, and Megatron's is split."""
    arguments = (MLP, "-t", FOUR, "-o", tmp_path / "b", "--mesh", "2", "--plan-only", "--strategy", strategy)
    assert "worth its exchange" not in dnnc(capsys, "compile", *arguments)


def test_a_mesh_slower_than_one_device_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A slow device in the mesh sets its pace, and the link is too slow to leave it less."""
    topology = tmp_path / "unequal.toml"
    topology.write_text(UNEQUAL)
    out = dnnc(capsys, "compile", MLP, "-t", topology, "-o", tmp_path / "b", "--mesh", "2", "--plan-only")
    assert "slower than one device; --mesh auto --stages auto" in out
    assert "worth its exchange" not in out


def test_what_is_said_of_shares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Which were tried, and that devices are left out because shares are of fewer."""
    topology = tmp_path / "unequal.toml"
    topology.write_text(UNEQUAL.replace('"2 GFLOP/s"', '"70 GFLOP/s"').replace('"1 GB/s"', '"14 GB/s"'))
    common = ("compile", BERT, "-t", topology, "-o", tmp_path / "b", "--plan-only", "--mesh")
    assert ", the best of equal, 3:1" in dnnc(capsys, *common, "2")
    assert "the best of" not in dnnc(capsys, *common, "2", "--shares", "equal")
    out = dnnc(capsys, "compile", MLP, "-t", FOUR, "-o", tmp_path / "b", "--plan-only", "--mesh", "auto", "--shares", "3,1")
    assert "not used: cpu2, cpu3 (--shares 3,1 was asked for)" in out
    assert "in unequal parts: cpu0 3, cpu1 1\n" in out
    out = dnnc(capsys, "compile", MLP, "-t", FOUR, "-o", tmp_path / "b", "--plan-only", "--mesh", "4", "--shares", "2,2,2,1")
    assert "in unequal parts: cpu0..cpu2 2 each, cpu3 1\n" in out


def test_what_is_found_without_options_is_explained_where_it_splits_tensors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A training step on unequal devices is split over both; replicas of a whole model split nothing, and a warning says so."""
    common = ("-o", tmp_path / "b", "--plan-only", "--explain", "-t")
    assert main(["compile", MLP, *map(str, common), FOUR]) == 0
    said = capsys.readouterr()
    assert "some stages of the best plan split no tensors" in said.err
    assert "what each layer" not in said.out
    topology = tmp_path / "unequal.toml"
    text = UNEQUAL.replace('"2 GFLOP/s"', '"100 GFLOP/s"').replace('"1 GB/s"', '"20 GB/s"').replace('"1 ms"', '"10 us"')
    topology.write_text(text.replace('"1 MB/s"', '"20 GB/s"'))
    wide = "zoo:mlp,layers=2,hidden=1024,batch=64,weights=declared"
    out = dnnc(capsys, "compile", wide, *common, topology, "--objective", "training")
    assert "what each layer computes and exchanges" in out


def test_an_edited_plan_is_replayed_and_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A product by column, its weight kept as suits it: priced, explained, run; the bound of the search stays."""
    common = (BERT, "-t", FOUR)
    found = compiled(capsys, *common, "-o", tmp_path / "a", "--mesh", "2", "--stages", "2", "--plan-only")
    plan = tmp_path / "a" / "plan.json"
    text = plan.read_text()
    product = "encoder.layer.0.attention.self.query.matmul"
    row = f'"{product}": {{"x": "b0"}}'
    assert row in text
    plan.write_text(text.replace(row, row.replace("b0", "n")))
    out = dnnc(capsys, "compile", *common, "-o", tmp_path / "b", "--plan", plan, "--explain")
    assert "what each layer computes and exchanges" in out
    edited = json.loads((tmp_path / "b" / "plan.json").read_text())
    assert {name: op for stage in edited["stages"] for name, op in stage["ops"].items()}[product] == {"x": "n"}
    assert edited["value"] > found["objective"]
    assert edited["bound"] == found["bound"]
    assert edited["status"] == "within-gap"
    assert "passed" in dnnc(capsys, "check", tmp_path / "b")
    plan.write_text(text.replace(row, row.replace("b0", "columns")))
    assert main(["compile", *common, "-o", str(tmp_path / "c"), "--plan", str(plan)]) == 3
    said = capsys.readouterr().err
    assert (
        f"{plan}: stage 0: error[E3406]: op '{product}' (onnx.MatMul) has no strategy 'columns' along x, an axis of 2" in said
    )
    assert "it has 'replicate', 'b0', " in said
    plan.write_text(text.replace(row, f"{row}, {row}"))
    assert main(["compile", *common, "-o", str(tmp_path / "c"), "--plan", str(plan)]) == 3
    assert f"'{product}' stands twice" in capsys.readouterr().err
    assert not (tmp_path / "c").exists()


@pytest.mark.slow
def test_a_plan_by_name_in_stages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Megatron inside stages: pairs are whole in a stage, and the stages compute what the model does."""
    arguments = (BERT, "-t", FOUR, "-o", tmp_path / "b", "--stages", "2", "--strategy", "megatron")
    data = compiled(capsys, *arguments, "--mesh", "2")
    assert [stage["mesh"] for stage in data["stages"]] == [[2], [2]]
    assert data["certificate"]["strategy"] == "megatron"
    assert all(stage["collectives"] > 0 for stage in data["stages"])
    assert data["bound"] <= data["objective"]
    assert "passed" in dnnc(capsys, "check", tmp_path / "b")
    free = compiled(capsys, *arguments, "--mesh", "auto", "--plan-only")
    assert free["objective"] <= data["objective"] * (1 + 1e-9)


def test_a_training_step_in_stages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Seconds of a step are (microbatches + stages - 1) periods; layers are told stage by stage; the plan replays."""
    arguments = (BERT, "-t", FOUR, "--mesh", "2", "--objective", "training", "--plan-only", "--stages", "2")
    data = compiled(capsys, *arguments, "-o", tmp_path / "b", "--microbatches", "5", "--explain")
    assert (data["microbatches"], data["samples_per_step"]) == (5, 5 * 4)
    assert data["period"] == pytest.approx(max(stage["seconds"] for stage in data["stages"]))
    assert data["objective"] == pytest.approx((5 + 2 - 1) * data["period"])
    for stage in data["stages"]:
        told = [layer for layer in data["explanation"]["layers"] if layer["stage"] == stage["index"]]
        assert sum(layer["compute"] for layer in told) < stage["compute"], "the update is of no layer"
        assert sum(layer["communication"] for layer in told) == pytest.approx(stage["collectives"])
    arguments = (BERT, "-t", FOUR, "--plan", tmp_path / "b" / "plan.json", "-o", tmp_path / "c")
    assert "needs a loss" in refused(capsys, *arguments)
    out = dnnc(capsys, "compile", *arguments, "--plan-only")
    assert "5 microbatches a step, one every" in out
    texts = [(tmp_path / folder / "plan.ir").read_text().partition("\nmodule ")[2] for folder in ("b", "c")]
    assert texts[0] == texts[1]  # but for the passes that made them


@pytest.mark.parametrize(("objective", "words"), [("throughput", "keeps this plan"), ("training", "with --loss")])
def test_a_mesh_plan_alone_says_how_programs_are_made(
    objective: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "b"
    dnnc(capsys, "compile", MLP, "-t", FOUR, "-o", out, "--mesh", "2", "--plan-only", "--objective", objective)
    assert main(["run", str(out)]) == 3
    said = capsys.readouterr().err
    assert words in said
    assert ("keeps this plan" in said) == (objective == "throughput")


def test_options_become_pipeline_text_that_reads_back(tmp_path: Path) -> None:
    options = CompileOptions(MLP, FOUR, tmp_path, mesh="2x2", stages=1, time_limit=0.0)
    pipeline = build_pipeline(options)
    assert parse_pipeline(pipeline_text(pipeline)) == pipeline
    assert [step.name for step in pipeline] == [
        "canonicalize",
        "unfuse",
        "cost",
        "fold",
        "partition",
        "place",
        "schedule",
        "lower",
        "localize",
    ]
    with pytest.raises(UsageError, match="partition"):
        build_pipeline(CompileOptions(MLP, FOUR, tmp_path, mesh="2", pipeline="canonicalize"))


def test_meshes_of_a_pipeline_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    passes = "canonicalize,cost,partition{stages=1,mesh=2},place,schedule,lower"
    data = compiled(capsys, MLP, "-t", FOUR, "-o", tmp_path / "b", "--passes", passes)
    assert data["stages"][0]["mesh"] == [2]


@pytest.mark.slow
def test_ctrl_c_writes_the_plan_at_hand(tmp_path: Path) -> None:
    """While the second shape of mesh is searched: the plan is written as a whole, and the exit code is that of an interrupt."""
    passes = "canonicalize,unfuse,cost,partition{stages=1,mesh=auto,gap=0.0}"
    arguments = ["zoo:t5-base", "-t", "preset:h100x8", "--mesh", "auto", "--passes", passes, "--plan-only"]
    tracing = ["-v", "--print-after", "cost", "--print-folder", str(tmp_path / "ir")]
    command = [sys.executable, "-m", "dnnc", "compile", *arguments, "-o", str(tmp_path / "b"), "--time-limit", "600", *tracing]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert any("mesh 2x4" in line for line in process.stderr), "the search was over too soon for this test"
        process.send_signal(signal.SIGINT)
        out, told = process.communicate(timeout=60)
    assert process.returncode == 130, told
    assert "interrupted: this is the best plan so far" in told
    assert "Traceback" not in told
    assert "per microbatch" in out
    plan = json.loads((tmp_path / "b" / "plan.json").read_text())
    assert plan["certificate"]["search"].startswith("interrupted: the best plan so far")
    # A shape that was not searched may have any plan.
    searched = "not bounded" not in plan["certificate"]["search"]
    assert (plan["bound"] > 0) == searched
    assert plan["bound"] <= plan["value"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "ir"]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            "(@fc1.bias) : tensor<16xf32, @mesh[S(0)]>",
            "(@fc1.bias) : tensor<16xf32>",
            "reads %fc1.bias.1 whole, but its strategy wants",
        ),
        (
            "    %relu1 =",
            "    %more = comm.reshard(%fc1) : tensor<4x16xf32> stage<0>\n    %relu1 =",
            "lead to other changes of layout",
        ),
    ],
    ids=["another layout", "one more"],
)
def test_an_edited_change_of_layout_is_not_lost(
    old: str, new: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reshard of plan.ir that does not follow from the strategies is refused when the text becomes a build."""
    spec = ["zoo:mlp,layers=2,hidden=16,inputs=16,outputs=16,batch=4", "-t", FOUR]
    dnnc(capsys, "compile", *spec, "-o", tmp_path / "b", "--mesh", "4", "--strategy", "megatron", "-q")
    path = tmp_path / "b" / "plan.ir"
    text = path.read_text()
    path.write_text(text.replace(old, new, 1))
    assert main(["compile", *spec, "--plan", str(path), "-o", str(tmp_path / "c")]) == 3
    assert told in capsys.readouterr().err
    assert not (tmp_path / "c").exists()
    path.write_text(text)
    dnnc(capsys, "compile", *spec, "--plan", path, "-o", tmp_path / "c", "-q")


def test_microbatches_on_one_mesh_accumulate_gradients(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One after another, then one exchange and update; ``simulate`` and a replay of the plan say the same."""
    common = (BERT, "-t", FOUR, "--plan-only")
    options = ("--mesh", "4", "--strategy", "data", "--objective", "training")
    one = compiled(capsys, *common, "-o", tmp_path / "one", *options)
    four = compiled(capsys, *common, "-o", tmp_path / "four", *options, "--microbatches", "4")
    assert (one["microbatches"], four["microbatches"]) == (1, 4)
    (row,) = json.loads((tmp_path / "four" / "plan.json").read_text())["stages"]
    sync = row["seconds"]["sync"]
    assert sync > 0
    eight = compiled(capsys, *common, "-o", tmp_path / "eight", *options, "--microbatches", "8")
    assert eight["objective"] == pytest.approx(2 * (four["objective"] - sync) + sync)
    assert main(["simulate", str(tmp_path / "four"), "--json"]) == 0
    timeline = json.loads(capsys.readouterr().out)
    assert (timeline["microbatches"], timeline["makespan"]) == (4, pytest.approx(four["objective"]))
    again = compiled(capsys, *common, "-o", tmp_path / "again", "--plan", tmp_path / "four" / "plan.json")
    assert again["objective"] == four["objective"]
    out = dnnc(capsys, "compile", *common, "-o", tmp_path / "told", *options, "--microbatches", "4")
    assert "4 microbatches a step, one after the other, " in out
    assert " once to update the weights" in out


def test_a_training_step_is_planned_as_the_best_of_all_kinds_unless_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = (MLP, "-t", FOUR, "--objective", "training", "--plan-only")
    alone = compiled(capsys, *common, "-o", tmp_path / "a")
    meshes = compiled(capsys, *common, "-o", tmp_path / "b", "--mesh", "auto", "--stages", "auto")
    single = compiled(capsys, *common, "-o", tmp_path / "c", "--mesh", "none")
    assert alone["kind"] == "training"
    assert alone["objective"] == pytest.approx(min(meshes["objective"], single["objective"]))
    assert alone["single"] == pytest.approx(meshes["single"]) == pytest.approx(single["single"])
