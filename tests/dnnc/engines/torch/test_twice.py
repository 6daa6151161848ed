"""A batch normalisation that is called twice moves its averages twice per microbatch, as in PyTorch, on any plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dnnc.cli import main
from tests.dnnc.engines.torch.training_builds import compiled

torch: Any = pytest.importorskip("torch", reason="the extra 'train' is not installed")
pytest.importorskip("onnxscript", reason="the extra 'train' is not installed")
safetensors: Any = pytest.importorskip("safetensors.torch", reason="the extra 'train' is not installed")

import dnnc  # noqa: E402

BATCH, WIDTH, MICROBATCHES, STEPS, RATE = 6, 4, 4, 2, 0.05
PLANS = {
    "one device": ("--stages", "1", "--replicas", "1", "--mesh", "none"),
    "two stages": ("--stages", "2", "--replicas", "1", "--mesh", "none"),
    "two replicas": ("--stages", "1", "--replicas", "2", "--mesh", "none"),
    "a mesh": ("--stages", "1", "--mesh", "2"),
    "a mesh of parts of the batch": ("--stages", "1", "--mesh", "2", "--strategy", "data"),
    "stages on meshes of one": ("--stages", "2", "--mesh", "1"),
    "stages on meshes": ("--stages", "2", "--mesh", "2"),
}


class Twice(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (torch.nn.Linear(WIDTH, width) for width in (WIDTH, WIDTH, 3))
        self.norm = torch.nn.BatchNorm1d(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.a(x)))
        return self.c(torch.relu(self.norm(torch.relu(self.b(x)))))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """The state of a module, and the file of its model."""
    torch.manual_seed(0)
    module = Twice()
    file = dnnc.from_torch(module, (torch.randn(BATCH, WIDTH),), tmp_path_factory.mktemp("twice") / "model.onnx")
    return module.state_dict(), str(file)


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS)
def test_both_calls_move_the_averages(plan: str, exported: tuple[dict[str, Any], str], tmp_path: Path) -> None:
    state, file = exported
    module, twin = Twice(), Twice()
    twin.load_state_dict(state)
    rates = ("--optimizer", "sgd", "--learning-rate", str(RATE))
    machine = "preset:cpu-4" if plan == "stages on meshes" else "preset:cpu-2"
    build = compiled(tmp_path / "build", *PLANS[plan], *rates, model=file, loss="mse:linear_2", topology=machine)
    samples = np.random.default_rng(1).normal(1, 2, size=(BATCH * MICROBATCHES * STEPS, WIDTH)).astype(np.float32)
    targets = np.random.default_rng(2).normal(size=(len(samples), 3)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=samples, target=targets)
    asked = ["train", str(build), "--steps", str(STEPS), "--data", str(tmp_path / "data.npz")]
    assert main([*asked, "--checkpoint", str(tmp_path), "-q"]) == 0
    dnnc.into_torch(module, tmp_path / f"step{STEPS}")
    optimizer = torch.optim.SGD(twin.parameters(), RATE)
    order = np.random.Generator(np.random.Philox(key=[0, 0])).permutation(len(samples))
    for step in order.reshape(STEPS, MICROBATCHES, BATCH):
        optimizer.zero_grad()
        for rows in step:
            loss = torch.nn.functional.mse_loss(twin(torch.from_numpy(samples[rows])), torch.from_numpy(targets[rows]))
            (loss / MICROBATCHES).backward()
        optimizer.step()
    states = twin.state_dict()
    for name, value in module.state_dict().items():
        if not ("running" in name and plan == "two replicas"):  # each moves its own
            torch.testing.assert_close(value, states[name], rtol=1e-4, atol=1e-5, msg=name)
    if plan == "two replicas":  # whose rule is that of ``--check``
        assert main([*asked, "--check"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["none", "1"])
def test_a_plan_that_parts_the_calls_is_refused(
    mesh: str, exported: tuple[dict[str, Any], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, file = exported
    options = ("--stages", "2", "--mesh", mesh)
    build = compiled(tmp_path / "build", *options, model=file, loss="mse:linear_2")
    plan = json.loads((build / "plan.json").read_text())
    names = [name for stage in plan["stages"] for name in stage["ops"]]
    behind = names.index("relu_1")
    for stage, own in zip(plan["stages"], (names[:behind], names[behind:]), strict=True):
        stage["ops"] = own
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    replayed = ("--plan", str(tmp_path / "plan.json"), "--loss", "mse:linear_2", "-q", "-o", str(tmp_path / "other"))
    assert main(["compile", file, "-t", "preset:cpu-2", *replayed]) == 3
    told = capsys.readouterr().err
    assert "E3428" in told
    assert "reads the running average 'norm.running_mean', which op" in told


@pytest.mark.slow
def test_both_calls_share_a_stage(
    exported: tuple[dict[str, Any], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In two stages each call would move a copy of the averages."""
    _, file = exported
    step = ("--objective", "training", "--loss", "mse:linear_2", "--cut", "relu", "-q")
    assert main(["compile", file, "-t", "preset:cpu-2", *step, "-o", str(tmp_path / "build")]) == 4
    told = capsys.readouterr().err
    assert "%relu and %linear_1 must share a stage" in told
    assert "a batch normalisation that is called twice" in told
