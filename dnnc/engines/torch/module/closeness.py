"""How far two tensors are apart, and modules whose weights are a little off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

CLOSE = {torch.float64: 1e-3, torch.float32: 1e-3, torch.float16: 5e-2, torch.bfloat16: 5e-2}
"""The distance that passes, by the element type; of several types in a module the widest distance holds."""
SHAKE = 1e-5
TINY = 1e-30


def counts(tensor: torch.Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())


def distance(found: torch.Tensor, wanted: torch.Tensor, scale: float = 0.0) -> float:
    """The largest difference over the largest element of ``wanted``, or ``scale`` where that is more; NaN equals NaN. Of
    integers and booleans the share of the elements that differ."""
    if wanted.numel() == 0:
        return 0.0
    if counts(wanted):
        return float((found != wanted).double().mean())
    found, wanted = found.double(), wanted.double()
    same = (found == wanted) | (found.isnan() & wanted.isnan())
    off = torch.where(same, 0.0, (found - wanted).abs()).nan_to_num(nan=float("inf"))
    return float(off.max()) / max(largest(wanted), scale, TINY)


def largest(tensor: torch.Tensor) -> float:
    finite = tensor[tensor.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


@contextmanager
def shaken(module: torch.nn.Module, seed: int, units: float = 1.0) -> Iterator[None]:
    """Inside, each weight is off by so many units in its last place, up or down at random by the seed; by at most SHAKE of
    itself, but at least one unit."""
    generator = torch.Generator().manual_seed(seed)
    held = [(value, value.detach().clone()) for value in module.parameters() if value.dtype in CLOSE]
    try:
        with torch.no_grad():
            for value, _ in held:
                signs = torch.randint(0, 2, value.shape, generator=generator).to(value) * 2 - 1
                unit = torch.finfo(value.dtype).eps
                value.mul_(1 + signs * max(unit, min(units * unit, SHAKE)))
        yield
    finally:
        with torch.no_grad():
            for value, before in held:
                value.copy_(before)
