"""What all searches have in common: limits, a result, and the driver that gives up neither its plan nor its bound.

Seconds are those of counted work (``work``), of which a person's clock is a part.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Generic, Self, TypeVar

from ir.core.outcomes import TIGHT, Outcome, outcome
from passes.solvers.work import now

Progress = Callable[[str, float | None], None]
P = TypeVar("P")


def relative_gap(value: float, bound: float) -> float:
    """Relative distance of a value from its bound."""
    return value / bound - 1 if bound > 0 else (0.0 if value <= 0 else math.inf)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """When a search ends. ``seconds``: of work, in all; ``beaten``: the value of the incumbent, a plan of another search: a
    bound that reaches it ends this one; ``gap``: relative, between value and bound, that is near enough; ``first``: the first
    plan will do."""

    seconds: float = math.inf
    beaten: float = math.inf
    gap: float = 0.0
    first: bool = False


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a search ended with. ``value`` and ``bound`` in seconds, the value infinite without a plan; ``reason``: how the
    bound was reached, or why it is not met; ``interrupted``: from the keyboard, so that this is the best until then."""

    value: float
    bound: float
    status: Outcome
    reason: str = ""
    interrupted: bool = False

    @property
    def gap(self) -> float:
        return relative_gap(self.value, self.bound)

    def bounded(self, bound: float, reason: str, slack: float = TIGHT) -> Self:
        """The result with a bound, at most its value, and the status that follows; ``reason``: why it is not optimal, where it
        is not; ``slack``: relative distance at which the value meets the bound."""
        bound = min(bound, self.value)
        status = outcome(self.value, bound, slack)
        return replace(self, bound=bound, status=status, reason="" if status == "optimal" else reason)


@dataclass
class Statistics:
    """What a search did: ideals walked over, the most held at once, pairs of them met and priced in full, seconds by phase."""

    ideals: int = 0
    stored: int = 0
    tested: int = 0
    transitions: int = 0
    seconds: dict[str, float] = field(default_factory=dict)


@contextmanager
def interruptible() -> Iterator[None]:
    """Within it an interrupt from the keyboard is a KeyboardInterrupt wherever it falls: while a compiled kernel runs, numba
    tells it as a SystemError, which the KeyboardInterrupt caused, perhaps by way of other SystemErrors."""
    try:
        yield
    except SystemError as error:
        cause: BaseException | None = error
        while isinstance(cause, SystemError):
            cause = cause.__cause__
        if isinstance(cause, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise


class Anytime(Generic[P]):
    """A search for plans of a type that has its ``best`` plan, the ``value`` of that and its bound at every moment, and gives
    none of them up."""

    def __init__(
        self,
        limits: Limits,
        progress: Progress = lambda label, fraction: None,
        bound: tuple[float, str] = (0.0, ""),
        equal: float = TIGHT,
    ) -> None:
        """``bound``: to begin with, and how it was reached; ``equal``: relative distance at which a value meets its bound."""
        self.limits, self.progress, self.equal = limits, progress, equal
        self.started = now()
        self.statistics = Statistics()
        self.best: P | None = None
        self.value = math.inf
        self.bound, self.reason = bound
        self.infeasible = self.interrupted = False

    def search(self, work: Callable[[], None], without: Callable[[], object] = lambda: None) -> None:
        """Runs the whole search. An interrupt from the keyboard ends it. With no plan yet, ``without`` may keep one that can be
        made of what is known; if it keeps none, the interrupt is passed on."""
        try:
            with interruptible():
                work()
        except KeyboardInterrupt:
            if self.best is None:
                without()
            if self.best is None:
                raise
            self.interrupted = True

    def phase(self, name: str, work: Callable[[], None]) -> None:
        """Runs a phase; its seconds are counted, also those of one that ends by an exception."""
        start = time.perf_counter()
        self.progress(f"partition: {name}", None)
        try:
            work()
        finally:
            self.statistics.seconds[name] = self.statistics.seconds.get(name, 0.0) + time.perf_counter() - start

    def tight(self) -> bool:
        """Whether the plan is proven to be the best."""
        return self.value <= self.bound * (1 + self.equal) or self.value == self.bound == 0

    def left(self) -> float:
        """Seconds until the time is over; negative behind it, and once a plan is found where the first one will do."""
        return -math.inf if self.enough() else self.limits.seconds - (now() - self.started)

    def enough(self) -> bool:
        """Whether the first plan will do, and is found."""
        return self.limits.first and self.best is not None

    def tell(self, bound: float, reason: str) -> None:
        """Keeps a bound that is higher than the one known."""
        if bound > self.bound:
            self.bound, self.reason = bound, reason

    def keep(self, plan: P, value: float) -> bool:
        """Keeps a plan that is the first, or better than the best; whether it is."""
        if self.best is not None and value >= self.value:
            return False
        self.best, self.value = plan, value
        return True
