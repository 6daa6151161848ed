"""Topological orders whose prefixes make good boundaries.

The prefixes of one order are a family of n + 1 ideals, so the programme restricted to them takes milliseconds and gives a
feasible plan; the ideals near an order are the family used when the lattice is too large to enumerate.
"""

from __future__ import annotations

import numpy as np

from passes.model.stages.lattice.tables import Tables


def given(tables: Tables) -> list[int]:
    """The problem's own order."""
    return list(range(tables.problem.size))


def late(tables: Tables) -> list[int]:
    """Every node as late as its first reader allows: depth-first from the sinks, backwards. Side chains that are fed early and
    used late (keys and values of a cross-attention, masks) land next to what uses them."""
    from passes.model.stages.lattice import walk_kernels

    order: list[int] = walk_kernels.order_late(tables.pred_ptr, tables.pred, tables.succ_ptr).tolist()
    return order


def thin(tables: Tables) -> list[int]:
    """Greedy: next comes the ready node after which the cut costs least, by the growth of the cut, then by index. A tensor
    costs its dearest transfer; where none costs anything, its bytes."""
    from passes.model.stages.lattice import walk_kernels

    cost = tables.transfer.max(axis=0) if tables.transfer.any() else tables.tensor_bytes
    order: list[int] = walk_kernels.order_thin(
        tables.succ_ptr,
        tables.succ,
        tables.indegree,
        tables.on_ptr,
        tables.on,
        tables.pin_ptr,
        tables.pin,
        np.ascontiguousarray(cost),
    ).tolist()
    return order


__all__ = ["given", "late", "thin"]
