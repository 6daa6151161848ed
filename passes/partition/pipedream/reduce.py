"""Exact reductions of a profile: nodes that some optimal plan keeps with a neighbour.

Only nodes without seconds and without weights (and, where memory is limited, without bytes stored) may move: every stage
keeps its compute and its synchronisation, and only the cut at a boundary changes. A node v of that kind, in every boundary:

- *waits for its reader* z, the only one, when what it reads is together no larger than what it makes: dropping v from an ideal
  that lacks z takes v's output out of the cut and puts in at most all that v reads;
- *follows its maker* u, the only one, when v makes nothing that is read, or when it is the only reader of u and makes no more
  than u does: adding v to an ideal that holds u takes u's output out of the cut (or leaves it) and puts in v's.

Done to all boundaries at once, nested ideals stay nested. A stage that becomes empty is dropped: its neighbours meet at a
boundary that was there, fewer machines are in use, and a stage that becomes the first or the last pays less.
Neither move closes a cycle, since v has no other reader (maker) through which a path could return.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from passes.model.stages.reduce import Groups
from passes.partition.pipedream.problem import Profile


@dataclass(frozen=True)
class Reduced:
    """A profile whose node i stands for the nodes ``groups[i]`` of the one it came from."""

    profile: Profile
    groups: Groups


def reduce_profile(profile: Profile, limited: bool) -> Reduced:
    """Applies both rules until neither does; ``limited``: machines have limited memory."""
    n = profile.size
    after = [set(readers) for readers in profile.readers]
    before: list[set[int]] = [set() for _ in range(n)]
    for v, readers in enumerate(profile.readers):
        for reader in readers:
            before[reader].add(v)
    output = [int(b) for b in profile.output]
    members: list[list[int]] = [[v] for v in range(n)]
    free = [not profile.seconds[v] and not profile.weights[v] and not (limited and profile.stored[v]) for v in range(n)]

    def target(v: int) -> int:
        if len(after[v]) == 1 and sum(output[u] for u in before[v]) <= output[v]:
            return next(iter(after[v]))
        if len(before[v]) == 1:
            u = next(iter(before[v]))
            if not after[v] or (len(after[u]) == 1 and output[v] <= output[u]):
                return u
        return -1

    queue = list(range(n))
    while queue:
        v = heapq.heappop(queue)
        other = target(v) if members[v] and free[v] else -1
        if other < 0:
            continue
        if other in before[v] and after[v]:
            output[other] = output[v]
        free[other] = free[other] and free[v]
        for u in before[v]:
            after[u] = (after[u] - {v}) | {other}
        for w in after[v]:
            before[w] = (before[w] - {v}) | {other}
        before[other] = (before[other] | before[v]) - {other, v}
        after[other] = (after[other] | after[v]) - {other, v}
        members[other] += members[v]
        members[v] = []
        for changed in sorted({other} | before[other] | after[other]):
            heapq.heappush(queue, changed)
    return _quotient(profile, members, before, after, output)


def _quotient(
    profile: Profile, members: list[list[int]], before: list[set[int]], after: list[set[int]], output: list[int]
) -> Reduced:
    """The groups as a profile, in a topological order with ties by index."""
    missing = {v: len(before[v]) for v in range(profile.size) if members[v]}
    ready = [v for v, count in missing.items() if not count]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        v = heapq.heappop(ready)
        order.append(v)
        for w in sorted(after[v]):
            missing[w] -= 1
            if not missing[w]:
                heapq.heappush(ready, w)
    place = {v: i for i, v in enumerate(order)}
    groups = tuple(tuple(sorted(members[v])) for v in order)
    return Reduced(
        Profile(
            names=tuple(profile.names[v] for v in order),
            seconds=np.array([profile.seconds[list(nodes)].sum() for nodes in groups]),
            output=np.array([output[v] for v in order], np.int64),
            stored=np.array([profile.stored[list(nodes)].sum() for nodes in groups], np.int64),
            weights=np.array([profile.weights[list(nodes)].sum() for nodes in groups], np.int64),
            readers=tuple(tuple(sorted(place[w] for w in after[v])) for v in order),
        ),
        groups,
    )


__all__ = ["Reduced", "reduce_profile"]
