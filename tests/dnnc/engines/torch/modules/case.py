"""A module that is trained as it stands, and what it is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

SAMPLES = 4
"""Samples of a microbatch."""
Draw = Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Whole:
    """``make``: the module; ``inputs``: draw its arguments for a microbatch; ``loss``: ``mse``, ``cross-entropy`` by the last
    dimension of its output, or ``output``, which is its loss itself."""

    make: Callable[[], nn.Module]
    inputs: tuple[Draw, ...]
    loss: str = "mse"


def floats(*shape: int) -> Draw:
    """Of a microbatch of samples of this shape."""
    return lambda: torch.randn(SAMPLES, *shape)


def tokens(below: int, *shape: int) -> Draw:
    return lambda: torch.randint(0, below, (SAMPLES, *shape))
