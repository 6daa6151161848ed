"""Orders of work per device: of a stream of samples, and of a training step.

*A stream*: a device repeats one row for ever: receive what its stage reads, run the stage, send what it makes. Rows are
periodic: the numbers of microbatches are offsets from the number of the period, such that in one period every stage works on
the sample that its inputs arrived for: stage s of S is S-1-s samples ahead of the last stage, and with transfers in a lane of
their own each device receives one sample ahead of its compute. Where stages share a device too, one lane's order couples them,
so whatever an action waits for happens a period before it: a stage is three samples ahead of the next, and its sends one behind
it. The members of a mesh, which work on each sample together, have equal rows.

``period`` is the largest load of a device or shared link, which a stream reaches; where transfers share a link, devices
may wait for it in turn, and the period is what a long simulated stream shows. ``latency`` is simulated too: one sample
through empty devices.

*A training step* of M microbatches is 1F1B with a flush (PipeDream-Flush: Narayanan et al., ICML 2021, section 2.2): stage s
of S runs min(M, S-1-s) forward passes, then a forward and a backward pass in turn, then the backward passes that are left, and
synchronises its gradients. Backward passes follow in the order of the forward ones, and at most S-s microbatches are in
flight on stage s. ``period`` and ``latency`` are both what the simulated step takes.

With f, b seconds of a stage's passes, each with its transfers, and all f + b <= T, a step without synchronisation takes at
most (M+S-1) T, and just that where all stages are equal: pass m forward of the last stage can begin at m T and the sum of f of
all stages before; by induction no stage before it falls behind that. The search minimises just that, T with an M-th of the
synchronisation. But a stage synchronises behind its last backward pass, when others may be idle already: at most the longest
synchronisation comes on top. So does what transfers wait for links that they share. A plan's value is never below the step.

Invariants: each row holds every ``recv``, one ``F`` and every ``send`` of its stages once (of a training step: for each
microbatch, and each ``B`` with the transfers of gradients), channels ascending, in an order that ``simulate`` completes;
``test_simulate.py`` and ``test_training_step.py`` check that it reaches the period.
"""

from __future__ import annotations

from dataclasses import replace

from ir.module import Action, Schedule
from ir.rows import BACKWARD, COMPUTE, RECEIVE, SEND, UPDATE, unrolled
from passes.model.liveness import SLOTS
from passes.model.timeline.simulate import run_rows
from passes.model.timeline.workload import Workload


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
    if any(any(wire.media) for wire in load.wires):
        schedule = replace(schedule, period=max(period, steady_period(load, schedule)))
    events = run_rows(load, unrolled(schedule, flow, 1))
    return replace(schedule, latency=max((event.end for event in events), default=0.0))


def step(load: Workload, microbatches: int) -> Schedule:
    """The schedule of a training step of ``microbatches``; see the module. ``load.backward`` and ``load.sync`` are given."""
    rows: dict[str, tuple[Action, ...]] = {}
    for stage, devices in enumerate(load.replicas):
        ahead = min(microbatches, len(load.replicas) - 1 - stage)
        actions = [action for number in range(ahead) for action in _pass(load, COMPUTE, stage, number)]
        for number in range(microbatches):
            if ahead + number < microbatches:
                actions += _pass(load, COMPUTE, stage, ahead + number)
            actions += _pass(load, BACKWARD, stage, number)
        if load.sync[stage] or stage in load.updates:
            actions.append(Action(UPDATE, stage))
        rows.update(dict.fromkeys(devices, tuple(actions)))
    schedule = Schedule("@schedule", "1f1b", tuple(rows.items()), microbatches=microbatches, slots=SLOTS)
    ends = max((event.end for event in run_rows(load, unrolled(schedule, load.flow, microbatches))), default=0.0)
    return replace(schedule, period=ends, latency=ends)


def _pass(load: Workload, kind: str, stage: int, number: int) -> list[Action]:
    """One pass of a stage with what it receives before and sends behind it."""
    flow = load.flow
    received = [c for c in flow.received.get(stage, ()) if flow.does(flow.channels[c].read, stage) == kind]
    sent = [c for c in flow.sent.get(stage, ()) if flow.does(flow.channels[c].made, stage) == kind]
    return [
        *(Action(RECEIVE, stage, number, channel) for channel in received),
        Action(kind, stage, number),
        *(Action(SEND, stage, number, channel) for channel in sent),
    ]


def steady_period(load: Workload, schedule: Schedule) -> float:
    """Seconds between two samples in the middle of a long stream, filling and draining left out."""
    depth = len(load.compute)
    first, last = 4 * depth, 4 * depth + 40
    ends = {
        event.action.microbatch: event.end
        for event in run_rows(load, unrolled(schedule, load.flow, last + 4 * depth))
        if event.action.kind == COMPUTE and event.action.stage == depth - 1
    }
    return (ends[last] - ends[first]) / (last - first)
