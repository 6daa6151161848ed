"""Losses that a module computes itself, of its input and a target: 5 steps in two stages are those of PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
STEPS, MICROBATCHES, SAMPLES, CLASSES, RATE = 5, 2, 4, 6, 0.01
CLOSE = 2e-6
"""As of the table of modules (``test_as_pytorch``)."""
WEIGHTS = torch.tensor([1.0, 2.0, 0.5, 1.0, 3.0, 0.1])
COUNT = STEPS * MICROBATCHES


class Net(nn.Module):
    """The sum of losses, each of its own last layer on one network and of its own target."""

    def __init__(self, losses: Iterable[Callable[[Any, Any], Any]]) -> None:
        super().__init__()
        self.losses = tuple(losses)
        self.net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 16), nn.Tanh())
        self.last = nn.ModuleList(nn.Linear(16, CLASSES) for _ in self.losses)

    def forward(self, x: Any, *targets: Any) -> Any:
        h = self.net(x)
        each = zip(self.losses, self.last, targets, strict=True)
        return torch.stack([loss(last(h), y) for loss, last, y in each]).sum()


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


def test_steps_are_pytorchs(tmp_path: Path) -> None:
    losses, draws = zip(*LOSSES.values(), strict=True)
    torch.manual_seed(3)
    module, trained = Net(losses), Net(losses)
    trained.load_state_dict(module.state_dict())
    given = torch.randn(COUNT, SAMPLES, 8), *(draw() for draw in draws)
    graph = onnx.load(dnnc.from_torch(module, tuple(one[0] for one in given), tmp_path / "m.onnx")).graph
    asked: dict[str, Any] = {
        "objective": "training",
        "loss": f"output:{graph.output[0].name}",
        "optimizer": "momentum",
        "learning_rate": RATE,
    }
    file, machines = tmp_path / "m.onnx", "preset:cpu-2"
    plan = dnnc.plan(file, machines=machines, microbatches=MICROBATCHES, stages=2, replicas=1, mesh="none", **asked)
    data = [dict(zip((value.name for value in graph.input), row, strict=True)) for row in zip(*given, strict=True)]
    told = plan.write(tmp_path / "build").train(data, steps=STEPS, checkpoint=tmp_path / "c").losses
    optimizer = torch.optim.SGD(trained.parameters(), RATE, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        total = sum(trained(*(of[one] for of in given)) for one in range(step * MICROBATCHES, (step + 1) * MICROBATCHES))
        (total / MICROBATCHES).backward()
        optimizer.step()
        assert told[step] == pytest.approx(float(total.detach()) / MICROBATCHES, rel=1e-5)
    dnnc.into_torch(module, tmp_path / f"c/step{STEPS}")
    for key, value in trained.named_parameters():
        off = (module.get_parameter(key) - value).abs().max() / value.abs().max().clamp_min(1e-3)
        assert float(off) < CLOSE, key


def overlap(made: Any, wanted: Any) -> Any:
    """Dice."""
    likely = torch.sigmoid(made)
    return 1 - ((2 * (likely * wanted).sum(1) + 1) / (likely.sum(1) + wanted.sum(1) + 1)).mean()


def counted(made: Any, wanted: Any) -> Any:
    """The mean over elements that a mask keeps."""
    mask = (wanted > 0).float()
    return ((made - wanted) ** 2 * mask).sum() / mask.sum().clamp(min=1)


def supervised_contrastive(made: Any, wanted: Any) -> Any:
    rows = functional.normalize(made, dim=1)
    others = 1 - torch.eye(SAMPLES)
    scores = rows @ rows.T / 0.5
    logs = scores - torch.log((torch.exp(scores) * others).sum(1, keepdim=True))
    same = (wanted[:, None] == wanted[None]).float() * others
    return -((same * logs).sum(1) / same.sum(1).clamp(min=1)).mean()


def clipped_policy(made: Any, wanted: Any) -> Any:
    """PPO."""
    ratio = torch.exp(functional.log_softmax(made, -1)[:, 0] - wanted[:, 0])
    return -torch.min(ratio * wanted[:, 1], torch.clamp(ratio, 0.8, 1.2) * wanted[:, 1]).mean()


def rewarded(made: Any, wanted: Any) -> Any:
    """A policy with a bonus for its entropy."""
    return functional.cross_entropy(made, wanted) - 0.01 * torch.distributions.Categorical(logits=made).entropy().mean()


def gaussian(made: Any, wanted: Any) -> Any:
    return functional.gaussian_nll_loss(made[:, :3], wanted[:, :3], functional.softplus(made[:, 3:]), full=True)


def distilled(made: Any, wanted: Any) -> Any:
    logs = functional.log_softmax(made / 2, -1), functional.log_softmax(wanted / 2, -1)
    return functional.kl_div(*logs, reduction="batchmean", log_target=True) * 4 + functional.cross_entropy(
        made, wanted.argmax(-1)
    )


def sequences(made: Any, wanted: Any) -> Any:
    """CTC: one row of scores is three frames of two classes; a row of labels is a length, and a label of that length."""
    logs = functional.log_softmax(made.view(SAMPLES, 3, 2), -1).transpose(0, 1)
    return functional.ctc_loss(logs, torch.ones(SAMPLES, 2, dtype=torch.int64), torch.full((SAMPLES,), 3), wanted % 2 + 1)


def likelihood(made: Any, wanted: Any) -> Any:
    return functional.nll_loss(functional.log_softmax(made, -1), wanted, weight=WEIGHTS, ignore_index=2)


def similar(made: Any, wanted: Any) -> Any:
    return functional.cosine_embedding_loss(made[:, :3], made[:, 3:], wanted[:, 0] * 2 - 1, margin=0.1)


def triplets(made: Any, wanted: Any) -> Any:
    return functional.triplet_margin_loss(made, wanted, wanted.flip(0), swap=True)


def ranked(made: Any, wanted: Any) -> Any:
    return functional.margin_ranking_loss(made[:, 0], made[:, 1], torch.sign(wanted[:, 0]), margin=0.1)


def arcs(made: Any, wanted: Any) -> Any:
    """ArcFace."""
    angles = torch.acos(functional.normalize(made, dim=1).clamp(-1 + 1e-6, 1 - 1e-6))
    return functional.cross_entropy(10 * torch.cos(angles + 0.2 * functional.one_hot(wanted, CLASSES).float()), wanted)


def uncorrelated(made: Any, wanted: Any) -> Any:
    """Barlow Twins."""
    one, other = ((of - of.mean(0)) / (of.std(0) + 1e-4) for of in (made, wanted))
    table = one.T @ other / SAMPLES
    own = torch.diagonal(table)
    return (own - 1).pow(2).sum() + 0.01 * (table.pow(2).sum() - own.pow(2).sum())


def events() -> Any:
    return torch.randint(0, 5, (COUNT, SAMPLES, CLASSES)).float()


EXPORTED: dict[str, tuple[Callable[[Any, Any], Any], Callable[[], Any]]] = {
    "shares of classes": (nn.CrossEntropyLoss(), shares),
    "shares of classes, with weights and smoothing": (nn.CrossEntropyLoss(weight=WEIGHTS, label_smoothing=0.1), shares),
    "a sum": (nn.CrossEntropyLoss(reduction="sum"), classes),
    "L1": (nn.L1Loss(), floats),
    "smooth L1": (nn.SmoothL1Loss(beta=0.5), floats),
    "likelihood": (likelihood, classes),
    "cosine embedding": (similar, yes_or_no),
    "triplets": (triplets, floats),
    "ranking": (ranked, floats),
    "hinge embedding": (nn.HingeEmbeddingLoss(), lambda: yes_or_no() * 2 - 1),
    "soft margin": (nn.SoftMarginLoss(), lambda: yes_or_no() * 2 - 1),
    "several labels": (nn.MultiLabelSoftMarginLoss(weight=WEIGHTS), yes_or_no),
    "Gaussian": (gaussian, floats),
    "Poisson": (nn.PoissonNLLLoss(full=True), events),
    "KL of logarithms": (distilled, floats),
    "dice": (overlap, yes_or_no),
    "a masked mean": (counted, floats),
    "supervised contrastive": (supervised_contrastive, classes),
    "PPO": (clipped_policy, floats),
    "entropy bonus": (rewarded, classes),
    "ArcFace": (arcs, classes),
    "Barlow Twins": (uncorrelated, floats),
    "CTC": (sequences, classes),
}


def test_gradients_are_pytorchs(tmp_path: Path) -> None:
    """``from_torch`` writes only what has the results and the gradients of PyTorch; the model compiles for a mesh."""
    losses, draws = zip(*EXPORTED.values(), strict=True)
    torch.manual_seed(3)
    path = dnnc.from_torch(Net(losses), (torch.randn(SAMPLES, 8), *(draw()[0] for draw in draws)), tmp_path / "m.onnx")
    (output,) = (value.name for value in onnx.load(path).graph.output)
    plan = dnnc.plan(path, machines="preset:cpu-2", objective="training", loss=f"output:{output}", mesh="2", microbatches=2)
    assert plan.module.entry.ops


def test_targets_one_behind_the_other_are_refused(tmp_path: Path) -> None:
    lengths = torch.full((SAMPLES,), 9), torch.full((SAMPLES,), 3)
    module = Net([lambda made, wanted: functional.ctc_loss(functional.log_softmax(made, -1).transpose(0, 1), wanted, *lengths)])
    with pytest.raises(dnnc.InvalidInput, match=r"E1518.*ctc_loss of targets one behind the other"):
        dnnc.from_torch(module, (torch.randn(SAMPLES, 9, 8), torch.randint(1, CLASSES, (SAMPLES * 3,))), tmp_path / "m.onnx")
