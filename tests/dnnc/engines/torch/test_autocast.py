"""``--dtype bf16`` trains as PyTorch does under ``torch.autocast`` on CPUs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import dnnc
from dnnc.build.build import Snapshot, read_program
from dnnc.check.proof import prove
from dnnc.cli import main
from ir.core.module import Stage
from ir.core.types import DType, without_layout
from passes.prepare.autocast import NARROW, WIDE
from tests.dnnc.engines.torch.training_builds import compiled, weights

torch: Any = pytest.importorskip("torch", reason="the extra 'train' is not installed")
pytest.importorskip("safetensors", reason="the extra 'train' is not installed")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

MACHINES = """version = 1
types.core = {rates = {f32 = "50 GFLOP/s", bf16 = "100 GFLOP/s"}, memory_bandwidth = "10 GB/s", memory = "4 GiB", cores = 1}
hosts = [{name = "h", cores = 2}]
devices = [{name = "c0", type = "core", host = "h"}, {name = "c1", type = "core", host = "h"}]
links = [{ends = ["c0", "c1"], bandwidth = "5 GB/s", latency = "5 us"}]
"""
ONE = ("--stages", "1", "--replicas", "1", "--mesh", "none")
PLANS = {
    "stages": ("--stages", "2", "--replicas", "1", "--mesh", "none"),
    "mesh": ("--mesh", "2"),
    "replicas": ("--stages", "1", "--replicas", "2", "--mesh", "none"),
}


class Block(nn.Module):
    """A layer of a transformer between an embedding and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(50, 32), nn.Parameter(torch.randn(8, 32) * 0.1)
        self.norm, self.qkv, self.out = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)
        self.wide = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
        self.head = nn.Linear(32, 10)

    def forward(self, x: Any) -> Any:
        h = self.embedding(x) + self.places
        q, k, v = (one.reshape(-1, 8, 4, 8).transpose(1, 2) for one in self.qkv(self.norm(h)).chunk(3, -1))
        h = h + self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(-1, 8, 32))
        return self.head(h + self.wide(h))


def convolutional() -> Any:
    first = (nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
    second = (nn.Conv2d(8, 8, 3), nn.GroupNorm(2, 8), nn.SiLU(), nn.AdaptiveAvgPool2d(1))
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(8, 10))


MODULES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "dense": (
        lambda: nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.Tanh(), nn.Linear(32, 10)),
        lambda: torch.randn(8, 16),
    ),
    "convolutional": (convolutional, lambda: torch.randn(8, 3, 12, 12)),
    "transformer": (Block, lambda: torch.randint(0, 50, (4, 8))),
}
CALLS: dict[str, Callable[[Any], Any]] = {
    "MatMul": lambda x: x @ x,
    "Gemm": lambda x: functional.linear(x, x, x[0]),
    "Conv": lambda x: functional.conv2d(x[None, None], x[None, None, :3, :3]),
    "ConvTranspose": lambda x: functional.conv_transpose2d(x[None, None], x[None, None, :3, :3]),
    "Einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "Attention": lambda x: functional.scaled_dot_product_attention(x[None], x[None], x[None]),
    "SoftmaxCrossEntropyLoss": lambda x: functional.cross_entropy(x, torch.zeros(8, dtype=torch.long)),
    "NegativeLogLikelihoodLoss": lambda x: functional.nll_loss(x, torch.zeros(8, dtype=torch.long)),
    "ReduceProd": lambda x: x.prod(-1),
    "GridSample": lambda x: functional.grid_sample(x[None, None], x[None, :, :2, None].transpose(2, 3), align_corners=False),
    "Softmax": lambda x: x.softmax(-1),
    "LayerNormalization": lambda x: functional.layer_norm(x, (8,), x[0].float(), x[0].float()),
    "BatchNormalization": lambda x: functional.batch_norm(
        x, x[0].float(), x[1].float(), x[0].float(), x[0].float(), training=True
    ),
    "Pow": lambda x: x**2,
    "ReduceMean": lambda x: x.mean(-1),
    "Add": lambda x: x + x.float(),
    "Mul": lambda x: x * torch.tensor(0.5),
}
"""Operators as PyTorch calls them."""
WIDENED = ("Add",)


@pytest.mark.parametrize("name", list(CALLS))
def test_operators_have_the_type_that_autocast_gives_them(name: str) -> None:
    """Those of the two lists whatever they read; others the widest of what they read, beside scalars and later operands."""
    narrow, full = torch.bfloat16, f"onnx.{name}"
    for dtype in (torch.float32, narrow):
        with torch.autocast("cpu", dtype=narrow):
            found = CALLS[name](torch.rand(8, 8).to(dtype)).dtype
        expected = narrow if full in NARROW else torch.float32 if full in WIDE or name in WIDENED else dtype
        assert found == expected


def exported(name: str, folder: Path) -> tuple[Path, str, Any, Any]:
    """The model file of a module with samples of one microbatch beside it; its loss, and the arguments."""
    torch.manual_seed(0)
    module, x = MODULES[name][0](), MODULES[name][1]()
    labels = torch.randint(0, 10, (*((x.shape[0],) if name != "transformer" else x.shape),))
    dnnc.from_torch(module, (x,), folder / "m.onnx")
    graph = onnx.load(folder / "m.onnx").graph
    np.savez(folder / "data.npz", **{graph.input[0].name: x.numpy(), "labels": labels.numpy()})
    (folder / "machines.toml").write_text(MACHINES)
    return folder / "m.onnx", f"cross-entropy:{graph.output[0].name}", x, labels


@pytest.mark.slow
@pytest.mark.parametrize("name", list(MODULES))
def test_steps_are_those_of_autocast(name: str, tmp_path: Path) -> None:
    """Five steps: each loss within 0.2 %, each weight within 2 % of what it moved by (a bf16 number has 8 bits)."""
    model, loss, x, labels = exported(name, tmp_path)
    asked = ["compile", str(model), "-t", str(tmp_path / "machines.toml"), "--objective", "training", "--loss", loss, "-q"]
    asked += ["--microbatches", "1", *ONE, "--optimizer", "sgd", "--learning-rate", "0.05", "--dtype", "bf16"]
    assert main([*asked, "-o", str(tmp_path / "build")]) == 0
    train = ["train", str(tmp_path / "build"), "--steps", "5", "--data", str(tmp_path / "data.npz"), "-q"]
    assert main([*train, "--checkpoint", str(tmp_path / "out")]) == 0
    torch.manual_seed(0)
    module = MODULES[name][0]()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    optimizer, losses = torch.optim.SGD(module.parameters(), 0.05), []
    for _ in range(5):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = functional.cross_entropy(module(x).reshape(-1, 10), labels.reshape(-1))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    found = [one["loss"] for one in json.loads((tmp_path / "out/losses.json").read_text())]
    assert found == pytest.approx(losses, rel=2e-3)
    trained = weights(tmp_path / "out/step5")
    for key, value in module.named_parameters():
        moved = float((value - before[key]).norm())
        assert float((trained[key] - value).norm()) <= 0.02 * moved + 2e-5, key  # a bias before a normalisation hardly moves


@pytest.mark.slow
@pytest.mark.parametrize("plan", list(PLANS))
def test_on_any_plan_steps_are_those_of_the_unsplit_model(plan: str, tmp_path: Path) -> None:
    (tmp_path / "machines.toml").write_text(MACHINES)
    build = compiled(tmp_path / "build", *PLANS[plan], "--dtype", "bf16", topology=str(tmp_path / "machines.toml"))
    assert main(["train", str(build), "--steps", "3", "--check", "-q"]) == 0
    assert prove(build).proven


def test_what_crosses_between_stages_is_narrow_and_weights_are_not(tmp_path: Path) -> None:
    (tmp_path / "machines.toml").write_text(MACHINES)
    machines = str(tmp_path / "machines.toml")
    narrow, wide = (compiled(tmp_path / d, *PLANS["stages"], "--dtype", d, topology=machines) for d in ("bf16", "f32"))
    module = read_program(Snapshot.open(narrow))
    received = [op.results[0].type for stage in module.of_type(Stage) for op in stage.ops if op.name == "comm.recv"]
    assert {without_layout(type_).dtype for type_ in received} == {DType.BF16}  # type: ignore[union-attr]
    assert {one.type.dtype for one in module.resources.values()} <= {DType.F32, DType.I64}  # type: ignore[union-attr]
    plans = [json.loads((build / "plan.json").read_text()) for build in (narrow, wide)]
    assert plans[0]["value"] != plans[1]["value"]


def test_machines_that_state_no_rate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["compile", "zoo:mlp,layers=2,hidden=8,batch=2", "-t", "preset:cpu-2", "--objective", "training", "--loss", "mse:y"]
    assert main([*asked, "--dtype", "bf16", "-o", str(tmp_path / "build")]) == 3
    assert "--dtype bf16: error[E4001]: device type 'core' states no rate of bf16" in capsys.readouterr().err
    assert not (tmp_path / "build").exists()
