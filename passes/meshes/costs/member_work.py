"""What the members of a mesh spend on their shards of an op, and hold of tensors: asked by the search and by ``price``.

Seconds of an op are those of ``passes.costs.op_time`` for a member's own shard, flops and bytes, on its own type of device; of
the members the longest. An epilogue is fused where no layout is between, so one device costs what ``partition`` says. A value
in blocks of channels is reordered where its layout changes. In training nothing is fused, and the backward pass is priced
likewise, with the flops of both gradients and twice the bytes of the forward pass.

An op that a gradient flows through saves for its backward pass (``Cost.saved``): the operands as this member reads them; what
goes beyond operands (scores of attention) by its part of the work or of the results, whichever is more; what cannot be told
(indices) whole. That is more than is needed where several ops save one tensor: ``Cost.saved`` looks at one op alone.

Bytes are those of the fullest member, in bytes of the smallest device: of a device with twice the memory half its bytes.

``types`` and ``lies`` everywhere: of the operands of an op, then of its results; a type is None for an absent operand.
``strategies``: one for each axis of the mesh, None where the op runs whole.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import TypeAlias

from ir.core.facets import Cost, Time
from ir.core.ops import Op
from ir.core.shares import Shares, nested_cut
from ir.core.topology import DeviceType
from ir.core.types import Replicate, TensorType, Type, type_bytes
from ir.layout_rules import Factor, Strategy
from passes.costs.blocked import reorder_seconds
from passes.costs.learning import update_seconds
from passes.costs.op_time import fused_seconds, op_seconds, passes_seconds, stated_part, weight_gradient_seconds
from passes.meshes.layouts import Placements, Shape, local_shape, part
from passes.meshes.mesh import DeviceMesh

Types: TypeAlias = Sequence[Type | None]
Strategies: TypeAlias = Sequence[Strategy | None]


def whole_along(lies: Placements, axes: Collection[int]) -> Placements:
    """A layout, but whole along some axes."""
    return tuple(Replicate() if axis in axes else placement for axis, placement in enumerate(lies)) if axes else lies


class MemberWork:
    """Of the members of one mesh."""

    def __init__(
        self, mesh: DeviceMesh, *, training: bool, again: bool, times: dict[object, tuple[float, float]] | None = None
    ) -> None:
        """``again``: forward ops run a second time for their gradients. ``times``: seconds that are known, whatever the
        mesh."""
        self.mesh, self.training, self.again = mesh, training, again
        self.beside = min((type_.beside for type_ in mesh.types), default=1.0)
        self.times = {} if times is None else times
        self.places = [member.place for member in mesh.members] or [mesh.foremost]
        self.rooms = [member.room for member in mesh.members] or [1.0]
        self.known: dict[tuple[Type | None, Placements], tuple[float, ...]] = {}
        self.shapes: dict[tuple[Type, Placements], list[Shape | None]] = {}

    def parts(self, type_: Type | None, lies: Placements) -> tuple[float, ...]:
        """Part of a tensor that each of the members holds."""
        key = (type_, lies)
        if key not in self.known:
            known = tuple([part(type_, lies, self.mesh, place) for place in self.places]) if type_ is not None else ()
            self.known[key] = known
        return self.known[key]

    def lengths(self, type_: Type, lies: Placements) -> list[Shape | None]:
        """The shape of the part of a tensor that each of the members holds."""
        key = (type_, lies)
        if key not in self.shapes:
            self.shapes[key] = [local_shape(type_, lies, self.mesh, member.place) for member in self.mesh.members]
        return self.shapes[key]

    def fullest(self, type_: Type, lies: Placements) -> float:
        """Part of a tensor that a member holds, over the room of its device, where that is most (``layouts.fullest``)."""
        return max(here / room for here, room in zip(self.parts(type_, lies), self.rooms, strict=True))

    # -- seconds -------------------------------------------------------------------------------------------------------

    def seconds(
        self, op: Op, alike: Hashable, types: Types, strategies: Strategies, lies: Sequence[Placements], port: int = -1
    ) -> tuple[float, float]:
        """Of the member that takes longest, forward and, in training, backward; and the seconds of sums of gradients that can
        travel beside the longest backward pass (``DeviceType.beside``, the least). ``alike``: equal for ops that agree in all
        but names; ``port``: the operand by which the op is fused into what makes it, where that is quicker."""
        cost = op.facet(Cost)
        if cost is None:
            return max((op_seconds(op, type_) for type_ in self.mesh.types), default=0.0), 0.0
        rows = _rows(op, types, lies)
        parts = [self.parts(type_, placements) for _, type_, placements in rows]
        repeats = tuple(lies) if len({name for name, _, _ in rows}) < len(rows) else ()
        chained = types[port] if port >= 0 else None
        shapes = self.lengths(op.results[0].type, lies[len(op.operands)]) if op.results else []
        longest = back = 0.0
        for number, member in enumerate(self.mesh.members):
            share = share_of(strategies, self.mesh, member.place)
            held = tuple([one[number] if one else 1.0 for one in parts])
            shape = shapes[number] if shapes else None
            key = (alike, member.type.name, share, held, shape, repeats, port)
            if key not in self.times:
                here = _shaped(op, shape).with_facets(_local_cost(op, cost, rows, held, share))
                kept = (type_bytes(chained) or 0, held[port]) if chained is not None else None
                self.times[key] = self._passes(here, op, cost, member.type, kept)
            longest, back = max(longest, self.times[key][0]), max(back, self.times[key][1])
        return longest, self.beside * back

    def _passes(
        self, here: Op, op: Op, cost: Cost, type_: DeviceType, chained: tuple[int, float] | None
    ) -> tuple[float, float]:
        """Of both passes of a shard ``here`` of an op, and of them the gradients'. ``chained``: bytes of the operand by which
        it is fused, and the part of them that is here."""
        local = here.facet(Cost, cost)
        stated = stated_part(op, type_, local, training=self.training)
        if stated is not None:
            again = stated[0] if self.again and stated[1] else 0.0
            return stated[0] + stated[1] + again, stated[1]
        if chained is not None:
            return min(op_seconds(here, type_), fused_seconds(here, type_, round(chained[0] * chained[1]))), 0.0
        if not self.training:
            return op_seconds(here, type_), 0.0
        learns = cost.input_grad + cost.weight_grad > 0
        forward, backward = passes_seconds(here, type_, local.input_grad if learns else 0)
        return forward * (2 if learns and self.again else 1) + backward, backward

    def repeated(
        self, op: Op, types: Types, strategies: Strategies, lies: Sequence[Placements], along: frozenset[int]
    ) -> float:
        """Seconds that the gradient of a weight takes longer where it is multiplied whole along some axes."""
        cost = op.facet(Cost)
        if cost is None or op.facet(Time) is not None:
            return 0.0
        wide = [whole_along(placements, along) for placements in lies]
        left = [None if axis in along else strategy for axis, strategy in enumerate(strategies)]
        most = 0.0
        for number, member in enumerate(self.mesh.members):
            seconds = []
            for cuts, layouts in ((strategies, lies), (left, wide)):
                rows = _rows(op, types, layouts)
                held = [one[number] if one else 1.0 for one in (self.parts(type_, place) for _, type_, place in rows)]
                shape = self.lengths(op.results[0].type, layouts[len(op.operands)])[number]
                share = share_of(cuts, self.mesh, member.place)
                alone = _shaped(op, shape).with_facets(_local_cost(op, cost, rows, held, share))
                seconds.append(weight_gradient_seconds(alone, member.type, round(cost.weight_grad * share)))
            most = max(most, seconds[1] - seconds[0])
        return most

    def reorder_seconds(self, type_: Type, before: Placements, after: Placements) -> float:
        """Of a value in blocks of channels that is brought from one layout to another (``passes.costs.blocked``), on the member
        that takes longest."""
        size, parts = type_bytes(type_) or 0, (self.parts(type_, before), self.parts(type_, after))
        rows = zip(*parts, self.mesh.members, strict=False)
        return max((reorder_seconds(size * one, size * two, member.type) for one, two, member in rows), default=0.0)

    def update_seconds(self, type_: Type, lies: Placements, moved: int) -> float:
        """Of a weight whose update moves so many bytes, on the member that takes longest."""
        parts = zip(self.parts(type_, lies), self.mesh.members, strict=False)
        return max((update_seconds(moved * here, member.type) for here, member in parts), default=0.0)

    # -- bytes ---------------------------------------------------------------------------------------------------------

    def saved(self, op: Op, types: Types, strategies: Strategies, lies: Sequence[Placements]) -> float:
        """Bytes that the fullest member keeps of one microbatch for the backward pass."""
        cost = op.facet(Cost)
        if cost is None or not cost.saved:
            return 0.0
        inputs = {
            (name, placements): (type_bytes(type_) or 0, self.parts(type_, placements))
            for name, type_, placements in _rows(op, types, lies)[: len(op.operands)]
            if name and name[:1] != "@" and isinstance(type_, TensorType) and type_.dtype.is_float
        }
        whole = sum({name: size for (name, _), (size, _) in inputs.items()}.values())
        made = [self.parts(value.type, lies[len(op.operands) + i]) for i, value in enumerate(op.results)]
        found = []
        for number, (place, room) in enumerate(zip(self.places, self.rooms, strict=True)):
            if 0 < whole <= cost.saved:
                beyond = max([share_of(strategies, self.mesh, place), *(parts[number] for parts in made)])
                kept = sum(size * parts[number] for size, parts in inputs.values()) + (cost.saved - whole) * beyond
            elif made and cost.saved == type_bytes(op.results[0].type):
                kept = cost.saved * made[0][number]
            else:
                kept = float(cost.saved)
            found.append(kept / room)
        return max(found)


def share_of(strategies: Iterable[Strategy | None], mesh: DeviceMesh, place: Sequence[int]) -> float:
    """Part of the op's flops that the member at ``place`` works."""
    cuts: dict[str, tuple[Factor, list[tuple[Shares, int]]]] = {}
    for strategy, axis, at in zip(strategies, mesh.axes, place, strict=True):
        if strategy is not None and strategy.factor is not None and strategy.factor.divided:
            cuts.setdefault(strategy.name, (strategy.factor, []))[1].append((axis.shares, at))
    return math.prod(nested_cut(factor.size, along)[1] / factor.size for factor, along in cuts.values())


def _rows(op: Op, types: Types, lies: Sequence[Placements]) -> list[tuple[str, Type | None, Placements]]:
    """Name, type and layout of each operand and result."""
    return [*zip((*op.operands, *(value.name for value in op.results)), types, lies, strict=True)]


def _shaped(op: Op, shape: Shape | None) -> Op:
    """The op with another shape of its first result."""
    first = op.results[0] if op.results else None
    if first is None or not isinstance(first.type, TensorType) or shape == first.type.shape:
        return op
    return replace(op, results=(replace(first, type=replace(first.type, shape=shape)), *op.results[1:]))


def _local_cost(
    op: Op, cost: Cost, rows: Sequence[tuple[str, Type | None, Placements]], held: Sequence[float], share: float
) -> Cost:
    """The cost of the shard of a member. ``rows``: name, type, layout of each operand and result; ``held``: the member's part
    of each. Bytes read are those of the operands, each value once per layout, where the op reads all of them; else (a Gather)
    the part of the first that ends in the results, and the rest. ``input_grad`` is that of both gradients."""
    count = len(op.operands)
    sized = [
        (name, type_bytes(type_) or 0 if type_ is not None else -1, lies, part)
        for (name, type_, lies), part in zip(rows, held, strict=True)
    ]
    given, made = ([row for row in some if row[0] and row[1] >= 0] for some in (sized[:count], sized[count:]))

    def whole(rows: Sequence[tuple[str, int, Placements, float]]) -> int:
        return sum({name: size for name, size, _, _ in rows}.values())

    def here(rows: Sequence[tuple[str, int, Placements, float]]) -> float:
        distinct = {(name, lies): size * part for name, size, lies, part in rows if size}
        return sum(distinct.values())

    results = here(made) / whole(made) if whole(made) else 1.0

    def read(bytes_: int, rows: Sequence[tuple[str, int, Placements, float]]) -> int:
        total = whole(rows)
        if cost.kind != "gather" and total and bytes_ >= total:
            return round(bytes_ * here(rows) / total)
        rest = [row for row in rows if row[0] != op.operands[0]]
        if bytes_ < whole(rest):
            return round(bytes_ * results)
        return round((bytes_ - whole(rest)) * results + here(rest))

    return replace(
        cost,
        flops=round(cost.flops * share),
        scalar=math.ceil(cost.scalar * share),
        input_grad=round((cost.input_grad + cost.weight_grad) * share),
        read=read(cost.read, given),
        write=round(cost.write * results),
        weight=read(cost.weight, [row for row in given if row[0][:1] == "@"]),
    )
