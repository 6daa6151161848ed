"""Assigns operands and results of collectives to places in the memory that the members of a stage share.

Each collective needs one place per member for the operand, and one per group for the result if the group shares it; other
results are in the member's own memory. Collectives with the same groups may have the same places, called a *slot*: a later
collective reuses the slot of an earlier one if no member can still read there.

Members run segments in order of level, and after each segment the collectives of its level. In a collective, the members of a
group wait for each other at a *barrier* (``Exchange``). These invariants exclude races:
1. All collectives of a slot have the same groups, and each operand place has one member that writes it. So all readers of a
   place are in one group, and after a later barrier of the group each of them has finished all that it runs before that.
2. The group reads an operand until the next barrier after the collective (an all-reduce in slices ends with one). The member
   itself reads it until the last segment or collective that reads the value.
3. The group reads a shared result until the last segment or collective that reads it; if it leaves the stage, until the end of
   the sample.
4. Each slot exists twice, for even and odd samples. A member that writes for sample m + 2 has passed a barrier of sample m + 1,
   which all members of the group entered after sample m.
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
"""The last level of a value that is read until the end of the sample, above that of any segment."""


@dataclass(frozen=True, slots=True)
class Uses:
    """When a value is written and read, over all members. ``made``: the first level whose segment writes it, None if no segment
    does and it is copied; ``level``: the last level whose segment reads it, -1 for none, ``NEVER`` if it leaves the stage;
    ``number``: the last collective of which it is the operand, -1 for none."""

    made: int | None = None
    level: int = NEVER
    number: int = -1


@dataclass(slots=True)
class _Slot:
    """Places that several collectives use one after the other. ``sizes`` in bytes and ``offsets``: by member, or by the first
    member of the group for shared results."""

    sizes: dict[int, int] = field(default_factory=dict)
    offsets: dict[int, int] = field(default_factory=dict)

    def grow(self, sizes: Mapping[int, int]) -> None:
        for key, size in sizes.items():
            self.sizes[key] = max(self.sizes.get(key, 0), aligned(size))


def places(collectives: Sequence[Collective], uses: Mapping[str, Uses] | None = None) -> Places:
    """The places of all operands and results. ``uses``: by value; a value without an entry is read to the end of the sample."""
    allocator = _Allocator(collectives, uses or {})
    operand_slots = allocator.allocate(range(len(collectives)), allocator.operand_sizes, allocator.operand_free)
    shared = [n for n, collective in enumerate(collectives) if collective.shared]
    result_slots = allocator.allocate(shared, allocator.result_sizes, allocator.result_free)
    private = [n for n, collective in enumerate(collectives) if not collective.shared]
    own_slots = allocator.allocate(private, allocator.own_sizes, allocator.own_free)
    size = _set_offsets(_distinct([*operand_slots.values(), *result_slots.values()]))
    own_size = 0
    for slot in _distinct(own_slots.values()):
        slot.offsets = dict.fromkeys(slot.sizes, own_size)
        own_size += max(slot.sizes.values(), default=0)
    results = {(n, key): offset for n, slot in result_slots.items() for key, offset in slot.offsets.items()}
    operands = {}
    for n, collective in enumerate(collectives):
        for group in collective.groups:
            for place, member in enumerate(group):
                inside = offset_inside(collective, group, place)
                operands[n, member] = operand_slots[n].offsets[member] if inside is None else results[n, group[0]] + inside
    own_results = {(n, key): offset for n, slot in own_slots.items() for key, offset in slot.offsets.items()}
    return Places(operands, results, size, own_results, own_size)


def _distinct(slots: Iterable[_Slot]) -> list[_Slot]:
    return list({id(slot): slot for slot in slots}.values())


def _set_offsets(slots: Iterable[_Slot]) -> int:
    """Sets the offsets of all places, one after another; returns their total size in bytes."""
    position = 0
    for slot in slots:
        for key, size in sorted(slot.sizes.items()):
            slot.offsets[key] = position
            position += size
    return position


class _Allocator:
    """Decides which collectives share a slot. A collective is named by its number in ``collectives``."""

    def __init__(self, collectives: Sequence[Collective], uses: Mapping[str, Uses]) -> None:
        self.collectives = collectives
        self.uses = uses

    def allocate(self, numbers: Iterable[int], sizes: Any, free: Any) -> dict[int, _Slot]:
        """A slot for each collective. ``sizes(i)``: bytes of its places; ``free(j, i)``: whether i may write the places of j,
        which runs before it. Of the slots that are free it takes the one whose size is nearest to what it needs."""
        slots: dict[int, _Slot] = {}
        users: list[tuple[_Slot, list[int]]] = []
        for number in numbers:
            needed = sizes(number)
            reusable = [(slot, using) for slot, using in users if all(free(other, number) for other in using)]
            if reusable:
                slot, using = min(reusable, key=lambda entry: abs(sum(entry[0].sizes.values()) - sum(needed.values())))
                using.append(number)
            else:
                slot = _Slot()
                users.append((slot, [number]))
            slot.grow(needed)
            slots[number] = slot
        return slots

    def operand_sizes(self, number: int) -> dict[int, int]:
        """Bytes of the operand of each member, except for operands that are written into the result (``offset_inside``)."""
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

    def write_level(self, number: int) -> int:
        """The first level whose segment may write the operand of a collective; one above the collective's level if the operand
        is copied when the collective runs."""
        collective = self.collectives[number]
        made = self.uses.get(collective.operand, Uses(made=0)).made
        return collective.level + 1 if made is None else min(made, collective.level)

    def operand_free(self, old: int, new: int) -> bool:
        """Whether ``new`` may write its operands where those of ``old`` are (invariant 2)."""
        before, after = self.collectives[old], self.collectives[new]
        use = self.uses.get(before.operand, Uses())
        if before.groups != after.groups or use.level >= self.write_level(new) or use.number >= new:
            return False
        if use.number >= 0 and self.collectives[use.number].level >= self.write_level(new):
            return False
        if before.shared and before.join < 0 and before.level < self.write_level(new):
            return True
        return any(self.is_barrier(k, before, self.write_level(new), new) for k in range(old + 1, new))

    def result_free(self, old: int, new: int) -> bool:
        """Whether ``new`` may write its shared results where those of ``old`` are (invariant 3)."""
        before, after = self.collectives[old], self.collectives[new]
        use = self.uses.get(before.result, Uses())
        if before.shared and before.join >= 0:  # its operands may be inside the result
            operand = self.uses.get(before.operand, Uses())
            use = Uses(None, max(use.level, operand.level), max(use.number, operand.number))
        if before.groups != after.groups or use.level == NEVER:
            return False
        sliced = after.split < 0 and after.join < 0  # its result is written after its own first barrier
        level = self.write_level(new) if not sliced else after.level + 1
        return any(
            self.collectives[k].level >= use.level and k >= use.number and self.is_barrier(k, before, level, new + sliced)
            for k in range(old + 1, new + sliced)
        )

    def own_free(self, old: int, new: int) -> bool:
        """Whether the members may write their own results of ``new`` where those of ``old`` are."""
        use = self.uses.get(self.collectives[old].result, Uses())
        return use.level <= self.collectives[new].level and use.number < new

    def is_barrier(self, k: int, before: Collective, level: int, number: int) -> bool:
        """Whether collective k is a barrier of the groups of ``before`` and runs before the segment of ``level`` and before
        collective ``number``."""
        return self.collectives[k].groups == before.groups and self.collectives[k].level < level and k < number


def offset_inside(collective: Collective, group: tuple[int, ...], place: int) -> int | None:
    """The offset in the group's result at which a member can write its operand directly, ``place`` being its position in the
    group. None where the operand is no contiguous, aligned part of the result, so that it must be copied."""
    if not (collective.shared and collective.join >= 0) or math.prod(collective.results[group[0]][: collective.join]) != 1:
        return None
    before = sum(collective.nbytes(collective.operands[member]) for member in group[:place])
    return before if aligned(before) == before else None
