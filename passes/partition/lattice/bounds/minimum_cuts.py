"""Minimum cuts for stages and boundaries of which some nodes are known: which nets must be paid, at the least.

A stage S on kind k takes p_k(S) seconds and pays every net (``nets_of``) with pins both in S and out of it: a cut
function, so its minimum over all S that hold the nodes ``sure`` and none of ``never`` is a minimum cut between two terminals.
A net is the hyperedge of Lawler (1973): an arc of its cost that every pin enters and leaves. Nodes may have a price, of either
sign. Known nodes are one with their terminal, so a network is as large as what is not known.

Precedence is kept where it concerns one boundary: among nodes that surely lie in the ideal that ends S, all after a node of S
are in S (``ends``); among those surely out of the ideal that begins it, all before one (``begins``). Where all nodes are of the
second sort, S is an ideal.

*A bound from single nodes* (``node_bound``). Some stage holds node v, and with compute and transfers added up no stage that
holds v is cheaper than a minimum cut of which v alone is sure. Neither contiguity nor memory is asked: the minimum over more
sets is no larger. A node that gathers or feeds much (the sum of a layer of experts, an early activation) bounds the throughput
this way where its compute alone says nothing.

Where transfers overlap with compute, a load is at least any average of compute and transfers, so the same cut with costs scaled
bounds it: max(p, c) >= s p + (1 - s) c, and max(p, in, out) >= s p + (1 - s) (in + out) / 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from ir.core.outcomes import SLACK
from passes.partition.lattice.bounds.policy import POLICY
from passes.solvers.work import did
from passes.stages.arrays import Ints, csr
from passes.stages.lattice.tables import Tables
from passes.stages.problem import Floats, Problem

Mask: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]


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


class Cuts:
    """Networks of one problem. ``cost[T, H]``: of its nets with two pins and more, or ``moved[H]`` by tensor where an objective
    has prices of its own; ``pin``, ``net``: their pins and whose each is."""

    def __init__(self, tables: Tables, moved: Floats | None = None) -> None:
        problem = tables.problem
        nets = nets_of(problem if moved is None else replace(problem, transfer=np.tile(moved, (len(problem.kinds), 1))))
        kept = [h for h, pins in enumerate(nets.pins) if len(pins) > 1 and nets.transfer[:, h].any()]
        self.size = tables.problem.size
        self.cost: Floats = np.ascontiguousarray(nets.transfer[:, kept])
        pointers, self.pin = csr([nets.pins[h] for h in kept])
        self.pins: Ints = np.diff(pointers)
        self.net = np.repeat(np.arange(len(kept)), self.pins)
        self.before = np.repeat(np.arange(self.size), np.diff(tables.succ_ptr))
        self.after = tables.succ

    def least(self, kind: int, price: Floats, sure: Mask, never: Mask, ends: Mask, begins: Mask) -> tuple[float, Mask | None]:
        """The least of the prices of S and of the nets that it cuts on ``kind``, and an S that reaches it; inf and None where
        nothing is both."""
        from passes.solvers import flow_kernels

        if (sure & never).any():
            return math.inf, None
        free = np.flatnonzero(~sure & ~never)
        count, some = len(free), len(self.pins)
        # Of each net: a known pin inside, one outside, one unknown.
        inside = np.bincount(self.net[sure[self.pin]], minlength=some) > 0
        outside = np.bincount(self.net[never[self.pin]], minlength=some) > 0
        open_pin = ~(sure | never)[self.pin]
        unknown = np.bincount(self.net[open_pin], minlength=some) > 0
        cost = self.cost[kind]
        value = float(cost[inside & outside].sum()) + float(price[sure].sum()) + float(np.minimum(price[free], 0.0).sum())
        live = unknown & ~(inside & outside) & (cost > 0)
        enter_of = np.full(some, -1)
        leave_of = np.full(some, -1)
        entered, left = np.flatnonzero(live & ~inside), np.flatnonzero(live & ~outside)
        enter_of[entered] = count + np.arange(len(entered))
        leave_of[left] = count + len(entered) + np.arange(len(left))
        source = count + len(entered) + len(left)
        sink = source + 1
        enter_of[live & inside], leave_of[live & outside] = source, sink
        place = np.full(self.size, source)
        place[never] = sink
        place[free] = np.arange(count)
        lives = np.flatnonzero(live)
        pin, net = place[self.pin[open_pin]], self.net[open_pin]
        pin, net = pin[live[net]], net[live[net]]
        into, out = ~inside[net], ~outside[net]
        tied = place[self.before] != place[self.after]
        later = tied & ends[self.before] & ends[self.after]
        earlier = tied & begins[self.before] & begins[self.after]
        paid = price[free]
        tail = np.concatenate(
            [
                np.full(count, source),
                np.arange(count),
                enter_of[lives],
                pin[into],
                leave_of[net[out]],
                place[self.before[later]],
                place[self.after[earlier]],
            ]
        )
        head = np.concatenate(
            [
                np.arange(count),
                np.full(count, sink),
                leave_of[lives],
                enter_of[net[into]],
                pin[out],
                place[self.after[later]],
                place[self.before[earlier]],
            ]
        )
        finite = np.concatenate([np.maximum(-paid, 0.0), np.maximum(paid, 0.0), cost[lives]])
        most = 2 * float(finite.sum()) + 1.0
        capacity = np.full(2 * len(tail), most)
        capacity[1::2] = 0.0
        capacity[: 2 * len(finite) : 2] = finite
        ends_at = np.empty(2 * len(tail), np.int64)
        ends_at[::2], ends_at[1::2] = head, tail
        leaves = ends_at[np.arange(len(ends_at)) ^ 1]
        arcs = np.argsort(leaves, kind="stable")
        first = np.zeros(sink + 2, np.int64)
        np.cumsum(np.bincount(leaves, minlength=sink + 1), out=first[1:])
        flow = float(flow_kernels.max_flow(first, arcs, ends_at, capacity, source, sink, most))
        did("arc", len(arcs))
        if flow >= most:
            return math.inf, None
        side = flow_kernels.source_side(first, arcs, ends_at, capacity, source)
        chosen = sure.copy()
        chosen[free] = side[:count]
        return value + flow, chosen


def node_bound(tables: Tables, bound: float) -> tuple[float, str]:
    """The best of ``bound`` and of what single nodes say, and how it was reached, as text (empty where it is ``bound``)."""
    problem = tables.problem
    nets = nets_of(problem)
    if not problem.size or not nets.pins:
        return bound, ""
    ways = 2 if problem.comm == "duplex" else 1
    averages = [(1.0, 1.0)] if problem.comm == "sum" else [(s, (1 - s) / ways) for s in POLICY.node_shares]
    best, reason = bound, ""
    cuts = Cuts(tables)
    alone = _alone(problem, nets)
    for v in np.argsort(-alone, kind="stable")[: POLICY.nodes].tolist():
        if alone[v] <= best * (1 + SLACK):
            break  # the stage of this node alone is no dearer, nor is that of any after it
        least = math.inf
        for kind, seconds in enumerate(problem.seconds):
            if least <= best:
                break
            if math.isfinite(seconds[v]):
                least = min(least, max(_least(cuts, kind, seconds, v, *average) for average in averages))
        least *= 1 - SLACK
        if math.isfinite(least) and least > best:
            best = least
            reason = f"one node: whatever shares a stage with {problem.names[v]}, its compute and its transfers take so long"
    return best, reason


def _alone(problem: Problem, nets: Nets) -> Floats:
    """The load of each node alone on its best kind, compute and transfers added up: no less than its bound."""
    touching = problem.seconds.copy()
    for h, pins in enumerate(nets.pins):
        if len(pins) > 1:
            touching[:, list(pins)] += nets.transfer[:, [h]]
    least: Floats = touching.min(axis=0)
    return np.where(np.isfinite(least), least, 0.0)


def _least(cuts: Cuts, kind: int, seconds: Floats, v: int, compute: float, transfers: float) -> float:
    """The least average load, at these weights of ``compute`` and ``transfers``, of a stage of ``kind`` that holds ``v``."""
    runs, none = np.isfinite(seconds), np.zeros(len(seconds), np.bool_)
    held = none.copy()
    held[v] = True
    price = np.where(runs, seconds, 0.0) * (compute / transfers)
    return transfers * cuts.least(kind, price, held, ~runs, none, none)[0]
