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


TYPES = {"f16": (onnx.TensorProto.FLOAT16, np.float16), "f32": (onnx.TensorProto.FLOAT, np.float32)}


def of_types(folder: Path, data: str, scale: str, average: str) -> Path:
    """A convolution whose normalisation has data, scale and bias, and averages of these types."""
    (of_data, array), numbers, random = TYPES[data], ["scale", "bias", "mean", "variance"], np.random.default_rng(0)
    given = {"w": random.normal(size=(4, 3, 3, 3)).astype(array), "head": random.normal(size=(4 * 36, 5)).astype(array)}
    for name, type_ in zip(numbers, (scale, scale, average, average), strict=True):
        given[name] = (random.random(4) + 0.5).astype(TYPES[type_][1])
    nodes = [
        onnx.helper.make_node("Conv", ["x", "w"], ["conv"]),
        onnx.helper.make_node("BatchNormalization", ["conv", *numbers], ["normal"]),
        onnx.helper.make_node("Flatten", ["normal"], ["flat"]),
        onnx.helper.make_node("MatMul", ["flat", "head"], ["y"]),
    ]
    about = [onnx.helper.make_tensor_value_info(name, of_data, size) for name, size in (("x", [2, 3, 8, 8]), ("y", [2, 5]))]
    held = [numpy_helper.from_array(value, name) for name, value in given.items()]
    graph = onnx.helper.make_graph(nodes, "model", about[:1], about[1:], held)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, folder / "types.onnx")
    return folder / "types.onnx"


@pytest.mark.slow
@pytest.mark.parametrize("moved", ["train", "frozen"])
@pytest.mark.parametrize(
    "types", [("f16", "f32", "f32"), ("f16", "f16", "f32"), ("f16", "f32", "f16"), ("f32", "f16", "f16"), ("f32", "f32", "f16")]
)
def test_averages_may_be_of_another_type_than_the_data(
    types: tuple[str, str, str], moved: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such a normalisation was a fault of ``differentiate``; torch itself takes few of these types together."""
    asked = ("--loss", "cross-entropy:y", "--optimizer", "sgd", "--learning-rate", "0.001", "--batchnorm", moved)
    build = compiled(tmp_path / "build", *asked, model=str(of_types(tmp_path, *types)))
    assert main(["train", str(build), "--steps", "2", "--check"]) == 0
    assert f"passed: {6 if moved == 'train' else 4} weights" in capsys.readouterr().out
    assert main(["train", str(build), "--steps", "1", "--checkpoint", str(tmp_path), "-q"]) == 0
    held = {name: str(value.dtype) for name, value in weights(tmp_path / "step1").items()}
    expected = dict(zip(("w", "scale", "mean"), (types[0], types[1], types[2]), strict=True))
    told = {name: {"torch.float16": "f16", "torch.float32": "f32"}[held[name]] for name in expected if name in held}
    assert told == {name: type_ for name, type_ in expected.items() if name in held}
    assert ("mean" in held) == (moved == "train")


def test_a_normalisation_by_parameters_of_other_types_is_that_of_wide_ones() -> None:
    from dnnc.engines.torch.statements.helpers import batch_norm_backward, batch_norm_train

    x, grad = torch.randn(6, 4, 5, generator=torch.Generator().manual_seed(0)), torch.ones(6, 4, 5).cumsum(2)
    numbers = [torch.linspace(0.5, 2, 4) for _ in range(4)]
    wide = batch_norm_train(x, *numbers, 0.9, 1e-5, True)
    back = batch_norm_backward(grad, x, numbers[0], 1e-5, [True, True, True])
    for data, *others in (
        (torch.float16, torch.float32, torch.float32),
        (torch.float16, torch.float16, torch.float32),
        (torch.float32, torch.float16, torch.float32),
        (torch.float32, torch.float32, torch.float16),
        (torch.float16, torch.float16, torch.float16),
        (torch.float64, torch.float32, torch.float16),
    ):
        given = [number.to(type_) for number, type_ in zip(numbers, (others[0], *others[:1], *others[1:] * 2), strict=True)]
        found = batch_norm_train(x.to(data), *given, 0.9, 1e-5, True)
        assert [one.dtype for one in found] == [data, others[1], others[1]]
        for one, two in zip(found, wide, strict=True):
            torch.testing.assert_close(one.float(), two, rtol=4e-3, atol=4e-3)
        gradients = batch_norm_backward(grad.to(data), x.to(data), given[0], 1e-5, [True, True, True])
        assert [one.dtype for one in gradients if one is not None] == [data, others[0], others[0]]
        for one, two in zip(gradients, back, strict=True):
            torch.testing.assert_close(one.float(), two, rtol=1e-2, atol=2e-1)
