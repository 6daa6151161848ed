"""An order of the nodes that depends on the graph and its costs alone: not on the file's order, nor on names.

Programmes along one order, greedy fillings and annealing give plans that depend on how nodes are numbered. Numbered canonically
first, they do not. Colour refinement (Weisfeiler and Leman, 1968) tells nodes apart by their costs and, round after round, by
those of their neighbours; where some stay alike, one is made different and the rest told apart from it anew. Nodes that stay
alike are nearly always interchangeable, and then it does not matter which one that is. (Graphs whose unlike nodes refinement
cannot tell apart exist; workloads are none. Beyond ``MOST_WORK`` what is left alike keeps the given order.)

Colours are 64-bit sums of mixed numbers, the same on every machine. Seconds are rounded to seven digits first (a
four-byte float): sums over the nodes of a colour class come in the file's order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from passes.stages.arrays import Ints, csr
from passes.stages.problem import Floats, Problem

Colours: TypeAlias = NDArray[np.uint64]

MOST_WORK = 20_000_000
"""Pins of tensors and weights looked at: about a second."""


def canonical_order(
    problem: Problem, columns: Sequence[Sequence[float]] = (), nets: Sequence[Sequence[int]] = ()
) -> tuple[int, ...]:
    """A topological order, every node as late as its first reader allows. ``reduce.permuted`` renumbers the problem by it.

    ``columns``: what else tells nodes apart, a number of each; ``nets``: sets of nodes that belong together."""
    depth, height, before = _levels(problem)
    demanded = np.zeros(len(problem.consumers), np.int64)
    demanded[list(problem.forced)] = 1
    tensors = hashed(len(problem.consumers), [*_digits(problem.transfer), problem.tensor_bytes, demanded])
    joined = (*problem.weight_readers, *nets)
    held = hashed(len(joined), [np.concatenate([problem.weight_bytes, np.full(len(nets), -1)])])
    view = Refinement(problem, tensors, joined, held)
    own = _digits(np.array(columns, np.float64).reshape(len(columns), problem.size))
    colour = hashed(problem.size, [depth, height, *own, *_digits(problem.seconds), problem.live])
    work = view.pins + problem.size + 1
    spent = 0
    while True:
        colour, rounds = view.refined(colour)
        spent += work * rounds
        alike = _first_alike(colour)
        if alike < 0 or spent > MOST_WORK:
            break
        colour[alike] = _mixed(colour[alike : alike + 1] + np.uint64(1))[0]
    place = np.empty(problem.size, np.int64)
    place[np.lexsort((np.arange(problem.size), colour, depth))] = np.arange(problem.size)
    return depth_first(place.tolist(), before, np.flatnonzero(height == 0).tolist())


def depth_first(place: Sequence[int], before: Sequence[set[int]], sinks: Sequence[int]) -> tuple[int, ...]:
    """Backwards from the sinks, what must come first in the order of ``place``."""
    order: list[int] = []
    done = [False] * len(place)
    for sink in sorted(sinks, key=place.__getitem__):
        stack = [(sink, iter(sorted(before[sink], key=place.__getitem__)))]
        while stack:
            v, waiting = stack[-1]
            u = next((u for u in waiting if not done[u]), -1)
            if u >= 0:
                stack.append((u, iter(sorted(before[u], key=place.__getitem__))))
            else:
                done[v] = True
                order.append(v)
                stack.pop()
    return tuple(order)


def _levels(problem: Problem) -> tuple[Ints, Ints, list[set[int]]]:
    """Of each node: edges of the longest path to it, and from it; what it reads from."""
    before, after = problem.neighbours
    depth, height = [0] * problem.size, [0] * problem.size
    for v in range(problem.size):
        depth[v] = max((1 + depth[u] for u in before[v]), default=0)
    for u in range(problem.size - 1, -1, -1):
        height[u] = max((1 + height[v] for v in after[u]), default=0)
    return np.array(depth, np.int64), np.array(height, np.int64), before


class Refinement:
    """Nodes told apart by what joins them: the tensors of a problem, and ``nets``, sets of nodes that have no maker.
    ``tensors[H]`` and ``held``, of each net, are the colours that these have of their own."""

    def __init__(self, problem: Problem, tensors: Colours, nets: Sequence[Sequence[int]], held: Colours) -> None:
        self.problem, self.tensors, self.nets = problem, tensors, held
        _, self.reader, self.tensor = problem.reading
        pointers, self.holder = csr(nets)
        self.net = np.repeat(np.arange(len(nets)), np.diff(pointers))
        self.pins = len(self.reader) + len(problem.producer) + len(self.holder)

    def refined(self, colour: Colours) -> tuple[Colours, int]:
        """The colours that rounds of refinement end at, and how many rounds that took."""
        count, rounds = len(np.unique(colour)), 0
        while True:
            rounds += 1
            tensors = _mixed(self.tensors + _mixed(colour[self.problem.producer]))
            np.add.at(tensors, self.tensor, _mixed(colour[self.reader] ^ np.uint64(0x5555)))
            nets = self.nets.copy()
            np.add.at(nets, self.net, _mixed(colour[self.holder] ^ np.uint64(0x3333)))
            finer = _mixed(colour)
            np.add.at(finer, self.problem.producer, _mixed(tensors ^ np.uint64(1)))
            np.add.at(finer, self.reader, _mixed(tensors ^ np.uint64(2))[self.tensor])
            np.add.at(finer, self.holder, _mixed(nets ^ np.uint64(4))[self.net])
            found = len(np.unique(finer))
            if found <= count or rounds > self.problem.size:
                return colour, rounds
            colour, count = finer, found


def _first_alike(colour: Colours) -> int:
    """The first node of the least colour that several have; -1 where there is none."""
    _, first, counts = np.unique(colour, return_index=True, return_counts=True)
    several = np.flatnonzero(counts > 1)
    return int(first[several[0]]) if len(several) else -1


def _digits(rows: Floats) -> list[Ints]:
    """Each row rounded, as whole numbers; what is beyond the range of a four-byte float is at its ends."""
    finite = np.where(np.isfinite(rows), rows, -1.0)
    size = np.maximum(np.where(finite == 0, 1.0, np.abs(finite)), 1e-300)
    scale = 10.0 ** np.floor(np.log10(size))
    most = float(np.finfo(np.float32).max)
    rounded = np.clip(np.round(finite / scale, 8) * scale, -most, most)
    return [np.ascontiguousarray(row).astype(np.float32).view(np.int32).astype(np.int64) for row in rounded]


def hashed(count: int, columns: Sequence[Any]) -> Colours:
    """A number of each row of columns of whole numbers."""
    found = np.zeros(count, np.uint64)
    for column in columns:
        found = _mixed(found + np.asarray(column).astype(np.int64).view(np.uint64))
    return found


def _mixed(values: Colours) -> Colours:
    """SplitMix64 (Steele, Lea and Flood, 2014)."""
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
