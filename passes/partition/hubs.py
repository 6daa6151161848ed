"""A lower bound from single nodes: some stage holds node v, and no stage that holds v is cheaper than a minimum cut says.

The load of a stage S on a device of kind k, transfers added up, is p(S) plus the cost of every tensor with pins (its maker
and readers) on both sides: a tensor that crosses is either received or sent, never both. This is a cut function, so its minimum
over all S that hold v is a minimum cut between v and a sink: arcs of capacity p(u) from every node u to the sink, and per
tensor the hyperedge of Lawler (1973), an arc of its cost that every pin enters and leaves. Neither contiguity nor memory is
asked: the minimum over more sets is no larger. A node that gathers or feeds much (the sum of a layer of experts, an early
activation) bounds the throughput this way where its compute alone says nothing.

Where transfers overlap with compute, a load is at least any average of compute and transfers, so the same cut with costs scaled
bounds it: max(p, c) >= s p + (1 - s) c, and max(p, in, out) >= s p + (1 - s) (in + out) / 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from passes.model.stages.problem import Floats, Ints, Problem
from passes.model.work import did

SLACK = 1e-11
"""Relative: what rounding in sums of capacities may add."""
SHARES = (0.25, 0.5, 0.75)
"""Weights of compute that are tried where it overlaps with transfers."""
MOST_NODES = 48
"""Nodes looked at, the most promising first."""


def hub_bound(problem: Problem, bound: float) -> tuple[float, str]:
    """The best of ``bound`` and of what single nodes say, and how it was reached, as text (empty where it is ``bound``)."""
    nets = nets_of(problem)
    if not problem.size or not nets.pins:
        return bound, ""
    averages = (
        [(1.0, 1.0)] if problem.comm == "sum" else [(s, (1 - s) / (2 if problem.comm == "duplex" else 1)) for s in SHARES]
    )
    best, reason = bound, ""
    networks = [[_Network(problem.seconds[kind] * p, nets, kind, c) for p, c in averages] for kind in range(len(problem.kinds))]
    alone = _alone(problem, nets)
    for v in np.argsort(-alone, kind="stable")[:MOST_NODES].tolist():
        if alone[v] <= best * (1 + SLACK):
            break  # the stage of this node alone is no dearer, nor is that of any after it
        least = math.inf
        for kind, averaged in enumerate(networks):
            if least <= best:
                break
            if math.isfinite(problem.seconds[kind, v]):
                least = min(least, max(network.least(v) for network in averaged))
        least *= 1 - SLACK
        if math.isfinite(least) and least > best:
            best = least
            reason = f"hub: whatever shares a stage with {problem.names[v]}, its compute and its transfers take so long"
    return best, reason


@dataclass(frozen=True)
class Nets:
    """Tensors as the sets of nodes that they join: who makes or reads h is ``pins[h]``, ascending; a stage that holds some of
    them but not all pays ``transfer[T, h]`` on side ``side[h]`` of its load."""

    pins: tuple[tuple[int, ...], ...]
    transfer: Floats
    side: Ints


def nets_of(problem: Problem) -> Nets:
    """The nets of a problem; received and sent are one sum."""
    if problem.joins is not None:
        side = problem.joins.side if len(problem.joins.seconds) > 1 else np.zeros(len(problem.joins.pins), np.int64)
        return Nets(problem.joins.pins, problem.joins.transfer, side)
    pins = tuple(
        tuple(sorted({int(maker), *readers})) for maker, readers in zip(problem.producer, problem.consumers, strict=True)
    )
    return Nets(pins, problem.transfer, np.zeros(len(pins), np.int64))


def _alone(problem: Problem, nets: Nets) -> Floats:
    """The load of each node alone on its best kind, compute and transfers added up: no less than its bound."""
    touching = problem.seconds.copy()
    for h, pins in enumerate(nets.pins):
        if len(pins) > 1:
            touching[:, list(pins)] += nets.transfer[:, [h]]
    least: Floats = touching.min(axis=0)
    return np.where(np.isfinite(least), least, 0.0)


class _Network:
    """The flow network of one kind: nodes of the problem, then two per tensor, then the sink."""

    def __init__(self, seconds: Floats, nets: Nets, kind: int, share: float) -> None:
        n = len(seconds)
        self.sink = n + 2 * len(nets.pins)
        tail, head, capacity = list(range(n)), [self.sink] * n, seconds.tolist()
        for h, pins in enumerate(nets.pins):
            cost = float(nets.transfer[kind, h]) * share
            if len(pins) < 2 or cost <= 0:
                continue
            enter, leave = n + 2 * h, n + 2 * h + 1
            tail.append(enter)
            head.append(leave)
            capacity.append(cost)
            for v in pins:
                tail += [v, leave]
                head += [enter, v]
                capacity += [math.inf, math.inf]
        self.head = np.array([x for pair in zip(head, tail, strict=True) for x in pair], np.int64)
        finite = sum(c for c in capacity if math.isfinite(c))
        self.most = 2 * finite + 1.0
        both = [x for c in capacity for x in (c if math.isfinite(c) else self.most, 0.0)]
        self.capacity = np.array(both)
        tails = self.head[np.arange(len(self.head)) ^ 1]
        self.arcs = np.argsort(tails, kind="stable").astype(np.int64)
        self.first = np.zeros(self.sink + 2, np.int64)
        self.first[1:] = np.cumsum(np.bincount(tails, minlength=self.sink + 1))

    def least(self, v: int) -> float:
        """The least load of a stage that holds ``v``."""
        from passes.partition.flow_kernels import max_flow

        least = float(max_flow(self.first, self.arcs, self.head, self.capacity.copy(), v, self.sink, self.most))
        did("arc", len(self.arcs))
        return least


__all__ = ["Nets", "hub_bound", "nets_of"]
