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

import numpy as np

from passes.model.stages.lattice.tables import Tables
from passes.model.stages.problem import Floats, Problem
from passes.partition.bounds.minimum_cuts import Cuts, Nets, nets_of

SLACK = 1e-11
"""Relative: what rounding in sums of capacities may add."""
SHARES = (0.25, 0.5, 0.75)
"""Weights of compute that are tried where it overlaps with transfers."""
MOST_NODES = 48
"""Nodes looked at, the most promising first."""


def node_bound(tables: Tables, bound: float) -> tuple[float, str]:
    """The best of ``bound`` and of what single nodes say, and how it was reached, as text (empty where it is ``bound``)."""
    problem = tables.problem
    nets = nets_of(problem)
    if not problem.size or not nets.pins:
        return bound, ""
    averages = (
        [(1.0, 1.0)] if problem.comm == "sum" else [(s, (1 - s) / (2 if problem.comm == "duplex" else 1)) for s in SHARES]
    )
    best, reason = bound, ""
    cuts = Cuts(tables)
    alone = _alone(problem, nets)
    for v in np.argsort(-alone, kind="stable")[:MOST_NODES].tolist():
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


__all__ = ["node_bound"]
