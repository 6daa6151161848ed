"""``dnnc export``: the model with the weights of a checkpoint infers what the trained module infers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import dnnc
from dnnc.cli import main
from tests.dnnc.engines.torch.training_builds import compiled, write_checkpoint

torch: Any = pytest.importorskip("torch", reason="the extra 'train' is not installed")
pytest.importorskip("safetensors", reason="the extra 'train' is not installed")

from dnnc.engines.torch.checkpoint import Position  # noqa: E402

MODEL = "zoo:mlp,layers=2,hidden=16,batch=2"
TRAINED = {"fc1.bias": torch.arange(16.0), "fc1.bias.exp_avg": torch.ones(16), "fc2.weight": torch.full((10, 16), 0.5)}


def initializers(path: Path) -> dict[str, Any]:
    model = onnx.load(path)
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def test_trained_weights_take_the_place_of_those_of_the_model(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "step3.safetensors", TRAINED, Position(3, 0))
    assert main(["zoo", "export", MODEL.removeprefix("zoo:"), "-o", str(tmp_path / "before.onnx"), "-q"]) == 0
    for model in (MODEL, str(tmp_path / "before.onnx")):
        out = tmp_path / "after.onnx"
        assert main(["export", str(tmp_path / "step3.safetensors"), "--model", model, "-o", str(out), "-q"]) == 0
        before, after = initializers(tmp_path / "before.onnx"), initializers(out)
        assert before.keys() == after.keys()
        for name, value in before.items():
            assert np.array_equal(after[name], TRAINED[name].numpy() if name in TRAINED else value)


def test_a_program_exports_what_the_command_does(tmp_path: Path) -> None:
    path = tmp_path / "step3.safetensors"
    write_checkpoint(path, TRAINED | {"fc1.bias.ema": torch.arange(16.0) / 2}, Position(3, 0))
    assert main(["export", str(path), "--model", MODEL, "-o", str(tmp_path / "a.onnx"), "--ema", "-q"]) == 0
    written = dnnc.export(path, MODEL, str(tmp_path / "b.onnx"), ema=True)
    assert written[-1] == tmp_path / "b.onnx"
    assert all(file.is_file() for file in written)
    one, other = initializers(tmp_path / "a.onnx"), initializers(tmp_path / "b.onnx")
    assert all(np.array_equal(one[name], other[name]) for name in one.keys() | other.keys())
    assert np.array_equal(other["fc1.bias"], np.arange(16.0) / 2)
    with pytest.raises(dnnc.InvalidInput, match="E2001"):
        dnnc.export(tmp_path / "none", MODEL, tmp_path / "c.onnx")
    assert not (tmp_path / "c.onnx").exists()


@pytest.mark.parametrize(
    ("tensors", "options", "told"),
    [
        ({"fc9.weight": torch.ones(2)}, (), "E0758]: it holds a weight 'fc9.weight', which the model lacks"),
        ({"fc1.bias": torch.ones(2)}, (), "E0733]: its weight 'fc1.bias' is float32[2]; expected float32[16]"),
        (TRAINED, ("--ema",), "E1516]: it holds no moving averages"),
    ],
)
def test_a_checkpoint_of_another_model(
    tensors: Any, options: tuple[str, ...], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "a.safetensors", tmp_path / "a.onnx"
    write_checkpoint(path, tensors, Position(3, 0))
    assert main(["export", str(path), "--model", MODEL, "-o", str(out), *options]) == 3
    assert f"{path}: error[{told}" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.slow
def test_what_the_module_infers_the_exported_model_infers(tmp_path: Path) -> None:
    """Trained in two stages, with a batch normalisation whose averages are trained too."""
    import onnxruntime

    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    x = torch.randn(4, 6)
    dnnc.from_torch(module, (x,), tmp_path / "net.onnx")
    (output,) = (value.name for value in onnx.load(tmp_path / "net.onnx").graph.output)
    build = compiled(tmp_path / "build", model=str(tmp_path / "net.onnx"), loss=f"cross-entropy:{output}")
    assert main(["train", str(build), "--steps", "3", "--checkpoint", str(tmp_path), "-q"]) == 0
    dnnc.into_torch(module, tmp_path / "step3")
    out = tmp_path / "trained.onnx"
    assert main(["export", str(tmp_path / "step3"), "--model", str(tmp_path / "net.onnx"), "-o", str(out), "-q"]) == 0
    session = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    expected = module.eval()(x).detach().numpy()
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()
