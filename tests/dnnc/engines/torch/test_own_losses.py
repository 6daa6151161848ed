"""Losses that a module computes itself, of its input and a target: 5 steps in two stages are those of PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="the extra 'train' is not installed")
pytest.importorskip("onnxscript", reason="the extra 'train' is not installed")

import onnx  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import dnnc  # noqa: E402

pytestmark = pytest.mark.slow
STEPS, MICROBATCHES, SAMPLES, CLASSES = 5, 2, 4, 6
CLOSE = 2e-6
"""As of the table of modules (``test_as_pytorch``)."""
WEIGHTS = torch.tensor([1.0, 2.0, 0.5, 1.0, 3.0, 0.1])
COUNT = STEPS * MICROBATCHES


class Net(nn.Module):
    def __init__(self, loss: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, CLASSES))
        self.loss = loss

    def forward(self, x: Any, y: Any) -> Any:
        return self.loss(self.net(x), y)


def classes(ignored: int | None = None) -> Any:
    labels = torch.randint(0, CLASSES, (COUNT, SAMPLES))
    if ignored is not None:
        labels[:, 0] = ignored
    return labels


def floats() -> Any:
    return torch.randn(COUNT, SAMPLES, CLASSES)


def yes_or_no() -> Any:
    return torch.randint(0, 2, (COUNT, SAMPLES, CLASSES)).float()


def shares() -> Any:
    return torch.softmax(floats(), -1)


def contrastive(made: Any, wanted: Any) -> Any:
    """InfoNCE in both directions: row n belongs to row n."""
    scores = functional.normalize(made, dim=-1) @ functional.normalize(wanted, dim=-1).T * 5.0
    own = torch.arange(scores.shape[0])
    return (functional.cross_entropy(scores, own) + functional.cross_entropy(scores.T, own)) / 2


def focal(made: Any, wanted: Any) -> Any:
    each = functional.cross_entropy(made, wanted, reduction="none")
    return ((1 - torch.exp(-each)) ** 2 * each).mean()


def divergence(made: Any, wanted: Any) -> Any:
    return functional.kl_div(functional.log_softmax(made, -1), wanted, reduction="batchmean")


LOSSES: dict[str, tuple[Callable[[Any, Any], Any], Callable[[], Any]]] = {
    "label smoothing": (nn.CrossEntropyLoss(label_smoothing=0.1), classes),
    "class weights": (nn.CrossEntropyLoss(weight=WEIGHTS), classes),
    "class weights and label smoothing": (nn.CrossEntropyLoss(weight=WEIGHTS, label_smoothing=0.2), classes),
    "ignore_index": (nn.CrossEntropyLoss(ignore_index=3), lambda: classes(3)),
    "Huber": (nn.HuberLoss(delta=0.7), floats),
    "binary cross entropy with logits": (nn.BCEWithLogitsLoss(pos_weight=WEIGHTS), yes_or_no),
    "KL": (divergence, shares),
    "InfoNCE": (contrastive, floats),
    "focal": (focal, classes),
    "multiple margins": (nn.MultiMarginLoss(), classes),
}


@pytest.mark.parametrize("name", LOSSES)
def test_steps_are_pytorchs(name: str, tmp_path: Path) -> None:
    loss, draw = LOSSES[name]
    torch.manual_seed(3)
    module, trained = Net(loss), Net(loss)
    trained.load_state_dict(module.state_dict())
    given, wanted = torch.randn(COUNT, SAMPLES, 8), draw()
    path = dnnc.from_torch(module, (given[0], wanted[0]), tmp_path / "m.onnx")
    (output,) = (value.name for value in onnx.load(path).graph.output)
    asked: dict[str, Any] = {
        "objective": "training",
        "loss": f"output:{output}",
        "optimizer": "momentum",
        "learning_rate": 0.05,
    }
    plan = dnnc.plan(path, machines="preset:cpu-2", microbatches=MICROBATCHES, stages=2, replicas=1, mesh="none", **asked)
    data = [{"x": x, "y": y} for x, y in zip(given, wanted, strict=True)]
    losses = plan.write(tmp_path / "build").train(data, steps=STEPS, checkpoint=tmp_path / "c").losses
    optimizer = torch.optim.SGD(trained.parameters(), 0.05, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        total = sum(trained(given[one], wanted[one]) for one in range(step * MICROBATCHES, (step + 1) * MICROBATCHES))
        (total / MICROBATCHES).backward()
        optimizer.step()
        assert losses[step] == pytest.approx(float(total.detach()) / MICROBATCHES, rel=1e-5)
    dnnc.into_torch(module, tmp_path / f"c/step{STEPS}")
    for key, value in trained.named_parameters():
        off = (module.get_parameter(key) - value).abs().max() / value.abs().max().clamp_min(1e-3)
        assert float(off) < CLOSE, key


def test_ctc_is_refused(tmp_path: Path) -> None:
    """No operator of ONNX computes it."""
    lengths = torch.full((SAMPLES,), 9), torch.full((SAMPLES,), 3)
    module = Net(lambda made, wanted: functional.ctc_loss(functional.log_softmax(made, -1).transpose(0, 1), wanted, *lengths))
    with pytest.raises(dnnc.InvalidInput, match=r"E1502.*cannot export Net: aten\._ctc_loss"):
        dnnc.from_torch(module, (torch.randn(SAMPLES, 9, 8), torch.randint(1, CLASSES, (SAMPLES, 3))), tmp_path / "m.onnx")
