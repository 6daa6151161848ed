"""Which samples a microbatch has: a function of its number and the seed, so training goes on in the middle of an epoch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

DROP, USE = "drop", "use"
"""What becomes of the last batch of an epoch where the samples do not fill it: it is left out, or is a smaller batch."""


@dataclass(frozen=True, slots=True)
class Batches:
    """The batch of a step: ``microbatches`` of ``units`` samples each. ``last``: ``DROP`` or ``USE``. ``any_size``: a source
    may deal batches of any size, which become microbatches."""

    units: int
    microbatches: int = 1
    last: str = DROP
    any_size: bool = False

    @property
    def samples(self) -> int:
        return self.units * self.microbatches

    def in_epoch(self, samples: int) -> int:
        """The number of batches that so many samples give."""
        return -(-samples // self.samples) if self.last == USE else samples // self.samples


def shuffled(seed: int, epoch: int, count: int) -> Any:
    """The numbers below ``count`` in the order of an epoch."""
    return np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(count)


@dataclass
class Order:
    """The samples of each microbatch. ``of_epoch``: the numbers of the samples of an epoch, in order; ``epoch``, ``order``: of
    the last one that was asked for."""

    batches: Batches
    of_epoch: Callable[[int], Any]
    count: int
    epoch: int = -1
    order: Any = field(default=None, repr=False)

    def samples(self, number: int) -> tuple[Any, int]:
        """The samples of a microbatch, and how many of them count: those behind are of a last batch that the samples do not
        fill, and only stand there since a program takes ``units`` samples."""
        units, microbatches = self.batches.units, self.batches.microbatches
        step, microbatch = divmod(number, microbatches)
        epoch, place = divmod(step, self.batches.in_epoch(self.count))
        if epoch != self.epoch:
            self.epoch, self.order = epoch, self.of_epoch(epoch)
        begin = place * self.batches.samples
        first = begin + microbatch * units
        drawn = self.order[first : first + units]
        count = len(drawn)
        return np.concatenate([drawn, np.full(units - count, self.order[begin])]) if count < units else drawn, count
