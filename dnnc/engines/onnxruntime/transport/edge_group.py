"""Collectives between members that do not all share memory: by an edge from each member to each other one of its groups.

Each member sends its operand to the others of the group, and computes its own result from all operands, in the order of the
group: the bits are those of ``collectives.Exchange``. An edge has a slot for each sample under way, with a place for the
operand of each collective in which both members are. So of a group of n, a member sends its operand n - 1 times; inside a host,
where that can be avoided, groups share memory.

Operands and results are in the member's own memory, which nobody else reads: there is one place for each, and one turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from dnnc.build.collective import Collective, Shape
from dnnc.engines.onnxruntime.engine import Incoming, Outgoing
from dnnc.engines.onnxruntime.transport.codec import Raw, raw_view
from dnnc.engines.onnxruntime.transport.collectives import combine
from dnnc.engines.onnxruntime.transport.edges import Edge, ValueSpec

_SLOTS = 2
"""Samples under way between two members: the faster one may begin the next while the other still reads."""


def shared_numbers(collectives: Sequence[Collective], member: int, peer: int) -> list[int]:
    """Numbers of the collectives in which both members are in one group."""
    return [number for number, one in enumerate(collectives) if peer in one.group_of(member)]


def member_edge(stage: int, collectives: Sequence[Collective], member: int, peer: int) -> Edge:
    """The edge by which a member of a stage sends its operands to another one."""
    values = (
        ValueSpec(str(number), collectives[number].element, collectives[number].operands[member])
        for number in shared_numbers(collectives, member, peer)
    )
    return Edge(stage, stage, tuple(values), _SLOTS)


class EdgeExchange:
    """Runs the collectives of a stage for ``member``: a ``Group`` of the engine. ``sends``, ``receives``: by peer."""

    turns = 1

    def __init__(
        self,
        collectives: Sequence[Collective],
        member: int,
        sends: Mapping[int, Outgoing],
        receives: Mapping[int, Incoming],
    ) -> None:
        self.collectives = tuple(collectives)
        self.member = member
        self._sends, self._receives = sends, receives
        self._groups = [collective.group_of(member) for collective in collectives]
        self._operands = [_place(one, one.operands[member]) for one in collectives]
        self._results = [_place(one, one.results[member]) for one in collectives]
        self._positions = {
            peer: {number: place for place, number in enumerate(shared_numbers(collectives, member, peer))} for peer in sends
        }
        self._filled: dict[int, int] = {}  # by peer, the slot of this sample in the edge to it
        self._read: dict[int, int] = {}

    def operand(self, number: int, turn: int) -> Raw:
        """The place for this member's operand of collective ``number``."""
        return self._operands[number]

    def result(self, number: int, turn: int) -> Raw:
        """The place of the result after ``run``, valid until the collective runs for the next sample."""
        return self._results[number]

    def run(self, number: int, turn: int) -> None:
        """Takes part in collective ``number``, whose operand must be in its place. Blocks for the others of the group. Raises
        EOFError when the process of one has ended."""
        group, own = self._groups[number], self._operands[number].data
        peers = [peer for peer in group if peer != self.member]
        for peer in peers:
            self._send(peer, number)
        received = {peer: self._receive(peer, number).data for peer in peers}
        operands = [own if peer == self.member else received[peer] for peer in group]
        combine(self.collectives[number], self.member, operands, self._results[number].data)
        for peer in self._last(peers, number):
            self._receives[peer].release(self._read.pop(peer))

    def _send(self, peer: int, number: int) -> None:
        end, position = self._sends[peer], self._positions[peer][number]
        if position == 0:
            while not end.has_free_slot:
                end.read_tokens()
            self._filled[peer] = end.take()
        slot = self._filled[peer]
        np.copyto(end.views(slot)[str(number)].data, self._operands[number].data)
        end.send(slot, position, 1)

    def _receive(self, peer: int, number: int) -> Raw:
        end, position = self._receives[peer], self._positions[peer][number]
        while not end.arrived[position]:
            end.read_tokens()
        self._read[peer] = end.arrived[position].popleft()
        return end.views(self._read[peer])[str(number)]

    def _last(self, peers: Sequence[int], number: int) -> Iterator[int]:
        """The peers with which this is the last collective of a sample."""
        return (peer for peer in peers if self._positions[peer][number] == len(self._positions[peer]) - 1)


def _place(collective: Collective, shape: Shape) -> Raw:
    return raw_view(collective.element, shape, np.empty(collective.nbytes(shape), np.uint8))
