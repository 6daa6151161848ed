"""Which ops every member of a mesh runs whole, so that the fewest seconds are spent: a minimum cut.

Node i costs c_i where it is chosen (negative: it saves); an edge (i, j, b) costs b where j is chosen and i is not, so that j's
operand i has to be gathered. TAG states it as an integer program (Zhang et al. 2023): x_i of {0, 1}, b_ij >= x_j - x_i, least
sum of c_i x_i + b_ij. Its constraints are differences of two variables, which makes the linear program integral and its dual a
flow: from the source to nodes that save, from nodes that cost to the sink, from j to i along each edge.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def duplicated(costs: Sequence[float], edges: Sequence[tuple[int, int, float]]) -> frozenset[int]:
    """The numbers of the nodes that are chosen, of several best choices the smallest; ``edges`` with inf are never cut."""
    from passes.solvers.flow_kernels import max_flow, source_side

    source, sink = len(costs), len(costs) + 1
    most = 1.0 + math.fsum(abs(cost) for cost in costs)  # more than any choice is worth
    arcs = [(source, i, -cost) for i, cost in enumerate(costs) if cost < 0]
    arcs += [(i, sink, cost) for i, cost in enumerate(costs) if cost > 0]
    arcs += [(after, before, min(cost, most)) for before, after, cost in edges if cost > 0]
    tails = np.array([end for one, other, _ in arcs for end in (one, other)], np.int64)
    heads = np.array([end for one, other, _ in arcs for end in (other, one)], np.int64)
    residual = np.array([part for _, _, capacity in arcs for part in (capacity, 0.0)], np.float64)
    order = np.argsort(tails, kind="stable")
    first = np.searchsorted(tails[order], np.arange(len(costs) + 3))
    max_flow(first, order, heads, residual, source, sink, math.inf)
    side = source_side(first, order, heads, residual, source)
    return frozenset(int(i) for i in np.flatnonzero(side[: len(costs)]))
