"""Orders of work per device of a stream of samples (``families`` has those of a training step).

A device repeats one row for ever: receive what its stage reads, run the stage, send what it makes. Rows are
periodic: the numbers of microbatches are offsets from the number of the period, such that in one period every stage works on
the sample that its inputs arrived for: stage s of S is S-1-s samples ahead of the last stage, and with transfers in a lane of
their own each device receives one sample ahead of its compute. Where stages share a device too, one lane's order couples them,
so whatever an action waits for happens a period before it: a stage is three samples ahead of the next, and its sends one behind
it. The members of a mesh, which work on each sample together, have equal rows.

``period`` is the largest load of a device or shared link, which a stream reaches; where transfers share a link, devices
may wait for it in turn, and where replicas have unlike turns, for what is another's turn: then the period is what a long
simulated stream shows. ``latency`` is simulated too: one sample through empty devices.

Invariants: each row holds every ``recv``, one ``F`` and every ``send`` of its stages once, channels ascending, in an order that
``simulate`` completes; ``test_simulate.py`` checks that it reaches the period.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ir.core.module import Action, Schedule
from ir.ops.rows import COMPUTE, RECEIVE, SEND, unrolled
from passes.costs.memory.liveness import SLOTS
from passes.timeline.simulate import makespan, run_rows
from passes.timeline.workload import Workload


def stream(load: Workload, period: float) -> Schedule:
    """The periodic schedule of a workload whose largest load is ``period`` seconds."""
    lanes = load.comm != "sum"
    coupled = lanes and len(set(load.replicas)) < len(load.replicas)
    step, behind = (3, 1) if coupled else (1, 0)
    rows: dict[str, tuple[Action, ...]] = {}
    flow = load.flow
    for stage, devices in enumerate(load.replicas):
        offset = step * (len(load.replicas) - 1 - stage) + behind
        ahead = len(flow.takers[stage]) if lanes else 0  # the next sample of the same replica
        actions = (
            *(Action(RECEIVE, stage, offset + ahead, channel) for channel in flow.received.get(stage, ())),
            Action(COMPUTE, stage, offset),
            *(Action(SEND, stage, offset - behind, channel) for channel in flow.sent.get(stage, ())),
        )
        for device in devices:  # stages on one device take turns
            rows[device] = (*rows.get(device, ()), *actions)
    schedule = Schedule("@schedule", "stream", tuple(rows.items()), periodic=True, period=period, slots=SLOTS)
    if load.serves or any(any(wire.media) for wire in load.wires) or any(load.shared):
        schedule = replace(schedule, period=max(period, steady_period(load, schedule)))
    return replace(schedule, latency=makespan(load, unrolled(schedule, flow, 1)))


def steady_period(load: Workload, schedule: Schedule) -> float:
    """Seconds from one period of the rows to the next in the middle of a long stream, filling and draining left out."""
    depth, every = len(load.compute), schedule.microbatches
    turns = math.lcm(*map(len, load.serves))  # where these are unlike, whole rounds are left out and measured
    warm, periods = max(-(-4 * depth // every), depth * turns), -(-40 // (every * turns)) * turns
    first, last = warm * every, (warm + periods) * every
    ends = {
        event.action.microbatch: event.end
        for event in run_rows(load, unrolled(schedule, load.flow, last + 4 * depth))
        if event.action.kind == COMPUTE and event.action.stage == depth - 1
    }
    return (ends[last] - ends[first]) / periods
