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
"""Seconds: shorter waits are added up, since a sleep may be longer than asked for by this much."""

MOST = 1000.0
"""The largest factor: other ranks stop with an error when they wait for one for too long."""


@dataclass(slots=True)
class Slowed:
    """The waits of this process's main thread. ``factor``: seconds to wait for each second of computing, 0 for none; ``owed``:
    seconds still to wait, negative after too long a sleep; ``seen``: the thread's processor seconds at the last call."""

    factor: float = 0.0
    owed: float = 0.0
    seen: float = field(default_factory=time.thread_time)

    def begin(self) -> None:
        """Start counting now: what was computed before is not waited for."""
        self.seen = time.thread_time()

    def wait(self) -> None:
        """Sleep for what was computed since the last call of ``begin`` or ``wait``."""
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
    """The factor of each device, from texts ``DEVICE=K`` of the option ``--slow``. Raises UsageError."""
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
