"""``dnnc.from_torch``: a module is exported so that it trains as in PyTorch, or refused with what it is and where."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

torch = pytest.importorskip("torch", reason="the extra 'train' is not installed")
pytest.importorskip("onnxscript", reason="the extra 'train' is not installed")
safetensors = pytest.importorskip("safetensors.torch", reason="the extra 'train' is not installed")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import dnnc  # noqa: E402
from dnnc.cli import main  # noqa: E402
from ir.core.diagnostics import InvalidInput, UsageError  # noqa: E402
from ir.ops.optimizers import STATE  # noqa: E402

Body = Callable[[nn.Module, torch.Tensor], torch.Tensor]
LABELS = torch.tensor([0, 2, 1, 3])
IGNORED = torch.tensor([0, -100, 1, 3])
GENERATOR = np.random.default_rng(0)
ROWS = torch.tensor([0, 1, 1, 2])


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class Head(nn.Module):
    def __init__(self, body: Body, sub: nn.Module | None) -> None:
        super().__init__()
        self.fc, self.body, self.sub = nn.Linear(6, 6), body, sub

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(self, self.fc(x))


class Net(nn.Module):
    """A linear layer, what is tried, a linear layer."""

    def __init__(self, body: Body, sub: nn.Module | None = None) -> None:
        super().__init__()
        self.a, self.head, self.out = nn.Linear(6, 6), Head(body, sub), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.head(torch.tanh(self.a(x))))


class Nets(nn.Module):
    """Networks side by side."""

    def __init__(self, nets: Iterable[nn.Module]) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nets)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([net(x) for net in self.nets], 1)


@dataclass(frozen=True)
class Case:
    """``words``: of the refusal; empty where the module is exported."""

    body: Body
    sub: Callable[[], nn.Module] = nn.Identity
    words: str = ""
    dropout: bool = False


@torch.no_grad()
def gate(x: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(x)


def by_sub(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return m.sub(x)


def guarded(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        scale = m.fc(x)
    return x * scale


def back_on(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        with torch.enable_grad():
            y = x * x
        return y * x


def tripled(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    if y.requires_grad:
        y.register_hook(lambda gradient: gradient * 3)
    return y


def branches(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return x * 2
    return x


def packed(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return nn.utils.rnn.pack_padded_sequence(x[None], torch.tensor([x.shape[0]]), batch_first=True).data


def half(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return m.sub(x).float()


def counted(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    m.sub.steps.add_(1)
    return x * m.sub.steps


def in_bags(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The bags hold 2, 0, 1 and 3 rows; row 1 may be padding."""
    last = [6] if m.sub.include_last_offset else []
    return x + m.sub(torch.tensor([0, 3, 1, 2, 1, 4]), torch.tensor([0, 2, 2, 3, *last]))


def stochastic_depth(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return x if m.training and random.random() < 1e-9 else x * 2


def of_numpy(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    keep = GENERATOR.random() > 1e-9
    return x * keep


def seeded(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    random.seed(3)
    return x * random.random() + x * np.random.default_rng(3).random()


def counter() -> nn.Module:
    module = nn.Identity()
    module.register_buffer("steps", torch.zeros(6))
    return module


def hooked() -> nn.Module:
    layer = nn.Linear(6, 6)
    layer.register_full_backward_hook(lambda _, given, made: (given[0] * 2,))
    return layer


def pruned() -> nn.Module:
    from torch.nn.utils import prune

    layer = nn.Linear(6, 6)
    prune.l1_unstructured(layer, "weight", 0.5)
    return layer


def smoothed(target: torch.Tensor, **options: Any) -> Body:
    return lambda m, x: x * functional.cross_entropy(x, target, label_smoothing=0.1, **options)


def attended(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return m.sub(x[None], x[None], x[None])[0][0]


CASES = {
    "detach": Case(lambda m, x: x * torch.tanh(x).detach()),
    "Tensor.data": Case(lambda m, x: x * x.data),
    "no_grad": Case(guarded),
    "no_grad as a decorator": Case(lambda m, x: x * gate(x)),
    "enable_grad inside of no_grad": Case(back_on),
    "a straight-through estimator": Case(lambda m, x: x + (x.round() - x).detach()),
    "an autograd.Function": Case(
        lambda m, x: Rounded.apply(x),
        words=r"module 'head' \(Head\), autograd.Function 'Rounded', test_from_module.py:\d+: .*gradient of 'fc.weight'",
    ),
    "label smoothing": Case(smoothed(LABELS)),
    "label smoothing of weighted classes": Case(smoothed(IGNORED, weight=torch.linspace(0.5, 1.5, 6))),
    "label smoothing, summed": Case(smoothed(IGNORED, reduction="sum")),
    "label smoothing of probabilities": Case(smoothed(torch.softmax(torch.arange(24.0).reshape(4, 6) / 9, 1))),
    "padding_idx": Case(lambda m, x: x + m.sub(ROWS), lambda: nn.Embedding(5, 6, padding_idx=1)),
    "EmbeddingBag with padding": Case(
        lambda m, x: x + m.sub(torch.tensor([[0, 1], [1, 1], [1, 2], [3, 3]])), lambda: nn.EmbeddingBag(5, 6, padding_idx=1)
    ),
    "EmbeddingBag with offsets": Case(in_bags, lambda: nn.EmbeddingBag(5, 6, mode="sum", padding_idx=1)),
    "the mean of bags": Case(in_bags, lambda: nn.EmbeddingBag(5, 6, padding_idx=1)),
    "the maximum of bags": Case(in_bags, lambda: nn.EmbeddingBag(5, 6, mode="max", padding_idx=1)),
    "the last offset is included": Case(in_bags, lambda: nn.EmbeddingBag(5, 6, mode="max", include_last_offset=True)),
    "the maximum of rows of indices": Case(
        lambda m, x: x + m.sub(ROWS.reshape(4, 1)), lambda: nn.EmbeddingBag(5, 6, mode="max", padding_idx=1)
    ),
    "max_norm of bags": Case(
        in_bags, lambda: nn.EmbeddingBag(5, 6, max_norm=0.5), r"head.sub' \(EmbeddingBag\), .*:\d+: .*max_norm changes"
    ),
    "rows of indices with offsets": Case(
        lambda m, x: x + m.sub(ROWS.reshape(4, 1), ROWS),
        lambda: nn.EmbeddingBag(5, 6),
        r"head.sub' \(EmbeddingBag\), .*:\d+: .*E1502.*if input is 2D, then offsets has to be None",
    ),
    "indices without offsets": Case(
        lambda m, x: x + m.sub(ROWS), lambda: nn.EmbeddingBag(5, 6), r"py:\d+: .*offsets has to be a 1D Tensor but got None"
    ),
    "the maximum of weighted rows": Case(
        lambda m, x: x + m.sub(ROWS.reshape(4, 1), per_sample_weights=torch.ones(4, 1)),
        lambda: nn.EmbeddingBag(5, 6, mode="max"),
        r"py:\d+: .*per_sample_weights is only supported for mode='sum'",
    ),
    "an offset that does not begin at 0": Case(
        lambda m, x: x + m.sub(ROWS, ROWS + 1),
        lambda: nn.EmbeddingBag(5, 6),
        r"head.sub' \(EmbeddingBag\), .*:\d+: .*E1515.*Net fails in PyTorch: offsets\[0\] has to be 0.*\n.*arguments",
    ),
    "an error in inference alone": Case(
        lambda m, x: x if m.training else x + m.sub(ROWS + 9),
        lambda: nn.Embedding(5, 6),
        r"module 'head' \(Head\): .*forward fails in inference: index out of range",
    ),
    "EmbeddingBag": Case(lambda m, x: x + m.sub(ROWS.reshape(4, 1)), lambda: nn.EmbeddingBag(5, 6)),
    "scale_grad_by_freq": Case(
        lambda m, x: x + m.sub(ROWS),
        lambda: nn.Embedding(5, 6, scale_grad_by_freq=True),
        r"module 'head.sub' \(Embedding\): .*the gradient of 'weight'.*\n.*leave scale_grad_by_freq out",
    ),
    "max_norm": Case(
        lambda m, x: x + m.sub(ROWS), lambda: nn.Embedding(5, 6, max_norm=0.5), r"changes 'head.sub.weight'.*\n.*max_norm"
    ),
    "batch normalisation": Case(by_sub, lambda: nn.BatchNorm1d(6, momentum=0.3)),
    "averages that do not move": Case(by_sub, lambda: nn.BatchNorm1d(6, momentum=0.0)),
    "a batch normalisation called twice": Case(lambda m, x: m.sub(torch.relu(m.sub(x))), lambda: nn.BatchNorm1d(6)),
    "batch normalisation that infers": Case(by_sub, lambda: nn.BatchNorm1d(6).eval()),
    "batch normalisation without averages": Case(by_sub, lambda: nn.BatchNorm1d(6, track_running_stats=False)),
    "cumulative averages": Case(
        by_sub, lambda: nn.BatchNorm1d(6, momentum=None), r"head.sub' \(BatchNorm1d\), .*:\d+: .*momentum=None.*\n.*\.eval\(\)"
    ),
    "InstanceNorm with averages": Case(
        lambda m, x: m.sub(x[None])[0], lambda: nn.InstanceNorm1d(4, track_running_stats=True), r"'head.sub' \(InstanceNorm1d\)"
    ),
    "weight_norm": Case(by_sub, lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 6))),
    "spectral_norm": Case(
        by_sub,
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)),
        r"module 'head.sub.parametrizations.weight.0'.*forward changes .*_u",
    ),
    "spectral_norm that infers": Case(by_sub, lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)).eval()),
    "prune": Case(by_sub, pruned),
    "a module called twice": Case(lambda m, x: m.sub(torch.relu(m.sub(x))), lambda: nn.Linear(6, 6)),
    "checkpoint": Case(
        lambda m, x: torch.utils.checkpoint.checkpoint(m.sub, x, use_reentrant=True), lambda: nn.Linear(6, 6)
    ),
    "a hook of a module": Case(by_sub, hooked, r"module 'head.sub' \(Linear\): .*the gradient of.*\n.*remove its"),
    "a hook of a tensor": Case(tripled, words=r"module 'head' \(Head\): .*the gradient of 'fc"),
    "autocast": Case(half, lambda: nn.Linear(6, 6)),
    "another graph in training": Case(
        lambda m, x: x * 2 if m.training else x, words=r"module 'head' \(Head\): .*in inference, .*\n.*self.training"
    ),
    "a buffer that changes": Case(counted, counter, r"forward changes 'head.sub.steps'"),
    "random numbers": Case(
        lambda m, x: x * torch.randint_like(x, 3),
        words=r"'head' \(Head\), .*:\d+: .*randint_like draws random.*\n.*an argument of forward",
    ),
    "noise": Case(lambda m, x: x * torch.randn_like(x) + torch.randn(6) * m.fc(x) + torch.rand(4, 1) * torch.rand_like(x)),
    "random numbers of Python": Case(
        stochastic_depth, words=r"module 'head' \(Head\), test_from_module.py:\d+: .*random numbers of Python.*\n.*\.eval\(\)"
    ),
    "random numbers of numpy": Case(of_numpy, words=r"module 'head' \(Head\), .*py:\d+: .*random numbers of numpy"),
    "numbers of generators that forward seeds": Case(seeded),
    "cdist": Case(lambda m, x: torch.cdist(x, x[:2]) @ x[:2]),
    "cumprod": Case(lambda m, x: x.cumprod(1) + torch.cumprod(x, 0)),
    "a packed sequence": Case(packed, words=r"test_from_module.py:\d+: error\[E1518\]: a packed sequence cannot be exported"),
    "an LSTM with projections": Case(
        lambda m, x: m.sub(x)[0], lambda: nn.LSTM(6, 6, proj_size=3), r"\(LSTM\), .*an LSTM with proj_size cannot be exported"
    ),
    "median": Case(lambda m, x: x * x.median(), words=r"test_from_module.py:\d+: .*cannot export Net.*in: median"),
    "a branch on values": Case(branches, words=r"module.py:\d+: .*data-dependent.*in: if x.sum\(\) > 0:\n.*torch.where"),
    "derivatives at steps": Case(lambda m, x: x.clamp(-0.5, 0.5) + x.sign() + x.abs() + x.norm(dim=1, keepdim=True)),
    "sort and topk": Case(lambda m, x: x.sort(dim=1)[0] + x.topk(2)[0].sum(1, keepdim=True)),
    "Dropout2d, off": Case(by_sub, nn.Dropout2d),
    "Dropout2d": Case(by_sub, nn.Dropout2d, r"module 'head.sub' \(Dropout2d\), .*dropout2d drops other things", dropout=True),
    "AlphaDropout": Case(by_sub, nn.AlphaDropout, r"module 'head.sub' \(AlphaDropout\), .*alpha_dropout drops", dropout=True),
    "attention's dropout": Case(attended, lambda: nn.MultiheadAttention(6, 2, dropout=0.3, batch_first=True), dropout=True),
    "an encoder layer, off": Case(
        lambda m, x: m.sub(x[None])[0], lambda: nn.TransformerEncoderLayer(6, 2, 12, batch_first=True)
    ),
    "an encoder layer": Case(
        lambda m, x: m.sub(x[None])[0],
        lambda: nn.TransformerEncoderLayer(6, 2, 12, batch_first=True),
        r"module 'head.sub.self_attn' .*scaled_dot_product_attention draws random",
        dropout=True,
    ),
    "an LSTM's dropout": Case(
        lambda m, x: m.sub(x[None])[0][0], lambda: nn.LSTM(6, 6, 2, dropout=0.5), r"'head.sub' \(LSTM\), .*draws random", True
    ),
}  # fmt: skip


@contextmanager
def unchanged(module: nn.Module) -> Iterator[None]:
    """What is exported holds, and random numbers are, what they were before."""
    before = {key: value.clone() for key, value in module.state_dict().items()}
    generators = random.getstate(), GENERATOR.bit_generator.state, np.random.get_state()[2]
    yield
    for key, value in module.state_dict().items():
        torch.testing.assert_close(value, before[key], rtol=0, atol=0)
    assert all(value.grad is None for value in module.parameters())
    assert generators == (random.getstate(), GENERATOR.bit_generator.state, np.random.get_state()[2])


@pytest.mark.slow  # torch.export takes seconds
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.words])
def test_a_module_is_refused(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    case = CASES[name]
    module = Net(case.body, case.sub())
    with unchanged(module), pytest.raises(InvalidInput, match=case.words):
        dnnc.from_torch(module, (torch.randn(4, 6),), tmp_path / "net.onnx", dropout=case.dropout)
    assert not (tmp_path / "net.onnx").exists()


@pytest.mark.slow
@pytest.mark.parametrize("dropout", [False, True])
def test_modules_are_exported_as_they_train(dropout: bool, tmp_path: Path) -> None:
    """All in one: the gradient of each of its parameters is compared with PyTorch's."""
    torch.manual_seed(0)
    nets = Nets(Net(case.body, case.sub()) for case in CASES.values() if not case.words and case.dropout == dropout)
    with unchanged(nets):
        dnnc.from_torch(nets, (torch.randn(4, 6),), tmp_path / "net.onnx", dropout=dropout)


@pytest.mark.slow
def test_functional_dropouts_stay(tmp_path: Path) -> None:
    """In place of those that are modules too, and inside attention; those that infer do not."""
    sub = nn.MultiheadAttention(6, 2, dropout=0.3, batch_first=True)
    module = Net(lambda m, x: functional.dropout(attended(m, x), 0.2, m.training) + functional.dropout(x, 0.1, False), sub)
    file = dnnc.from_torch(module, (torch.randn(4, 6),), tmp_path / "net.onnx", dropout=True)
    assert [node.op_type for node in onnx.load(file).graph.node].count("Dropout") == 2


class Named(nn.Module):
    """Parameters called as exporters call numbers and tables of their own, beside such numbers and tables."""

    def __init__(self, names: dict[str, tuple[int, ...]]) -> None:
        super().__init__()
        self.fc, self.names = nn.Linear(6, 6), tuple(names)
        for name, shape in names.items():
            self.register_parameter(name, nn.Parameter(torch.rand(shape) + 0.5))
        self.register_buffer("running_mean", torch.rand(6))  # of no batch normalisation: a table

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.fc(x)) * 2.5 + self.running_mean
        for name in self.names:
            y = y * getattr(self, name) + (x > 0).float() * 0.5
        return y


@pytest.mark.slow
def test_parameters_train_however_they_are_called(tmp_path: Path) -> None:
    names = {"constant": (1,), "val_0": (), "val_3": (1,), "inv_freq": (6,), "scalar_tensor_default": (), "_to_copy_1": (1,)}
    file = dnnc.from_torch(Named(names), (torch.randn(4, 6),), tmp_path / "net.onnx")
    model = onnx.load(file)
    assert {one.name for one in model.graph.initializer} == {"fc.weight", "fc.bias", *names}
    assert model.producer_name == "dnnc.from_torch"


class Told(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor, shift: torch.Tensor | None = None) -> dict[str, Any]:
        y = self.fc(x) * scale
        return {"y": y, "pair": (y.argmax(1), y if shift is None else y + shift)}


class Alone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 3)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.fc(batch["x"])


class Last(Alone):
    def forward(self, y: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:  # type: ignore[override]
        return self.fc(batch["x"] + y)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Alone, Last])
def test_a_dict_is_an_argument_like_others(kind: Callable[[], nn.Module], tmp_path: Path) -> None:
    first = (torch.ones(4, 6),) if kind is Last else ()
    path = dnnc.from_torch(kind(), (*first, {"x": torch.ones(4, 6)}), tmp_path / "m.onnx")
    assert len(onnx.load(path).graph.input) == 1 + len(first)


@pytest.mark.slow
def test_arguments_by_name_and_nested_results(tmp_path: Path) -> None:
    given = {"shift": torch.ones(2), "scale": torch.tensor(2.0), "x": torch.randn(4, 3)}
    graph = onnx.load(dnnc.from_torch(Told(), given, tmp_path / "told.onnx")).graph
    assert [value.name for value in graph.input] == ["x", "scale", "shift"]
    assert len(graph.output) == 3


class OfBatch(nn.Module):
    """Layers whose exports treat the number of samples each in their own way, of any number."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.out = nn.Linear(6, 6), nn.Linear(6, 3)
        self.recurrent, self.attention = nn.LSTM(6, 6, batch_first=True), nn.MultiheadAttention(6, 2, batch_first=True)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 12, batch_first=True), 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, _ = self.recurrent(self.fc(x))
        return self.out(self.encoder(self.attention(h, h, h)[0]))


@pytest.mark.slow
def test_the_size_of_the_batch_is_bound_when_compiling(tmp_path: Path) -> None:
    shapes = ({0: torch.export.Dim("batch")},)
    file = dnnc.from_torch(OfBatch(), (torch.randn(4, 5, 6),), tmp_path / "net.onnx", dynamic_shapes=shapes)
    output = onnx.load(file).graph.output[0].name
    options = ["-t", "preset:cpu-1", "--objective", "training", "--loss", f"mse:{output}", "--microbatches", "2", "-q"]
    build = tmp_path / "build"
    assert main(["compile", str(file), *options, "--prove", "--dim", "batch=6", "-o", str(build)]) == 0
    assert main(["train", str(build), "--check", "-q"]) == 0


class Small(nn.Module):
    """What trains, what is frozen, what is detached, and what infers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 16, padding_idx=2)
        self.wide = nn.Linear(
            16, 32, bias=False
        )  # before a batch normalisation its gradient is rounding, by which Adam divides
        self.wide.weight.requires_grad_(False)
        self.norm, self.settled = nn.BatchNorm1d(32), nn.BatchNorm1d(32).eval()
        self.side, self.out = nn.Linear(32, 32), nn.Linear(32, 3)
        self.register_buffer("places", torch.randn(32, 32))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        hidden = self.settled(self.norm(self.wide(self.table(rows))) @ self.places * 0.2)
        with torch.no_grad():
            gate = torch.sigmoid(self.side(hidden))
        return self.out(torch.tanh(hidden) * gate)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_three_steps_are_pytorchs(optimizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By ``dnnc compile`` and ``dnnc train``: what PyTorch leaves alone keeps what it holds."""
    torch.manual_seed(3)
    module, twin = Small(), Small()
    twin.load_state_dict(module.state_dict())
    module.settled.running_var.fill_(2.0)
    twin.settled.running_var.fill_(2.0)
    rows, labels = torch.randint(0, 7, (6, 12)), torch.randint(0, 3, (6, 12))
    rows[:, :3] = 2
    file = dnnc.from_torch(module, (rows[0],), tmp_path / "small.onnx")
    output = onnx.load(file).graph.output[0].name
    (tmp_path / f"batches_{optimizer}.py").write_text(
        "import numpy as np\n"
        f"rows, labels = np.array({rows.tolist()}), np.array({labels.tolist()})\n"
        "def all(seed):\n    while True:\n        for row, label in zip(rows, labels):\n"
        "            yield {'rows': row, 'labels': label}\n"
    )
    rate = 0.05
    options = ["--objective", "training", "--loss", f"cross-entropy:{output}", "--optimizer", optimizer]
    options += ["--learning-rate", str(rate), "--microbatches", "2", "--stages", "1", "--replicas", "1", "--mesh", "none"]
    assert main(["compile", str(file), "-t", "preset:cpu-1", *options, "-q", "-o", str(tmp_path / "build")]) == 0
    out = tmp_path / "trained"
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    data = ["--data", f"batches_{optimizer}:all"]
    assert main(["train", str(tmp_path / "build"), "--steps", "3", *data, "--checkpoint", str(out)]) == 0
    dnnc.into_torch(module, out / "step3")
    learned = [value for value in twin.parameters() if value.requires_grad]
    made: Any = torch.optim.SGD(learned, rate) if not STATE[optimizer] else torch.optim.AdamW(learned, rate)
    for step in range(3):
        made.zero_grad()
        for number in (2 * step, 2 * step + 1):
            (functional.cross_entropy(twin(rows[number]), labels[number]) / 2).backward()
        made.step()
    for name, value in module.state_dict().items():
        torch.testing.assert_close(value, twin.state_dict()[name], rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.slow
def test_example_arguments_are_a_tensor_a_sequence_or_a_mapping(tmp_path: Path) -> None:
    module = nn.Linear(4, 4)
    others: list[Any] = [3, None, np.zeros((2, 4), np.float32)]
    for other in others:
        with pytest.raises(UsageError, match=rf"Linear: error.E1519.: found example arguments of type {type(other).__name__};"):
            dnnc.from_torch(module, other, tmp_path / "m.onnx")
    assert dnnc.from_torch(module, torch.zeros(2, 4), tmp_path / "m.onnx").exists()


@pytest.mark.parametrize(
    ("given", "reason"),
    [((), "missing a required argument: 'input'"), ((1, 2), "too many positional arguments"), ({"x": 1}, "missing a required")],
)
def test_example_arguments_are_those_of_forward(given: Any, reason: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"Linear: error.E1520.: its forward has other arguments: {reason}"):
        dnnc.from_torch(nn.Linear(2, 2), given, tmp_path / "m.onnx")
