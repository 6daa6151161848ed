"""From PyTorch and back: names, modes, what is trained and what is not, and the numbers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from ir.core.diagnostics import InvalidInput
from tests.dnnc.engines.torch.training_builds import write_checkpoint

torch = pytest.importorskip("torch", reason="the extra 'train' is not installed")
pytest.importorskip("onnxscript", reason="the extra 'train' is not installed")
safetensors = pytest.importorskip("safetensors.torch", reason="the extra 'train' is not installed")

import dnnc  # noqa: E402
from dnnc.engines.torch.checkpoint import Position  # noqa: E402

pytestmark = pytest.mark.slow  # torch.export takes seconds


class Net(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Tied weights, a frozen one, a buffer, a plain tensor, batch normalisation, a scalar parameter, dropout; parameters called
    like the input and like a value of the exporter, and some that nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.fc = torch.nn.Linear(8 * 4 * 4, 10)
        self.drop = torch.nn.Dropout(0.5)
        self.tied = torch.nn.Linear(10, 10, bias=False)
        self.again = torch.nn.Linear(10, 10, bias=False)
        self.again.weight = self.tied.weight
        self.frozen = torch.nn.Parameter(torch.randn(10), requires_grad=False)
        self.scale = torch.nn.Parameter(torch.tensor(1.0))
        self.register_buffer("table", torch.randn(10))
        self.plain = torch.linspace(1.0, 2.0, 8).reshape(8, 1, 1)
        self.image_1 = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0]).reshape(3, 1, 1))
        self.conv2d = torch.nn.Parameter(torch.ones(8, 1, 1))
        self.image = torch.nn.Parameter(torch.tensor(0.5))
        self.unused = torch.nn.Linear(2, 2)

    def forward(self, image):  # type: ignore[no-untyped-def]
        hidden = self.conv(image * self.image + self.image_1) * self.conv2d * self.plain
        hidden = torch.relu(self.norm(hidden))
        hidden = torch.nn.functional.avg_pool2d(hidden, 2).flatten(1)
        hidden = self.tied(self.drop(self.fc(hidden)) * self.frozen)
        return self.again(torch.tanh(hidden)) * self.scale + self.table


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[torch.nn.Module, Path]:
    torch.manual_seed(1)
    module = Net()
    module.norm.running_mean.uniform_()
    path = dnnc.from_torch(module, (torch.randn(4, 3, 8, 8),), tmp_path_factory.mktemp("export") / "net.onnx")
    return module, path


def test_initializers_are_what_is_trained_under_the_names_of_state_dict(exported: tuple[torch.nn.Module, Path]) -> None:
    module, path = exported
    names = {tensor.name for tensor in onnx.load(path).graph.initializer}
    weights = {"conv.weight", "conv.bias", "norm.weight", "norm.bias", "fc.weight", "fc.bias", "scale"}
    weights |= {"image", "image_1", "conv2d", "norm.running_mean", "norm.running_var"}
    assert names - {"tied.weight", "again.weight"} == weights
    assert len(names & {"tied.weight", "again.weight"}) == 1
    assert module.training
    assert module.drop.training


def test_the_file_computes_what_the_module_infers_and_stands_alone(exported: tuple[torch.nn.Module, Path]) -> None:
    module, path = exported
    image = np.random.default_rng(0).standard_normal((4, 3, 8, 8), np.float32)
    (found,) = onnxruntime.InferenceSession(path).run(None, {"image_2": image})
    with torch.no_grad():
        wanted = module.eval()(torch.from_numpy(image)).numpy()
    module.train()
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    assert [entry.name for entry in path.parent.iterdir()] == ["net.onnx"]


def test_dropouts_stay_where_they_are_asked_for(exported: tuple[torch.nn.Module, Path], tmp_path: Path) -> None:
    """Those in place too; all else as it infers, and the module as it was."""
    module, path = exported
    assert not any(node.op_type == "Dropout" for node in onnx.load(path).graph.node)
    module.drop.inplace = True
    modes = {name: part.training for name, part in module.named_modules()}
    kept = onnx.load(dnnc.from_torch(module, (torch.randn(4, 3, 8, 8),), tmp_path / "kept.onnx", dropout=True)).graph
    image = np.random.default_rng(0).standard_normal((4, 3, 8, 8), np.float32)
    sessions = [onnxruntime.InferenceSession(one) for one in (path, tmp_path / "kept.onnx")]
    wanted, found = (session.run(None, {session.get_inputs()[0].name: image}) for session in sessions)
    np.testing.assert_array_equal(found[0], wanted[0])
    assert modes == {name: part.training for name, part in module.named_modules()}
    assert module.drop.inplace
    module.drop.inplace = False
    (drop,) = [node for node in kept.node if node.op_type == "Dropout"]
    ratio = next(node.attribute[0].t for node in kept.node if drop.input[1] in node.output)
    assert onnx.numpy_helper.to_array(ratio) == np.float32(0.5)
    (norm,) = [node for node in kept.node if node.op_type == "BatchNormalization"]
    assert not any(attribute.name == "training_mode" and attribute.i for attribute in norm.attribute)


def test_weights_come_back_into_the_module(exported: tuple[torch.nn.Module, Path], tmp_path: Path) -> None:
    module, path = exported
    trained = {
        tensor.name: torch.from_numpy(onnx.numpy_helper.to_array(tensor).copy()) + 1
        for tensor in onnx.load(path).graph.initializer
        if tensor.data_type == onnx.TensorProto.FLOAT
    }
    before = {name: value.clone() for name, value in module.state_dict().items()}
    trained["fc.weight.exp_avg"] = torch.zeros(10, 128)
    del trained["norm.running_var"]
    safetensors.save_file(trained, str(tmp_path / "step3.safetensors"))
    kept = dnnc.into_torch(module, tmp_path / "step3.safetensors")
    assert kept == ("norm.running_var", "norm.num_batches_tracked", "unused.weight", "unused.bias")
    for name, value in module.state_dict().items():
        moved = 0 if name in (*kept, "frozen", "table") else 1
        torch.testing.assert_close(value, before[name] + moved)
    assert module.again.weight is module.tied.weight


def test_a_foreign_checkpoint_changes_nothing(exported: tuple[torch.nn.Module, Path], tmp_path: Path) -> None:
    module, _ = exported
    before = {name: value.clone() for name, value in module.state_dict().items()}
    held = {name: value.detach().clone() + 1 for name, value in before.items() if name not in ("again.weight",)}
    held["fc.weight"] = torch.zeros(3, 3)
    safetensors.save_file(held, str(tmp_path / "other.safetensors"))
    with pytest.raises(InvalidInput, match=r"'fc.weight' has the shape \(3, 3\), that of the module \(10, 128\)"):
        dnnc.into_torch(module, tmp_path / "other.safetensors")
    safetensors.save_file(
        {"fc.weight": before["fc.weight"], "head.weight": torch.zeros(3)}, str(tmp_path / "other.safetensors")
    )
    with pytest.raises(InvalidInput, match=r"a weight 'head.weight', which the module lacks"):
        dnnc.into_torch(module, tmp_path / "other.safetensors")
    safetensors.save_file({}, str(tmp_path / "other.safetensors"))
    with pytest.raises(InvalidInput, match="no weight of the module"):
        dnnc.into_torch(module, tmp_path / "other.safetensors")
    (tmp_path / "text").write_text("no tensors")
    with pytest.raises(InvalidInput, match="cannot be read as safetensors"):
        dnnc.into_torch(module, tmp_path / "text")
    with pytest.raises(InvalidInput, match="no such file"):
        dnnc.into_torch(module, tmp_path / "missing")
    damaged = tmp_path / "damaged.safetensors"
    write_checkpoint(damaged, {"fc.weight": before["fc.weight"] + 1}, Position(1, 0))
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-9] + bytes([whole[-9] ^ 64]) + whole[-8:])
    with pytest.raises(InvalidInput, match="it is damaged: its SHA-256 is not that of what was written"):
        dnnc.into_torch(module, damaged)
    for name, value in module.state_dict().items():
        torch.testing.assert_close(value, before[name])


def test_the_table_of_functions_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It had been read from their source text for each export."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    read: list[object] = []
    real = ONNXRegistry.__dict__["from_torchlib"].__func__
    monkeypatch.setattr(ONNXRegistry, "from_torchlib", classmethod(lambda cls, **told: read.append(told) or real(cls, **told)))
    for name in ("one.onnx", "two.onnx"):
        dnnc.from_torch(torch.nn.Linear(3, 2), torch.zeros(4, 3), tmp_path / name)
    assert len(read) <= 1


def test_one_argument_needs_no_tuple(tmp_path: Path) -> None:
    path = dnnc.from_torch(torch.nn.Linear(3, 2), torch.zeros(4, 3), tmp_path / "linear.onnx")
    assert [dim.dim_value for dim in onnx.load(path).graph.input[0].type.tensor_type.shape.dim] == [4, 3]


def test_what_cannot_be_exported_is_told_in_a_line(tmp_path: Path) -> None:
    class Odd(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x):  # type: ignore[no-untyped-def]
            raise RuntimeError("no such path")

    with pytest.raises(InvalidInput, match=r"cannot export Odd: .*no such path"):
        dnnc.from_torch(Odd(), (torch.zeros(2),), tmp_path / "odd.onnx")
    assert not list(tmp_path.iterdir())


def test_importing_dnnc_does_not_import_torch() -> None:
    code = "import sys, dnnc; assert 'torch' not in sys.modules; dnnc.from_torch; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
