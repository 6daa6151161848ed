"""Minimum cuts for stages and boundaries of which some nodes are known: which nets must be paid, at the least.

A stage S on kind k takes p_k(S) seconds and pays every net (``nets_of``) with pins both in S and out of it: a cut
function, so its minimum over all S that hold the nodes ``sure`` and none of ``never`` is a minimum cut between two terminals.
A net is the hyperedge of Lawler (1973): an arc of its cost that every pin enters and leaves. Nodes may have a price, of either
sign. Known nodes are one with their terminal, so a network is as large as what is not known.

Precedence is kept where it concerns one boundary: among nodes that surely lie in the ideal that ends S, all after a node of S
are in S (``ends``); among those surely out of the ideal that begins it, all before one (``begins``). Where all nodes are of the
second sort, S is an ideal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from passes.model.stages.arrays import csr
from passes.model.stages.lattice.tables import Tables
from passes.model.stages.problem import Floats, Ints, Problem
from passes.model.work import did

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
        from passes.model import flow_kernels

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


__all__ = ["Cuts", "Mask", "Nets", "nets_of"]
