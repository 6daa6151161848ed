"""Hosts meet when they prove the same secret, and only then hears one where the store of the ranks is."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from dnnc.engines.onnxruntime.errors import StageStopped
from dnnc.engines.torch.launch.meeting import SECRET, Meeting, meet_hosts, read_secret
from ir.core.diagnostics import Diagnostic, DnncError, ExitCode, InvalidInput, UsageError

GOOD, WRONG = b"correct horse battery staple", b"wrong horse battery staple"
ALIKE = {"nodes": 2, "build": "3f2a", "--steps": 5}


def free_port(host: str = "127.0.0.1") -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def reach(place: str, port: int) -> socket.socket:
    """A connection, once somebody listens."""
    for _ in range(200):
        with suppress(ConnectionRefusedError):
            return socket.create_connection((place, port), 10)
        time.sleep(0.05)
    raise AssertionError("nobody listens")


def meet(
    node: int,
    place: str,
    secret: bytes = GOOD,
    limit: float = 10.0,
    warned: Callable[[Diagnostic], None] = lambda diagnostic: None,
    **claims: Any,
) -> Meeting | DnncError:
    try:
        with meet_hosts(place, secret, {**ALIKE, "node": node, **claims}, limit, warned) as met:
            return met
    except DnncError as error:
        return error


@contextmanager
def first_host(place: str, **options: Any) -> Iterator[list[Meeting | DnncError]]:
    """A first host that waits for the others; the list has what became of it once the block is over."""
    ends: list[Meeting | DnncError] = []
    thread = threading.Thread(target=lambda: ends.append(meet(0, place, **options)))
    thread.start()
    yield ends
    thread.join()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost"])
def test_hosts_of_one_secret_meet(host: str) -> None:
    place = f"{host}:{free_port()}"
    with first_host(place) as first:
        other = meet(1, place)
    (mine,) = first
    assert isinstance(mine, Meeting)
    assert isinstance(other, Meeting)
    assert (mine.store, mine.listen is None, other.listen) == (other.store, False, None)
    assert mine.store.startswith(mine.address)
    assert mine.address.startswith("127.0.0.")


def test_a_wrong_secret_ends_its_own_host_alone() -> None:
    place, warnings = f"127.0.0.1:{free_port()}", list[Diagnostic]()
    with first_host(place, warned=warnings.append) as first:
        for _ in range(2):
            other = meet(1, place, WRONG)
            assert isinstance(other, InvalidInput)
            assert str(other).startswith(
                f"--meet {place}: error[E4824]: the first host refused this one: it does not hold the same"
            )
        later = meet(1, place)
    assert isinstance(first[0], Meeting)
    assert isinstance(later, Meeting)
    (warning,) = warnings
    assert str(warning).startswith(
        f"--meet {place}: warning[W4818]: a host at 127.0.0.1 tried to join and does not hold the secret"
    )


def test_who_tried_without_the_secret_is_told_at_the_deadline() -> None:
    place = f"127.0.0.1:{free_port()}"
    with first_host(place, limit=0.5, nodes=3) as first:
        early: list[Meeting | DnncError] = []
        thread = threading.Thread(target=lambda: early.append(meet(2, place, nodes=3)))
        thread.start()
        meet(1, place, WRONG, nodes=3)
    thread.join()
    assert isinstance(first[0], StageStopped)
    assert "host 1 did not come in time; a host at 127.0.0.1 tried to join without the secret" in str(first[0])
    assert isinstance(early[0], StageStopped)


def test_idle_connections_do_not_delay_the_others() -> None:
    place, port = "127.0.0.1", free_port()
    with first_host(f"{place}:{port}", limit=2.0) as first, ExitStack() as stack:
        for _ in range(70):  # more than are kept
            stack.enter_context(reach(place, port))
        other = meet(1, f"{place}:{port}", limit=2.0)
    assert isinstance(other, Meeting)
    assert isinstance(first[0], Meeting)


@pytest.mark.parametrize("last", [False, True])
def test_a_first_host_may_greet_late(last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dnnc.engines.torch.launch.meeting._PATIENCE", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as slow:
        place, ends = f"127.0.0.1:{slow.getsockname()[1]}", list[Meeting | DnncError]()
        thread = threading.Thread(target=lambda: ends.append(meet(1, place, limit=0.5 if last else 10.0)))
        thread.start()
        line, _ = slow.accept()
        with line:
            time.sleep(0.3)
            if not last:
                line.sendall(json.dumps({"dnnc": "hosts 1", "nonce": "ab" * 32}).encode() + b"\n")
                assert b"proof" in line.recv(4096)
                line.sendall(b'{"refused": true}\n')
            thread.join()
    assert ("said nothing in time" if last else "refused this one") in str(ends[0])


@pytest.mark.parametrize(
    ("greeting", "answer"),
    [
        ({"dnnc": "hosts 1"}, None),
        ({"dnnc": "hosts 1", "nonce": 5}, None),
        ({"dnnc": "hosts 1", "nonce": "ab"}, {"told": 5}),
        ({"dnnc": "hosts 1", "nonce": "ab"}, {"told": None, "proof": []}),
        ({"dnnc": "hosts 1", "nonce": "ab"}, {"told": {"store": [[]]}, "proof": "00"}),
        ({"dnnc": "hosts 1", "nonce": "ab"}, {}),
    ],
)
def test_an_impostor_of_the_first_host(greeting: dict[str, Any], answer: dict[str, Any] | None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as impostor:
        ends: list[Meeting | DnncError] = []
        place = f"127.0.0.1:{impostor.getsockname()[1]}"
        thread = threading.Thread(target=lambda: ends.append(meet(1, place)))
        thread.start()
        line, _ = impostor.accept()
        with line:
            line.sendall(json.dumps(greeting).encode() + b"\n")
            if answer is not None:
                line.recv(4096)
                line.sendall(json.dumps(answer).encode() + b"\n")
            thread.join()
    assert isinstance(ends[0], InvalidInput)
    told = "what listens there is no first host" if answer is None else "the first host does not hold the secret"
    assert told in str(ends[0])


@pytest.mark.parametrize(
    "answer",
    [
        {"nonce": 1, "claims": {**ALIKE, "node": 1}, "proof": ""},
        {"nonce": "0", "claims": [], "proof": ""},
        {"nonce": "0", "claims": {}, "proof": ""},
        {"nonce": "0", "claims": {**ALIKE, "node": "1"}, "proof": ""},
        {"nonce": "0", "claims": {**ALIKE, "node": 1, "more": [[]]}, "proof": ""},
        {"nonce": "0", "claims": {**ALIKE, "node": 1}, "proof": 5},
    ],
)
def test_an_answer_of_another_shape_is_dropped(answer: dict[str, Any]) -> None:
    place, port = "127.0.0.1", free_port()
    with first_host(f"{place}:{port}") as first:
        with reach(place, port) as line:
            line.recv(4096)
            line.sendall(json.dumps(answer).encode() + b"\n")
            assert line.recv(4096) == b""
        meet(1, f"{place}:{port}")
    assert isinstance(first[0], Meeting)


def test_who_proves_nothing_hears_no_address() -> None:
    """Other protocols, and messages without a proof, are no reason not to meet."""
    place, port = "127.0.0.1", free_port()
    heard = b""
    with first_host(f"{place}:{port}") as first:
        proof: dict[str, Any] = {"nonce": "0" * 64, "claims": {**ALIKE, "node": 1}}
        for sent in (b"GET / HTTP/1.1\r\n\r\n", b"[" * 5000, b"\x80\x04\x95 pickled\n", json.dumps(proof).encode() + b"\n"):
            with reach(place, port) as line, suppress(ConnectionResetError):
                line.sendall(sent)
                while data := line.recv(4096):
                    heard += data
        other = meet(1, f"{place}:{port}")
    assert isinstance(other, Meeting)
    assert isinstance(first[0], Meeting)
    assert b"hosts 1" in heard
    assert b"store" not in heard
    assert other.store.encode() not in heard


def test_a_recorded_proof_is_worth_nothing() -> None:
    place, port = "127.0.0.1", free_port()
    recorded = b""
    with socket.create_server((place, 0)) as impostor:
        between = impostor.getsockname()[1]
        ends: list[Meeting | DnncError] = []
        thread = threading.Thread(target=lambda: ends.append(meet(1, f"{place}:{between}")))
        thread.start()
        line, _ = impostor.accept()
        with line:
            line.sendall(json.dumps({"dnnc": "hosts 1", "nonce": "ab" * 32}).encode() + b"\n")
            recorded = line.recv(4096)
            line.sendall(json.dumps({"told": {"store": "127.0.0.1:1"}, "proof": "00"}).encode() + b"\n")
        thread.join()
    assert "the first host does not hold the secret" in str(ends[0])
    heard = b""
    with first_host(f"{place}:{port}", limit=0.5) as first, reach(place, port) as line:
        line.sendall(recorded)
        while data := line.recv(4096):
            heard += data
    assert b"refused" in heard
    assert b"store" not in heard
    assert "tried to join without the secret" in str(first[0])


@pytest.mark.parametrize(
    ("claims", "told"),
    [
        ({"--steps": 6}, "host 1 has --steps 6, the first host 5"),
        ({"build": "99"}, "host 1 has build 99, the first host 3f2a"),
        ({"nodes": 4}, "host 1 has nodes 4, the first host 2"),
        ({"node": 2}, "two hosts say that they are --node 2"),
    ],
)
def test_hosts_that_do_not_go_together(claims: dict[str, Any], told: str) -> None:
    place = f"127.0.0.1:{free_port()}"
    with first_host(place) as first:
        other = meet(**{"node": 1, "place": place, **claims})
    assert told in str(other)
    assert told in str(first[0])


def test_hosts_that_do_not_come() -> None:
    place = f"127.0.0.1:{free_port()}"
    first, other = meet(0, place, limit=0.1), meet(1, place, limit=0.1)
    assert "host 1 did not come in time" in str(first)
    assert "nobody is there" in str(other)
    assert isinstance(first, DnncError)
    assert isinstance(other, DnncError)
    assert first.exit_code == other.exit_code == ExitCode.INVALID_INPUT


@pytest.mark.parametrize(
    ("place", "code", "told"),
    [
        ("0.0.0.0:29500", 2, "[E4816]: it stands for every network of the host"),
        ("[::]:29500", 2, "[E4816]: it stands for every network of the host"),
        ("[::ffff:0.0.0.0]:29500", 2, "[E4816]: it stands for every network of the host"),
        ("::ffff:0:0:29500", 2, "[E4816]: it stands for every network of the host"),
        ("0:29500", 2, "[E4816]: it stands for every network of the host"),
        ("224.0.0.1:29500", 2, "[E4816]: it stands for many hosts"),
        ("[::ffff:224.0.0.1]:29500", 2, "[E4816]: it stands for many hosts"),
        ("[ff02::1]:29500", 2, "[E4816]: it stands for many hosts"),
        ("255.255.255.255:29500", 2, "[E4816]: it stands for many hosts"),
        (":29500", 2, "[E4814]: it is no HOST:PORT"),
        ("127.0.0.1", 2, "[E4814]: it is no HOST:PORT"),
        ("127.0.0.1:0", 2, "[E4814]: it is no HOST:PORT"),
        ("127.0.0.1:99999", 2, "[E4814]: it is no HOST:PORT"),
        ("192.0.2.1:29500", 3, "[E4817]: cannot listen there"),
        ("nowhere.invalid:29500", 3, "[E4815]: there is no such host"),
    ],
)
def test_places_where_nobody_meets(place: str, code: int, told: str) -> None:
    error = meet(0, place)
    assert isinstance(error, DnncError)
    assert error.exit_code == code
    assert str(error).startswith(f"--meet {place}: error{told}")


def test_a_secret_comes_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "secret"
    file.write_bytes(GOOD + b"\n")
    file.chmod(0o600)
    monkeypatch.delenv(SECRET, raising=False)
    with pytest.raises(
        UsageError, match=r"--secret: error\[E4810\]: hosts must prove to each other that they share a secret\n  hint: "
    ):
        read_secret(None)
    assert read_secret(file) == GOOD
    monkeypatch.setenv(SECRET, GOOD.decode())
    assert read_secret(None) == GOOD
    monkeypatch.setenv(SECRET, "short")
    with pytest.raises(InvalidInput, match=rf"{SECRET}: error\[E4811\]: a secret has at least 16 characters"):
        read_secret(None)
    file.chmod(0o640)
    assert read_secret(file) == GOOD
    file.chmod(0o604)
    with pytest.raises(
        InvalidInput, match=rf"{file}: error\[E4813\]: other users of this machine may read the secret\n  hint: chmod 600"
    ):
        read_secret(file)
