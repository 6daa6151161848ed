"""The slow twin of the simulator: the same rules in plain Python, action by action."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ir.core.module import Action
from ir.ops.rows import INPUT_GRADIENT, RECEIVE, SEND, WEIGHT_GRADIENT, Flow, action_text, lanes
from passes.timeline.simulate import DeadlockError, Event
from passes.timeline.workload import Workload


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


def run_rows_slowly(load: Workload, rows: Mapping[str, Sequence[Action]]) -> list[Event]:
    """What ``run_rows`` returns and raises, to the last digit."""
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
        end = state.done[action] = lane.free = start + _seconds(action, load, state.flow)
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
    events += [event._replace(device=other) for event in events for other in members.get(event.device, ()) if other in rows]
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


def _seconds(action: Action, load: Workload, flow: Flow) -> float:
    number = action.microbatch or 0
    if action.kind not in (SEND, RECEIVE):
        if load.paces:
            return load.paces[action.stage][number % len(load.paces[action.stage])]
        return load.seconds(action.kind, action.stage, split=action.stage in flow.split)
    if action.channel is None or not 0 <= action.channel < len(load.wires):
        raise ValueError(f"{action_text(action)}: no such channel")
    wire = load.wires[action.channel]
    of_turn = wire.sends if action.kind == SEND else wire.receives
    if of_turn:
        return of_turn[number % len(of_turn)]
    return wire.send if action.kind == SEND else wire.receive
