"""Edges: how one process hands the tensors of a microbatch to another, without copying them twice.

An edge joins two processes (a stage's, or ``FEEDER``: the process that started the run) and carries all tensors that go from
one stage to the other; both stages may be of one process. Its memory is a ring of *slots*, one for each microbatch, anonymous
(it has no name, so it is gone as soon as the last process that maps it is). Two pipes carry tokens: ``data`` says which values
of a slot are there, ``free`` which slot may be filled again. A sender that finds no free slot waits: that is the back-pressure.

A slot holds each tensor of known size at a fixed, aligned offset, so that ONNX Runtime can read and write in place, and an area
for each of the others (``codec``). A value that is larger than its area streams through further slots, so any size works: an
edge that has such values has a slot more than microbatches, for that.

Invariants: a token is written and read whole; a slot belongs to exactly one side at a time, but for the values of it that are
not handed over yet; whoever waits goes on reading what streams to it (``hear``), so that processes waiting for each other's
large messages never form a circle.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import tempfile
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnnc.engines.onnxruntime.transport.codec import ALIGNMENT, Raw, aligned, decode, encode, raw_view
from dnnc.onnx.elements import BY_NUMBER, Array, nbytes

FEEDER = -1
"""The process that started the run: it feeds the model's inputs and collects its outputs."""
DYNAMIC_BYTES = 1 << 22
"""Size of a slot's area for values of unknown size. Memory is only taken for what is touched."""
_TOKEN = struct.Struct("IIII")
"""Slot, number of the first value, of how many values, and whether more of the value follows."""
_TOKENS = 64 * _TOKEN.size
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class ValueSpec:
    """A value that crosses an edge. ``element``: ONNX's number, 0 where the value is no tensor of fixed-width elements.
    ``shape``: None unless every dimension is a number."""

    name: str
    element: int = 0
    shape: tuple[int, ...] | None = None

    @property
    def size(self) -> int | None:
        """Bytes, or None when they are not known before the value is."""
        return nbytes(BY_NUMBER[self.element], self.shape) if self.element and self.shape is not None else None


@dataclass(frozen=True, slots=True)
class Edge:
    """All that goes from ``producer`` to ``consumer``: microbatches in ``slots`` slots. ``channels``: that of each value; empty
    where an end is the starter."""

    producer: int
    consumer: int
    values: tuple[ValueSpec, ...]
    slots: int = 2
    dynamic_bytes: int = DYNAMIC_BYTES
    channels: tuple[int, ...] = ()

    @property
    def offsets(self) -> tuple[int, ...]:
        """Offset in a slot of each value, or of the area for it: those of known size come first."""
        offsets, position = [0] * len(self.values), 0
        for number in sorted(range(len(self.values)), key=lambda n: self.values[n].size is None):
            offsets[number] = position
            position += self.room(number)
        return tuple(offsets)

    def room(self, number: int) -> int:
        """Bytes of a slot that value ``number`` has."""
        size = self.values[number].size
        return aligned(self.dynamic_bytes if size is None else size)

    @property
    def slot_bytes(self) -> int:
        return sum(map(self.room, range(len(self.values))))

    @property
    def spare(self) -> int:
        """Slots beside those of microbatches, through which values of unknown size may stream."""
        return int(any(value.size is None for value in self.values))

    @property
    def ring(self) -> int:
        """Slots in memory."""
        return self.slots + self.spare

    @property
    def nbytes(self) -> int:
        """Bytes of its memory."""
        return self.ring * self.slot_bytes

    @property
    def token_bytes(self) -> int:
        """The most bytes of tokens that its pipes may hold: one for each value of each slot."""
        return self.ring * max(1, len(self.values)) * _TOKEN.size

    def to_json(self) -> list[Any]:
        values = [[v.name, v.element, v.shape] for v in self.values]
        return [self.producer, self.consumer, values, self.slots, self.dynamic_bytes, self.channels]

    @classmethod
    def from_json(cls, data: list[Any]) -> Edge:
        producer, consumer, values, slots, dynamic, channels = data
        specs = tuple(ValueSpec(n, e, None if s is None else tuple(s)) for n, e, s in values)
        return cls(producer, consumer, specs, slots, dynamic, tuple(channels))


def anonymous_memory(size: int) -> int:
    """A file descriptor of ``size`` zero bytes of memory that have no name. Raises OSError."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("dnnc", os.MFD_CLOEXEC)
    else:  # a file that is unlinked at once is as anonymous, though it may be on a disk
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, max(size, mmap.PAGESIZE))
    return descriptor


def map_memory(descriptor: int, size: int) -> Array:
    """The memory behind a descriptor as bytes; stays mapped as long as an array refers to it."""
    return np.frombuffer(mmap.mmap(descriptor, max(size, mmap.PAGESIZE)), np.uint8)


def read_memory(descriptor: int, offset: int, size: int) -> bytes:
    """A copy of a part of the memory behind a descriptor."""
    data = bytearray()
    while len(data) < size and (piece := os.pread(descriptor, size - len(data), offset + len(data))):
        data += piece
    return bytes(data)


def write_memory(descriptor: int, pieces: Iterable[bytes]) -> None:
    """Fills the memory behind a descriptor from its start. Raises OSError."""
    offset = 0
    for piece in pieces:
        start = 0
        while start < len(piece):
            start += os.pwrite(descriptor, piece[start:], offset + start)
        offset += len(piece)


@dataclass(frozen=True, slots=True)
class Descriptors:
    """File descriptors of one side of an edge: its memory, the pipe it reads tokens from and the pipe it writes them to."""

    memory: int
    read: int
    write: int


class Side:
    """What both ends of an edge share: the slots."""

    incoming: bool

    def __init__(self, edge: Edge, descriptors: Descriptors) -> None:
        self.edge = edge
        self.descriptors = descriptors
        self.count = max(1, len(edge.values))  # an edge without values says that a microbatch is there
        self.streams = edge.spare > 0
        self._spare = edge.spare
        self._size, self._offsets = edge.slot_bytes, edge.offsets
        self._dynamic = {number for number, value in enumerate(edge.values) if value.size is None}
        self._memory = map_memory(descriptors.memory, edge.nbytes) if self._size else np.empty(0, np.uint8)
        self._views: dict[int, dict[str, Raw]] = {}  # by slot; an edge may have a million, of which few are ever used

    def _views_of(self, slot: int) -> dict[str, Raw]:
        views = {}
        for number, spec in enumerate(self.edge.values):
            if spec.shape is not None and spec.size is not None:
                first = slot * self._size + self._offsets[number]
                views[spec.name] = raw_view(spec.element, spec.shape, self._memory[first : first + spec.size])
        return views

    def views(self, slot: int) -> dict[str, Raw]:
        """The tensors of known size in ``slot``, in place."""
        views = self._views.get(slot)
        if views is None:
            views = self._views[slot] = self._views_of(slot)
        return views

    def area(self, slot: int, number: int) -> Array:
        """The area of ``slot`` for value ``number``, of unknown size."""
        first = slot * self._size + self._offsets[number]
        return self._memory[first : first + self.edge.room(number)]

    def fileno(self) -> int:
        return self.descriptors.read

    def hear(self) -> None:
        """Reads what tokens there are, at least one (blocks for it). Raises EOFError when the other side has gone."""
        raise NotImplementedError

    def close(self) -> None:
        """Lets go of the memory (a mapping holds a descriptor as long as it lives)."""
        self._memory = np.empty(0, np.uint8)
        self._views.clear()

    def _tokens(self) -> Iterator[tuple[Any, ...]]:
        data = os.read(self.descriptors.read, _TOKENS)
        if not data:
            raise EOFError
        return _TOKEN.iter_unpack(data)

    def _put(self, slot: int, first: int = 0, count: int = 0, more: int = 0) -> None:
        try:
            os.write(self.descriptors.write, _TOKEN.pack(slot, first, count, more))
        except BrokenPipeError:
            raise EOFError from None


class Sender(Side):
    """The producer's end."""

    incoming = False

    def __init__(self, edge: Edge, descriptors: Descriptors) -> None:
        super().__init__(edge, descriptors)
        self.free = deque(range(edge.ring))

    def hear(self) -> None:
        """Takes back slots that the consumer has done with, as ``Side.hear``."""
        self.free += [slot for slot, *_ in self._tokens()]

    @property
    def open(self) -> bool:
        """Whether there is a free slot for a microbatch."""
        return len(self.free) > self._spare

    def take(self) -> int:
        """A free slot, which there is."""
        return self.free.popleft()

    def send(self, slot: int, first: int, count: int) -> None:
        """Hands over ``count`` values of ``slot`` from number ``first`` on, all of known size and in place."""
        self._put(slot, first, count)

    def sending(self, slot: int, first: int, count: int, values: Mapping[str, Any]) -> Iterator[None]:
        """Hands over ``count`` values of ``slot`` from number ``first`` on: tensors of known size, which are in place, others
        out of ``values``. Yields each time it needs a free slot."""
        begin, end = first, first + count
        for number in range(first, end):
            if number in self._dynamic:
                if begin < number:
                    self._put(slot, begin, number - begin)
                yield from self._streaming(slot, number, values[self.edge.values[number].name])
                begin = number + 1
        if begin < end:
            self._put(slot, begin, end - begin)

    def _streaming(self, slot: int, number: int, value: Any) -> Iterator[None]:
        pieces = encode({"": value})
        area, used = self.area(slot, number), ALIGNMENT
        area[: _LENGTH.size] = np.frombuffer(_LENGTH.pack(sum(piece.nbytes for piece in pieces)), np.uint8)
        for piece in pieces:
            start = 0
            while start < piece.nbytes:
                if used == area.size:
                    self._put(slot, number, 1, 1)
                    while not self.free:
                        yield
                    slot = self.free.popleft()
                    area, used = self.area(slot, number), 0
                length = min(piece.nbytes - start, area.size - used)
                area[used : used + length] = np.frombuffer(piece[start : start + length], np.uint8)
                start, used = start + length, used + length
        self._put(slot, number, 1)

    def feeding(self, values: Mapping[str, Any]) -> Iterator[None]:
        """Sends a whole microbatch by copying it, yielding each time a free slot is needed."""
        while not self.open:
            yield
        slot = self.take()
        for name, view in self.views(slot).items():
            np.copyto(view.data, values[name].data.reshape(view.data.shape))
        if self.streams:
            yield from self.sending(slot, 0, self.count, values)
        else:
            self.send(slot, 0, self.count)


@dataclass(slots=True)
class _Stream:
    """A value that comes in pieces: in which slot it began, and how many bytes of it are there."""

    slot: int
    data: Array
    filled: int = 0

    def append(self, piece: Array) -> None:
        length = min(piece.size, self.data.size - self.filled)
        self.data[self.filled : self.filled + length] = piece[:length]
        self.filled += length


class Receiver(Side):
    """The consumer's end. ``arrived``: of each value, the slots in which it is there and that were not taken yet, in order of
    microbatch."""

    incoming = True

    def __init__(self, edge: Edge, descriptors: Descriptors) -> None:
        super().__init__(edge, descriptors)
        self.arrived: list[deque[int]] = [deque() for _ in range(self.count)]
        self._values: dict[int, dict[str, Any]] = defaultdict(dict)  # those of unknown size, by slot
        self._stream: _Stream | None = None

    def hear(self) -> None:
        """Notes values that are there, as ``Side.hear``."""
        for slot, first, count, more in self._tokens():
            if first in self._dynamic:
                self._piece(slot, first, more)
            else:
                for number in range(first, first + count):
                    self.arrived[number].append(slot)

    def _piece(self, slot: int, number: int, more: int) -> None:
        """A value of unknown size, or a piece of one, lies in ``slot``."""
        area, stream = self.area(slot, number), self._stream
        if stream is not None:
            stream.append(area)
            self._put(slot)
            if not more:
                self._stream = None
                self._note(stream.slot, number, stream.data)
        elif more:
            (total,) = _LENGTH.unpack(area[: _LENGTH.size].tobytes())
            self._stream = _Stream(slot, np.empty(total, np.uint8))
            self._stream.append(area[ALIGNMENT:])
        else:
            self._note(slot, number, area[ALIGNMENT:])

    def _note(self, slot: int, number: int, data: Array) -> None:
        self._values[slot][self.edge.values[number].name] = decode(data)[""]
        self.arrived[number].append(slot)

    @property
    def complete(self) -> bool:
        """Whether all values of the next microbatch are there."""
        return all(self.arrived)

    def take(self) -> int:
        """The slot of the next microbatch, which is complete."""
        slots = [arrived.popleft() for arrived in self.arrived]
        return slots[0]

    def values(self, slot: int) -> dict[str, Any]:
        """What is in ``slot``, whose values have arrived: views that are valid until it is released."""
        return {**self.views(slot), **self._values[slot]} if self.streams else self.views(slot)

    def release(self, slot: int) -> None:
        """Lets the sender fill the slot again. Raises EOFError when it has gone."""
        if self.streams:
            self._values.pop(slot, None)
        self._put(slot)

    def close(self) -> None:
        super().close()
        self._stream = None
        self._values.clear()


def config_text(data: Mapping[str, Any]) -> bytes:
    """One line of JSON."""
    return json.dumps(data).encode() + b"\n"
