"""The processes of a run on several hosts, as the starter has them: each looks like a process of this host.

The starter has a relay too, so the ends of its links, the control pipe and the standard error of each process are descriptors
here. A thread listens to the agents, for the status of processes and how they ended.

A run starts so: the agents are launched and met; each is sent its roles and the files that its cache lacks, and starts its
processes; each of these tells where it listens and its public key; then each is told that of the processes that it has links
with, and the starter meets those that it feeds and collects from.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import IO, Any

import numpy as np

from dnnc.build.build import Build
from dnnc.engines.cluster.agent import (
    ANSWERS,
    COMMANDS,
    CONTROL,
    ERROR_BYTES,
    ERRORS,
    ORDERS,
    PARTS_LINK,
    STRIDE,
    readable,
    stream_of,
)
from dnnc.engines.cluster.agents import Agents
from dnnc.engines.cluster.files.parts import PIECES, Needed, needed, send_digests, send_parts
from dnnc.engines.cluster.network.relay import Relay
from dnnc.engines.hosts.answers import MOST_ANSWER, MOST_TEXT, Answers
from dnnc.engines.hosts.faults import HostGone, HostSilent, NotConnected
from dnnc.engines.hosts.options import PORTS, WAIT_SECONDS
from dnnc.engines.onnxruntime.errors import StageStopped
from dnnc.engines.onnxruntime.starter.processes import DOING, HOST_GONE, DeviceProcess
from dnnc.engines.onnxruntime.starter.roles import STARTER, Role, roles
from dnnc.engines.onnxruntime.starter.starting import RunOptions, StarterEnd
from dnnc.engines.onnxruntime.transport.edges import FEEDER, Sender, config_text
from dnnc.engines.onnxruntime.transport.wiring import links, stage_places
from dnnc.engines.onnxruntime.worker import FAILED, PEER_GONE, STATUS_WORDS
from dnnc.onnx.elements import Array
from ir.core.diagnostics import InvalidInput

START_SECONDS = 60.0
"""How long a host may take to start its processes, and to say anything while it hashes and receives files."""
_ENDED_SECONDS = 2.0
"""How long it may take until an agent tells that a process has ended which others did not reach."""
_MOST_STEPS, _MOST_STATUS = 1 << 62, 255
_MOST_PROCESS, _MOST_SECONDS = 1 << 31, 1e9
_PINGS = 8
"""Questions by which the clock of a host is compared with that of the starter; the quickest answer counts."""


@dataclass(frozen=True, slots=True)
class Hosts:
    """Where the devices of a run are. ``of``: the host of each device; ``addresses``: of each host, by which the others reach
    it; ``here``: the address by which they reach the starter; ``ports``: first and last of those that processes listen on.
    ``cache``, ``cache_bytes``: folder and limit of the cache on each host, empty and 0 for the defaults; ``wait``: seconds that
    a lost host has to come back."""

    of: Mapping[str, str]
    addresses: Mapping[str, str]
    here: str
    ports: tuple[int, int] = PORTS
    cache: str = ""
    cache_bytes: int = 0
    wait: float = WAIT_SECONDS


@dataclass(slots=True)
class _Far:
    """A host with its agent. ``clock``: seconds to add to its times to have those of the starter; ``processes``: numbers of its
    processes among all."""

    name: str
    number: int
    offer: tuple[str, str]
    commands: int
    answers: int
    parts: Sender
    clock: float = 0.0
    processes: list[int] = field(default_factory=list)
    buffered: bytes = b""

    @property
    def said(self) -> Answers:
        return Answers(self.name)


class FarProcess:
    """A process on another host: a ``Process`` of the engine. Its agent says when it has ended."""

    def __init__(self, pid: int, stdin: IO[bytes], stderr: IO[bytes]) -> None:
        self.pid = pid
        self.stdin: IO[bytes] | None = stdin
        self.stderr: IO[bytes] | None = stderr
        self.status: int | None = None
        self.ended = threading.Event()

    def end(self, status: int) -> None:
        """Notes its exit status, once."""
        if self.status is None:
            self.status = status
        self.ended.set()

    def poll(self) -> int | None:
        return self.status

    def wait(self, timeout: float | None = None) -> int:
        if not self.ended.wait(timeout):
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return self.status or 0

    def kill(self) -> None:
        """Its agent ends it when the agent is ended."""


class FarProcesses:
    """The running devices of a build on several hosts: as ``Processes`` of one host."""

    def __init__(self, build: Build, options: RunOptions, hosts: Hosts, agents: Agents) -> None:
        self.build = build
        self.options = options
        self.hosts = hosts
        self.agents = agents
        self.every: list[DeviceProcess] = []
        self.feeds: list[StarterEnd] = []
        self.sinks: list[StarterEnd] = []
        self.status: Array = np.zeros((0, STATUS_WORDS), np.int64)
        self.sent_bytes = 0
        self._relay: Relay | None = None
        self._far: list[_Far] = []
        self._offers: dict[str, str] = {}  # who listens at each endpoint
        self._descriptors: list[int] = []
        self._pipes: list[Any] = []
        self._listener: threading.Thread | None = None

    @property
    def wait(self) -> float:
        return self.hosts.wait

    def back(self, until: float, stopped: Callable[[], bool]) -> None:
        """Waits until an agent can be launched on every host. Raises StageStopped that names one that is not there in time."""
        self.hosts = replace(self.hosts, addresses={**self.hosts.addresses, **self.agents.back(until, stopped)})

    def start(self) -> None:
        """Starts all; they load their programs from then on. Raises InvalidInput for what a host refuses, StageStopped for one
        that is not reached."""
        build, hosts = self.build, self.hosts
        wires = links(build)
        every = roles(build, wires, self.options.threads, self.options.optimize, hosts.of)
        self.status = np.zeros((len(every), STATUS_WORDS), np.int64)
        self.status[:, 2] = time.monotonic_ns()
        self.status[:, 3] = [role["stages"][0]["stage"] for role in every]
        self._relay = relay = Relay(hosts.here, hosts.ports, self._unfit)
        by_host: dict[str, list[int]] = {}
        for number, role in enumerate(every):
            by_host.setdefault(hosts.of[role["device"]], []).append(number)
        try:
            for name, numbers in by_host.items():
                self._far.append(self._launch(relay, name, numbers))
            processes: dict[int, DeviceProcess] = {}
            for far in self._far:
                processes |= self._start(far, [every[number] for number in far.processes])
            self.every = [processes[number] for number in range(len(every))]
            self._listener = threading.Thread(target=self._listen, name="dnnc-hosts", daemon=True)
            self._listener.start()
            try:
                if not self._introduce(relay, every):
                    return  # a process has ended, and its control pipe says why
            except ConnectionError:
                if self._one_ended():
                    return
                raise
        except ConnectionError as error:
            raise StageStopped(NotConnected(tuple(str(error).split(", "))), where=self._listeners(str(error))) from None
        places = stage_places(build)
        for number, link in enumerate(wires):
            if link.source == FEEDER and (place := places[link.target]):
                side: Any = relay.sender(number, link.sent, place.device)
                self.feeds.append(StarterEnd(side, link.turns, place))
            elif link.target == FEEDER and (place := places[link.source]):
                side = relay.receiver(number, link.received, place.device)
                self.sinks.append(StarterEnd(side, link.turns, place))

    def _launch(self, relay: Relay, name: str, processes: list[int]) -> _Far:
        """Launches the agent of a host and opens its streams."""
        number, hosts = len(self._far), self.hosts
        offer = self.agents.launch(
            {
                "number": number,
                "host": name,
                "address": hosts.addresses[name],
                "ports": list(hosts.ports),
                "starter": list(relay.offer),
                "cache": hosts.cache,
                "cache_bytes": hosts.cache_bytes,
            }
        )
        peer = _agent(name)
        self._offers[offer[0]] = f"{', '.join(device for device, of in hosts.of.items() if of == name)} of host {name}"
        relay.meet({peer: offer})
        commands_read, commands = os.pipe()
        answers, answers_written = os.pipe()
        self._descriptors += (commands, answers)
        relay.send_stream(number * STRIDE + COMMANDS, peer, commands_read)
        relay.receive_stream(number * STRIDE + ANSWERS, peer, answers_written)
        parts = relay.sender(PARTS_LINK + number, PIECES, peer)
        return _Far(name, number, offer, commands, answers, parts, processes=processes)

    def _start(self, far: _Far, own: Sequence[Role]) -> dict[int, DeviceProcess]:
        """Lets a host start its processes; returns them by number."""
        far.clock = self._clock(far)
        files = needed(self.build.files, own)
        self._command(far, {"roles": own, "files": files.to_json(), "pin": self.options.pin})
        try:
            if files.paths:
                send_digests(far.parts, files, known_keys(far.said, self._answer(far, "sees"), "sees", files.paths))
            self.sent_bytes += send_parts(far.parts, files, wanted_keys(far.said, self._answer(far, "wants"), files))
        except EOFError:
            raise self._gone(far, "it was sent files of the build") from None
        started = far.said.items(self._answer(far, "started"), "started", len(own))
        pids = [far.said.integer(pid, "started", 1, _MOST_PROCESS) for pid in started]
        peer, processes = _agent(far.name), {}
        assert self._relay is not None
        for local, (number, role, pid) in enumerate(zip(far.processes, own, pids, strict=True)):
            pipes = [os.pipe() for _ in range(3)]
            numbers = [stream_of(far.number, local, which) for which in range(3)]
            self._relay.send_stream(numbers[ORDERS], peer, pipes[ORDERS][0])
            self._relay.receive_stream(numbers[CONTROL], peer, pipes[CONTROL][1])
            self._relay.receive_stream(numbers[ERRORS], peer, pipes[ERRORS][1], last=ERROR_BYTES)
            self._descriptors.append(pipes[CONTROL][0])
            process = FarProcess(pid, os.fdopen(pipes[ORDERS][1], "wb"), os.fdopen(pipes[ERRORS][0], "rb"))
            self._pipes += (process.stdin, process.stderr)
            members = {stage["stage"]: stage["group"]["member"] if "group" in stage else -1 for stage in role["stages"]}
            processes[number] = DeviceProcess(
                number, role["device"], members, process, pipes[CONTROL][0], host=far.name, clock=far.clock
            )
        return processes

    def _clock(self, far: _Far) -> float:
        """Seconds to add to times of the host: half of a round trip before the answer, the host's clock showed what it said."""
        tried: list[tuple[float, float]] = []
        for _ in range(_PINGS):
            begin = time.monotonic()
            self._command(far, "clock")
            there, end = far.said.real(self._answer(far, "clock"), "clock", 0.0, _MOST_SECONDS), time.monotonic()
            tried.append((end - begin, (begin + end) / 2 - there))
        return min(tried)[1]

    def _command(self, far: _Far, command: Any) -> None:
        data = config_text(command)
        while data:
            try:
                data = data[os.write(far.commands, data) :]
            except BrokenPipeError:
                raise self._gone(far, "its processes are started") from None

    def _answer(self, far: _Far, field: str) -> Any:
        """A field of the next answer of an agent that has it; what it says before shows that it works. Raises InvalidInput for
        what it refuses, StageStopped where it has gone or is silent."""
        while True:
            line = _line(far, START_SECONDS)
            if line is None:
                raise StageStopped(HostSilent(far.name, START_SECONDS), where=str(self.build.folder))
            if not line:
                raise self._gone(far, "its processes are started")
            answer = far.said.line(line)
            if "refused" in answer:
                raise InvalidInput(far.said.diagnostics(answer["refused"]))
            if field in answer:
                return answer[field]
            if not answer.keys() & {"hashed", "status", "ended"}:
                raise far.said.refuse("an answer", sorted(answer), field)

    def _one_ended(self) -> bool:
        """Whether a process has ended, or ends now, as its agent tells."""
        deadline = time.monotonic() + _ENDED_SECONDS
        while time.monotonic() < deadline:
            if any(process.popen.poll() not in (None, PEER_GONE, FAILED) for process in self.every):
                return True
            time.sleep(0.05)
        return False

    def _listeners(self, endpoints: str) -> str:
        """Who listens at the endpoints that were not reached; the build where that is not known."""
        known = [self._offers[one] for one in endpoints.split(", ") if one in self._offers]
        return "; ".join(known) or str(self.build.folder)

    def _unfit(self, peer: str, words: str) -> None:
        """Notes, in the thread of the relay, that a process or an agent sent what it cannot have meant."""
        for process in self.every:
            if peer in (process.device, _agent(process.host)):
                process.wrong = Answers(process.host, process.label(min(process.members))).refuse(
                    "a message", words, "none such"
                )

    def _gone(self, far: _Far, doing: str) -> StageStopped:
        return StageStopped(HostGone(far.name, doing), where=str(self.build.folder))

    def _introduce(self, relay: Relay, every: Sequence[Role]) -> bool:
        """Tells the processes where those are that they have links with, and meets those that have links with the starter.
        Returns whether all processes said where they listen. Raises ConnectionError."""
        addresses: dict[str, Any] = {STARTER: relay.offer}
        for process, role in zip(self.every, every, strict=True):
            if role["peers"]:
                address = self._address(process)
                if address is None:
                    return False
                addresses[process.device] = address
                self._offers[address[0]] = f"{process.device} of host {process.host}"
        fed = {role["device"]: addresses[role["device"]] for role in every if STARTER in role["peers"]}
        relay.admit(fed)
        for process, role in zip(self.every, every, strict=True):
            if role["peers"]:
                assert process.popen.stdin is not None
                with contextlib.suppress(BrokenPipeError):
                    process.popen.stdin.write(config_text({peer: addresses[peer] for peer in role["peers"]}))
                    process.popen.stdin.flush()
        relay.meet(fed)
        return True

    def _address(self, process: DeviceProcess) -> Any:
        """Where a process says that it listens, and its key: the first line of its control pipe. None where it has ended; the
        error that it reported is noted. Raises StageStopped where it says nothing."""
        deadline = time.monotonic() + START_SECONDS
        while b"\n" not in process.buffered:
            if not readable([process.control], deadline - time.monotonic()):
                raise StageStopped(HostSilent(process.host, START_SECONDS), where=str(self.build.folder))
            data = os.read(process.control, 1 << 16)
            if not data:
                return None
            process.buffered += data
            if len(process.buffered) > MOST_TEXT:
                break
        line, _, process.buffered = process.buffered.partition(b"\n")
        said = Answers(process.host, process.label(min(process.members)))
        message = said.line(line)
        if "error" in message:
            process.error = said.error(message, process.members)
            return None
        return said.offer(message.get("address"), "address", self.hosts.addresses[process.host], self.hosts.ports)

    def _listen(self) -> None:
        """Thread: notes what agents say of the status and the ends of their processes, until all agents have gone."""
        open_ = {far.answers: far for far in self._far}
        ready = list(open_)  # lines may have come with the answers before
        while open_:
            for descriptor in ready:
                far = open_[descriptor]
                try:
                    while line := _line(far, 0.0):
                        self._hear(far, far.said.line(line))
                except InvalidInput as wrong:
                    line = b""
                    for number in far.processes:
                        self.every[number].wrong = wrong
                if line == b"":
                    del open_[descriptor]
                    for number in far.processes:
                        self._far_process(number).end(HOST_GONE)
            ready = readable(open_) if open_ else []

    def _hear(self, far: _Far, answer: Mapping[str, Any]) -> None:
        """Notes what an agent tells of its processes. Raises InvalidInput."""
        said, last = far.said, len(far.processes) - 1
        for row in said.items(answer.get("status", []), "status"):
            local, state, microbatch, since, stage = said.items(row, "status", STATUS_WORDS + 1)
            number = far.processes[said.integer(local, "status", 0, last)]
            if said.integer(stage, "status", 0, _MOST_STEPS) not in self.every[number].members:
                raise said.refuse("status", stage, "a stage of the process")
            since = said.integer(since, "status", 0, _MOST_STEPS) + int(far.clock * 1e9)
            words = said.integer(state, "status", 0, max(DOING)), said.integer(microbatch, "status", -1, _MOST_STEPS)
            self.status[number] = *words, since, stage
        if "ended" in answer:
            local, status = said.items(answer["ended"], "ended", 2)
            number = far.processes[said.integer(local, "ended", 0, last)]
            self._far_process(number).end(said.integer(status, "ended", -_MOST_STATUS, _MOST_STATUS))

    def _far_process(self, number: int) -> FarProcess:
        process = self.every[number].popen
        assert isinstance(process, FarProcess)
        return process

    def close(self) -> None:
        """Ends every process and agent and closes everything; may be called again."""
        for process in self.every:
            if process.popen.stdin is not None and not process.popen.stdin.closed:
                with contextlib.suppress(OSError):
                    process.popen.stdin.close()
        deadline = time.monotonic() + 1.0
        for process in self.every:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.popen.wait(max(0.0, deadline - time.monotonic()))
        if self._relay is not None:
            self._relay.close()  # agents end when the starter has gone
        if self._listener is not None:
            self._listener.join()
        self.agents.close()
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.close()
        for descriptor in self._descriptors:
            os.close(descriptor)
        for port in (*self.feeds, *self.sinks):
            port.side.close()
        for far in self._far:
            far.parts.close()
        self._descriptors, self._pipes, self.every, self.feeds, self.sinks, self._far = [], [], [], [], [], []
        self._offers = {}
        self._relay = self._listener = None
        self.status = np.zeros((0, STATUS_WORDS), np.int64)


def wanted_keys(said: Answers, found: Any, files: Needed) -> list[str]:
    """The keys of those ``files`` that a host wants. Raises InvalidInput for others."""
    return known_keys(said, found, "wants", {part.key for part in files.parts})


def known_keys(said: Answers, found: Any, field: str, known: Collection[str]) -> list[str]:
    """The keys of parts, of those ``known``, that a host answers as a ``field``. Raises InvalidInput for others."""
    keys = said.items(found, field, most=len(known))
    for key in keys:
        if said.text(key, field) not in known:
            raise said.refuse(field, key, "keys of parts that it was told of")
    return keys


def _agent(host: str) -> str:
    """The name of the agent of a host among processes; no device has such a name."""
    return f"host {host}"


def _line(far: _Far, seconds: float) -> bytes | None:
    """The next line of an agent's answers; empty at their end, None where there is none in so many seconds."""
    deadline = time.monotonic() + seconds
    while b"\n" not in far.buffered:
        if not readable([far.answers], deadline - time.monotonic()):
            return None
        data = os.read(far.answers, 1 << 16)
        if not data:
            return b""
        far.buffered += data
        if len(far.buffered) > MOST_ANSWER:
            break
    line, _, far.buffered = far.buffered.partition(b"\n")
    return line
