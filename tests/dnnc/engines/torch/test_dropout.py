"""Dropout in training: the same elements are dropped on any plan, and the steps are those of the unsplit model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dnnc.cli import main
from tests.dnnc.engines.torch.training_builds import TWO_STAGES, compiled, weights
from tests.passes.training.dropping import dropping, noisy

torch: Any = pytest.importorskip("torch", reason="the extra 'train' is not installed")
pytest.importorskip("safetensors.torch", reason="the extra 'train' is not installed")

pytestmark = pytest.mark.slow  # each plan is trained by real processes

PLANS = {
    "two stages": TWO_STAGES,
    "two replicas": ("--stages", "1", "--replicas", "2", "--mesh", "none"),
    "mesh by data": ("--mesh", "2", "--strategy", "data"),
    "mesh by tensors": ("--mesh", "2", "--strategy", "megatron"),
    "made again": (*TWO_STAGES, "--recompute", "stage"),
    "zb-h1": (*TWO_STAGES, "--schedule", "zb-h1"),
}
LAYERS = 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("dropping") / "model.ir"
    path.write_text(dropping(LAYERS))
    return str(path)


@pytest.fixture(scope="module")
def build(model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("dropout") / "build", *TWO_STAGES, "--dropout", "on", model=model)


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Samples by input name; the seed of the dropouts is none of these."""
    numbers = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("samples") / "samples.npz"
    np.savez(path, **{name: numbers.normal(size=(40, 32)).astype(np.float32) for name in ("x", "target")})
    return str(path)


@pytest.mark.parametrize("plan", PLANS)
def test_each_step_is_that_of_the_unsplit_model(plan: str, model: str, tmp_path: Path) -> None:
    build = compiled(tmp_path / "build", *PLANS[plan], "--dropout", "on", model=model)
    source = "".join(path.read_text() for path in (build / "stages").glob("*.py"))
    assert source.count("= dropout_mask(") == LAYERS * (2 if plan == "made again" else 1)
    assert main(["train", str(build), "--steps", "3", "--check", "-q"]) == 0


def test_noise_is_the_same_on_any_plan(tmp_path: Path) -> None:
    """Of what the unsplit model draws, with dropouts off; another seed draws other numbers."""
    model, found = tmp_path / "noisy.ir", []
    model.write_text(noisy())
    for plan, options in PLANS.items():
        build = compiled(tmp_path / plan.replace(" ", "-"), *options, "--prove", model=str(model))
        assert main(["train", str(build), "--steps", "2", "--check", "-q"]) == 0
        out = tmp_path / f"{plan} losses"
        assert main(["train", str(build), "--steps", "2", "--seed", "5", "--out", str(out), "-q"]) == 0
        found.append(losses(out))
    assert all(one == pytest.approx(found[0], rel=1e-5) for one in found)
    assert main(["train", str(build), "--steps", "2", "--seed", "6", "--out", str(out), "-q"]) == 0
    assert losses(out) != pytest.approx(found[0], rel=1e-3)


def test_losses_and_weights_depend_on_the_seed_and_not_on_the_plan(
    build: Path, model: str, samples: str, tmp_path: Path
) -> None:
    """Neither do they on a stop half way."""
    whole, part, other, off = (tmp_path / name for name in ("whole", "part", "other", "off"))
    data = ["--data", samples, "-q"]
    seeded = [*data, "--seed", "5"]
    assert main(["train", str(build), "--steps", "4", *seeded, "--checkpoint", str(whole)]) == 0
    assert main(["train", str(build), "--steps", "2", *seeded, "--checkpoint", str(part)]) == 0
    resumed = ["--resume", str(part / "step2"), "--checkpoint", str(part)]  # which knows the seed
    assert main(["train", str(build), "--steps", "2", *data, *resumed]) == 0
    left, right = (weights(folder / "step4") for folder in (whole, part))
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)
    assert (whole / "losses.json").read_bytes() == (part / "losses.json").read_bytes()
    one = compiled(tmp_path / "one", *PLANS["mesh by data"], "--dropout", "on", model=model)
    assert main(["train", str(one), "--steps", "4", *seeded, "--out", str(other)]) == 0
    assert losses(other) == pytest.approx(losses(whole), rel=1e-5)
    without = compiled(tmp_path / "without", *PLANS["two replicas"], model=model)
    assert main(["train", str(without), "--steps", "4", *seeded, "--out", str(off)]) == 0
    assert losses(off) != pytest.approx(losses(whole), rel=1e-2)


def losses(folder: Path) -> list[float]:
    return [step["loss"] for step in json.loads((folder / "losses.json").read_text())]
