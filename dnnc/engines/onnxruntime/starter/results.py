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
    began; ``title``: which segment or collective. What was ``lost`` is an action too: one whose microbatch had to be asked
    again, and the time until all processes were there again (``title`` is ``away``)."""

    device: str
    stage: int
    action: str
    microbatch: int
    start: float
    end: float
    title: str = ""
    channel: int | None = None


LOST = "lost"
"""The action of what was lost."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """``outputs`` by microbatch and name. ``seconds``: of the run; ``completed``: by microbatch, seconds from the start of the
    run to the last output. ``cpu``: by stage, processor seconds of its processes since they started, with loading; those of a
    process with several stages are divided in proportion to the seconds that it computed for each in this run. ``share``: for
    which part of the seconds that a process could compute in this run it had a core, the mean of all processes. ``together``:
    the most turns of a stage: among so many microbatches each replica has all its own. After a loss, events that a process had
    not told are missing."""

    outputs: tuple[dict[str, Any], ...]
    seconds: float
    completed: tuple[float, ...]
    events: tuple[Event, ...]
    cpu: tuple[float, ...]
    share: float = 1.0
    together: int = 1

    @property
    def throughput(self) -> float:
        """Microbatches per second from when as many are completed as a stage has turns until the last is completed; over the
        whole run if there are no more."""
        completed = sorted(self.completed)
        first, last = completed[min(self.together, len(completed)) - 1], completed[-1]
        if last <= first:
            return len(completed) / self.seconds
        return (len(completed) - self.together) / (last - first)

    @property
    def latency(self) -> float:
        """Median seconds from a microbatch's first compute to its last output; 0 where no event is known."""
        begun: dict[int, float] = {}
        for event in self.events:
            if event.action == "F":
                begun[event.microbatch] = min(event.start, begun.get(event.microbatch, event.start))
        return statistics.median([done - begun[m] for m, done in enumerate(self.completed) if m in begun] or [0.0])

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
        for event in (event for event in self.events if event.action != LOST):
            spent[event.stage][event.microbatch][event.device] += event.end - event.start if event.action == action else 0.0
        over = max if action == "F" else min
        each = (spent[stage].values() for stage in range(len(self.cpu)))
        return tuple(statistics.median([over(devices.values()) for devices in of_stage] or [0.0]) for of_stage in each)
