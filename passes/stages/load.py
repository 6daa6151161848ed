"""How long a device is busy with a stage: how its compute and its transfers add up, by the ``comm`` of a plan.

Imports no library, since commands that only show a plan ask it too.
"""

from __future__ import annotations

from collections import defaultdict

from ir.core.module import Plan, PlanStage

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


def stage_seconds(stage: PlanStage, comm: str) -> float:
    """Seconds per microbatch that the stage keeps its devices busy, collectives included, under the plan's rule for compute
    and transfers; of replicas, which take microbatches in turn, each, or the busiest where they serve groups of a decoder."""
    if stage.serves and stage.steps:
        return max(stage.serves.count(replica) * step for replica, step in enumerate(stage.steps)) / len(stage.serves)
    return load(comm, stage.working, stage.receive, stage.send) * stage.share


def step_period(plan: Plan) -> float:
    """Seconds per microbatch of a training step: those of the slowest stage, or of a device that has several."""
    busy: dict[tuple[str, ...], float] = defaultdict(float)
    for stage in plan.stages:
        busy[stage.devices or (str(stage.index),)] += stage_seconds(stage, plan.comm)
    return max(busy.values(), default=0.0)
