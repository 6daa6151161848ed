"""Counted work, which limits searches in place of a clock: an input has one plan, on whatever machine, busy or idle.

What does work says how much (``did``); ``now`` is how many seconds all of it takes on a common core, by the ``RATES`` of its
kinds. A search ends by these seconds: it asks ``now`` where it would ask for the time. ``python -m tests.bench.work`` sets
counted seconds beside those of a clock, kind by kind.

Only a person's time limit asks a clock (``within``). Once that is over, each look at ``now`` is far later than the one before,
so that whatever has a share of the time ends at the next look, and ``limit.cut`` says so. Seconds in which kernels are compiled
are not counted against it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

RATES = {
    "arc": 0.5e-6,
    "compared": 0.1e-6,
    "conversion": 2.5e-6,
    "entry": 2.2e-9,
    "ideal": 0.2e-6,
    "look": 0.2e-9,
    "matrix": 2e-6,
    "node": 13e-6,
    "pair": 25e-9,
    "placement": 50e-6,
    "priced": 140e-6,
    "proposal": 150e-9,
    "run": 10e-9,
    "side": 0.4e-3,
    "stage": 5e-9,
    "step": 0.7e-6,
    "tested": 60e-9,
    "transition": 20e-9,
    "variable": 40e-6,
    "written": 300e-6,
}
"""Seconds of one unit of each kind of work."""
NEAR_ENOUGH = 2e-2
"""Relative gap at which a large search ends: no prediction of a plan is more exact, and the last percent takes most of a
search."""
LARGE = 100_000
"""Nodes times devices of a large search, at least."""
LATE = 1e9
"""Seconds between two looks once a time limit is over."""


@dataclass(slots=True)
class Limit:
    """A person's time limit: ``ends`` as ``time.perf_counter`` tells it; whether it ``cut`` a search; the limit ``around`` it,
    and whether it is that one that ends."""

    ends: float = math.inf
    cut: bool = False
    around: Limit | None = None
    inherits: bool = False


@dataclass(slots=True)
class _Counter:
    seconds: float = 0.0
    late: float = 0.0
    counts: dict[str, float] = field(default_factory=dict)
    limit: Limit = field(default_factory=Limit)


_COUNTER = _Counter()


def did(kind: str, units: float) -> None:
    """Counts ``units`` of a kind of work. Raises KeyError for a kind without a rate."""
    _COUNTER.seconds += RATES[kind] * units
    _COUNTER.counts[kind] = _COUNTER.counts.get(kind, 0.0) + units


def now() -> float:
    """Seconds of all work so far; only their differences mean something."""
    limit = _COUNTER.limit
    if limit.ends < math.inf and time.perf_counter() > limit.ends:
        limit.cut = True
        _COUNTER.late += LATE
    return _COUNTER.seconds + _COUNTER.late


def is_over() -> bool:
    """Whether a time limit is over: no further search is begun where there is a plan."""
    over = clock_left() <= 0
    _COUNTER.limit.cut |= over
    return over


def sufficient_gap(nodes: int, devices: int) -> float:
    """The relative gap at which a search over so many nodes and devices ends: 0 unless it is large."""
    return NEAR_ENOUGH if nodes * devices >= LARGE else 0.0


def clock_left() -> float:
    """Seconds of the clock until the time limit is over; inf without one."""
    return _COUNTER.limit.ends - time.perf_counter()


def compiled_for(seconds: float) -> None:
    """Moves the ends of all time limits by seconds in which a kernel was compiled."""
    limit: Limit | None = _COUNTER.limit
    while limit is not None:
        limit.ends += seconds
        limit = limit.around


@contextmanager
def within(seconds: float | None) -> Iterator[Limit]:
    """Limits what runs inside to ``seconds`` of a clock, None for no limit, and to the limit around it."""
    before, late = _COUNTER.limit, _COUNTER.late
    ends = math.inf if seconds is None else time.perf_counter() + seconds
    limit = Limit(min(before.ends, ends), around=before, inherits=before.ends <= ends)
    _COUNTER.limit = limit
    try:
        yield limit
    finally:
        before.cut = before.cut or (limit.cut and limit.inherits)
        _COUNTER.limit, _COUNTER.late = before, late


@contextmanager
def unlimited() -> Iterator[None]:
    """Lifts the limit from what runs inside: without it there would be no plan at all."""
    before = _COUNTER.limit
    _COUNTER.limit = Limit(around=before)
    try:
        yield
    finally:
        _COUNTER.limit = before


def counts() -> dict[str, float]:
    """Units of each kind of work so far."""
    return dict(_COUNTER.counts)
