"""A discrete-event simulation of a schedule: what every device does when, under the rules that the runtime follows.

Rules (``comm`` of the plan says which *lanes* a device has):

1. A device runs the actions of its row in order, each as soon as its lane is free and what it waits for has happened. With
   ``sum`` one lane does everything; with ``overlap`` transfers have a lane beside compute; with ``duplex`` receiving and
   sending have one each.
2. ``send`` of a tensor waits for its stage's ``F`` of that microbatch and occupies the sender for its seconds; ``recv`` waits
   for the end of that ``send`` and occupies the receiver; ``F`` waits for all ``recv`` of its stage and microbatch.
3. Back-pressure: an edge has ``edge_slots`` buffers (two, and one more for each stage that it passes over), of replicas each
   pair that exchanges microbatches. ``F`` writes into them, so it waits until the receiver is done with the microbatch that
   many turns of the pair before.
4. Shared links: transfers that cross one medium follow each other; the medium is busy for the bytes over its bandwidth.
5. A replicated stage gives microbatch m to its replica m mod r. The members of a mesh work on each microbatch together: their
   rows are equal and run in step, so the first member's is run and holds for all.
6. In training, ``B`` waits for ``F`` of its stage and microbatch and for the gradients of what it sent, which come back on the
   same channels: their ``send`` is the reader's and waits for its ``B``, their ``recv`` the maker's. Either end is busy as long
   as it was with the value.

Times are seconds from the first action. A row whose actions wait for each other in a circle is a ``DeadlockError`` that names
them.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from ir.diagnostics import InvalidInput, UsageError
from ir.limits import LIMITS
from ir.module import Action, Module, Plan, Schedule
from passes.model.timeline.workload import Workload, workload

COMPUTE = "F"
BACKWARD = "B"
SYNC = "sync"
LANES = ("compute", "transfers", "in", "out")
"""What a device does one after the other; which of them it has, and what is done in them, is the plan's ``comm``."""


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
        return run_rows(load, unrolled(schedule, microbatches, load.together))
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


def unrolled(schedule: Schedule, microbatches: int, together: Set[int] = frozenset()) -> dict[str, list[Action]]:
    """The actions of each device for ``microbatches`` samples. A periodic row is repeated; its microbatch numbers are offsets
    from the number of the period, and what falls outside the samples, or belongs to another replica, is left out; devices of
    stages ``together`` all work on each."""
    if not schedule.periodic:
        return {device: list(actions) for device, actions in schedule.rows}
    replicas: dict[int, list[str]] = defaultdict(list)
    for device, actions in schedule.rows:
        for stage in sorted({action.stage for action in actions}):
            replicas[stage].append(device)
    rows = {}
    for device, actions in schedule.rows:
        ahead = max((action.microbatch or 0 for action in actions), default=0)
        rows[device] = [
            replace(action, microbatch=number)
            for period in range(-ahead, microbatches)
            for action in actions
            if 0 <= (number := period + (action.microbatch or 0)) < microbatches
            and (action.stage in together or replicas[action.stage][number % len(replicas[action.stage])] == device)
        ]
    return rows


@dataclass(slots=True)
class _Lane:
    """A device's queue of actions that follow each other; ``free`` is when the last one ended."""

    device: str
    queue: list[Action]
    position: int = 0
    free: float = 0.0


@dataclass(slots=True)
class _State:
    """What has happened: the end of each action, until when media are busy; and the channels of each stage."""

    load: Workload
    inputs: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    outputs: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    done: dict[Action, float] = field(default_factory=dict)
    media: dict[str, float] = field(default_factory=lambda: defaultdict(float))


def run_rows(load: Workload, rows: Mapping[str, Sequence[Action]]) -> list[Event]:
    """Runs rows of concrete actions. Raises DeadlockError, ValueError for an action of an unknown stage or channel.

    Among actions that can start, the one that can start first does (ties: order of rows); so a medium serves transfers in the
    order in which they become ready."""
    state = _State(load)
    for channel, wire in enumerate(load.wires):
        state.inputs[wire.target].append(channel)
        state.outputs[wire.source].append(channel)
    leads = {other: load.replicas[stage][0] for stage in load.together for other in load.replicas[stage][1:]}
    lanes = [
        _Lane(device, [action for action in actions if lane_of(action, load.comm) == lane])
        for device, actions in rows.items()
        if device not in leads
        for lane in LANES
    ]
    heap: list[tuple[float, int]] = []
    waiting: dict[Action, list[int]] = defaultdict(list)  # lanes, by an action that their next one waits for
    for number in range(len(lanes)):
        _wake(number, lanes, state, heap, waiting)
    events: list[Event] = []
    while heap:
        start, number = heapq.heappop(heap)
        lane = lanes[number]
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
            _wake(other, lanes, state, heap, waiting)
    stuck = [f"{_text(lane.queue[lane.position])} on {lane.device}" for lane in lanes if lane.position < len(lane.queue)]
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
    if action.kind != "send" or action.channel is None:
        return ()
    wire = load.wires[action.channel]
    rows = wire.media if action.stage == wire.source else wire.back
    return rows[(action.microbatch or 0) % len(rows)] if rows else ()


def _wake(
    number: int, lanes: Sequence[_Lane], state: _State, heap: list[tuple[float, int]], waiting: dict[Action, list[int]]
) -> None:
    """Puts the next action of a lane on the heap, or the lane on the list of what it waits for."""
    lane = lanes[number]
    if lane.position == len(lane.queue):
        return
    start = lane.free
    for needed in _needs(lane.queue[lane.position], state):
        end = state.done.get(needed)
        if end is None:
            waiting[needed].append(number)
            return
        start = max(start, end)
    heapq.heappush(heap, (start, number))


def lane_of(action: Action, comm: str) -> str:
    """The one of ``LANES`` that the action occupies."""
    if comm == "sum" or action.kind in (COMPUTE, BACKWARD, SYNC):
        return "compute"
    if comm == "overlap":
        return "transfers"
    return "in" if action.kind == "recv" else "out"


def _seconds(action: Action, load: Workload) -> float:
    own = {COMPUTE: load.compute, BACKWARD: load.backward, SYNC: load.sync}.get(action.kind)
    if own is not None:
        return own[action.stage]
    if action.channel is None or not 0 <= action.channel < len(load.wires):
        raise ValueError(f"{_text(action)}: no such channel")
    wire = load.wires[action.channel]
    return wire.send if action.stage == wire.source else wire.receive


def _needs(action: Action, state: _State) -> Iterator[Action]:
    """What must have ended before the action starts."""
    load, stage, number = state.load, action.stage, action.microbatch or 0
    if action.kind == "recv" and action.channel is not None:
        wire = load.wires[action.channel]
        yield Action("send", wire.target if stage == wire.source else wire.source, number, action.channel)
    elif action.kind == "send" and action.channel is not None:
        yield Action(COMPUTE if stage == load.wires[action.channel].source else BACKWARD, stage, number)
    elif action.kind == BACKWARD:
        yield Action(COMPUTE, stage, number)
        for channel in state.outputs.get(stage, ()):
            if load.wires[channel].learning:
                yield Action("recv", stage, number, channel)
    elif action.kind == COMPUTE:
        for channel in state.inputs.get(stage, ()):
            yield Action("recv", stage, number, channel)
        for channel in state.outputs.get(stage, ()):
            before = number - load.window_of(channel)
            if before >= 0:
                target = load.wires[channel].target
                yield Action(COMPUTE, target, before)
                if load.comm == "sum":  # its one lane lets go of the inputs when its sends are done too
                    yield from (Action("send", target, before, out) for out in state.outputs.get(target, ()))


def _text(action: Action) -> str:
    channel = "" if action.channel is None else f" channel {action.channel}"
    number = "" if action.microbatch is None else f", microbatch {action.microbatch}"
    return f"{action.kind} of stage {action.stage}{number}{channel}"


__all__ = ["BACKWARD", "COMPUTE", "SYNC", "DeadlockError", "Event", "lane_of", "run_rows", "simulate", "unrolled"]
