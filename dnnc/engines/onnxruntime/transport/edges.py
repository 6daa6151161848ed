"""Edges carry the tensors of a microbatch from one process to another through shared memory.

An edge carries all values that go from one stage to another; the stages may run in the same process, and one end may be
``FEEDER``, the process that started the run. The memory of an edge is a set of *slots*, each for one microbatch. It has no
name, so it ends with the last process that maps it. Two pipes carry tokens: the sender tells which values of a slot it has
written, the receiver which slot is free again. A sender without a free slot waits; this is the back-pressure.

A slot has a fixed, aligned place for each tensor of known size, where ONNX Runtime reads and writes it, and an *area* for each
other value, which is copied there as bytes (``codec``). A value larger than its area streams through further slots; an edge
with values of unknown size has a spare slot for this.

Invariants: a token is written and read whole; each value of a slot belongs to the sender until a token hands it over, then to
the receiver until it releases the slot; a process that waits also reads the values that stream to it (``read_tokens``), so
processes that send each other large values do not deadlock.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import struct
import tempfile
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dnnc.engines.onnxruntime.transport.codec import ALIGNMENT, Raw, aligned, decode, encode, raw_view
from dnnc.onnx.elements import BY_NUMBER, Array, nbytes

FEEDER = -1
"""The process that started the run: it feeds the model's inputs and collects its outputs."""
DYNAMIC_BYTES = 1 << 22
"""Bytes of the area of a value of unknown size. The system provides memory only for pages that are used."""
TOKEN = struct.Struct("IIII")
"""Slot, number of the first value, number of values, and one word more: of a streaming value 1 if more of it follows, of others
how many of their ``parts`` are in use, 0 for all."""
_TOKENS = 64 * TOKEN.size
"""The most bytes of tokens that are read at once."""
LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class ValueSpec:
    """A value that crosses an edge. ``element``: ONNX's number of its element type, 0 if it is no tensor of fixed-width
    elements. ``shape``: None unless all dimensions are numbers. ``parts``: equal parts of its bytes, of which a microbatch may
    use the first ones alone."""

    name: str
    element: int = 0
    shape: tuple[int, ...] | None = None
    parts: int = 1

    @property
    def size(self) -> int | None:
        """Bytes; None if they depend on the value."""
        return nbytes(BY_NUMBER[self.element], self.shape) if self.element and self.shape is not None else None

    def in_use(self, parts: int) -> int:
        """Bytes of the first ``parts`` parts of a value of known size, of which 0 are all."""
        size = self.size or 0
        return size // self.parts * parts if 0 < parts < self.parts else size


@dataclass(frozen=True, slots=True)
class Edge:
    """The values that go from stage ``producer`` to stage ``consumer``, with ``slots`` microbatches under way at most.
    ``channels``: of each value; empty where an end is the starter."""

    producer: int
    consumer: int
    values: tuple[ValueSpec, ...]
    slots: int = 2
    dynamic_bytes: int = DYNAMIC_BYTES
    channels: tuple[int, ...] = ()

    @property
    def offsets(self) -> tuple[int, ...]:
        """Offset in a slot of the place or area of each value. Values of known size come first."""
        offsets, position = [0] * len(self.values), 0
        for number in sorted(range(len(self.values)), key=lambda n: self.values[n].size is None):
            offsets[number] = position
            position += self.room(number)
        return tuple(offsets)

    def room(self, number: int) -> int:
        """Bytes of the place or area of value ``number``."""
        size = self.values[number].size
        return aligned(self.dynamic_bytes if size is None else size)

    @property
    def slot_bytes(self) -> int:
        return sum(map(self.room, range(len(self.values))))

    @property
    def spare(self) -> int:
        """1 if values of unknown size need a slot to stream through, else 0."""
        return int(any(value.size is None for value in self.values))

    @property
    def ring(self) -> int:
        """Number of slots in memory."""
        return self.slots + self.spare

    @property
    def nbytes(self) -> int:
        """Bytes of the memory."""
        return self.ring * self.slot_bytes

    @property
    def token_bytes(self) -> int:
        """The most bytes of tokens in a pipe at a time: a token for each value of each slot."""
        return self.ring * max(1, len(self.values)) * TOKEN.size

    def to_json(self) -> list[Any]:
        values = [[v.name, v.element, v.shape, v.parts] for v in self.values]
        return [self.producer, self.consumer, values, self.slots, self.dynamic_bytes, self.channels]

    @classmethod
    def from_json(cls, data: list[Any]) -> Edge:
        producer, consumer, values, slots, dynamic, channels = data
        specs = tuple(ValueSpec(n, e, None if s is None else tuple(s), parts) for n, e, s, parts in values)
        return cls(producer, consumer, specs, slots, dynamic, tuple(channels))


def anonymous_memory(size: int) -> int:
    """A file descriptor of ``size`` bytes of memory, all zero, without a name. Raises OSError."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("dnnc", os.MFD_CLOEXEC)
    else:  # a file that is deleted at once has no name either, though it may be on a disk
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, max(size, mmap.PAGESIZE))
    return descriptor


def map_memory(descriptor: int, size: int) -> Array:
    """The memory of a descriptor as bytes; it stays mapped as long as an array refers to it."""
    return np.frombuffer(mmap.mmap(descriptor, max(size, mmap.PAGESIZE)), np.uint8)


def read_memory(descriptor: int, offset: int, size: int) -> bytes:
    """A copy of ``size`` bytes of the memory of a descriptor from ``offset`` on; shorter if the memory ends before."""
    data = bytearray()
    while len(data) < size and (piece := os.pread(descriptor, size - len(data), offset + len(data))):
        data += piece
    return bytes(data)


def write_memory(descriptor: int, pieces: Iterable[bytes]) -> None:
    """Writes the pieces one after another to the start of the memory of a descriptor. Raises OSError."""
    offset = 0
    for piece in pieces:
        start = 0
        while start < len(piece):
            start += os.pwrite(descriptor, piece[start:], offset + start)
        offset += len(piece)


@dataclass(frozen=True, slots=True)
class Descriptors:
    """File descriptors of one end of an edge: the memory, the pipe to read tokens from and the pipe to write them to."""

    memory: int
    read: int
    write: int


class Side:
    """One end of an edge: reads and writes the values of slots. ``count``: values that tokens count, at least 1, since an edge
    without values still tells that a microbatch is there. ``streams``: whether values of unknown size may stream."""

    incoming: bool

    def __init__(self, edge: Edge, descriptors: Descriptors) -> None:
        self.edge = edge
        self.descriptors = descriptors
        self.count = max(1, len(edge.values))
        self.streams = edge.spare > 0
        self._spare = edge.spare
        self._size, self._offsets = edge.slot_bytes, edge.offsets
        self._dynamic = {number for number, value in enumerate(edge.values) if value.size is None}
        self._memory = map_memory(descriptors.memory, edge.nbytes) if self._size else np.empty(0, np.uint8)
        self._views: dict[int, dict[str, Raw]] = {}  # by slot, made at first use: a schedule may ask for a million slots

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

    def read_tokens(self) -> None:
        """Reads tokens of the other end; blocks until there is one. Raises EOFError when its process has ended."""
        raise NotImplementedError

    def close(self) -> None:
        """Drops the references to the memory: while it is mapped, it keeps a file descriptor open."""
        self._memory = np.empty(0, np.uint8)
        self._views.clear()

    def _read(self) -> Iterator[tuple[Any, ...]]:
        data = os.read(self.descriptors.read, _TOKENS)
        if not data:
            raise EOFError
        return TOKEN.iter_unpack(data)

    def _write(self, slot: int, first: int = 0, count: int = 0, more: int = 0) -> None:
        try:
            os.write(self.descriptors.write, TOKEN.pack(slot, first, count, more))
        except BrokenPipeError:
            raise EOFError from None


class Sender(Side):
    """The producer's end."""

    incoming = False

    def __init__(self, edge: Edge, descriptors: Descriptors) -> None:
        super().__init__(edge, descriptors)
        self.free = deque(range(edge.ring))
        self._parts = {value.name: value.parts for value in edge.values}
        self._in_parts = any(parts > 1 for parts in self._parts.values())

    def read_tokens(self) -> None:
        """Takes back slots that the consumer has released. Blocks and raises as ``Side.read_tokens``."""
        self.free += [slot for slot, *_ in self._read()]

    def refill(self) -> None:
        """Takes back slots whose tokens are there already; reading does not block (``Pipeline``). Raises EOFError when the
        consumer's process has ended."""
        with contextlib.suppress(BlockingIOError):
            self.read_tokens()

    @property
    def has_free_slot(self) -> bool:
        """Whether there is a free slot for a microbatch."""
        return len(self.free) > self._spare

    def take(self) -> int:
        """A free slot. There must be one (``has_free_slot``)."""
        return self.free.popleft()

    def send(self, slot: int, first: int, count: int, parts: int = 0) -> None:
        """Hands over ``count`` values of ``slot`` from number ``first`` on, all of known size and written to their places.
        ``parts``: how many of their parts are in use, 0 for all. Raises EOFError when the consumer's process has ended."""
        self._write(slot, first, count, parts if self._in_parts else 0)

    def send_streaming(self, slot: int, first: int, count: int, values: Mapping[str, Any]) -> Iterator[None]:
        """As ``send``, for values of unknown size too: copies these from ``values``. Yields while it needs a free slot; the
        caller then reads tokens and goes on."""
        begin, end = first, first + count
        for number in range(first, end):
            if number in self._dynamic:
                if begin < number:
                    self._write(slot, begin, number - begin)
                yield from self._stream(slot, number, values[self.edge.values[number].name])
                begin = number + 1
        if begin < end:
            self._write(slot, begin, end - begin)

    def _stream(self, slot: int, number: int, value: Any) -> Iterator[None]:
        """Hands over value ``number``: its length and its bytes, through as many slots as needed. Yields as
        ``send_streaming``."""
        pieces = encode({"": value})
        area, used = self.area(slot, number), ALIGNMENT
        area[: LENGTH.size] = np.frombuffer(LENGTH.pack(sum(piece.nbytes for piece in pieces)), np.uint8)
        for piece in pieces:
            start = 0
            while start < piece.nbytes:
                if used == area.size:
                    self._write(slot, number, 1, 1)
                    while not self.free:
                        yield
                    slot = self.free.popleft()
                    area, used = self.area(slot, number), 0
                length = min(piece.nbytes - start, area.size - used)
                area[used : used + length] = np.frombuffer(piece[start : start + length], np.uint8)
                start, used = start + length, used + length
        self._write(slot, number, 1)

    def send_microbatch(self, values: Mapping[str, Any]) -> Iterator[None]:
        """Copies all values of a microbatch into a slot and hands them over; of a value in parts there may be the first ones,
        of all the same number. Yields as ``send_streaming``."""
        while not self.has_free_slot:
            yield
        slot = self.take()
        parts = self._fill(slot, {name: values[name].data for name in self.views(slot)})
        if self.streams:
            yield from self.send_streaming(slot, 0, self.count, values)
        else:
            self.send(slot, 0, self.count, parts)

    def send_at_once(self, values: Mapping[str, Array]) -> bool:
        """Sends a microbatch of arrays as ``send_microbatch`` does, if a slot is free and no value streams; returns whether it
        did. Raises EOFError when the consumer's process has ended."""
        if not self.free:
            self.refill()
        if self.streams or not self.free:
            return False
        slot = self.take()
        self.send(slot, 0, self.count, self._fill(slot, values))
        return True

    def _fill(self, slot: int, values: Mapping[str, Array]) -> int:
        """Copies arrays to their places in a slot. Returns how many of their parts there are, 0 for all."""
        parts = 0
        for name, view in self.views(slot).items():
            place, data = view.data, values[name]
            if data.size == place.size:
                place[...] = data if data.shape == place.shape else data.reshape(place.shape)
            else:
                parts = data.size * self._parts[name] // place.size
                place.reshape(-1)[: data.size] = data.reshape(-1)
        return parts


@dataclass(slots=True)
class _PartialValue:
    """A value that arrives in pieces. ``slot``: that of its first piece; ``total``: its bytes; ``data``: those that have
    arrived, so that no memory is taken for what a sender only states."""

    slot: int
    total: int
    data: bytearray = field(default_factory=bytearray)

    def append(self, piece: Array) -> None:
        self.data += piece[: self.total - len(self.data)].data


class Receiver(Side):
    """The consumer's end. ``arrived``: for each value, the slots that hold it and were not taken yet, in order of
    microbatch."""

    incoming = True

    def __init__(self, edge: Edge, descriptors: Descriptors) -> None:
        super().__init__(edge, descriptors)
        self.arrived: list[deque[int]] = [deque() for _ in range(self.count)]
        self._values: dict[int, dict[str, Any]] = defaultdict(dict)  # those of unknown size, by slot
        self._partial: _PartialValue | None = None

    def read_tokens(self) -> None:
        """Adds values to ``arrived``. Blocks and raises as ``Side.read_tokens``, and ValueError for a value of unknown size
        whose bytes are none that ``codec`` has encoded."""
        for slot, first, count, more in self._read():
            if first in self._dynamic:
                self._add_piece(slot, first, more)
            else:
                for number in range(first, first + count):
                    self.arrived[number].append(slot)

    def _add_piece(self, slot: int, number: int, more: int) -> None:
        """Takes value ``number``, of unknown size, or a piece of it from ``slot``. ``more``: whether pieces follow. Releases
        the slots of all pieces but the first, which is the slot of the microbatch."""
        area, partial = self.area(slot, number), self._partial
        if partial is not None:
            partial.append(area)
            self._write(slot)
            if not more:
                self._partial = None
                if len(partial.data) != partial.total:
                    raise ValueError(f"{len(partial.data)} bytes of a value of {partial.total}")
                self._add_value(partial.slot, number, np.frombuffer(partial.data, np.uint8))
        elif more:
            (total,) = LENGTH.unpack(area[: LENGTH.size].tobytes())
            if total > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
                raise ValueError(f"a value of {total} bytes, which this machine has no memory for")
            self._partial = _PartialValue(slot, total)
            self._partial.append(area[ALIGNMENT:])
        else:
            self._add_value(slot, number, area[ALIGNMENT:])

    def _add_value(self, slot: int, number: int, data: Array) -> None:
        self._values[slot][self.edge.values[number].name] = decode(data)[""]
        self.arrived[number].append(slot)

    @property
    def complete(self) -> bool:
        """Whether all values of the next microbatch have arrived."""
        return all(self.arrived)

    def take(self) -> int:
        """The slot of the next microbatch, which must be ``complete``."""
        slots = [arrived.popleft() for arrived in self.arrived]
        return slots[0]

    def values(self, slot: int) -> dict[str, Any]:
        """The values in ``slot`` by name, once all have arrived: views that are valid until ``release``."""
        return {**self.views(slot), **self._values[slot]} if self.streams else self.views(slot)

    def release(self, slot: int) -> None:
        """Lets the sender fill the slot again. Raises EOFError when its process has ended."""
        if self.streams:
            self._values.pop(slot, None)
        self._write(slot)

    def close(self) -> None:
        super().close()
        self._partial = None
        self._values.clear()


def config_text(data: Mapping[str, Any]) -> bytes:
    """``data`` as one line of JSON."""
    return json.dumps(data).encode() + b"\n"
