"""How the hosts of a training meet: on a channel of dnnc's own they prove to each other that they hold the same secret.

The first host listens on the address of ``--meet``, and nowhere else. Each message is one line of JSON; ``A`` and ``B`` are
random and new for each connection:

```
  first host                                        another
  {"dnnc": "hosts 1", "nonce": A}             ->
                                              <-    {"nonce": B, "claims": .., "proof": HMAC(secret, another, A, B, claims)}
  {"told": .., "proof": HMAC(secret, first, A, B, claims, told)}   ->
```

Whoever cannot prove the secret is told nothing but ``{"refused": true}``, least of all where the ranks' store is; the first
host goes on waiting for the others, and hears all connections at a time, so a stranger neither ends nor delays the meeting. The
secret itself never travels. The claims are what all hosts must have alike. Nothing here protects what the ranks send each other
later.
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
"""The variable that may hold the secret."""
_LEAST = 16
"""Bytes of a secret: who meets an impostor of the first host must not give away one that can be guessed."""
_GREETING = "hosts 1"
_LONGEST = 4096
"""Bytes of a message."""
_PATIENCE = 5.0
"""Seconds that a message on an open connection may take."""
_MOST = 64
"""Connections that may be open and unproven at a time: of more, the oldest is closed."""
_AGAIN = 0.2
"""Seconds between two attempts to reach the first host, which may start later."""


@dataclass(frozen=True, slots=True)
class Met:
    """What the hosts agreed on. ``store``: HOST:PORT of the ranks' store; ``listen``: on the first host, the socket that
    listens there; ``address``: of this host, for the ranks to listen on."""

    store: str
    address: str
    listen: int | None


def read_secret(file: Path | None) -> bytes:
    """The secret of the hosts, from a file, or else from the environment. Raises UsageError where there is none, InvalidInput
    where others may read it or could guess it."""
    if file is None and SECRET not in os.environ:
        raise UsageError(SecretMissing(SECRET), where="--secret")
    where = str(file) if file is not None else SECRET
    text = os.environ[SECRET].encode() if file is None else _read_secret(file)
    if len(text.strip()) < _LEAST:
        raise InvalidInput(SecretTooShort(_LEAST), where=where)
    return text.strip()


def _read_secret(path: Path) -> bytes:
    """The bytes of a file that this user and a group alone may use: mounted secrets are often the group's. Raises
    InvalidInput."""
    with open_input(path, "a file with a secret", hint="write it to a file; <(...) is a FIFO, whose end need not come") as file:
        if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o007:
            raise InvalidInput(SecretReadable(str(path)), where=str(path))
        text = file.read(_LONGEST + 1)
    if len(text) > _LONGEST:
        raise InvalidInput(SecretTooLong(_LONGEST), where=str(path))
    return text


@contextmanager
def hosts_met(
    place: str,
    secret: bytes,
    claims: Mapping[str, Any],
    limit: float,
    warned: Callable[[Diagnostic], None] = lambda diagnostic: None,
) -> Iterator[Met]:
    """Meet the other hosts at ``place``, HOST:PORT of the first; sockets are closed with the block. ``claims``: what all must
    have alike, with ``nodes``, how many there are, and ``node``, which this is; ``limit``: seconds to wait; ``warned``: hears,
    on the first host, of hosts that do not hold the secret.

    Raises UsageError for a place that is none, InvalidInput where this host does not hold the secret of the first or one has
    something else, StageStopped where hosts do not come."""
    where, deadline = f"--meet {place}", time.monotonic() + limit
    family, address = _resolved(place, where)
    with ExitStack() as stack:
        if claims["node"]:
            yield _join(family, address, secret, claims, deadline, where)
            return
        door, store = (stack.enter_context(_listening(family, (address[0], port), where)) for port in (address[1], 0))
        at = _written(*store.getsockname()[:2])
        _gather(door, secret, claims, {"store": at}, deadline, where, warned)
        door.close()
        yield Met(at, address[0], store.fileno())


def _resolved(place: str, where: str) -> tuple[socket.AddressFamily, tuple[str, int]]:
    host, _, port = place.rpartition(":")
    try:
        number = int(port) if port.isascii() and port.isdecimal() else -1
        if not host or not 0 < number < 1 << 16:
            raise UsageError(NotHostPort(), where=where)
        family, _, _, _, found = socket.getaddrinfo(host.strip("[]"), number, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise InvalidInput(HostUnknown(str(error)), where=where) from None
    if meaning := _of_many(str(found[0])):
        raise UsageError(AddressOfMany(meaning), where=where)
    return family, (str(found[0]), number)


def _of_many(text: str) -> str:
    """What an address stands for that is not one of one host; empty where it is one. An IPv4 address may be written as IPv6."""
    address = ipaddress.ip_address(text.partition("%")[0])
    address = getattr(address, "ipv4_mapped", None) or address
    if address.is_unspecified:
        return "every network of the host"
    many = address.is_multicast or address == ipaddress.IPv4Address("255.255.255.255")
    return "many hosts" if many else ""


def _written(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _listening(family: socket.AddressFamily, address: tuple[str, int], where: str) -> socket.socket:
    """A socket that listens on one address. Raises InvalidInput."""
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
    """Who has connected, from the address ``peer``, and been told ``nonce``. ``until``: when it must have answered; ``text``:
    what it has said."""

    line: socket.socket
    peer: str
    nonce: str
    until: float
    text: bytes = b""


def _gather(
    door: socket.socket,
    secret: bytes,
    claims: Mapping[str, Any],
    told: Mapping[str, Any],
    deadline: float,
    where: str,
    warned: Callable[[Diagnostic], None],
) -> None:
    """Wait until each other host has proven the secret, then tell all of them."""
    came: list[tuple[socket.socket, bytes]] = []
    missing = set(range(1, claims["nodes"]))
    strangers: dict[str, None] = {}
    with ExitStack() as stack, closing(_answers(door, deadline)) as answers:
        for guest, answer in answers if missing else ():
            line = stack.enter_context(guest.line)
            theirs, said = answer["claims"], _bytes(guest.nonce, answer["nonce"], answer["claims"])
            if not _proves(secret, b"another", said, answer["proof"]):
                _say(line, {"refused": True})
                line.close()
                if guest.peer not in strangers:  # a warning each
                    strangers[guest.peer] = None
                    warned(HostWithoutSecret(guest.peer).at(where))
                continue
            if difference := _differs(theirs, claims, missing):
                for other, heard in (*came, (line, said)):
                    _say(other, _signed(secret, heard, {"fault": difference}))
                raise InvalidInput(HostsDiffer(difference), where=where)
            came.append((line, said))
            missing.remove(theirs["node"])
            if not missing:
                break
        if missing:
            raise StageStopped(HostsMissing(tuple(map(str, sorted(missing))), tuple(strangers)), where=where)
        for line, said in came:
            _say(line, _signed(secret, said, told))


def _answers(door: socket.socket, deadline: float) -> Generator[tuple[_Guest, dict[str, Any]]]:
    """Who answers the greeting, each with its answer, until ``deadline``. The line of who is yielded is the caller's. All are
    heard at a time; who says nothing, or something else, is something that came by, and is dropped."""
    waiting: dict[socket.socket, _Guest] = {}
    with selectors.DefaultSelector() as selector, ExitStack() as stack:

        def drop(guest: _Guest, *, close: bool = True) -> None:
            selector.unregister(guest.line)
            del waiting[guest.line]
            if close:
                guest.line.close()

        def drop_all() -> None:
            for guest in [*waiting.values()]:
                drop(guest)

        stack.callback(drop_all)
        door.setblocking(False)
        selector.register(door, selectors.EVENT_READ)
        while (now := time.monotonic()) < deadline:
            for guest in [guest for guest in waiting.values() if guest.until <= now]:
                drop(guest)
            until = min([deadline, *(guest.until for guest in waiting.values())])
            for key, _ in selector.select(until - now):
                if key.fileobj is door:
                    if len(waiting) == _MOST:
                        drop(next(iter(waiting.values())))
                    if (new := _greeted(door)) is not None:
                        waiting[new.line] = new
                        selector.register(new.line, selectors.EVENT_READ)
                elif (known := waiting.get(key.fileobj)) is not None:  # type: ignore[call-overload]
                    more = _received(known.line)
                    known.text += more
                    if more and len(known.text) < _LONGEST and not known.text.endswith(b"\n"):
                        continue
                    answer = _parsed(known.text)
                    good = answer is not None and _is_answer(answer)
                    drop(known, close=not good)
                    if answer is not None and good:
                        yield known, answer


def _greeted(door: socket.socket) -> _Guest | None:
    """Who has connected; None where it has gone again."""
    with suppress(OSError):
        line, (peer, *_) = door.accept()
        guest = _Guest(line, str(peer), secrets.token_hex(32), time.monotonic() + _PATIENCE)
        _say(line, {"dnnc": _GREETING, "nonce": guest.nonce})
        return guest
    return None


def _received(line: socket.socket) -> bytes:
    with suppress(OSError):
        return line.recv(_LONGEST)
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
    """Whether this is an object of texts and numbers alone."""
    return isinstance(value, dict) and all(isinstance(one, (str, int, float)) for one in value.values())


def _differs(theirs: Mapping[str, Any], mine: Mapping[str, Any], missing: set[int]) -> str:
    """What another host has that does not go with this one; empty where all is well."""
    if theirs["nodes"] == mine["nodes"] and theirs["node"] not in missing:
        return f"two hosts say that they are --node {theirs['node']}"
    for name, value in mine.items():
        if name != "node" and theirs.get(name) != value:
            return f"host {theirs['node']} has {name} {theirs.get(name)}, the first host {value}"
    return ""


# ---- the others


def _join(
    family: socket.AddressFamily,
    address: tuple[str, int],
    secret: bytes,
    claims: Mapping[str, Any],
    deadline: float,
    where: str,
) -> Met:
    with _connected(family, address, deadline, where) as line:
        greeting = _hear(line, deadline)
        if greeting is None and time.monotonic() >= deadline:
            raise StageStopped(FirstHostSilent(), where=where)
        if greeting is None or greeting.get("dnnc") != _GREETING or not isinstance(greeting.get("nonce"), str):
            raise InvalidInput(NotAFirstHost(), where=where)
        nonce = secrets.token_hex(32)
        said = _bytes(greeting["nonce"], nonce, claims)
        _say(line, {"nonce": nonce, "claims": claims, "proof": _proof(secret, b"another", said)})
        answer = _hear(line, deadline)
        if answer is None:
            raise StageStopped(FirstHostStopped(), where=where)
        if answer.get("refused") is True:
            raise InvalidInput(SecretRefused(), where=where)
        told = answer.get("told")
        if not _is_flat(told) or not _proves(secret, b"first", said + _bytes(told), answer.get("proof")):
            raise InvalidInput(FirstHostUnproven(), where=where)
        if "fault" in told:
            raise InvalidInput(HostsDiffer(str(told["fault"])), where=where)
        if "store" not in told:
            raise InvalidInput(NoStoreTold(), where=where)
        return Met(str(told["store"]), line.getsockname()[0], None)


def _connected(family: socket.AddressFamily, address: tuple[str, int], deadline: float, where: str) -> socket.socket:
    """A connection to the first host, once it listens."""
    while True:
        line = socket.socket(family, socket.SOCK_STREAM)
        line.settimeout(max(deadline - time.monotonic(), _AGAIN))
        try:
            line.connect(address)
            return line
        except OSError as error:
            line.close()
            if time.monotonic() > deadline:
                raise StageStopped(NobodyThere(error.strerror or str(error)), where=where) from None
        time.sleep(_AGAIN)


# ---- messages


def _say(line: socket.socket, message: Mapping[str, Any]) -> None:
    line.settimeout(_PATIENCE)
    with suppress(OSError):  # who does not listen does not come
        line.sendall(json.dumps(message).encode() + b"\n")


def _hear(line: socket.socket, deadline: float) -> dict[str, Any] | None:
    """The next message; None where none comes until ``deadline``, or something else does."""
    text = b""
    with suppress(OSError):
        while not text.endswith(b"\n") and len(text) < _LONGEST:
            line.settimeout(max(deadline - time.monotonic(), 1e-3))
            if not (more := line.recv(_LONGEST)):
                return None
            text += more
        return _parsed(text)
    return None


def _parsed(text: bytes) -> dict[str, Any] | None:
    """A message; None for what is none."""
    with suppress(ValueError, RecursionError):
        found = json.loads(text)
        return found if isinstance(found, dict) else None
    return None


def _bytes(*values: Any) -> bytes:
    return json.dumps(values, sort_keys=True).encode()


def _signed(secret: bytes, said: bytes, told: Mapping[str, Any]) -> dict[str, Any]:
    return {"told": told, "proof": _proof(secret, b"first", said + _bytes(told))}


def _proof(secret: bytes, who: bytes, said: bytes) -> str:
    return hmac.new(secret, who + b"\0" + said, hashlib.sha256).hexdigest()


def _proves(secret: bytes, who: bytes, said: bytes, proof: object) -> bool:
    return hmac.compare_digest(_proof(secret, who, said).encode(), str(proof).encode(errors="replace"))


__all__ = ["SECRET", "Met", "hosts_met", "read_secret"]
