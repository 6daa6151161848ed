"""Two levels of links: groups of devices that talk faster to each other than to other groups.

Stages take devices in order, group after group, so the number of devices used tells which borders lie between groups. Between
the prefixes of one topological order two programmes, one in the other, hold the best plan of every number of stages:

    A[G][s+1][i] = min over j of max(A[G][s][j], load(j..i; G))      inside a group that begins at G
    D[g+1][i]    = min over G of max(D[g][G], A[G][size][i])         over groups

A stage pays the outer price for what was made before its group began, the inner price for the rest, and for what it sends that
of the border behind it, to as many stages as ``readers`` says (that depends on borders yet to come).

*Why this and not PipeDream's two rounds* (SOSP 2019, section 3.1: first every group alone, then groups as units of the same
split): there the split inside a group is fixed before it is known where the group begins. Here A is kept for every begin, so no
choice is made early. What is given up: boundaries off the order, groups of fewer stages before the last, and what is not
known of readers. So a plan is to be evaluated (``value``) and is no bound; every link at the inner speed gives one. Where the
lattice of ideals is small enough ``solver`` is exact, for tensors that are sent once.

The loads of all intervals are matrices: a tensor adds to rectangles of (begin, end), summed up once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from passes.model.stages.lattice.dp import Stages
from passes.model.stages.load import load
from passes.model.stages.problem import Floats, Ints, Problem, slots
from passes.model.work import now

MOST_NODES = 800
"""Nodes beyond which the matrices (a dozen, 8 n n bytes each) and the programme (size n n n / 3 steps) would take too long."""

ROUNDS = 8
DISTINCT = 1e-9
"""Relative difference of values below which a plan is no better."""

Flags: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Hierarchy:
    """Groups of ``size`` devices. A device pays ``latency`` + ``flow[h]`` seconds to send or receive tensor h: the first of
    both inside its group, the second between groups. ``once``: a tensor is sent once, however many stages read it, and at
    the second price if one of them is in another group; else its bytes are sent to each, with the longest latency once."""

    size: int
    latency: tuple[float, float]
    flow: tuple[Floats, Floats]
    once: bool = False

    def seconds(self, outer: bool) -> Floats:
        """Of each tensor, to one other device."""
        return self.latency[outer] + self.flow[outer]


def plan_value(problem: Problem, hierarchy: Hierarchy, stages: Stages) -> float:
    """The largest load of stages on the devices in order, on both kinds of links."""
    return max((load(problem.comm, *parts) for parts in stage_parts(problem, hierarchy, stages)), default=0.0)


def stage_parts(problem: Problem, hierarchy: Hierarchy, stages: Stages) -> list[tuple[float, float, float]]:
    """Seconds of compute, receiving and sending of each stage: every stage that reads a tensor receives it once from the one
    that makes it."""
    group_of = {v: s // hierarchy.size for s, (_, nodes) in enumerate(stages) for v in nodes}
    stage_of = {v: s for s, (_, nodes) in enumerate(stages) for v in nodes}
    receive, send = [0.0] * len(stages), [0.0] * len(stages)
    for h, (maker, readers) in enumerate(zip(problem.producer, problem.consumers, strict=True)):
        source = stage_of[int(maker)]
        there = sorted({stage_of[v] for v in readers} - {source})
        apart = [s // hierarchy.size != group_of[int(maker)] for s in there]
        for s, outer in zip(there, apart, strict=True):
            receive[s] += hierarchy.latency[outer] + hierarchy.flow[outer][h]
            send[source] += 0.0 if hierarchy.once else hierarchy.flow[outer][h]
        if there:
            send[source] += max(hierarchy.latency[outer] for outer in apart)
            send[source] += hierarchy.flow[any(apart)][h] if hierarchy.once else 0.0
    compute = [float(problem.seconds[0, list(nodes)].sum()) for _, nodes in stages]
    return list(zip(compute, receive, send, strict=True))


def best_along(
    problem: Problem, hierarchy: Hierarchy, stages: Stages, enough: float, seconds: float = math.inf
) -> tuple[Stages, float]:
    """The best plan found along the order of ``stages``, these included, and its value: rounds of ``plans_along``, each told
    how many stages read each tensor in the best plan so far. Ends when nothing changes, at a value of ``enough``, or after the
    round in which ``seconds`` are over (one takes about a second at most)."""
    began = now()
    stage_of = {v: s for s, (_, nodes) in enumerate(stages) for v in nodes}
    order = sorted(range(problem.size), key=lambda v: (stage_of[v], v))
    best, least = stages, plan_value(problem, hierarchy, stages)
    for _ in range(ROUNDS):
        tried = best
        if least <= enough or now() - began >= seconds:
            break
        readers = reader_stages(problem, tried, hierarchy.once)
        for _, found in plans_along(problem, hierarchy, order, problem.devices, readers, least):
            value = plan_value(problem, hierarchy, found)
            if value < least * (1 - DISTINCT) and problem.stages in (None, len(found)):
                best, least = found, value
        if best is tried:
            break
    return best, least


def reader_stages(problem: Problem, stages: Stages, once: bool) -> Ints:
    """To how many stages each tensor is sent; at least one, for what another plan may part."""
    if once:
        return np.ones(len(problem.consumers), np.int64)
    stage_of = {v: s for s, (_, nodes) in enumerate(stages) for v in nodes}
    makers = [stage_of[int(u)] for u in problem.producer]
    return np.array(
        [max(1, len({stage_of[v] for v in who} - {m})) for m, who in zip(makers, problem.consumers, strict=True)], np.int64
    )


def plans_along(
    problem: Problem, hierarchy: Hierarchy, order: Sequence[int], devices: int, readers: Ints, most: float
) -> list[tuple[float, Stages]]:
    """Plans of 1 to ``devices`` stages between prefixes of ``order``: the best of each number whose loads, as the module says,
    are at most ``most``, with its largest load. Nothing for more than ``MOST_NODES`` nodes.

    ``problem`` has one kind of device; ``order`` is topological; ``readers[h]``: stages that a tensor is sent to."""
    n = problem.size
    if not 0 < n <= MOST_NODES:
        return []
    inside, before = _inside_groups(problem, hierarchy, order, readers, most)
    whole = [np.full(n + 1, np.inf)]
    begun: list[Ints] = []
    whole[0][0] = 0.0
    found = []
    for stages in range(1, min(devices, n) + 1):
        groups, last = divmod(stages - 1, hierarchy.size)
        ends = np.maximum(whole[groups], inside[last + 1][:, n])
        if np.isfinite(ends).any():
            begin = int(ends.argmin())
            found.append((float(ends[begin]), _stages(order, before, begun, begin, groups, last + 1)))
        if last + 1 == hierarchy.size:
            ways = np.maximum(whole[groups][:, None], inside[hierarchy.size])
            whole.append(ways.min(axis=0))
            begun.append(ways.argmin(axis=0))
    return found


def _stages(order: Sequence[int], before: Any, begun: Sequence[Ints], begin: int, groups: int, last: int) -> Stages:
    """The stages of ``groups`` whole groups and ``last`` stages of one more, which begins at ``begin``."""
    borders = [len(order)]
    count = last
    while True:
        for stage in range(count, 0, -1):
            borders.append(int(before[stage][begin, borders[-1]]))
        if not groups:
            break
        groups -= 1
        begin, count = int(begun[groups][begin]), before.shape[0] - 1
    borders.reverse()
    return tuple((0, tuple(sorted(order[a:b]))) for a, b in pairwise(borders))


def _inside_groups(
    problem: Problem, hierarchy: Hierarchy, order: Sequence[int], readers: Ints, most: float
) -> tuple[Floats, Any]:
    """``A[s, G, i]`` of the module, and the last border before i of the plan that it is the value of."""
    n, size = problem.size, hierarchy.size
    place = np.empty(n, np.int64)
    place[list(order)] = np.arange(n)
    compute = np.concatenate([[0.0], np.cumsum(np.where(np.isinf(problem.seconds[0]), 0.0, problem.seconds[0])[list(order)])])
    busy = compute[None, :] - compute[:, None]
    refused = _refused(problem, order, place) | (busy > most * (1 + 1e-9))
    near, far = hierarchy.seconds(False), hierarchy.seconds(True)
    receive = _received(problem, near, place)
    send = [_sent(problem, hierarchy.latency[outer] + readers * hierarchy.flow[outer], place) for outer in (False, True)]
    made: list[list[int]] = [[] for _ in range(n)]
    for h, maker in enumerate(problem.producer):
        made[place[maker]].append(h)
    value = np.full((size + 1, n + 1, n + 1), np.inf)
    before = np.zeros((size + 1, n + 1, n + 1), np.int16)
    for begin in range(n):
        if begin:
            for h in made[begin - 1]:  # made before the group began: from here on at the outer price
                at = sorted(int(place[v]) for v in problem.consumers[h])
                low = begin
                for here in at:
                    receive[low : here + 1, here + 1 :] += far[h] - near[h]
                    low = max(low, here + 1)
        value[0, begin, begin] = 0.0
        reach = begin + 1
        for stage in range(size):
            # What the stages so far can reach bounds the rows; the longest interval allowed from there, the columns.
            rows = slice(begin, reach)
            loads = _combined(problem.comm, busy[rows, begin:], receive[rows, begin:], send[stage == size - 1][rows, begin:])
            loads[refused[rows, begin:]] = np.inf
            ways = np.maximum(value[stage, begin, rows][:, None], loads)
            ways[ways > most] = np.inf
            value[stage + 1, begin, begin:] = ways.min(axis=0)
            before[stage + 1, begin, begin:] = begin + ways.argmin(axis=0)
            open_ = np.flatnonzero(np.isfinite(value[stage + 1, begin]))
            if not len(open_):
                break
            reach = int(open_[-1]) + 1
    return value, before


def _combined(comm: str, compute: Floats, receive: Floats, send: Floats) -> Floats:
    """``problem.load`` of matrices."""
    if comm == "overlap":
        return np.maximum(compute, receive + send)
    if comm == "duplex":
        return np.maximum(compute, np.maximum(receive, send))
    return compute + receive + send


def _received(problem: Problem, costs: Floats, place: Ints) -> Floats:
    """Cost of what each interval reads and does not make."""
    receive = _Rectangles(problem.size)
    for h, who in enumerate(problem.consumers):
        receive.touch(sorted(int(place[v]) for v in who), int(place[problem.producer[h]]) + 1, float(costs[h]))
    return receive.summed()


def _sent(problem: Problem, costs: Floats, place: Ints) -> Floats:
    """Cost of what each interval makes and others behind it read."""
    send = _Rectangles(problem.size)
    for h, who in enumerate(problem.consumers):
        if who:
            maker = int(place[problem.producer[h]])
            send.add(0, maker, maker + 1, max(int(place[v]) for v in who), float(costs[h]))
    return send.summed()


def _refused(problem: Problem, order: Sequence[int], place: Ints) -> Flags:
    """Intervals that no stage may be: empty, with a node that cannot run, too large, or not parted where that is demanded."""
    n, limit = problem.size, problem.kinds[0].memory
    wrong = _Rectangles(n)
    for lacking in np.flatnonzero(np.isinf(problem.seconds[0])):
        wrong.touch([int(place[lacking])], 0, 1.0)
    for h in problem.forced:
        maker = int(place[problem.producer[h]])
        for v in problem.consumers[h]:
            wrong.add(0, maker, int(place[v]) + 1, n, 1.0)
    refused: Flags = wrong.summed() > 0.5
    refused |= np.tri(n + 1, dtype=np.bool_)
    if limit is None:
        return refused
    held = _Rectangles(n)
    for bytes_, who in zip(problem.weight_bytes, problem.weight_readers, strict=True):
        held.touch(sorted(int(place[v]) for v in who), 0, float(bytes_))
    total = held.summed() + slots(problem.comm) * _received(problem, problem.tensor_bytes.astype(np.float64), place)
    live = problem.live[list(order)].astype(np.float64)
    for begin in range(n):
        total[begin, begin + 1 :] += np.maximum.accumulate(live[begin:])
    return refused | (total > limit)


class _Rectangles:
    """A matrix over (begin, end) made of rectangles: differences, summed up once at the end."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.steps = np.zeros((n + 2, n + 2))

    def add(self, begin_low: int, begin_high: int, end_low: int, end_high: int, amount: float) -> None:
        """Adds to begin_low..begin_high, end_low..end_high, both inclusive; nothing where a range is empty."""
        if begin_low <= begin_high and end_low <= end_high:
            self.steps[begin_low, end_low] += amount
            self.steps[begin_high + 1, end_low] -= amount
            self.steps[begin_low, end_high + 1] -= amount
            self.steps[begin_high + 1, end_high + 1] += amount

    def touch(self, at: Sequence[int], first: int, amount: float) -> None:
        """Adds to every interval that begins at ``first`` or later and holds one of the places ``at`` (ascending), once."""
        low = first
        for here in at:
            self.add(low, here, here + 1, self.n, amount)
            low = max(low, here + 1)

    def summed(self) -> Floats:
        n = self.n
        found: Floats = np.maximum(self.steps.cumsum(axis=0).cumsum(axis=1)[: n + 1, : n + 1], 0.0)
        return found


__all__ = ["MOST_NODES", "Hierarchy", "best_along", "plan_value", "plans_along", "reader_stages", "stage_parts"]
