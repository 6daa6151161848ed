"""Lower bounds on the largest load, and the weights that make windows.

Give each kind d a price l_d >= 0 per second and let w(v) = min over supported d of l_d seconds[d, v]. A device of kind d
with load at most T carries weight at most l_d T, whatever it sends or receives. So T >= w(V) / (sum of l over the devices
used); and after using a set of devices an ideal I is possible only if w(I) <= T times their prices and w(V - I) <= T times
those of the devices left. With the prices that maximise w(V) subject to sum_d l_d count_d = 1 this is the
linear-programming bound of fractional load balancing (its dual). Any prices are valid; better ones only prune more.
"""

from __future__ import annotations

import numpy as np

from passes.partition.problem import Floats, Problem

_STEPS = 200


def prices(problem: Problem) -> Floats:
    """Prices l[T] that nearly maximise w(V) under sum l_d count_d = 1, by exponentiated subgradient steps; the best seen."""
    kinds = len(problem.kinds)
    counts = np.array([kind.count for kind in problem.kinds], dtype=np.float64)
    uniform = np.full(kinds, 1.0 / counts.sum())
    if kinds == 1 or not problem.size or all(np.array_equal(problem.seconds[0], row) for row in problem.seconds[1:]):
        return uniform
    seconds = problem.seconds
    shares = np.full(kinds, 1.0 / kinds)
    # Start where every kind alone would be equally loaded: much nearer than equal shares when speeds differ by orders.
    totals = np.where(np.isfinite(seconds), seconds, 0.0).sum(axis=1)
    if (totals > 0).all():
        shares = counts / totals
        shares /= shares.sum()
    best, best_value = uniform, node_weights(problem, uniform).sum()
    for step in range(_STEPS):
        price = shares / counts
        with np.errstate(invalid="ignore"):
            priced = np.where(np.isfinite(seconds), price[:, None] * seconds, np.inf)
        cheapest = priced.argmin(axis=0)
        taken = priced[cheapest, np.arange(problem.size)]
        value = float(taken[np.isfinite(taken)].sum())
        if value > best_value:
            best, best_value = price, value
        gradient = np.bincount(cheapest, weights=seconds[cheapest, np.arange(problem.size)], minlength=kinds) / counts
        largest = gradient.max()
        if not np.isfinite(largest) or largest <= 0:
            break
        shares = shares * np.exp(0.5 / (1 + 0.1 * step) * gradient / largest)
        shares /= shares.sum()
    return best


def node_weights(problem: Problem, price: Floats) -> Floats:
    """w(v) for the given prices; 0 for a node that no kind supports (it makes the problem infeasible elsewhere)."""
    with np.errstate(invalid="ignore"):
        priced = np.where(np.isfinite(problem.seconds), price[:, None] * problem.seconds, np.inf)
    weights = priced.min(axis=0) if problem.size else np.zeros(0)
    return np.where(np.isfinite(weights), weights, 0.0)


def lower_bound(problem: Problem, price: Floats) -> tuple[float, str]:
    """The best simple bound and how it was reached, as text."""
    weight = float(node_weights(problem, price).sum())
    every = np.sort(np.repeat(price, [kind.count for kind in problem.kinds]))[::-1]
    used = len(every) if problem.stages is None else min(problem.stages, len(every))
    capacity = float(every[:used].sum())
    balance = weight / capacity if capacity > 0 else 0.0
    largest = problem.seconds.min(axis=0) if problem.size else np.zeros(1)
    node = int(largest.argmax()) if problem.size else 0
    if problem.size and np.isfinite(largest[node]) and largest[node] > balance:
        return float(largest[node]), f"largest node: {problem.names[node]} alone on its fastest device"
    return balance, f"load balance: all compute spread evenly over {used} devices, at their rates, transfers free"


__all__ = ["lower_bound", "node_weights", "prices"]
