"""Streams of bytes between two relays: from a descriptor that is read on one host to one that is written on the other.

All is done in the thread of the relay, which never waits: what a descriptor does not take yet is kept. A stream may be received
before it is opened here, since both sides open it by themselves; its bytes are kept until then.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import zmq

from dnnc.engines.cluster.network.loop import Loop
from dnnc.engines.cluster.network.slots import Unfit

PIECE = 1 << 16
"""Bytes of a stream that are sent at once."""
_EARLY_BYTES, _EARLY_MESSAGE = 1 << 24, 256
"""Bytes that may come of streams of a peer before they are opened here, and what each message counts beside its own."""
_WAITING_BYTES = 1 << 30
"""Bytes of a stream that may wait for who reads it here."""


@dataclass(slots=True)
class Stream:
    """Read from the descriptor ``read`` and sent to ``peer``, or received from there and written to ``write``. ``last``: where
    more bytes than these wait to be written, the older ones are dropped; 0 to keep all. ``pending``: what was received and not
    written yet, ``waiting`` bytes."""

    peer: str
    read: int = -1
    write: int = -1
    last: int = 0
    waiting: int = 0
    pending: deque[bytes] = field(default_factory=deque)

    def add(self, data: bytes) -> int:
        """Adds what was received; returns how many bytes wait."""
        self.pending.append(data)
        self.waiting += len(data)
        while self.last and self.waiting > self.last and len(self.pending) > 1:
            self.waiting -= len(self.pending.popleft())
        return self.waiting


class Streams:
    """The streams of a relay by their numbers. ``send``: sends a peer a piece of a stream; an empty piece is its end."""

    def __init__(self, loop: Loop, send: Callable[[str, int, bytes], None]) -> None:
        self._loop = loop
        self._send = send
        self._open: dict[int, Stream] = {}
        self._early: dict[tuple[str, int], list[bytes]] = {}
        self._ended: set[int] = set()

    def add(self, number: int, stream: Stream) -> None:
        """Opens a stream."""
        self._open[number] = stream
        for data in self._early.pop((stream.peer, number), ()):
            stream.add(data)
        if stream.read >= 0:
            self._loop.handle(stream.read, lambda: self._read(number))
        if stream.pending:
            self._write(number)

    def has_ended(self, number: int) -> bool:
        return number in self._ended

    def receive(self, sender: str, number: int, data: bytes, follows: Callable[[], bool]) -> None:
        """Takes a piece of a stream that has not ended. ``follows``: counts it, and says whether no piece of the stream was
        lost before it; the stream ends where one was. Raises Unfit for a piece that ``sender`` cannot have been asked for."""
        stream = self._open.get(number)
        if stream is not None and stream.peer != sender:
            raise Unfit(f"a message of stream {number}, which is between others")
        if not follows():
            self.end(number)
        elif stream is not None:
            if stream.add(data) > _WAITING_BYTES:
                raise Unfit(f"more than {_WAITING_BYTES} bytes that nobody has read yet")
            self._write(number)
        else:  # it is sent before it is received here
            early = [len(text) for (peer, _), texts in self._early.items() if peer == sender for text in texts]
            if sum(early) + _EARLY_MESSAGE * len(early) > _EARLY_BYTES:
                raise Unfit(f"more than {_EARLY_BYTES} bytes of streams that are not open yet")
            self._early.setdefault((sender, number), []).append(data)

    def end(self, number: int) -> None:
        """Ends a stream, if it is open: whoever reads its descriptor gets the end of file."""
        stream = self._open.pop(number, None)
        self._ended.add(number)
        if stream is not None:
            for descriptor in (stream.read, stream.write):
                if descriptor >= 0:
                    self._loop.forget(descriptor)
                    os.close(descriptor)

    def _read(self, number: int) -> None:
        stream = self._open[number]
        data = os.read(stream.read, PIECE)
        self._send(stream.peer, number, data)
        if not data:
            self.end(number)

    def _write(self, number: int) -> None:
        """Writes what there is room for; an empty piece is the end."""
        stream = self._open[number]
        while stream.pending:
            data = stream.pending[0]
            try:
                written = os.write(stream.write, data) if data else 0
            except BlockingIOError:
                if not self._loop.handles(stream.write):
                    self._loop.handle(stream.write, lambda: self._write(number), zmq.POLLOUT)
                return
            except BrokenPipeError:
                data = b""
            if not data:
                self.end(number)
                return
            stream.pending[0] = data[written:]
            stream.waiting -= written
            if not stream.pending[0]:
                stream.pending.popleft()
        self._loop.forget(stream.write)
