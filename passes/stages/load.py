"""How long a device is busy with a stage: how its compute and its transfers add up, by the ``comm`` of a plan.

Imports no library, since commands that only show a plan ask it too.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence

from ir.core.module import Plan, PlanStage
from ir.core.topology import DeviceType
from ir.ops.rows import by_turn

COMM = ("sum", "overlap", "duplex")
"""The rules (``load``)."""


def load(comm: str, compute: float, receive: float, send: float) -> float:
    """Seconds per sample that a device is busy. ``sum``: one after another; ``overlap``: transfers behind compute;
    ``duplex``: transfers behind compute, and both directions at once."""
    if comm == "overlap":
        return max(compute, receive + send)
    if comm == "duplex":
        return max(compute, receive, send)
    return compute + receive + send


def hands_over(stages: int, devices: int, *, training: bool) -> bool:
    """Whether each microbatch is handed to the devices of a plan of so many stages, the first on so many devices, and wakes
    them (``DeviceType.handover``). In training the devices of a single stage read their samples themselves."""
    return stages > 1 or (devices > 1 and not training)


def handover(types: Iterable[DeviceType], stages: int, devices: int, *, training: bool) -> float:
    """Seconds per microbatch that the slowest of devices of these types spends on hand-over; the rest as of ``hands_over``."""
    return max(type_.handover for type_ in types) if hands_over(stages, devices, training=training) else 0.0


def served_load(steps: Sequence[float], serves: Sequence[int]) -> float:
    """Seconds per microbatch of the busiest replica of a stage. ``steps``: of one on each of them; ``serves``: the replica that
    has each turn, or serves each group."""
    return max(serves.count(replica) * seconds for replica, seconds in enumerate(steps)) / len(serves)


def stage_seconds(stage: PlanStage, comm: str) -> float:
    """Seconds per microbatch that the stage keeps its devices busy, collectives included, under the plan's rule for compute
    and transfers; of replicas the busiest."""
    if stage.steps:
        return served_load(stage.steps, stage.serves)
    return load(comm, stage.working, stage.receive, stage.send) * stage.share


def shares(stage: PlanStage) -> list[float]:
    """The part of all microbatches, or of a decoder's groups, that each device of a placed stage works on."""
    if stage.serves:
        return [stage.serves.count(replica) / len(stage.serves) for replica in range(stage.replicas)]
    return [1 / stage.replicas] * len(stage.devices)


def median_compute(stage: PlanStage) -> float:
    """Seconds in which a placed stage computes a microbatch, of unlike replicas the median of all turns."""
    if not stage.steps:
        return stage.compute
    return stage.compute * statistics.median(by_turn(stage.steps, stage.serves)) / max(stage.steps)


def seconds_on(stage: PlanStage, device: str, comm: str, part: float = math.inf) -> float:
    """Seconds per microbatch of the stream that a device of a placed stage is busy with it, or what of these falls to ``part``
    of the stage's seconds (``compute``, ``receive``, ..), which are those of the slowest replica."""
    replica, whole = stage.devices.index(device), load(comm, stage.working, stage.receive, stage.send)
    busy = (stage.steps[replica] if stage.steps else whole) * shares(stage)[replica]
    return busy * part / whole if whole and part < math.inf else busy


def step_period(plan: Plan) -> float:
    """Seconds per microbatch of a training step: those of the slowest stage, or of a device that has several."""
    busy: dict[tuple[str, ...], float] = defaultdict(float)
    for stage in plan.stages:
        busy[stage.devices or (str(stage.index),)] += stage_seconds(stage, plan.comm)
    return max(busy.values(), default=0.0)
