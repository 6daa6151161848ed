"""Layouts that a value may have on a mesh, and the cheapest way from each to each.

A layout is one placement per mesh axis. A step changes one axis by one collective: all-gather ``S -> R``, all-reduce
``P -> R``, reduce-scatter ``P -> S``, all-to-all ``S -> S'``; ``R -> S`` is a local slice and ``R -> P`` stands on one member
(of a maximum: on all), both free. Its seconds are those of the largest part that it moves (``mesh``), as the *other* axes leave
it. Where several axes split one dimension, the later splits what the earlier left, so only the last of them may be changed. A
conversion is the cheapest chain of steps: a shortest path over layouts.

Invariants: terms of a sum and of a maximum do not meet in one layout; a dimension is split as near to the proportion of the
shares as whole elements allow (``ir.core.shares.cut``), and never into empty parts."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ir.core.outcomes import TIGHT
from ir.core.shares import Shares, cut, foremost_two, nested_cut, none_empty, proportional
from ir.core.types import REDUCTIONS, Dim, DType, Partial, Placement, Replicate, Shard, TensorType, Type
from ir.layout_rules import Factor, Strategy
from ir.ops.opdefs import RESHARD_STEPS, reshard_step
from passes.meshes.mesh import DeviceMesh

Placements: TypeAlias = tuple[Placement, ...]
Seconds: TypeAlias = NDArray[np.float64]
Shape: TypeAlias = tuple[Dim, ...]
UNCUT = frozenset(dtype for dtype in DType if dtype.bits < 8 and dtype is not DType.BOOL) | {
    *(DType.STRING, DType.F8E4M3FN, DType.F8E4M3FNUZ, DType.F8E5M2, DType.F8E5M2FNUZ, DType.F8E8M0),
}
"""Element types that no runtime cuts or exchanges: onnxruntime has no Slice of them, strings have no width, and several
elements share a byte. Values of them are whole on each member; a weight may be cut beforehand, and is read as it is kept."""
SMALL = 64
"""Elements up to which a constant stands on every device."""


@dataclass(frozen=True, slots=True)
class Step:
    """One collective, or local op, of a conversion: it makes layout ``after`` by changing axis number ``axis``. ``size``: bytes
    of the tensor as the other axes leave it, of the largest where these differ."""

    kind: str
    axis: int
    after: Placements
    size: float
    seconds: float


class Layouts:
    """Every layout of a type, the most split first, and the cheapest conversions between them. ``numbers``: of each layout its
    place in ``placements``; ``steps``: of each layout what one step makes of it."""

    def __init__(self, type_: Type, mesh: DeviceMesh, together: bool, weight: bool) -> None:
        """As of ``layouts_of``."""
        possible = _possible(type_, mesh)
        if uncut := isinstance(type_, TensorType) and type_.dtype in UNCUT:
            whole = [lies for lies in possible if all(isinstance(p, Replicate) for p in lies)]
            possible = [lies for lies in possible if not any(isinstance(p, Partial) for p in lies)] if weight else whole
        self.type, self.mesh, self.together = type_, mesh, together
        self.placements = tuple(sorted(possible, key=lambda placements: _order(placements, mesh)))
        self.numbers = {placements: number for number, placements in enumerate(self.placements)}
        parts = [] if uncut else [split(type_, lies, mesh) for lies in self.placements]
        self.steps = [() if uncut else tuple(self._steps(lies, parts)) for lies in self.placements]
        self._ways: dict[tuple[Placements, Placements], tuple[Step, ...]] = {}

    def number(self, placements: Placements) -> int:
        """Its number, -1 where the type cannot have it."""
        return self.numbers.get(placements, -1)

    @cached_property
    def convert(self) -> Seconds:
        """``[a, b]``: seconds from layout ``a`` to ``b``, by shortest paths (Floyd, Warshall)."""
        count = len(self.placements)
        convert: Seconds = np.full((count, count), np.inf)
        np.fill_diagonal(convert, 0.0)
        for one, steps in enumerate(self.steps):
            for step in steps:
                convert[one, self.numbers[step.after]] = step.seconds
        for middle in range(count):
            np.minimum(convert, convert[:, middle, None] + convert[None, middle, :], out=convert)
        return convert

    @cached_property
    def first(self) -> Seconds:
        """``[a, b]``: seconds of the all-reduce that a cheapest way begins with, but for steps that cost nothing; the longest
        of several, 0 where none does."""
        first: Seconds = np.zeros_like(self.convert)
        for one, steps in enumerate(self.steps):
            before = np.flatnonzero(self.convert[:, one] == 0.0)  # local steps may come first
            for step in steps:
                if step.kind == "all_reduce":
                    rest = self.convert[self.numbers[step.after]]
                    shortest = step.seconds + rest <= self.convert[before] * (1 + TIGHT)
                    first[before] = np.maximum(first[before], np.where(shortest, step.seconds, 0.0))
        return first

    def way(self, source: Placements, target: Placements) -> tuple[Step, ...]:
        """The cheapest chain of steps from one layout to another (Dijkstra); of those that cost the same the one with the
        fewest steps, then the one found first. Raises KeyError where none leads there."""
        if source == target:
            return ()
        if (source, target) not in self._ways:
            self._ways[source, target] = self._way(source, target)
        return self._ways[source, target]

    def _way(self, source: Placements, target: Placements) -> tuple[Step, ...]:
        heap: list[tuple[float, int, int, Placements, tuple[Step, ...]]] = [(0.0, 0, 0, source, ())]
        done: set[Placements] = set()
        pushed = 0
        while heap:
            seconds, length, _, lies, way = heapq.heappop(heap)
            if lies == target:
                return way
            if lies in done or lies not in self.numbers:
                continue
            done.add(lies)
            for step in self.steps[self.numbers[lies]]:
                pushed += 1
                if step.after not in done:
                    heapq.heappush(heap, (seconds + step.seconds, length + 1, pushed, step.after, (*way, step)))
        raise KeyError(f"{self.type} cannot be brought from {source} to {target}")

    def _steps(self, lies: Placements, parts: Sequence[float]) -> Iterator[Step]:
        """What one step makes of a layout. ``parts``: of each layout the part of the tensor in its largest shard."""
        type_, mesh = self.type, self.mesh
        if not isinstance(type_, TensorType) or len(self.placements) == 1:
            return
        whole = float(type_.nbytes or 0)
        held = whole * parts[self.numbers[lies]]
        afters: Placements = (*map(Shard, range(len(type_.shape or ()))), Replicate(), *map(Partial, REDUCTIONS))
        for position, axis in enumerate(mesh.axes):
            before, later = lies[position], lies[position + 1 :]
            if isinstance(before, Shard) and before in later:
                continue  # a later axis cuts its shards: it must be joined first
            size = whole * parts[self.numbers[*lies[:position], Replicate(), *later]]
            for after in afters:
                layout: Placements = (*lies[:position], after, *later)
                if layout not in self.numbers or after == before or (isinstance(after, Shard) and after in later):
                    continue
                if (kind := reshard_step(before, after)) is None:
                    continue
                step = RESHARD_STEPS[kind]
                if step.cuts_anew:
                    passed = held / axis.size
                elif step.join and step.split:
                    passed = whole * _largest_piece(type_, lies, layout, position, mesh)
                else:
                    passed = held if step.join else whole * parts[self.numbers[layout]]
                yield Step(kind, position, layout, size, axis.seconds(step, passed, together=self.together))


@lru_cache(maxsize=1 << 12)
def layouts_of(type_: Type, mesh: DeviceMesh, *, together: bool = False, weight: bool = False) -> Layouts:
    """The layouts of a type; what is no tensor of known shape is replicated, and so is an ``UNCUT`` one of no ``weight``.
    ``together``: what a gradient of a weight costs, whose sum shares messages with others (``Axis.seconds``)."""
    return Layouts(type_, mesh, together, weight)


class Ways:
    """The layouts of types on one mesh, and the cheapest ways between them: what a plan is charged and what lowering writes."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh = mesh
        self.known: dict[tuple[Type, bool], Layouts] = {}

    def layouts(self, type_: Type, together: bool) -> Layouts:
        """``together``: as one of many gradients, whose sums share messages."""
        if (type_, together) not in self.known:
            self.known[type_, together] = layouts_of(type_, self.mesh, together=together, weight=True)
        return self.known[type_, together]

    def way(self, type_: Type, source: Placements, target: Placements, *, together: bool = False) -> tuple[Step, ...]:
        """As of ``Layouts.way``."""
        return self.layouts(type_, together).way(source, target)


def split(type_: Type, placements: Placements, mesh: DeviceMesh) -> float:
    """Part of a tensor that its largest shard holds."""
    return part(type_, placements, mesh, mesh.foremost)


def part(type_: Type, placements: Placements, mesh: DeviceMesh, place: Sequence[int]) -> float:
    """Part of a tensor that the member at ``place`` holds."""
    if not isinstance(type_, TensorType) or type_.shape is None:
        return 1.0
    cuts: dict[int, list[tuple[Shares, int]]] = {}
    for placement, axis, at in zip(placements, mesh.axes, place, strict=True):
        if isinstance(placement, Shard):
            cuts.setdefault(placement.dim, []).append((axis.shares, at))
    share = 1.0
    for dim, along in cuts.items():
        length = type_.shape[dim]
        assert isinstance(length, int)
        share *= nested_cut(length, along)[1] / length
    return share


def local_shape(type_: Type, placements: Placements, mesh: DeviceMesh, place: Sequence[int]) -> Shape | None:
    """The shape of the part of a tensor that the member at ``place`` holds; None where it has none."""
    if not isinstance(type_, TensorType) or type_.shape is None:
        return None
    shape = list(type_.shape)
    for placement, axis, at in zip(placements, mesh.axes, place, strict=True):
        if isinstance(placement, Shard):
            length = shape[placement.dim]
            assert isinstance(length, int)
            shape[placement.dim] = cut(length, axis.shares, at)[1]
    return tuple(shape)


def fullest(type_: Type, placements: Placements, mesh: DeviceMesh) -> float:
    """Part of a tensor that a member holds, over the room of its device, where that is most: no device is fuller than the
    smallest would be with that part."""
    parts = (part(type_, placements, mesh, member.place) / member.room for member in mesh.members)
    return max(parts, default=split(type_, placements, mesh))


def coherent(placements: Placements) -> bool:
    """Whether all terms are of one reduction."""
    return len({placement.reduction for placement in placements if isinstance(placement, Partial)}) <= 1


def gradient_layout(placements: Placements) -> Placements:
    """Where the maker of a value wants its gradient: of ``S(d)`` as ``S(d)``, of ``R`` and ``P(sum)`` as ``R``, of ``P(max)``
    as ``P(sum)`` (``ir.layout_rules.backward_rule``)."""
    return tuple(p if isinstance(p, Shard) else Partial("sum") if p == Partial("max") else Replicate() for p in placements)


def is_kept(type_: Type, *, training: bool) -> bool:
    """Whether a resource of this type chooses where it is kept; others stand on every device, where their readers cut them."""
    if not isinstance(type_, TensorType) or type_.elements is None:
        return False
    return type_.elements > (1 if type_.dtype in UNCUT or (training and type_.dtype.is_float) else SMALL)


def can_be_split(strategies: Sequence[Strategy], axes: Sequence[Shares], types: Sequence[Type | None]) -> bool:
    """Whether an op with operands and results of ``types`` can be split so, a strategy per axis of these shares, with no part
    empty."""
    cuts: dict[str, list[Shares]] = {}
    for strategy, shares in zip(strategies, axes, strict=True):
        if strategy.factor:
            cuts.setdefault(strategy.name, []).append(shares)
    factors = {factor.name: factor for strategy in strategies if (factor := strategy.factor)}
    if not all(none_empty(factors[name].size, along) for name, along in cuts.items()):
        return False
    odd = [factors[name] for name, along in cuts.items() if not proportional(factors[name].size, along)]
    return all(_by_elements(factor, types) for factor in odd)


def _by_elements(factor: Factor, types: Sequence[Type | None]) -> bool:
    """Whether the factor's units are single elements of all tensors that it lies along: only then are balanced parts of its
    units also balanced parts of their dimensions, as layouts say, where parts are not equal."""
    for type_, dim in zip(types, (*factor.operands, *factor.results), strict=True):
        if dim is not None and isinstance(type_, TensorType) and type_.shape is not None and type_.shape[dim] != factor.size:
            return False
    return True


def _possible(type_: Type, mesh: DeviceMesh) -> list[Placements]:
    whole: Placements = (Replicate(),) * len(mesh.axes)
    if not isinstance(type_, TensorType) or type_.shape is None or not all(isinstance(dim, int) for dim in type_.shape):
        return [whole]
    if mesh.sizes == (1,):
        return [whole]  # a part would be all of it
    shape = [dim for dim in type_.shape if isinstance(dim, int)]
    options: list[Placement] = [Shard(dim) for dim, length in enumerate(shape) if length > 1]
    options.append(Replicate())
    if type_.dtype not in (DType.BOOL, DType.STRING):
        options += [Partial(reduction) for reduction in REDUCTIONS]
    found = []
    for placements in itertools.product(options, repeat=len(mesh.axes)):
        fits = True
        for dim, length in enumerate(shape):
            axes = [axis.shares for p, axis in zip(placements, mesh.axes, strict=True) if p == Shard(dim)]
            fits = fits and (not axes or none_empty(length, axes))
        if fits and coherent(placements):
            found.append(placements)
    return found


def _order(placements: Placements, mesh: DeviceMesh) -> tuple[object, ...]:
    """Most split first, then by text: where costs tie, what takes least memory is found first."""
    parts = math.prod(axis.size for p, axis in zip(placements, mesh.axes, strict=True) if isinstance(p, Shard))
    return (-parts, tuple(map(str, placements)))


def _largest_piece(type_: Type, before: Placements, after: Placements, axis: int, mesh: DeviceMesh) -> float:
    """Part of a tensor that a member gives another where an axis cuts another dimension: what is in the shard of the one before
    and of the other after."""
    one, two = ((*mesh.foremost[:axis], member, *mesh.foremost[axis + 1 :]) for member in foremost_two(mesh.axes[axis].shares))
    without = (*before[:axis], Replicate(), *before[axis + 1 :])
    whole = split(type_, without, mesh)
    pairs = (
        (part(type_, before, mesh, source), part(type_, after, mesh, target)) for source, target in ((one, two), (two, one))
    )
    return max(mine * theirs for mine, theirs in pairs) / whole if whole else 0.0
