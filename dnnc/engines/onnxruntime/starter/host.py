"""The processes of the devices of one host, and what they share: memory and pipes of links and groups, stage models, status.

Invariants: ``close`` closes everything that was made here, also where starting fails in the middle; shared memory has no name,
so none of it outlives the processes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dnnc.build.collective import Collective
from dnnc.engines.onnxruntime.engine import Launcher
from dnnc.engines.onnxruntime.faults import NoPipe, NoSharedMemory
from dnnc.engines.onnxruntime.starter.processes import DeviceProcess
from dnnc.engines.onnxruntime.starter.roles import Role, programs_of
from dnnc.engines.onnxruntime.transport.collectives import Places
from dnnc.engines.onnxruntime.transport.edges import FEEDER, Descriptors, Edge, anonymous_memory, map_memory, write_memory
from dnnc.engines.onnxruntime.transport.opening import EDGES, MEMORY
from dnnc.engines.onnxruntime.transport.wiring import peers_of
from dnnc.engines.onnxruntime.worker import STATUS_WORDS
from ir.core.diagnostics import InvalidInput
from ir.system.child import forks_wait
from ir.system.host import device_cores

_LOG = logging.getLogger(__name__)


class StageFiles(Protocol):
    """The files of the stages that run here."""

    def read(self, name: str) -> bytes:
        """The bytes of a stage model."""

    def weights_for(self, model: str) -> Mapping[str, int]:
        """Descriptors of the weights that a stage model may refer to, by the location that it gives."""


@dataclass(frozen=True, slots=True)
class _Models:
    """Where the processes find their models: ``memory``, and by name offset, size, and weights by location."""

    memory: int
    places: Mapping[str, tuple[int, int, Mapping[str, int]]]

    @property
    def descriptors(self) -> set[int]:
        return {self.memory, *(d for _, _, weights in self.places.values() for d in weights.values())}


class HostProcesses:
    """The running devices of one host. ``every``: in the order of their roles; ``status``: a row for each, which it writes.
    ``where``: names the build in messages; ``network``: settings of the transport to other hosts, where there are any."""

    def __init__(self, launcher: Launcher, where: str, network: Mapping[str, Any] | None = None) -> None:
        self.launcher = launcher
        self.where = where
        self.network = network
        self.every: list[DeviceProcess] = []
        self.status = np.zeros((0, STATUS_WORDS), np.int64)
        self._links: dict[int, tuple[Descriptors, Descriptors]] = {}
        self._groups: dict[int, tuple[int, dict[tuple[int, int], tuple[int, int]]]] = {}
        self._descriptors: list[int] = []

    def link(self, number: int, edge: Edge) -> tuple[Descriptors, Descriptors]:
        """The sender's and the receiver's descriptors of a link in shared memory, which is made at its first use. Raises
        InvalidInput where the system gives no such memory or pipes."""
        if number not in self._links:
            what = "what goes to or from the model" if FEEDER in (edge.producer, edge.consumer) else "a cut"
            memory = self._memory(edge.nbytes, what)
            (data_read, data_write), (free_read, free_write) = (self._pipe(edge.token_bytes) for _ in range(2))
            self._links[number] = (Descriptors(memory, free_read, data_write), Descriptors(memory, data_read, free_write))
        return self._links[number]

    def start(self, roles: Sequence[Role], files: StageFiles, *, pin: bool = True, kept: Iterable[int] = ()) -> None:
        """Starts a process for each role; they load their programs from then on. ``pin``: bind them to cores when there are
        enough for all; ``kept``: descriptors of links that this process uses itself. Raises InvalidInput where the
        system does not give the memory."""
        threads = {cpu: count for role in roles for cpu, count in role["cpus"].items()}
        threads |= {role["device"]: role["threads"] for role in roles}
        cores, own = device_cores([role["device"] for role in roles], threads, pin)
        size = 8 * STATUS_WORDS * len(roles)
        status = self._own(anonymous_memory(size))
        words = map_memory(status, size).view(np.int64).reshape(-1)[: STATUS_WORDS * len(roles)]
        self.status = words.reshape(len(roles), STATUS_WORDS)
        self.status[:, 2] = time.monotonic_ns()
        models = self._models(roles, files)
        with forks_wait():
            for number, role in enumerate(roles):
                control_read, control_write = map(self._own, os.pipe())
                passed = {control_write, status, *models.descriptors}
                stages = [self._stage(stage, models, passed) for stage in role["stages"]]
                self.status[number, 3] = stages[0]["stage"]
                config = {
                    **{key: value for key, value in role.items() if key != "cpus"},
                    "process": number,
                    "processes": len(roles),
                    "control": control_write,
                    "status": status,
                    "cores": cores[number],
                    "spin": own and role["threads"] > 1,
                    "programs": models.memory,
                    "stages": stages,
                    **({"network": self.network} if role["peers"] else {}),
                }
                members = {stage["stage"]: stage["group"]["member"] if "group" in stage else -1 for stage in stages}
                process = self.launcher.start(config, sorted(passed))
                device, count = role["device"], role["threads"]
                _LOG.debug("%s: process %d, %d threads, cores %s", device, process.pid, count, cores[number] or "any")
                self.every.append(DeviceProcess(number, device, members, process, control_read))
            needed = {*kept, *(process.control for process in self.every)}
            for descriptor in [d for d in self._descriptors if d not in needed]:
                self._descriptors.remove(descriptor)  # first: an interrupt between the two must not let it be closed twice
                os.close(descriptor)

    def _stage(self, stage: Mapping[str, Any], models: _Models, passed: set[int]) -> dict[str, Any]:
        """The configuration of a stage; adds the descriptors that it names to ``passed``."""

        config = {
            **stage,
            "receives": [[self._filled(end, 1, passed) for end in ends] for ends in stage["receives"]],
            "sends": [[self._filled(end, 0, passed) for end in ends] for ends in stage["sends"]],
            "feeds": [self._filled(end, 1, passed) for end in stage["feeds"]],
            "sinks": [self._filled(end, 0, passed) for end in stage["sinks"]],
        }
        told = stage.get("decoding", {})
        if "group" not in stage:
            if "prompt" in told:
                config["decoding"] = {**told, "prompt": models.places[told["prompt"]]}
            return {**config, "model": models.places[stage["model"]]}
        own, *prompt = (self._program(program, models, passed) for program in programs_of(stage))
        if prompt:
            config["decoding"] = {**told, "prompt": prompt[0]}
        return {**config, **own}

    def _program(self, program: Mapping[str, Any], models: _Models, passed: set[int]) -> dict[str, Any]:
        """The segments of a member, and what it knows of its group; adds the descriptors that these name to ``passed``."""
        segments = [(level, models.places[name], outputs) for level, name, outputs in program["segments"]]
        return {"segments": segments, "group": self._member(program["group"], passed)}

    def _filled(self, end: Any, side: int, passed: set[int]) -> Any:
        """An end with its descriptors where it is in shared memory. ``side``: 0 of the sender, 1 of the receiver."""
        if not end or end[0] != MEMORY:
            return end
        name, edge, number = end
        descriptors = self.link(number, Edge.from_json(edge))[side]
        place = descriptors.memory, descriptors.read, descriptors.write
        passed.update(place)
        return [name, edge, place]

    def _member(self, group: Mapping[str, Any], passed: set[int]) -> Mapping[str, Any]:
        """What a member knows of its group; adds the descriptors that it names to ``passed``."""
        if group["transport"] == EDGES:
            sends = [(peer, self._filled(end, 0, passed)) for peer, end in group["sends"]]
            return {**group, "sends": sends, "receives": [(p, self._filled(end, 1, passed)) for p, end in group["receives"]]}
        number, member = group["stage"], group["member"]
        collectives = tuple(map(Collective.from_json, group["collectives"]))
        if number not in self._groups:
            self._groups[number] = self._gather(number, collectives, Places.from_json(group["places"]))
        memory, pipes = self._groups[number]
        peers = [(peer, pipes[peer, member][0], pipes[member, peer][1]) for peer in peers_of(collectives, member)]
        passed.update((memory, *(descriptor for _, *both in peers for descriptor in both)))
        return {**group, "memory": memory, "peers": peers}

    def _gather(
        self, stage: int, collectives: Sequence[Collective], places: Places
    ) -> tuple[int, dict[tuple[int, int], tuple[int, int]]]:
        """What the members of a stage share: the memory of their collectives, and pipes for tokens from one to another, by
        sender and receiver."""
        memory = self._memory(places.total, f"the collectives of stage {stage}")
        members = sorted({member for one in collectives for group in one.groups for member in group})
        pairs = [(member, peer) for member in members for peer in peers_of(collectives, member)]
        return memory, {pair: self._both(os.pipe()) for pair in pairs}

    def _models(self, roles: Sequence[Role], files: StageFiles) -> _Models:
        """The stage models, as they were verified, one after the other in memory that the processes read."""
        names, places, offset = models_of(roles), {}, 0
        for name in names:
            size = len(files.read(name))
            places[name] = (offset, size, files.weights_for(name))
            offset += size
        memory = self._memory(offset, "the stage models")
        write_memory(memory, map(files.read, names))
        return _Models(memory, places)

    def _memory(self, size: int, purpose: str) -> int:
        """Shared memory. Raises InvalidInput where the system does not give so much: a plan may ask for any."""
        try:
            descriptor = self._own(anonymous_memory(size))
            map_memory(descriptor, size)
        except (OSError, OverflowError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
                raise
            raise InvalidInput(NoSharedMemory(purpose, size, str(error)), where=self.where) from error
        return descriptor

    def _pipe(self, size: int) -> tuple[int, int]:
        """The ends of a pipe that holds ``size`` bytes, so that no writer waits for its reader, perhaps itself. Raises
        InvalidInput where the system gives no pipe so large: the rows of a plan may ask for any."""
        read, write = self._both(os.pipe())
        resize, held = getattr(fcntl, "F_SETPIPE_SZ", None), getattr(fcntl, "F_GETPIPE_SZ", None)  # Linux has them
        if resize is not None and held is not None and fcntl.fcntl(write, held) < size:
            try:
                fcntl.fcntl(write, resize, size)
            except (OSError, OverflowError) as error:
                raise InvalidInput(NoPipe(size, str(error)), where=self.where) from error
        return read, write

    def _both(self, ends: tuple[int, int]) -> tuple[int, int]:
        return self._own(ends[0]), self._own(ends[1])

    def _own(self, descriptor: int) -> int:
        self._descriptors.append(descriptor)
        return descriptor

    def close(self) -> None:
        """Ends every process and closes everything; may be called again."""
        for process in self.every:
            if process.popen.stdin is not None and not process.popen.stdin.closed:
                with contextlib.suppress(OSError):
                    process.popen.stdin.close()
        deadline = time.monotonic() + 1.0
        for process in self.every:
            try:
                process.popen.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.popen.kill()
                process.popen.wait()
            if process.popen.stderr is not None:
                process.popen.stderr.close()
        while self._descriptors:
            os.close(self._descriptors.pop())
        self.status = np.zeros((0, STATUS_WORDS), np.int64)
        self.every = []
        self._links, self._groups = {}, {}


def models_of(roles: Iterable[Role]) -> tuple[str, ...]:
    """Names of the stage models of these roles, each once."""
    stages = [stage for role in roles for stage in role["stages"]]
    members = [program for stage in stages if "group" in stage for program in programs_of(stage)]
    every = [[stage["model"]] for stage in stages if "group" not in stage]
    every += [[name for _, name, _ in program["segments"]] for program in members]
    prompts = [[stage["decoding"]["prompt"]] for stage in stages if "model" in stage and "prompt" in stage.get("decoding", {})]
    return tuple(dict.fromkeys(name for names in (*every, *prompts) for name in names))
