"""The results of a run: outputs, and when each device did what."""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Event:
    """An action of a device for a stage. ``action``: ``F`` (compute; for a member of a mesh one event per segment), ``recv`` or
    ``send`` of ``channel``, or ``collective`` (with the wait for other members). ``start``, ``end``: seconds since the run
    began; ``title``: which segment or collective."""

    device: str
    stage: int
    action: str
    microbatch: int
    start: float
    end: float
    title: str = ""
    channel: int | None = None


@dataclass(frozen=True, slots=True)
class RunResult:
    """``outputs`` by microbatch and name. ``seconds``: of the run; ``completed``: by microbatch, seconds from the start of the
    run to the last output. ``cpu``: by stage, processor seconds of its processes since they started, with loading; those of a
    process with several stages are divided in proportion to the seconds that it computed for each in this run. ``share``: for
    which part of the seconds that a process computed in this run it had a core, the mean of all processes. ``together``: how
    many microbatches may be completed at once, the most replicas of a stage."""

    outputs: tuple[dict[str, Any], ...]
    seconds: float
    completed: tuple[float, ...]
    events: tuple[Event, ...]
    cpu: tuple[float, ...]
    share: float = 1.0
    together: int = 1

    @property
    def throughput(self) -> float:
        """Microbatches per second from when each replica has completed one until the last is completed; over the whole run
        if there are no more."""
        completed = sorted(self.completed)
        first, last = completed[min(self.together, len(completed)) - 1], completed[-1]
        if last <= first:
            return len(completed) / self.seconds
        return (len(completed) - self.together) / (last - first)

    @property
    def latency(self) -> float:
        """Median seconds from a microbatch's first compute to its last output."""
        begun: dict[int, float] = {}
        for event in self.events:
            if event.action == "F":
                begun[event.microbatch] = min(event.start, begun.get(event.microbatch, event.start))
        return statistics.median(done - begun[m] for m, done in enumerate(self.completed))

    @property
    def stage_seconds(self) -> tuple[float, ...]:
        """By stage, median compute seconds per microbatch; for a mesh those of the slowest member."""
        return self._seconds("F")

    @property
    def collective_seconds(self) -> tuple[float, ...]:
        """By stage, median seconds per microbatch in collectives, with waiting, of the member that spends least there. 0 for
        stages without a mesh."""
        return self._seconds("collective")

    def _seconds(self, action: str) -> tuple[float, ...]:
        spent: dict[int, dict[int, dict[str, float]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(float)))
        for event in self.events:
            spent[event.stage][event.microbatch][event.device] += event.end - event.start if event.action == action else 0.0
        over = max if action == "F" else min
        return tuple(statistics.median(over(s.values()) for s in spent[stage].values()) for stage in sorted(spent))


__all__ = ["Event", "RunResult"]
