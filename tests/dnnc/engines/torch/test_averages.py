"""Running averages of batch normalisation: replicas agree on them, and ``--check`` compares them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from dnnc.cli import main
from tests.dnnc.engines.torch.training_builds import compiled, weights

torch: Any = pytest.importorskip("torch", reason="the extra 'train' is not installed")
pytest.importorskip("safetensors.torch", reason="the extra 'train' is not installed")

BATCH, CHANNELS, MICROBATCHES, STEPS, MOMENTUM = 6, 3, 4, 3, 0.9


def normalised(folder: Path) -> Path:
    """A model that normalises its input, which no weight comes before: its statistics are those of the data."""
    text = f"""<ir_version: 9, opset_import: ["": 20]>
    model (float[{BATCH},{CHANNELS}] x) => (float[{BATCH},2] y)
    <float[{CHANNELS}] scale = {{1, 1, 1}}, float[{CHANNELS}] bias = {{0, 0, 0}},
     float[{CHANNELS}] running_mean = {{0, 0, 0}}, float[{CHANNELS}] running_var = {{1, 1, 1}}> {{
        normal = BatchNormalization<momentum = {MOMENTUM}>(x, scale, bias, running_mean, running_var)
        y = MatMul(normal, w)
    }}"""
    model = onnx.parser.parse_model(text)
    weight = np.random.default_rng(0).normal(size=(CHANNELS, 2)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_checkpoint_has_the_averages_of_all_microbatches(
    replicas: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = ("--stages", "1", "--replicas", str(replicas), "--mesh", "none")
    build = compiled(tmp_path / "build", *plan, model=str(normalised(tmp_path)))
    samples = np.random.default_rng(1).normal(size=(BATCH * MICROBATCHES * STEPS, CHANNELS)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=samples, target=np.zeros((len(samples), 2), np.float32))
    asked = ["train", str(build), "--steps", str(STEPS), "--data", str(tmp_path / "data.npz")]
    assert main([*asked, "--check"]) == 0
    assert "passed: 5 weights" in capsys.readouterr().out
    assert main([*asked, "--checkpoint", str(tmp_path), "-q"]) == 0
    order = np.random.Generator(np.random.Philox(key=[0, 0])).permutation(len(samples))
    means = samples[order].reshape(STEPS, MICROBATCHES, BATCH, CHANNELS).mean(2)
    average, decay = np.zeros(CHANNELS), MOMENTUM**replicas
    for step in means:
        each = [average] * replicas
        for number, mean in enumerate(step):
            each[number % replicas] = decay * each[number % replicas] + (1 - decay) * mean
        average = np.mean(each, axis=0)
    held = weights(tmp_path / f"step{STEPS}")["running_mean"].numpy()
    assert np.allclose(held, average, rtol=1e-5, atol=1e-6)
