"""Starts and ends the processes of a run, one for each device, and makes the memory and pipes that they share.

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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dnnc.build.build import Build, StageProgram
from dnnc.engines.onnxruntime.engine import Launcher
from dnnc.engines.onnxruntime.faults import NoPipe, NoSharedMemory
from dnnc.engines.onnxruntime.starter.processes import DeviceProcess, LocalProcesses
from dnnc.engines.onnxruntime.transport.collectives import Places
from dnnc.engines.onnxruntime.transport.edges import (
    FEEDER,
    Descriptors,
    Receiver,
    Sender,
    anonymous_memory,
    map_memory,
    write_memory,
)
from dnnc.engines.onnxruntime.transport.sharing import places
from dnnc.engines.onnxruntime.transport.wiring import (
    Place,
    assign_cores,
    links,
    output_specs,
    peers_of,
    stage_places,
    uses_of,
)
from dnnc.engines.onnxruntime.worker import STATUS_WORDS
from dnnc.onnx.elements import BY_NAME
from ir.core.diagnostics import InvalidInput
from ir.ops.rows import lanes

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to run. ``threads``: cores (and onnxruntime threads) of each device, 0 for as many as its type has. ``timeout``:
    seconds that a stage may spend on one microbatch, or on loading (there at least a minute); None for no limit. ``pin``: bind
    devices to cores when there are enough for all. ``optimize``: onnxruntime's graph optimisations."""

    threads: int = 0
    timeout: float | None = 600.0
    pin: bool = True
    optimize: bool = True


@dataclass(frozen=True, slots=True)
class StarterEnd:
    """The starter's end of a link to ``place``, which carries microbatches ``first``, ``first + step`` and so on."""

    side: Any
    first: int
    step: int
    place: Place


@dataclass(frozen=True, slots=True)
class _Models:
    """Where the processes find their models: ``memory``, and by name offset, size, and weights by location; ``weights``: the
    descriptors of all of these."""

    memory: int
    places: Mapping[str, tuple[int, int, Mapping[str, int]]]
    weights: tuple[int, ...]


@dataclass(slots=True)
class _Wires:
    """The ends of links at one place. ``receives``, ``sends``: by the stage (or member of a mesh) at the other end, one for
    each of its replicas, None for a replica that works on none of this place's microbatches; ``feeds``, ``sinks``: from and to
    the starter."""

    receives: dict[Any, list[Any]] = field(default_factory=dict)
    sends: dict[Any, list[Any]] = field(default_factory=dict)
    feeds: list[Any] = field(default_factory=list)
    sinks: list[Any] = field(default_factory=list)

    @property
    def ends(self) -> Iterator[Any]:
        """Every side that there is."""
        for sides in (*self.receives.values(), *self.sends.values(), self.feeds, self.sinks):
            yield from (side for side in sides if side)


class Processes:
    """The running devices of a build, and the starter's sides of what it shares with them. ``status``: a row for each process,
    which it writes."""

    def __init__(self, build: Build, options: RunOptions, launcher: Launcher | None = None) -> None:
        self.build = build
        self.launcher: Launcher = launcher or LocalProcesses()
        self.options = options
        self.every: list[DeviceProcess] = []
        self.feeds: list[StarterEnd] = []
        self.sinks: list[StarterEnd] = []
        self.status = np.zeros((0, STATUS_WORDS), np.int64)
        self._descriptors: list[int] = []

    def start(self) -> None:
        """Starts all; they load their programs from then on. Raises InvalidInput where the system does not give the memory."""
        build, options = self.build, self.options
        every = stage_places(build)
        rows = {device: lanes(actions, build.flow.comm) for device, actions in build.schedule.rows}
        devices = list(dict.fromkeys(place.device for place in every))
        threads = [build.threads(device, options.threads) for device in devices]
        cores, own = assign_cores(threads, options.pin)
        size = 8 * STATUS_WORDS * len(devices)
        status = self._own(anonymous_memory(size))
        self.status = map_memory(status, size).view(np.int64).reshape(-1)[: STATUS_WORDS * len(devices)]
        self.status = self.status.reshape(len(devices), STATUS_WORDS)
        self.status[:, 2] = time.monotonic_ns()
        wires = self._connect(every)
        groups = {stage.index: self._gather(stage) for stage in build.stages if stage.members}
        models = self._models()
        for number, device in enumerate(devices):
            control_read, control_write = map(self._own, os.pipe())
            passed = [control_write, status, models.memory, *models.weights]
            stages = []
            for place, of_place in zip(every, wires, strict=True):
                if place.device == device:
                    stage_config, descriptors = self._stage(place, of_place, models, groups)
                    stages.append(stage_config)
                    passed += descriptors
            self.status[number, 3] = stages[0]["stage"]
            config = {
                "process": number,
                "processes": len(devices),
                "control": control_write,
                "status": status,
                "cores": cores[number],
                "threads": threads[number],
                "spin": own and threads[number] > 1,
                "optimize": options.optimize,
                "provider": build.provider(device).to_json(),
                "programs": models.memory,
                "stages": stages,
                "lanes": [[(a.kind, a.stage, a.microbatch, a.channel) for a in lane] for lane in rows[device][::-1]],
            }
            members = {config_of["stage"]: config_of.get("member", -1) for config_of in stages}
            process = self.launcher.start(config, passed)
            _LOG.debug("%s: process %d, %d threads, cores %s", device, process.pid, threads[number], cores[number] or "any")
            self.every.append(DeviceProcess(number, device, members, process, control_read))
        of_starter = {process.control for process in self.every}
        for end in (*self.feeds, *self.sinks):
            of_starter |= {end.side.descriptors.read, end.side.descriptors.write}
        for descriptor in [d for d in self._descriptors if d not in of_starter]:
            os.close(descriptor)
            self._descriptors.remove(descriptor)

    def _stage(
        self, place: Place, wires: _Wires, models: _Models, groups: Mapping[int, tuple[int, Places, Mapping[Any, Any]]]
    ) -> tuple[dict[str, Any], list[int]]:
        """The configuration of a stage on a process, and the descriptors that the process needs for it."""
        stage = self.build.stages[place.stage]
        config = {
            "stage": place.stage,
            "first": place.first,
            "every": place.step,
            "receives": list(wires.receives.values()),
            "sends": list(wires.sends.values()),
            "feeds": wires.feeds,
            "sinks": wires.sinks,
        }
        passed = [descriptor for side in wires.ends for descriptor in side[1]]
        if stage.members:
            more, descriptors = _member_config(stage, place.position, models, *groups[place.stage], wires)
            return {**config, **more}, passed + descriptors
        specs = output_specs(self.build, place.stage)
        assert stage.model is not None
        more = {"model": models.places[stage.model], "outputs": [[s.name, s.element, s.shape] for s in specs]}
        return {**config, **more}, passed

    def _connect(self, every: Sequence[Place]) -> list[_Wires]:
        """Makes every link; returns the sides of each place."""
        wires = [_Wires() for _ in every]
        for link in links(self.build):
            what = "what goes to or from the model" if FEEDER in (link.source, link.target) else "a cut"
            memory = self._memory(link.sent.nbytes, what)
            (data_read, data_write), (free_read, free_write) = (self._pipe(link.sent.token_bytes) for _ in range(2))
            sender, receiver = Descriptors(memory, free_read, data_write), Descriptors(memory, data_read, free_write)
            sends = link.sent.to_json(), (sender.memory, sender.read, sender.write)
            receives = link.received.to_json(), (receiver.memory, receiver.read, receiver.write)
            if link.source == FEEDER:
                self.feeds.append(StarterEnd(Sender(link.sent, sender), link.first, link.step, every[link.target]))
                wires[link.target].feeds.append(receives)
            elif link.target == FEEDER:
                self.sinks.append(StarterEnd(Receiver(link.received, receiver), link.first, link.step, every[link.source]))
                wires[link.source].sinks.append(sends)
            else:
                self._note(wires[link.source].sends, every[link.target], sends)
                self._note(wires[link.target].receives, every[link.source], receives)
        return wires

    def _note(self, ends: dict[Any, list[Any]], other: Place, end: Any) -> None:
        """Puts one side of a link among those of the stage, or of the member of a mesh, at its other end."""
        stage = self.build.stages[other.stage]
        key, width = ((other.stage, other.position), 1) if stage.members else ((other.stage, -1), len(stage.devices))
        ends.setdefault(key, [None] * width)[other.position % width] = end

    def _gather(self, stage: StageProgram) -> tuple[int, Places, dict[tuple[int, int], tuple[int, int]]]:
        """What the members of a stage share: the memory of their collectives, and pipes for tokens from one to another."""
        shared = places(stage.collectives, uses_of(stage))
        memory = self._memory(shared.total, f"the collectives of stage {stage.index}")
        pipes = {}
        for member in range(len(stage.members)):
            for peer in peers_of(stage.collectives, member):
                read, write = map(self._own, os.pipe())
                pipes[member, peer] = read, write
        return memory, shared, pipes

    def _models(self) -> _Models:
        """The stage models, as they were verified, one after the other in memory that the processes read."""
        files, places_of_models, offset = self.build.files, {}, 0
        names = tuple(dict.fromkeys(name for stage in self.build.stages for name in stage.models))
        for name in names:
            size = len(files.read(name))
            places_of_models[name] = (offset, size, files.weights_for(name))
            offset += size
        memory = self._memory(offset, "the stage models")
        write_memory(memory, map(files.read, names))
        descriptors = {d for _, _, weights in places_of_models.values() for d in weights.values()}
        return _Models(memory, places_of_models, tuple(descriptors))

    def _memory(self, size: int, purpose: str) -> int:
        """Shared memory. Raises InvalidInput where the system does not give so much: a plan may ask for any."""
        try:
            descriptor = self._own(anonymous_memory(size))
            map_memory(descriptor, size)
        except (OSError, OverflowError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
                raise
            raise InvalidInput(NoSharedMemory(purpose, size, str(error)), where=str(self.build.folder)) from error
        return descriptor

    def _pipe(self, size: int) -> tuple[int, int]:
        """The ends of a pipe that holds ``size`` bytes, so that no writer waits for its reader, perhaps itself. Raises
        InvalidInput where the system gives no pipe so large: the rows of a plan may ask for any."""
        read, write = map(self._own, os.pipe())
        resize, held = getattr(fcntl, "F_SETPIPE_SZ", None), getattr(fcntl, "F_GETPIPE_SZ", None)  # Linux has them
        if resize is not None and held is not None and fcntl.fcntl(write, held) < size:
            try:
                fcntl.fcntl(write, resize, size)
            except (OSError, OverflowError) as error:
                raise InvalidInput(NoPipe(size, str(error)), where=str(self.build.folder)) from error
        return read, write

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
        for descriptor in self._descriptors:
            os.close(descriptor)
        self.status = np.zeros((0, STATUS_WORDS), np.int64)
        for port in (*self.feeds, *self.sinks):
            port.side.close()
        self._descriptors, self.every, self.feeds, self.sinks = [], [], [], []


def _member_config(
    stage: StageProgram,
    member: int,
    models: _Models,
    memory: int,
    shared: Places,
    pipes: Mapping[tuple[int, int], tuple[int, int]],
    wires: _Wires,
) -> tuple[dict[str, Any], list[int]]:
    """What only the configuration of a member of a mesh has, and its descriptors. ``pipes``: by sender and receiver."""
    program = stage.members[member]
    peers = [(peer, pipes[peer, member][0], pipes[member, peer][1]) for peer in peers_of(stage.collectives, member)]
    leaving = [end for sides in (*wires.sends.values(), wires.sinks) for end in sides if end]
    config = {
        "member": member,
        "memory": memory,
        "places": shared.to_json(),
        "peers": peers,
        "collectives": [collective.to_json() for collective in stage.collectives],
        "segments": [
            (
                s.level,
                models.places[s.model],
                [(v.name, BY_NAME[v.dtype].number if v.dtype in BY_NAME else 0, v.shape) for v in s.outputs],
            )
            for s in program.segments
        ],
        "outputs": list({name: (name, element, shape) for end in leaving for name, element, shape in end[0][2]}.values()),
    }
    return config, [memory, *(descriptor for _, *both in peers for descriptor in both)]


__all__ = ["Processes", "RunOptions", "StarterEnd"]
