"""What a stage runs in order: its ops and, between them, the places at which values of other stages arrive.

Invariants:
1. Ops stand in the entry's order. A value that the forward phase reads arrives first of all; one that I or W reads first,
   before the first op of these phases.
2. A value that an update makes and reads arrives where the entry makes it. So all stages send and receive the values of U in
   the order of the entry, and none waits for another in a circle, even where a send waits for its receiver.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

from ir.core.attributes import Attribute, AttrKind, attributes
from ir.core.facets import FORWARD, UPDATE, in_phase, phase_of
from ir.core.module import Func
from ir.core.ops import Op
from ir.ops.opdefs import is_collective
from passes.graph.graph import Cut

Arrival: TypeAlias = tuple[int, Cut]
"""A channel, and the tensor that arrives on it."""


def stage_text(func: Func, members: Sequence[Sequence[int]], cuts: Sequence[Cut], index: int) -> Iterator[Op | Arrival]:
    """The ops of stage ``index`` of ``func`` and what it receives, in order. ``members``: the stages of each op; ``cuts``:
    ``cuts_of(func)``."""
    arriving = [(channel, cut) for channel, cut in enumerate(cuts) if cut.target == index]
    yield from (arrival for arrival in arriving if arrival[1].read == FORWARD)
    updated = {cut.tensor.name: (channel, cut) for channel, cut in arriving if cut.sent == UPDATE}
    later = [arrival for arrival in arriving if arrival[1].read != FORWARD and arrival[1].sent != UPDATE]
    for op, stages in zip(func.ops, members, strict=True):
        if later and index in stages and phase_of(op.facets) != FORWARD:
            yield from later
            later = []
        if index in stages:
            yield op
        if updated:
            yield from (updated[value.name] for value in op.results if value.name in updated)


def sends_of(cuts: Sequence[Cut], index: int) -> dict[str, list[Op]]:
    """The ``comm.send`` of each value that stage ``index`` sends, by the value's name."""
    sends: dict[str, list[Op]] = {}
    for channel, cut in enumerate(cuts):
        if cut.source == index:
            fields = attributes(channel=channel, peer=cut.target)
            sends.setdefault(cut.tensor.name, []).append(
                Op("comm.send", (cut.tensor.name,), attributes=fields, facets=in_phase(cut.sent))
            )
    return sends


def collectives_in(ops: Sequence[Op]) -> int:
    """How many of ``ops`` are collectives."""
    return sum(map(is_collective, ops))


def numbered(op: Op, channel: int) -> Op:
    """A collective that the entry has, such as a sum over replicas, on a channel of its own."""
    fields = {**dict(op.attributes), "channel": Attribute(AttrKind.INT, channel)}
    return replace(op, attributes=tuple(sorted(fields.items())))
