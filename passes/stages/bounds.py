"""Lower bounds on the largest load, and the weights that make windows.

Give each kind d a price l_d >= 0 per second and let w(v) = min over supported d of l_d seconds[d, v]. A device of kind d
with load at most T carries weight at most l_d T, whatever it sends or receives. So T >= w(V) / (sum of l over the devices
used); and after using a set of devices an ideal I is possible only if w(I) <= T times their prices and w(V - I) <= T times
those of the devices left. With the prices that maximise w(V) subject to sum_d l_d count_d = 1 this is the
linear-programming bound of fractional load balancing (its dual). Any prices are valid; better ones only prune more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ir.core.outcomes import SLACK
from passes.costs.learning import periods_behind
from passes.stages.problem import Floats, Problem, pools

_STEPS = 200
_IDLE_STEPS = 20
"""Steps without a gain of a ten-thousandth after which prices are good enough."""
_LEAST_SHARE = 1e-9
_MOST_SUMS = 1 << 12
"""Different sums of prices of devices, at most."""


def prices(problem: Problem) -> Floats:
    """Prices l[T] that maximise w(V) under sum l_d count_d = 1: exact for two kinds; for more nearly so, by exponentiated
    subgradient steps, the best seen. A kind of r devices per stage has r times the price of one: it takes r seconds of work a
    second."""
    pool_of = pools(problem.kinds)
    alone = sorted(set(pool_of))
    if len(alone) < len(problem.kinds):
        kept = tuple(problem.kinds[k] for k in alone)
        single = prices(replace(problem, kinds=kept, seconds=problem.seconds[alone], transfer=problem.transfer[alone]))
        return np.array([kind.replicas * single[alone.index(pool)] for kind, pool in zip(problem.kinds, pool_of, strict=True)])
    # Kinds that compute alike, as those of one type, have one price: a stage may be on devices of several.
    rows: dict[bytes, int] = {}
    alike = np.array([rows.setdefault(row.tobytes(), len(rows)) for row in problem.seconds], np.int64)
    seconds = np.array([np.frombuffer(row) for row in rows]).reshape(len(rows), problem.size)
    counts = np.zeros(len(rows))
    np.add.at(counts, alike, [kind.count for kind in problem.kinds])
    return _prices_of(seconds, counts)[alike]


def _prices_of(seconds: Floats, counts: Floats) -> Floats:
    """``prices`` of so many devices of each row."""
    kinds, nodes = seconds.shape
    uniform = np.full(kinds, 1.0 / counts.sum())
    if kinds == 1 or not nodes:
        return uniform
    if kinds == 2:
        return _two_prices(seconds, counts)
    shares = np.full(kinds, 1.0 / kinds)
    # Start where every kind alone would be equally loaded: much nearer than equal shares when speeds differ by orders.
    totals = np.where(np.isfinite(seconds), seconds, 0.0).sum(axis=1)
    if (totals > 0).all():
        shares = counts / totals
        shares /= shares.sum()
    best, best_value = uniform, float(_weights(seconds, uniform).sum())
    idle = 0
    for step in range(_STEPS):
        price = shares / counts
        with np.errstate(invalid="ignore"):
            priced = np.where(np.isfinite(seconds), price[:, None] * seconds, np.inf)
        cheapest = priced.argmin(axis=0)
        taken = priced[cheapest, np.arange(nodes)]
        value = float(taken[np.isfinite(taken)].sum())
        idle = 0 if value > best_value * (1 + 1e-4) else idle + 1
        if value > best_value:
            best, best_value = price, value
        if idle > _IDLE_STEPS:
            break
        gradient = np.bincount(cheapest, weights=seconds[cheapest, np.arange(nodes)], minlength=kinds) / counts
        largest = gradient.max()
        if not np.isfinite(largest) or largest <= 0:
            break
        shares = shares * np.exp(0.5 / (1 + 0.1 * step) * gradient / largest)
        shares /= shares.sum()
    return best


def _two_prices(seconds: Floats, counts: Floats) -> Floats:
    """The best prices of two kinds. With share x of the price on the first, node v weighs min(x a_v, (1 - x) b_v), where a and
    b are its seconds over the count of the kind. The sum is concave in x, with corners where both are equal, x = b / (a + b):
    left of its corner a node counts a x. So the best x is the corner at which the slope, sum of a less sum of b, changes sign.
    The corner of a node that the first kind cannot run is 0, of one that the second cannot, 1."""
    a, b = seconds / counts[:, None]
    some = (a + b > 0) & (np.isfinite(a) | np.isfinite(b))
    if not some.any():
        return np.full(2, 1.0 / counts.sum())
    first, second = np.where(np.isfinite(a), a, 0.0)[some], np.where(np.isfinite(b), b, 0.0)[some]
    both = np.where(first + second > 0, first + second, 1.0)
    corner = np.where(np.isfinite(a[some]), np.where(np.isfinite(b[some]), second / both, 1.0), 0.0)
    order = np.argsort(corner, kind="stable")
    slope = first.sum() - np.cumsum((first + second)[order])
    share = float(corner[order][min(int(np.searchsorted(-slope, 0.0)), len(slope) - 1)])
    # A price of nothing is valid but would make the weight of everything nothing.
    share = min(max(share, _LEAST_SHARE), 1 - _LEAST_SHARE)
    return np.array([share, 1 - share]) / counts


def node_weights(problem: Problem, price: Floats) -> Floats:
    """w(v) for the given prices; 0 for a node that no kind supports (it makes the problem infeasible elsewhere)."""
    return _weights(problem.seconds, price)


def _weights(seconds: Floats, price: Floats) -> Floats:
    """``node_weights`` of these seconds by kind and node."""
    with np.errstate(invalid="ignore"):
        priced = np.where(np.isfinite(seconds), price[:, None] * seconds, np.inf)
    weights = priced.min(axis=0) if seconds.shape[1] else np.zeros(0)
    return np.where(np.isfinite(weights), weights, 0.0)


def fastest(problem: Problem, price: Floats) -> Floats:
    """Prices of all devices, the highest first."""
    alone = sorted(set(pools(problem.kinds)))
    every: Floats = np.sort(np.repeat(price[alone], [problem.kinds[k].count for k in alone]))[::-1]
    return every


def _capacity(problem: Problem, price: Floats) -> tuple[float, int]:
    """The most weight that the devices of a plan take per second, and how many devices that is."""
    every, single = fastest(problem, price), len(set(pools(problem.kinds))) == len(problem.kinds)
    used = min(problem.stages, problem.devices) if problem.stages is not None and single else problem.devices
    return float(every[:used].sum()), used


def evenly_spread(problem: Problem) -> float:
    """Seconds per sample that no plan is below: all ops spread evenly over all devices."""
    return float(node_weights(problem, prices(problem)).sum())


def lower_bound(problem: Problem, price: Floats) -> tuple[float, str]:
    """The best simple bound and how it was reached, as text."""
    weight = float(node_weights(problem, price).sum())
    capacity, used = _capacity(problem, price)
    balance = weight / capacity if capacity > 0 else 0.0
    largest = problem.seconds.min(axis=0) if problem.size else np.zeros(1)
    node = int(largest.argmax()) if problem.size else 0
    if problem.size and np.isfinite(largest[node]) and largest[node] > balance:
        replicas = any(kind.replicas > 1 for kind in problem.kinds)
        where = "on as many devices as suit it best" if replicas else "on its fastest device"
        return float(largest[node]), f"largest node: {problem.names[node]} alone {where}"
    return balance, f"load balance: all compute spread evenly over {used} devices, at their rates, transfers free"


class StepWork(NamedTuple):
    """All work of a training step per microbatch at each of some prices. ``weight[r]``: seconds times prices of all nodes where
    each stage has at least r replicas, by prices; only of numbers r whose stages go on for fewer periods than those of all
    smaller ones, 1 first. ``rate[P, K]``: the most such weight that K + 1 devices take a second. ``woken[P]``: what a stage
    spends besides where there are several."""

    weight: dict[int, Floats]
    rate: Floats
    woken: Floats


def least_step(
    work: StepWork, microbatches: int, period: float, devices: range, stages: int, replicas: Sequence[int] = ()
) -> float:
    """A lower bound on the seconds of a training step of M microbatches in a pipeline of at least so many ``stages`` on k
    devices, for any k in ``devices``: k periods, and those that the stage that goes on longest takes behind them, M - 1 of one
    without replicas (``step_seconds``). Where no stage goes on longer than one with r replicas, all have r or more. A period
    takes at least the weight of all work over the sum of the k highest prices, and at least ``period``, a lower bound for every
    k. ``replicas``: only of plans where the least such r is one of these."""
    best, most = math.inf, work.rate.shape[1]
    counts = np.array(devices)
    for r, weight in work.weight.items() if not replicas else ((r, work.weight[r]) for r in replicas):
        some = counts if r == 1 else counts[counts >= r * stages]
        if len(some):
            every = (weight + (work.woken * stages if stages > 1 else 0.0))[:, None] / work.rate[:, np.minimum(some, most) - 1]
            periods = np.maximum(period, every.max(axis=0))
            best = min(best, float(((some + periods_behind(microbatches, r)) * periods).min()))
    return best


def cut_bound(problem: Problem, price: Floats) -> tuple[float, str]:
    """A bound with what a cut asks for, and how it was reached: stages before it have all that its tensor is made of, those
    behind it all that reads it. Some devices do the one, the others the other, at least, so T >= min over sets of devices of
    max(w(before) / their prices, w(behind) / the prices of the others). 0 without cuts, or for too many sums of prices."""
    sums = {0.0}
    for k in sorted(set(pools(problem.kinds))):
        sums = {known + float(price[k]) * count for known in sums for count in range(problem.kinds[k].count + 1)}
        if not problem.forced or len(sums) > _MOST_SUMS:
            return 0.0, ""
    weight, every = node_weights(problem, price), _capacity(problem, price)[0]
    ahead = np.array(sorted(sums))
    edges = sorted((int(maker), readers) for maker, readers in zip(problem.producer, problem.consumers, strict=True))

    def least(work: float, rates: Floats) -> Floats:
        return np.divide(work, rates, out=np.full(len(rates), np.inf), where=rates > 0) if work else np.zeros(len(rates))

    best, reason = 0.0, ""
    for h in problem.forced:
        before, behind = {int(problem.producer[h])}, set(problem.consumers[h])
        for maker, readers in reversed(edges):  # nodes are in topological order
            before.update((maker,) if before.intersection(readers) else ())
        for maker, readers in edges:
            behind.update(readers if maker in behind else ())
        first, second = (float(weight[sorted(side)].sum()) * (1 - SLACK) for side in (before, behind))
        found = float(np.maximum(least(first, ahead), least(second, every * (1 + SLACK) - ahead)).min())
        if found > best:
            best, reason = found, f"load balance before and behind the cut at {problem.tensor_names[h]}"
    return best, reason


def best_bound(problem: Problem, price: Floats) -> tuple[float, str]:
    """The best bound on the throughput, and how it was reached, as text."""
    return max(lower_bound(problem, price), cut_bound(problem, price), key=lambda found: found[0])
