"""A discrete-event simulation of a schedule: what every device does when.

What an action waits for, and in which lane of its device it is done, ``ir/rows.py`` says, for the verifier and the runtime too.
Here seconds are added:

1. ``send`` occupies the sender for its seconds, ``recv`` the receiver.
2. Shared links: transfers that cross one medium follow each other; the medium is busy for the bytes over its bandwidth.
3. The members of a mesh work on each microbatch together, in equal rows: the first member's is run and holds for all.

Times are seconds from the first action. Rows whose actions wait for each other in a circle are a ``DeadlockError`` that names
them.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ir.diagnostics import InvalidInput, UsageError
from ir.limits import LIMITS
from ir.module import Action, Module, Plan, Schedule
from ir.rows import (
    INPUT_GRADIENT,
    RECEIVE,
    SEND,
    WEIGHT_GRADIENT,
    Flow,
    action_text,
    lanes,
    unrolled,
)
from passes.model.timeline.workload import Workload, workload


@dataclass(frozen=True, slots=True)
class Event:
    """``device`` did ``action`` from ``start`` to ``end``."""

    device: str
    action: Action
    start: float
    end: float


class DeadlockError(Exception):
    """No action can go on although some are left: ``waiting`` says which, one per device and lane."""

    def __init__(self, waiting: Sequence[str]) -> None:
        self.waiting = tuple(waiting)
        super().__init__("the schedule cannot go on: " + "; ".join(waiting))


def simulate(module: Module, microbatches: int = 8) -> list[Event]:
    """The timeline of ``microbatches`` samples through the module's schedule, or of the training step that it is of: by stage's
    device, then by start.

    Raises InvalidInput when the module has no plan, no schedule, or its schedule deadlocks, UsageError for so many samples that
    there are more actions than ``LIMITS`` say."""
    plan, schedule = module.first(Plan), module.first(Schedule)
    if plan is None or schedule is None:
        raise InvalidInput(
            "the module has no schedule to simulate",
            where=module.name,
            hint="run the pass schedule, behind partition and place or shard",
        )
    _check_actions(schedule, microbatches)
    load = replace(workload(module), slots=schedule.slots)
    try:
        return run_rows(load, unrolled(schedule, load.flow, microbatches))
    except DeadlockError as error:
        raise InvalidInput(str(error), where=schedule.name) from error


def _check_actions(schedule: Schedule, microbatches: int) -> None:
    """Raises UsageError where a stream has more actions than ``LIMITS`` say."""
    period = sum(len(actions) for _, actions in schedule.rows) if schedule.periodic else 0
    most = LIMITS.simulated_actions
    if microbatches * period > most:
        message = f"{microbatches} microbatches have {microbatches * period} actions; at most {most} are followed"
        hint = f"follow up to {most // period} microbatches: a stream soon repeats itself"
        raise UsageError(message, where=schedule.name, hint=hint)


@dataclass(slots=True)
class _Lane:
    """A device's queue of actions that follow each other; ``free`` is when the last one ended."""

    device: str
    queue: list[Action]
    position: int = 0
    free: float = 0.0


@dataclass(slots=True)
class _State:
    """What has happened: the end of each action, until when media are busy."""

    flow: Flow
    done: dict[Action, float] = field(default_factory=dict)
    media: dict[str, float] = field(default_factory=lambda: defaultdict(float))


def run_rows(load: Workload, rows: Mapping[str, Sequence[Action]]) -> list[Event]:
    """Runs rows of concrete actions. Raises DeadlockError, ValueError for an action of an unknown stage or channel.

    Among actions that can start, the one that can start first does (ties: order of rows); so a medium serves transfers in the
    order in which they become ready."""
    splits = {action.stage for row in rows.values() for action in row if action.kind in (INPUT_GRADIENT, WEIGHT_GRADIENT)}
    state = _State(replace(load.flow, split=frozenset(splits)))
    leads = state.flow.leads
    queues = [
        _Lane(device, lane) for device, actions in rows.items() if device not in leads for lane in lanes(actions, load.comm)
    ]
    heap: list[tuple[float, int]] = []
    waiting: dict[Action, list[int]] = defaultdict(list)  # lanes, by an action that their next one waits for
    for number in range(len(queues)):
        _wake(number, queues, state, heap, waiting)
    events: list[Event] = []
    while heap:
        start, number = heapq.heappop(heap)
        lane = queues[number]
        action = lane.queue[lane.position]
        media = _media(action, load)
        free = max((start, *(state.media[name] for name, _ in media)))
        if free > start:
            heapq.heappush(heap, (free, number))
            continue
        state.media.update((name, start + busy) for name, busy in media)
        end = state.done[action] = lane.free = start + _seconds(action, load)
        lane.position += 1
        events.append(Event(lane.device, action, start, end))
        for other in (number, *waiting.pop(action, ())):
            _wake(other, queues, state, heap, waiting)
    stuck = [f"{action_text(lane.queue[lane.position])} on {lane.device}" for lane in queues if lane.position < len(lane.queue)]
    if stuck:
        raise DeadlockError(stuck)
    members: dict[str, list[str]] = defaultdict(list)
    for other, lead in leads.items():
        members[lead].append(other)
    events += [replace(event, device=other) for event in events for other in members.get(event.device, ()) if other in rows]
    order = {device: number for number, device in enumerate(rows)}
    return sorted(events, key=lambda event: (order[event.device], event.start, event.end))


def _media(action: Action, load: Workload) -> tuple[tuple[str, float], ...]:
    """Shared links that the action occupies, with seconds."""
    if action.kind != SEND or action.channel is None:
        return ()
    wire = load.wires[action.channel]
    return wire.media[(action.microbatch or 0) % len(wire.media)] if wire.media else ()


def _wake(
    number: int, queues: Sequence[_Lane], state: _State, heap: list[tuple[float, int]], waiting: dict[Action, list[int]]
) -> None:
    """Puts the next action of a lane on the heap, or the lane on the list of what it waits for."""
    lane = queues[number]
    if lane.position == len(lane.queue):
        return
    start = lane.free
    for needed in state.flow.needs(lane.queue[lane.position]):
        end = state.done.get(needed)
        if end is None:
            waiting[needed].append(number)
            return
        start = max(start, end)
    heapq.heappush(heap, (start, number))


def _seconds(action: Action, load: Workload) -> float:
    if action.kind not in (SEND, RECEIVE):
        return load.seconds(action.kind, action.stage)
    if action.channel is None or not 0 <= action.channel < len(load.wires):
        raise ValueError(f"{action_text(action)}: no such channel")
    wire = load.wires[action.channel]
    return wire.send if action.kind == SEND else wire.receive


__all__ = ["DeadlockError", "Event", "run_rows", "simulate"]
