"""One family of ideals of a reduced problem, searched: the arrays for the kernels, the bound, and the best plans.

With every ideal in the family the least tail of the empty ideal is a lower bound, and a search that gives nothing up finds the
least latency of the reduced problem, up to what ``kernels.seconds_of`` leaves out (a lower bound too). With a part of the
ideals both hold for plans along that part only.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from passes.reference.latency import kernels, label_kernels
from passes.reference.latency.bounds import fastest, longest_to
from passes.reference.latency.ideal_kernels import enumerate_ideals, sums
from passes.reference.latency.liveness import Liveness
from passes.reference.latency.problem import Piece, Programs
from passes.reference.latency.reduce import Free, Reduced, expanded
from passes.solvers.work import did
from passes.stages.arrays import csr, grouped

HUGE = 1 << 62
"""Stands for no memory limit."""
WORK = 200_000
"""Steps of a kernel between two looks at the work done: some tenths of a second."""
MOST_STATES = 16384
"""Vectors of pieces used beyond which kinds of accelerators are too many."""
UNIT = 2.0**-53
"""Relative rounding of a sum."""

KeepOn = Callable[[float], bool]
"""Told the part of the work done; false to stop."""


class TooManyKindsError(Exception):
    """The numbers of pieces left of each kind have more than ``MOST_STATES`` combinations."""


@dataclass(frozen=True)
class Pass:
    """What one search gives. ``pieces``: of the best end reached, None when there is none below the limit; ``bound``: no
    plan along the family ends before, and below ``most`` there is none that ends before this; ``whole``: nothing given up."""

    pieces: list[Piece] | None
    value: float
    bound: float
    whole: bool
    steps: int
    labels: int


def _rows(sets: Sequence[Iterable[int]], n: int) -> Any:
    rows = np.zeros((len(sets), max(1, (n + 63) // 64)), np.uint64)
    for i, members in enumerate(sets):
        for v in members:
            rows[i, v >> 6] |= np.uint64(1) << np.uint64(v & 63)
    return rows


def _attended(free: Free) -> bool:
    """Whether it may cost something although memory does not overflow."""
    return not all(free.inside) or len(free.groups) > 1


def graph_of(reduced: Reduced) -> kernels.Graph:
    """The arrays of a reduced problem."""
    n = len(reduced.groups)
    made_ptr, made = grouped(np.array(reduced.producer, np.int64), np.arange(len(reduced.producer)), n)
    before = [set(found) for found in reduced.makers]
    for u, v in reduced.after:
        before[v].add(u)
    maker_ptr, maker_flat = csr([sorted(found) for found in reduced.makers])
    kinds = len(reduced.kinds)
    # What may cost something in any piece comes first; the rest only when memory overflows.
    free = sorted(reduced.free, key=lambda f: (not _attended(f), f.node))
    transfer = np.array([f.transfer for f in free], dtype=np.float64).reshape(len(free), kinds).T.copy()
    size = np.array([f.size for f in free], np.float64)
    rate = transfer / np.maximum(size, 1e-9)
    return kernels.Graph(
        before=_rows(before, n),
        follow=_rows(reduced.following, n),
        made_ptr=made_ptr,
        made=made,
        readers=_rows(reduced.consumers, n),
        transfer=reduced.transfer,
        maker_ptr=maker_ptr,
        makers=maker_flat,
        seconds=np.where(np.isfinite(reduced.seconds), reduced.seconds, 0.0),
        lacking=np.isinf(reduced.seconds),
        cpu=reduced.cpu,
        size=reduced.size,
        limit=np.array([HUGE if kind.memory is None else kind.memory for kind in reduced.kinds], np.int64),
        colours=_rows(reduced.colours, n),
        free_groups=_rows([f.groups for f in free], n),
        free_transfer=transfer,
        free_size=size,
        free_inside=np.array([f.inside for f in free], np.bool_).reshape(len(free), kinds).T.copy(),
        evict=np.argsort(rate, axis=1, kind="stable").astype(np.int64),
        # The longest path to each group, each on its fastest device, less a rounding.
        early=longest_to(np.where(np.isfinite(own := fastest(reduced)), own, 0.0), reduced.makers) * (1 - 1e-12),
        attended=sum(_attended(f) for f in free),
        one_piece=reduced.pieces == 1,
        programs=reduced.problem.programs is not None,
        received=reduced.received,
        **_programs(reduced),
    )


def _programs(reduced: Reduced) -> dict[str, Any]:
    """The fields of ``Graph`` that tell which weights groups share and what is alive; no ops where bytes are sums."""
    nothing = np.zeros(0, np.int64)
    programs = reduced.problem.programs or Programs(nothing, nothing, (), Liveness(nothing, nothing, (), (), nothing, ()))
    own = programs.liveness
    label = {v: g for g, nodes in enumerate(reduced.groups) for v in nodes}
    made_ptr, made = csr(own.made)
    read_ptr, read = csr(own.read)
    return {
        "weights": _rows([{label[v] for v in found if v in label} for found in programs.weight_readers], len(reduced.groups)),
        "weight_bytes": programs.weight_bytes,
        "ops": np.array([label.get(v, -1) for v in own.node.tolist()], np.int64),
        "inner": own.inner,
        "op_made_ptr": made_ptr,
        "op_made": made,
        "op_read_ptr": read_ptr,
        "op_read": read,
        "value_bytes": own.bytes,
        "argument": np.array(own.argument, np.bool_),
        "left": np.zeros(len(own.bytes), np.int64),
    }


def _room(reduced: Reduced) -> list[int]:
    """Numbers of pieces that may be left, of each kind; more pieces than nodes are never used. Raises TooManyKindsError."""
    room = [min(kind.count * reduced.pieces, len(reduced.groups)) + 1 for kind in reduced.kinds]
    if math.prod(room) > MOST_STATES:
        raise TooManyKindsError(
            f"latency: {len(room)} kinds of accelerators with {math.prod(room)} combinations of pieces left, of at most "
            f"{MOST_STATES}"
        )
    return room


class Engine:
    """See the module."""

    def __init__(self, reduced: Reduced, graph: kernels.Graph, lattice: kernels.Lattice) -> None:
        self.reduced = reduced
        self.graph = graph
        self.lattice = lattice
        room = _room(reduced)
        self.stride = np.cumprod([1, *room]).astype(np.int64)
        self.states = int(self.stride[-1])
        width = np.diff(lattice.front_ptr) + 1
        self.start = np.concatenate([[0], np.cumsum(width * self.states)]).astype(np.int64)
        self.width = int(width.max())
        self.tail = np.empty(0)  # until ``bound`` fills it
        # A piece takes the difference of two sums over ideals, each off by a rounding for every group.
        largest, groups = float(lattice.seconds.max(initial=0.0)), len(reduced.groups)
        self.rounding = 2 * UNIT * groups * largest * min(groups, sum(count - 1 for count in room))
        self.queue = np.empty(len(lattice.bits), np.int64)
        self.steps = 0

    @staticmethod
    def open(reduced: Reduced, *, most: int, band: int | None = None, memory: float = math.inf) -> Engine | None:
        """The engine over every ideal, or over a ``band`` of them (``enumerate_ideals``); none when they are more than
        ``most``, or their tails more than ``memory`` bytes."""
        graph = graph_of(reduced)
        n = len(reduced.groups)
        count, bits, cover_ptr, cover_node, cover_to = enumerate_ideals(graph.before, n if band is None else band, most)
        did("ideal", abs(int(count)))
        if count < 0:
            return None
        kinds = len(reduced.kinds)
        attributed = np.zeros(n)
        for source in reduced.free:
            attributed[source.groups[-1]] += source.size
        values = np.column_stack([graph.seconds.T, graph.lacking.T, reduced.size, attributed]).astype(np.float64)
        total, front_ptr, front = sums(bits, graph.follow, np.ascontiguousarray(values))
        if 8 * (len(front) + len(bits)) * math.prod(_room(reduced)) > memory:
            return None
        lattice = kernels.Lattice(
            bits,
            cover_ptr,
            cover_node,
            cover_to,
            front_ptr,
            front,
            np.ascontiguousarray(total[:, :kinds]),
            np.ascontiguousarray(total[:, kinds : 2 * kinds]),
            np.rint(total[:, 2 * kinds]).astype(np.int64),
            np.rint(total[:, 2 * kinds + 1]).astype(np.int64),
        )
        return Engine(reduced, graph, lattice)

    @property
    def ideals(self) -> int:
        return len(self.lattice.bits)

    @property
    def entries(self) -> int:
        """Tails: of each ideal, one per state and node of its frontier, and one."""
        return int(self.start[-1])

    def bound(self, most: float, keep_on: KeepOn) -> float | None:
        """Fills the tails. The least latency along the family, or ``most`` when it is not below that, is at least what this
        returns; none when stopped."""
        self.tail = np.full(self.entries, math.inf)
        stamp = np.full(self.ideals, -1, np.int64)
        at = self.ideals - 1
        while at >= 0:
            at, done = kernels.tails(
                self.graph, self.lattice, self.stride, most, self.start, self.tail, self.queue, stamp, at, WORK
            )
            self.steps += done
            did("step", int(done))
            if not keep_on(1 - (at + 1) / self.ideals):
                return None
        return min(float(self.tail[self.start[0] + self.states - 1]), most)

    def search(self, most: float, width: int, labels: int, keep_on: KeepOn) -> Pass:
        """Searches for an end before ``most`` with at most ``width`` labels per ideal, ``labels`` in all; after ``bound``."""
        pool = self._pool(labels)
        stamp = np.full(self.ideals, -1, np.int64)
        slack = 1e-13 * most if math.isfinite(most) else 0.0
        at, dropped, steps, stopped = (0, 0, 0), math.inf, 0, False
        tails = label_kernels.Tails(self.stride, self.start, self.tail)
        limits = label_kernels.Limits(most, slack, self.reduced.pieces, width)
        while at[0] < self.ideals - 1:
            at, dropped, done = label_kernels.search(
                self.graph, self.lattice, pool, tails, limits, dropped, self.queue, stamp, at, WORK
            )
            steps += done
            did("step", int(done))
            did("compared", int(pool.counts[label_kernels.COMPARED]))
            pool.counts[label_kernels.COMPARED] = 0
            if at[0] < self.ideals - 1 and not keep_on(at[0] / self.ideals):
                stopped = True
                break
        self.steps += steps
        if stopped:
            heads = pool.head[at[0] :]
            left = [float(pool.promise[x]) for head in heads[heads >= 0] for x in self._chain(pool, int(head))]
            dropped = min([dropped, *left])
        last = int(pool.head[-1])
        ends = sorted((float(pool.promise[x]), x) for x in self._chain(pool, last)) if last >= 0 else []
        value = ends[0][0] if ends else math.inf
        return Pass(
            self._plan(pool, ends[0][1]) if ends else None,
            value,
            min(value, dropped, most),
            math.isinf(dropped),
            steps,
            int(pool.counts[label_kernels.COUNT]),
        )

    @staticmethod
    def _chain(pool: label_kernels.Pool, x: int) -> Iterable[int]:
        while x >= 0:
            yield x
            x = int(pool.after[x])

    def _pool(self, labels: int) -> label_kernels.Pool:
        whole = self.reduced.pieces == 1
        kind_of = [t for t, kind in enumerate(self.reduced.kinds) for _ in range(kind.count)]
        devices = 0 if whole else len(kind_of)
        colours = 0 if whole else len(self.reduced.colours)
        pool = label_kernels.Pool(
            ready=np.zeros((labels, self.width)),
            promise=np.zeros(labels),
            k=np.zeros(labels, np.int64),
            parent=np.full(labels, -1, np.int64),
            ideal=np.zeros(labels, np.int64),
            device=np.full(labels, label_kernels.OPEN, np.int64),
            after=np.full(labels, -1, np.int64),
            head=np.full(self.ideals, -1, np.int64),
            held=np.zeros(self.ideals, np.int64),
            used=np.zeros((labels, devices), np.int64),
            bytes=np.zeros((labels, devices), np.int64),
            free=np.zeros((labels, devices)),
            home=np.full((labels, colours), label_kernels.OPEN, np.int64),
            order=np.tile(np.arange(devices), (labels, 1)),
            kind_of=np.array(kind_of, np.int64),
            counts=np.array([1, -1, 0], np.int64),
        )
        pool.k[0] = self.states - 1
        pool.head[0] = 0
        pool.held[0] = 1
        pool.promise[0] = self.tail[self.start[0] + self.states - 1]
        return pool

    def _plan(self, pool: label_kernels.Pool, x: int) -> list[Piece]:
        """The pieces of the steps that led to label x, in their order."""
        path = [x]
        while (parent := int(pool.parent[path[-1]])) >= 0:
            path.append(parent)
        steps = []
        number = np.arange(len(pool.kind_of))  # of the accelerators as the label has them
        for parent, x in itertools.pairwise(reversed(path)):
            device = int(pool.device[x])
            if device != label_kernels.CPU:
                i, j = int(pool.ideal[x]), int(pool.ideal[parent])
                members = self._members(self.lattice.bits[i] & ~self.lattice.bits[j])
                steps.append((device if self.reduced.pieces == 1 else int(number[device]), members))
            number = number[pool.order[x]]
        kinds = self.reduced.kinds
        placed = []
        taken = [0] * len(kinds)
        first = np.cumsum([0, *(kind.count for kind in kinds)])
        for device, groups in steps:
            if self.reduced.pieces == 1:
                placed.append((device, taken[device], groups))
                taken[device] += 1
            else:
                kind = int(pool.kind_of[device])
                placed.append((kind, device - int(first[kind]), groups))
        return expanded(self.reduced, placed)

    def _members(self, bits: Any) -> tuple[int, ...]:
        flags = np.unpackbits(np.ascontiguousarray(bits).view(np.uint8), bitorder="little")[: len(self.reduced.groups)]
        return tuple(int(v) for v in np.flatnonzero(flags))
