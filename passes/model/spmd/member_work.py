"""What the members of a mesh spend on their shards of an op, and hold of tensors: what ``price`` counts, op by op.

Like ``price`` this is a count of its own, apart from that of the search (``passes.shard.problem.costs``).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace

from ir.core.facets import Cost, Time
from ir.core.ops import Op
from ir.core.shares import cut
from ir.core.types import Replicate, Shard, TensorType, Type
from passes.model.op_time import fused_seconds, op_seconds, passes_seconds, stated_part, weight_gradient_seconds
from passes.model.spmd.mesh import DeviceMesh, Member
from passes.model.spmd.reshard import Lies

Row = tuple[Type, Lies, str]
"""A value by name, as an op reads or makes it."""


def whole_along(lies: Lies, axes: Collection[int]) -> Lies:
    """A layout, but whole along some axes."""
    return tuple(Replicate() if axis in axes else placement for axis, placement in enumerate(lies)) if axes else lies


class MemberWork:
    """Of the members of one mesh. ``divided`` everywhere: units of each factor that divides the flops of an op, and the numbers
    of the axes that cut it."""

    def __init__(self, mesh: DeviceMesh, types: Mapping[str, Type], training: bool, again: bool) -> None:
        """``types``: of what ops read, by name; ``again``: forward ops run a second time for their gradients."""
        self.mesh, self.types, self.training, self.again = mesh, types, training, again
        self.known: dict[object, tuple[float, float]] = {}

    def seconds(
        self, op: Op, operands: list[Lies], results: list[Lies], divided: list[tuple[int, list[int]]], joined: int
    ) -> tuple[float, float]:
        """Of an op, and of them its gradients', on the members that take longest. Counted once for ops that are alike."""
        cuts = tuple((units, tuple(axes)) for units, axes in divided)
        read = tuple((op.operands.index(name), name[:1], self.types.get(name)) for name in op.operands)
        made = tuple((bool(value.name), value.type) for value in op.results)
        alike = op.name, op.attributes, op.facets, read, made, tuple(operands), tuple(results), cuts, joined
        if alike not in self.known:
            self.known[alike] = self.counted(op, operands, results, divided, joined)
        return self.known[alike]

    def counted(
        self, op: Op, operands: list[Lies], results: list[Lies], divided: list[tuple[int, list[int]]], joined: int
    ) -> tuple[float, float]:
        """``seconds`` of an op that is like none before."""
        cost = op.facet(Cost)
        if cost is None:
            return max((op_seconds(op, type_) for type_ in self.mesh.types), default=0.0), 0.0
        gradients = cost.input_grad + cost.weight_grad
        longest = back = 0.0
        for member in self.mesh.members:
            share = self.share(divided, member)
            here = self.part_of(op, cost, operands, results, share, member)
            stated = stated_part(op, member.type, here, training=self.training)
            if stated is not None:
                again = stated[0] if self.again and stated[1] else 0.0
                longest, back = max(longest, stated[0] + stated[1] + again), max(back, stated[1])
                continue
            alone = self.local(op, results, member).with_facets(here)
            if joined >= 0:
                row: list[Row] = [(self.types[op.operands[joined]], operands[joined], op.operands[joined])]
                fused = fused_seconds(op.with_facets(here), member.type, round(self.total(row) * self.ratio(row, member)))
                longest = max(longest, min(op_seconds(alone, member.type), fused))
                continue
            works = [op_seconds(alone, member.type)]
            if self.training:
                works = list(passes_seconds(alone, member.type, round(gradients * share)))
                back = max(back, works[1])
                works += works[:1] if self.again and gradients else []
            longest = max(longest, math.fsum(works))
        return longest, back

    def repeated(
        self, op: Op, operands: list[Lies], results: list[Lies], divided: list[tuple[int, list[int]]], along: frozenset[int]
    ) -> float:
        """Seconds that the gradient of a weight takes longer where it is multiplied whole along some axes."""
        cost = op.facet(Cost)
        if cost is None or op.facet(Time) is not None:
            return 0.0
        left = [(units, [axis for axis in axes if axis not in along]) for units, axes in divided]
        wide = [whole_along(lies, along) for lies in operands], [whole_along(lies, along) for lies in results]
        most = 0.0
        for member in self.mesh.members:
            seconds = []
            for (reads_, makes), cuts in (((operands, results), divided), (wide, left)):
                share = self.share(cuts, member)
                alone = self.local(op, makes, member).with_facets(self.part_of(op, cost, reads_, makes, share, member))
                seconds.append(weight_gradient_seconds(alone, member.type, round(cost.weight_grad * share)))
            most = max(most, seconds[1] - seconds[0])
        return most

    def part_of(self, op: Op, cost: Cost, operands: list[Lies], results: list[Lies], share: float, member: Member) -> Cost:
        """The facts of what a member does of an op."""
        given = [(self.types[name], lies, name) for name, lies in zip(op.operands, operands, strict=True) if name]
        made = [(value.type, lies, value.name) for value, lies in zip(op.results, results, strict=True) if value.name]
        held = [row for row in given if row[2].startswith("@")]
        written = self.ratio(made, member)
        return replace(
            cost,
            flops=round(cost.flops * share),
            scalar=math.ceil(cost.scalar * share),
            read=round(self.taken(cost, cost.read, given, op.operands[:1], member, written)),
            write=round(cost.write * written),
            weight=round(self.taken(cost, cost.weight, held, op.operands[:1], member, written)),
        )

    def local(self, op: Op, results: list[Lies], member: Member) -> Op:
        """The op with its results as long as they are on a member."""
        made = []
        for value, lies in zip(op.results, results, strict=True):
            type_ = value.type
            if isinstance(type_, TensorType) and type_.shape is not None:
                shape = list(type_.shape)
                for placement, axis, at in zip(lies, self.mesh.axes, member.place, strict=True):
                    length = shape[placement.dim] if isinstance(placement, Shard) else None
                    if isinstance(placement, Shard) and isinstance(length, int):
                        shape[placement.dim] = cut(length, axis.shares, at)[1]
                type_ = replace(type_, shape=tuple(shape))
            made.append(replace(value, type=type_))
        return replace(op, results=tuple(made))

    def saved(
        self, op: Op, operands: list[Lies], results: list[Lies], divided: list[tuple[int, list[int]]], member: Member
    ) -> float:
        """Bytes of one microbatch that a member keeps for the backward pass of an op."""
        saved = op.facet(Cost, Cost()).saved
        given = {(self.types[name], lies, name) for name, lies in zip(op.operands, operands, strict=True) if name[:1] == "%"}
        rows = sorted((row for row in given if isinstance(row[0], TensorType) and row[0].dtype.is_float), key=str)
        made = [(value.type, lies, value.name) for value, lies in zip(op.results, results, strict=True)]
        inputs = self.total(rows)
        if 0 < inputs <= saved:
            beyond = max([self.share(divided, member), *(self.ratio([row], member) for row in made)])
            return inputs * self.ratio(rows, member) + (saved - inputs) * beyond
        return saved * (self.ratio(made[:1], member) if made and self.total(made[:1]) == saved else 1.0)

    def share(self, divided: list[tuple[int, list[int]]], member: Member) -> float:
        """Of the flops."""
        found = 1.0
        for units, axes in divided:
            mine = units
            for axis in axes:
                mine = cut(mine, self.mesh.axes[axis].shares, member.place[axis])[1]
            found *= mine / units
        return found

    def taken(self, cost: Cost, size: int, rows: list[Row], first: tuple[str, ...], member: Member, written: float) -> float:
        """Bytes that a member reads of ``size``: of operands as a whole, or of the first what the results take."""
        if cost.kind == "gather" or not 0 < self.total(rows) <= size:
            others = [row for row in rows if row[2] not in first]
            known = self.total(others)
            return (size - known) * written + known * self.ratio(others, member) if size >= known else size * written
        return size * self.ratio(rows, member)

    @staticmethod
    def total(rows: list[Row]) -> int:
        sizes = {name: type_.nbytes or 0 for type_, _, name in rows if isinstance(type_, TensorType)}
        return sum(sizes.values())

    def ratio(self, rows: list[Row], member: Member) -> float:
        whole, here = self.total(rows), 0.0
        for i, (type_, lies, name) in enumerate(rows):
            if isinstance(type_, TensorType) and (name, lies) not in [(other, its) for _, its, other in rows[:i]]:
                here += (type_.nbytes or 0) * self.part(type_, lies, member)
        return here / whole if whole else 1.0

    def fullest(self, type_: TensorType, lies: Lies) -> float:
        """What the member holds of a tensor that it fills most, as a part of what its device has."""
        return max((self.part(type_, lies, member) / member.room for member in self.mesh.members), default=1.0)

    def part(self, type_: TensorType, lies: Lies, member: Member) -> float:
        """What a member holds of a tensor."""
        shape = [dim for dim in type_.shape or () if isinstance(dim, int)]
        local = list(shape)
        for placement, axis, at in zip(lies, self.mesh.axes, member.place, strict=True):
            if isinstance(placement, Shard):
                local[placement.dim] = cut(local[placement.dim], axis.shares, at)[1]
        return math.prod(local) / math.prod(shape) if math.prod(shape) else 1.0


__all__ = ["MemberWork", "whole_along"]
