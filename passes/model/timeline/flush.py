"""Orders of work of a training step of M microbatches, which ends when all are done and the weights are updated.

A *family* says how many forward passes a stage s of S begins with, before it does a forward and a backward pass in turn, and
whether the backward pass is split: ``I`` sends gradients back, ``W``, which nobody waits for, comes so many microbatches later.

| family | forward passes first | W is late by | in flight | source |
|---|---|---|---|---|
| ``1f1b`` | S - s | | S - s | PipeDream-Flush: Narayanan et al., ICML 2021, section 2.2 |
| ``gpipe`` | M | | M | Huang et al., NeurIPS 2019 |
| ``auto`` | the least that keep the pace of the slowest stage | | as many | ``derived_depths`` |
| ``zb-h1`` | S - s | s | S | Qi et al., ICLR 2024, section 2.1 |
| ``zb-h2`` | 2 (S - s) - 1 | 2 s | 2 S - 1 | the same, section 2.2 |

In place of a stage count its replicas: a stage with r of them has r times the microbatches in flight.

With f, b seconds of a stage's passes, each with its transfers, and all f + b <= T, 1F1B without updates takes at most
(M+S-1) T, and just that where all stages are equal and transfers are part of the passes: pass m forward of the last stage can
begin at m T and the sum of f of all stages before; by induction no stage before it falls behind that. Transfers that take time
beside the passes (``comm`` other than ``sum``) make the way to the last stage and back longer than S - s passes: 1F1B then
waits, and deeper pipelines do not.

Invariants: each row holds, for each microbatch, every ``recv``, ``F``, ``B`` (or ``I`` and ``W``) and ``send`` of its stages
once, in an order that ``simulate`` completes, and one ``U``, last, where there is an update. ``period`` and ``latency`` are
both the seconds that the simulated step takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from ir.module import Action, Schedule
from ir.rows import BACKWARD, COMPUTE, INPUT_GRADIENT, RECEIVE, SEND, UPDATE, WEIGHT_GRADIENT, Flow, unrolled
from passes.model.liveness import SLOTS
from passes.model.timeline.simulate import run_rows
from passes.model.timeline.workload import Workload

DEFAULT = "1f1b"


def step(load: Workload, microbatches: int, family: str = DEFAULT) -> Schedule:
    """The schedule of a training step; see the module. ``load.backward`` and ``load.sync`` are given; ``family`` is one of
    ``FAMILIES``."""
    first, late = FAMILIES[family](load, microbatches)
    flow = replace(load.flow, split=frozenset(range(len(load.compute))) if late else frozenset())
    rows: dict[str, tuple[Action, ...]] = {}
    for stage, devices in enumerate(load.replicas):
        order = _in_turn(microbatches, min(microbatches, max(1, first[stage])), late[stage] if late else None)
        actions = [action for kind, number in order for action in _with_transfers(flow, kind, stage, number)]
        for device in devices:
            turn = [action for action in actions if flow.works(device, stage, action.microbatch or 0)]
            update = [Action(UPDATE, stage)] if load.sync[stage] or stage in load.updates else []
            rows[device] = (*rows.get(device, ()), *turn, *update)
    schedule = Schedule("@schedule", family, tuple(rows.items()), microbatches=microbatches, slots=SLOTS)
    ends = max((event.end for event in run_rows(load, unrolled(schedule, flow, microbatches))), default=0.0)
    return replace(schedule, period=ends, latency=ends)


def _in_turn(microbatches: int, first: int, late: int | None) -> list[tuple[str, int]]:
    """``first`` forward passes, then a backward and a forward pass in turn, then the backward passes that are left. With
    ``late`` the backward pass is split, and W comes so many microbatches after I."""
    order = [(COMPUTE, number) for number in range(first)]
    for number in range(microbatches):
        if late is None:
            order.append((BACKWARD, number))
        else:
            order.append((INPUT_GRADIENT, number))
            order += [(WEIGHT_GRADIENT, number - late)] if number >= late else []
        order += [(COMPUTE, first + number)] if first + number < microbatches else []
    return [*order, *((WEIGHT_GRADIENT, number) for number in range(max(0, microbatches - (late or 0)), microbatches))]


def _with_transfers(flow: Flow, kind: str, stage: int, number: int) -> list[Action]:
    """An action with what the stage receives before it and sends behind it."""
    received = [c for c in flow.received.get(stage, ()) if flow.does(flow.channels[c].read, stage) == kind]
    sent = [c for c in flow.sent.get(stage, ()) if flow.does(flow.channels[c].made, stage) == kind]
    return [
        *(Action(RECEIVE, stage, number, channel) for channel in received),
        Action(kind, stage, number),
        *(Action(SEND, stage, number, channel) for channel in sent),
    ]


def stages_from(load: Workload, times: int = 1) -> list[int]:
    """Of each stage a microbatch for itself and for each stage behind it, or for each of their replicas; rounded up to whole
    turns of its own. ``times`` as many, less one turn for each time beyond the first."""
    replicas = [len(on) for on in load.flow.takers]
    return [own * (times * math.ceil(sum(replicas[s:]) / own) - times + 1) for s, own in enumerate(replicas)]


def stages_before(load: Workload, times: int = 1) -> list[int]:
    """Of each stage a microbatch for each stage before it, or for each of their replicas, so many times."""
    return [times * sum(len(on) for on in load.flow.takers[:stage]) for stage in range(len(load.compute))]


def derived_depths(load: Workload, microbatches: int) -> list[int]:
    """The least depths with which every stage reaches the pace of the slowest: that of stage i covers, for every later stage r,
    the way to r and back in units of that pace, and what r has in flight itself.

    With X the seconds of a stage's two passes and c the delay of a transfer each way, the steady period of depths w is the
    maximum, over i <= r, of (X_i + .. + X_r + 2 (c_i + .. + c_(r-1))) / (w_i - w_r + 1)."""
    count = len(load.compute)
    alone = load.comm == "sum"  # a transfer then takes time of the stages at its ends, and is no delay
    both = [(f + b) / len(on) for f, b, on in zip(load.compute, load.backward, load.flow.takers, strict=True)]
    delay = [0.0] * max(0, count - 1)
    for wire in load.wires:
        if alone:
            both[wire.source] += wire.send / len(load.flow.takers[wire.source])
            both[wire.target] += wire.receive / len(load.flow.takers[wire.target])
        elif wire.target == wire.source + 1:
            delay[wire.source] = max(delay[wire.source], wire.send + wire.receive)
    pace = max(both, default=0.0)
    depths = [1] * count
    for i in reversed(range(count - 1)):
        way, needed = both[i], depths[i + 1]
        for r in range(i + 1, count):
            way += both[r] + 2 * delay[r - 1]
            needed = max(needed, math.ceil(way / pace - 1e-9) + depths[r] - 1 if pace else 1)
        depths[i] = needed
    return [min(microbatches, depth * len(on)) for depth, on in zip(depths, load.flow.takers, strict=True)]


Family: TypeAlias = Callable[[Workload, int], tuple[list[int], list[int]]]
"""Of a workload and its microbatches, by stage: the forward passes that it begins with; by how many microbatches W is late,
empty where the backward pass is whole."""

FAMILIES: dict[str, Family] = {
    "1f1b": lambda load, _: (stages_from(load), []),
    "gpipe": lambda load, microbatches: ([microbatches] * len(load.compute), []),
    "zb-h1": lambda load, _: (stages_from(load), stages_before(load)),
    "zb-h2": lambda load, _: (stages_from(load, 2), stages_before(load, 2)),
    "auto": lambda load, microbatches: (derived_depths(load, microbatches), []),
}
"""The orders of work of a training step, by the names that ``--schedule`` takes; the first is the default."""

__all__ = ["DEFAULT", "FAMILIES", "derived_depths", "step"]
