"""The cheapest chain of collectives from one layout of a value to another, step by step: what a plan is charged and what
lowering writes.

It finds chains by another algorithm (Dijkstra) than ``layouts``, so that an error in either shows as a difference between what
the search minimised and what ``price`` counts. Of chains that cost the same
the one with the fewest steps is taken, then the one found first.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from ir.core.outcomes import TIGHT
from ir.core.shares import cut
from ir.core.types import DType, Partial, Placement, Replicate, Shard, TensorType, Type
from ir.ops.opdefs import RESHARD_STEPS, reshard_step
from passes.meshes.mesh import DeviceMesh

Lies = tuple[Placement, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One link of a chain: it makes layout ``after`` by changing axis number ``axis``. ``size``: bytes of the tensor as the
    other axes leave it, of the largest where these differ."""

    kind: str
    axis: int
    after: Lies
    size: float
    seconds: float


class Ways:
    """Chains on one mesh, each found once."""

    def __init__(self, mesh: DeviceMesh, uneven: bool) -> None:
        self.mesh, self.uneven = mesh, uneven
        self.known: dict[tuple[Type, Lies, Lies, bool], tuple[Step, ...]] = {}
        self.links: dict[tuple[Type, Lies, bool], tuple[Step, ...]] = {}
        members = [sorted(range(axis.size), key=axis.shares.__getitem__, reverse=True) for axis in mesh.axes]
        self.largest = [ordered[:2] for ordered in members]  # members of each axis with the two largest parts of any range,
        self.least = [ordered[-1] for ordered in members]  # and with the smallest (``ir.core.shares``)

    def way(self, type_: Type, source: Lies, target: Lies, *, together: bool = False) -> tuple[Step, ...]:
        """``together``: as one of many gradients, whose sums share messages. Raises KeyError where no chain leads there."""
        key = (type_, source, target, together)
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = self.find(type_, source, target, together)
        return found

    def first_sum(self, type_: Type, source: Lies, target: Lies) -> float:
        """Seconds of the all-reduce that a cheapest way of a gradient ``together`` with others begins with, but for steps that
        cost nothing; the longest of several, 0 where none does."""

        def seconds(lies: Lies) -> float:
            return math.fsum(step.seconds for step in self.way(type_, lies, target, together=True)) if lies != target else 0.0

        least, longest = seconds(source) * (1 + TIGHT), 0.0
        ready, seen = [source], {source}
        while ready:
            for step in self.steps_from(type_, ready.pop(), together=True):
                if step.kind == "all_reduce" and longest < step.seconds <= least:
                    longest = step.seconds if step.seconds + seconds(step.after) <= least else longest
                elif not step.seconds and step.after not in seen:
                    seen.add(step.after)
                    ready.append(step.after)
        return longest

    def steps_from(self, type_: Type, lies: Lies, together: bool) -> tuple[Step, ...]:
        """``steps``, found once."""
        key = (type_, lies, together)
        if key not in self.links:
            self.links[key] = tuple(self.steps(*key))
        return self.links[key]

    def find(self, type_: Type, source: Lies, target: Lies, together: bool) -> tuple[Step, ...]:
        heap: list[tuple[float, int, int, Lies, tuple[Step, ...]]] = [(0.0, 0, 0, source, ())]
        done: set[Lies] = set()
        pushed = 0
        while heap:
            seconds, length, _, lies, way = heapq.heappop(heap)
            if lies == target:
                return way
            if lies in done:
                continue
            done.add(lies)
            for step in self.steps_from(type_, lies, together):
                pushed += 1
                if step.after not in done:
                    heapq.heappush(heap, (seconds + step.seconds, length + 1, pushed, step.after, (*way, step)))
        raise KeyError(f"{type_} cannot be brought from {source} to {target}")

    def steps(self, type_: Type, lies: Lies, together: bool) -> Iterator[Step]:
        """What one collective, or a local op, can make of a layout."""
        if not isinstance(type_, TensorType):
            return
        shape = [dim for dim in type_.shape or () if isinstance(dim, int)]
        whole = type_.nbytes or 0
        afters: Lies = (*map(Shard, range(len(shape))), Replicate(), Partial("sum"), Partial("max"))
        for position, axis in enumerate(self.mesh.axes):
            before, later = lies[position], lies[position + 1 :]
            if isinstance(before, Shard) and before in later:
                continue  # a later axis cuts its shards: it must be joined first
            size = whole * self.part(shape, (*lies[:position], Replicate(), *later))
            for after in afters:
                kind = reshard_step(before, after)
                if kind is None or after == before or (isinstance(after, Shard) and after in later):
                    continue
                layout: Lies = (*lies[:position], after, *later)
                if self.possible(type_, shape, layout):
                    step = RESHARD_STEPS[kind]
                    passed = size / axis.size if step.cuts_anew else whole * self.part(shape, lies, layout)
                    seconds = axis.seconds(step, passed, together=together)
                    yield Step(kind, position, layout, size, seconds)

    def possible(self, type_: TensorType, shape: list[int], lies: Lies) -> bool:
        """Whether a value of this type may lie so."""
        terms = {placement.reduction for placement in lies if isinstance(placement, Partial)}
        if len(terms) > 1 or (terms and type_.dtype in (DType.BOOL, DType.STRING)):
            return False
        for dim in {placement.dim for placement in lies if isinstance(placement, Shard)}:
            sums, left = 1, shape[dim]
            for placement, axis, least in zip(lies, self.mesh.axes, self.least, strict=True):
                if isinstance(placement, Shard) and placement.dim == dim:
                    sums *= sum(axis.shares)
                    left = cut(left, axis.shares, least)[1]
            if sums > 1 and (left == 0 or (shape[dim] % sums and not self.uneven)):
                return False
        return True

    def part(self, shape: list[int], *lies: Lies) -> float:
        """Of all elements, those of the largest part that is in a shard of this layout, or in the shards of two members, one
        of each layout."""
        local = list(shape)
        for axis, largest, placements in zip(self.mesh.axes, self.largest, zip(*lies, strict=True), strict=True):
            dims = sorted({placement.dim for placement in placements if isinstance(placement, Shard)})
            if len(dims) == 1:
                local[dims[0]] = cut(local[dims[0]], axis.shares, largest[0])[1]
            elif dims:  # one member has its part of the one dimension, another its part of the other
                pairs = (zip(dims, members, strict=True) for members in itertools.permutations(largest, len(dims)))
                parts = [[cut(local[dim], axis.shares, member)[1] for dim, member in pair] for pair in pairs]
                for dim, length in zip(dims, max(parts, key=math.prod), strict=True):
                    local[dim] = length
        return math.prod(local) / math.prod(shape) if math.prod(shape) else 0.0


__all__ = ["Lies", "Step", "Ways"]
