"""Checks that devices can follow the rows of a schedule by the rules of ``ir/ops/rows.py``.

Rows deadlock exactly when actions wait for each other in a circle that leads to the same or a later period. ``faults`` looks
for such a circle in the graph of one period (``_circle``), for any number of samples, without simulating the rows.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ir.core.module import Action, Schedule
from ir.ops.rows import BACKWARD, INPUT_GRADIENT, UPDATE, WEIGHT_GRADIENT, Flow, Places, action_text, lanes, walk

MOST_CELLS = 1 << 18
"""Actions of a turn of replicas with different rows in which a deadlock is looked for, which takes some seconds."""


def faults(schedule: Schedule, flow: Flow) -> list[str]:
    """Why the rows cannot be followed: actions on the wrong device, missing or repeated actions, different rows for members of
    one mesh; a deadlock is looked for where there are none of these. Time is about linear in the actions of a period, or, where
    rows of replicas differ, in the actions of a turn of all replicas."""
    flow = flow.following(schedule)
    messages = [*_odd_devices(flow), *_odd_stream(schedule, flow)]
    messages += (fault for device, actions in schedule.rows for fault in _odd_actions(schedule, flow, device, actions))
    return messages or [*_missing(schedule, flow), *_unlike_members(schedule, flow)] or _deadlock(schedule, flow)


def _odd_devices(flow: Flow) -> Iterator[str]:
    """Stages that name a device twice, or share some of their devices but not all."""
    for stage, devices in enumerate(flow.devices):
        yield from (f"stage {stage} has '{name}' {count} times" for name, count in Counter(devices).items() if count > 1)
        for other in range(stage):
            if set(devices) & set(flow.devices[other]) and devices != flow.devices[other]:
                yield f"stages {other} and {stage} share some of their devices; they share all or none"


def _odd_stream(schedule: Schedule, flow: Flow) -> Iterator[str]:
    """At inference, periods of several samples; in training, stages that need a flush between steps."""
    if not schedule.periodic:
        return
    if not flow.training and schedule.microbatches != 1:
        yield f"a period is of {schedule.microbatches} microbatches; at inference it is of one"
    for stage, devices in enumerate(flow.devices) if flow.training else ():
        if len(devices) > 1:
            yield f"stage {stage} is on {len(devices)} devices; rows without a flush are of single ones"
        shared = [other for other in range(stage) if set(devices) & set(flow.devices[other])]
        if any(channel.made == UPDATE and channel.source == stage for channel in flow.channels.values()):
            yield f"stage {stage} sends gradients of a weight that another stage updates; rows without a flush lack that"
        yield from (
            f"stages {other} and {stage} share devices; rows without a flush are of one stage on each" for other in shared
        )


def _odd_actions(schedule: Schedule, flow: Flow, device: str, actions: Sequence[Action]) -> Iterator[str]:
    """Actions of a row that do not exist, or that another device does."""
    of_stage: dict[int, set[tuple[str, int | None]]] = {}
    for action in actions:
        says = f"the row of '{device}' has {action_text(action)}"
        if not 0 <= action.stage < len(flow.devices):
            yield f"{says}, but there is no stage {action.stage}"
            continue
        if action.stage not in of_stage:
            of_stage[action.stage] = set(flow.actions(action.stage))
        if action.kind == UPDATE and action.channel is None and flow.training:
            last = schedule.microbatches - 1
            if schedule.periodic and (action.microbatch is None or action.microbatch % schedule.microbatches != last):
                yield f"{says}, but an update has the number of the last microbatch of its step: U({action.stage}, {last})"
            elif not schedule.periodic and action.microbatch is not None:
                yield f"{says}, but an update is of the whole step: U({action.stage}, _)"
            continue
        if (action.kind, action.channel) not in of_stage[action.stage]:
            known = ", ".join(kind if c is None else f"{kind} of channel {c}" for kind, c in flow.actions(action.stage))
            yield f"{says}, which stage {action.stage} does not do; it does {known}"
        elif device not in flow.devices[action.stage]:
            yield f"{says}, but stage {action.stage} is on {', '.join(flow.devices[action.stage])}"
        elif action.microbatch is None:
            yield f"{says} without a microbatch"


def _missing(schedule: Schedule, flow: Flow) -> Iterator[str]:
    """Actions that a row lacks, or has twice."""
    rows: Counter[tuple[str, Action]] = Counter()
    for device, actions in schedule.rows:
        rows.update((device, _of_period(action, schedule)) for action in actions)
    every = schedule.microbatches
    for stage, devices in enumerate(flow.devices):
        for device in devices:
            for number in range(every):
                if not schedule.periodic and not flow.works(device, stage, number):
                    continue
                for kind, channel in flow.actions(stage):
                    count = rows[device, Action(kind, stage, number, channel)]
                    what = f"{kind} of stage {stage}" + ("" if channel is None else f" for channel {channel}")
                    what += f" and microbatch {number}" if every > 1 or not schedule.periodic else ""
                    if count != 1:
                        yield f"the row of '{device}' lacks {what}" if not count else f"the row of '{device}' has {what} twice"
            updates = rows[device, Action(UPDATE, stage, every - 1 if schedule.periodic else None)]
            if updates > 1 or (stage in flow.updates and not updates):
                yield f"the row of '{device}' {'has' if updates else 'lacks'} U of stage {stage}{' twice' if updates else ''}"
    yield from _early_updates(schedule)


def _of_period(action: Action, schedule: Schedule) -> Action:
    """The action as that of the first period."""
    if not schedule.periodic or action.microbatch is None:
        return action
    return replace(action, microbatch=action.microbatch % schedule.microbatches)


def _early_updates(schedule: Schedule) -> Iterator[str]:
    """Updates that are not the last action of their stage; in periodic rows, updates before a backward pass of their step or
    after one of the next step."""
    for device, actions in schedule.rows:
        if schedule.periodic:
            yield from _between_updates(schedule, device, actions)
            continue
        updated: set[int] = set()
        for action in actions:
            if action.kind == UPDATE:
                updated.add(action.stage)
            elif action.stage in updated:
                yield f"the row of '{device}' has {action_text(action)} behind U({action.stage}, _), the last of its stage"


def _between_updates(schedule: Schedule, device: str, actions: Sequence[Action]) -> Iterator[str]:
    """Backward passes of a periodic row that are not between the update of the step before and the update of their own step."""
    every = schedule.microbatches
    places = Places.in_row(actions, every)
    for action in actions:
        if action.kind not in (BACKWARD, INPUT_GRADIENT, WEIGHT_GRADIENT) or action.microbatch is None:
            continue
        step, place = action.microbatch // every, places.of(action)
        before, own = (places.of(Action(UPDATE, action.stage, end * every - 1)) for end in (step, step + 1))
        if place is not None and before is not None and own is not None and not before < place < own:
            yield f"the row of '{device}' has {action_text(action)} on the wrong side of an update of its stage"


def _unlike_members(schedule: Schedule, flow: Flow) -> Iterator[str]:
    rows = dict(schedule.rows)
    for other, lead in flow.leads.items():
        if rows.get(other) != rows.get(lead):
            yield f"the rows of '{lead}' and '{other}' differ, but they are members of one mesh"


@dataclass(frozen=True, slots=True)
class _Cell:
    """An action of a device that works on ``microbatch`` in the first turn of all replicas, and on one ``turn`` later in each
    further one. ``shown``: as its row spells it."""

    device: str
    action: Action
    shown: Action


@dataclass(frozen=True, slots=True)
class _Wait:
    """A cell waits for cell ``on`` of ``turns`` turns before; ``order``: because it stands behind it in its lane."""

    on: int
    turns: int
    order: bool


def _deadlock(schedule: Schedule, flow: Flow) -> list[str]:
    """A circle of waits in words, if there is one: a phrase for each device."""
    every = sum(len(row) for device, row in schedule.rows if device not in flow.leads)
    if not schedule.periodic and sum(1 for _ in walk(schedule, flow, schedule.microbatches)) == every:
        return []  # found out in a fifth of the time that the circle takes
    rows = {device: lanes(actions, flow.comm) for device, actions in schedule.rows if device not in flow.leads}
    unlike = set[tuple[str, ...]]()  # stages whose replicas have unlike rows, or unlike turns
    if schedule.periodic:
        unlike = {on for on in flow.takers if len(set(on)) < len(on) or any(rows[device] != rows[on[0]] for device in on)}
    turn = math.lcm(*map(len, unlike))
    if (count := turn * sum(len(lane) for of_device in rows.values() for lane in of_device)) > MOST_CELLS and turn > 1:
        what = "turns of replicas" if flow.serves else "rows of replicas differ and"
        return [f"{what} meet again after {turn} microbatches, {count} actions: make them equal"]
    cells: list[_Cell] = []
    waits: list[list[_Wait]] = []
    replicas = {on[0]: len(on) for on in flow.takers if on not in unlike} if schedule.periodic else {}
    others = {device for on in flow.takers if on[0] in replicas for device in on[1:]}
    for device, of_device in rows.items():
        for lane in of_device if device not in others else []:
            if device in replicas:
                _add_alike(device, lane, replicas[device], turn, cells, waits)
                continue
            start = len(cells)
            for period in range(turn):
                for action in lane:
                    own = replace(action, microbatch=period + (action.microbatch or 0)) if schedule.periodic else action
                    if not schedule.periodic or flow.works(device, own.stage, own.microbatch or 0):
                        waits.append([_Wait(len(cells) - 1, 0, True)] if len(cells) > start else [])
                        cells.append(_Cell(device, own, action))
            if schedule.periodic and len(cells) > start:
                waits[start].append(_Wait(len(cells) - 1, 1, True))
    _add_needs(schedule, flow, cells, waits, turn)
    circle = _circle([[(wait.on, wait.turns) for wait in of_cell] for of_cell in waits])
    if not circle:
        return []
    return ["the rows wait for each other in a circle: " + "; ".join(_phrases(cells, waits, circle))]


def _add_alike(
    device: str, lane: Sequence[Action], replicas: int, turn: int, cells: list[_Cell], waits: list[list[_Wait]]
) -> None:
    """Adds the cells of replicas whose rows are equal, and the waits in their lanes. One period then stands for all replicas:
    an action with offset o in period k follows the last action before it that the same replica does, of offset o' in period k -
    d, where d = o' - o modulo ``replicas``."""
    positions: dict[int, list[int]] = defaultdict(list)
    for position, action in enumerate(lane):
        positions[(action.microbatch or 0) % replicas].append(position)
    behind: list[tuple[int, int]] = []
    earlier: dict[int, int] = {}
    for position, action in enumerate(lane):
        own = (action.microbatch or 0) % replicas
        last = min(((rest - own) % replicas or replicas, of_rest[-1]) for rest, of_rest in positions.items())
        behind.append((0, earlier[own]) if own in earlier else last)
        earlier[own] = position
    start = len(cells)
    for period in range(turn):
        for action, (periods, position) in zip(lane, behind, strict=True):
            turns, before = divmod(period - periods, turn)
            waits.append([_Wait(start + before * len(lane) + position, -turns, True)])
            cells.append(_Cell(device, replace(action, microbatch=period + (action.microbatch or 0)), action))


def _phrases(cells: Sequence[_Cell], waits: Sequence[Sequence[_Wait]], circle: Sequence[int]) -> Iterator[str]:
    """Describes the waits of a circle, device by device: the action that is stuck, the action before it, and what that waits
    for."""
    steps = [
        (cell, on, min((w for w in waits[cell] if w.on == on), key=lambda w: (w.turns, not w.order)).order)
        for cell, on in zip(circle, (*circle[1:], circle[0]), strict=True)
    ]
    begin = min((n for n in range(len(steps)) if not steps[n - 1][2]), key=lambda n: steps[n][0])  # not in the middle of a lane
    entered = -1
    for cell, on, order in (*steps[begin:], *steps[:begin]):
        entered = cell if entered < 0 else entered
        if not order:
            first, last, needed = (action_text(cells[n].shown) for n in (entered, cell, on))
            behind = f"stands behind {last}, which " if cell != entered else ""
            yield f"on {cells[cell].device}, {first} {behind}waits for {needed}"
            entered = -1


def _add_needs(schedule: Schedule, flow: Flow, cells: Sequence[_Cell], waits: list[list[_Wait]], turn: int) -> None:
    """Adds the waits of each cell beside those of its lane. They are those of a late microbatch, before which no action is
    skipped."""
    turn *= schedule.microbatches if schedule.periodic else 1
    number = {
        (
            c.action.kind,
            c.action.stage,
            c.action.channel,
            (c.action.microbatch or 0) % turn if schedule.periodic else c.action,
        ): n
        for n, c in enumerate(cells)
    }
    windows = [flow.window(channel) for channel in flow.channels]
    least = min((cell.action.microbatch or 0 for cell in cells), default=0)
    later = turn * -(-(max(windows, default=0) - min(0, least)) // turn) if schedule.periodic else 0
    for cell, of_cell in zip(cells, waits, strict=True):
        for needed in flow.needs(replace(cell.action, microbatch=(cell.action.microbatch or 0) + later)):
            microbatch = (needed.microbatch or 0) - later
            own = replace(needed, microbatch=microbatch)
            on = number[needed.kind, needed.stage, needed.channel, microbatch % turn if schedule.periodic else own]
            turns = ((cells[on].action.microbatch or 0) - microbatch) // turn
            of_cell.append(_Wait(on, turns, False))


def _circle(waits: Sequence[Sequence[tuple[int, int]]]) -> list[int]:
    """Cells that wait for each other in a circle, each for the next one; empty where there is no deadlock. ``waits``: per cell
    the cells that it waits for, and how many turns earlier.

    A circle is a deadlock if its turns add up to 0 or less. With n cells, give each wait the length 1 - (n + 1) turns: a
    deadlock is a circle of positive length. Bellman and Ford's search for longest paths ends unless there is one; if it does
    not end, the last steps of the paths form the circle."""
    count = len(waits)
    followers: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for cell, of_cell in enumerate(waits):
        for on, turns in of_cell:
            followers[on].append((cell, 1 - (count + 1) * turns))
    length, step = [0] * count, [-1] * count
    queue, queued, changes = deque(_order(waits)), [True] * count, 0
    while queue:
        on = queue.popleft()
        queued[on] = False
        for cell, gain in followers[on]:
            if length[on] + gain > length[cell]:
                length[cell], step[cell] = length[on] + gain, on
                changes += 1
                if changes % count == 0 and (found := _loop(step)):
                    return found
                if not queued[cell]:
                    queued[cell] = True
                    queue.append(cell)
    return []


def _order(waits: Sequence[Sequence[tuple[int, int]]]) -> list[int]:
    """All cells, in topological order of the waits within one turn: then one visit per cell suffices for most rows."""
    left = [sum(turns == 0 for _, turns in of_cell) for of_cell in waits]
    followers: list[list[int]] = [[] for _ in waits]
    for cell, of_cell in enumerate(waits):
        for on, turns in of_cell:
            if turns == 0:
                followers[on].append(cell)
    found = [cell for cell, count in enumerate(left) if not count]
    for cell in found:
        for follower in followers[cell]:
            left[follower] -= 1
            if not left[follower]:
                found.append(follower)
    return [*found, *(cell for cell, count in enumerate(left) if count)]


def _loop(step: Sequence[int]) -> list[int]:
    """A circle among ``step``, the cell that each comes from (-1: none)."""
    seen = [0] * len(step)
    for start in range(len(step)):
        cell = start
        while cell >= 0 and not seen[cell]:
            seen[cell] = start + 1
            cell = step[cell]
        if cell >= 0 and seen[cell] == start + 1:
            found = [cell]
            while step[found[-1]] != cell:
                found.append(step[found[-1]])
            return found
    return []
