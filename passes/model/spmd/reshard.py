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

from ir.core.shares import cut
from ir.core.types import DType, Partial, Placement, Replicate, Shard, TensorType, Type
from ir.ops.opdefs import RESHARD_STEPS, reshard_step
from passes.model.spmd.mesh import DeviceMesh

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

    def way(self, type_: Type, source: Lies, target: Lies, *, together: bool = False) -> tuple[Step, ...]:
        """``together``: as one of many gradients, whose sums share messages. Raises KeyError where no chain leads there."""
        key = (type_, source, target, together)
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = self.find(type_, source, target, together)
        return found

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
            for step in self.steps(type_, lies, together):
                pushed += 1
                heapq.heappush(heap, (seconds + step.seconds, length + 1, pushed, step.after, (*way, step)))
        raise KeyError(f"{type_} cannot be brought from {source} to {target}")

    def steps(self, type_: Type, lies: Lies, together: bool) -> Iterator[Step]:
        """What one collective, or a local op, can make of a layout."""
        if not isinstance(type_, TensorType):
            return
        shape = [dim for dim in type_.shape or () if isinstance(dim, int)]
        for position, axis in enumerate(self.mesh.axes):
            before, later = lies[position], lies[position + 1 :]
            if isinstance(before, Shard) and before in later:
                continue  # a later axis cuts its shards: it must be joined first
            size = self.bytes(type_, shape, (*lies[:position], Replicate(), *later))
            afters: Lies = (*map(Shard, range(len(shape))), Replicate(), Partial("sum"), Partial("max"))
            for after in afters:
                if after == before or (isinstance(after, Shard) and after in later):
                    continue
                layout: Lies = (*lies[:position], after, *later)
                kind = reshard_step(before, after)
                if kind is not None and self.possible(type_, shape, layout):
                    step = RESHARD_STEPS[kind]
                    passed = size / axis.size if step.cuts_anew else self.bytes(type_, shape, lies, layout)
                    seconds = axis.seconds(step, passed, together=together)
                    yield Step(kind, position, layout, size, seconds)

    def possible(self, type_: TensorType, shape: list[int], lies: Lies) -> bool:
        """Whether a value of this type may lie so."""
        terms = {placement.reduction for placement in lies if isinstance(placement, Partial)}
        if len(terms) > 1 or (terms and type_.dtype in (DType.BOOL, DType.STRING)):
            return False
        for dim, length in enumerate(shape):
            sums = 1
            left = length
            for placement, axis in zip(lies, self.mesh.axes, strict=True):
                if placement == Shard(dim):
                    sums *= sum(axis.shares)
                    left = min(cut(left, axis.shares, member)[1] for member in range(axis.size))
            if sums > 1 and (left == 0 or (length % sums and not self.uneven)):
                return False
        return True

    def bytes(self, type_: TensorType, shape: list[int], *lies: Lies) -> float:
        """Of the largest part that is in a shard of this layout, or in the shards of two members, one of each layout."""
        local = list(shape)
        for axis, placements in zip(self.mesh.axes, zip(*lies, strict=True), strict=True):
            dims = sorted({placement.dim for placement in placements if isinstance(placement, Shard)})
            # Of two dimensions one member has its part of the one, another its part of the other.
            largest = heapq.nlargest(2, range(axis.size), key=axis.shares.__getitem__)
            pairs = itertools.permutations(largest, len(dims))
            parts = [[cut(local[d], axis.shares, member)[1] for d, member in zip(dims, pair, strict=True)] for pair in pairs]
            for dim, length in zip(dims, max(parts, key=math.prod), strict=True):
                local[dim] = length
        return (type_.nbytes or 0) * (math.prod(local) / math.prod(shape)) if math.prod(shape) else 0.0


__all__ = ["Lies", "Step", "Ways"]
