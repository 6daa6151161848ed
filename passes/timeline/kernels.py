"""The compiled loop of the simulator: when each action of some rows starts and ends. Arrays in, arrays out.

An action is a *verb*, what is done, and the number of a microbatch. Lanes are queues of actions that follow each other. A slow
twin in plain Python is in ``tests/passes/timeline/followed.py``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from passes.solvers.kernels import compiled, part


class Verbs(NamedTuple):
    """``v`` takes ``seconds[i]``, ``pace_start[v] <= i < pace_start[v + 1]``, by microbatch in turn. ``v`` of microbatch m
    waits for ``need[i]`` of microbatch m - ``back[i]``, where there is one, for ``need_start[v] <= i < need_start[v + 1]``.
    ``turn_start[v]``: its rows of shared links, by microbatch in turn; row r occupies ``medium[i]`` for ``busy[i]`` seconds,
    ``medium_start[r] <= i < medium_start[r + 1]``."""

    pace_start: Any
    seconds: Any
    need_start: Any
    need: Any
    back: Any
    turn_start: Any
    medium_start: Any
    medium: Any
    busy: Any


class Lanes(NamedTuple):
    """The actions of lane n: ``verb`` and ``number`` from ``start[n]`` to ``start[n + 1]``."""

    start: Any
    verb: Any
    number: Any


class State(NamedTuple):
    """``end[v, m]`` of what is done, -1 else, and ``waiting[v, m]``, a lane that waits for it; ``behind[n]``, another lane that
    waits for the same as lane n, -1: none. Of each lane the ``position`` of its next action and when it is ``free``; of each
    medium when it is ``vacant``. ``times`` and ``lanes``: a heap of lanes whose next action can start, with when."""

    end: Any
    waiting: Any
    behind: Any
    position: Any
    free: Any
    vacant: Any
    times: Any
    lanes: Any


@part
def push(times: Any, lanes: Any, size: int, time: float, lane: int) -> int:
    """Adds a lane to a heap, least time first, then least lane; returns its size."""
    at = size
    while at > 0:
        parent = (at - 1) >> 1
        if times[parent] < time or (times[parent] == time and lanes[parent] < lane):
            break
        times[at], lanes[at] = times[parent], lanes[parent]
        at = parent
    times[at], lanes[at] = time, lane
    return size + 1


@part
def pop(times: Any, lanes: Any, size: int) -> int:
    """Takes the first lane from a heap; returns its size."""
    size -= 1
    time, lane = times[size], lanes[size]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        other = child + 1
        if other < size and (times[other] < times[child] or (times[other] == times[child] and lanes[other] < lanes[child])):
            child = other
        if time < times[child] or (time == times[child] and lane < lanes[child]):
            break
        times[at], lanes[at] = times[child], lanes[child]
        at = child
    times[at], lanes[at] = time, lane
    return size


@part
def wake(lane: int, verbs: Any, queues: Any, state: Any, size: int) -> int:
    """Puts the next action of a lane on the heap, or the lane with those that wait for the same; returns the heap's size."""
    at = state.position[lane]
    if at == queues.start[lane + 1]:
        return size
    verb, number, start = queues.verb[at], queues.number[at], state.free[lane]
    for i in range(verbs.need_start[verb], verbs.need_start[verb + 1]):
        needed, before = verbs.need[i], number - verbs.back[i]
        if before < 0:
            continue
        end = state.end[needed, before]
        if end < 0.0:
            state.behind[lane] = state.waiting[needed, before]
            state.waiting[needed, before] = lane
            return size
        start = max(start, end)
    return push(state.times, state.lanes, size, start, lane)


@part
def occupy(verb: int, number: int, start: float, verbs: Any, state: Any) -> float:
    """When the media of an action that could begin at ``start`` are vacant; if that is ``start``, they are occupied."""
    first, turns = verbs.turn_start[verb], verbs.turn_start[verb + 1] - verbs.turn_start[verb]
    if turns == 0:
        return start
    row = first + number % turns
    free = start
    for i in range(verbs.medium_start[row], verbs.medium_start[row + 1]):
        free = max(free, state.vacant[verbs.medium[i]])
    if free == start:
        for i in range(verbs.medium_start[row], verbs.medium_start[row + 1]):
            state.vacant[verbs.medium[i]] = start + verbs.busy[i]
    return free


@compiled
def follow(verbs: Any, queues: Any, state: Any, starts: Any, ends: Any, order: Any) -> int:
    """Does the actions of all lanes: of those that can start, the one that can first, of the least lane. Fills when each starts
    and ends, and as which it does. Returns how many were done: all, unless the rest waits for itself in a circle."""
    size = 0
    done = 0
    for lane in range(len(queues.start) - 1):
        size = wake(lane, verbs, queues, state, size)
    while size > 0:
        start, lane = state.times[0], state.lanes[0]
        size = pop(state.times, state.lanes, size)
        at = state.position[lane]
        verb, number = queues.verb[at], queues.number[at]
        free = occupy(verb, number, start, verbs, state)
        if free > start:
            size = push(state.times, state.lanes, size, free, lane)
            continue
        first = verbs.pace_start[verb]
        end = start + verbs.seconds[first + number % (verbs.pace_start[verb + 1] - first)]
        starts[at], ends[at], order[at] = start, end, done
        done += 1
        state.end[verb, number] = end
        state.free[lane] = end
        state.position[lane] += 1
        size = wake(lane, verbs, queues, state, size)
        other = state.waiting[verb, number]
        state.waiting[verb, number] = -1
        while other >= 0:
            following = state.behind[other]
            size = wake(other, verbs, queues, state, size)
            other = following
    return done


def state_of(verbs: int, microbatches: int, lanes: Any, media: int) -> State:
    """Nothing done; ``lanes``: where each begins, and the last ends."""
    count = len(lanes) - 1
    return State(
        end=np.full((verbs, microbatches), -1.0),
        waiting=np.full((verbs, microbatches), -1, np.int64),
        behind=np.full(count, -1, np.int64),
        position=lanes[:-1].copy(),
        free=np.zeros(count),
        vacant=np.zeros(media),
        times=np.empty(count + 1),
        lanes=np.empty(count + 1, np.int64),
    )
