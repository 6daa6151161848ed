"""Small PyTorch modules of the kinds that people train, and how far 5 steps of ``dnnc train`` are from those of PyTorch.

``python -m tests.dnnc.engines.torch.pytorch_modules [NAME ..]`` prints the table: a row per module, a column per plan.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import nn
from torch.nn import functional

import dnnc
from dnnc.check.proof import prove
from tests.dnnc.engines.torch.modules import sequences, vision
from tests.dnnc.engines.torch.modules.case import Draw, Whole, floats, tokens

STEPS, MICROBATCHES, RATE = 5, 2, 0.05
ONE: dict[str, Any] = {"stages": 1, "replicas": 1, "mesh": "none"}
PLANS: dict[str, dict[str, Any]] = {
    "one device": {**ONE, "machines": "preset:cpu-1"},
    "two stages": {**ONE, "machines": "preset:cpu-2", "stages": 2},
    "mesh": {"machines": "preset:cpu-2", "mesh": "2", "strategy": "data"},
    "replicas": {**ONE, "machines": "preset:cpu-2", "replicas": 2},
}
Body = Callable[[nn.Module, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Case:
    """``body``: what the module computes of its ``parts`` and its input, of ``shape`` for a sample."""

    body: Body
    parts: Callable[[], dict[str, Any]]
    shape: tuple[int, ...] = (8,)
    tokens: int = 0
    """The input is of integers below this number, if it is not 0."""
    classes: bool = False
    """The loss is the cross entropy by the last dimension of the output, else the squared distance."""

    def whole(self) -> Whole:
        draw = tokens(self.tokens, *self.shape) if self.tokens else floats(*self.shape)
        return Whole(lambda: Made(self), (draw,), "cross-entropy" if self.classes else "mse")


class Made(nn.Module):
    def __init__(self, case: Case) -> None:
        super().__init__()
        self.body = case.body
        for name, part in case.parts().items():
            setattr(self, name, part)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(self, x)


class Together(nn.Module):
    """Models side by side, each with its inputs and, unless its output is its loss, its target: the sum of their losses."""

    def __init__(self, wholes: Sequence[Whole]) -> None:
        super().__init__()
        self.parts, self.wholes = nn.ModuleList([whole.make() for whole in wholes]), wholes

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        losses, begin = [], 0
        for part, whole in zip(self.parts, self.wholes, strict=True):
            end = begin + len(whole.inputs)
            losses.append(loss_of(whole, part(*given[begin:end]), given[end] if whole.loss != "output" else None))
            begin = end + (whole.loss != "output")
        return torch.stack(losses).sum()


def together(wholes: Sequence[Whole]) -> Whole:
    """Their models as one, whose output is the sum of their losses."""
    draws: list[Draw] = []
    for whole in wholes:
        draws += whole.inputs
        target = target_of(whole)
        draws += [target] if target is not None else []
    return Whole(lambda: Together(wholes), tuple(draws), "output")


def loss_of(whole: Whole, made: torch.Tensor, wanted: torch.Tensor | None) -> torch.Tensor:
    """The loss of an output and its target, if it has one: a scalar."""
    if wanted is None:
        return made
    if whole.loss == "mse":
        return functional.mse_loss(made, wanted)
    return functional.cross_entropy(made.flatten(0, -2), wanted.flatten())


def target_of(whole: Whole) -> Draw | None:
    """Draws targets of a model's outputs, unless its output is its loss."""
    if whole.loss == "output":
        return None
    with torch.no_grad():
        shape = whole.make()(*(draw() for draw in whole.inputs)).shape
    if whole.loss == "mse":
        return lambda: torch.randn(shape)
    return lambda: torch.randint(0, shape[-1], shape[:-1])


def sequential(*parts: Callable[[], nn.Module]) -> Callable[[], dict[str, Any]]:
    return lambda: {"net": nn.Sequential(*(part() for part in parts))}


def by_net(m: Any, x: torch.Tensor) -> torch.Tensor:
    found = m.net(x)
    assert isinstance(found, torch.Tensor)
    return found


def linear(given: int, made: int, bias: bool = True) -> Callable[[], nn.Module]:
    return lambda: nn.Linear(given, made, bias)


def wrapped(part: Callable[[], nn.Module], width: int = 8) -> Callable[[], dict[str, Any]]:
    """A linear layer before it and one behind it."""
    return lambda: {"a": nn.Linear(width, width), "sub": part(), "out": nn.Linear(width, width)}


def first(m: Any, x: torch.Tensor) -> Any:
    """A part that gives several results, between two linear layers."""
    return m.out(m.sub(m.a(x))[0])


def last_state(m: Any, x: torch.Tensor) -> Any:
    return m.out(m.sub(m.a(x))[1][0][-1])


def by_cell(m: Any, x: torch.Tensor) -> Any:
    h, c = (x.new_zeros(x.shape[0], 8) for _ in range(2))
    for step in range(x.shape[1]):
        h, c = m.sub(m.a(x[:, step]), (h, c))
    return m.out(h)


def attends(m: Any, x: torch.Tensor) -> Any:
    h = m.a(x)
    return m.out(m.sub(h, h, h, need_weights=False)[0] + h)


def causal(m: Any, x: torch.Tensor) -> Any:
    q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in m.a(x).chunk(3, -1))
    y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return m.out(y.transpose(1, 2).flatten(2))


def decodes(m: Any, x: torch.Tensor) -> Any:
    memory = m.a(x)
    return m.out(m.sub(torch.tanh(memory), memory))


def tied(m: Any, x: torch.Tensor) -> Any:
    h = torch.tanh(m.a(m.table(x))) + m.table(x)
    return functional.linear(m.norm(h), m.table.weight)


def einsum(m: Any, x: torch.Tensor) -> Any:
    h = m.a(x)
    weights = torch.softmax(torch.einsum("bid,bjd->bij", h, m.sub(x)), -1)
    return m.out(torch.einsum("bij,bjd->bid", weights, h))


def einsum_dots(m: Any, x: torch.Tensor) -> Any:
    h = m.a(x)
    diagonal = torch.einsum("...ii->...i", torch.einsum("...id,...jd->...ij", h, h))
    return m.out(torch.einsum("...i,...id->...id", torch.tanh(diagonal), h))


def folds(m: Any, x: torch.Tensor) -> Any:
    windows = functional.unfold(m.net(x), 3, padding=1)
    return functional.fold(m.out(windows.transpose(1, 2)).transpose(1, 2), (6, 6), 3, padding=1)


def samples_grid(m: Any, x: torch.Tensor) -> Any:
    theta = m.theta(x.flatten(1)).view(-1, 2, 3) * 0.1 + torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    grid = functional.affine_grid(theta, list(x.shape), align_corners=False)
    return m.net(functional.grid_sample(x, grid, align_corners=False))


def adapted(m: Any, x: torch.Tensor) -> Any:
    return m.base(x) + m.up(m.down(x)) * 0.5


def adapter() -> dict[str, Any]:
    base = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    base.requires_grad_(False)
    return {"base": base, "down": nn.Linear(8, 2, bias=False), "up": nn.Linear(2, 8, bias=False)}


def checkpointed(m: Any, x: torch.Tensor) -> Any:
    from torch.utils.checkpoint import checkpoint

    return m.out(checkpoint(m.sub, m.a(x), use_reentrant=False))


def routed(m: Any, x: torch.Tensor) -> Any:
    """A mixture of four experts of which each sample takes the best two."""
    h = m.a(x)
    best, which = m.router(h).topk(2, dim=-1)
    shares = torch.zeros(h.shape[0], 4).scatter(1, which, torch.softmax(best, -1))
    return m.out(torch.stack([expert(h) for expert in m.experts], 1).mul(shares.unsqueeze(-1)).sum(1))


def gated(m: Any, x: torch.Tensor) -> Any:
    return m.out(functional.silu(m.gate(x)) * m.up(x))


def unpooled(m: Any, x: torch.Tensor) -> Any:
    y, places = functional.max_pool2d(m.net(x), 2, return_indices=True)
    return m.out(functional.max_unpool2d(m.mid(y), places, 2))


def residual(m: Any, x: torch.Tensor) -> Any:
    return torch.relu(m.net(x) + m.skip(x))


def squeezed(m: Any, x: torch.Tensor) -> Any:
    y = m.net(x)
    return y * torch.sigmoid(m.out(y.mean((2, 3))))[:, :, None, None]


def shaped_like_u(m: Any, x: torch.Tensor) -> Any:
    y = torch.relu(m.net(x))
    low = torch.relu(m.mid(functional.max_pool2d(y, 2)))
    up = functional.interpolate(low, scale_factor=2.0, mode="bilinear", align_corners=False)
    return m.out(torch.cat([y, up], 1))


def twice(m: Any, x: torch.Tensor) -> Any:
    return m.out(torch.tanh(m.net(x)) * torch.tanh(m.net(x * 0.5)))


def highway(m: Any, x: torch.Tensor) -> Any:
    gate = torch.sigmoid(m.gate(x))
    return m.out(gate * torch.relu(m.up(x)) + (1 - gate) * x)


def mixes(m: Any, x: torch.Tensor) -> Any:
    """As FNet mixes tokens, then a convolution as long as the sequence."""
    h = x + torch.fft.fft2(m.a(x)).real
    longer = torch.fft.rfft(h, n=10, dim=1) * torch.fft.rfft(m.sub.weight[:5], n=10, dim=0)
    return m.out(torch.fft.irfft(longer, n=10, dim=1)[:, :5])


def pooled_by_attention(m: Any, x: torch.Tensor) -> Any:
    h = torch.tanh(m.a(x))
    return m.out((torch.softmax(m.sub(h), 1) * h).sum(1))


def conv(*numbers: int, **options: Any) -> Callable[[], nn.Module]:
    return lambda: nn.Conv2d(*numbers, **options)  # type: ignore[arg-type]


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


IMAGE, SEQUENCE = (2, 6, 6), (5, 8)
UP = {"gate": linear(8, 12), "up": linear(8, 12), "out": linear(12, 8)}
CASES: dict[str, Case] = {
    "MLP": Case(by_net, sequential(linear(8, 16), nn.ReLU, linear(16, 8))),
    "MLP of GELU": Case(by_net, sequential(linear(8, 16), nn.GELU, linear(16, 8))),
    "classifier": Case(by_net, sequential(linear(8, 16), nn.Tanh, linear(16, 5)), classes=True),
    "autoencoder": Case(by_net, sequential(linear(8, 3), nn.Sigmoid, linear(3, 8))),
    "SwiGLU": Case(gated, lambda: {name: part() for name, part in UP.items()}),
    "highway": Case(highway, lambda: {"gate": nn.Linear(8, 8), "up": nn.Linear(8, 8), "out": nn.Linear(8, 8)}),
    "PReLU, Mish, Softplus": Case(by_net, sequential(linear(8, 8), nn.PReLU, linear(8, 8), nn.Mish, linear(8, 8), nn.Softplus)),
    "ELU, Hardswish, LeakyReLU": Case(
        by_net, sequential(linear(8, 8), nn.ELU, linear(8, 8), nn.Hardswish, linear(8, 8), nn.LeakyReLU)
    ),
    "shared twice": Case(twice, lambda: {"net": nn.Linear(8, 8), "out": nn.Linear(8, 8)}),
    "low-rank adapter": Case(adapted, adapter),
    "checkpoint": Case(checkpointed, wrapped(lambda: nn.Sequential(nn.Linear(8, 8), nn.Tanh()))),
    "mixture of experts": Case(
        routed,
        lambda: {
            "a": nn.Linear(8, 8),
            "router": nn.Linear(8, 4),
            "experts": nn.ModuleList([nn.Linear(8, 8) for _ in range(4)]),
            "out": nn.Linear(8, 8),
        },
    ),
    "weight_norm": Case(by_net, sequential(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)), nn.Tanh)),
    "LayerNorm": Case(by_net, sequential(linear(8, 8), lambda: nn.LayerNorm(8), linear(8, 8))),
    "RMSNorm": Case(by_net, sequential(linear(8, 8), lambda: nn.RMSNorm(8), linear(8, 8))),
    "BatchNorm1d": Case(by_net, sequential(linear(8, 8), lambda: nn.BatchNorm1d(8), nn.ReLU, linear(8, 8))),
    "GroupNorm": Case(by_net, sequential(conv(2, 4, 3), lambda: nn.GroupNorm(2, 4), conv(4, 2, 3)), IMAGE),
    "InstanceNorm2d": Case(by_net, sequential(conv(2, 4, 3), lambda: nn.InstanceNorm2d(4, affine=True), conv(4, 2, 3)), IMAGE),
    "Conv1d": Case(by_net, sequential(lambda: nn.Conv1d(5, 6, 3, padding=1), nn.ReLU, lambda: nn.Conv1d(6, 2, 3)), SEQUENCE),
    "Conv2d": Case(by_net, sequential(conv(2, 4, 3, stride=2, padding=1), nn.ReLU, conv(4, 2, 3, padding=1)), IMAGE),
    "Conv3d": Case(by_net, sequential(lambda: nn.Conv3d(1, 2, 3, padding=1), nn.Tanh), (1, 3, 4, 4)),
    "separable convolution": Case(
        by_net, sequential(conv(2, 4, 1), conv(4, 4, 3, padding=1, groups=4), nn.ReLU6, conv(4, 2, 1)), IMAGE
    ),
    "dilated convolution": Case(by_net, sequential(conv(2, 4, 3, dilation=2, padding=2), nn.ReLU, conv(4, 2, 1)), IMAGE),
    "ConvTranspose2d": Case(by_net, sequential(conv(2, 4, 3), nn.ReLU, lambda: nn.ConvTranspose2d(4, 2, 3, stride=2)), IMAGE),
    "residual block": Case(
        residual,
        lambda: {
            "net": nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1)),
            "skip": nn.Conv2d(2, 4, 1),
        },
        IMAGE,
    ),
    "squeeze and excitation": Case(squeezed, lambda: {"net": nn.Conv2d(2, 4, 3, padding=1), "out": nn.Linear(4, 4)}, IMAGE),
    "MaxPool2d": Case(by_net, sequential(conv(2, 4, 3, padding=1), lambda: nn.MaxPool2d(2), conv(4, 2, 1)), IMAGE),
    "MaxUnpool2d": Case(
        unpooled,
        lambda: {"net": nn.Conv2d(2, 4, 3, padding=1), "mid": nn.Conv2d(4, 4, 1), "out": nn.Conv2d(4, 2, 1)},
        IMAGE,
    ),
    "AvgPool2d": Case(by_net, sequential(conv(2, 4, 3, padding=1), lambda: nn.AvgPool2d(3, 1, 1), conv(4, 2, 1)), IMAGE),
    "AdaptiveAvgPool2d": Case(
        by_net, sequential(conv(2, 4, 3), lambda: nn.AdaptiveAvgPool2d(1), nn.Flatten, linear(4, 3)), IMAGE, classes=True
    ),
    "PixelShuffle": Case(by_net, sequential(conv(2, 8, 3, padding=1), lambda: nn.PixelShuffle(2), conv(2, 2, 1)), IMAGE),
    "reflected pads": Case(by_net, sequential(lambda: nn.ReflectionPad2d(1), conv(2, 2, 3), nn.Tanh), IMAGE),
    "U-Net": Case(
        shaped_like_u,
        lambda: {"net": nn.Conv2d(2, 4, 3, padding=1), "mid": nn.Conv2d(4, 4, 3, padding=1), "out": nn.Conv2d(8, 2, 1)},
        IMAGE,
    ),
    "fold": Case(folds, lambda: {"net": nn.Conv2d(2, 2, 1), "out": nn.Linear(18, 18)}, IMAGE),
    "spatial transformer": Case(samples_grid, lambda: {"theta": nn.Linear(72, 6), "net": nn.Conv2d(2, 2, 3)}, IMAGE),
    "Embedding": Case(by_net, sequential(lambda: nn.Embedding(11, 8), nn.Tanh, linear(8, 11)), (5,), tokens=11, classes=True),
    "tied weights": Case(
        tied, lambda: {"table": nn.Embedding(11, 8), "a": nn.Linear(8, 8), "norm": nn.LayerNorm(8)}, (5,), 11, True
    ),
    "einsum": Case(einsum, wrapped(linear(8, 8)), SEQUENCE),
    "einsum of diagonals": Case(einsum_dots, wrapped(nn.Identity), SEQUENCE),
    "Fourier transforms": Case(mixes, wrapped(linear(8, 8)), SEQUENCE),
    "attention pooling": Case(pooled_by_attention, wrapped(linear(8, 1)), SEQUENCE),
    "causal attention": Case(causal, lambda: {"a": nn.Linear(8, 24), "out": nn.Linear(8, 8)}, SEQUENCE),
    "MultiheadAttention": Case(attends, wrapped(lambda: nn.MultiheadAttention(8, 2, batch_first=True)), SEQUENCE),
    "TransformerEncoder": Case(lambda m, x: m.out(m.sub(m.a(x))), wrapped(encoder), SEQUENCE),
    "TransformerDecoderLayer": Case(
        decodes, wrapped(lambda: nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True)), SEQUENCE
    ),
    "LSTM": Case(first, wrapped(lambda: nn.LSTM(8, 8, batch_first=True)), SEQUENCE),
    "LSTM, its last state": Case(last_state, wrapped(lambda: nn.LSTM(8, 8, batch_first=True)), SEQUENCE),
    "two layers of both directions": Case(
        first, wrapped(lambda: nn.LSTM(8, 4, 2, batch_first=True, bidirectional=True)), SEQUENCE
    ),
    "LSTMCell": Case(by_cell, wrapped(lambda: nn.LSTMCell(8, 8)), (3, 8)),
    "GRU": Case(first, wrapped(lambda: nn.GRU(8, 8, batch_first=True)), SEQUENCE),
    "RNN": Case(first, wrapped(lambda: nn.RNN(8, 8, batch_first=True)), SEQUENCE),
}


WHOLE: dict[str, Whole] = {**vision.WHOLE, **sequences.WHOLE}
MODULES: dict[str, Whole] = {**{name: case.whole() for name, case in CASES.items()}, **WHOLE}


class Trial:
    """One module, its model, and what PyTorch makes of it in ``STEPS`` steps."""

    def __init__(self, case: Whole, folder: Path) -> None:
        self.case, self.folder = case, folder
        torch.manual_seed(3)
        self.module, self.trained = self.case.make(), self.case.make()
        self.trained.load_state_dict(self.module.state_dict())
        self.before = {name: value.clone() for name, value in self.module.state_dict().items()}
        self.given = [tuple(draw() for draw in self.case.inputs) for _ in range(STEPS * MICROBATCHES)]
        self.file = dnnc.from_torch(self.module, self.given[0], folder / "model.onnx")
        target = target_of(case)
        self.wanted = [target() if target is not None else None for _ in self.given]
        self.by_pytorch()

    def by_pytorch(self) -> None:
        learned = [value for value in self.trained.parameters() if value.requires_grad]
        optimizer = torch.optim.SGD(learned, RATE)
        for step in range(STEPS):
            optimizer.zero_grad()
            for number in range(step * MICROBATCHES, (step + 1) * MICROBATCHES):
                made, wanted = self.trained(*self.given[number]), self.wanted[number]
                loss = loss_of(self.case, made, wanted)
                (loss / MICROBATCHES).backward()
            optimizer.step()

    def by_dnnc(self, plan: str) -> nn.Module:
        """The module after the same steps by a plan, each device of it a process, whose programs are proven."""
        graph = onnx.load(self.file).graph
        (made,) = (value.name for value in graph.output)
        names = [*(value.name for value in graph.input), {"mse": "target", "cross-entropy": "labels"}.get(self.case.loss, "")]
        rows = [dict(zip(names, (*one, wanted), strict=True)) for one, wanted in zip(self.given, self.wanted, strict=True)]
        for row in rows:
            row.pop("", None)
        asked: dict[str, Any] = {"loss": f"{self.case.loss}:{made}", "optimizer": "sgd", "learning_rate": RATE, **PLANS[plan]}
        folder = self.folder / plan.replace(" ", "-")
        planned = dnnc.plan(self.file, objective="training", microbatches=MICROBATCHES, **asked)
        build = planned.write(folder / "build")
        report = prove(folder / "build")
        assert report.proven, report.failures
        build.train(rows, steps=STEPS, checkpoint=folder / "out")
        module = self.case.make()
        module.load_state_dict(self.before)
        dnnc.into_torch(module, folder / f"out/step{STEPS}")
        return module

    def difference(self, plan: str) -> float:
        """The largest difference of an element of a parameter, relative to the largest element of that parameter. Running
        averages are compared too, but on replicas, each of which sees microbatches of its own."""
        found, wanted = self.by_dnnc(plan).state_dict(), self.trained.state_dict()
        averages = {
            name for name in wanted if plan == "replicas" and name.rpartition(".")[2] in ("running_mean", "running_var")
        }
        worst = 0.0
        for name in wanted.keys() - averages:
            value = wanted[name].detach()
            off = float((found[name] - value).abs().max())
            worst = max(worst, off / max(1e-3, float(value.abs().max())))
        return worst


def table(names: list[str]) -> None:
    print(f"{'largest difference after 5 steps':32}" + "".join(f"{plan:>12}" for plan in PLANS))
    for name in names:
        row = f"{name:32}"
        with tempfile.TemporaryDirectory() as folder:
            trial = Trial(MODULES[name], Path(folder))
            for plan in PLANS:
                try:
                    row += f"{trial.difference(plan):12.1e}"
                except dnnc.DnncError as error:
                    row += f"{f'exit {int(error.exit_code)}':>12}"
        print(row, flush=True)


if __name__ == "__main__":
    table(sys.argv[1:] or list(MODULES))
