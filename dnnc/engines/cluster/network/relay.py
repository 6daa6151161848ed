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
6. messages of a link or stream are numbered: one that follows a message that was lost ends it, since ZeroMQ connects again;
7. a message that fits no link or stream of its sender (``slots``) is not followed: its sender counts as gone, with the reason
   in ``unfit``; no frame is larger than the largest that a relay sends.
"""

from __future__ import annotations

import fcntl
import os
import random
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from dnnc.engines.cluster.network.loop import Loop
from dnnc.engines.cluster.network.slots import Slots, Unfit
from dnnc.engines.cluster.network.streams import PIECE as STREAM_PIECE
from dnnc.engines.cluster.network.streams import Stream, Streams
from dnnc.engines.hosts.faults import NoFreePort
from dnnc.engines.hosts.options import PORTS
from dnnc.engines.onnxruntime.faults import NoPipe
from dnnc.engines.onnxruntime.transport.edges import (
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
HEARTBEAT_SECONDS, SILENT_SECONDS = 5.0, 20.0
"""How often a connection is tried when nothing is sent, and after how long without an answer the peer counts as gone. ZeroMQ
answers by a thread of its own, so a process that computes is not silent."""
_DATA, _FREE, _TEXT, _PIECE = range(4)
"""Kinds of messages: values of a slot, a slot that is free again, bytes of a stream, a piece of a value."""
_HEADER = struct.Struct("<IIIIIII")
"""Kind, number of the link or stream, how many messages of it went before (modulo 2^32), and four words: the token; of a piece
its slot, the number of its value and its own number."""
_WORD = (1 << 32) - 1
PIECE = 1 << 21
"""Bytes of a value that are sent at once. A larger value goes in pieces, the last one with the token: each is encrypted while
the one before it is under way (16 MB at 1 Gbit/s: 0.99 of the pace of a plain socket; 0.84 at once)."""
_OVERHEAD = 256
"""Bytes that encryption adds to a frame, at most."""
_QUEUED = 1000
"""Messages of a peer that ZeroMQ reads ahead of the relay's thread."""
_REFUSALS = 5
"""Connections that the system of a peer refuses, a tenth of a second apart, before the peer counts as gone: it listened when it
told where."""
_AT_ONCE = 64
"""Messages that are received before pipes get a turn."""
_DOMAIN = b"dnnc"
_Side = TypeVar("_Side", Sender, Receiver)
_WATCHED = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


@dataclass(slots=True)
class _Peer:
    """A process that this one sends to. ``refused``: connections that its system refused; ``ends``: what to call when it has
    gone."""

    endpoint: str
    socket: Any
    monitor: Any
    connected: bool = False
    refused: int = 0
    ends: list[Callable[[], None]] = field(default_factory=list)


class Relay:
    """``address``: of this host, to listen on; ``ports``: first and last of those to choose from. ``unfit``: of each peer that
    sent what it cannot have meant, that in words; ``told`` is called with both, by the relay's thread. Raises InvalidInput
    where no port is free."""

    def __init__(
        self,
        address: str,
        ports: tuple[int, int] = PORTS,
        told: Callable[[str, str], None] = lambda peer, words: None,
    ) -> None:
        self.unfit: dict[str, str] = {}
        self._told = told
        self._loop = Loop(self._end_all)
        self._streams = Streams(self._loop, lambda peer, number, data: self._send(peer, (_TEXT, number, 0, 0, 0, 0), [data]))
        self._names: dict[str, str] = {}  # of peers, by their public keys
        self._context = zmq.Context()
        self._peers: dict[str, _Peer] = {}
        self._allowed: set[bytes] = set()
        self._awaited: dict[bytes, tuple[str, str, bytes]] = {}  # by key, whom to connect to when it has connected
        self._slots: dict[int, Slots] = {}
        self._meeting: tuple[set[str], threading.Event] | None = None
        self._met = False  # whether the last meeting ended with everybody met
        self._own: list[int] = []
        self._sent: Counter[tuple[bool, int]] = Counter()  # messages of each stream (True) and link (False)
        self._received: Counter[tuple[bool, int]] = Counter()
        self.lost: set[str] = set()
        public, self._secret = zmq.curve_keypair()
        self._public, self.key = public, public.decode()
        try:
            self._guard = self._context.socket(zmq.REP)
            self._guard.bind("inproc://zeromq.zap.01")  # where libzmq asks whether a key may connect
            self._inbox = self._socket(zmq.PULL, f"{address}:")
            self._inbox.curve_server = True
            self._inbox.rcvhwm, self._inbox.maxmsgsize = _QUEUED, max(PIECE, STREAM_PIECE) + _OVERHEAD
            self._inbox.zap_domain = _DOMAIN
            self.endpoint = _bind(self._inbox, address, ports)
        except BaseException:
            self._loop.close()
            self._context.destroy(linger=0)
            raise
        self._loop.handle(self._inbox, self._receive)
        self._loop.start()

    @property
    def offer(self) -> tuple[str, str]:
        """What others are told to ``meet`` this process: its endpoint and its public key."""
        return self.endpoint, self.key

    def admit(self, peers: Mapping[str, Sequence[str]]) -> None:
        """Lets in processes, by name what they ``offer``, before they are told of this one, which they would ask once and in
        vain."""
        names = {key: name for name, (_, key) in peers.items()}
        keys = set(map(z85.decode, names))

        def begin() -> None:
            self._names |= names
            self._allowed |= keys

        self._loop.do(begin)

    def meet(self, peers: Mapping[str, Sequence[str]], seconds: float = CONNECT_SECONDS, *, called: bool = False) -> None:
        """Admits processes and connects to them: by name, what they ``offer``. ``called``: once they have connected to this
        one, since they do not know its key yet. Raises ConnectionError that names the endpoints of those that were not reached
        in time, or whose system says that nobody listens there any more."""
        done = threading.Event()
        self.admit(peers)

        def begin() -> None:
            if self._loop.over:
                done.set()
                return
            self._meeting, self._met = (set(peers), done), False
            for name, (endpoint, key) in peers.items():
                if called:
                    self._awaited[z85.decode(key)] = name, endpoint, key.encode()
                else:
                    self._connect(name, endpoint, key.encode())
            if not self._loop.handles(self._guard):
                self._loop.handle(self._guard, self._admit)  # until now, who asked was left waiting
            self._note_met()

        self._loop.do(begin)
        if not done.wait(seconds) or self._loop.over or not self._met:
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
        self._loop.do(lambda: self._add_stream(number, Stream(peer, read=descriptor)))

    def receive_stream(self, number: int, peer: str, descriptor: int, *, last: int = 0) -> None:
        """Writes what ``peer`` sends by a stream to a descriptor, and closes it at the end. ``last``: where more bytes than
        these wait for who reads the descriptor, the older ones are dropped; 0 to keep all."""
        os.set_blocking(descriptor, False)
        self._loop.do(lambda: self._add_stream(number, Stream(peer, write=descriptor, last=last)))

    def close(self) -> None:
        """Ends the thread and closes the port and every descriptor of the relay; may be called again. What was not sent yet is
        dropped."""
        self._loop.close()
        while self._own:
            os.close(self._own.pop())

    # Made by other threads

    def _side(self, kind: type[_Side], link: int, edge: Edge, peer: str) -> _Side:
        """An end of an edge; the relay has the same memory and the other halves of its pipes."""
        memory = anonymous_memory(edge.nbytes)
        (here_in, relay_out), (relay_in, here_out) = (_pipe(edge.token_bytes) for _ in range(2))
        os.set_blocking(relay_out, False)
        self._own += (here_in, here_out)
        side = kind(edge, Descriptors(memory, here_in, here_out))
        slots = Slots(peer, side.incoming, edge, map_memory(memory, edge.nbytes), relay_in, relay_out)
        os.close(memory)
        forward = self._send_free if side.incoming else self._send_values

        def begin() -> None:
            self._slots[link] = slots
            self._loop.handle(slots.read, lambda: forward(peer, link))
            self._ends_with(peer, lambda: self._end_slots(link))

        self._loop.do(begin)
        return side

    # The thread of the relay

    def _add_stream(self, number: int, stream: Stream) -> None:
        self._streams.add(number, stream)
        self._ends_with(stream.peer, lambda: self._streams.end(number))

    def _end_all(self) -> None:
        for peer in self._peers.values():
            self._lose(peer)
        if self._meeting is not None:
            self._meeting[1].set()
        self._context.destroy(linger=0)

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
        self._loop.handle(monitor, lambda: self._watch(peer))
        socket.connect(endpoint)

    def _watch(self, peer: _Peer) -> None:
        """Notes that the connection to a peer stands or has ended."""
        event = recv_monitor_message(peer.monitor)["event"]
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            peer.connected = True
            self._note_met()
        elif event == zmq.EVENT_DISCONNECTED and peer.connected:
            self._lose(peer)
        elif event == zmq.EVENT_CLOSED and not peer.connected:
            peer.refused += 1
            if peer.refused == _REFUSALS:
                self._lose(peer)

    def _note_met(self) -> None:
        met = {name for name, peer in self._peers.items() if peer.connected}
        if self._meeting is not None and self._meeting[0] <= met:
            self._end_meeting(True)

    def _end_meeting(self, met: bool) -> None:
        if self._meeting is not None:
            self._met = met
            self._meeting[1].set()
            self._meeting = None

    def _lose(self, peer: _Peer) -> None:
        """Ends all that leads to a peer that has gone."""
        if peer.socket.closed:
            return
        self._loop.forget(peer.monitor)
        names = {name for name, other in self._peers.items() if other is peer}
        self.lost |= names
        if self._meeting is not None and names & self._meeting[0]:
            self._end_meeting(False)
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

    def _admit(self) -> None:
        """Answers libzmq whether the owner of a key may connect (ZAP, RFC 27)."""
        version, request, _, _, _, mechanism, *credentials = self._guard.recv_multipart()
        known = mechanism == b"CURVE" and len(credentials) == 1 and credentials[0] in self._allowed
        status, text = (b"200", b"OK") if known else (b"400", b"the key is not of this run")
        user = z85.encode(credentials[0]) if known else b""  # every message of this connection says it
        self._guard.send_multipart([version, request, status, text, user, b""])
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
            self._loop.forget(slots.read)
            os.close(slots.read)
            os.close(slots.write)

    def _receive(self) -> None:
        """Takes messages: values into their slots, tokens to their pipes, text to its descriptor."""
        for _ in range(_AT_ONCE):
            try:
                frame = self._inbox.recv(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            sender = self._names.get(frame.get("User-Id"), "")
            if sender not in self.unfit:
                try:
                    self._take(sender, frame.bytes)
                except Unfit as unfit:
                    self._refuse(sender, str(unfit))
            while self._inbox.rcvmore:  # of a link that has ended
                self._inbox.recv_into(bytearray())

    def _refuse(self, sender: str, words: str) -> None:
        self.unfit[sender] = words
        self._told(sender, words)
        if (peer := self._peers.get(sender)) is not None:
            self._lose(peer)

    def _take(self, sender: str, header: bytes) -> None:
        """Takes the rest of a message, whose header came from ``sender``. Raises Unfit."""
        if len(header) != _HEADER.size:
            raise Unfit(f"a header of {len(header)} bytes")
        kind, link, before, slot, first, count, more = _HEADER.unpack(header)
        if kind == _TEXT:
            if not self._streams.has_ended(link):
                data = self._frame()
                self._streams.receive(sender, link, data, lambda: self._follows((True, link), before))
            return
        if kind not in (_DATA, _FREE, _PIECE):
            raise Unfit(f"a message of kind {kind}")
        slots = self._slots.get(link)
        if slots is None:  # it has ended
            return
        if slots.peer != sender:
            raise Unfit(f"a message of link {link}, which is between others")
        if not self._follows((False, link), before):
            self._end_slots(link)
            return
        if kind == _PIECE:
            number, begin = first, count * PIECE
            size = self._into(slots.target(slot, number, begin))
            if size != PIECE:
                raise Unfit(f"a piece of {size} bytes")
            slots.begun[slot, number] = begin + PIECE
            return
        if kind == _DATA:
            slots.check_handed(slot, first, count, more)
            for number in slots.numbers(first, count):
                begun, value = slots.begun.pop((slot, number), 0), slots.edge.values[number]
                target = slots.target(slot, number, begun)
                size, fitting = self._into(target), target.nbytes if value.size is None else value.in_use(more) - begun
                if size > fitting or (size < fitting and value.size is not None):
                    raise Unfit(f"value {number} of link {link} with {size} bytes in place of {fitting}")
        else:
            slots.check_freed(slot, first, count, more)
        try:
            os.write(slots.write, TOKEN.pack(slot, first, count, more))
        except BrokenPipeError:
            pass
        except BlockingIOError:
            raise Unfit("more tokens than there are slots") from None

    def _follows(self, which: tuple[bool, int], before: int) -> bool:
        """Whether no message of a stream or link was lost before this one: the connection had broken else."""
        follows = before == self._received[which] & _WORD
        self._received[which] += 1
        return follows

    def _frame(self) -> bytes:
        if not self._inbox.rcvmore:
            raise Unfit("a message without its bytes")
        data: bytes = self._inbox.recv()
        return data

    def _into(self, target: Array) -> int:
        """Receives a frame in place; returns its bytes, which may be more than there is room for."""
        if not self._inbox.rcvmore:
            raise Unfit("a message without its values")
        size: int = self._inbox.recv_into(target.data)
        return size


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
