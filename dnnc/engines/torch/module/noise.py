"""Functions of torch that draw random numbers, computed from the noise that a model keeps: ``rand`` and ``randn``.

Each takes ``draw`` before the arguments of the function that it stands for: ``draw(torch.rand_like, like)`` is noise in the
shape of ``like``. A function whose name ends in ``_`` writes into its first argument and returns it, as torch's does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Draw = Callable[[Callable[[torch.Tensor], torch.Tensor], torch.Tensor], torch.Tensor]


def _positive(draw: Draw, like: torch.Tensor) -> torch.Tensor:
    """Uniform numbers whose logarithm is finite. ``torch.rand`` draws multiples of eps / 2 of an element type; half of that
    stands for 0."""
    return draw(torch.rand_like, like).clamp(min=torch.finfo(like.dtype).eps / 4)


def _normal(draw: Draw, mean: Any = 0.0, std: Any = 1.0, size: Any = None, generator: Any = None, **options: Any) -> Any:
    """``torch.normal``: of numbers the size is told, of tensors it is theirs. The numbers are of the seed of the training, not
    of ``generator``."""
    like = mean + std if size is None else torch.empty(size, **options)
    return mean + std * draw(torch.randn_like, like)


def _normal_(draw: Draw, into: torch.Tensor, mean: float = 0.0, std: float = 1.0, **_: Any) -> torch.Tensor:
    return into.copy_(mean + std * draw(torch.randn_like, into))


def _uniform_(draw: Draw, into: torch.Tensor, *bounds: float, **named: Any) -> torch.Tensor:
    """Its bounds are named ``from``, a word of Python, and ``to``."""
    low, high = {0: named.get("from", 0.0), 1: named.get("to", 1.0), **dict(enumerate(bounds))}.values()
    return into.copy_(low + (high - low) * draw(torch.rand_like, into))


def _exponential_(draw: Draw, into: torch.Tensor, lambd: float = 1.0, **_: Any) -> torch.Tensor:
    """By the inverse of the distribution function, 1 - exp(-lambd x)."""
    return into.copy_(-torch.log(_positive(draw, into)) / lambd)


def _bernoulli(draw: Draw, input: torch.Tensor, p: float | None = None, **_: Any) -> torch.Tensor:
    return (draw(torch.rand_like, input) < (input if p is None else p)).to(input.dtype)


def _bernoulli_(draw: Draw, into: torch.Tensor, p: Any = 0.5, **_: Any) -> torch.Tensor:
    return into.copy_((draw(torch.rand_like, into) < p).to(into.dtype))


def _gumbel_softmax(
    draw: Draw, logits: torch.Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1
) -> torch.Tensor:
    """The softmax of logits with Gumbel noise, -log(-log(u)) of uniform u; with ``hard`` the best class, whose gradient is that
    of the softmax (Jang et al., "Categorical Reparameterization with Gumbel-Softmax", ICLR 2017)."""
    uniform = _positive(draw, logits)
    soft = ((logits - torch.log(-torch.log(uniform))) / tau).softmax(dim)
    if not hard:
        return soft
    best = torch.zeros_like(logits).scatter(dim, soft.argmax(dim, keepdim=True), 1.0)
    return best - soft.detach() + soft


DRAWS: dict[str, Callable[..., Any]] = {
    "bernoulli": _bernoulli,
    "bernoulli_": _bernoulli_,
    "exponential_": _exponential_,
    "gumbel_softmax": _gumbel_softmax,
    "normal": _normal,
    "normal_": _normal_,
    "uniform_": _uniform_,
}
"""By the name of a function of torch."""
