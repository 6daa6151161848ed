"""Edges: how one process hands the tensors of a microbatch to another, without copying them twice.

An edge joins two processes (a stage, or ``FEEDER``: the process that started the run) and carries all tensors that go from
one to the other. Its memory is a ring of *slots*, anonymous (it has no name, so it is gone as soon as the last process that
maps it is). Two pipes carry tokens: ``data`` says which slot was filled, ``free`` which one may be filled again. A sender
that finds no free slot waits: that is the back-pressure.

A slot holds each tensor of known size at a fixed, aligned offset, so that ONNX Runtime can read and write in place, then one
area for the rest (``codec``). A message that is larger than the area streams through further slots, so any size works.

Invariants: at least two slots; a token is two bytes (slot, whether more follows), which a pipe writes and reads whole; a slot
belongs to exactly one side at a time; edges are used in the order (producer, consumer) within a microbatch by each process, so
that processes waiting for each other's large messages never form a circle.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dnnc.program.elements import BY_NUMBER, Array, nbytes
from dnnc.runtime.codec import ALIGNMENT, Raw, aligned, decode, encode, raw_view

FEEDER = -1
"""The process that started the run: it feeds the model's inputs and collects its outputs."""
DYNAMIC_BYTES = 1 << 22
"""Size of a slot's area for values of unknown size. Memory is only taken for what is touched."""
_TOKEN = struct.Struct("BB")
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
    """All that goes from ``producer`` to ``consumer``, in ``slots`` slots."""

    producer: int
    consumer: int
    values: tuple[ValueSpec, ...]
    slots: int = 2
    dynamic_bytes: int = DYNAMIC_BYTES

    @property
    def offsets(self) -> dict[str, int]:
        """Offset in a slot of each value of known size."""
        offsets, position = {}, 0
        for value in self.values:
            if value.size is not None:
                offsets[value.name] = position
                position += aligned(value.size)
        return offsets

    @property
    def static_bytes(self) -> int:
        return sum(aligned(value.size) for value in self.values if value.size is not None)

    @property
    def has_dynamic(self) -> bool:
        return any(value.size is None for value in self.values)

    @property
    def slot_bytes(self) -> int:
        return self.static_bytes + (aligned(self.dynamic_bytes) if self.has_dynamic else 0)

    def to_json(self) -> list[Any]:
        values = [[v.name, v.element, v.shape] for v in self.values]
        return [self.producer, self.consumer, values, self.slots, self.dynamic_bytes]

    @classmethod
    def from_json(cls, data: list[Any]) -> Edge:
        producer, consumer, values, slots, dynamic = data
        specs = tuple(ValueSpec(n, e, None if s is None else tuple(s)) for n, e, s in values)
        return cls(producer, consumer, specs, slots, dynamic)


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

    def __init__(self, edge: Edge, descriptors: Descriptors) -> None:
        self.edge = edge
        self.descriptors = descriptors
        self._size, self._fixed = edge.slot_bytes, edge.static_bytes
        self._dynamic = tuple(value.name for value in edge.values if value.size is None)
        self._memory = map_memory(descriptors.memory, edge.slots * self._size) if self._size else np.empty(0, np.uint8)
        self._views = [self._views_of(slot) for slot in range(edge.slots)]

    def _views_of(self, slot: int) -> dict[str, Raw]:
        offsets, start, views = self.edge.offsets, slot * self._size, {}
        for spec in self.edge.values:
            if spec.shape is not None and spec.size is not None:
                first = start + offsets[spec.name]
                views[spec.name] = raw_view(spec.element, spec.shape, self._memory[first : first + spec.size])
        return views

    def views(self, slot: int) -> dict[str, Raw]:
        """The tensors of known size in ``slot``, in place."""
        return self._views[slot]

    def area(self, slot: int) -> Array:
        """The area of ``slot`` for values of unknown size."""
        return self._memory[slot * self._size + self._fixed : (slot + 1) * self._size]

    def close(self) -> None:
        """Lets go of the memory (a mapping holds a descriptor as long as it lives)."""
        self._memory = np.empty(0, np.uint8)
        self._views.clear()

    def _tokens(self) -> list[tuple[int, int]]:
        """Reads what tokens there are, at least one (blocks for it). Raises EOFError when the other side has gone."""
        data = os.read(self.descriptors.read, 64)
        if not data:
            raise EOFError
        return list(_TOKEN.iter_unpack(data))

    def _put(self, slot: int, more: int = 0) -> None:
        try:
            os.write(self.descriptors.write, _TOKEN.pack(slot, more))
        except BrokenPipeError:
            raise EOFError from None


class Sender(Side):
    """The producer's end."""

    def __init__(self, edge: Edge, descriptors: Descriptors) -> None:
        super().__init__(edge, descriptors)
        self.free = list(range(edge.slots))

    def wait(self) -> None:
        """Takes back slots that the consumer has done with; blocks until there is one. Raises EOFError."""
        self.free += [slot for slot, _ in self._tokens()]

    def acquire(self) -> int:
        """A free slot; blocks until there is one. Raises EOFError."""
        while not self.free:
            self.wait()
        return self.free.pop(0)

    def send(self, slot: int, dynamic: Mapping[str, Any]) -> None:
        """Hands over ``slot``, whose tensors of known size are in place, with the other values. Blocks when they need more
        slots."""
        for _ in self.sending(slot, dynamic):
            self.wait()

    def sending(self, slot: int, dynamic: Mapping[str, Any]) -> Iterator[None]:
        """As ``send``, yielding each time it needs a free slot."""
        if not self._dynamic:
            self._put(slot)
            return
        pieces = encode(dynamic)
        total = sum(piece.nbytes for piece in pieces)
        area, used = self.area(slot), ALIGNMENT
        area[: _LENGTH.size] = np.frombuffer(_LENGTH.pack(total), np.uint8)
        for piece in pieces:
            start = 0
            while start < piece.nbytes:
                if used == area.size:
                    self._put(slot, 1)
                    while not self.free:
                        yield
                    slot = self.free.pop(0)
                    area, used = self.area(slot), 0
                count = min(piece.nbytes - start, area.size - used)
                area[used : used + count] = np.frombuffer(piece[start : start + count], np.uint8)
                start, used = start + count, used + count
        self._put(slot)

    def feeding(self, values: Mapping[str, Any]) -> Iterator[None]:
        """Sends a whole microbatch by copying it, yielding each time a free slot is needed."""
        while not self.free:
            yield
        slot = self.free.pop(0)
        for name, view in self.views(slot).items():
            np.copyto(view.data, values[name].data.reshape(view.data.shape))
        yield from self.sending(slot, {name: values[name] for name in self._dynamic})


@dataclass(slots=True)
class Received:
    """A microbatch's values on one edge: views that are valid until ``slot`` is released."""

    slot: int
    values: dict[str, Any] = field(default_factory=dict)


class Receiver(Side):
    """The consumer's end."""

    def __init__(self, edge: Edge, descriptors: Descriptors) -> None:
        super().__init__(edge, descriptors)
        self._queue: list[tuple[int, int]] = []
        self._first = 0
        self._buffer: Array | None = None
        self._filled = 0

    def receive(self) -> Received:
        """The next microbatch; blocks for it. Raises EOFError when the sender has gone."""
        while True:
            message = self.poll()
            if message is not None:
                return message
            self.read_tokens()

    def read_tokens(self) -> None:
        """Reads tokens into the queue; blocks for one. Raises EOFError."""
        self._queue += self._tokens()

    def poll(self) -> Received | None:
        """The next microbatch when the tokens read so far complete one."""
        while self._queue:
            slot, more = self._queue.pop(0)
            if self._buffer is not None:
                self._append(self.area(slot))
                self._put(slot)
                if not more:
                    dynamic, self._buffer = decode(self._buffer), None
                    return self._message(self._first, dynamic)
            elif more:
                (total,) = _LENGTH.unpack(self.area(slot)[: _LENGTH.size].tobytes())
                self._first, self._buffer, self._filled = slot, np.empty(total, np.uint8), 0
                self._append(self.area(slot)[ALIGNMENT:])
            else:
                return self._message(slot, decode(self.area(slot)[ALIGNMENT:]) if self._dynamic else {})
        return None

    def release(self, message: Received) -> None:
        """Lets the sender fill the slot again. Raises EOFError when it has gone."""
        self._put(message.slot)

    def close(self) -> None:
        super().close()
        self._buffer = None

    def _append(self, chunk: Array) -> None:
        assert self._buffer is not None
        count = min(chunk.size, self._buffer.size - self._filled)
        self._buffer[self._filled : self._filled + count] = chunk[:count]
        self._filled += count

    def _message(self, slot: int, dynamic: dict[str, Any]) -> Received:
        return Received(slot, {**self.views(slot), **dynamic})


def config_text(data: Mapping[str, Any]) -> bytes:
    """One line of JSON."""
    return json.dumps(data).encode() + b"\n"
