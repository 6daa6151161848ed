"""What a run gave: outputs, and what each device did when."""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Event:
    """What a device did for a stage: ``action`` is ``F`` (compute; of a member of a mesh one for each segment), ``recv`` or
    ``send`` of ``channel``, or ``collective`` (waiting for the other members included); ``start`` and ``end`` in seconds since
    the run began; ``title`` says which segment or collective."""

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
    """Outputs per microbatch, and when things happened (seconds since the run began). ``completed``: when the last output of
    each microbatch was there. ``cpu``: processor seconds of each stage's processes since they started, loading included; of a
    process with several stages by what they computed in this run."""

    outputs: tuple[dict[str, Any], ...]
    seconds: float
    completed: tuple[float, ...]
    events: tuple[Event, ...]
    cpu: tuple[float, ...]

    @property
    def throughput(self) -> float:
        """Microbatches a second, once the pipeline is full; of the whole run when there is one microbatch."""
        first, last = min(self.completed), max(self.completed)
        if len(self.completed) < 2 or last <= first:
            return len(self.completed) / self.seconds
        return (len(self.completed) - 1) / (last - first)

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
        """Median compute seconds per microbatch of each stage: of a mesh, those of its slowest member."""
        return self._seconds("F")

    @property
    def collective_seconds(self) -> tuple[float, ...]:
        """Median seconds per microbatch that the members of each stage exchange parts, or wait for each other: of the member
        that does so least. 0 for other stages."""
        return self._seconds("collective")

    def _seconds(self, action: str) -> tuple[float, ...]:
        spent: dict[int, dict[int, dict[str, float]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(float)))
        for event in self.events:
            spent[event.stage][event.microbatch][event.device] += event.end - event.start if event.action == action else 0.0
        over = max if action == "F" else min
        return tuple(statistics.median(over(s.values()) for s in spent[stage].values()) for stage in sorted(spent))


__all__ = ["Event", "RunResult"]
