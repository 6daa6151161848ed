"""What families of schedules have in common: orders of passes in, rows of actions out.

A *pass* is one ``F``, ``B``, ``I`` or ``W`` of a stage and a microbatch. A family says in which order each device does its
passes; what is received stands right before the pass that reads it first, what is sent right behind the one that makes it, and
updates stand last. Such rows complete if all passes can be done in one sequence that keeps the order of each device and has,
of each microbatch, ``F`` in the order of the stages and then the backward passes in the opposite one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from ir.core.diagnostics import UsageError
from ir.core.module import Action
from ir.ops.rows import INPUT_GRADIENT, RECEIVE, SEND, UPDATE, WEIGHT_GRADIENT, Flow
from passes.graph.faults import NoReplicas, StagePlace, StagesPerDevice
from passes.timeline.workload import Workload

Pass: TypeAlias = tuple[str, int, int]
"""Kind, stage, microbatch. Orders that repeat have ``U`` among their passes."""

Orders: TypeAlias = Mapping[str, Sequence[Pass]]
"""The passes of each device, in order."""

Family: TypeAlias = Callable[[Workload, int], Orders]
"""The orders of a workload's devices for so many microbatches of a step, or of one period. Raises UsageError where its stages
do not lie on the devices as the family needs them."""


def rows_of(load: Workload, orders: Orders) -> dict[str, tuple[Action, ...]]:
    """The rows of a step whose devices do their passes in these orders."""
    halves = (INPUT_GRADIENT, WEIGHT_GRADIENT)
    split = frozenset(stage for order in orders.values() for kind, stage, _ in order if kind in halves)
    flow = replace(load.flow, split=split)
    rows = {}
    for device, order in orders.items():
        done = [one for one in order if one[0] != UPDATE or _updates(load, one[1])]
        actions = [action for kind, stage, number in done for action in _with_transfers(flow, kind, stage, number)]
        of_device = [stage for stage, on in enumerate(load.replicas) if device in on and _updates(load, stage)]
        once = [] if any(kind == UPDATE for kind, _, _ in order) else [Action(UPDATE, stage) for stage in of_device]
        rows[device] = (*actions, *once)
    return rows


def _updates(load: Workload, stage: int) -> bool:
    return load.sync[stage] > 0 or stage in load.updates


def _with_transfers(flow: Flow, kind: str, stage: int, number: int) -> list[Action]:
    """A pass with what the stage receives before it and sends behind it."""
    received = [c for c in flow.received.get(stage, ()) if flow.does(flow.channels[c].read, stage) == kind]
    sent = [c for c in flow.sent.get(stage, ()) if flow.does(flow.channels[c].made, stage) == kind]
    return [
        *(Action(RECEIVE, stage, number, channel) for channel in received),
        Action(kind, stage, number),
        *(Action(SEND, stage, number, channel) for channel in sent),
    ]


def apart(load: Workload) -> bool:
    """Whether no two stages share a device."""
    return len(set(load.replicas)) == len(load.replicas)


def by_devices(load: Workload, orders: Mapping[tuple[str, ...], Sequence[Pass]]) -> Orders:
    """The orders of devices from those of groups of them: replicas take microbatches in turn, members of a mesh do all."""
    flow = load.flow
    return {
        device: [one for one in order if flow.works(device, one[1], one[2])]
        for devices, order in orders.items()
        for device in devices
    }


def chunks(load: Workload, family: str, place: Callable[[int, int], int], count: int | None = None) -> list[tuple[str, ...]]:
    """The devices of a plan with ``count`` stages on each, or any number above one: stage s must be on device
    ``place(s, devices)``. Raises UsageError for any other plan, in the name of ``family``."""
    devices = list(dict.fromkeys(load.replicas))
    stages, each = len(load.replicas), len(load.replicas) // len(devices)
    if each * len(devices) != stages or each < 2 or count not in (None, each):
        wanted = "several stages" if count is None else f"{count} stages"
        raise UsageError(StagesPerDevice(wanted, stages, len(devices)), where=f"--schedule {family}")
    for stage, on in enumerate(load.replicas):
        if (wanted_on := devices[place(stage, len(devices))]) != on:
            raise UsageError(StagePlace(stage, tuple(wanted_on), tuple(on)), where=f"--schedule {family}")
        if len(load.flow.takers[stage]) > 1:
            raise UsageError(NoReplicas(stage, len(on)), where=f"--schedule {family}")
    return devices


def stages_from(load: Workload, times: int = 1) -> list[int]:
    """Of each stage a microbatch for itself and for each stage behind it, or for each of their replicas; rounded up to whole
    turns of its own. ``times`` as many, less one turn for each time beyond the first."""
    replicas = [len(on) for on in load.flow.takers]
    return [own * (times * math.ceil(sum(replicas[s:]) / own) - times + 1) for s, own in enumerate(replicas)]


def stages_before(load: Workload, times: int = 1) -> list[int]:
    """Of each stage a microbatch for each stage before it, or for each of their replicas, so many times."""
    return [times * sum(len(on) for on in load.flow.takers[:stage]) for stage in range(len(load.compute))]


def limited(depths: Iterable[int], microbatches: int) -> list[int]:
    """Depths of at least one microbatch, and of no more than there are."""
    return [min(microbatches, max(1, depth)) for depth in depths]
