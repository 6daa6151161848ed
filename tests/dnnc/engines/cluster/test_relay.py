"""Edges and streams between processes by real sockets: what arrives, credit, keys, and peers that have gone."""

from __future__ import annotations

import os
import re
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import numpy as np
import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from dnnc.engines.cluster.network import relay
from dnnc.engines.cluster.network.relay import Relay
from dnnc.engines.onnxruntime.transport.codec import from_user, to_user
from dnnc.engines.onnxruntime.transport.edges import Edge, Receiver, Sender, ValueSpec
from ir.core.diagnostics import InvalidInput
from tests.dnnc.engines.onnxruntime.listening import listeners

HERE = "127.0.0.1"
FLOATS = Edge(0, 1, (ValueSpec("x", 1, (4,)), ValueSpec("y", 1, (300_000,))))


@contextmanager
def pair() -> Iterator[tuple[Relay, Relay]]:
    """Two relays that have met, as a and b."""
    with ExitStack() as stack:
        first, second = Relay(HERE), Relay(HERE)
        stack.callback(first.close)
        stack.callback(second.close)
        other = threading.Thread(target=first.meet, args=({"b": second.offer},))
        other.start()
        second.meet({"a": first.offer})
        other.join()
        yield first, second


def send(sender: Sender, **values: object) -> None:
    for _ in sender.send_microbatch({name: from_user(value) for name, value in values.items()}):
        sender.read_tokens()


def receive(receiver: Receiver) -> tuple[int, dict[str, object]]:
    """The slot of the next microbatch and copies of its values."""
    while not receiver.complete:
        receiver.read_tokens()
    slot = receiver.take()
    return slot, {name: to_user(value) for name, value in receiver.values(slot).items()}


def test_values_of_every_kind_arrive_in_order() -> None:
    """Tensors in place, others encoded, and one that is larger than its area, which streams through slots."""
    edge = Edge(0, 1, (ValueSpec("fixed", 1, (3,)), ValueSpec("free"), ValueSpec("other")), 2, 4096)
    messages = [
        {"fixed": np.full(3, i, np.float32), "free": np.arange(i * 500), "other": [np.ones(2), None, {"a": 1.5}][i % 3]}
        for i in range(12)
    ]
    with pair() as (a, b):
        sender, receiver = a.sender(7, edge, "b"), b.receiver(7, edge, "a")
        feeding = threading.Thread(target=lambda: [send(sender, **message) for message in messages])
        feeding.start()
        for message in messages:
            slot, found = receive(receiver)
            receiver.release(slot)
            np.testing.assert_array_equal(found["fixed"], message["fixed"])
            np.testing.assert_array_equal(found["free"], message["free"])
            np.testing.assert_equal(found["other"], message["other"])
        feeding.join()


@pytest.mark.parametrize("piece", [1000, 4096, 1 << 21])
def test_large_values_go_in_pieces(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    """Of a known size that pieces divide or do not, and of an unknown one."""
    monkeypatch.setattr(relay, "PIECE", piece)
    edge = Edge(0, 1, (ValueSpec("even", 1, (2000,)), ValueSpec("odd", 1, (2049,)), ValueSpec("free")), 2, 1 << 16)
    with pair() as (a, b):
        sender, receiver = a.sender(1, edge, "b"), b.receiver(1, edge, "a")
        for number in range(4):
            send(sender, free=np.arange(1500) + number, **_floats(number))
            slot, found = receive(receiver)
            receiver.release(slot)
            sender.read_tokens()
            for name, value in _floats(number).items():
                np.testing.assert_array_equal(found[name], value)
            np.testing.assert_array_equal(found["free"], np.arange(1500) + number)


def _floats(number: int) -> dict[str, object]:
    return {name: np.arange(size, dtype=np.float32) * (number + 1) for name, size in (("even", 2000), ("odd", 2049))}


def test_slots_are_the_credit() -> None:
    """No more microbatches are under way than the edge has slots, until the receiver gives one back."""
    with pair() as (a, b):
        sender, receiver = a.sender(1, FLOATS, "b"), b.receiver(1, FLOATS, "a")
        for number in range(FLOATS.slots):
            send(sender, x=np.full(4, number, np.float32), y=np.full(300_000, number, np.float32))
        assert not sender.has_free_slot
        slot, found = receive(receiver)
        assert found["y"][-1] == 0
        receiver.release(slot)
        sender.read_tokens()
        assert sender.has_free_slot


def test_only_keys_of_the_run_are_let_in() -> None:
    """No key, and a key of one's own with the right key of the server: refused in the handshake; the run goes on."""
    with pair() as (a, b), zmq.Context() as context:
        sender, receiver = a.sender(1, FLOATS, "b"), b.receiver(1, FLOATS, "a")
        for with_keys in (False, True):
            stranger = context.socket(zmq.PUSH)
            stranger.linger = 0
            if with_keys:
                stranger.curve_publickey, stranger.curve_secretkey = zmq.curve_keypair()
                stranger.curve_serverkey = b.key.encode()
            events = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_DISCONNECTED
            monitor = stranger.get_monitor_socket(events | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
            stranger.connect(b.endpoint)
            with suppress(zmq.Again):  # it was refused already
                stranger.send_multipart([b"\0" * 28, b"\1" * 16, b"\1" * 1_200_000], zmq.NOBLOCK)
            assert recv_monitor_message(monitor)["event"] != zmq.EVENT_HANDSHAKE_SUCCEEDED
            stranger.disable_monitor()
            stranger.close()
        assert not any(receiver.arrived)
        send(sender, x=np.ones(4, np.float32), y=np.ones(300_000, np.float32))
        assert receive(receiver)[1]["x"].tolist() == [1, 1, 1, 1]


def test_who_listens_on_the_line_reads_nothing() -> None:
    """Between a and b stands somebody who copies all bytes: the values are not among them."""
    a, b = Relay(HERE), Relay(HERE)
    copied: list[bytes] = []
    with socket.create_server((HERE, 0)) as line:
        threading.Thread(target=copy_line, args=(line, b.endpoint, copied), daemon=True).start()
        other = threading.Thread(target=b.meet, args=({"a": a.offer},))
        other.start()
        a.meet({"b": (f"tcp://{HERE}:{line.getsockname()[1]}", b.key)})
        other.join()
        sender, receiver = a.sender(1, FLOATS, "b"), b.receiver(1, FLOATS, "a")
        values = np.frombuffer(b"in clear" * 150_000, np.float32)
        send(sender, x=values[:4], y=values)
        assert receive(receiver)[1]["y"].tobytes() == values.tobytes()
        a.close()
        b.close()
    assert sum(map(len, copied)) > values.nbytes
    assert b"in clear" not in b"".join(copied)


def copy_line(line: socket.socket, endpoint: str, copied: list[bytes]) -> None:
    """Passes what comes on to the endpoint, and what that says back, until one of them closes."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    with line.accept()[0] as near, socket.create_connection((host, int(port))) as far:

        def passing(source: socket.socket, target: socket.socket) -> None:
            with suppress(OSError):  # it closed while there was something for it
                while data := source.recv(1 << 16):
                    copied.append(data)
                    target.sendall(data)

        back = threading.Thread(target=passing, args=(far, near))
        back.start()
        passing(near, far)
        with suppress(OSError):
            far.shutdown(socket.SHUT_RDWR)
        back.join()


def test_a_stream_ends_where_its_source_ends() -> None:
    with pair() as (a, b):
        (source, written), (read, target) = os.pipe(), os.pipe()
        a.send_stream(3, "b", source)
        b.receive_stream(3, "a", target)
        text = bytes(range(256)) * 2000  # more than a pipe holds
        writing = threading.Thread(target=lambda: (os.write(written, text), os.close(written)))
        writing.start()
        with open(read, "rb") as file:
            assert file.read() == text
        writing.join()


def test_a_peer_that_has_gone_ends_what_leads_to_it() -> None:
    with pair() as (a, b):
        sender, receiver = a.sender(1, FLOATS, "b"), a.receiver(2, FLOATS, "b")
        read, target = os.pipe()
        a.receive_stream(3, "b", target)
        b.close()
        with open(read, "rb") as file:
            assert file.read() == b""
        with pytest.raises(EOFError):
            receiver.read_tokens()
        with pytest.raises(EOFError):
            sender.read_tokens()
        with pytest.raises(EOFError):
            sender.send(sender.take(), 0, 2)
        assert a.lost == {"b"}


def test_who_is_called_connects_back() -> None:
    """The agent of a host knows its starter, which learns the agent's key later: it is not asked before it calls."""
    starter, other, agent = Relay(HERE), Relay(HERE), Relay(HERE)
    try:
        meeting = threading.Thread(target=other.meet, args=({"s": starter.offer},), kwargs={"called": True})
        meeting.start()
        starter.meet({"other": other.offer})  # from here on the starter answers who asks
        waiting = threading.Thread(target=agent.meet, args=({"s": starter.offer},), kwargs={"called": True})
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
        starter.meet({"agent": agent.offer})
        waiting.join(20)
        meeting.join(20)
        assert not waiting.is_alive()
    finally:
        for relay in (starter, other, agent):
            relay.close()


def test_an_endpoint_that_is_not_reached_is_named() -> None:
    with socket.create_server((HERE, 0)) as unused:
        port = unused.getsockname()[1]
    relay = Relay(HERE)
    try:
        with pytest.raises(ConnectionError, match=f"tcp://{HERE}:{port}"):
            relay.meet({"b": (f"tcp://{HERE}:{port}", relay.key)}, 0.2)
    finally:
        relay.close()


def test_ports_are_of_the_range_and_of_the_address() -> None:
    relay = Relay(HERE, (26500, 26501))
    try:
        match = re.fullmatch(rf"tcp://{HERE}:(2650[01])", relay.endpoint)
        assert match is not None
        assert listeners(os.getpid()) <= {HERE}
        port = int(match[1])
        with pytest.raises(InvalidInput, match=rf"E2201.*at any of the ports {port} to {port}: .*in use") as refused:
            Relay(HERE, (port, port))
        with pytest.raises(InvalidInput, match="E2201"):
            Relay("192.0.2.77")
        del refused
    finally:
        relay.close()


def test_what_came_before_a_peer_went_is_read() -> None:
    """A stream whose bytes came before it was opened here, and whose peer has gone since."""
    with pair() as (a, b):
        (source, written), (read, target) = os.pipe(), os.pipe()
        b.send_stream(5, "a", source)
        b.send_stream(6, "a", os.dup(source))
        os.write(written, b"hello")
        os.close(written)
        later, receiver = os.pipe(), a.receiver(1, FLOATS, "b")
        a.receive_stream(6, "b", later[1])
        with open(later[0], "rb") as file:
            rest = file.read()  # whichever of the two streams took the bytes, both have been sent to their ends
        b.close()
        with pytest.raises(EOFError):
            receiver.read_tokens()
        a.receive_stream(5, "b", target)
        with open(read, "rb") as file:
            assert sorted((file.read(), rest)) == [b"", b"hello"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_all_ends_where_the_thread_fails() -> None:
    """Also what is opened later."""
    with pair() as (a, b):
        before, there = a.receiver(1, FLOATS, "b"), b.sender(1, FLOATS, "a")
        a._loop.do(lambda: divmod(1, 0))
        for end in (before, there):
            with pytest.raises(EOFError):
                end.read_tokens()
        with pytest.raises(EOFError):
            a.sender(2, FLOATS, "b").read_tokens()
        read, target = os.pipe()
        a.receive_stream(3, "b", target)
        with open(read, "rb") as file:
            assert file.read() == b""
        with pytest.raises(ConnectionError, match=b.endpoint):
            a.meet({"b": b.offer})


def test_values_of_more_bytes_than_a_word_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """With words of 16 bits in place of 32: a value of 200,000 bytes in pieces of 1000."""
    monkeypatch.setattr(relay, "PIECE", 1000)
    monkeypatch.setattr(relay, "_HEADER", struct.Struct(relay._HEADER.format.replace("I", "H")))
    edge = Edge(0, 1, (ValueSpec("x", 1, (50_000,)),))
    with pair() as (a, b):
        sender, receiver = a.sender(1, edge, "b"), b.receiver(1, edge, "a")
        send(sender, x=np.arange(50_000, dtype=np.float32))
        np.testing.assert_array_equal(receive(receiver)[1]["x"], np.arange(50_000))


@pytest.mark.parametrize("piece", [16, 1 << 20])
def test_parts_of_a_value_are_sent_alone(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies behind the parts in use stays at the other end as it was."""
    monkeypatch.setattr(relay, "PIECE", piece)
    edge = Edge(0, 1, (ValueSpec("whole", 1, (3,)), ValueSpec("x", 1, (12,), 4)), 1)
    with pair() as (a, b):
        sender, receiver = a.sender(1, edge, "b"), b.receiver(1, edge, "a")
        send(sender, whole=np.ones(3, np.float32), x=np.full(12, 7, np.float32))
        slot, _ = receive(receiver)
        receiver.release(slot)
        sender.views(slot)["x"].data.fill(5)
        for parts in (2, 1):
            send(sender, whole=np.full(3, parts, np.float32), x=np.full(3 * parts, parts, np.float32))
            slot, found = receive(receiver)
            receiver.release(slot)
            np.testing.assert_array_equal(found["whole"], np.full(3, parts))
            np.testing.assert_array_equal(found["x"], [parts] * 3 + [2] * 3 + [7] * 6 if parts == 1 else [2] * 6 + [7] * 6)


def test_what_follows_a_lost_message_is_not_taken_for_it() -> None:
    """The line breaks, and ZeroMQ connects again before the relay's thread sees that: values that were under way are lost, and
    those that follow them do not arrive in their place."""
    edge = Edge(0, 1, (ValueSpec("x", 1, (300_000,)),), 24)
    a, b = Relay(HERE), Relay(HERE)
    reached, broken, stopped, go_on = (threading.Event() for _ in range(4))
    with socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        line.bind((HERE, 0))
        line.listen()
        threading.Thread(target=break_line, args=(line, b.endpoint, 2_000_000, reached, broken), daemon=True).start()
        other = threading.Thread(target=b.meet, args=({"a": a.offer},))
        other.start()
        a.meet({"b": (f"tcp://{HERE}:{line.getsockname()[1]}", b.key)})
        other.join()
        sender, receiver = a.sender(1, edge, "b"), b.receiver(1, edge, "a")
        for number in range(edge.slots):
            send(sender, x=np.full(300_000, number, np.float32))
        for _ in range(3):  # the thread has read all tokens
            turned = threading.Event()
            a._loop.do(turned.set)
            turned.wait()
        reached.wait()
        a._loop.do(stopped.set)
        a._loop.do(go_on.wait)
        stopped.wait()
        broken.set()
        found = []
        with suppress(EOFError):
            while True:
                found.append(receive(receiver)[1]["x"][-1])
                if found != list(range(len(found))):
                    break
        go_on.set()
        a.close()
        b.close()
    assert found == list(range(len(found)))
    assert 0 < len(found) < edge.slots


def break_line(line: socket.socket, endpoint: str, limit: int, reached: threading.Event, broken: threading.Event) -> None:
    """Passes so many bytes of the first connection on, breaks it when it is told to, and passes all of the second one on."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    with line.accept()[0] as near, socket.create_connection((host, int(port))) as far:
        threading.Thread(target=pass_on, args=(far, near), daemon=True).start()
        pass_on(near, far, limit)
        reached.set()
        broken.wait()
        for one in (near, far):
            with suppress(OSError):  # the other side has closed it already
                one.shutdown(socket.SHUT_RDWR)
    copy_line(line, endpoint, [])


def pass_on(source: socket.socket, target: socket.socket, limit: int = 1 << 60) -> None:
    with suppress(OSError):
        while limit > 0 and (data := source.recv(1 << 16)):
            target.sendall(data)
            limit -= len(data)
