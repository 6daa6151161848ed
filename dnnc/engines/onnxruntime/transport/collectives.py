"""Collectives: how the members of a mesh combine the parts of a tensor, in memory that they share.

``combine`` computes, on arrays, what one member gets from the operands of its group; ``dnnc check`` uses it without processes.
An ``Exchange`` runs all collectives of a stage for one member.

All members of a stage map one memory without a name. Each collective has places in it: one per member for the operand, and one
per group for the result if the whole group gets the same tensor. ONNX Runtime writes operands and reads shared results in
place, so they are not copied: in ``all_reduce`` of a large tensor each member reduces one slice of the result, in
``all_gather`` each writes its part of the result.

Invariants:
1. terms are reduced in the order of the group; 16-bit floats are added in 32 bits and rounded once. So all members get the same
   bits, and so does ``dnnc check``;
2. all members run the same collectives in the same order. A token between two members is one byte, the number of their barriers
   so far modulo 256, so members out of step raise an error instead of computing a wrong result;
3. no member writes a place that another may still read: ``sharing`` decides which places are reused.
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
"""How many samples have places of their own: sample m uses the places of turn m mod ``TURNS``."""
_PIECE = 1 << 15
"""Elements that are reduced at once, so that the running sum stays in the cache."""


# On arrays of the carrier dtype


def combine(collective: Collective, member: int, operands: Sequence[Array], target: Array) -> None:
    """Writes the result of ``member`` to ``target``. ``operands``: those of its group, in order."""
    group = collective.group_of(member)
    if collective.split >= 0:
        part = _parts(collective.split, collective.results, group)[group.index(member)]
        operands = [source[part] for source in operands]
    if collective.join < 0:
        reduce_into(target, operands, collective.reduction, collective.element)
        return
    for part, source in zip(_parts(collective.join, collective.operands, group), operands, strict=True):
        target[part] = source


def _parts(dim: int, shapes: Sequence[Shape], group: Sequence[int]) -> list[tuple[slice, ...]]:
    """The index of each member's part in a tensor that is cut along ``dim`` into parts of these shapes, in order of
    ``group``."""
    parts, start = [], 0
    for member in group:
        length = shapes[member][dim]
        parts.append((*(slice(None),) * dim, slice(start, start + length)))
        start += length
    return parts


def reduce_into(target: Array, terms: Sequence[Array], reduction: str, element: int) -> None:
    """Writes the ``sum`` or ``max`` of the terms, reduced in their order, to ``target``, which is none of them. ``element``:
    ONNX's number of the element type."""
    combine_two: np.ufunc = np.add if reduction == "sum" else np.maximum
    if target.flags.c_contiguous and all(term.flags.c_contiguous for term in terms):
        flat, parts = target.reshape(-1), [term.reshape(-1) for term in terms]
        for start in range(0, flat.size, _PIECE):
            stop = start + _PIECE
            _reduce(flat[start:stop], [part[start:stop] for part in parts], combine_two, element)
    else:
        _reduce(target, terms, combine_two, element)


def _reduce(target: Array, terms: Sequence[Array], combine_two: np.ufunc, element: int) -> None:
    if element not in (FLOAT16, BFLOAT16):
        if len(terms) == 1:
            np.copyto(target, terms[0])
            return
        combine_two(terms[0], terms[1], out=target)
        for term in terms[2:]:
            combine_two(target, term, out=target)
        return
    total = _widened(terms[0], element)
    for term in terms[1:]:
        combine_two(total, _widened(term, element), out=total)
    target[...] = total.astype(np.float16) if element == FLOAT16 else _bfloat16(total)


def _widened(term: Array, element: int) -> Array:
    """A 16-bit float tensor as a copy in 32 bits."""
    if element == FLOAT16:
        return term.astype(np.float32)
    wide: Array = (term.astype(np.uint32) << 16).view(np.float32)
    return wide


def _bfloat16(values: Array) -> Array:
    """The bits of 32-bit floats as bfloat16, rounded to nearest, ties to even; NaN stays NaN."""
    bits = values.view(np.uint32)
    rounded = (bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16
    return np.where(np.isnan(values), (bits >> 16) | 0x40, rounded).astype(np.uint16)


# In shared memory


@dataclass(frozen=True, slots=True)
class Places:
    """Offsets of operands and results. In the shared memory of one turn, of ``size`` bytes: ``operands``, by (collective,
    member), and shared ``results``, by (collective, first member of the group). In a member's own memory, of ``own_size``
    bytes: ``own_results``, by (collective, member)."""

    operands: Mapping[tuple[int, int], int]
    results: Mapping[tuple[int, int], int]
    size: int
    own_results: Mapping[tuple[int, int], int]
    own_size: int

    @property
    def total(self) -> int:
        """Bytes of shared memory, for all turns."""
        return TURNS * self.size

    def to_json(self) -> list[Any]:
        tables = (
            [[*key, offset] for key, offset in sorted(t.items())] for t in (self.operands, self.results, self.own_results)
        )
        return [*tables, self.size, self.own_size]

    @classmethod
    def from_json(cls, data: Sequence[Any]) -> Places:
        operands, results, own_results = ({(a, b): offset for a, b, offset in table} for table in data[:3])
        return cls(operands, results, data[3], own_results, data[4])


class Exchange:
    """Runs the collectives of a stage for ``member``: a ``Group`` of the engine. ``memory``: shared by all members; ``places``:
    of operands and results; ``peers``: of each other member of a group the descriptors to read its tokens from and to write
    tokens to."""

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
        self._own_memory = np.empty(places.own_size, np.uint8)
        self._sent = dict.fromkeys(peers, 0)  # tokens modulo 256
        self._received = dict.fromkeys(peers, 0)
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
        """The place for this member's operand of collective ``number``."""
        return self._operands[number][turn][self._groups[number].index(self.member)]

    def result(self, number: int, turn: int) -> Raw:
        """The place of the result after ``run``. It is valid until the last reader that ``sharing.places`` was told of."""
        return self._results[number][turn]

    def run(self, number: int, turn: int) -> None:
        """Takes part in collective ``number``, whose operand must be in its place. Blocks for the others of the group. Raises
        EOFError when the process of one has ended, RuntimeError when one is out of step."""
        collective, group = self.collectives[number], self._groups[number]
        index, result = group.index(self.member), self._results[number][turn].data
        operands = [raw.data for raw in self._operands[number][turn]]
        if collective.shared and collective.join >= 0:
            part = _parts(collective.join, collective.operands, group)[index]
            if result[part].ctypes.data != operands[index].ctypes.data:
                result[part] = operands[index]
            self.barrier(group)
        elif collective.shared:
            self.barrier(group)
            flat, slices = result.reshape(-1), even_slices(result.size, len(group))
            terms = [term.reshape(-1)[slices[index]] for term in operands]
            reduce_into(flat[slices[index]], terms, collective.reduction, collective.element)
            self.barrier(group)
        else:
            self.barrier(group)
            combine(collective, self.member, operands, result)

    def _view(self, collective: Collective, shape: Shape, offset: int) -> Raw:
        return raw_view(collective.element, shape, self._memory[offset : offset + collective.nbytes(shape)])

    def _result(self, number: int, collective: Collective, places: Places, turn: int) -> Raw:
        shape, group = collective.results[self.member], self._groups[number]
        if collective.shared:
            return self._view(collective, shape, turn * places.size + places.results[number, group[0]])
        offset = places.own_results[number, self.member]
        return raw_view(collective.element, shape, self._own_memory[offset : offset + collective.nbytes(shape)])

    def barrier(self, group: Sequence[int]) -> None:
        """Waits until every member of the group is here. Raises as ``run``."""
        for peer in group:
            if peer != self.member:
                try:
                    os.write(self.peers[peer][1], bytes((self._sent[peer],)))
                except BrokenPipeError:
                    raise EOFError from None
                self._sent[peer] = (self._sent[peer] + 1) % 256
        for peer in group:
            if peer != self.member:
                token = os.read(self.peers[peer][0], 1)
                if not token:
                    raise EOFError
                if token[0] != self._received[peer]:
                    here = f"member {self.member} at {self._received[peer]}"
                    raise RuntimeError(f"member {peer} is at exchange {token[0]}, {here}")
                self._received[peer] = (self._received[peer] + 1) % 256


def even_slices(count: int, parts: int) -> list[slice]:
    """``count`` elements in ``parts`` contiguous slices, whose starts are multiples of 64 elements, so whole cache lines
    apart."""
    step = -(-count // parts)
    step = -(-step // 64) * 64
    return [slice(min(i * step, count), min((i + 1) * step, count)) for i in range(parts)]
