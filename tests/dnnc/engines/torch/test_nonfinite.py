"""The op that made the first NaN or infinity of a training is named, with its step and stage, forward or backward."""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the extra 'train' is not installed")

import torch
from torch import nn

import dnnc
from dnnc.cli import main
from dnnc.engines.torch.watch.nonfinite import is_finite, looks_finite, word
from tests.dnnc.engines.torch.training_builds import compiled


def test_words_of_tensors() -> None:
    inf, nan = float("inf"), float("nan")
    for numbers, said in (
        ([1.0, 2.0], ""),
        ([1.0, nan], "NaN"),
        ([inf, -inf], "infinity"),
        ([0.0, -inf], "-infinity"),
        ([], ""),
    ):
        assert word(torch.tensor(numbers)) == said
    assert word(torch.tensor([3, 4])) == ""
    assert is_finite(torch.full((4,), 3e38))  # though their sum is not
    large = torch.zeros(200, 200)
    large[7, :] = nan  # as a product makes a gradient of a NaN on its way back
    assert not looks_finite(large)
    assert not looks_finite(large.T)


class Layers(nn.Module):
    """Something between two linear layers, of the first and of a column of the input, which is 1 but in one sample."""

    def __init__(self, between: Any) -> None:
        super().__init__()
        self.a, self.b, self.between = nn.Linear(6, 8), nn.Linear(8, 3), between

    def forward(self, x: torch.Tensor) -> Any:
        return self.b(self.between(self.a(x), x[:, :1]))


FAULTS = {
    "a logarithm of 0": (lambda h, s: h * torch.log(torch.relu(s)), r"onnx\.Log made -infinity of finite numbers: '%log'"),
    "an overflow": (lambda h, s: torch.exp((1 - s) * 1e4 + h), r"onnx\.Exp made infinity of finite numbers: '%exp'"),
    "0 over 0": (lambda h, s: h * (s / s), r"onnx\.Div made NaN of finite numbers: '%div'"),
    "a gradient": (lambda h, s: torch.sqrt((h * s).abs()), r"onnx\.Div made infinity of finite numbers: '%abs_1\.grad'"),
}
PLANS: dict[str, dict[str, Any]] = {
    "one device": {"stages": 1, "replicas": 1, "mesh": "none"},
    "two stages": {"stages": 2, "replicas": 1, "mesh": "none"},
    "replicas": {"stages": 1, "replicas": 2, "mesh": "none"},
    "samples on a mesh": {"mesh": "2", "strategy": "data"},
    "weights on a mesh": {"mesh": "2", "strategy": "megatron"},
}


def step_with_zero(between: Any, folder: Path, **options: Any) -> tuple[Any, list[dict[str, torch.Tensor]]]:
    """A build, and data for it of which step 3, microbatch 1 has a sample whose column is 0."""
    torch.manual_seed(0)
    exported = folder / "m.onnx"
    torch.onnx.export(Layers(between), (torch.rand(4, 6),), exported, dynamo=True, input_names=["x"], output_names=["y"])
    rows = [{"x": torch.rand(4, 6).index_fill(1, torch.tensor(0), 1.0), "target": torch.randn(4, 3)} for _ in range(8)]
    rows[5]["x"][2, 0] = 0.0
    step: dict[str, Any] = {"objective": "training", "loss": "mse:y", "optimizer": "sgd", "learning_rate": 1e-6}
    plan = dnnc.plan(exported, **{"machines": "preset:cpu-2", **step, "microbatches": 2, **options})
    return plan.write(folder / "b"), rows


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "plan"),
    [*product(FAULTS, ["weights on a mesh"]), *zip(FAULTS, [*PLANS][:4], strict=True)],
)
def test_the_op_that_made_it(name: str, plan: str, tmp_path: Path) -> None:
    """A member of a mesh to which the number came from another leaves it to that one to name the op; other plans in turn."""
    between, told = FAULTS[name]
    build, rows = step_with_zero(between, tmp_path, **PLANS[plan])
    with pytest.raises(dnnc.InvalidInput, match=rf"^step 3: error\[E0746\]: .*{told} of stage [01], microbatch 1"):
        build.train(rows, steps=4)


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["one device", "samples on a mesh"])
def test_a_loss_with_a_scale_excuses_gradients_alone(plan: str, tmp_path: Path) -> None:
    """A step whose gradients are not finite is skipped; where the forward pass made the number, its op is named."""
    scaled: dict[str, Any] = {"loss_scale": "init=1024,growth=2,backoff=0.5,interval=100", **PLANS[plan]}
    (tmp_path / "back").mkdir()
    build, rows = step_with_zero(FAULTS["a gradient"][0], tmp_path / "back", **scaled)
    assert len(build.train(rows, steps=4, checkpoint=tmp_path / "c").losses) == 4
    assert [row["skipped"] for row in json.loads((tmp_path / "c/losses.json").read_text())] == [0, 0, 1, 1]
    build, rows = step_with_zero(FAULTS["0 over 0"][0], tmp_path, **scaled)
    with pytest.raises(dnnc.InvalidInput, match=r"^step 3: error\[E0746\]: .*'%div' of stage 0, microbatch 1"):
        build.train(rows, steps=4)


@pytest.mark.slow
def test_a_training_that_diverges(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first product that overflows is named, not the loss or what NaN reached."""
    options = ["--stages", "2", "--replicas", "1", "--mesh", "none", "--optimizer", "sgd", "--learning-rate", "1e30"]
    build = compiled(tmp_path / "build", *options)
    assert main(["train", str(build), "--steps", "9"]) == 3
    told = capsys.readouterr().err
    assert re.search(
        r"step \d: error\[E0746\]: onnx\.Gemm made infinity of finite numbers: '%fc\d' of stage \d, microbatch 0", told
    )
