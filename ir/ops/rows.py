"""The meaning of a schedule: a *row* is the list of actions of one device, and these rules order the actions of all rows.

There are no seconds here. The verifier checks that devices can follow the rows (``ir/ops/row_faults.py``), the simulator adds
seconds, and the runtime follows the rows. Rules:

1. A device runs the actions of its row in order. An action starts once its *lane* is free and the actions it waits for have
   ended. ``comm = sum`` has one lane; ``overlap`` has two, compute and transfers; ``duplex`` has three, compute, receiving and
   sending.
2. ``recv`` waits for the ``send`` of its channel and microbatch; ``F`` for every ``recv`` of its stage and microbatch; ``send``
   for the ``F`` of its stage and microbatch.
3. In inference an edge, that is all channels between two stages, has ``edge_slots`` buffers; between replicated stages each
   pair of replicas that exchanges microbatches has its own. ``F`` writes its results into a buffer, so it waits until the
   reader's ``F`` has ended for the microbatch that used this buffer before. In training a send waits for no buffer.
4. A periodic row is one period of an endless stream and has every action of M microbatches once. In period k, the action with
   microbatch number o works on microbatch k M + o; actions on microbatches that do not exist are skipped. In inference M = 1.
5. The replicas of a stage have r turns, one each, or, at inference, as many as the plan says (``serves``); microbatch m is turn
   m mod r. The members of a mesh work on each microbatch together, so their rows are equal.
6. In training, ``I`` makes the gradients of values and ``W`` those of weights alone; ``B`` is ``I``, then ``W``. ``I`` waits
   for ``F`` of its stage and microbatch, ``W`` for ``I``; ``F``, ``I`` and ``W`` wait for each ``recv`` whose tensor they are
   the first to read. A gradient has its own channel, from the stage that makes it to an earlier one; its ``send`` waits for the
   ``I`` or ``W`` that makes it. ``U`` updates the weights, once per step, as the last action of its stage; it exchanges
   gradients itself.
7. Periodic rows of training are *asynchronous*: a period is a step of M microbatches, and no step waits until the pipeline is
   empty. ``U`` has the number of the last microbatch of its step. The backward passes of a step are between the ``U`` of the
   step before and its own. All passes of a step use the weights as they were when its first ``F`` began; the device keeps these
   until the step's ``U`` (weight stashing: Narayanan et al., SOSP 2019, section 3.3). ``delay`` counts the updates that they
   lack. Each stage has one device, and no two stages share a device.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from ir.core.module import Action, Schedule

COMPUTE = "F"
INPUT_GRADIENT = "I"
WEIGHT_GRADIENT = "W"
BACKWARD = "B"
"""``I``, then ``W``."""
UPDATE = "U"
RECEIVE = "recv"
SEND = "send"
SHOWN = 8
"""Microbatches of a stream that are simulated by default."""
SHOWN_STEPS = 3
"""Steps of an asynchronous training that are simulated by default."""
LANES = ("compute", "transfers", "in", "out")
"""A device runs the actions of a lane one after the other. The plan's ``comm`` says which lanes there are (rule 1)."""
Replica = TypeVar("Replica")


@dataclass(frozen=True, slots=True)
class Channel:
    """A tensor that stage ``source`` sends to stage ``target`` for each microbatch. In training it is made in phase ``made``
    and first read in phase ``read``. One that is made in ``U`` crosses once per step, and rows have no action for it."""

    source: int
    target: int
    made: str = COMPUTE
    read: str = COMPUTE


@dataclass(frozen=True)
class Flow:
    """Stages, devices, channels and buffers that the actions of rows refer to. ``devices`` of each stage: its replicas, which
    take microbatches in turn, or the members of its mesh if the stage is in ``together``. ``channels``: by number. ``slots``:
    buffers of an edge between neighbours. In training, ``split``: stages with ``I`` and ``W`` instead of ``B``; ``updates``:
    stages with ``U``. ``serves``: of each stage the number of the replica that has each turn, empty where each has one; empty
    where that holds of all stages."""

    devices: tuple[tuple[str, ...], ...]
    channels: Mapping[int, Channel]
    comm: str = "sum"
    slots: int = 2
    together: frozenset[int] = frozenset()
    training: bool = False
    split: frozenset[int] = frozenset()
    updates: frozenset[int] = frozenset()
    serves: tuple[tuple[int, ...], ...] = ()

    def following(self, schedule: Schedule) -> Flow:
        """This flow, with ``split`` as in the rows of ``schedule``."""
        kinds = (INPUT_GRADIENT, WEIGHT_GRADIENT)
        split = frozenset(action.stage for _, row in schedule.rows for action in row if action.kind in kinds)
        return self if split == self.split else replace(self, split=split)

    @cached_property
    def takers(self) -> tuple[tuple[str, ...], ...]:
        """The device of each turn of each stage: one of its replicas, or the first member of its mesh."""
        return tuple(
            on[:1] if stage in self.together else by_turn(on, self.serves[stage] if self.serves else ())
            for stage, on in enumerate(self.devices)
        )

    @cached_property
    def leads(self) -> dict[str, str]:
        """The first member of a mesh, by each other member."""
        return {other: self.devices[stage][0] for stage in sorted(self.together) for other in self.devices[stage][1:]}

    @cached_property
    def received(self) -> dict[int, list[int]]:
        """Channels that each stage reads, ascending."""
        return self._by_stage(lambda channel: channel.target)

    @cached_property
    def sent(self) -> dict[int, list[int]]:
        """Channels that each stage fills, ascending."""
        return self._by_stage(lambda channel: channel.source)

    def _by_stage(self, end: Callable[[Channel], int]) -> dict[int, list[int]]:
        channels: dict[int, list[int]] = defaultdict(list)
        for number in sorted(self.channels):
            if self.channels[number].made != UPDATE:
                channels[end(self.channels[number])].append(number)
        return channels

    def works(self, device: str, stage: int, microbatch: int) -> bool:
        """Whether the device works on this microbatch of the stage: it is its turn, or it is a member of its mesh."""
        if stage in self.together:
            return device in self.devices[stage]
        turns = self.takers[stage]
        return turns[microbatch % len(turns)] == device

    def window(self, channel: int) -> int:
        """A buffer that holds microbatch m is filled again by microbatch m + window. With r and s turns, pairs of replicas
        exchange the same microbatches again after lcm(r, s); a pair has ``edge_slots`` buffers for each of those in between."""
        ends = self.channels[channel]
        turns = math.lcm(len(self.takers[ends.source]), len(self.takers[ends.target]))
        return turns * edge_slots(self.comm, ends.source, ends.target, self.slots)

    def backward(self, stage: int) -> tuple[str, ...]:
        """The actions of the backward pass of a stage."""
        if not self.training:
            return ()
        return (INPUT_GRADIENT, WEIGHT_GRADIENT) if stage in self.split else (BACKWARD,)

    def does(self, phase: str, stage: int) -> str:
        """The kind of action in which a stage does a phase."""
        return phase if phase in (COMPUTE, UPDATE) or stage in self.split else BACKWARD

    def actions(self, stage: int) -> Iterator[tuple[str, int | None]]:
        """Kind and channel of each action of a stage for one microbatch."""
        yield from ((RECEIVE, c) for c in self.received.get(stage, ()))
        yield COMPUTE, None
        yield from ((kind, None) for kind in self.backward(stage))
        yield from ((SEND, c) for c in self.sent.get(stage, ()))

    def needs(self, action: Action) -> Iterator[Action]:
        """The actions, beside those before it in its lane, that must have ended before this one starts."""
        stage, number, channel = action.stage, action.microbatch or 0, action.channel
        if action.kind == RECEIVE and channel is not None:
            yield Action(SEND, self.channels[channel].source, number, channel)
        elif action.kind == SEND and channel is not None:
            yield Action(self.does(self.channels[channel].made, stage), stage, number)
        elif action.kind == UPDATE:
            return
        else:
            if action.kind in (INPUT_GRADIENT, BACKWARD):
                yield Action(COMPUTE, stage, number)
            elif action.kind == WEIGHT_GRADIENT:
                yield Action(INPUT_GRADIENT, stage, number)
            for c in self.received.get(stage, ()):
                if self.does(self.channels[c].read, stage) == action.kind:
                    yield Action(RECEIVE, stage, number, c)
            for c in self.sent.get(stage, ()) if not self.training else ():
                before = number - self.window(c)
                if before >= 0:
                    yield Action(COMPUTE, self.channels[c].target, before)


def by_turn(replicas: Sequence[Replica], serves: Sequence[int]) -> tuple[Replica, ...]:
    """The replica of each turn; ``serves``: their numbers, empty where each has one turn."""
    return tuple(replicas[number] for number in serves) if serves else tuple(replicas)


def with_gradients(channels: Mapping[int, Channel], learned: Iterable[int]) -> dict[int, Channel]:
    """The channels of a plan whose backward ops are not written out, with one for the gradient of each ``learned`` channel:
    numbered on behind the others, in ``gradient_order``."""
    forward = (channels[number] for number in sorted(learned))
    gradients = [Channel(there.target, there.source, INPUT_GRADIENT, INPUT_GRADIENT) for there in forward]
    gradients.sort(key=lambda channel: gradient_order(channel.source, channel.target))
    return {**channels, **dict(enumerate(gradients, 1 + max(channels, default=-1)))}


def gradient_order(source: int, target: int) -> tuple[int, int]:
    """The key by which channels of gradients are numbered: from the last stage to the first.

    It asks for stages alone, so that a row means the same whether the backward ops are written out or not. Several gradients
    from one stage to another may trade numbers: rows treat them alike."""
    return -source, -target


def edge_slots(comm: str, source: int, target: int, slots: int = 2) -> int:
    """Buffers of an edge: one for each phase that can work on a message of it at the same time, or the edge would hold up the
    stages between its ends. With one lane a stage is one phase; with lanes for transfers it is three (the message is made,
    sent, received, read)."""
    skipped = max(0, target - source - 1)
    return slots + skipped if comm == "sum" else 2 * slots + 3 * skipped


def lane_of(kind: str, comm: str) -> str:
    """The one of ``LANES`` that actions of this kind occupy."""
    if comm == "sum" or kind not in (RECEIVE, SEND):
        return "compute"
    if comm == "overlap":
        return "transfers"
    return "in" if kind == RECEIVE else "out"


def lanes(actions: Iterable[Action], comm: str) -> list[list[Action]]:
    """The actions of a row by lane, each lane in the row's order; empty lanes are left out."""
    by_lane: dict[str, list[Action]] = {lane: [] for lane in LANES}
    for action in actions:
        by_lane[lane_of(action.kind, comm)].append(action)
    return [lane for lane in by_lane.values() if lane]


def stream(actions: Sequence[Action], first: int, until: int, every: int = 1) -> Iterator[tuple[Action, int]]:
    """The actions of a periodic row for microbatches ``first`` to ``until - 1``, each with the microbatch that it works on;
    ``every``: microbatches of a period."""
    offsets = [action.microbatch or 0 for action in actions]
    for period in range((first - max(offsets, default=0)) // every, 1 + (until - 1 - min(offsets, default=0)) // every):
        for action, offset in zip(actions, offsets, strict=True):
            number = period * every + offset
            if first <= number < until:
                yield action, number


@dataclass(frozen=True)
class Places:
    """Where actions stand in a row: ``of`` gives the period and the place in it, in the order in which they are done.

    ``at``: the period of the actions of the first ``every`` microbatches, and their places."""

    every: int
    at: Mapping[Action, tuple[int, int]]

    @classmethod
    def in_row(cls, actions: Sequence[Action], every: int) -> Places:
        """``every``: the microbatches of a period, or of all of a row that is not periodic."""
        at = {}
        for place, action in enumerate(actions):
            period, number = divmod(action.microbatch or 0, every)
            own = action if action.microbatch is None else replace(action, microbatch=number)
            at[own] = (-period, place)
        return cls(every, at)

    def of(self, action: Action) -> tuple[int, int] | None:
        """None for an action that the row lacks."""
        if action.microbatch is None:
            return self.at.get(action)
        period, number = divmod(action.microbatch, self.every)
        entry = self.at.get(replace(action, microbatch=number))
        return None if entry is None else (period + entry[0], entry[1])


def delay(actions: Sequence[Action], stage: int, every: int) -> int:
    """How many updates the weights lack that a stage uses for a step, in an asynchronous row: the updates of earlier steps that
    come after the first ``F`` of the step."""
    places = Places.in_row(actions, every)
    first = min(place for number in range(every) if (place := places.of(Action(COMPUTE, stage, number))) is not None)
    lacking = 0
    while (updated := places.of(Action(UPDATE, stage, -1 - lacking * every))) is not None and updated > first:
        lacking += 1
    return lacking


def shown(schedule: Schedule) -> int:
    """How many microbatches to simulate by default: all of a training step, or some of a stream."""
    if not schedule.periodic:
        return schedule.microbatches
    deepest = max((action.microbatch or 0 for _, row in schedule.rows for action in row), default=0)
    return schedule.microbatches * max(SHOWN_STEPS, -(-max(SHOWN, 2 * deepest) // schedule.microbatches))


def unrolled(schedule: Schedule, flow: Flow, microbatches: int) -> dict[str, list[Action]]:
    """The actions of each device for ``microbatches`` samples; a row that is not periodic is taken as it is."""
    if not schedule.periodic:
        return {device: list(actions) for device, actions in schedule.rows}
    return {
        device: [
            replace(action, microbatch=number)
            for action, number in stream(actions, 0, microbatches, schedule.microbatches)
            if flow.works(device, action.stage, number)
        ]
        for device, actions in schedule.rows
    }


def walk(schedule: Schedule, flow: Flow, microbatches: int) -> Iterator[Action]:
    """The actions of all devices for so many samples, in an order that obeys the rules; it ends early in a deadlock."""
    flow = flow.following(schedule)
    rows = unrolled(schedule, flow, microbatches)
    queues = [deque(lane) for on, row in rows.items() if on not in flow.leads for lane in lanes(row, flow.comm)]
    done: set[Action] = set()
    before = -1
    while before < len(done):
        before = len(done)
        for queue in queues:
            while queue and all(needed in done for needed in flow.needs(queue[0])):
                done.add(queue[0])
                yield queue.popleft()


def action_text(action: Action) -> str:
    """An action as a row of ``plan.ir`` spells it."""
    microbatch = "_" if action.microbatch is None else action.microbatch
    channel = "" if action.channel is None else f", {action.channel}"
    return f"{action.kind}({action.stage}, {microbatch}{channel})"
