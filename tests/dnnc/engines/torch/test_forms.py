"""Functions of torch that ``from_torch`` writes in other operators: what is drawn at random, adaptive maxima; and forms of a
module that it refuses by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

torch: Any = pytest.importorskip("torch", reason="the extra 'train' is not installed")
pytest.importorskip("onnxscript", reason="the extra 'train' is not installed")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import dnnc  # noqa: E402
from dnnc.engines.torch.module.agreement import _arguments  # noqa: E402
from dnnc.engines.torch.module.noise import DRAWS  # noqa: E402
from dnnc.engines.torch.module.simpler import SIMPLER  # noqa: E402

MANY = 20000


def drawn(name: str, *args: Any, **named: Any) -> Any:
    torch.manual_seed(0)
    return DRAWS[name](lambda function, like: function(like), *args, **named)


@pytest.mark.parametrize(
    ("made", "mean", "deviation"),
    [
        (lambda: drawn("normal_", torch.empty(MANY), 3.0, 2.0), 3, 2),
        (lambda: drawn("normal", 3.0, torch.full((MANY,), 2.0)), 3, 2),
        (lambda: drawn("normal", 3.0, 2.0, size=(MANY,)), 3, 2),
        (lambda: drawn("uniform_", torch.empty(MANY), -1.0, 5.0), 2, 6 / math.sqrt(12)),
        (lambda: drawn("uniform_", torch.empty(MANY), to=3.0), 1.5, 3 / math.sqrt(12)),
        (lambda: drawn("exponential_", torch.empty(MANY), 0.5), 2, 2),
        (lambda: drawn("normal", 1.0, 2.0, (MANY,), generator=torch.Generator()), 1.0, 2.0),
        (lambda: drawn("bernoulli", torch.full((MANY,), 0.3)), 0.3, math.sqrt(0.21)),
        (lambda: drawn("bernoulli_", torch.empty(MANY), 0.3), 0.3, math.sqrt(0.21)),
        (
            lambda: drawn("gumbel_softmax", torch.tensor([0.3, 0.7]).log().expand(MANY, 2), hard=True)[:, 1],
            0.7,
            math.sqrt(0.21),
        ),
    ],
)
def test_draws_have_the_distribution_of_torch(made: Callable[[], Any], mean: float, deviation: float) -> None:
    """Of 20,000 numbers the mean is off by 5 standard errors in one of a million seeds; this seed is fixed."""
    numbers = made()
    assert abs(float(numbers.mean()) - mean) < 5 * deviation / math.sqrt(MANY)
    assert float(numbers.std()) == pytest.approx(deviation, rel=0.05)


@pytest.mark.parametrize("size", [(1, 1), (3, 2), (4, None), (7, 5)])
def test_adaptive_maxima_are_those_of_torch(size: tuple[int, int | None]) -> None:
    """Values, and gradients, of which the first of equal elements gets all."""
    given = torch.randint(0, 3, (2, 3, 7, 6)).float()
    found, wanted = given.clone().requires_grad_(), given.clone().requires_grad_()
    ours, theirs = SIMPLER["adaptive_max_pool2d"](found, size), functional.adaptive_max_pool2d(wanted, size)
    assert torch.equal(ours, theirs)
    weights = torch.randn(ours.shape)
    (ours * weights).sum().backward()
    (theirs * weights).sum().backward()
    torch.testing.assert_close(found.grad, wanted.grad)


@pytest.mark.parametrize("name", ["lgamma", "digamma"])
def test_gamma_functions_are_those_of_torch(name: str) -> None:
    """Values, and gradients, also of integers, of numbers near 0, and below it, between its poles."""
    given = torch.cat([torch.arange(1.0, 9.0), torch.tensor([1e-3, 0.3, 40.5, 1e4]), torch.arange(-3.7, 0.0)])
    found, wanted = given.clone().requires_grad_(), given.clone().requires_grad_()
    ours, theirs = SIMPLER[name](found), getattr(torch, name)(wanted)
    torch.testing.assert_close(ours, theirs, rtol=3e-6, atol=3e-6)
    ours.sum().backward()
    theirs.sum().backward()
    torch.testing.assert_close(found.grad, wanted.grad, rtol=2e-5, atol=3e-6)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_numbers_of_16_bits_are_drawn_and_computed_as_torch_does(kind: Any) -> None:
    """A 0 among uniform numbers, which are one of 2048 in f16, is no infinity; series are those of float32."""
    assert bool(drawn("exponential_", torch.empty(MANY, dtype=kind)).isfinite().all())
    given = torch.linspace(0.1, 50, 200).to(kind)
    for name in ("lgamma", "digamma"):
        found = SIMPLER[name](given)
        assert found.dtype is kind
        torch.testing.assert_close(found, getattr(torch, name)(given), rtol=torch.finfo(kind).eps, atol=1e-3)


def test_gamma_functions_of_integers_and_of_a_number() -> None:
    for given in (torch.tensor([1, 2, 5]), torch.tensor(2.5)):
        torch.testing.assert_close(SIMPLER["lgamma"](given), torch.lgamma(given), rtol=3e-6, atol=3e-6)


def test_a_permutation_is_tried_with_another() -> None:
    rows = torch.stack([torch.randperm(6) for _ in range(4)])
    _, (other,) = _arguments((rows,))
    assert not torch.equal(other, rows)
    assert torch.equal(other.sort(1).values, rows.sort(1).values)


class Net(nn.Module):
    def __init__(self, body: Callable[[Any, Any], Any], kind: Any) -> None:
        super().__init__()
        self.fc, self.body, self.weight = nn.Linear(6, 6), body, nn.Parameter(torch.randn(6, dtype=kind))

    def forward(self, x: Any) -> Any:
        return self.body(self, self.fc(x))


def noisy(m: Any, x: Any) -> Any:
    means, deviations = x.chunk(2, -1)
    latent = torch.distributions.Normal(means, functional.softplus(deviations)).rsample()
    chosen = functional.gumbel_softmax(x, hard=True) * torch.empty_like(x).exponential_()
    return torch.cat([latent, chosen * torch.bernoulli(torch.sigmoid(x)).detach() * m.weight], -1)


def counts(m: Any, x: Any) -> Any:
    """The negative binomial likelihood of counts, and the divergence of two Dirichlet distributions."""
    rates, others = functional.softplus(x) + 0.1, functional.softplus(m.weight).expand_as(x) + 0.1
    likely = torch.distributions.NegativeBinomial(rates, logits=m.weight).log_prob(torch.arange(6.0).expand_as(x))
    apart = torch.distributions.kl_divergence(torch.distributions.Dirichlet(rates), torch.distributions.Dirichlet(others))
    return likely.sum(-1) + apart


def largest(m: Any, x: Any) -> Any:
    return functional.adaptive_max_pool1d(x, 4) @ m.weight[:4] + nn.AdaptiveMaxPool1d(2)(x * m.weight).sum(1)


@pytest.mark.slow
@pytest.mark.parametrize("body", [noisy, counts, largest])
def test_a_module_is_exported_as_it_trains(body: Callable[[Any, Any], Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    assert dnnc.from_torch(Net(body, torch.float32), (torch.randn(4, 6),), tmp_path / "net.onnx").is_file()


def named(m: Any, x: Any) -> dict[str, Any]:
    scores = x * m.weight
    return {"logits": scores, "loss": scores.square().mean(), "x": torch.tanh(scores)}


@pytest.mark.slow
def test_results_in_a_dict_have_its_keys_as_names(tmp_path: Path) -> None:
    """But where an input is called so."""
    graph = onnx.load(dnnc.from_torch(Net(named, torch.float32), (torch.randn(4, 6),), tmp_path / "net.onnx")).graph
    assert [one.name for one in graph.output][:2] == ["logits", "loss"]
    assert "x" in [one.name for one in graph.input]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.middle, self.head = nn.Embedding(11, 6), nn.Linear(6, 6), nn.Linear(6, 11, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: Any) -> Any:
        return self.head(torch.tanh(self.middle(self.table(x))))


@pytest.mark.slow
def test_a_tied_weight_has_the_name_that_its_module_gives_it_first(tmp_path: Path) -> None:
    """So names of groups and of frozen weights are those of ``named_parameters``."""
    file = dnnc.from_torch(Tied(), (torch.randint(0, 11, (4, 5)),), tmp_path / "net.onnx")
    assert {one.name for one in onnx.load(file).graph.initializer} == {name for name, _ in Tied().named_parameters()}


def slope(m: Any, x: Any) -> Any:
    return torch.autograd.grad((x * m.weight).sum(), x, create_graph=True)[0] * x


def indices(m: Any, x: Any) -> Any:
    return functional.adaptive_max_pool1d(x, 4, return_indices=True)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        (slope, torch.float32, r"test_forms.py:\d+: error\[E1518\]: torch.autograd.grad in forward cannot be exported"),
        (indices, torch.float32, r"error\[E1518\]: adaptive max pooling with indices cannot be exported"),
        (lambda m, x: (x + m.weight).abs(), torch.complex64, r"error\[E1518\]: the complex parameter 'weight' cannot be"),
    ],
)
def test_a_form_that_is_refused(body: Callable[[Any, Any], Any], kind: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(dnnc.InvalidInput, match=words):
        dnnc.from_torch(Net(body, kind), (torch.randn(4, 6),), tmp_path / "net.onnx")
    assert not (tmp_path / "net.onnx").exists()
