"""Each command on real builds: what it prints, what it writes, and that its JSON is what it says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dnnc.cli import main
from dnnc.onnx import DIALECTS
from ir import parse_module, print_module, verify
from ir.core.module import Func, Plan, Program
from passes.graph.folding import expand, is_block
from passes.meshes.reshard_ops import plain
from tests.dnnc.sealing import refresh

MODEL = "zoo:mlp,hidden=32,batch=4"


def dnnc(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """What the command printed; it must succeed and say nothing on standard error that is a fault."""
    code = main(list(map(str, arguments)))
    out, err = capsys.readouterr()
    assert code == 0, err
    assert "error" not in err
    return out


def json_of(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    data = json.loads(dnnc(capsys, *arguments, "--json"), parse_constant=lambda name: pytest.fail(f"JSON has no {name}"))
    assert isinstance(data, dict)
    version = 2 if arguments[0] == "compile" else 1
    assert data["schema"] == f"dnnc.{arguments[0]}/{version}"
    return data


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "mlp"
    assert main(["compile", MODEL, "-t", "preset:cpu-2,cores=2", "-o", str(folder), "--stages", "2", "--quiet"]) == 0
    return folder


def test_compile_prints_the_plan_and_what_to_do_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = dnnc(capsys, "compile", MODEL, "-t", "preset:cpu-2,cores=2", "-o", tmp_path / "b", "--stages", "2")
    lines = out.splitlines()
    assert lines[0].split() == ["stage", "device", "ops", "seconds", "compute", "transfers", "memory", "share"]
    assert [line.split()[1] for line in lines[1:3]] == ["cpu0", "cpu1"]
    assert "lower bound" in out
    assert "gap" in out
    assert "one device" in out
    assert "  2 callers of one unsplit session: " in out
    assert f"dnnc run {tmp_path / 'b'}" in lines[-1]
    assert max(map(len, lines[:-1])) <= 80


def test_compile_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--stages", "2", "--replicas", "1")
    data = json_of(capsys, "compile", MODEL, "-t", "preset:cpu-3,cores=3", "-o", tmp_path / "b", *asked)
    assert {"objective", "bound", "gap", "status", "stages", "seconds"} <= data.keys()
    assert data["objective"] >= data["bound"] > 0
    assert data["gap"] == pytest.approx(data["objective"] / data["bound"] - 1)
    assert data["status"] in ("optimal", "within-gap")
    assert [stage["index"] for stage in data["stages"]] == [0, 1]
    assert max(stage["seconds"] for stage in data["stages"]) == pytest.approx(data["objective"])
    parts = ["load", "canonicalize", "cost", "fold", "partition", "search", "place"]
    parts += ["schedule", "lower", "localize", "load-test", "write", "total"]
    assert list(data["seconds"]) == parts
    assert data["idle"] == ["cpu2"]
    steps = {name: value for name, value in data["seconds"].items() if name not in ("search", "total")}
    assert sum(steps.values()) <= data["seconds"]["total"]
    assert 0 <= data["seconds"]["search"] <= data["seconds"]["partition"]


def test_no_device_is_silently_ignored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = ("compile", "zoo:mlp,hidden=8,inputs=8,batch=1", "-t", "preset:cpu-3,cores=3", "-o", tmp_path / "b")
    larger = ("compile", "zoo:mlp,layers=3,hidden=512,inputs=512,batch=32", *tiny[2:])
    assert "not used" not in dnnc(capsys, *larger)
    alone = ("--replicas", "1", "--mesh", "none")
    assert "  not used: cpu2 (--mesh none, --replicas 1 was asked for)\n" in dnnc(capsys, *larger, *alone)
    assert "  not used: cpu1, cpu2 (no plan with them is faster)\n" in dnnc(capsys, *tiny)
    cut = ("--pin", "fc1=cpu0", "--replicas", "1")
    assert "  not used: cpu2 (--stages 2 was asked for)\n" in dnnc(capsys, *tiny, "--stages", "2", *cut)
    out = dnnc(capsys, *tiny, "--plan", tmp_path / "b" / "plan.json")
    assert "  not used: cpu2 (the replayed plan leaves it out)\n" in out


def test_quiet_prints_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", MODEL, "-t", "preset:cpu-2", "-o", str(tmp_path / "b"), "-q"]) == 0
    assert capsys.readouterr() == ("", "")


def test_a_build_is_replaced_by_the_next(build: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for stages in ("1", "2"):
        dnnc(capsys, "compile", MODEL, "-t", "preset:cpu-2", "-o", tmp_path / "b", "--stages", stages)
        names = {path.name for path in (tmp_path / "b" / "stages").glob("*.onnx")}
        assert len(names) == int(stages)
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_plan_only_and_replay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan written alone, edited by hand (an op moved to the other stage), replayed and run."""
    common = (MODEL, "-t", "preset:cpu-2,cores=2")
    dnnc(capsys, "compile", *common, "-o", tmp_path / "plan", "--stages", "2", "--plan-only")
    assert not (tmp_path / "plan" / "stages").exists()
    assert "fc1" in dnnc(capsys, "inspect", tmp_path / "plan", "--json")
    path = tmp_path / "plan" / "plan.json"
    plan = json.loads(path.read_text())
    moved = plan["stages"][1]["ops"].pop(0)
    plan["stages"][0]["ops"].append(moved)
    path.write_text(json.dumps(plan))
    data = json_of(capsys, "compile", *common, "-o", tmp_path / "b", "--plan", path)
    assert [stage["ops"] for stage in data["stages"]] == [stage["ops"] for stage in plan["stages"]]
    assert data["objective"] >= data["bound"]
    assert json_of(capsys, "check", tmp_path / "b")["passed"]
    again = json.loads((tmp_path / "b" / "plan.json").read_text())
    assert [stage["ops"] for stage in again["stages"]] == [stage["ops"] for stage in plan["stages"]]
    assert main(["run", str(tmp_path / "plan")]) == 3
    assert "--plan-only" in capsys.readouterr().err


def test_the_plan_of_another_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One error, with the model that the manifest beside it names: of a build its source, of a plan alone its name."""
    common = ("zoo:mlp,layers=4,hidden=8,inputs=8", "-t", "preset:cpu-1")
    for more, made_for in (((), common[0]), (("--plan-only",), "the model 'mlp'")):
        path = tmp_path / "".join(("b", *more)) / "plan.json"
        dnnc(capsys, "compile", *common, "-o", path.parent, "--mesh", "none", *more)
        path.write_text(path.read_text().replace('"fc', '"conv').replace('"relu', '"gelu'))
        assert main(["compile", *common, "-o", str(tmp_path / "none"), "--plan", str(path)]) == 3
        assert capsys.readouterr().err.splitlines() == [
            f"{path}: error[E3423]: it is a plan of another model: it names 7 ops, of which this one has 1",
            f"  hint: it was made for {made_for}: compile that, or plan this one anew",
        ]


def test_an_edited_plan_becomes_a_build_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """plan.json or plan.ir: the build that was edited is refused, and the message's command makes one of the plan."""
    common = (MODEL, "-t", "preset:cpu-2,cores=2")
    dnnc(capsys, "compile", *common, "-o", tmp_path / "b", "--stages", "2")
    stages = json.loads((tmp_path / "b" / "plan.json").read_text())["stages"]
    for name in ("plan.json", "plan.ir"):
        dnnc(capsys, "compile", *common, "-o", tmp_path / "again", "--plan", tmp_path / "b" / name)
        assert json.loads((tmp_path / "again" / "plan.json").read_text())["stages"] == stages
    path = tmp_path / "b" / "plan.ir"
    path.write_text(path.read_text().replace("stage<1>", "stage<0>", 1))
    for command in ("run", "check", "simulate", "inspect"):
        assert main([command, str(tmp_path / "b")]) == 3
        said = capsys.readouterr().err
        assert f"{path}: error[E0307]: its bytes are not those that were written" in said
        assert f"'dnnc compile MODEL -t TOPOLOGY --plan {path} -o DIR2'" in said
    dnnc(capsys, "compile", *common, "-o", tmp_path / "other", "--plan", path)
    moved = json.loads((tmp_path / "other" / "plan.json").read_text())["stages"]
    assert moved[0]["ops"] == [*stages[0]["ops"], stages[1]["ops"][0]]
    path.write_text("module @m {}\n")
    assert main(["compile", *common, "-o", str(tmp_path / "none"), "--plan", str(path)]) == 3
    assert "plan.ir" in capsys.readouterr().err


def test_a_replayed_plan_keeps_its_proof(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The bound was proven for this model and topology; on another topology, or cut short, it is computed anew."""
    model = "zoo:gpt2,layers=2,hidden=32,heads=2,seq=8,vocab=50"
    found = json_of(capsys, "compile", model, "-t", "preset:cpu-3,cores=2", "-o", tmp_path / "plan", "--plan-only")
    assert found["status"] == "optimal"
    path = tmp_path / "plan" / "plan.json"
    again = json_of(capsys, "compile", model, "-t", "preset:cpu-3,cores=2", "-o", tmp_path / "b", "--plan", path)
    assert [again[key] for key in ("objective", "bound", "gap", "status")] == [
        found[key] for key in ("objective", "bound", "gap", "status")
    ]
    other = json_of(capsys, "compile", model, "-t", "preset:cpu-4,cores=2", "-o", tmp_path / "c", "--plan", path)
    assert other["bound"] < found["bound"]
    plan = json.loads(path.read_text())
    plan["bound"] *= 1.5
    path.write_text(json.dumps(plan))
    assert main(["compile", model, "-t", "preset:cpu-3,cores=2", "-o", str(tmp_path / "d"), "--plan", str(path)]) == 3
    assert "take the bound out, or plan again" in capsys.readouterr().err


def test_user_control(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dnnc(capsys, "compile", MODEL, "-t", "preset:cpu-2", "-o", tmp_path / "b", "--cut", "relu2", "--pin", "fc1=cpu1")
    stages = json.loads((tmp_path / "b" / "plan.json").read_text())["stages"]
    assert stages[0]["ops"] == ["fc1", "relu1", "fc2", "relu2"]
    assert [stage["device"] for stage in stages] == ["cpu1", "cpu0"]


@pytest.mark.parametrize("weights", ["shared", "per-stage", "none"])
def test_weights(weights: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("-t", "preset:cpu-2", "-o", tmp_path / "b", "--stages", "2", "--weights", weights)
    dnnc(capsys, "compile", MODEL, *options)
    data = sorted(path.name for path in (tmp_path / "b" / "stages").glob("*.data"))
    assert data == {"shared": ["weights.data"], "per-stage": ["stage0.data", "stage1.data"], "none": []}[weights]
    if weights == "none":
        assert main(["run", str(tmp_path / "b")]) == 3
        assert "without weights" in capsys.readouterr().err
    else:
        assert json_of(capsys, "check", tmp_path / "b")["passed"]


def test_run_writes_outputs_that_onnxruntime_confirms(build: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import onnxruntime

    x = np.random.default_rng(3).standard_normal((5, 4, 784), dtype=np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    data = json_of(capsys, "run", build, "--inputs", tmp_path / "x.npz", "--outputs", tmp_path / "y.npz")
    assert data["microbatches"] == 5
    assert data["throughput"] > 0
    with np.load(tmp_path / "y.npz") as outputs:
        y = outputs["y"]
    assert y.shape == (5, 4, 10)
    session = onnxruntime.InferenceSession(str(build / "annotated.onnx"), providers=["CPUExecutionProvider"])
    for sample in range(5):
        (expected,) = session.run(None, {"x": x[sample]})
        np.testing.assert_allclose(y[sample], expected, rtol=0, atol=1e-5 * np.ptp(expected))


def test_run_adds_the_measured_timeline(build: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = json.loads((build / "trace.json").read_text())["traceEvents"]
    out = dnnc(capsys, "run", build, "-m", "3", "--trace")
    assert "predicted" in out
    assert "measured" in out
    trace = json.loads((build / "trace.json").read_text())
    titles = [event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"]
    assert titles == ["predicted", "measured"]
    assert trace["traceEvents"][: len(before)] == before
    dnnc(capsys, "run", build, "--trace")
    assert json_of(capsys, "check", build)["passed"], "a traced build is still whole"


def test_what_stands_in_the_place_of_the_trace_is_not_read(
    build: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(build, tmp_path / "b")
    path = tmp_path / "b" / "trace.json"
    path.write_text("[" * 5000)
    assert main(["run", str(tmp_path / "b"), "--trace"]) == 0
    assert json.loads(path.read_text())["traceEvents"]
    path.unlink()
    os.mkfifo(path)
    assert main(["run", str(tmp_path / "b"), "--trace"]) == 3
    assert f"{path}: error[E2004]: found a FIFO" in capsys.readouterr().err


def test_check_names_the_stage_that_diverges(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One wrong byte in the second stage's weights."""
    options = ("-t", "preset:cpu-2", "-o", tmp_path / "b", "--stages", "2", "--weights", "per-stage")
    dnnc(capsys, "compile", MODEL, *options)
    data = tmp_path / "b" / "stages" / "stage1.data"
    values = np.fromfile(data, np.float32)
    values[np.flatnonzero(values)[0]] += 4.0
    values.tofile(data)
    assert main(["check", str(tmp_path / "b")]) == 3
    assert "stage1.data: error[E0307]: its bytes are not those that were written" in capsys.readouterr().err
    refresh(tmp_path / "b", "stages/stage1.data")
    assert main(["check", str(tmp_path / "b")]) == 5
    out, err = capsys.readouterr()
    assert "stage 1 on cpu1: error[E1201]: stage 1 is the first that diverges" in err
    assert "diverges" in out


def test_check_with_given_inputs(build: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "x.npz", x=np.ones((4, 784), np.float32))
    assert json_of(capsys, "check", build, "--inputs", tmp_path / "x.npz")["inputs"] == "given"
    np.savez(tmp_path / "bad.npz", z=np.ones((4, 784), np.float32))
    assert main(["check", str(build), "--inputs", str(tmp_path / "bad.npz")]) == 3
    assert "bad.npz" in capsys.readouterr().err


def test_simulate(build: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few, many = (json_of(capsys, "simulate", build, "--microbatches", count) for count in ("1", "50"))
    plan = json.loads((build / "plan.json").read_text())
    assert many["makespan"] > few["makespan"] >= plan["value"]
    assert many["interval"] == pytest.approx(plan["value"], rel=0.05), "a full pipeline keeps the plan's pace"
    assert "bubble" in dnnc(capsys, "simulate", build)
    assert main(["simulate", str(build), "--microbatches", "1000000"]) == 2
    assert "at most 1000000 are followed" in capsys.readouterr().err


@pytest.mark.parametrize("subject", [MODEL, "zoo:gpt2,layers=1,hidden=16,vocab=50,seq=8"])
def test_inspect_a_model(subject: str, capsys: pytest.CaptureFixture[str]) -> None:
    data = json_of(capsys, "inspect", subject)["model"]
    assert data["flops"] > 0
    assert sum(data["ops"].values()) > 3
    assert data["weight_bytes"] == 4 * data["parameters"] or "gpt2" in subject
    assert data["ops_with_formula"] > 0
    assert "flops" in dnnc(capsys, "inspect", subject)


def test_inspect_a_build(build: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = dnnc(capsys, "inspect", build)
    assert MODEL in out
    assert "%x : tensor<4x784xf32>" in out.replace("x : tensor", "%x : tensor").replace("%%", "%")
    assert "cpu1" in out
    assert "lower bound" in dnnc(capsys, "inspect", build / "plan.ir")
    data = json.loads(dnnc(capsys, "inspect", build, "--json"))
    assert data["schema"] == "dnnc.inspect/2"
    assert [stage["model"] for stage in data["stages"]] == ["stages/stage0.onnx", "stages/stage1.onnx"]
    assert data["stages"][0]["sends"] == data["stages"][1]["receives"] != []
    assert [device for device, _ in data["schedule"]["rows"]] == ["cpu0", "cpu1"]
    assert "stages/stage0.onnx" in data["manifest"]["files"]


def test_a_printed_program_says_which_passes_made_it(build: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = (build / "plan.ir").read_text().split("\nmodule ")[0]
    assert made.startswith("// made by canonicalize, ")
    assert "partition" in made
    assert str(build) not in made
    out = dnnc(capsys, "opt", build / "plan.ir", "--passes", "expand,cost{unknown=3}")
    assert out.startswith("// made by expand, cost{unknown=3}\nmodule ")


def test_the_short_form_of_a_build_and_of_ir_text(build: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = dnnc(capsys, "inspect", build, "--short")
    assert short == dnnc(capsys, "inspect", build / "plan.ir", "--short")
    assert [part in short for part in ("stage<1>", "loc(", "cost<")] == [True, False, False]
    assert short in dnnc(capsys, "opt", build / "plan.ir", "--passes", "", "--short")


def test_import_prints_ir_that_compiles_to_the_same_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = dnnc(capsys, "import", MODEL)
    module = parse_module(text)
    assert print_module(module) == text
    assert not verify(module, dialects=DIALECTS)
    dnnc(capsys, "import", MODEL, "-o", tmp_path / "m.ir")
    assert (tmp_path / "m.ir").read_text() == text
    assert [path.name for path in tmp_path.iterdir()] == ["m.ir"]
    plans = [
        json_of(capsys, "compile", model, "-t", "preset:cpu-2,cores=2", "-o", tmp_path / "b")["objective"]
        for model in (MODEL, str(tmp_path / "m.ir"))
    ]
    assert plans[0] == plans[1]


def test_import_binds_dims_of_an_exported_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dnnc(capsys, "zoo", "export", MODEL, "-o", tmp_path / "mlp.onnx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mlp.onnx", "mlp.onnx.data"]
    out = dnnc(capsys, "import", tmp_path / "mlp.onnx", "--passes", "canonicalize,cost")
    assert "cost<flops" in out
    assert "external(" in out


def test_opt_prints_after_passes_and_stops(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dnnc(capsys, "import", MODEL, "-o", tmp_path / "m.ir")
    command = ["opt", str(tmp_path / "m.ir"), "--passes", "canonicalize,cost,partition", "-t", "preset:cpu-2"]
    assert "stage<" in dnnc(capsys, *command)
    assert "stage<" not in dnnc(capsys, *command, "--stop-after", "2")
    assert main([*command, "--print-after", "cost", "--timing", "-o", str(tmp_path / "out.ir")]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "----- after cost -----" in err
    assert "canonicalize" in err
    assert parse_module((tmp_path / "out.ir").read_text())
    folder = tmp_path / "each"
    dnnc(capsys, *command, "--print-folder", folder)
    assert sorted(path.name for path in folder.iterdir()) == [
        "00-input.ir",
        "10-canonicalize.ir",
        "20-cost.ir",
        "30-partition.ir",
    ]


def test_the_plan_file_replays_through_opt(build: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``plan.ir`` is a whole program: its passes can be run again and give the same plan."""
    module = parse_module((build / "plan.ir").read_text())
    plan = module.first(Plan)
    out = dnnc(capsys, "opt", build / "plan.ir", "--passes", "partition{stages=2},place,schedule,lower")
    again = parse_module(out).first(Plan)
    assert plan is not None
    assert again is not None
    assert again.value == plan.value


def test_what_repeats_stands_once_in_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every reader of ``plan.ir`` sees the whole program; so does a compile of a folded text."""
    spec, machines = "zoo:gpt2,layers=3,hidden=16,vocab=32,seq=8", ("-t", "preset:cpu-2,cores=2", "--mesh", "2", "-q")
    dnnc(capsys, "compile", spec, *machines, "--weights", "none", "-o", tmp_path / "b")
    text = (tmp_path / "b/plan.ir").read_text()
    written = parse_module(text)
    assert any(is_block(func) for func in written.of_type(Func))
    program = expand(written)
    (stage,) = json.loads((tmp_path / "b/plan.json").read_text())["stages"]
    assert len(stage["ops"]) == len(plain(program).entry.ops)
    told = dnnc(capsys, "inspect", tmp_path / "b/plan.ir")
    assert f"{len(program.entry.ops)} of " in told
    assert "@block_0" in told
    assert json_of(capsys, "inspect", tmp_path / "b/plan.ir")["model"]["repeats"]
    assert json_of(capsys, "simulate", tmp_path / "b")["makespan"] > 0
    again = parse_module(dnnc(capsys, "opt", tmp_path / "b/plan.ir", "--passes", "schedule,lower"))
    assert again == written.without(Program)  # which localize makes of the stages
    folded = tmp_path / "folded.ir"
    folded.write_text(dnnc(capsys, "import", spec, "--passes", "canonicalize,fold"))
    assert "dnnc.call" in folded.read_text()
    dnnc(capsys, "compile", folded, *machines, "--weights", "none", "-o", tmp_path / "c")
    assert (tmp_path / "c/plan.json").read_text() == (tmp_path / "b/plan.json").read_text()


def test_a_crash_leaves_a_reproducer_that_opt_replays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from passes.prepare.cost import CostPass

    def crash(self: CostPass, module: object, context: object) -> object:
        raise ZeroDivisionError("by zero")

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(CostPass, "run", crash)
        assert main(["compile", MODEL, "-t", "preset:cpu-2", "-o", str(tmp_path / "b")]) == 1
        err = capsys.readouterr().err
        assert "a fault inside dnnc" in err
        assert "pass 'cost' failed with ZeroDivisionError: by zero" in err
        assert "Traceback" not in err
    (reproducer,) = tmp_path.glob("*.ir")
    (report,) = tmp_path.glob("dnnc-crash-*.txt")
    assert str(reproducer) in err
    assert str(report) in err
    assert reproducer.stat().st_mode & 0o777 == 0o600, "it holds the user's model"
    assert "cost<flops" in dnnc(capsys, "opt", reproducer)
    assert not (tmp_path / "b").exists()


def test_passes_lists_every_pass_with_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    out = dnnc(capsys, "passes")
    data = json_of(capsys, "passes")
    assert "default-inference" in data["pipelines"]
    for info in data["passes"]:
        assert info["help"].endswith(".")
        assert f"\n{info['name']}\n" in f"\n{out}"
        assert all(f"    {option['name']} = " in out for option in info["options"])


def test_zoo_and_topology_lists(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert {m["name"] for m in json_of(capsys, "zoo", "list")["models"]} >= {"mlp", "resnet50", "bert-base", "gpt2"}
    assert "zoo:gpt2" in dnnc(capsys, "zoo", "list")
    assert "preset:cpu-N" in dnnc(capsys, "topology", "presets")
    shown = dnnc(capsys, "topology", "show", "preset:8xh100x8")
    assert "64 devices, 8 hosts" in shown
    data = json_of(capsys, "topology", "show", "preset:a100x8")
    assert len(data["topology"]["devices"]) == 8
    text = dnnc(capsys, "topology", "show", "preset:a100x8", "--ir")
    assert print_module(parse_module(text)) == text
    assert "ok, 1 host, 2 devices" in dnnc(capsys, "topology", "validate", "preset:cpu-2")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("dnnc comp", {"compile"}),
        ("dnnc inspect zoo:g", {"zoo:gpt2"}),
        ("dnnc compile x.onnx -t preset:cp", {"preset:cpu-2"}),
        ("dnnc compile x.onnx --weights per", {"per-stage"}),
        ("dnnc topology show preset:v100", {"preset:v100", "preset:v100x8"}),
    ],
)
def test_shell_completion(words: str, expected: set[str], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("_DNNC_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    assert main([]) == 0
    assert expected <= set(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["compile", "zoo", ":", "gpt2"], ["gpt2"]),
        (["compile", "zoo", ":", "gpt"], ["gpt2", "gpt3-175b"]),
        (["topology", "show", "preset", ":", "v100x"], ["v100x8"]),
        (["compile", "zoo", ":", "mlp", "-t", "preset", ":", "v100"], ["v100", "v100x8"]),
        (["compile", "m.onnx", "--dim", "batch", "=", "8", "--weights", "per"], ["per-stage"]),
        (["compile", "zoo", ":", "mlp", "--weights", ""], ["shared", "per-stage", "none"]),
    ],
)
def test_completion_of_words_that_bash_breaks(
    words: list[str], expected: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Bash sends the pieces of a word with a colon, and replaces the last piece by what it is told."""
    monkeypatch.setenv("_DNNC_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "\n".join(["dnnc", *words]))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    assert main([]) == 0
    told = capsys.readouterr()
    assert told.out.split() == expected
    assert told.err == ""


def test_a_shell_asks_a_process_for_completions() -> None:
    environment = {**os.environ, "_DNNC_COMPLETE": "complete_bash", "COMP_WORDS": "dnnc comp", "COMP_CWORD": "1"}
    done = subprocess.run([sys.executable, "-m", "dnnc"], env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout.split(), done.stderr) == (["compile"], "")


def test_completion_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dnnc.cli.options.shared import complete_model, complete_topology

    (tmp_path / "models").mkdir()
    for name in ("models/a.onnx", "models/b.md", "models/.hidden.onnx", "two.toml"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    assert complete_model("mod") == ["models/"]
    assert complete_model("models/") == ["models/a.onnx"]
    assert complete_model(f"{tmp_path}/models/a") == [f"{tmp_path}/models/a.onnx"]
    assert complete_topology("two") == ["two.toml"]
    assert complete_model("absent/x") == []


def test_opt_without_passes_reads_and_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "module @m {\n  func @main(%x : tensor<4xf32>) -> (%x : tensor<4xf32>) {\n  }\n}\n"
    (tmp_path / "m.ir").write_text(text)
    assert parse_module(dnnc(capsys, "opt", tmp_path / "m.ir")) == parse_module(text)
