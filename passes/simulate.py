"""A discrete-event simulation of a schedule: what every device does when, under the rules that the runtime follows.

Rules (``comm`` of the plan says which *lanes* a device has):

1. A device runs the actions of its row in order, each as soon as its lane is free and what it waits for has happened. With
   ``sum`` one lane does everything; with ``overlap`` transfers have a lane beside compute; with ``duplex`` receiving and
   sending have one each.
2. ``send`` of a tensor waits for its stage's ``F`` of that microbatch and occupies the sender for its seconds; ``recv`` waits
   for the end of that ``send`` and occupies the receiver; ``F`` waits for all ``recv`` of its stage and microbatch.
3. Back-pressure: an edge has ``slots`` buffers, and one more for each stage that it passes over. ``F`` writes into them, so it
   waits until the receiver is done with the microbatch that many before.
4. Shared links: transfers that cross one medium follow each other; the medium is busy for the bytes over its bandwidth.
5. A replicated stage gives microbatch m to its replica m mod r.

Times are seconds from the first action. A row whose actions wait for each other in a circle is a ``DeadlockError`` that names
them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ir.diagnostics import InvalidInput
from ir.module import Action, Module, Plan, Schedule

COMPUTE = "F"


@dataclass(frozen=True, slots=True)
class Event:
    """``device`` did ``action`` from ``start`` to ``end``."""

    device: str
    action: Action
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Wire:
    """What one channel costs. ``source`` and ``target`` are stages; ``send`` and ``receive`` seconds at the two ends;
    ``media``: the shared links it crosses, each with the seconds it is busy with one message."""

    source: int
    target: int
    send: float
    receive: float
    media: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Workload:
    """All that the simulation needs besides the rows. ``compute[stage]`` in seconds per microbatch; ``replicas[stage]`` its
    devices; ``wires[channel]``; ``slots`` between neighbours."""

    compute: tuple[float, ...]
    replicas: tuple[tuple[str, ...], ...]
    wires: tuple[Wire, ...]
    comm: str = "sum"
    slots: int = 2

    def slots_of(self, channel: int) -> int:
        """Buffers of the edge that the channel belongs to."""
        wire = self.wires[channel]
        return self.slots + max(0, wire.target - wire.source - 1)


class DeadlockError(Exception):
    """No action can go on although some are left: ``waiting`` says which, one per device and lane."""

    def __init__(self, waiting: Sequence[str]) -> None:
        self.waiting = tuple(waiting)
        super().__init__("the schedule cannot go on: " + "; ".join(waiting))


def simulate(module: Module, microbatches: int = 8) -> list[Event]:
    """The timeline of ``microbatches`` samples through the module's schedule: by stage's device, then by start.

    Raises InvalidInput when the module has no plan, no schedule, or its schedule deadlocks."""
    from passes.place import workload

    plan, schedule = module.first(Plan), module.first(Schedule)
    if plan is None or schedule is None:
        raise InvalidInput(
            "the module has no schedule to simulate", where=module.name, hint="run partition, place and schedule first"
        )
    load = replace(workload(module), slots=schedule.slots)
    try:
        return run_rows(load, unrolled(schedule, microbatches))
    except DeadlockError as error:
        raise InvalidInput(str(error), where=schedule.name) from error


def unrolled(schedule: Schedule, microbatches: int) -> dict[str, list[Action]]:
    """The actions of each device for ``microbatches`` samples. A periodic row is repeated; its microbatch numbers are offsets
    from the number of the period, and what falls outside the samples, or belongs to another replica, is left out."""
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
            and replicas[action.stage][number % len(replicas[action.stage])] == device
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
    """What has happened: end of each action, when a stage let go of a microbatch's inputs, and how long media are busy."""

    done: dict[Action, float] = field(default_factory=dict)
    media: dict[str, float] = field(default_factory=lambda: defaultdict(float))


def run_rows(load: Workload, rows: Mapping[str, Sequence[Action]]) -> list[Event]:
    """Runs rows of concrete actions. Raises DeadlockError, ValueError for an action of an unknown stage or channel.

    Among actions that can start, the one that can start first does (ties: order of rows); so a medium serves transfers in the
    order in which they become ready."""
    lanes = [
        _Lane(device, [action for action in actions if _lane_of(action, load.comm) == lane])
        for device, actions in rows.items()
        for lane in ("compute", "in", "out")
    ]
    inputs: dict[int, list[int]] = defaultdict(list)
    outputs: dict[int, list[int]] = defaultdict(list)
    for channel, wire in enumerate(load.wires):
        inputs[wire.target].append(channel)
        outputs[wire.source].append(channel)
    state = _State()
    events: list[Event] = []
    left = sum(len(lane.queue) for lane in lanes)
    while left:
        best: tuple[float, int] | None = None
        for number, lane in enumerate(lanes):
            if lane.position < len(lane.queue):
                ready = _ready(lane.queue[lane.position], load, state, inputs, outputs)
                if ready is not None and (best is None or max(ready, lane.free) < best[0]):
                    best = (max(ready, lane.free), number)
        if best is None:
            waiting = [
                f"{_text(lane.queue[lane.position])} on {lane.device}" for lane in lanes if lane.position < len(lane.queue)
            ]
            raise DeadlockError(waiting)
        start, number = best
        lane = lanes[number]
        action = lane.queue[lane.position]
        end = start + _seconds(action, load)
        if action.kind == "send" and action.channel is not None:
            for name, busy in load.wires[action.channel].media:
                state.media[name] = start + busy
        state.done[action] = lane.free = end
        lane.position += 1
        left -= 1
        events.append(Event(lane.device, action, start, end))
    order = {device: number for number, device in enumerate(rows)}
    return sorted(events, key=lambda event: (order[event.device], event.start, event.end))


def _lane_of(action: Action, comm: str) -> str:
    if comm == "sum" or action.kind == COMPUTE:
        return "compute"
    return "in" if action.kind == "recv" or comm == "overlap" else "out"


def _seconds(action: Action, load: Workload) -> float:
    if action.kind == COMPUTE:
        return load.compute[action.stage]
    if action.channel is None or not 0 <= action.channel < len(load.wires):
        raise ValueError(f"{_text(action)}: no such channel")
    wire = load.wires[action.channel]
    return wire.send if action.kind == "send" else wire.receive


def _ready(
    action: Action, load: Workload, state: _State, inputs: Mapping[int, list[int]], outputs: Mapping[int, list[int]]
) -> float | None:
    """When what the action waits for has happened; None while it has not."""
    stage, number = action.stage, action.microbatch or 0
    if action.kind == "recv":
        sender = load.wires[action.channel].source if action.channel is not None else stage
        return state.done.get(Action("send", sender, number, action.channel))
    if action.kind == "send":
        begin = state.done.get(Action(COMPUTE, stage, number))
        if begin is None or action.channel is None:
            return begin
        return max((begin, *(state.media[name] for name, _ in load.wires[action.channel].media)))
    needed = [state.done.get(Action("recv", stage, number, channel)) for channel in inputs.get(stage, ())]
    for channel in outputs.get(stage, ()):
        before = number - load.slots_of(channel)
        if before >= 0:
            needed.append(_released(load.wires[channel].target, before, load, state, outputs))
    return None if None in needed else max((0.0, *(time for time in needed if time is not None)))


def _released(stage: int, number: int, load: Workload, state: _State, outputs: Mapping[int, list[int]]) -> float | None:
    """When the stage let go of the inputs of a microbatch: after its compute, and with one lane after its sends too."""
    ends = [state.done.get(Action(COMPUTE, stage, number))]
    if load.comm == "sum":
        ends += [state.done.get(Action("send", stage, number, channel)) for channel in outputs.get(stage, ())]
    return None if None in ends else max(end for end in ends if end is not None)


def _text(action: Action) -> str:
    channel = "" if action.channel is None else f" channel {action.channel}"
    return f"{action.kind} of stage {action.stage}, microbatch {action.microbatch}{channel}"


__all__ = ["DeadlockError", "Event", "Wire", "Workload", "run_rows", "simulate", "unrolled"]
