"""``from_torch`` compares a module with its model: what may differ, what is refused, and in which words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import dnnc  # noqa: E402
from ir.core.diagnostics import InvalidInput  # noqa: E402

Body = Callable[[nn.Module, torch.Tensor], torch.Tensor]


class Whole(nn.Module):
    """A linear layer, and a forward pass of any results."""

    def __init__(self, body: Callable[..., Any]) -> None:
        super().__init__()
        self.fc, self.body = nn.Linear(6, 6), body

    def forward(self, x: torch.Tensor) -> Any:
        return self.body(self, x)


def shifted(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    x -= 0.5
    return m.fc(x)


@pytest.mark.slow
def test_an_argument_changed_in_place_is_no_state(tmp_path: Path) -> None:
    given = torch.ones(4, 6)
    file = dnnc.from_torch(Whole(shifted), (given,), tmp_path / "net.onnx")
    assert len(onnx.load(file).graph.output) == 1
    assert torch.equal(given, torch.ones(4, 6))


@pytest.mark.slow
def test_fewer_results_in_inference_are_refused(tmp_path: Path) -> None:
    module = Whole(lambda m, x: (m.fc(x), x.sum()) if m.training else m.fc(x))
    with pytest.raises(InvalidInput, match=r"Whole: .*fewer results in inference than in training\n.*self.training"):
        dnnc.from_torch(module, (torch.randn(4, 6),), tmp_path / "net.onnx")


@pytest.mark.slow
def test_integers_may_differ_where_rounding_decides(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Whole(lambda m, x: (m.fc(x), rounded(m, x)))
    assert dnnc.from_torch(module, (torch.randn(64, 6),), tmp_path / "net.onnx").is_file()


def rounded(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Integers, some of which rounding decides, and nearly all of which change when each weight changes by 50 units."""
    return (torch.tanh(m.fc(x)).softmax(1) * 3e6).round().long()


def half_other(m: nn.Module, made: torch.Tensor) -> torch.Tensor:
    """In inference every other row is another integer."""
    return made if m.training else made + torch.arange(64)[:, None] % 2


INTEGERS: dict[str, Body] = {
    "booleans": lambda m, x: m.fc(x) > (0.0 if m.training else 0.5),
    "integers that rounding decides": lambda m, x: half_other(m, rounded(m, x)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", INTEGERS)
def test_other_integers_are_refused(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Whole(lambda m, x: (m.fc(x), INTEGERS[name](m, x)))
    with pytest.raises(InvalidInput, match=r"Whole: .*in inference, \d+.\d% of the elements of output 1 .*\n.*self.training"):
        dnnc.from_torch(module, (torch.randn(64, 6),), tmp_path / "net.onnx")


@pytest.mark.slow
@pytest.mark.parametrize("other", [0, 4])
def test_integers_that_weights_of_16_bits_make(other: int, tmp_path: Path) -> None:
    """The places of the largest numbers: many change when each weight changes by 50 units, which are 39 % of it.
    In inference the first ``other`` of 64 are other ones: few enough for FLIPPED."""
    torch.manual_seed(0)

    def places(m: nn.Module, x: torch.Tensor) -> Any:
        y = functional.linear(x, m.fc.weight.float())
        return y, y.argmax(1) if m.training else (y.argmax(1) + (torch.arange(64) < other).long()) % 6

    module = Whole(places)
    module.fc.bfloat16()
    if other:
        with pytest.raises(InvalidInput, match=r"Whole: .*in inference, 6.2% of the elements of output 1 .*\n.*self.training"):
            dnnc.from_torch(module, (torch.randn(64, 6),), tmp_path / "net.onnx")
    else:
        dnnc.from_torch(module, (torch.randn(64, 6),), tmp_path / "net.onnx")


@pytest.mark.slow
def test_averages_of_a_constant_batch(tmp_path: Path) -> None:
    """They stay what they are: a batch of zeros has the mean 0, and here its variance is 0 as well."""
    module = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4))
    assert dnnc.from_torch(module, (torch.zeros(2, 3, 8, 8),), tmp_path / "net.onnx").is_file()


@pytest.mark.slow
def test_integers_that_torch_cannot_compare_are_arguments(tmp_path: Path) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
            return self.fc(x) * z.to(torch.float32)

    assert dnnc.from_torch(
        Scaled(), (torch.randn(2, 4), torch.tensor([1, 2, 3, 4], dtype=torch.uint16)), tmp_path / "net.onnx"
    ).is_file()


def branches(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    if m.training:
        return m.fc(x)
    return m.fc(x) + (1 if x.sum() > 0 else 2)


@pytest.mark.slow
def test_eval_is_not_proposed_where_it_does_not_help(tmp_path: Path) -> None:
    """With ``.eval()`` the module cannot be exported: a branch depends on values."""
    with pytest.raises(InvalidInput, match=r"Whole: .*in inference, .*\n  hint: write it with other operators"):
        dnnc.from_torch(Whole(branches), (torch.randn(4, 6),), tmp_path / "net.onnx")


@pytest.mark.slow
def test_integers_of_another_shape_are_refused(tmp_path: Path) -> None:
    def repeated(m: nn.Module, x: torch.Tensor) -> Any:
        largest = m.fc(x).argmax(1)
        return m.fc(x), largest if m.training else torch.cat([largest, largest])

    with pytest.raises(InvalidInput, match=r"in inference, output 1 has the shape \(4,\), that of PyTorch \(8,\)\n"):
        dnnc.from_torch(Whole(repeated), (torch.randn(4, 6),), tmp_path / "net.onnx")


@pytest.mark.slow
def test_a_refusal_to_train_keeps_its_own_hint(tmp_path: Path) -> None:
    def computed(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = m.fc(x)
        return functional.batch_norm(y, y.mean(0).detach(), y.var(0).detach(), training=m.training)

    with pytest.raises(InvalidInput, match=r"dnnc cannot train it: the running averages.*\n  hint: freeze its statistics"):
        dnnc.from_torch(Whole(computed), (torch.randn(4, 6),), tmp_path / "net.onnx")
