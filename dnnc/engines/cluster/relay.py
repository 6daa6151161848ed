"""Carries slots and tokens of edges, and streams of bytes, between this process and others on the network.

Each process of a run has one ``Relay``, a thread with one port. An end of an edge is that of shared memory
(``dnnc.engines.onnxruntime.transport.edges``): memory with a ring of slots, and two pipes for tokens. Both hosts have such
memory; where a process of the same host would read a token, the relay reads it and sends it on, together with the values that
it hands over, and the relay of the other host receives these into the same slot of its own memory and passes the token on. So a
device's process does not see a difference, and slots are the credit: no more microbatches are under way than there are slots.

Messages go one way, from a socket that connects (PUSH) to the one socket of the other process that is bound (PULL). A message
is a header, and a frame for each value or piece of a stream.

Who may connect: each relay makes a pair of keys of its own (CURVE, Curve25519); secret keys never leave the process. ``meet``
tells a relay where the others are and their public keys. What connects without the secret key of one of these is refused during
the handshake, before any message; everything that is sent is encrypted.

Invariants:
1. one thread uses all sockets; other threads talk to it by pipes and a queue;
2. the thread never waits for a pipe: pipes of tokens hold all tokens that can be under way, streams are kept until there is
   room;
3. bytes of a slot are not touched between the token that hands them over and the token that gives the slot back, so they are
   sent without a copy, and received in place;
4. when a peer is gone, every end and stream that leads to it ends here: who reads it gets the end of file;
5. when the thread ends, by an error too, all peers are gone: ends and streams that are opened later end at once;
6. messages of a link or stream are numbered: one that follows a message that was lost ends it, since ZeroMQ connects again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import struct
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from dnnc.engines.cluster.faults import NoFreePort
from dnnc.engines.cluster.options import PORTS
from dnnc.engines.onnxruntime.faults import NoPipe
from dnnc.engines.onnxruntime.transport.codec import ALIGNMENT
from dnnc.engines.onnxruntime.transport.edges import (
    LENGTH,
    TOKEN,
    Descriptors,
    Edge,
    Receiver,
    Sender,
    anonymous_memory,
    map_memory,
)
from dnnc.onnx.elements import Array
from ir.core.diagnostics import InvalidInput

CONNECT_SECONDS = 30.0
"""How long a process tries to reach the others of its run."""
HEARTBEAT_SECONDS, SILENT_SECONDS = 5.0, 60.0
"""How often a connection is tried when nothing is sent, and after how long without an answer the peer counts as gone."""
_DATA, _FREE, _TEXT, _PIECE = range(4)
"""Kinds of messages: values of a slot, a slot that is free again, bytes of a stream, a piece of a value."""
_HEADER = struct.Struct("<IIIIIII")
"""Kind, number of the link or stream, how many messages of it went before (modulo 2^32), and four words: the token; of a piece
its slot, the number of its value and its own number."""
_WORD = (1 << 32) - 1
PIECE = 1 << 21
"""Bytes of a value that are sent at once. A larger value goes in pieces, the last one with the token: each is encrypted while
the one before it is under way (16 MB at 1 Gbit/s: 0.99 of the pace of a plain socket; 0.84 at once)."""
_TEXT_BYTES = 1 << 16
_AT_ONCE = 64
"""Messages that are received before pipes get a turn."""
_DOMAIN = b"dnnc"
_Side = TypeVar("_Side", Sender, Receiver)
_WATCHED = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


@dataclass(slots=True)
class _Peer:
    """A process that this one sends to. ``ends``: what to call when it has gone."""

    endpoint: str
    socket: Any
    monitor: Any
    connected: bool = False
    ends: list[Callable[[], None]] = field(default_factory=list)


@dataclass(slots=True)
class _Slots:
    """The relay's side of an end of an edge: the same memory, and the far ends of its pipes. ``left``: bytes of the value that
    streams out just now which are still to be sent; ``begun``: by slot and number, bytes of a value that came in pieces."""

    edge: Edge
    memory: Array
    read: int
    write: int
    left: int = 0
    begun: dict[tuple[int, int], int] = field(default_factory=dict)

    def place(self, slot: int, number: int) -> tuple[int, int]:
        """Where the place of a value begins and its bytes."""
        size = self.edge.values[number].size
        first = slot * self.edge.slot_bytes + self.edge.offsets[number]
        return first, self.edge.room(number) if size is None else size

    def outgoing(self, slot: int, number: int, more: int) -> Array:
        """The bytes of a value, or of a piece of it, that are to be sent."""
        first, size = self.place(slot, number)
        if self.edge.values[number].size is None:
            if not self.left:
                (total,) = LENGTH.unpack(self.memory[first : first + LENGTH.size].tobytes())
                self.left = ALIGNMENT + total
            size = min(size, self.left)
            self.left = self.left - size if more else 0
        return self.memory[first : first + size]

    def incoming(self, slot: int, number: int) -> Array:
        """Where a value, or a piece of it, is received."""
        first, size = self.place(slot, number)
        return self.memory[first : first + size]

    def numbers(self, first: int, count: int) -> range:
        """The values that a token counts; an edge without values counts one that is none."""
        return range(first, min(first + count, len(self.edge.values)))


class Relay:
    """``address``: of this host, to listen on; ``ports``: first and last of those to choose from. Raises InvalidInput where
    none is free."""

    def __init__(self, address: str, ports: tuple[int, int] = PORTS) -> None:
        self._context = zmq.Context()
        self._peers: dict[str, _Peer] = {}
        self._allowed: set[bytes] = set()
        self._awaited: dict[bytes, tuple[str, str, bytes]] = {}  # by key, whom to connect to when it has connected
        self._slots: dict[int, _Slots] = {}
        self._streams: dict[int, _Text] = {}
        self._early: dict[int, list[bytes]] = {}
        self._ended: set[int] = set()
        self._handlers: dict[Any, Callable[[int], None]] = {}
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._meeting: tuple[set[str], threading.Event] | None = None
        self._own: list[int] = []
        self._sent: Counter[tuple[bool, int]] = Counter()  # messages of each stream (True) and link (False)
        self._received: Counter[tuple[bool, int]] = Counter()
        self._closed = False
        self._over = False  # whether the thread has ended all; it and jobs of other threads then hold the gate
        self._gate = threading.Lock()
        self.lost: set[str] = set()
        public, self._secret = zmq.curve_keypair()
        self._public, self.key = public, public.decode()
        self._poller = zmq.Poller()
        try:
            self._guard = self._context.socket(zmq.REP)
            self._guard.bind("inproc://zeromq.zap.01")  # where libzmq asks whether a key may connect
            self._inbox = self._socket(zmq.PULL, f"{address}:")
            self._inbox.curve_server = True
            self._inbox.zap_domain = _DOMAIN
            self.endpoint = _bind(self._inbox, address, ports)
            self._wakeup, self._waker = os.pipe()
        except BaseException:
            self._context.destroy(linger=0)
            raise
        os.set_blocking(self._wakeup, False)
        os.set_blocking(self._waker, False)
        self._handle(self._wakeup, self._woken)
        self._handle(self._inbox, self._receive)
        self._thread = threading.Thread(target=self._serve, name="dnnc-relay", daemon=True)
        self._thread.start()

    @property
    def offer(self) -> tuple[str, str]:
        """What others are told to ``meet`` this process: its endpoint and its public key."""
        return self.endpoint, self.key

    def admit(self, offers: Iterable[Sequence[str]]) -> None:
        """Lets in processes that offer these: before they are told of this one, which they would ask once and in vain."""
        keys = {z85.decode(key) for _, key in offers}
        self._do(lambda: self._allowed.update(keys))

    def meet(self, peers: Mapping[str, Sequence[str]], seconds: float = CONNECT_SECONDS, *, called: bool = False) -> None:
        """Admits processes and connects to them: by name, what they ``offer``. ``called``: once they have connected to this
        one, since they do not know its key yet. Raises ConnectionError that names the endpoints of those that were not reached
        in time."""
        done = threading.Event()

        def begin() -> None:
            if self._over:
                done.set()
                return
            self._meeting = set(peers), done
            for name, (endpoint, key) in peers.items():
                self._allowed.add(z85.decode(key))
                if called:
                    self._awaited[z85.decode(key)] = name, endpoint, key.encode()
                else:
                    self._connect(name, endpoint, key.encode())
            if self._guard not in self._handlers:
                self._handle(self._guard, self._admit)  # until now, who asked was left waiting
            self._note_met()

        self._do(begin)
        if not done.wait(seconds) or self._over:
            met = {name for name, peer in self._peers.items() if peer.connected and name not in self.lost}
            missing = [endpoint for name, (endpoint, _) in peers.items() if name not in met]
            raise ConnectionError(", ".join(sorted(missing)))

    def sender(self, link: int, edge: Edge, peer: str) -> Sender:
        """The end of a link that this process writes and ``peer``, which was met, reads. Both know the link by its number."""
        return self._side(Sender, link, edge, peer)

    def receiver(self, link: int, edge: Edge, peer: str) -> Receiver:
        """The end of a link that ``peer`` writes and this process reads."""
        return self._side(Receiver, link, edge, peer)

    def send_stream(self, number: int, peer: str, descriptor: int) -> None:
        """Sends to ``peer`` what can be read from a descriptor, until its end, which the other side then has too. The relay
        closes the descriptor. Streams are numbered alike at both sides."""
        self._do(lambda: self._add_stream(number, _Text(peer, read=descriptor)))

    def receive_stream(self, number: int, peer: str, descriptor: int) -> None:
        """Writes what ``peer`` sends by a stream to a descriptor, and closes it at the end."""
        os.set_blocking(descriptor, False)
        self._do(lambda: self._add_stream(number, _Text(peer, write=descriptor)))

    def close(self) -> None:
        """Ends the thread and closes the port and every descriptor of the relay; may be called again. What was not sent yet is
        dropped."""
        if self._closed:
            return
        self._closed = True
        self._jobs.put(None)
        with contextlib.suppress(BlockingIOError):
            os.write(self._waker, b"\0")
        self._thread.join()
        for descriptor in (self._wakeup, self._waker, *self._own):
            os.close(descriptor)

    # Made by other threads

    def _side(self, kind: type[_Side], link: int, edge: Edge, peer: str) -> _Side:
        """An end of an edge; the relay has the same memory and the other halves of its pipes."""
        memory = anonymous_memory(edge.nbytes)
        (here_in, relay_out), (relay_in, here_out) = (_pipe(edge.token_bytes) for _ in range(2))
        os.set_blocking(relay_out, False)
        self._own += (here_in, here_out)
        side = kind(edge, Descriptors(memory, here_in, here_out))
        slots = _Slots(edge, map_memory(memory, edge.nbytes), relay_in, relay_out)
        os.close(memory)
        forward = self._send_free if side.incoming else self._send_values

        def begin() -> None:
            self._slots[link] = slots
            self._handle(slots.read, lambda _: forward(peer, link))
            self._ends_with(peer, lambda: self._end_slots(link))

        self._do(begin)
        return side

    def _do(self, job: Callable[[], None]) -> None:
        """Lets the relay's thread do something; does it here where the thread has ended."""
        with self._gate:
            if self._over:
                job()
                return
            self._jobs.put(job)
            with contextlib.suppress(BlockingIOError):  # the pipe is full of such calls
                os.write(self._waker, b"\0")

    # The thread of the relay

    def _serve(self) -> None:
        try:
            while True:
                for key, event in self._poller.poll():
                    if (handler := self._handlers.get(key)) is not None:
                        handler(event)
        except _Closing:
            pass
        finally:
            with self._gate:
                self._end_all()

    def _end_all(self) -> None:
        self._over = True
        for peer in self._peers.values():
            self._lose(peer)
        if self._meeting is not None:
            self._meeting[1].set()
        while not self._jobs.empty():
            if (job := self._jobs.get()) is not None:
                job()
        self._context.destroy(linger=0)

    def _handle(self, what: Any, handler: Callable[[int], None], event: int = zmq.POLLIN) -> None:
        self._handlers[what] = handler
        self._poller.register(what, event)

    def _forget(self, what: Any) -> None:
        if self._handlers.pop(what, None) is not None:
            self._poller.unregister(what)

    def _woken(self, event: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wakeup, 1 << 10)
        with contextlib.suppress(Empty):
            while True:
                job = self._jobs.get_nowait()
                if job is None:
                    raise _Closing
                job()

    def _socket(self, kind: int, address: str) -> Any:
        """A socket with the keys of this process, that keeps all that is given to it: slots bound how much that is."""
        socket = self._context.socket(kind)
        socket.linger, socket.sndhwm, socket.rcvhwm, socket.ipv6 = (
            0,
            0,
            0,
            ":" in address.rpartition("//")[2].rpartition(":")[0],
        )
        socket.heartbeat_ivl, socket.heartbeat_timeout = int(1e3 * HEARTBEAT_SECONDS), int(1e3 * SILENT_SECONDS)
        socket.curve_publickey, socket.curve_secretkey = self._public, self._secret
        return socket

    def _connect(self, name: str, endpoint: str, key: bytes) -> None:
        socket = self._socket(zmq.PUSH, endpoint)
        socket.curve_serverkey = key
        monitor = socket.get_monitor_socket(_WATCHED)
        self._peers[name] = peer = _Peer(endpoint, socket, monitor)
        self._handle(monitor, lambda _: self._watch(peer))
        socket.connect(endpoint)

    def _watch(self, peer: _Peer) -> None:
        """Notes that the connection to a peer stands or has ended."""
        event = recv_monitor_message(peer.monitor)["event"]
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            peer.connected = True
            self._note_met()
        elif event == zmq.EVENT_DISCONNECTED and peer.connected:
            self._lose(peer)

    def _note_met(self) -> None:
        met = {name for name, peer in self._peers.items() if peer.connected}
        if self._meeting is not None and self._meeting[0] <= met:
            self._meeting[1].set()
            self._meeting = None

    def _lose(self, peer: _Peer) -> None:
        """Ends all that leads to a peer that has gone."""
        if peer.socket.closed:
            return
        self._forget(peer.monitor)
        self.lost |= {name for name, other in self._peers.items() if other is peer}
        for end in peer.ends:
            end()
        peer.ends.clear()
        peer.socket.disable_monitor()
        peer.socket.close()

    def _ends_with(self, peer: str, end: Callable[[], None]) -> None:
        if peer in self.lost:
            end()
        else:
            self._peers[peer].ends.append(end)

    def _admit(self, event: int) -> None:
        """Answers libzmq whether the owner of a key may connect (ZAP, RFC 27)."""
        version, request, _, _, _, mechanism, *credentials = self._guard.recv_multipart()
        known = mechanism == b"CURVE" and len(credentials) == 1 and credentials[0] in self._allowed
        status, text = (b"200", b"OK") if known else (b"400", b"the key is not of this run")
        self._guard.send_multipart([version, request, status, text, b"", b""])
        if known and (awaited := self._awaited.pop(credentials[0], None)) is not None:
            self._connect(*awaited)

    # Values

    def _send_values(self, peer: str, link: int) -> None:
        """Sends what the tokens of an outgoing end hand over."""
        slots = self._slots[link]
        for slot, first, count, more in self._tokens(link):
            last = []
            for number in slots.numbers(first, count):
                value = slots.outgoing(slot, number, more)
                whole = max(0, value.nbytes - 1) // PIECE * PIECE
                for begin in range(0, whole, PIECE):
                    self._send(peer, (_PIECE, link, slot, number, begin // PIECE, 0), [value[begin : begin + PIECE]])
                last.append(value[whole:])
            self._send(peer, (_DATA, link, slot, first, count, more), last)

    def _send_free(self, peer: str, link: int) -> None:
        """Sends the tokens of an incoming end: slots that are free again."""
        for slot, first, count, more in self._tokens(link):
            self._send(peer, (_FREE, link, slot, first, count, more))

    def _tokens(self, link: int) -> Iterator[tuple[Any, ...]]:
        data = os.read(self._slots[link].read, _AT_ONCE * TOKEN.size)
        if not data:  # this process has closed its end
            self._end_slots(link)
        return TOKEN.iter_unpack(data)

    def _send(self, peer: str, header: tuple[int, ...], frames: Sequence[Any] = ()) -> None:
        if peer in self.lost:
            return
        to, last = self._peers[peer], len(frames) - 1
        kind, link, *words = header
        before = self._sent[kind == _TEXT, link]
        self._sent[kind == _TEXT, link] += 1
        try:
            to.socket.send(_HEADER.pack(kind, link, before & _WORD, *words), zmq.NOBLOCK | (zmq.SNDMORE if frames else 0))
            for number, frame in enumerate(frames):
                to.socket.send(frame, zmq.NOBLOCK | (zmq.SNDMORE if number < last else 0), copy=False)
        except zmq.Again:  # libzmq has given up the connection
            self._lose(to)

    def _end_slots(self, link: int) -> None:
        slots = self._slots.pop(link, None)
        if slots is not None:
            self._forget(slots.read)
            os.close(slots.read)
            os.close(slots.write)

    def _receive(self, event: int) -> None:
        """Takes messages: values into their slots, tokens to their pipes, text to its descriptor."""
        for _ in range(_AT_ONCE):
            try:
                kind, link, before, slot, first, count, more = _HEADER.unpack(self._inbox.recv(zmq.NOBLOCK))
            except zmq.Again:
                return
            if before != self._received[kind == _TEXT, link] & _WORD:  # the connection had broken
                (self._end_stream if kind == _TEXT else self._end_slots)(link)
            self._received[kind == _TEXT, link] += 1
            if kind == _TEXT:
                self._receive_text(link, self._inbox.recv())
            elif (slots := self._slots.get(link)) is not None:
                if kind == _PIECE:
                    number, begin = first, count * PIECE
                    self._inbox.recv_into(slots.incoming(slot, number)[begin : begin + PIECE].data)
                    slots.begun[slot, number] = begin + PIECE
                    continue
                if kind == _DATA:
                    for number in slots.numbers(first, count):
                        target = slots.incoming(slot, number)[slots.begun.pop((slot, number), 0) :]
                        size = self._inbox.recv_into(target.data)
                        if size > target.nbytes or (size < target.nbytes and slots.edge.values[number].size is not None):
                            raise RuntimeError(f"value {number} of link {link} has {size} bytes, its place {target.nbytes}")
                try:
                    os.write(slots.write, TOKEN.pack(slot, first, count, more))
                except BrokenPipeError:
                    pass
                except BlockingIOError:  # more tokens than there can be
                    self._end_slots(link)
            while self._inbox.rcvmore:  # of a link that has ended
                self._inbox.recv_into(bytearray())

    # Streams

    def _receive_text(self, number: int, data: bytes) -> None:
        stream = self._streams.get(number)
        if stream is not None:
            stream.pending.append(data)
            self._write_stream(number)
        elif number not in self._ended:  # it is sent before it is received here
            self._early.setdefault(number, []).append(data)

    def _add_stream(self, number: int, stream: _Text) -> None:
        self._streams[number] = stream
        stream.pending.extend(self._early.pop(number, ()))
        if stream.read >= 0:
            self._handle(stream.read, lambda _: self._read_stream(number))
        if stream.pending:
            self._write_stream(number)
        self._ends_with(stream.peer, lambda: self._end_stream(number))

    def _read_stream(self, number: int) -> None:
        stream = self._streams[number]
        data = os.read(stream.read, _TEXT_BYTES)
        self._send(stream.peer, (_TEXT, number, 0, 0, 0, 0), [data])
        if not data:
            self._end_stream(number)

    def _write_stream(self, number: int) -> None:
        """Writes what there is room for; an empty piece is the end."""
        stream = self._streams[number]
        while stream.pending:
            data = stream.pending[0]
            try:
                written = os.write(stream.write, data) if data else 0
            except BlockingIOError:
                if stream.write not in self._handlers:
                    self._handle(stream.write, lambda _: self._write_stream(number), zmq.POLLOUT)
                return
            except BrokenPipeError:
                data = b""
            if not data:
                self._end_stream(number)
                return
            stream.pending[0] = data[written:]
            if not stream.pending[0]:
                stream.pending.popleft()
        self._forget(stream.write)

    def _end_stream(self, number: int) -> None:
        stream = self._streams.pop(number, None)
        self._ended.add(number)
        if stream is not None:
            for descriptor in (stream.read, stream.write):
                if descriptor >= 0:
                    self._forget(descriptor)
                    os.close(descriptor)


@dataclass(slots=True)
class _Text:
    """A stream of bytes: read from a descriptor here and sent to ``peer``, or received and written to one. ``pending``: what
    was received and not written yet."""

    peer: str
    read: int = -1
    write: int = -1
    pending: deque[bytes] = field(default_factory=deque)


class _Closing(Exception):
    """The relay was closed."""


def _bind(socket: Any, address: str, ports: tuple[int, int]) -> str:
    """Binds a socket to a free port; returns the endpoint. Raises InvalidInput where there is none."""
    first, last = ports
    host = f"[{address}]" if ":" in address else address
    start, reason = random.randrange(last - first + 1), ""
    for offset in range(last - first + 1):
        endpoint = f"tcp://{host}:{first + (start + offset) % (last - first + 1)}"
        try:
            socket.bind(endpoint)
            return endpoint
        except zmq.ZMQError as error:
            reason = str(error)
            if error.errno != zmq.EADDRINUSE:
                break
    raise InvalidInput(NoFreePort(address, first, last, reason), where=address)


def _pipe(size: int) -> tuple[int, int]:
    """The ends of a pipe that holds ``size`` bytes. Raises InvalidInput where the system gives none so large."""
    read, write = os.pipe()
    try:
        if fcntl.fcntl(write, fcntl.F_GETPIPE_SZ) < size:
            fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, size)
    except (OSError, OverflowError) as error:
        os.close(read)
        os.close(write)
        raise InvalidInput(NoPipe(size, str(error))) from error
    return read, write


__all__ = ["CONNECT_SECONDS", "Relay"]
