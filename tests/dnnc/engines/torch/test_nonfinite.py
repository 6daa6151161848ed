"""The op that made the first NaN or infinity of a training is named, with its step and stage, forward or backward."""

from __future__ import annotations

import re
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
    """Something between two linear layers."""

    def __init__(self, between: Any) -> None:
        super().__init__()
        self.a, self.b, self.between = nn.Linear(6, 8), nn.Linear(8, 3), between

    def forward(self, x: torch.Tensor) -> Any:
        return self.b(self.between(self.a(x)))


FAULTS = {
    "a logarithm of 0": (lambda h: torch.log(torch.relu(h)), r"onnx\.Log made -infinity of finite numbers: '%log'"),
    "an overflow": (lambda h: torch.exp(h * 1e4), r"onnx\.Exp made infinity of finite numbers: '%exp'"),
    "0 over 0": (lambda h: (h - h) / (h - h), r"onnx\.Div made NaN of finite numbers: '%div'"),
    "a gradient": (lambda h: torch.sqrt(h * 0), r"onnx\.Div made infinity of finite numbers: '%mul\.grad'"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("stages", [1, 2])
def test_the_op_that_made_it(name: str, stages: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    between, told = FAULTS[name]
    exported = tmp_path / "m.onnx"
    torch.onnx.export(Layers(between), (torch.rand(4, 6),), exported, dynamo=True, input_names=["x"], output_names=["y"])
    step: dict[str, Any] = {"objective": "training", "loss": "mse:y", "microbatches": 2, "stages": stages, "mesh": "none"}
    build = dnnc.plan(exported, machines="preset:cpu-2", **step).write(tmp_path / "b")
    with pytest.raises(dnnc.InvalidInput, match=rf"^step 1: error\[E0746\]: .*(?:{told})") as caught:
        build.train(steps=3)
    assert re.search(r"of stage [01], microbatch \d", str(caught.value))


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
