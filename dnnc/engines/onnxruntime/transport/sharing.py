"""Where operands and results of collectives lie in the memory that the members of a stage share.

Every collective needs a place for the operand of each member, and where a group's result is one tensor, one for that; a result
that is a member's own lies in its own memory. Collectives of the same groups use places again, in *slots*: a later one takes an
earlier one's when nobody can still be reading there.

Invariants, on which the absence of races rests. Members run segments by level, behind each the collectives of its level, in
order; to *meet* is to wait for all of the group (``Exchange``).
1. All users of a slot have the same groups, and a member's operand place is written by that member alone. So who may still read
   is in the group, and whoever comes to a later meeting of that group has finished all that it does before.
2. An operand is read by the group until the meeting behind it (an all-reduce in slices has one of its own), and by its member
   as long as a segment or another collective reads the value.
3. A shared result is read by its group until the last segment or collective that does; what leaves the stage, until the end of
   the sample.
4. Slots exist twice, for samples of even and odd number: who writes for sample m + 2 has met the group in sample m + 1, to
   which everybody came after sample m.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dnnc.build.collective import Collective
from dnnc.engines.onnxruntime.transport.codec import aligned
from dnnc.engines.onnxruntime.transport.collectives import Places

NEVER = 1 << 30
"""A level that no segment has: until the end of the sample."""


@dataclass(frozen=True, slots=True)
class Uses:
    """When a value is made and read, over all members. ``made``: the first level whose segment makes it, None where it is
    copied; ``level``: the last that reads it (-1: none), ``NEVER`` where it leaves the stage; ``number``: the last collective
    that takes it as operand (-1: none)."""

    made: int | None = None
    level: int = NEVER
    number: int = -1


@dataclass(slots=True)
class _Slot:
    """Regions that several collectives use one after the other: bytes by member or by first of the group."""

    sizes: dict[int, int] = field(default_factory=dict)
    offsets: dict[int, int] = field(default_factory=dict)

    def grow(self, sizes: Mapping[int, int]) -> None:
        for key, size in sizes.items():
            self.sizes[key] = max(self.sizes.get(key, 0), aligned(size))


def places(collectives: Sequence[Collective], uses: Mapping[str, Uses] | None = None) -> Places:
    """Where everything lies. ``uses`` by value; what it does not name is taken to be read to the end."""
    allocator = _Allocator(collectives, uses or {})
    operand_slots = allocator.allocate(range(len(collectives)), allocator.operand_sizes, allocator.operand_free)
    shared = [n for n, collective in enumerate(collectives) if collective.shared]
    result_slots = allocator.allocate(shared, allocator.result_sizes, allocator.result_free)
    private = [n for n, collective in enumerate(collectives) if not collective.shared]
    own_slots = allocator.allocate(private, allocator.own_sizes, allocator.own_free)
    size = _lay(_distinct([*operand_slots.values(), *result_slots.values()]), 0)
    own = 0
    for slot in _distinct(own_slots.values()):
        slot.offsets = dict.fromkeys(slot.sizes, own)
        own += max(slot.sizes.values(), default=0)
    results = {(n, key): offset for n, slot in result_slots.items() for key, offset in slot.offsets.items()}
    operands = {}
    for n, collective in enumerate(collectives):
        for group in collective.groups:
            for place, member in enumerate(group):
                inside = offset_inside(collective, group, place)
                operands[n, member] = operand_slots[n].offsets[member] if inside is None else results[n, group[0]] + inside
    mine = {(n, key): offset for n, slot in own_slots.items() for key, offset in slot.offsets.items()}
    return Places(operands, results, size, mine, own)


def _distinct(slots: Iterable[_Slot]) -> list[_Slot]:
    return list({id(slot): slot for slot in slots}.values())


def _lay(slots: Iterable[_Slot], position: int) -> int:
    """Gives every region of every slot its offset; returns the end."""
    for slot in slots:
        for key, size in sorted(slot.sizes.items()):
            slot.offsets[key] = position
            position += size
    return position


class _Allocator:
    """The collectives, in order, and when their values are used."""

    def __init__(self, collectives: Sequence[Collective], uses: Mapping[str, Uses]) -> None:
        self.collectives = collectives
        self.uses = uses

    def allocate(self, numbers: Iterable[int], sizes: Any, free: Any) -> dict[int, _Slot]:
        """A slot for each collective; ``free(j, i)``: whether i may write where j did."""
        slots: dict[int, _Slot] = {}
        users: list[tuple[_Slot, list[int]]] = []
        for number in numbers:
            wanted = sizes(number)
            open_ = [entry for entry in users if all(free(other, number) for other in entry[1])]
            if open_:
                slot, list_ = min(open_, key=lambda entry: abs(sum(entry[0].sizes.values()) - sum(wanted.values())))
                list_.append(number)
            else:
                slot = _Slot()
                users.append((slot, [number]))
            slot.grow(wanted)
            slots[number] = slot
        return slots

    def operand_sizes(self, number: int) -> dict[int, int]:
        """Of members whose operand does not lie inside the result."""
        collective = self.collectives[number]
        return {
            member: collective.nbytes(collective.operands[member])
            for group in collective.groups
            for place, member in enumerate(group)
            if offset_inside(collective, group, place) is None
        }

    def result_sizes(self, number: int) -> dict[int, int]:
        collective = self.collectives[number]
        return {group[0]: collective.nbytes(collective.results[group[0]]) for group in collective.groups}

    def own_sizes(self, number: int) -> dict[int, int]:
        collective = self.collectives[number]
        return {member: collective.nbytes(shape) for member, shape in enumerate(collective.results)}

    def written(self, number: int) -> int:
        """The level whose segment may write the operand; when it is copied, as late as the collective."""
        collective = self.collectives[number]
        made = self.uses.get(collective.operand, Uses(made=0)).made
        return collective.level + 1 if made is None else min(made, collective.level)

    def operand_free(self, old: int, new: int) -> bool:
        before, after = self.collectives[old], self.collectives[new]
        use = self.uses.get(before.operand, Uses())
        if before.groups != after.groups or use.level >= self.written(new) or use.number >= new:
            return False
        if use.number >= 0 and self.collectives[use.number].level >= self.written(new):
            return False
        if before.shared and before.join < 0 and before.level < self.written(new):
            return True
        return any(self.met(k, before, self.written(new), new) for k in range(old + 1, new))

    def result_free(self, old: int, new: int) -> bool:
        before, after = self.collectives[old], self.collectives[new]
        use = self.uses.get(before.result, Uses())
        if before.shared and before.join >= 0:  # whose operands may lie inside
            operand = self.uses.get(before.operand, Uses())
            use = Uses(None, max(use.level, operand.level), max(use.number, operand.number))
        if before.groups != after.groups or use.level == NEVER:
            return False
        sliced = after.split < 0 and after.join < 0  # written behind a meeting of its own
        level = self.written(new) if not sliced else after.level + 1
        return any(
            self.collectives[k].level >= use.level and k >= use.number and self.met(k, before, level, new + sliced)
            for k in range(old + 1, new + sliced)
        )

    def own_free(self, old: int, new: int) -> bool:
        use = self.uses.get(self.collectives[old].result, Uses())
        return use.level <= self.collectives[new].level and use.number < new

    def met(self, k: int, before: Collective, level: int, number: int) -> bool:
        """Whether collective k is a meeting of the groups of ``before`` that ends before the segment of ``level`` and before
        collective ``number``."""
        return self.collectives[k].groups == before.groups and self.collectives[k].level < level and k < number


def offset_inside(collective: Collective, group: tuple[int, ...], place: int) -> int | None:
    """Where in the group's result the operand of one member lies as it is; None where it does not, and must be copied."""
    if not (collective.shared and collective.join >= 0) or math.prod(collective.results[group[0]][: collective.join]) != 1:
        return None
    before = sum(collective.nbytes(collective.operands[member]) for member in group[:place])
    return before if aligned(before) == before else None


__all__ = ["NEVER", "Uses", "offset_inside", "places"]
