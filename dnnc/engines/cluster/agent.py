"""The agent of a host in a run on several hosts: starts the processes of the host's devices, joins them to the starter.

There is one agent per host, because processes that share memory inherit it from one parent. Whoever launches an agent
(``agents``) gives it its settings and passes on what its relay offers; everything else goes through relays:

- the stream of commands, lines of JSON from the starter: ``{"start": .., "roles": .., "files": .., "pin": ..}``, ``"clock"``;
- the stream of answers, lines of JSON: ``{"sees": keys}`` where files of weights are needed, ``{"wants": keys}``,
  ``{"started": pids}`` or ``{"refused": diagnostics}``, and ``{"hashed": part}`` before these while a file is hashed;
  ``{"clock": seconds}``; then ``{"status": rows}`` and ``{"ended": [process, exit status]}`` when they change;
- the link of parts, by which it receives the digests of files that it sees and the files that its cache lacks (``parts``);
- of each process its standard input, its control pipe and its standard error, as on one host.

Invariant: when the starter has gone, or the agent is closed, no process and no file of it is left, but the cache.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dnnc.engines.cluster.files.cache import Progress
from dnnc.engines.cluster.files.parts import PIECES, PartFiles, cached_parts
from dnnc.engines.cluster.network.relay import Relay
from dnnc.engines.hosts.faults import HostRefused
from dnnc.engines.onnxruntime.starter.host import HostProcesses
from dnnc.engines.onnxruntime.starter.processes import LocalProcesses
from dnnc.engines.onnxruntime.starter.roles import STARTER
from dnnc.engines.onnxruntime.transport.edges import config_text
from ir.core.diagnostics import DnncError, InvalidInput

STRIDE = 1 << 16
"""Numbers of streams from that of one agent to that of the next."""
COMMANDS, ANSWERS, FIRST_PROCESS = 0, 1, 2
"""Numbers of streams from the agent's own on."""
ORDERS, CONTROL, ERRORS = range(3)
"""Numbers of the streams of a process from its own on."""
PARTS_LINK = 1 << 24
"""The number of the link of parts of the first agent; links of a build have smaller numbers."""
HASHED_SECONDS = 0.5
"""How often a host that hashes files says so."""
ERROR_BYTES = 1 << 16
"""Bytes of a process's standard error that are kept for the starter while it does not read them, the last ones."""
_PERIOD = 0.2
"""Seconds between two looks at the status of the processes."""


def readable(descriptors: Iterable[int], seconds: float | None = None) -> list[int]:
    """Those that can be read, once there are some; none after so many seconds. (``select`` takes numbers below 1024 alone.)"""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll(None if seconds is None else max(0.0, 1e3 * seconds))]


def wants_and_progress(answer: Callable[[Mapping[str, Any]], None]) -> tuple[Callable[[list[str]], None], Progress]:
    """What ``cached_parts`` calls for the parts that it wants, and while it hashes: ``answer`` tells both, the latter once in
    ``HASHED_SECONDS``."""
    told = time.monotonic()

    def progress(fraction: float) -> None:
        nonlocal told
        if time.monotonic() - told >= HASHED_SECONDS:
            told = time.monotonic()
            answer({"hashed": fraction})

    return lambda keys: answer({"wants": keys}), progress


def stream_of(agent: int, process: int, which: int) -> int:
    """The number of a stream of a process of an agent."""
    return agent * STRIDE + FIRST_PROCESS + 3 * process + which


class Agent:
    """``settings``: ``number`` of the agent; ``host``, its name; ``address`` and ``ports`` to listen on; ``starter``, what its
    relay offers; ``cache`` and ``cache_bytes``, folder and limit of the cache (empty and 0 for the defaults). Raises
    InvalidInput where there is no port."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings
        first, last = settings["ports"]
        self.relay = Relay(settings["address"], (first, last))
        network = {"address": settings["address"], "ports": [first, last]}
        self._host = HostProcesses(LocalProcesses(), str(settings["host"]), network)
        self._told: dict[int, tuple[int, ...]] = {}
        self._ended: set[int] = set()

    def serve(self) -> None:
        """Does what the starter says until the starter has gone. Raises ConnectionError where the starter is not reached."""
        number = int(self.settings["number"])
        with contextlib.suppress(OSError):  # Ray runs its workers at a low priority, which devices would inherit
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        try:
            self.relay.meet({STARTER: self.settings["starter"]}, called=True)
            commands, written = os.pipe()
            read, self._answers = os.pipe()
            self.relay.receive_stream(number * STRIDE + COMMANDS, STARTER, written)
            self.relay.send_stream(number * STRIDE + ANSWERS, STARTER, read)
            self._parts = self.relay.receiver(PARTS_LINK + number, PIECES, STARTER)
            buffered = b""
            try:
                while True:
                    if readable([commands], _PERIOD):
                        data = os.read(commands, 1 << 16)
                        if not data:
                            return
                        *lines, buffered = (buffered + data).split(b"\n")
                        for line in lines:
                            self._do(json.loads(line))
                    self._tell_status()
            except EOFError:  # the starter has gone
                return
            finally:
                os.close(commands)
                os.close(self._answers)
        finally:
            self.close()

    def close(self) -> None:
        """Ends the processes and the relay."""
        self._host.close()
        self.relay.close()

    def _do(self, command: Any) -> None:
        if command == "clock":
            self._answer({"clock": time.monotonic()})
            return
        try:
            self._start(command)
        except InvalidInput as error:
            self._answer({"refused": [diagnostic.to_json() for diagnostic in error.diagnostics]})
        except EOFError:
            raise
        except Exception as error:  # also what dnnc did wrong there is told here
            reason = str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
            self._answer({"refused": [HostRefused(self.settings["host"], reason).at().to_json()]})

    def _start(self, command: Mapping[str, Any]) -> None:
        """Gets the files and starts the processes."""
        files = command["files"]
        entries = cached_parts(
            files["parts"],
            self.settings,
            self._parts,
            *wants_and_progress(self._answer),
            files["paths"],
            lambda keys: self._answer({"sees": keys}),
        )
        roles = command["roles"]
        self._host.start(roles, PartFiles(files["models"], files["weights"], entries), pin=command["pin"])
        for process in self._host.every:
            assert process.popen.stdin is not None
            assert process.popen.stderr is not None
            numbers = [stream_of(int(self.settings["number"]), process.number, which) for which in range(3)]
            self.relay.receive_stream(numbers[ORDERS], STARTER, os.dup(process.popen.stdin.fileno()))
            process.popen.stdin.close()  # so that it ends with the stream
            self.relay.send_stream(numbers[CONTROL], STARTER, os.dup(process.control))
            self.relay.send_stream(numbers[ERRORS], STARTER, os.dup(process.popen.stderr.fileno()))
        self._answer({"started": [process.popen.pid for process in self._host.every]})

    def _tell_status(self) -> None:
        """Tells the starter what the processes do, where that has changed, and how they ended; times are of this host."""
        rows = {number: tuple(map(int, row)) for number, row in enumerate(self._host.status)}
        if changed := {number: row for number, row in rows.items() if self._told.get(number) != row}:
            self._told |= changed
            self._answer({"status": [[number, *row] for number, row in changed.items()]})
        for process in self._host.every:
            if process.number not in self._ended and (status := process.popen.poll()) is not None:
                self._ended.add(process.number)
                self._answer({"ended": [process.number, status]})

    def _answer(self, answer: Mapping[str, Any]) -> None:
        data = config_text(answer)
        while data:
            try:
                data = data[os.write(self._answers, data) :]
            except BrokenPipeError:
                raise EOFError from None


def main() -> None:
    """An agent as a program: its settings are one line of standard input, what its relay offers one line of standard output."""
    try:
        agent = Agent(json.loads(sys.stdin.readline()))
    except DnncError as error:
        print(json.dumps({"refused": [diagnostic.to_json() for diagnostic in error.diagnostics]}), flush=True)
        return
    print(json.dumps({"offer": agent.relay.offer}), flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        agent.serve()


if __name__ == "__main__":
    main()
