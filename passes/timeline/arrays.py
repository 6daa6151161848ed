"""Rows of actions and their seconds as arrays for ``kernels``, and what they tell of the rows as Python objects again.

A verb is a pass of a stage, or one end of a channel. What one waits for is asked of ``ir.ops.rows.Flow.needs``, for a
microbatch so late that all it can wait for is there: the rules stand there alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import numpy as np

from ir.core.module import Action
from ir.ops.rows import (
    BACKWARD,
    COMPUTE,
    INPUT_GRADIENT,
    LANES,
    RECEIVE,
    SEND,
    UPDATE,
    WEIGHT_GRADIENT,
    Flow,
    action_text,
    lane_of,
)
from passes.timeline.kernels import Lanes, Verbs, follow, state_of
from passes.timeline.workload import Workload

PASSES = (COMPUTE, INPUT_GRADIENT, WEIGHT_GRADIENT, BACKWARD, UPDATE)
KINDS = {kind: number for number, kind in enumerate((*PASSES, RECEIVE, SEND))}


@dataclass(frozen=True)
class Followed:
    """What became of the rows, lane by lane: ``starts`` and ``ends`` of each action, which is ``actions[place[i]]`` and of
    ``devices[owner[i]]``, and which one after the other were done, in ``order``. ``stuck``: the next action of each lane that
    waits for ever."""

    devices: tuple[str, ...]
    actions: Sequence[Action]
    place: Any
    owner: Any
    starts: Any
    ends: Any
    order: Any
    stuck: tuple[str, ...]

    @property
    def makespan(self) -> float:
        return float(self.ends.max(initial=0.0))

    def told(self) -> Iterator[tuple[str, Action, float, float]]:
        """Device, action, start and end of each; devices in turn, of each by start, then end, then as they were done."""
        by = np.lexsort((self.order, self.ends, self.starts, self.owner))
        devices = (self.devices[n] for n in self.owner[by].tolist())
        actions = (self.actions[n] for n in self.place[by].tolist())
        return zip(devices, actions, self.starts[by].tolist(), self.ends[by].tolist(), strict=True)


@dataclass(frozen=True)
class _Rows:
    """The actions of all devices, as arrays by column."""

    devices: tuple[str, ...]
    actions: list[Action]
    owner: Any
    kind: Any
    stage: Any
    number: Any
    channel: Any


def followed(load: Workload, rows: Mapping[str, Sequence[Action]]) -> Followed:
    """Follows the rows to their end, or until all wait; of a mesh those of its first member. Raises ValueError for an action of
    an unknown kind, stage or channel."""
    flow = load.flow
    table = _columns(load, {device: row for device, row in rows.items() if device not in flow.leads})
    halves = table.stage[(table.kind == KINDS[INPUT_GRADIENT]) | (table.kind == KINDS[WEIGHT_GRADIENT])]
    flow = replace(flow, split=frozenset(np.unique(halves).tolist()))
    lanes_of_kinds = np.array([LANES.index(lane_of(kind, load.comm)) for kind in KINDS])
    lane = table.owner * len(LANES) + lanes_of_kinds[table.kind]
    sorting = np.argsort(lane, kind="stable")
    lane, numbers = lane[sorting], table.number[sorting]
    begins = np.append(np.flatnonzero(np.diff(lane, prepend=-1)), len(lane))
    stages, wires = len(load.compute), len(load.wires)
    end_of_channel = len(PASSES) * stages + (table.kind - len(PASSES)) * wires + table.channel
    verb = np.where(table.kind < len(PASSES), table.kind * stages + table.stage, end_of_channel)[sorting]
    verbs, media = _verbs(load, flow)
    state = state_of(len(verbs.need_start) - 1, 1 + int(numbers.max(initial=0)), begins, media)
    starts, ends, order = np.zeros(len(verb)), np.zeros(len(verb)), np.full(len(verb), len(verb), np.int64)
    done = follow(verbs, Lanes(begins, verb, numbers), state, starts, ends, order)
    owner = table.owner[sorting]
    left = state.position[state.position < begins[1:]].tolist() if done < len(verb) else []
    stuck = tuple(f"{action_text(table.actions[sorting[at]])} on {table.devices[owner[at]]}" for at in left)
    return Followed(table.devices, table.actions, sorting, owner, starts, ends, order, stuck)


def _columns(load: Workload, rows: Mapping[str, Sequence[Action]]) -> _Rows:
    actions = [action for row in rows.values() for action in row]
    try:
        kind = np.array([KINDS[action.kind] for action in actions], np.int64)
    except KeyError as error:
        raise ValueError(f"{error.args[0]}: no such kind of action") from None
    stage = np.array(list(map(attrgetter("stage"), actions)), np.int64)
    number = np.array([action.microbatch or 0 for action in actions], np.int64)
    channel = np.array([-1 if action.channel is None else action.channel for action in actions], np.int64)
    crossing = kind >= len(PASSES)
    stated = np.array([len(of_kind) for of_kind in _stated(load).values()] + [0, 0])
    known = np.where(crossing, (channel >= 0) & (channel < len(load.wires)), (stage >= 0) & (stage < stated[kind]))
    if not known.all() or number.min(initial=0) < 0:
        wrong = actions[int(np.flatnonzero(~known | (number < 0))[0])]
        raise ValueError(
            f"{action_text(wrong)}: no such {'channel' if wrong.kind in (SEND, RECEIVE) else 'stage'}, or microbatch"
        )
    owner = np.repeat(np.arange(len(rows)), [len(row) for row in rows.values()])
    return _Rows(tuple(rows), actions, owner, kind, stage, number, channel)


def _stated(load: Workload) -> dict[str, tuple[float, ...]]:
    """Seconds that say whether a stage has passes of a kind: a workload of inference has ``F`` alone."""
    of_kind = (load.compute, load.weights, load.weights, load.backward, load.sync)
    return dict(zip(PASSES, of_kind, strict=True))


def _seconds(load: Workload, flow: Flow, verb: Action) -> tuple[float, ...]:
    """Of each turn of the verb's stage; one entry where all take as long."""
    if verb.channel is not None:
        wire = load.wires[verb.channel]
        return (wire.sends or (wire.send,)) if verb.kind == SEND else (wire.receives or (wire.receive,))
    if verb.stage >= len(_stated(load)[verb.kind]):
        return (0.0,)
    if verb.kind == COMPUTE and load.paces:
        return load.paces[verb.stage]
    return (load.seconds(verb.kind, verb.stage, split=verb.stage in flow.split),)


def _bounds(counts: Iterable[int]) -> Any:
    """Where each of several rows of so many entries begins, and the last ends."""
    return np.cumsum([0, *counts], dtype=np.int64)


def _verbs(load: Workload, flow: Flow) -> tuple[Verbs, int]:
    """What verbs take, wait for and occupy; and the number of media."""
    stages, wires = len(load.compute), len(load.wires)
    late = 1 + max(map(flow.window, flow.channels), default=0)
    verbs = [Action(kind, stage, late) for kind in PASSES for stage in range(stages)]
    verbs += [Action(RECEIVE, wire.target, late, c) for c, wire in enumerate(load.wires)]
    verbs += [Action(SEND, wire.source, late, c) for c, wire in enumerate(load.wires)]
    place = {(action.kind, action.stage, action.channel): v for v, action in enumerate(verbs)}
    names: dict[str, int] = {}
    needs: list[list[tuple[int, int]]] = []
    turns: list[list[list[tuple[int, float]]]] = []
    for v, action in enumerate(verbs):
        waits = flow.needs(action)
        needs.append([(place[one.kind, one.stage, one.channel], late - (one.microbatch or 0)) for one in waits])
        media = load.wires[action.channel or 0].media if v >= len(verbs) - wires else ()
        if action.channel is None and load.shared and load.shared[action.stage]:
            (taken,) = _seconds(load, flow, action)  # replicas have no collectives
            media = (tuple((name, part * taken) for name, part in load.shared[action.stage]),)
        turns.append([[(names.setdefault(name, len(names)), busy) for name, busy in row] for row in media])
    flat = [need for of_verb in needs for need in of_verb]
    occupied = [one for of_verb in turns for row in of_verb for one in row]
    seconds = [_seconds(load, flow, action) for action in verbs]
    return Verbs(
        pace_start=_bounds(map(len, seconds)),
        seconds=np.array([one for of_verb in seconds for one in of_verb], np.float64),
        need_start=_bounds(map(len, needs)),
        need=np.array([need for need, _ in flat], np.int64),
        back=np.array([back for _, back in flat], np.int64),
        turn_start=_bounds(map(len, turns)),
        medium_start=_bounds(len(row) for of_verb in turns for row in of_verb),
        medium=np.array([medium for medium, _ in occupied], np.int64),
        busy=np.array([busy for _, busy in occupied], np.float64),
    ), len(names)
