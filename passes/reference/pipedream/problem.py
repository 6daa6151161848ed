"""PipeDream's problem as plain data, and the value of a plan from the definition.

A profile is a DAG of layers with seconds per minibatch (forward and backward), bytes of weights, bytes stored for the backward
pass and bytes sent on where an edge leaves. It is split into stages along nested ideals; a stage runs on r machines, which take
minibatches in turn and average their gradients. With T, W, O the seconds, weight bytes and cut bytes of an ideal and B
bytes/s, the stage I - J on r machines takes, per minibatch of the pipeline, the largest of

- compute and weight synchronisation: (T(I) - T(J) + 4 (r-1) (W(I) - W(J)) / (B r)) / r;
- what comes in, activations forward and gradients back: 2 O(J) / (B r);
- what goes out: 2 O(I) / (B r). The first stage's is left out, as in PipeDream's programme: the second stage pays for it.

(Narayanan et al., SOSP 2019, section 3.1, with the sum of its code in place of the paper's maximum.) The objective is the
largest time of a stage; fewer machines than there are may be used.

*Groups.* Machines may stand in groups that are joined at a lower speed. They are filled one after the other so that the last
stage ends the last group. A stage whose machines lie in one group synchronises, and crosses the borders inside that group, at
the speed inside; all else is at the speed between groups.

Memory of a machine, by schedule, with q minibatches in flight = ceil(machines from this stage to the end / r) and Z the bytes
stored: ``stash`` q (W + Z), ``2bw`` 2 W + q Z, ``flush`` W + q Z, ``gpipe`` W + M Z where M microbatches are in flight at once.
A flush of M microbatches holds at most M.

Invariants (``Profile.check``): nodes are in topological order; readers are ascending, without repeats; numbers are >= 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from passes.stages.arrays import Ints
from passes.stages.problem import Floats

SCHEDULES = ("stash", "2bw", "flush", "gpipe")

Replicated: TypeAlias = tuple[tuple[int, tuple[int, ...]], ...]
"""Stages in pipeline order: machines, nodes."""


@dataclass(frozen=True, eq=False)
class Profile:
    """Per node: ``seconds`` forward + backward, ``output`` bytes sent over an edge that leaves, ``stored`` bytes kept until its
    backward pass, ``weights`` bytes; ``readers[v]``: the nodes that read what v makes."""

    names: tuple[str, ...]
    seconds: Floats
    output: Ints
    stored: Ints
    weights: Ints
    readers: tuple[tuple[int, ...], ...]

    @property
    def size(self) -> int:
        return len(self.names)

    def check(self) -> None:
        """Raises ValueError where an invariant of the module docstring is broken."""
        for v, readers in enumerate(self.readers):
            if list(readers) != sorted(set(readers)) or (readers and not v < readers[0] <= readers[-1] < self.size):
                raise ValueError(f"readers {readers} of node {v} are not later nodes in ascending order")
        for name in ("seconds", "output", "stored", "weights"):
            values = getattr(self, name)
            if values.shape != (self.size,) or not (values >= 0).all() or not np.isfinite(values).all():
                raise ValueError(f"{name} must be {self.size} finite numbers >= 0")


@dataclass(frozen=True)
class Machines:
    """``count`` machines joined at ``bandwidth`` bytes/s, ``memory`` bytes each (None: unlimited). With ``group`` (0: none)
    only so many of them are, and groups are joined at ``between`` bytes/s, no more. ``straight``: one machine per stage.
    ``microbatches``: between two flushes, for ``flush`` (None: as many as are useful) and ``gpipe`` (needed)."""

    count: int
    bandwidth: float
    straight: bool = False
    memory: int | None = None
    schedule: str = "stash"
    microbatches: int | None = None
    group: int = 0
    between: float = math.inf

    def __post_init__(self) -> None:
        if self.group and (self.group < 0 or self.count % self.group or not 0 < self.between <= self.bandwidth):
            raise ValueError(
                f"{self.count} machines in groups of {self.group}, joined at {self.between} bytes/s: expected whole groups, "
                f"and a speed of at most {self.bandwidth}, that inside"
            )
        if self.count < 1 or not self.bandwidth > 0:
            raise ValueError(f"{self.count} machines at {self.bandwidth} bytes/s: expected at least one, and a speed above 0")
        if self.schedule not in SCHEDULES:
            raise ValueError(f"schedule is {self.schedule!r}, expected one of {', '.join(SCHEDULES)}")
        if self.microbatches is not None and self.microbatches < 1:
            raise ValueError(f"{self.microbatches} microbatches, expected at least one")
        if self.schedule == "gpipe" and self.microbatches is None:
            raise ValueError("schedule gpipe needs the number of microbatches")

    @property
    def most_replicas(self) -> int:
        return 1 if self.straight else self.count

    @property
    def slower(self) -> float:
        """How many times slower links between groups are than those inside."""
        return self.bandwidth / self.between if self.group else 1.0

    def speeds(self, onward: int, replicas: int) -> tuple[float, float, float]:
        """Bytes/s at which a stage of ``replicas`` machines synchronises, receives and sends; ``onward`` from it to the end."""
        if not self.group:
            return self.bandwidth, self.bandwidth, self.bandwidth
        if (onward - 1) // self.group != (onward - replicas) // self.group:
            return self.between, self.between, self.between
        receive, send = (self.between if at % self.group == 0 else self.bandwidth for at in (onward, onward - replicas))
        return self.bandwidth, receive, send


def in_flight(machines: Machines, onward: int, replicas: int) -> int:
    """Minibatches a machine holds at once: ``onward`` machines work from this stage to the end, ``replicas`` of them on it."""
    if machines.schedule == "gpipe":
        return machines.microbatches or 1
    deep = -(-onward // replicas)
    return min(deep, machines.microbatches) if machines.schedule == "flush" and machines.microbatches else deep


def weight_copies(machines: Machines, flight: int) -> int:
    """Bytes held per byte of weights."""
    return {"stash": flight, "2bw": 2}.get(machines.schedule, 1)


@dataclass(frozen=True)
class StageTime:
    """One stage evaluated: seconds per minibatch of the pipeline by part (each already shared by the replicas), and bytes."""

    replicas: int
    nodes: tuple[int, ...]
    compute: float
    sync: float
    receive: float
    send: float
    in_flight: int
    memory: float

    @property
    def time(self) -> float:
        return max(self.compute + self.sync, self.receive, self.send)


def cut_bytes(profile: Profile, ideal: Iterable[int]) -> int:
    """O(I): bytes made inside and read outside, each output once."""
    inside = set(ideal)
    return sum(int(profile.output[v]) for v in inside if not inside.issuperset(profile.readers[v]))


def stage_times(profile: Profile, machines: Machines, stages: Sequence[tuple[int, Sequence[int]]]) -> tuple[StageTime, ...]:
    """Every stage of a plan, from the definition; the solver is tested against it."""
    result = []
    before: set[int] = set()
    onward = sum(r for r, _ in stages)
    for position, (r, nodes) in enumerate(stages):
        inside = sorted(set(nodes))
        after = before | set(inside)
        weights = sum(int(profile.weights[v]) for v in inside)
        flight = in_flight(machines, onward, r)
        sync, receive, sends = machines.speeds(onward, r)
        send = 2 * cut_bytes(profile, after) / (sends * r) if 0 < position < len(stages) - 1 else 0.0
        result.append(
            StageTime(
                r,
                tuple(inside),
                math.fsum(profile.seconds[inside]) / r,
                4 * (r - 1) * weights / (sync * r) / r,
                2 * cut_bytes(profile, before) / (receive * r),
                send,
                flight,
                weight_copies(machines, flight) * weights + flight * sum(int(profile.stored[v]) for v in inside),
            )
        )
        before = after
        onward -= r
    return tuple(result)


def plan_faults(profile: Profile, machines: Machines, stages: Sequence[tuple[int, Sequence[int]]]) -> list[str]:
    """Every constraint that the stages break, as text; empty for a feasible plan. Shares nothing with the solver."""
    if sorted(v for _, nodes in stages for v in nodes) != list(range(profile.size)):
        return ["the stages do not cover every node exactly once"]
    found = []
    place = {v: s for s, (_, nodes) in enumerate(stages) for v in nodes}
    for v, readers in enumerate(profile.readers):
        for reader in readers:
            if place[reader] < place[v]:
                found.append(f"{profile.names[v]} in stage {place[v]} is read by {profile.names[reader]} in {place[reader]}")
    if (used := sum(r for r, _ in stages)) > machines.count:
        found.append(f"{used} machines used, there are {machines.count}")
    for s, stage in enumerate(stage_times(profile, machines, stages)):
        if not stage.nodes:
            found.append(f"stage {s} is empty")
        if not 1 <= stage.replicas <= machines.most_replicas:
            found.append(f"stage {s} runs on {stage.replicas} machines, expected 1 to {machines.most_replicas}")
        if machines.memory is not None and stage.memory > machines.memory:
            found.append(f"stage {s} needs {stage.memory:.0f} bytes, a machine has {machines.memory}")
    return found
