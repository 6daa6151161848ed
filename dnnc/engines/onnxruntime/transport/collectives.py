"""Collectives: how the members of a mesh bring the parts of a tensor together, over memory that they share.

Two layers. ``combine`` says on arrays what one member gets from the operands of its group; a check runs it alone. An
``Exchange`` is one member's end of all collectives of its stage: where operands are to be written and results lie, and when.

Every collective has places in one anonymous memory that all members of the stage map: an operand place for each member, and,
where the whole group gets the same tensor, one result place for each group. So an operand is written once, by ONNX Runtime
itself, and a result that all members get is made once and read where it lies: ``all_reduce`` of a large tensor adds up
a slice per member, ``all_gather`` writes each part at its position.

Invariants:
1. terms are added in the order of the group, 16-bit floats in 32 bits and rounded once: every member gets the same bits, and so
   does a check;
2. all members run the same collectives in the same order; a token is one byte, the number of the exchange between the two
   members modulo 256: members out of step are an error, not a wrong number;
3. nobody writes where another may still read: which places are used again, and when, is what ``sharing`` decides.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnnc.build.collective import Collective, Shape
from dnnc.engines.onnxruntime.transport.codec import Raw, raw_view
from dnnc.onnx.elements import BFLOAT16, FLOAT16, Array

TURNS = 2
"""Samples whose places exist beside each other."""
_PIECE = 1 << 15
"""Elements reduced at once, so that a running sum stays in the cache."""


# What a member gets, on arrays of the carrier dtype


def combine(collective: Collective, member: int, operands: Sequence[Array], target: Array) -> None:
    """Writes what ``member`` gets to ``target``, given the operands of its group in order."""
    group = collective.group_of(member)
    place = group.index(member)
    if collective.split >= 0:
        part = _cuts(collective.split, collective.results, group)[place]
        operands = [source[part] for source in operands]
    if collective.join < 0:
        reduce_into(target, operands, collective.reduction, collective.element)
        return
    for part, source in zip(_cuts(collective.join, collective.operands, group), operands, strict=True):
        target[part] = source


def _cuts(dim: int, shapes: Sequence[Shape], group: Sequence[int]) -> list[tuple[slice, ...]]:
    """Where along ``dim`` the parts lie of which the members of ``group`` hold one each, of these shapes."""
    cuts, start = [], 0
    for member in group:
        length = shapes[member][dim]
        cuts.append((*(slice(None),) * dim, slice(start, start + length)))
        start += length
    return cuts


def reduce_into(target: Array, terms: Sequence[Array], reduction: str, element: int) -> None:
    """The terms added up (or the largest of each element), in their order; ``target`` is none of them."""
    how: np.ufunc = np.add if reduction == "sum" else np.maximum
    if target.flags.c_contiguous and all(term.flags.c_contiguous for term in terms):
        flat, parts = target.reshape(-1), [term.reshape(-1) for term in terms]
        for start in range(0, flat.size, _PIECE):
            stop = start + _PIECE
            _reduce(flat[start:stop], [part[start:stop] for part in parts], how, element)
    else:
        _reduce(target, terms, how, element)


def _reduce(target: Array, terms: Sequence[Array], how: np.ufunc, element: int) -> None:
    if element not in (FLOAT16, BFLOAT16):
        if len(terms) == 1:
            np.copyto(target, terms[0])
            return
        how(terms[0], terms[1], out=target)
        for term in terms[2:]:
            how(target, term, out=target)
        return
    total = _widened(terms[0], element)
    for term in terms[1:]:
        how(total, _widened(term, element), out=total)
    target[...] = total.astype(np.float16) if element == FLOAT16 else _bfloat16(total)


def _widened(term: Array, element: int) -> Array:
    """A copy in 32 bits."""
    if element == FLOAT16:
        return term.astype(np.float32)
    wide: Array = (term.astype(np.uint32) << 16).view(np.float32)
    return wide


def _bfloat16(values: Array) -> Array:
    """Rounded to the nearest, ties to even; NaN stays NaN."""
    bits = values.view(np.uint32)
    rounded = (bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16
    return np.where(np.isnan(values), (bits >> 16) | 0x40, rounded).astype(np.uint16)


# Over memory


@dataclass(frozen=True, slots=True)
class Places:
    """Offsets of operands, by (collective, member), and of shared results, by (collective, first of the group), in the memory
    of one turn, which has ``size`` bytes; of a member's own results, by (collective, member), in ``own`` bytes of its own."""

    operands: Mapping[tuple[int, int], int]
    results: Mapping[tuple[int, int], int]
    size: int
    mine: Mapping[tuple[int, int], int]
    own: int

    @property
    def total(self) -> int:
        """Bytes of shared memory."""
        return TURNS * self.size

    def to_json(self) -> list[Any]:
        tables = ([[*key, offset] for key, offset in sorted(t.items())] for t in (self.operands, self.results, self.mine))
        return [*tables, self.size, self.own]

    @classmethod
    def from_json(cls, data: Sequence[Any]) -> Places:
        operands, results, mine = ({(a, b): offset for a, b, offset in table} for table in data[:3])
        return cls(operands, results, data[3], mine, data[4])


class Exchange:
    """One member's end of the collectives of its stage, whose operands and results lie at ``places``. ``peers``: of each other
    member of a group the ends of two pipes, to read its tokens from and to write tokens to."""

    turns = TURNS

    def __init__(
        self,
        collectives: Sequence[Collective],
        member: int,
        memory: Array,
        places: Places,
        peers: Mapping[int, tuple[int, int]],
    ) -> None:
        self.collectives = tuple(collectives)
        self.member = member
        self.peers = dict(peers)
        self._memory = memory
        self._own = np.empty(places.own, np.uint8)
        self._told = dict.fromkeys(peers, 0)
        self._heard = dict.fromkeys(peers, 0)
        self._groups = [collective.group_of(member) for collective in collectives]
        self._operands = [
            [
                [
                    self._view(collective, collective.operands[peer], turn * places.size + places.operands[number, peer])
                    for peer in self._groups[number]
                ]
                for turn in range(TURNS)
            ]
            for number, collective in enumerate(collectives)
        ]
        self._results = [
            [self._result(number, collective, places, turn) for turn in range(TURNS)]
            for number, collective in enumerate(collectives)
        ]

    def operand(self, number: int, turn: int) -> Raw:
        """Where the operand of collective ``number`` of a sample is to be written."""
        return self._operands[number][turn][self._groups[number].index(self.member)]

    def result(self, number: int, turn: int) -> Raw:
        """Where its result lies after ``run``, as long as ``places`` were told that it is used."""
        return self._results[number][turn]

    def run(self, number: int, turn: int) -> None:
        """Takes part in a collective, whose operand is in its place. Blocks for the peers. Raises EOFError when one has gone,
        RuntimeError when it is elsewhere in the program."""
        collective, group = self.collectives[number], self._groups[number]
        mine, result = group.index(self.member), self._results[number][turn].data
        operands = [raw.data for raw in self._operands[number][turn]]
        if collective.shared and collective.join >= 0:
            part = _cuts(collective.join, collective.operands, group)[mine]
            if result[part].ctypes.data != operands[mine].ctypes.data:
                result[part] = operands[mine]
            self.meet(group)
        elif collective.shared:
            self.meet(group)
            flat, slices = result.reshape(-1), even_slices(result.size, len(group))
            terms = [term.reshape(-1)[slices[mine]] for term in operands]
            reduce_into(flat[slices[mine]], terms, collective.reduction, collective.element)
            self.meet(group)
        else:
            self.meet(group)
            combine(collective, self.member, operands, result)

    def _view(self, collective: Collective, shape: Shape, offset: int) -> Raw:
        return raw_view(collective.element, shape, self._memory[offset : offset + collective.nbytes(shape)])

    def _result(self, number: int, collective: Collective, places: Places, turn: int) -> Raw:
        shape, group = collective.results[self.member], self._groups[number]
        if collective.shared:
            return self._view(collective, shape, turn * places.size + places.results[number, group[0]])
        offset = places.mine[number, self.member]
        return raw_view(collective.element, shape, self._own[offset : offset + collective.nbytes(shape)])

    def meet(self, group: Sequence[int]) -> None:
        """Waits until every member of the group has come here."""
        for peer in group:
            if peer != self.member:
                try:
                    os.write(self.peers[peer][1], bytes((self._told[peer],)))
                except BrokenPipeError:
                    raise EOFError from None
                self._told[peer] = (self._told[peer] + 1) % 256
        for peer in group:
            if peer != self.member:
                token = os.read(self.peers[peer][0], 1)
                if not token:
                    raise EOFError
                if token[0] != self._heard[peer]:
                    raise RuntimeError(f"member {peer} is at exchange {token[0]}, member {self.member} at {self._heard[peer]}")
                self._heard[peer] = (self._heard[peer] + 1) % 256


def even_slices(count: int, parts: int) -> list[slice]:
    """``count`` elements in contiguous slices, one each; a slice starts at a cache line."""
    step = -(-count // parts)
    step = -(-step // 64) * 64
    return [slice(min(i * step, count), min((i + 1) * step, count)) for i in range(parts)]


__all__ = ["TURNS", "Exchange", "Places", "combine", "even_slices", "reduce_into"]
