"""The oracle of ``dnnc train --check``: where torch's own sums of gradients would be wrong, its are not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dnnc.cli import main
from ir.core.diagnostics import CheckFailed, ExitCode
from ir.ops.loss_scale import LossScale
from tests.dnnc.engines.torch.training_builds import compiled

torch: Any = pytest.importorskip("torch", reason="the extra 'train' is not installed")
pytest.importorskip("safetensors.torch", reason="the extra 'train' is not installed")

from dnnc.engines.torch.check.check import Checker  # noqa: E402
from dnnc.engines.torch.check.optimizers import Scaler  # noqa: E402
from dnnc.engines.torch.check.oracle import add_gradients  # noqa: E402


def test_gradients_that_are_views_of_one_tensor_are_summed_apart() -> None:
    """``torch.autograd.backward`` adds up the second microbatch's gradients of these biases in each other's elements."""
    biases = [torch.zeros(6, requires_grad=True) for _ in range(3)]
    samples = torch.arange(12.0).reshape(2, 2, 3)
    for x in samples:
        y = x
        for bias in biases:
            y = y + bias.reshape(2, 3)
        add_gradients(biases, torch.autograd.grad((y * y).sum(), biases))
    for bias in biases:
        assert torch.equal(bias.grad, 2 * samples.sum(0).reshape(6))


def test_a_weight_without_a_gradient_has_none() -> None:
    weight, other = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    add_gradients([weight, other], torch.autograd.grad((weight * 3).sum(), [weight, other], allow_unused=True))
    assert torch.equal(weight.grad, torch.full((2,), 3.0))
    assert other.grad is None


@pytest.mark.parametrize(
    ("size", "dtype", "microbatches", "taken"),
    [(1e19, "float32", 1, True), (2e19, "float32", 1, False), (2e19, "float32", 2, True), (2e19, "float64", 1, True)],
)
def test_a_step_whose_norm_overflows_is_skipped_as_programs_skip_it(
    size: float, dtype: str, microbatches: int, *, taken: bool
) -> None:
    weight = torch.ones(1, dtype=getattr(torch, dtype), requires_grad=True)
    weight.grad = torch.full_like(weight, size)
    scaler = Scaler(LossScale())
    assert scaler.unscale([weight], microbatches) == taken
    assert scaler.skipped == 1 - taken


def checker(noise: float) -> Checker:
    """Of one weight, whose range is 1, and a loss of 1. Other roundings change both by ``noise``."""
    weight = torch.tensor([0.0, 1.0])
    stage = SimpleNamespace(index=0, devices=("d",), ops=(SimpleNamespace(name="grad.assign", operands=("@w",)),))
    step = SimpleNamespace(stages=(stage,), schedule=SimpleNamespace(periodic=False))
    made = Checker(cast(Any, SimpleNamespace(step=step)), "synthetic", 0)
    oracle = SimpleNamespace(weights={"@w": weight}, done=1, advance=lambda: 1.0)
    shaken = SimpleNamespace(weights={"@w": weight + noise}, advance=lambda: 1.0 + noise)
    vars(made).update(oracle=oracle, shaken=[shaken], compared={"@w": 1e-6}, narrow=0.0, single=None)
    return made


def test_rounding_explains_no_more_than_a_tenth_of_the_range_of_a_weight() -> None:
    """One of which it might explain more is not compared, and is named."""
    for noise, loose, noisy in ((0.05, ["@w"], []), (0.001, [], ["@w"])):
        made = checker(noise)
        made.compare({"w": torch.tensor([0.0, 1.04])})
        assert (list(made.loose), list(made.noisy)) == (loose, noisy)
    with pytest.raises(CheckFailed, match=r"^stage 0 on d: error\[E0775\]: weight 'w' differs"):
        checker(0.001).compare({"w": torch.tensor([0.0, 1.2])})


def test_rounding_explains_no_more_than_a_tenth_of_a_loss() -> None:
    made = checker(0.5)
    made.advance()
    made.compare_loss(0, 1.09)
    with pytest.raises(CheckFailed, match=r"the loss of step 1 is 1\.2, that of the unsplit model 1"):
        made.compare_loss(0, 1.2)


NARROW = "zoo:bert-base,layers=1,hidden=64,heads=4,intermediate=128,vocab=128,seq=16,batch=4"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "optimizer"),
    [("f16", "momentum"), ("bf16", "sgd"), ("bf16", "momentum"), ("bf16", "adamw")],
)
def test_weights_of_16_bits_are_compared(
    dtype: str, optimizer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """torch takes no gradient of another type than its weight. Numbers below the least normal one have steps of one size."""
    asked = ("--loss", "mse:pooler_output", "--microbatches", "2", "--optimizer", optimizer)
    build = compiled(tmp_path / "build", *asked, model=f"{NARROW},dtype={dtype}")
    assert main(["train", str(build), "--steps", "4", "--check"]) == 0
    assert "weights after each of 4 steps, each by itself, are those of the unsplit model" in capsys.readouterr().out


def test_a_weight_that_is_no_number_is_told_as_that(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Adam's epsilon is 0 in f16. It was told as a difference of 'nan of its range, allowed nan'."""
    asked = ("--loss", "mse:pooler_output", "--microbatches", "1", "--optimizer", "adam")
    build = compiled(tmp_path / "build", *asked, model=f"{NARROW},dtype=f16")
    assert main(["train", str(build), "--steps", "2", "--check"]) == ExitCode.CHECK_FAILED
    assert "of the unsplit model is no finite number after step 1" in capsys.readouterr().err


@pytest.mark.slow
def test_steps_whose_norm_overflows_are_skipped_on_both_sides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build = compiled(
        tmp_path / "build", "--microbatches", "2", "--loss-scale", "init=1e24", model="zoo:mlp,layers=2,hidden=64,batch=4"
    )
    assert main(["train", str(build), "--steps", "2", "--check"]) == 0, capsys.readouterr().err
