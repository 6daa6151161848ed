"""``dnnc compile`` beyond one stage per device: splits that go back and forth, replicas, and objectives that ONNX lacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dnnc.build.build import Build
from dnnc.check.check import CheckOptions, check_build
from dnnc.cli import main
from dnnc.compile.driver import CompileOptions, compile_model
from tests.dnnc.onnx.models import model, save
from tests.dnnc.onnx.test_models import SHARED_DIMS

MODEL = "zoo:gpt2,layers=2,hidden=32,heads=2,seq=8,vocab=50"


def compiled(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    assert main(["compile", *map(str, arguments), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert isinstance(data, dict)
    return data


def test_any_split_runs_as_stages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Never above the contiguous plan on the ports; what is built computes what the model does."""
    topology = "preset:cpu-2,cores=2"
    data = compiled(capsys, MODEL, "-t", topology, "-o", tmp_path / "any", "--split", "any", "--time-limit", "3")
    assert data["certificate"]["split"] == "any"
    assert {device for stage in data["stages"] for device in stage["devices"]} <= {"cpu0", "cpu1"}
    assert data["bound"] <= data["objective"]
    assert main(["check", str(tmp_path / "any"), "--quiet"]) == 0


def test_a_device_may_have_several_stages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan edited to go there and back: it replays, checks and runs, and a device's seconds add up."""
    plan = tmp_path / "plan.json"
    topology = "preset:cpu-3,cores=3"
    assert main(["compile", MODEL, "-t", topology, "-o", str(tmp_path / "p"), "--stages", "3", "--plan-only", "--quiet"]) == 0
    edited = json.loads((tmp_path / "p" / "plan.json").read_text())
    edited["stages"][2]["device"] = edited["stages"][0]["device"]
    plan.write_text(json.dumps(edited))
    data = compiled(capsys, MODEL, "-t", topology, "-o", tmp_path / "b", "--plan", plan)
    first, second, third = (stage["seconds"] for stage in data["stages"])
    assert data["stages"][2]["devices"] == data["stages"][0]["devices"]
    assert data["objective"] == pytest.approx(max(first + third, second))
    assert data["status"] == "within-gap"
    assert main(["check", str(tmp_path / "b"), "--quiet"]) == 0
    assert main(["run", str(tmp_path / "b"), "--microbatches", "5", "--quiet"]) == 0
    assert main(["simulate", str(tmp_path / "b")]) == 0


def test_replicas_are_in_the_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = compiled(capsys, MODEL, "-t", "preset:cpu-3,cores=3", "-o", tmp_path / "b", "--replicas", "3")
    single = compiled(capsys, MODEL, "-t", "preset:cpu-3,cores=3", "-o", tmp_path / "s", "--replicas", "1")
    assert data["objective"] < single["objective"]
    assert max(len(stage["devices"]) for stage in data["stages"]) > 1
    assert data["objective"] == pytest.approx(max(stage["seconds"] for stage in data["stages"]))
    assert data["certificate"]["replicas"] == "3"
    build = Build.open(tmp_path / "b")
    assert [list(stage.devices) for stage in build.stages] == [stage["devices"] for stage in data["stages"]]
    assert [stage.replicas for stage in build.plan.stages] == [len(stage["devices"]) for stage in data["stages"]]
    assert main(["check", str(tmp_path / "b"), "--quiet"]) == 0
    capsys.readouterr()
    assert main(["run", str(tmp_path / "b"), "--microbatches", "3", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["stages"]
    assert [stage["devices"] for stage in told] == [stage["devices"] for stage in data["stages"]]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--objective", "training", "--loss", "mse:y"], "the model has no output 'y'"),
        (["--loss", "mse:y", "--optimizer", "sgd"], "--loss, --optimizer: only with --objective training"),
        (["--objective", "training", "--plan-only", "--schedule", "best"], "found 'best', expected 1f1b, "),
        (
            ["--objective", "training", "--plan-only", "--comm", "overlap"],
            "--comm overlap: not an option of objective=training",
        ),
        (
            ["--objective", "training", "--plan-only", "--pieces", "2"],
            "--pieces: not an option of objective=training",
        ),
        (["--objective", "pipedream"], "error[E0110]: found 'pipedream'"),
        (["--split", "any", "--stages", "2"], "--stages: not an option of split=any"),
        (["--split", "any", "--replicas", "2"], "--replicas: not an option of split=any"),
        (["--split", "any", "--passes", "canonicalize"], "--split: the pipeline has no pass 'partition'"),
        (
            ["--replicas", "2", "--plan", "plan.json"],
            "error[E1001]: --plan states the stage and the device of every op, so --replicas cannot go with it",
        ),
    ],
)
def test_what_does_not_go_together(tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str) -> None:
    assert main(["compile", MODEL, "-t", "preset:cpu-2", "-o", str(tmp_path / "b"), *options]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SHARED_DIMS))
def test_shared_model_in_any_split(name: str, shared_dir: Path, tmp_path: Path) -> None:
    options = CompileOptions(
        model=str(shared_dir / "models" / f"{name}.onnx"),
        topology="preset:cpu-2",
        out=tmp_path / "build",
        dims=SHARED_DIMS[name],
        split="any",
        time_limit=5.0,
    )
    result = compile_model(options)
    assert 0 < result.plan.bound <= result.plan.value
    report = check_build(tmp_path / "build", CheckOptions(samples=1))
    assert report.passed, report.error()


def test_latency_runs_as_stages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Up to two stages of a device; the plan replays to the same value, and what is built computes what the model does."""
    topology = "preset:cpu-3,cores=3"
    data = compiled(capsys, MODEL, "-t", topology, "-o", tmp_path / "b", "--objective", "latency", "--pieces", "2")
    assert (data["kind"], data["certificate"]["pieces"]) == ("latency", "2")
    assert data["bound"] <= data["objective"] <= data["single"] * (1 + 1e-9)
    assert main(["check", str(tmp_path / "b"), "--quiet"]) == 0
    assert main(["run", str(tmp_path / "b"), "--quiet"]) == 0
    again = compiled(capsys, MODEL, "-t", topology, "-o", tmp_path / "r", "--plan", tmp_path / "b" / "plan.json")
    assert (again["kind"], again["objective"]) == ("latency", pytest.approx(data["objective"]))


def test_a_model_without_an_op_has_a_plan_of_one_sample(tmp_path: Path) -> None:
    path = save(model("g (float[4] x) => (float[4] x) {}"), tmp_path)
    assert main(["compile", str(path), "-t", "preset:cpu-2", "-o", str(tmp_path / "out"), "--objective", "latency"]) == 0
