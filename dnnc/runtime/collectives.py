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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dnnc.runtime.codec import Raw, raw_view
from dnnc.runtime.elements import BY_NUMBER, Array, Element, nbytes, packed

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
REDUCTIONS = ("sum", "max")
TURNS = 2
"""Samples whose places exist beside each other."""
SMALL = 1 << 15
"""Bytes up to which each member reduces all of a tensor by itself: a second round of tokens costs more."""
_PIECE = 1 << 15
"""Elements reduced at once, so that a running sum stays in the cache."""
_BFLOAT16 = 16
_FLOAT16 = 10

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of a stage. ``groups``: its members' numbers, each group in the order of the axis. ``operands`` and
    ``results``: shapes by member. ``split``: the dimension that is cut (reduce_scatter, all_to_all), ``join``: the one along
    which parts are joined (all_gather, all_to_all); -1 where there is none. ``level``: of the segment that it follows."""

    kind: str
    channel: int
    level: int
    operand: str
    result: str
    element: int
    groups: tuple[tuple[int, ...], ...]
    operands: tuple[Shape, ...]
    results: tuple[Shape, ...]
    reduction: str = ""
    split: int = -1
    join: int = -1

    def group_of(self, member: int) -> tuple[int, ...]:
        """The group of ``member``, in order."""
        return next(group for group in self.groups if member in group)

    def nbytes(self, shape: Shape) -> int:
        return nbytes(BY_NUMBER[self.element], shape)

    @property
    def shared(self) -> bool:
        """Whether a group's result is one tensor in shared memory."""
        return self.kind == "all_gather" or (self.kind == "all_reduce" and self.nbytes(self.operands[0]) > SMALL)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Collective:
        """Raises KeyError, TypeError, ValueError for what is no collective; ``faults`` tells whether it makes sense."""
        return cls(
            kind=str(data["kind"]),
            channel=int(data["channel"]),
            level=int(data["level"]),
            operand=str(data["operand"]),
            result=str(data["result"]),
            element=int(data["element"]),
            groups=tuple(tuple(int(member) for member in group) for group in data["groups"]),
            operands=tuple(tuple(int(dim) for dim in shape) for shape in data["operands"]),
            results=tuple(tuple(int(dim) for dim in shape) for shape in data["results"]),
            reduction=str(data["reduction"]),
            split=int(data["split"]),
            join=int(data["join"]),
        )

    def faults(self, members: int) -> Iterator[str]:
        """Why this cannot be a collective of a stage of so many members; nothing when it can."""
        if self.kind not in KINDS:
            yield f"collective '{self.kind}' is unknown, one of {', '.join(KINDS)} expected"
            return
        element = BY_NUMBER.get(self.element)
        if element is None or packed(element):
            yield f"a collective cannot move elements of type {self.element if element is None else element.name}"
            return
        if self.level < 0:
            yield f"a level is at least 0, not {self.level}"
        if sorted(member for group in self.groups for member in group) != list(range(members)):
            yield f"groups {[list(group) for group in self.groups]} do not hold each of {members} members once"
            return
        if len(self.operands) != members or len(self.results) != members:
            yield f"{len(self.operands)} operands and {len(self.results)} results found, {members} members expected"
            return
        if any(dim < 0 for shape in (*self.operands, *self.results) for dim in shape):
            yield "a dimension is below 0"
            return
        if self.kind in ("all_reduce", "reduce_scatter"):
            if self.reduction not in REDUCTIONS:
                yield f"reduction '{self.reduction}' is unknown, one of {', '.join(REDUCTIONS)} expected"
            elif not reducible(element, self.reduction):
                yield f"no {self.reduction} of elements of type {element.name}"
        for name, dim, needed in (
            ("split", self.split, self.kind in ("reduce_scatter", "all_to_all")),
            ("join", self.join, self.kind in ("all_gather", "all_to_all")),
        ):
            ranks = {len(shape) for shape in (*self.operands, *self.results)}
            if len(ranks) != 1 or not (0 <= dim < min(ranks) if needed else dim == -1):
                yield f"{name} dimension {dim} does not fit shapes {_texts(self.operands)}"
                return
        for group in self.groups:
            yield from self._group_faults(group)

    def _group_faults(self, group: tuple[int, ...]) -> Iterator[str]:
        operands, results = [self.operands[m] for m in group], [self.results[m] for m in group]
        wanted = [list(shape) for shape in operands]
        if self.split >= 0:  # what a member gives is cut into parts as long as the results
            lengths = [shape[self.split] for shape in results]
            if any(shape[self.split] != sum(lengths) for shape in operands):
                yield f"parts of {lengths} along dimension {self.split} are not those of {_texts(operands)}"
            for shape, length in zip(wanted, lengths, strict=True):
                shape[self.split] = length
        if self.join >= 0:
            total = sum(shape[self.join] for shape in operands)
            for shape in wanted:
                shape[self.join] = total
        else:
            wanted = [[d if i == self.split else wanted[0][i] for i, d in enumerate(shape)] for shape in wanted]
        if [list(shape) for shape in results] != wanted or (self.join < 0 and len(set(operands)) != 1):
            yield f"{self.kind} of {_texts(operands)} gives {_texts(map(tuple, wanted))}, not {_texts(results)}"


def _texts(shapes: Any) -> str:
    return ", ".join("x".join(map(str, shape)) or "scalar" for shape in shapes)


def reducible(element: Element, reduction: str) -> bool:
    """Whether elements can be added up, or compared."""
    if element.name == "bool":
        return reduction == "max"
    if element.name.startswith("complex"):
        return reduction == "sum"
    return element.number == _BFLOAT16 or (element.carrier == element.name)


# What a member gets, on arrays of the carrier dtype


def combine(collective: Collective, member: int, operands: Sequence[Array], target: Array) -> None:
    """Writes what ``member`` gets to ``target``, given the operands of its group in order."""
    group = collective.group_of(member)
    place = group.index(member)
    match collective.kind:
        case "all_reduce":
            reduce_into(target, operands, collective.reduction, collective.element)
        case "all_gather":
            for part, source in zip(_cuts(collective.join, collective.operands, group), operands, strict=True):
                target[part] = source
        case "reduce_scatter":
            part = _cuts(collective.split, collective.results, group)[place]
            reduce_into(target, [source[part] for source in operands], collective.reduction, collective.element)
        case "all_to_all":
            cut = _cuts(collective.split, collective.results, group)[place]
            for part, source in zip(_cuts(collective.join, collective.operands, group), operands, strict=True):
                target[part] = source[cut]


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
    if element not in (_FLOAT16, _BFLOAT16):
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
    target[...] = total.astype(np.float16) if element == _FLOAT16 else _bfloat16(total)


def _widened(term: Array, element: int) -> Array:
    """A copy in 32 bits."""
    if element == _FLOAT16:
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
        if collective.kind == "all_gather":
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


__all__ = ["KINDS", "TURNS", "Collective", "Exchange", "Places", "combine", "even_slices", "reduce_into", "reducible"]
