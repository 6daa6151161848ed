"""A problem as the kernels want it: nodes, precedence and tensors as arrays, and what is summed per ideal.

*Node columns* are summed over the members of an ideal: first the weight at the prices, then seconds by side and kind, how many
nodes a kind cannot run, bytes of weights with one reader, and the weight at the prices of each support (``states``).
*Tensor columns* are summed over the tensors that an ideal cuts: transfers by lane and port class, bytes of buffers, and what
the devices ahead and behind must add for them.

That last part makes windows sharper. Say tensor h is cut. Its maker lies ahead: either on a kind d where that costs
l_d (seconds + transfer) rather than the l_d seconds that its weight counts, or on a kind where it costs more to begin with. So
the devices ahead take at least e(h) = min over d of l_d (seconds + transfer), less the weight, more. With several tensors cut
of one maker the sum of their e is too much (a dearer kind without transfers is chosen once), but each e, hence their mean, is
not: e is divided by the number of tensors that the node makes. The same holds behind for some reader of h: for the one that
adds least, divided by the number of tensors that it reads. Where compute and transfers are not added, the transfers alone
are bounded: min over d of l_d transfer.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from passes.costs.memory.footprint import slots
from passes.stages.arrays import csr, distinct, grouped
from passes.stages.bounds import node_weights
from passes.stages.lattice.kernel_arrays import Graph
from passes.stages.lattice.states import states
from passes.stages.load import COMM
from passes.stages.problem import Floats, Problem, pools, taken_from

SUM, OVERLAP, DUPLEX, SIDES = 0, 1, 2, 3
"""How the parts of a load add up; the first three as in ``problem.COMM``, the last of training: two sides, each compute +
transfers."""

UNSUPPORTED = 1e100
"""The weight of a node that no kind of a support runs: over any window, and finite so that sums can be subtracted."""


class Tables:
    """See the module. ``weight``: node weights at the prices; ``sequence``: as for ``states``."""

    def __init__(self, problem: Problem, price: Floats, sequence: Sequence[int] = ()) -> None:
        n = problem.size
        self.problem = problem
        self.price = price
        self.weight = node_weights(problem, price)
        self.sequence = tuple(sequence)
        self.states = states(problem, price, sequence)
        self.slack = 1e-12 * max(n, 1)
        reader_ptr, reader, tensor = problem.reading
        edges = distinct(problem.producer[tensor] * n + reader)
        self.succ_ptr, self.succ = grouped(edges // max(n, 1), edges % max(n, 1), n)
        self.pred_ptr, self.pred = grouped(self.succ, edges // max(n, 1), n)
        self.indegree = np.diff(self.pred_ptr)
        joins = problem.joins
        if joins is not None:
            self.pin_ptr, self.pin = csr(joins.pins)
            transfer, seconds, self.lane_in, self.lane_out = joins.transfer, joins.seconds, joins.side, joins.side
            self.tensor_bytes = np.zeros(len(joins.pins))
            self.lanes, self.mode = len(seconds), SIDES if len(seconds) > 1 else SUM
        else:
            self.pin_ptr = reader_ptr + np.arange(len(reader_ptr))
            self.pin = np.empty(self.pin_ptr[-1], np.int64)
            self.pin[self.pin_ptr[:-1]] = problem.producer
            self.pin[np.arange(len(reader)) + tensor + 1] = reader  # each after the makers of its tensor and of those before
            transfer, seconds = problem.transfer, problem.seconds[None]
            self.lanes, self.mode = 2 if problem.comm == "duplex" else 1, COMM.index(problem.comm)
            self.lane_in = np.zeros(len(problem.consumers), np.int64)
            self.lane_out = self.lane_in + (self.lanes - 1)
            self.tensor_bytes = slots(problem.comm) * problem.tensor_bytes.astype(np.float64)
        self.pins = np.diff(self.pin_ptr)
        self.on_ptr, self.on = grouped(self.pin, np.repeat(np.arange(len(self.pins)), self.pins), n)
        # Kinds whose transfers take equally long are of one port class.
        classes: dict[bytes, int] = {}
        self.port = np.array([classes.setdefault(row.tobytes(), len(classes)) for row in transfer], np.int64)
        self.transfer = np.array([np.frombuffer(row) for row in classes]).reshape(len(classes), transfer.shape[1])
        self.limit = np.array([-1 if k.memory is None else k.memory for k in problem.kinds], np.int64)
        self.handover = np.array([kind.handover for kind in problem.kinds], np.float64)
        self.own_weights = np.zeros(n, np.int64)
        self._weights()
        self.forced = np.array(problem.forced, np.int64)
        self._columns(seconds, transfer)

    def _weights(self) -> None:
        weight_ptr, reader = csr(self.problem.weight_readers)
        lengths = np.diff(weight_ptr)
        alone = lengths == 1
        np.add.at(self.own_weights, reader[weight_ptr[:-1][alone]], self.problem.weight_bytes[alone])
        shared = np.flatnonzero(lengths > 1).tolist()
        self.shared_ptr, self.shared = csr([self.problem.weight_readers[w] for w in shared])
        self.shared_bytes = self.problem.weight_bytes[shared].astype(np.int64)

    def _columns(self, seconds: Floats, transfer: Floats) -> None:
        """``node_columns[n, C]``, ``tensor_columns[H, B]``, and where their parts begin (see the module)."""
        problem, price, supports = self.problem, self.price, self.states.supports
        kinds, n, tensors = len(problem.kinds), problem.size, len(self.pins)
        sides, lanes = len(seconds), self.lanes * len(self.transfer)
        lacking = np.isinf(problem.seconds)
        self.at_lacking = 1 + sides * kinds
        self.at_weights = self.at_lacking + kinds
        turns = None if problem.joins is None else problem.joins.turns
        self.at_turns = self.at_weights + 1
        self.at_supports = self.at_turns + (0 if turns is None else len(turns.side))
        self.turn_cost = np.zeros((kinds, 0)) if turns is None else np.ascontiguousarray(turns.transfer)
        self.turn_side = np.zeros(0, np.int64) if turns is None else turns.side
        self.node_columns = np.empty((n, self.at_supports + len(supports)))
        self.node_columns[:, 0] = self.weight
        self.node_columns[:, 1 : self.at_lacking] = np.where(np.isfinite(seconds), seconds, 0.0).reshape(sides * kinds, n).T
        self.node_columns[:, self.at_lacking : self.at_weights] = lacking.T
        self.node_columns[:, self.at_weights] = self.own_weights
        if turns is not None:
            self.node_columns[:, self.at_turns : self.at_supports] = turns.signs.T
        self.at_bytes = lanes
        self.at_marks = lanes + 1
        self.tensor_columns = np.zeros((tensors, self.at_marks + 2 * len(supports)))
        for p, row in enumerate(self.transfer):
            for lane in range(self.lanes):
                self.tensor_columns[:, lane * len(self.transfer) + p] = np.where(self.lane_in == lane, row, 0.0)
        self.tensor_columns[:, self.at_bytes] = self.tensor_bytes
        self.apart = self.mode in (OVERLAP, DUPLEX)
        sources, alone = taken_from(problem.kinds), tuple(dict.fromkeys(pools(problem.kinds)))
        for index, support in enumerate(supports):
            chosen = list(support)
            # Of all kinds that a stage on a device may be of: ports in one order need not be better in each respect.
            least = np.array([transfer[[k for k in alone if pool in sources[k]]].min(axis=0) for pool in chosen])
            weight, ahead, behind = self._support(price[chosen], problem.seconds[chosen], least)
            self.node_columns[:, self.at_supports + index] = weight
            self.tensor_columns[:, self.at_marks + 2 * index] = ahead
            self.tensor_columns[:, self.at_marks + 2 * index + 1] = behind
        self.support_total = self.node_columns[:, self.at_supports :].sum(axis=0)

    def _support(self, price: Floats, seconds: Floats, transfer: Floats) -> tuple[Floats, Floats, Floats]:
        """Of some kinds: the weight of each node, and what a tensor that is cut adds ahead and behind (see the module)."""
        priced = price[:, None] * seconds if np.isfinite(seconds).all() else self._priced(price, seconds)
        least = priced.min(axis=0) if self.problem.size else np.zeros(0)
        weight = np.minimum(least, UNSUPPORTED)
        cost = price[:, None] * transfer
        if self.apart or len(price) == 1:
            added = cost.min(axis=0) if cost.shape[1] else np.zeros(0)
            return weight, added, added
        if not len(self.pins):
            return weight, np.zeros(0), np.zeros(0)
        tensor = np.repeat(np.arange(len(self.pins)), self.pins)
        alone = np.minimum((priced[:, self.pin] + cost[:, tensor]).min(axis=0), UNSUPPORTED)
        added = np.maximum(alone - weight[self.pin], 0.0)
        first = self.pin_ptr[:-1]
        if self.problem.joins is not None:
            least_added = np.minimum.reduceat(added / np.diff(self.on_ptr)[self.pin], first)
            return weight, least_added, least_added
        size = self.problem.size
        makes = np.bincount(self.problem.producer, minlength=size)
        reads = np.bincount(self.problem.reading[1], minlength=size)
        share = added / np.maximum(reads, 1)[self.pin]
        ahead = added[first] / makes[self.problem.producer]
        share[first] = np.inf  # the maker does not read
        behind = np.minimum.reduceat(share, first)
        return weight, ahead, np.where(np.isfinite(behind), behind, 0.0)

    @staticmethod
    def _priced(price: Floats, seconds: Floats) -> Floats:
        """Price times seconds where some are inf: a price of 0 leaves them inf."""
        finite = np.isfinite(seconds)
        return np.where(finite, price[:, None] * np.where(finite, seconds, 0.0), np.inf)

    @cached_property
    def graph(self) -> Graph:
        """The problem as the walk over ideals takes it."""
        n = self.problem.size
        below, weights, reached = np.zeros(n), self.weight, [0] * n
        for v in range(n - 1, -1, -1):
            bits = 1 << v
            for u in self.succ[self.succ_ptr[v] : self.succ_ptr[v + 1]].tolist():
                bits |= reached[u]
            reached[v] = bits
            flags = np.frombuffer(bits.to_bytes((n + 7) // 8, "little"), np.uint8)
            below[v] = weights[np.unpackbits(flags, count=n, bitorder="little").view(np.bool_)].sum()
        columns = self.node_columns, self.tensor_columns
        return Graph(self.succ_ptr, self.succ, below, self.on_ptr, self.on, self.pins, *columns)

    @cached_property
    def words_per_ideal(self) -> int:
        """Eight-byte words that one ideal takes: its bits, twice while they are sorted, what the family holds of it besides
        its cut, what the programme keeps of every state (value, parent, kind, link and whether it is possible: 18 bytes) and of
        every kind."""
        kinds, columns = len(self.problem.kinds), self.node_columns.shape[1] + self.tensor_columns.shape[1]
        return 2 * ((self.problem.size + 63) // 64) + 2 * columns + kinds + 8 + (18 * len(self.states.used) + 7) // 8

    def windows(self, trial: float) -> tuple[Floats, Floats]:
        """Ascending, disjoint ranges of weight that a boundary may have when no load exceeds ``trial``."""
        total = float(self.weight.sum())
        most = trial * (1 + self.slack)
        low = np.maximum(total - most * self.states.behind - 2 * self.slack * total, 0.0)
        high = np.minimum(most * self.states.ahead, total) + self.slack * total
        ranges = sorted((a, b) for a, b in zip(low.tolist(), high.tolist(), strict=True) if a <= b)
        merged: list[list[float]] = []
        for a, b in [(0.0, 0.0), *ranges, (total - 2 * self.slack * total, total + self.slack * total)]:
            if merged and a <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], b)
            else:
                merged.append([a, b])
        return np.array([a for a, _ in merged]), np.array([b for _, b in merged])
