"""Meeting of the hosts of a training: they prove to each other that they hold the same secret, then agree on a store.

The first host listens on the address of ``--meet``, and nowhere else. Each message is one line of JSON; the nonces ``A`` and
``B`` are random and new for each connection:

```
  first host                                        another
  {"dnnc": "hosts 1", "nonce": A}             ->
                                              <-    {"nonce": B, "claims": .., "proof": HMAC(secret, another, A, B, claims)}
  {"told": .., "proof": HMAC(secret, first, A, B, claims, told)}   ->
```

A host that cannot prove the secret gets only ``{"refused": true}``, never the address of the ranks' store. The first host
reads all connections at the same time and goes on waiting, so a stranger neither ends nor delays the meeting. The secret itself
is never sent. ``claims`` are the options and digests that must be equal on all hosts. Nothing here protects what the ranks send
each other later.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import os
import secrets
import selectors
import socket
import stat
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from dnnc.engines.onnxruntime.errors import StageStopped
from dnnc.engines.torch.launch.faults import (
    AddressOfMany,
    CannotListen,
    FirstHostSilent,
    FirstHostStopped,
    FirstHostUnproven,
    HostsDiffer,
    HostsMissing,
    HostUnknown,
    HostWithoutSecret,
    NobodyThere,
    NoStoreTold,
    NotAFirstHost,
    NotHostPort,
    SecretMissing,
    SecretReadable,
    SecretRefused,
    SecretTooLong,
    SecretTooShort,
)
from ir.core.diagnostics import Diagnostic, InvalidInput, UsageError
from ir.system.files import open_input

SECRET = "DNNC_SECRET"
"""The environment variable that may hold the secret."""
_MIN_SECRET = 16
"""Bytes of the shortest secret: an impostor of the first host receives a proof, from which a short one could be guessed."""
_GREETING = "hosts 1"
_MAX_MESSAGE = 4096
"""Bytes of the longest message."""
_PATIENCE = 5.0
"""Seconds within which a connected host must have answered."""
_MAX_UNPROVEN = 64
"""The most connections without a proof that are open at a time; one more closes the oldest."""
_RETRY = 0.2
"""Seconds between two attempts to reach the first host, which may start later."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """The result of a meeting. ``store``: HOST:PORT of the ranks' store; ``address``: of this host, on which its ranks listen;
    ``listen``: on the first host the descriptor of the socket that listens at ``store``, else None."""

    store: str
    address: str
    listen: int | None


def read_secret(file: Path | None) -> bytes:
    """The secret of the hosts, from ``file``, or from the environment if that is None. Raises UsageError where there is none,
    InvalidInput where other users may read the file or the secret is too short or too long."""
    if file is None and SECRET not in os.environ:
        raise UsageError(SecretMissing(SECRET), where="--secret")
    where = str(file) if file is not None else SECRET
    text = os.environ[SECRET].encode() if file is None else _read_secret(file)
    if len(text.strip()) < _MIN_SECRET:
        raise InvalidInput(SecretTooShort(_MIN_SECRET), where=where)
    return text.strip()


def _read_secret(path: Path) -> bytes:
    """The bytes of a file that only its user and group may access: mounted secrets often belong to a group. Raises
    InvalidInput."""
    with open_input(path, "a file with a secret", hint="write it to a file; <(...) is a FIFO, whose end need not come") as file:
        if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o007:
            raise InvalidInput(SecretReadable(str(path)), where=str(path))
        text = file.read(_MAX_MESSAGE + 1)
    if len(text) > _MAX_MESSAGE:
        raise InvalidInput(SecretTooLong(_MAX_MESSAGE), where=str(path))
    return text


@contextmanager
def meet_hosts(
    place: str,
    secret: bytes,
    claims: Mapping[str, Any],
    limit: float,
    warned: Callable[[Diagnostic], None] = lambda diagnostic: None,
) -> Iterator[Meeting]:
    """Meets the other hosts at ``place``, HOST:PORT of the first one, for at most ``limit`` seconds; sockets are closed when
    the block ends. ``claims``: values that must be equal on all hosts, among them ``nodes``, the number of hosts, beside
    ``node``, the number of this one. ``warned`` gets, on the first host, a warning for each address without the secret.

    Raises UsageError for a malformed ``place``, InvalidInput where this host does not hold the first one's secret or claims
    differ, StageStopped where hosts do not come in time."""
    where, deadline = f"--meet {place}", time.monotonic() + limit
    family, address = _resolve(place, where)
    with ExitStack() as stack:
        if claims["node"]:
            yield _join_first(family, address, secret, claims, deadline, where)
            return
        listener, store = (stack.enter_context(_listen(family, (address[0], port), where)) for port in (address[1], 0))
        store_address = _host_port(*store.getsockname()[:2])
        _admit(listener, secret, claims, {"store": store_address}, deadline, where, warned)
        listener.close()
        yield Meeting(store_address, address[0], store.fileno())


def _resolve(place: str, where: str) -> tuple[socket.AddressFamily, tuple[str, int]]:
    host, _, port = place.rpartition(":")
    try:
        number = int(port) if port.isascii() and port.isdecimal() else -1
        if not host or not 0 < number < 1 << 16:
            raise UsageError(NotHostPort(), where=where)
        family, _, _, _, address = socket.getaddrinfo(host.strip("[]"), number, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise InvalidInput(HostUnknown(str(error)), where=where) from None
    if meaning := _group_meaning(str(address[0])):
        raise UsageError(AddressOfMany(meaning), where=where)
    return family, (str(address[0]), number)


def _group_meaning(text: str) -> str:
    """What a wildcard, multicast or broadcast address stands for; empty for the address of one host."""
    address = ipaddress.ip_address(text.partition("%")[0])
    address = getattr(address, "ipv4_mapped", None) or address
    if address.is_unspecified:
        return "every network of the host"
    broadcast = address == ipaddress.IPv4Address("255.255.255.255")
    return "many hosts" if address.is_multicast or broadcast else ""


def _host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _listen(family: socket.AddressFamily, address: tuple[str, int], where: str) -> socket.socket:
    """A new socket that listens on ``address``. Raises InvalidInput."""
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise InvalidInput(CannotListen(error.strerror or str(error)), where=where) from None
    return listener


# ---- the first host


@dataclass(slots=True)
class _Guest:
    """A host that has connected and not answered the greeting yet. ``peer``: its address; ``nonce``: the one sent to it;
    ``until``: the time by which it must have answered; ``text``: what it has sent so far."""

    connection: socket.socket
    peer: str
    nonce: str
    until: float
    text: bytes = b""


def _admit(
    listener: socket.socket,
    secret: bytes,
    claims: Mapping[str, Any],
    reply: Mapping[str, Any],
    deadline: float,
    where: str,
    warned: Callable[[Diagnostic], None],
) -> None:
    """Waits until every other host has proven the secret, then sends ``reply`` to all of them."""
    admitted: list[tuple[socket.socket, bytes]] = []
    missing = set(range(1, claims["nodes"]))
    strangers: dict[str, None] = {}
    with ExitStack() as stack, closing(_answers(listener, deadline)) as answers:
        for guest, answer in answers if missing else ():
            connection = stack.enter_context(guest.connection)
            their_claims, transcript = answer["claims"], _canonical(guest.nonce, answer["nonce"], answer["claims"])
            if not _is_proof(secret, b"another", transcript, answer["proof"]):
                _send(connection, {"refused": True})
                connection.close()
                if guest.peer not in strangers:  # one warning per address
                    strangers[guest.peer] = None
                    warned(HostWithoutSecret(guest.peer).at(where))
                continue
            if difference := _difference(their_claims, claims, missing):
                for other, their_transcript in (*admitted, (connection, transcript)):
                    _send(other, _signed(secret, their_transcript, {"fault": difference}))
                raise InvalidInput(HostsDiffer(difference), where=where)
            admitted.append((connection, transcript))
            missing.remove(their_claims["node"])
            if not missing:
                break
        if missing:
            raise StageStopped(HostsMissing(tuple(map(str, sorted(missing))), tuple(strangers)), where=where)
        for connection, transcript in admitted:
            _send(connection, _signed(secret, transcript, reply))


def _answers(listener: socket.socket, deadline: float) -> Generator[tuple[_Guest, dict[str, Any]]]:
    """Yields each host that answers the greeting, with its answer, until ``deadline``; the caller then owns its connection.

    All connections are read at the same time. One that sends nothing in time, or no valid answer, is closed."""
    waiting: dict[socket.socket, _Guest] = {}
    with selectors.DefaultSelector() as selector, ExitStack() as stack:

        def drop(guest: _Guest, *, close: bool = True) -> None:
            selector.unregister(guest.connection)
            del waiting[guest.connection]
            if close:
                guest.connection.close()

        def drop_all() -> None:
            for guest in [*waiting.values()]:
                drop(guest)

        stack.callback(drop_all)
        listener.setblocking(False)
        selector.register(listener, selectors.EVENT_READ)
        while (now := time.monotonic()) < deadline:
            for guest in [guest for guest in waiting.values() if guest.until <= now]:
                drop(guest)
            until = min([deadline, *(guest.until for guest in waiting.values())])
            for key, _ in selector.select(until - now):
                if key.fileobj is listener:
                    if len(waiting) == _MAX_UNPROVEN:
                        drop(next(iter(waiting.values())))
                    if (new := _greet(listener)) is not None:
                        waiting[new.connection] = new
                        selector.register(new.connection, selectors.EVENT_READ)
                elif (guest := waiting.get(key.fileobj)) is not None:  # type: ignore[call-overload]
                    data = _read(guest.connection)
                    guest.text += data
                    if data and len(guest.text) < _MAX_MESSAGE and not guest.text.endswith(b"\n"):
                        continue
                    answer = _parsed(guest.text)
                    valid = answer is not None and _is_answer(answer)
                    drop(guest, close=not valid)
                    if answer is not None and valid:
                        yield guest, answer


def _greet(listener: socket.socket) -> _Guest | None:
    """Accepts and greets the next connection; None if it is closed already."""
    with suppress(OSError):
        connection, (peer, *_) = listener.accept()
        guest = _Guest(connection, str(peer), secrets.token_hex(32), time.monotonic() + _PATIENCE)
        _send(connection, {"dnnc": _GREETING, "nonce": guest.nonce})
        return guest
    return None


def _read(connection: socket.socket) -> bytes:
    with suppress(OSError):
        return connection.recv(_MAX_MESSAGE)
    return b""


def _is_answer(message: Mapping[str, Any]) -> bool:
    """Whether a message has the shape of an answer to the greeting."""
    claims = message.get("claims")
    return (
        isinstance(message.get("nonce"), str)
        and isinstance(message.get("proof"), str)
        and _is_flat(claims)
        and all(type(claims.get(name)) is int for name in ("node", "nodes"))
    )


def _is_flat(value: Any) -> TypeGuard[dict[str, Any]]:
    """Whether this is a dict whose values are strings and numbers."""
    return isinstance(value, dict) and all(isinstance(item, (str, int, float)) for item in value.values())


def _difference(their_claims: Mapping[str, Any], mine: Mapping[str, Any], missing: set[int]) -> str:
    """The first contradiction between another host's claims and those of the first host; empty where there is none."""
    if their_claims["nodes"] == mine["nodes"] and their_claims["node"] not in missing:
        return f"two hosts say that they are --node {their_claims['node']}"
    for name, value in mine.items():
        if name != "node" and their_claims.get(name) != value:
            return f"host {their_claims['node']} has {name} {their_claims.get(name)}, the first host {value}"
    return ""


# ---- the other hosts


def _join_first(
    family: socket.AddressFamily,
    address: tuple[str, int],
    secret: bytes,
    claims: Mapping[str, Any],
    deadline: float,
    where: str,
) -> Meeting:
    with _connect(family, address, deadline, where) as connection:
        greeting = _receive(connection, deadline)
        if greeting is None and time.monotonic() >= deadline:
            raise StageStopped(FirstHostSilent(), where=where)
        if greeting is None or greeting.get("dnnc") != _GREETING or not isinstance(greeting.get("nonce"), str):
            raise InvalidInput(NotAFirstHost(), where=where)
        nonce = secrets.token_hex(32)
        transcript = _canonical(greeting["nonce"], nonce, claims)
        _send(connection, {"nonce": nonce, "claims": claims, "proof": _proof_of(secret, b"another", transcript)})
        answer = _receive(connection, deadline)
        if answer is None:
            raise StageStopped(FirstHostStopped(), where=where)
        if answer.get("refused") is True:
            raise InvalidInput(SecretRefused(), where=where)
        reply = answer.get("told")
        if not _is_flat(reply) or not _is_proof(secret, b"first", transcript + _canonical(reply), answer.get("proof")):
            raise InvalidInput(FirstHostUnproven(), where=where)
        if "fault" in reply:
            raise InvalidInput(HostsDiffer(str(reply["fault"])), where=where)
        if "store" not in reply:
            raise InvalidInput(NoStoreTold(), where=where)
        return Meeting(str(reply["store"]), connection.getsockname()[0], None)


def _connect(family: socket.AddressFamily, address: tuple[str, int], deadline: float, where: str) -> socket.socket:
    """A connection to the first host; retries until it listens. Raises StageStopped at ``deadline``."""
    while True:
        connection = socket.socket(family, socket.SOCK_STREAM)
        connection.settimeout(max(deadline - time.monotonic(), _RETRY))
        try:
            connection.connect(address)
            return connection
        except OSError as error:
            connection.close()
            if time.monotonic() > deadline:
                raise StageStopped(NobodyThere(error.strerror or str(error)), where=where) from None
        time.sleep(_RETRY)


# ---- messages


def _send(connection: socket.socket, message: Mapping[str, Any]) -> None:
    connection.settimeout(_PATIENCE)
    with suppress(OSError):  # a host that has closed the connection counts as missing
        connection.sendall(json.dumps(message).encode() + b"\n")


def _receive(connection: socket.socket, deadline: float) -> dict[str, Any] | None:
    """The next message; None where none comes until ``deadline`` or what comes is not a message."""
    text = b""
    with suppress(OSError):
        while not text.endswith(b"\n") and len(text) < _MAX_MESSAGE:
            connection.settimeout(max(deadline - time.monotonic(), 1e-3))
            if not (data := connection.recv(_MAX_MESSAGE)):
                return None
            text += data
        return _parsed(text)
    return None


def _parsed(text: bytes) -> dict[str, Any] | None:
    """The JSON object in ``text``; None where it is not one."""
    with suppress(ValueError, RecursionError):
        message = json.loads(text)
        return message if isinstance(message, dict) else None
    return None


def _canonical(*values: Any) -> bytes:
    """The bytes that a proof covers: both hosts compute them from equal values."""
    return json.dumps(values, sort_keys=True).encode()


def _signed(secret: bytes, transcript: bytes, reply: Mapping[str, Any]) -> dict[str, Any]:
    return {"told": reply, "proof": _proof_of(secret, b"first", transcript + _canonical(reply))}


def _proof_of(secret: bytes, who: bytes, transcript: bytes) -> str:
    return hmac.new(secret, who + b"\0" + transcript, hashlib.sha256).hexdigest()


def _is_proof(secret: bytes, who: bytes, transcript: bytes, proof: object) -> bool:
    return hmac.compare_digest(_proof_of(secret, who, transcript).encode(), str(proof).encode(errors="replace"))
