"""A rank that emulates a slower machine: it sleeps in proportion to what it computes.

With a factor K the rank sleeps K times the processor seconds of its main thread: before each message and each collective, and
after each action. So other ranks wait as they would for a device of 1 / (1 + K) of the speed. Processor seconds exclude the
time that the rank waits for others and the time that the machine gives to other processes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from dnnc.engines.torch.faults import NotASlowDevice
from ir.core.diagnostics import UsageError

_LEAST = 1e-4
"""Seconds: shorter waits are added up, for a sleep may be this much too long."""

MOST = 1000.0
"""The largest factor: ranks give up on one that they wait for too long."""


@dataclass(slots=True)
class Slowed:
    """The waits of this process's main thread. ``factor``: seconds to wait for each one that it computes, 0 for none;
    ``owed``: seconds that it has not waited yet, below 0 where a sleep was too long; ``seen``: processor seconds of the thread
    that were accounted for."""

    factor: float = 0.0
    owed: float = 0.0
    seen: float = field(default_factory=time.thread_time)

    def begin(self) -> None:
        """Leave out what was computed until now."""
        self.seen = time.thread_time()

    def wait(self) -> None:
        """Wait for what was computed since the last call."""
        if not self.factor:
            return
        now = time.thread_time()
        self.owed += self.factor * (now - self.seen)
        self.seen = now
        if self.owed >= _LEAST:
            began = time.perf_counter()
            time.sleep(self.owed)
            self.owed -= time.perf_counter() - began


def slow_devices(texts: Iterable[str]) -> dict[str, float]:
    """The factors of devices, from texts ``DEVICE=K``. Raises UsageError."""
    factors = {}
    for text in texts:
        device, _, number = text.rpartition("=")
        try:
            factor = float(number)
        except ValueError:
            factor = math.nan
        if not device or not 0 <= factor <= MOST:
            raise UsageError(NotASlowDevice(MOST), where=f"--slow {text}")
        factors[device] = factor
    return factors


__all__ = ["Slowed", "slow_devices"]
