"""What a choice costs: seconds of the member that takes longest, and bytes of the fullest.

Seconds of an op under a choice: those of ``passes.model.op_time`` for a member's own shard, flops and bytes, on its own type
of device; of the members the longest. An epilogue is fused where no layout is between (``fused``), so one device costs what
``partition`` says. A value in blocks of channels is reordered where its layout changes (``passes.model.blocked``). In training
nothing is fused, and the backward pass is priced likewise, with the flops of both gradients and twice the bytes of the forward
pass; gradients lie as ``backward_rule`` says, those of one layout are added where they are, and each sum is brought to where
the maker wants it: for a weight, where it is kept, which is its synchronisation, once a step; so for what is made of weights
alone. What the forward pass gathered stays for the backward pass.

Memory: weights where they are kept. In training: of each weight its optimizer's state (``OptimizerState``, or two 32-bit
numbers per element, as Adam keeps) and its gradient where it is kept; the weight itself as it is read, since what was gathered
stays, each of its readers having an equal part in it; and its gradient likewise where several microbatches share one
synchronisation, for which terms wait where they are made. Besides, what each op that a gradient flows through saves for its
backward pass (``Cost.saved``), once per microbatch in flight: the operands as this member reads them; what goes beyond operands
(scores of attention) by its part of the work or of the results, whichever is more; what cannot be told (indices) whole. That is
more than is needed where several ops save one tensor: ``Cost.saved`` looks at one op alone. It is less where readers of one
weight want it in several layouts, or in a smaller part than is kept. Other activations are not counted here: how many are
alive at once is no sum over ops.

A choice takes what its fullest member holds, in bytes of the smallest device: of a device with twice the memory half its bytes.
Sums of these are exact where one member is the fullest in all (equal devices, equal shares), else no less than what any device
needs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from ir.core.facets import Cost
from ir.core.module import Module
from ir.core.ops import Op
from ir.core.shares import Shares, nested_cut
from ir.core.topology import DeviceType
from ir.core.types import Replicate, TensorType, Type, type_bytes
from ir.layout_rules import Factor, Strategy
from passes.model.blocked import reorder_seconds
from passes.model.learning import recomputes, update_seconds
from passes.model.op_time import fused_seconds, op_seconds, passes_seconds, stated_part
from passes.model.spmd.layouts import Placements, Shape, local_shape, part
from passes.model.spmd.mesh import DeviceMesh
from passes.shard.problem.outline import OpForm, Outline, read_ports
from passes.shard.problem.problem import Floats


class MemberCosts:
    """Seconds and bytes of the members of one mesh."""

    def __init__(
        self,
        module: Module,
        outline: Outline,
        mesh: DeviceMesh,
        times: dict[object, tuple[float, float]],
        training: bool,
        microbatches: int,
    ) -> None:
        """``times``: seconds that are known, whatever the mesh."""
        self.outline, self.mesh, self.times, self.training, self.microbatches = outline, mesh, times, training, microbatches
        self.resources, self.again = module.resources, recomputes(module)
        self.places = [member.place for member in mesh.members] or [mesh.foremost]
        self.rooms = [member.room for member in mesh.members] or [1.0]
        self.known: dict[tuple[Type | None, Placements], tuple[float, ...]] = {}
        self.shapes: dict[tuple[Type, Placements], list[Shape | None]] = {}

    def parts(self, type_: Type | None, placements: Placements) -> tuple[float, ...]:
        """Part of a tensor that each of the members holds."""
        key = (type_, placements)
        if key not in self.known:
            known = tuple([part(type_, placements, self.mesh, place) for place in self.places]) if type_ is not None else ()
            self.known[key] = known
        return self.known[key]

    def lengths(self, type_: Type, placements: Placements) -> list[Shape | None]:
        """The shape of the part of a tensor that each of the members holds."""
        key = (type_, placements)
        if key not in self.shapes:
            self.shapes[key] = [local_shape(type_, placements, self.mesh, member.place) for member in self.mesh.members]
        return self.shapes[key]

    def fullest(self, type_: Type, placements: Placements) -> float:
        """Part of a tensor that a member holds, over the room of its device, where that is most (``layouts.fullest``)."""
        return max(here / room for here, room in zip(self.parts(type_, placements), self.rooms, strict=True))

    def seconds(
        self, form: OpForm, strategies: Sequence[Strategy | None], lies: Sequence[Placements], port: int = -1
    ) -> tuple[float, float]:
        """Of the member that takes longest, forward and, in training, backward; and the longest backward pass. ``port``: the
        operand by which the op is fused into what makes it, where that is quicker."""
        op, times = form.op, self.times
        cost = op.facet(Cost)
        if cost is None:
            return max((op_seconds(op, type_) for type_ in self.mesh.types), default=0.0), 0.0
        rows = [*zip((*op.operands, *(value.name for value in op.results)), self.types_of(form), lies, strict=True)]
        parts = [self.parts(type_, placements) for _, type_, placements in rows]
        repeats = tuple(lies) if len({name for name, _, _ in rows}) < len(rows) else ()
        chained = form.operands[port] if port >= 0 else None
        shapes = self.lengths(op.results[0].type, lies[len(op.operands)]) if op.results else []
        longest = back = 0.0
        for number, member in enumerate(self.mesh.members):
            share = share_of(strategies, self.mesh, member.place)
            held = tuple([one[number] if one else 1.0 for one in parts])
            shape = shapes[number] if shapes else None
            key = (id(op), member.type.name, share, held, shape, repeats, port)
            if key not in times:
                here = _shaped(op, shape).with_facets(_local_cost(op, cost, rows, held, share))
                kept = (type_bytes(chained) or 0, held[port]) if chained is not None else None
                times[key] = self.member_seconds(here, op, cost, member.type, kept)
            longest, back = max(longest, times[key][0]), max(back, times[key][1])
        return longest, back

    def member_seconds(
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

    @staticmethod
    def types_of(form: OpForm) -> tuple[Type | None, ...]:
        """Of operands and results."""
        return (*form.operands, *(value.type for value in form.op.results))

    def held(self, op: Op, lies: Sequence[Placements]) -> float:
        """Bytes of the weights that learn as an op reads them: its part of these, and of gradients that wait."""
        outline, found = self.outline, 0.0
        for i, name in enumerate(read_ports(op)):
            if name in outline.weights and name in outline.trained:
                type_ = self.resources[name].type
                part = self.fullest(type_, lies[i] if i < len(op.operands) else (Replicate(),) * len(self.mesh.axes))
                found += (type_bytes(type_) or 0) * part * (1 + (self.microbatches > 1)) / outline.read[name]
        return found

    def saved(
        self, op: Op, operands: Sequence[Type | None], strategies: Sequence[Strategy | None], lies: Sequence[Placements]
    ) -> float:
        """Bytes that the fullest member keeps for the backward pass."""
        cost = op.facet(Cost)
        if cost is None or not cost.saved:
            return 0.0
        inputs = {
            (name, placements): (type_bytes(type_) or 0, self.parts(type_, placements))
            for name, type_, placements in zip(op.operands, operands, lies[: len(operands)], strict=True)
            if name and name[:1] != "@" and type_ is not None and _is_float(type_)
        }
        whole = sum({name: size for (name, _), (size, _) in inputs.items()}.values())
        made = [self.parts(value.type, lies[len(operands) + i]) for i, value in enumerate(op.results)]
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

    def reorder_seconds(self, type_: Type, layouts: Sequence[Placements]) -> Floats:
        """``[from, to]``: of a value in blocks where its layout changes (``passes.model.blocked``), on the member that takes
        longest."""
        size = type_bytes(type_) or 0
        held = [[size * part for part in self.parts(type_, placements)] for placements in layouts]
        found = np.zeros((len(layouts), len(layouts)))
        for one, before in enumerate(held):
            for two, after in enumerate(held):
                if one != two:
                    rows = zip(before, after, self.mesh.members, strict=False)
                    found[one, two] = max((reorder_seconds(here, there, m.type) for here, there, m in rows), default=0.0)
        return found

    def update_seconds(self, type_: Type, lies: Placements, moved: int) -> float:
        """Of a weight whose update moves so many bytes, on the member that takes longest; the part of a microbatch."""
        parts = zip(self.parts(type_, lies), self.mesh.members, strict=False)
        return max((update_seconds(moved * here, member.type) for here, member in parts), default=0.0) / self.microbatches


def _shaped(op: Op, shape: Shape | None) -> Op:
    """The op with another shape of its first result."""
    first = op.results[0] if op.results else None
    if first is None or not isinstance(first.type, TensorType) or shape == first.type.shape:
        return op
    return replace(op, results=(replace(first, type=replace(first.type, shape=shape)), *op.results[1:]))


def share_of(strategies: Iterable[Strategy | None], mesh: DeviceMesh, place: Sequence[int]) -> float:
    """Part of the op's flops that the member at ``place`` works."""
    cuts: dict[str, tuple[Factor, list[tuple[Shares, int]]]] = {}
    for strategy, axis, at in zip(strategies, mesh.axes, place, strict=True):
        if strategy is not None and strategy.factor is not None and strategy.factor.divided:
            cuts.setdefault(strategy.name, (strategy.factor, []))[1].append((axis.shares, at))
    return math.prod(nested_cut(factor.size, along)[1] / factor.size for factor, along in cuts.values())


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


def _is_float(type_: Type) -> bool:
    return isinstance(type_, TensorType) and type_.dtype.is_float


__all__ = ["MemberCosts", "share_of"]
