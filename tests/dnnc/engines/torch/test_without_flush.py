"""Training without a flush behind each step: which weights steps work with, what is told of it, and how it goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dnnc.build.snapshot import Snapshot
from dnnc.build.training import Step
from dnnc.cli import main
from dnnc.report import plan_headline
from ir.core.module import Plan
from tests.dnnc.engines.torch.training_builds import MODEL, compiled, weights

torch: Any = pytest.importorskip("torch", reason="the extra 'train' is not installed")
pytest.importorskip("safetensors.torch", reason="the extra 'train' is not installed")

from dnnc.engines.torch.exchange import Network  # noqa: E402
from dnnc.engines.torch.files import TrainingFiles, read_step  # noqa: E402
from dnnc.engines.torch.trainer import Running, Trainer  # noqa: E402

STAGES = ("--schedule", "pipedream", "--microbatches", "1", "--stages", "2")


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two stages, of which the first works with weights that lack an update."""
    return compiled(tmp_path_factory.mktemp("train") / "build", *STAGES)


@pytest.fixture(scope="module")
def step(build: Path) -> Step:
    return read_step(Snapshot.open(build))


def test_the_plan_says_that_no_step_waits_for_the_last(build: Path, step: Step) -> None:
    plan = json.loads((build / "plan.json").read_text())
    assert (plan["microbatches"], plan["flush"]) == (1, False)
    parts = ("compute", "receive", "send")
    busiest = max(sum(stage["seconds"][part] for part in parts) for stage in plan["stages"])
    assert plan["bound"] <= plan["value"] == pytest.approx(busiest)
    decided = step.module.first(Plan)
    assert decided is not None
    assert "1 microbatch a step, without a flush" in plan_headline(decided)


def test_the_first_stage_lacks_an_update_and_the_last_none(step: Step) -> None:
    lacking = {
        stage.index: {step.delays[name] for name in step.delays if name in held(step, stage.index)} for stage in step.stages
    }
    assert lacking == {0: {1}, 1: {0}}


def held(step: Step, rank: int) -> set[str]:
    return set(step.held(rank))


def test_versions_are_of_weights_and_not_of_what_the_optimizer_keeps(build: Path, step: Step) -> None:
    files = TrainingFiles(Snapshot.open(build))
    trainer = Trainer(step, 0, files.functions, {}, Network(step, 0, torch.device("cpu")))
    assert trainer.stages[0].replaced == ("fc1.weight", "fc1.bias")


def test_an_update_leaves_alone_what_steps_under_way_read() -> None:
    weight = torch.zeros(3)
    weights, running = {"w": weight, "b": torch.zeros(1)}, Running.__new__(Running)
    running.replaced, running.versions = ("w",), {4: {"w": weight}, 5: {"w": weight}}
    running.renew(weights, 4)
    assert weights["w"] is not weight  # step 5 reads it
    newer = weights["w"]
    running.renew(weights, 5)
    assert weights["w"] is newer  # no step reads it
    assert running.versions == {}


@pytest.mark.parametrize("name", ["plan.ir", "plan.json"])
def test_the_plan_can_be_built_again(build: Path, name: str, tmp_path: Path) -> None:
    out = tmp_path / "again"
    plan = ["--plan", str(build / name), "--loss", "mse:y", "-q", "-o", str(out)]
    assert main(["compile", MODEL, "-t", "preset:cpu-2", *plan]) == 0
    rows = [read_step(Snapshot.open(folder)).schedule.rows for folder in (build, out)]
    assert rows[0] == rows[1]


def test_another_order_brings_the_flush_back(build: Path, tmp_path: Path) -> None:
    plan = ["--plan", str(build / "plan.json"), "--schedule", "1f1b", "--loss", "mse:y", "-q", "-o", str(tmp_path)]
    assert main(["compile", MODEL, "-t", "preset:cpu-2", *plan]) == 0
    step = read_step(Snapshot.open(tmp_path))
    decided = step.module.first(Plan)
    assert decided is not None
    assert decided.flush
    assert decided.value == step.schedule.period


def test_simulate_follows_steps_of_a_stream(build: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", str(build)]) == 0
    assert "a long stream has one every" in capsys.readouterr().out
    assert main(["simulate", str(build), "--csv", "rows.csv"]) == 2
    assert "the schedule is a stream" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--schedule", "2bw", "--microbatches", "1", "--stages", "2"), "stage 0 has 2 microbatches in flight, and a step 1"),
        (("--schedule", "pipedream", "--replicas", "2"), "without a flush behind each step, every stage has one device"),
        (("--schedule", "pipedream", "--chunks", "2"), "without a flush behind each step, every stage has one device"),
        (("--schedule", "2bw", "--mesh", "2"), "--schedule 2bw: not an option of mesh=2"),
    ],
)
def test_plans_that_need_a_flush(
    options: tuple[str, ...], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    step = ("--objective", "training", "--loss", "mse:y", "--plan-only", "-o", str(tmp_path / "out"))
    assert main(["compile", MODEL, "-t", "preset:cpu-2", *step, *options]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.slow
def test_the_check_knows_how_old_weights_are(
    build: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(build), "--check", "--steps", "4"]) == 0
    assert "after 4 steps are those of the unsplit model with weights up to 1 updates old" in capsys.readouterr().out
    monkeypatch.setattr(Step, "delays", {})
    assert main(["train", str(build), "--check", "--steps", "4"]) == 5


@pytest.mark.slow
def test_a_loss_without_bounds_is_the_models_own_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build = compiled(tmp_path / "build", *STAGES, "--optimizer", "sgd", "--learning-rate", "1e25")
    assert main(["train", str(build), "--check", "--steps", "4"]) == 5
    told = capsys.readouterr().err
    assert "the loss of the unsplit model is no finite number in step" in told
    assert "a smaller --learning-rate" in told


@pytest.mark.slow
def test_a_training_goes_on_from_a_checkpoint_as_if_it_had_not_stopped(build: Path, tmp_path: Path) -> None:
    """At a checkpoint the pipeline is empty: the next step works with the weights that are written."""
    whole, part = tmp_path / "whole", tmp_path / "part"
    assert main(["train", str(build), "--steps", "5", "--every", "2", "--checkpoint", str(whole), "-q"]) == 0
    assert main(["train", str(build), "--steps", "2", "--checkpoint", str(part), "-q"]) == 0
    resumed = ["--resume", str(part / "step2"), "--every", "2"]
    assert main(["train", str(build), "--steps", "3", *resumed, "--checkpoint", str(part), "-q"]) == 0
    one, other = (weights(folder / "step5") for folder in (whole, part))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    losses = json.loads((whole / "losses.json").read_text())
    assert [entry["step"] for entry in losses] == [1, 2, 3, 4, 5]
    assert losses == json.loads((part / "losses.json").read_text())
