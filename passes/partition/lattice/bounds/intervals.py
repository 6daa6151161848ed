"""Intervals: sets of ideals given by nodes that are in all of them, nodes that are in none, and a range of weight.

An interval stands for many boundaries at once, more than could be walked. What is known of it follows from the range: a node
that would bring more weight along (itself and all before it) than is allowed is in none of its ideals, one without which (and
all after it) too little would be left is in all. An interval is split in two by its weight, or by a node that is in or out;
together the halves hold every ideal that it held.

Slack: sums of weights are rounded, so a range is wider by ``SLACK`` of all weight.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ir.core.outcomes import SLACK
from passes.partition.lattice.bounds.minimum_cuts import Mask
from passes.stages.lattice.tables import Tables
from passes.stages.problem import Floats


@dataclass(frozen=True, eq=False)
class Interval:
    """Ideals of weight ``low`` to ``high`` with all of ``inside[n]`` and none of ``outside[n]``."""

    low: float
    high: float
    inside: Mask
    outside: Mask

    @property
    def open(self) -> Mask:
        return ~(self.inside | self.outside)


class IntervalSpace:
    """Intervals of one problem."""

    def __init__(self, tables: Tables) -> None:
        n = tables.problem.size
        self.weight = tables.weight
        self.total = float(self.weight.sum())
        self.slack = SLACK * self.total
        self.ancestors = np.eye(n)
        for v in range(n):
            for u in tables.pred[tables.pred_ptr[v] : tables.pred_ptr[v + 1]].tolist():
                np.maximum(self.ancestors[v], self.ancestors[u], out=self.ancestors[v])
        self.descendants = np.ascontiguousarray(self.ancestors.T)

    def grid(self, windows: int) -> Iterator[Interval]:
        """The empty ideal, the full one, and so many equal ranges of weight that are not empty, one after another."""
        none = np.zeros(len(self.weight), np.bool_)
        ends = np.linspace(0.0, self.total, windows + 1).tolist()
        yield Interval(0.0, 0.0, none, ~none)
        yield Interval(self.total, self.total, ~none, none)
        for low, high in itertools.pairwise(ends):
            interval = self.narrowed(low, high, none, none)
            if interval is not None:
                yield interval

    def narrowed(self, low: float, high: float, inside: Mask, outside: Mask) -> Interval | None:
        """The interval, with all that follows; None where it is empty. ``inside`` is closed under what comes before,
        ``outside`` under what comes after."""
        weight = self.weight
        while True:
            least, most = float(weight[inside].sum()), float(weight[~outside].sum())
            if least > high + self.slack or most < low - self.slack or (inside & outside).any():
                return None
            brought = self.sums(self.ancestors, np.where(inside, 0.0, weight))
            lost = self.sums(self.descendants, np.where(outside, 0.0, weight))
            out = outside | ((least + brought > high + self.slack) & ~inside)
            within = inside | ((most - lost < low - self.slack) & ~outside)
            if np.array_equal(out, outside) and np.array_equal(within, inside):
                return Interval(max(low, least), min(high, most), inside, outside)
            inside, outside = within, out

    @staticmethod
    def sums(members: Floats, weight: Floats) -> Floats:
        """``members[n, n] @ weight[n]``, without the threads of a linear algebra library, which wait for each other longer
        than so small a product takes where the machine is busy."""
        found: Floats = np.einsum("ij,j->i", members, weight)
        return found

    def halves(self, interval: Interval) -> list[Interval]:
        """The interval split by weight."""
        middle = (interval.low + interval.high) / 2
        found = [
            self.narrowed(interval.low, middle, interval.inside, interval.outside),
            self.narrowed(middle, interval.high, interval.inside, interval.outside),
        ]
        return [half for half in found if half is not None]

    def parted(self, interval: Interval, among: Mask) -> list[Interval]:
        """The interval split by that node of ``among`` whose answer says most about others either way."""
        brought = self.sums(self.ancestors, np.where(interval.inside, 0.0, self.weight))
        lost = self.sums(self.descendants, np.where(interval.outside, 0.0, self.weight))
        v = int(np.where(among, np.minimum(brought, lost), -1.0).argmax())
        found = [
            self.narrowed(interval.low, interval.high, interval.inside | (self.ancestors[v] > 0), interval.outside),
            self.narrowed(interval.low, interval.high, interval.inside, interval.outside | (self.descendants[v] > 0)),
        ]
        return [part for part in found if part is not None]
