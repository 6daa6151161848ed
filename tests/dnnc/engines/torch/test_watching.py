"""What is seen of a training: evaluations beside PyTorch's, the best weights, an early stop, and files of numbers."""

from __future__ import annotations

import csv
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra 'train' is not installed")

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dnnc
from dnnc.cli import main
from dnnc.engines.torch.checkpoint import Checkpoint
from dnnc.engines.torch.watch.best import Best
from tests.dnnc.engines.torch.training_builds import compiled

MODEL = "zoo:mlp,layers=2,hidden=16,batch=4"


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("watch") / "build", model=MODEL, loss="cross-entropy:y")


def samples(count: int, seed: int = 0) -> dict[str, Any]:
    numbers = np.random.default_rng(seed)
    return {"x": numbers.standard_normal((count, 784)).astype(np.float32), "labels": numbers.integers(0, 10, count)}


def run(folder: Path, build: Path, *more: str) -> int:
    np.savez(folder / "train.npz", **samples(64))
    np.savez(folder / "eval.npz", **samples(23, 1))
    arguments = ["train", str(build), "--data", str(folder / "train.npz"), "--eval-data", str(folder / "eval.npz")]
    return main([*arguments, *more])


def test_evaluations_that_cannot_be_written_are_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(dnnc.InvalidInput) as caught:
        Best(0, tmp_path / "file").add(1, {"loss": 2.0})
    assert str(caught.value).startswith(f"{tmp_path}/file/evaluations.json: error[E0726]: it cannot be written: ")


def test_when_weights_are_best_and_training_stops(tmp_path: Path) -> None:
    """A training that goes on after a stop decides as one without."""
    losses = [3.0, 2.0, 2.5, math.nan, 1.5, 1.5, 1.6, 1.7]
    best = Best.open(3, tmp_path, 0)
    decided = []
    for step, loss in enumerate(losses, 1):
        if step == 4:
            best = Best.open(3, tmp_path, 3)
        decided.append((best.add(step, {"loss": loss}), best.stops))
    better = [True, True, False, False, True, False, False, False]
    assert decided == [*zip(better, [False] * 7 + [True], strict=True)]
    assert [one["loss"] for one in Best.open(3, tmp_path, 4).evaluations] == [3.0, 2.0, 2.5, None]
    assert not Best.open(3, tmp_path, 0).evaluations


@pytest.mark.slow
def test_an_evaluation_is_what_pytorch_computes(build: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On all samples, of which the last microbatch has fewer, some with a label that does not count."""
    whole = samples(23, 1)
    whole["labels"][[2, 9]] = -100
    np.savez(tmp_path / "eval.npz", **whole)
    arguments = ["train", str(build), "--eval-data", str(tmp_path / "eval.npz"), "--checkpoint", str(tmp_path / "c"), "--json"]
    assert main([*arguments, "--steps", "5", "--eval-every", "2", "--every", "1"]) == 0
    told = json.loads(capsys.readouterr().out)["evaluations"]
    assert [one["step"] for one in told] == [2, 4, 5]
    x, labels = torch.from_numpy(whole["x"]), torch.from_numpy(whole["labels"])
    for one in told:
        tensors = Checkpoint.open(tmp_path / "c" / f"step{one['step']}").tensors()
        hidden = torch.relu(nn.functional.linear(x, tensors["fc1.weight"], tensors["fc1.bias"]))
        y = nn.functional.linear(hidden, tensors["fc2.weight"], tensors["fc2.bias"])
        loss = nn.functional.cross_entropy(y, labels).item()
        right = ((y.argmax(1) == labels) & (labels != -100)).sum().item() / 21
        assert one == pytest.approx(
            {"step": one["step"], "loss": loss, "accuracy": right, "perplexity": math.exp(loss)}, rel=1e-5
        )


def loss_of(tensors: dict[str, Any], arrays: dict[str, Any]) -> float:
    """The cross entropy of the model, by PyTorch."""
    x, labels = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["labels"])
    hidden = torch.relu(nn.functional.linear(x, tensors["fc1.weight"], tensors["fc1.bias"]))
    return nn.functional.cross_entropy(nn.functional.linear(hidden, tensors["fc2.weight"], tensors["fc2.bias"]), labels).item()


@pytest.mark.slow
def test_weights_that_are_frozen_after_some_steps_stay_trained(
    build: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Evaluations and checkpoints have them as the checkpoint that training goes on from, not as the build."""
    rest = ("--stages", "2", "--replicas", "1", "--mesh", "none", "--frozen", "fc1.*")
    frozen = compiled(tmp_path / "frozen", *rest, model=MODEL, loss="cross-entropy:y")
    folder = tmp_path / "c"
    assert run(tmp_path, build, "--steps", "4", "-q", "--checkpoint", str(folder)) == 0
    capsys.readouterr()
    assert run(tmp_path, frozen, "--steps", "1", "--json", "--checkpoint", str(folder), "--resume", str(folder / "step4")) == 0
    told = json.loads(capsys.readouterr().out)["evaluations"]
    before, after = (Checkpoint.open(folder / name).tensors() for name in ("step4", "step5"))
    assert torch.equal(before["fc1.weight"], after["fc1.weight"])
    assert not torch.equal(before["fc2.weight"], after["fc2.weight"])
    assert [one["loss"] for one in told] == [pytest.approx(loss_of(after, samples(23, 1)), rel=1e-5)]


@pytest.mark.slow
def test_an_early_stop_keeps_the_best_weights(build: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Labels are random, so evaluations get worse; gone on with from before the stop, it stops at the same step."""
    options = ["--eval-every", "3", "--patience", "2", "--every", "3", "--steps", "300", "--checkpoint", str(tmp_path / "c")]
    logs = [
        "--log",
        str(tmp_path / "l" / "log.csv"),
        "--log",
        str(tmp_path / "log.jsonl"),
        "--tensorboard",
        str(tmp_path / "tb"),
    ]
    pytest.importorskip("tensorboard", reason="the extra 'tensorboard' is not installed")
    assert run(tmp_path, build, *options, *logs) == 0
    shown = capsys.readouterr()
    evaluations = json.loads((tmp_path / "c" / "evaluations.json").read_text())
    losses = [one["loss"] for one in evaluations]
    best = losses.index(min(losses))
    last = evaluations[-1]["step"]
    assert best == len(losses) - 3
    assert f"training stopped after {last} steps: 2 evaluations without a better loss" in shown.err
    assert f"evaluation after step {evaluations[best]['step']}  loss " in shown.out
    kept = Checkpoint.open(tmp_path / "c" / "best")
    assert kept.position.step == evaluations[best]["step"]
    at_best = Checkpoint.open(tmp_path / "c" / f"step{evaluations[best]['step']}")
    assert kept.contents() == at_best.contents()
    _compare_logs(tmp_path, evaluations, last)
    names = ("best/index.json", "best/rank0.safetensors", "evaluations.json")
    before = {name: (tmp_path / "c" / name).read_bytes() for name in names}
    resume = ["--resume", str(tmp_path / "c" / f"step{last - 6}")]
    assert run(tmp_path, build, *options, *logs, *resume) == 0
    assert {name: (tmp_path / "c" / name).read_bytes() for name in before} == before
    _compare_logs(tmp_path, evaluations, last)


def _compare_logs(folder: Path, evaluations: list[dict[str, float]], last: int) -> None:
    """Each log has each step once, with its evaluation."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    losses = {one["step"]: one["loss"] for one in json.loads((folder / "c" / "losses.json").read_text())}
    assert list(losses) == [*range(1, last + 1)]
    evaluated = {one["step"]: one["loss"] for one in evaluations}
    with (folder / "l" / "log.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {int(row["step"]): float(row["loss"]) for row in rows} == losses
    assert {int(row["step"]): float(row["eval_loss"]) for row in rows if row["eval_loss"]} == evaluated
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert {line["step"]: line["loss"] for line in lines} == losses
    assert {line["step"]: line["eval_loss"] for line in lines if "eval_loss" in line} == evaluated
    events = EventAccumulator(str(folder / "tb"))
    events.Reload()
    assert {one.step: one.value for one in events.Scalars("train/loss")} == pytest.approx(losses, rel=1e-6)
    assert {one.step: one.value for one in events.Scalars("eval/loss")} == pytest.approx(evaluated, rel=1e-6)


@pytest.mark.slow
def test_an_evaluation_infers(tmp_path: Path) -> None:
    """Of a program: batch normalisation uses its running averages, dropouts drop nothing, a DataLoader has the data."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
    file = dnnc.from_torch(module, (torch.randn(8, 6),), tmp_path / "m.onnx", dropout=True)
    step: dict[str, Any] = {"objective": "training", "loss": "mse:linear_1", "microbatches": 2, "dropout": "on"}
    plan = dnnc.plan(file, machines="preset:cpu-2", stages=2, mesh="none", **step)
    x, target = torch.randn(44, 6), torch.randn(44, 3)
    build = plan.write(tmp_path / "b")
    names = [one.name for one in build.inputs]
    data = dict(zip(names, (x.numpy(), target.numpy()), strict=True))
    loader = DataLoader(TensorDataset(x[:21], target[:21]), batch_size=5)
    trained = build.train(
        data, steps=4, eval_data=loader, eval_every=2, checkpoint=tmp_path / "c", every=2, log=tmp_path / "l.csv"
    )
    for one in trained.evaluations:
        dnnc.into_torch(module, tmp_path / "c" / f"step{int(one['step'])}")
        loss = nn.functional.mse_loss(module.eval()(x[:21]), target[:21]).item()
        assert one["loss"] == pytest.approx(loss, rel=1e-5)
    assert [one["step"] for one in trained.evaluations] == [2, 4]
    assert len((tmp_path / "l.csv").read_text().splitlines()) == 5


@pytest.mark.parametrize(
    ("options", "code", "told"),
    [
        (["--patience", "2"], 2, "--patience: error[E4832]: there are no data to evaluate on"),
        (["--log", "log.txt"], 2, "--log log.txt: error[E4830]: its name ends neither in .csv nor in .jsonl"),
        (["--eval-data", "none.npz"], 3, "none.npz: error"),
    ],
)
def test_options_that_do_not_go(
    options: list[str], code: int, told: str, build: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(build), *options]) == code
    assert told in capsys.readouterr().err


FUNCTIONS = """
import numpy as np

def fails_later(seed):
    yield {"x": np.zeros((4, 784), np.float32), "labels": np.zeros(4, np.int64)}
    raise ArithmeticError("no more samples")

def wrong(seed):
    yield {"x": np.zeros((4, 784), np.float32), "labels": np.full(4, 99)}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("none.npz", "none.npz: error"),
        ("range.npz", "99"),
        ("evaldata:wrong", "99"),
        ("evaldata:none", "--eval-data evaldata:none: error"),
        ("nothing", "--eval-data nothing: error"),
    ],
)
def test_a_fault_of_evaluation_data_is_told_before_the_first_step(
    source: str, told: str, build: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evaldata.py").write_text(FUNCTIONS)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.chdir(tmp_path)
    np.savez("range.npz", **{**samples(23), "labels": np.full(23, 99)})
    assert main(["train", str(build), "--eval-data", source, "--steps", "2", "--checkpoint", "c"]) in (2, 3)
    shown = capsys.readouterr()
    assert told in shown.err
    assert "step 1" not in shown.out


@pytest.mark.slow
def test_a_checkpoint_is_written_before_an_evaluation_that_fails(
    build: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "evaldata.py").write_text(FUNCTIONS)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    arguments = [
        "train",
        str(build),
        "--eval-data",
        "evaldata:fails_later",
        "--steps",
        "2",
        "--checkpoint",
        str(tmp_path / "c"),
    ]
    assert main(arguments) == 3
    assert "no more samples" in capsys.readouterr().err
    Checkpoint.open(tmp_path / "c" / "step2").verify()


@pytest.mark.slow
def test_fewer_samples_than_a_microbatch_are_evaluated(build: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "eval.npz", **samples(3, 1))
    arguments = ["train", str(build), "--eval-data", str(tmp_path / "eval.npz"), "--checkpoint", str(tmp_path / "c"), "--json"]
    assert main(arguments) == 0
    (one,) = json.loads(capsys.readouterr().out)["evaluations"]
    tensors = Checkpoint.open(tmp_path / "c" / "step1").tensors()
    assert one["loss"] == pytest.approx(loss_of(tensors, samples(3, 1)), rel=1e-5)


PLANS = {
    "stages": ("--stages", "2", "--replicas", "1", "--mesh", "none"),
    "mesh": ("--mesh", "2", "--strategy", "data"),
    "tensor parallel": ("--mesh", "2", "--strategy", "megatron"),
    "replicas": ("--stages", "1", "--replicas", "2", "--mesh", "none"),
    "interleaved": ("--schedule", "interleaved", "--replicas", "1", "--mesh", "none"),
    "without a flush": ("--schedule", "2bw", "--replicas", "1", "--mesh", "none"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("plan", "loss"), [*zip(PLANS, ("cross-entropy", "mse") * 3, strict=True)])
def test_ranks_evaluate_together_what_pytorch_computes(
    plan: str, loss: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 23 samples in microbatches of 4, the last of which has three; no rank has all weights."""
    build = compiled(tmp_path / "build", *PLANS[plan], model="zoo:mlp,layers=4,hidden=16,batch=4", loss=f"{loss}:y")
    draw = np.random.default_rng(5)
    whole: dict[str, Any] = {"x": draw.standard_normal((23, 784)).astype(np.float32)}
    if loss == "mse":
        whole["target"] = draw.standard_normal((23, 10)).astype(np.float32)
    else:
        whole["labels"] = draw.integers(0, 10, 23)
    np.savez(tmp_path / "eval.npz", **whole)
    arguments = ["train", str(build), "--eval-data", str(tmp_path / "eval.npz"), "--checkpoint", str(tmp_path / "c"), "--json"]
    assert main([*arguments, "--steps", "2", "--eval-every", "1", "--every", "1"]) == 0
    for one in json.loads(capsys.readouterr().out)["evaluations"]:
        tensors = Checkpoint.open(tmp_path / "c" / f"step{one['step']}").tensors()
        y = torch.from_numpy(whole["x"])
        for layer in range(1, 5):
            y = nn.functional.linear(y, tensors[f"fc{layer}.weight"], tensors[f"fc{layer}.bias"])
            y = torch.relu(y) if layer < 4 else y
        if loss == "mse":
            assert one["loss"] == pytest.approx(nn.functional.mse_loss(y, torch.from_numpy(whole["target"])).item(), rel=1e-5)
            continue
        labels = torch.from_numpy(whole["labels"])
        assert one["loss"] == pytest.approx(nn.functional.cross_entropy(y, labels).item(), rel=1e-5)
        assert one["accuracy"] == pytest.approx((y.argmax(1) == labels).float().mean().item())


OTHERS = """
import os
import numpy as np

def counted(seed):
    \"\"\"Another number of batches on each rank.\"\"\"
    for _ in range(1 + int(os.environ["RANK"])):
        yield {"x": np.zeros((4, 784), np.float32), "labels": np.zeros(4, np.int64)}

def drawn(seed):
    for _ in range(3):
        yield {"x": np.full((4, 784), int(os.environ["RANK"]), np.float32), "labels": np.zeros(4, np.int64)}
"""


@pytest.mark.slow
@pytest.mark.parametrize("function", ["counted", "drawn"])
def test_ranks_that_are_given_other_samples_do_not_evaluate(
    function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "others.py").write_text(OTHERS)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    build = compiled(tmp_path / "build", *PLANS["stages"], model=MODEL, loss="cross-entropy:y")
    assert main(["train", str(build), "--eval-data", f"others:{function}"]) == 3
    assert f"others:{function}: error[E0460]: ranks were given other samples for the same evaluation" in capsys.readouterr().err


@pytest.mark.slow
def test_later_checkpoints_of_another_training_are_told(
    build: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["train", str(build), "--checkpoint", str(tmp_path)]
    assert main([*arguments, "--steps", "3", "--every", "1"]) == 0
    assert "W0779" not in capsys.readouterr().err
    assert main([*arguments, "--steps", "1", "--resume", str(tmp_path / "step2")]) == 0
    assert f"{tmp_path}: warning[W0779]: the folder holds checkpoints of another training: step3" in capsys.readouterr().err
