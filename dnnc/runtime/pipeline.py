"""The starter's side of a run: starts one process per stage (per replica of one), feeds them, collects, watches over them, and
ends them.

One thread, one selector: tokens of the edges that the feeder shares with stages, the control and error pipes of the
processes. A run is data-driven; several microbatches are in flight because each stage starts its next as soon as its edges
allow.

Invariants:
1. leaving the ``with`` block, by whatever way, leaves no process; shared memory has no name, so nothing can be left of it;
2. a process whose life line (its standard input) ends exits by itself, so even a starter killed by SIGKILL leaves nothing;
3. every failure of a stage becomes one RuntimeFailure that names the stage at fault, not a neighbour that noticed it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import selectors
import statistics
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import Any, NoReturn

import numpy as np

from dnnc.program.build import Build, StageProgram
from dnnc.program.elements import BY_NAME
from dnnc.program.members import Part
from dnnc.runtime.codec import Raw, from_user, to_user
from dnnc.runtime.collectives import Places
from dnnc.runtime.edges import FEEDER, Descriptors, Receiver, Sender, anonymous_memory, map_memory, write_memory
from dnnc.runtime.errors import RuntimeFailure, StageStopped
from dnnc.runtime.needs import require_providers
from dnnc.runtime.parts import assemble
from dnnc.runtime.processes import DOING, StageProcess, last_words, raise_ended, raise_said, spawn
from dnnc.runtime.sharing import places
from dnnc.runtime.wiring import Place, assign_cores, links, output_specs, peers_of, process_places, uses_of
from dnnc.runtime.worker import FAILED, LOADING, PEER_GONE, RUNNING, STARTING, STATUS_WORDS
from ir.diagnostics import InvalidInput, UsageError

_FED = object()
START_SECONDS = 60.0
"""A stage may always take this long to start and to load."""
_GRACE = 2.0
"""Seconds to find out which stage failed first, once something is known to be wrong."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to run. ``threads``: cores (and onnxruntime threads) of each stage. ``slots``: microbatches an edge between
    neighbours holds; an edge that skips stages gets one more for each. ``timeout``: seconds that a stage may spend on one
    microbatch, or on loading (there at least a minute); None for no limit. ``pin``: bind stages to cores when there are
    enough for all. ``optimize``: onnxruntime's graph optimisations."""

    threads: int = 1
    slots: int = 2
    timeout: float | None = 600.0
    pin: bool = True
    optimize: bool = True


@dataclass(frozen=True, slots=True)
class Event:
    """What a stage did: ``action`` is ``F`` (compute; of a member of a mesh one for each segment), ``send`` or ``collective``
    (waiting for the other members included); ``start`` and ``end`` in seconds since the run began; ``title`` says which
    segment or collective."""

    device: str
    stage: int
    action: str
    microbatch: int
    start: float
    end: float
    title: str = ""


@dataclass(frozen=True, slots=True)
class RunResult:
    """Outputs per microbatch, and when things happened (seconds since the run began). ``completed``: when the last output of
    each microbatch was there. ``cpu``: processor seconds of each stage's processes since they started, loading included."""

    outputs: tuple[dict[str, Any], ...]
    seconds: float
    completed: tuple[float, ...]
    events: tuple[Event, ...]
    cpu: tuple[float, ...]

    @property
    def throughput(self) -> float:
        """Microbatches a second, once the pipeline is full; of the whole run when there is one microbatch."""
        first, last = min(self.completed), max(self.completed)
        if len(self.completed) < 2 or last <= first:
            return len(self.completed) / self.seconds
        return (len(self.completed) - 1) / (last - first)

    @property
    def latency(self) -> float:
        """Median seconds from a microbatch's first compute to its last output."""
        begun: dict[int, float] = {}
        for event in self.events:
            begun[event.microbatch] = min(event.start, begun.get(event.microbatch, event.start))
        return statistics.median(done - begun[m] for m, done in enumerate(self.completed))

    @property
    def stage_seconds(self) -> tuple[float, ...]:
        """Median compute seconds per microbatch of each stage: of a mesh, those of its slowest member."""
        return self._seconds("F")

    @property
    def collective_seconds(self) -> tuple[float, ...]:
        """Median seconds per microbatch that the members of each stage exchange parts, or wait for each other: of the member
        that does so least. 0 for other stages."""
        return self._seconds("collective")

    def _seconds(self, action: str) -> tuple[float, ...]:
        spent: dict[int, dict[int, dict[str, float]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(float)))
        for event in self.events:
            spent[event.stage][event.microbatch][event.device] += event.end - event.start if event.action == action else 0.0
        over = max if action == "F" else min
        return tuple(statistics.median(over(s.values()) for s in spent[stage].values()) for stage in sorted(spent))


class Pipeline:
    """The running stages of a build. ``with Pipeline(build) as pipeline: pipeline.run(microbatches)``, as often as needed."""

    def __init__(self, build: Build, options: RunOptions | None = None) -> None:
        self.build = build
        self.options = options or RunOptions()
        if self.options.slots < 2 or self.options.threads < 1:
            raise UsageError("a run needs at least 2 slots an edge and 1 thread a stage")
        if build.weights == "none":
            raise InvalidInput(
                "this build was written without weights, so its stages cannot run",
                where=str(build.folder),
                hint="compile it again with weights",
            )
        require_providers(build)
        self._stages: list[StageProcess] = []
        self._feeds: list[Sender] = []
        self._sinks: list[Receiver] = []
        self._turns: dict[int, tuple[int, int]] = {}  # the first microbatch of each feed and sink, and the step to the next
        self._makers: dict[int, Place] = {}  # the process behind each sink
        self._descriptors: list[int] = []
        self._status = np.zeros((0, STATUS_WORDS), np.int64)
        self._selector = selectors.DefaultSelector()
        self._count = 0  # microbatches of all runs
        self._base = 0  # those of former runs
        self._begun = time.monotonic_ns()
        self._feeding: dict[int, Iterator[None]] = {}

    def __enter__(self) -> Pipeline:
        try:
            self._start()
        except BaseException as error:
            self.close()
            if isinstance(error, OSError) and error.filename is None:  # of a pipe or of memory: neither has a name
                error.filename = str(self.build.folder)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def processes(self) -> tuple[int, ...]:
        """Process ids of the stages, in order."""
        return tuple(stage.process.pid for stage in self._stages)

    # Starting and ending

    def _start(self) -> None:
        build, options = self.build, self.options
        processes = process_places(build)
        cores, own = assign_cores([place.device for place in processes], options.threads, options.pin)
        size = 8 * STATUS_WORDS * len(processes)
        status = self._own(anonymous_memory(size))
        self._status = map_memory(status, size).view(np.int64).reshape(-1)[: STATUS_WORDS * len(processes)]
        self._status = self._status.reshape(len(processes), STATUS_WORDS)
        self._status[:, 2] = time.monotonic_ns()
        ends = self._connect(processes)
        groups = {stage.index: self._gather(stage) for stage in build.stages if stage.members}
        models = self._models()
        for number, (place, (receives, sends)) in enumerate(zip(processes, ends, strict=True)):
            stage = build.stages[place.stage]
            control_read, control_write = map(self._own, os.pipe())
            config = {
                "process": number,
                "processes": len(processes),
                "replica": place.first,
                "replicas": place.step,
                "receives": receives,
                "sends": sends,
                "control": control_write,
                "status": status,
                "cores": cores[number],
                "threads": options.threads,
                "spin": own and options.threads > 1,
                "optimize": options.optimize,
                "provider": build.provider(place.device).to_json(),
                "programs": models.memory,
            }
            passed = [control_write, status, models.memory, *models.weights]
            passed += (d for sides in (*receives, *sends) for side in sides if side for d in side[1])
            if stage.members:
                more, descriptors = _member_config(stage, place.position, models, *groups[place.stage], sends)
                passed += descriptors
            else:
                specs = output_specs(build, place.stage)
                more = {"model": models.places[stage.models[0]], "outputs": [[s.name, s.element, s.shape] for s in specs]}
            member = place.position if stage.members else -1
            process = spawn({**config, **more}, passed)
            self._stages.append(StageProcess(place.stage, number, place.device, member, process, control_read))
        kept = {s.control for s in self._stages}
        for side in (*self._feeds, *self._sinks):
            kept |= {side.descriptors.read, side.descriptors.write}
        for descriptor in [d for d in self._descriptors if d not in kept]:
            os.close(descriptor)
            self._descriptors.remove(descriptor)
        for started in self._stages:
            self._selector.register(started.control, selectors.EVENT_READ, ("control", started))
            assert started.process.stderr is not None
            os.set_blocking(started.process.stderr.fileno(), False)
            self._selector.register(started.process.stderr, selectors.EVENT_READ, ("stderr", started))
        for feed in self._feeds:
            self._selector.register(feed.descriptors.read, selectors.EVENT_READ, ("free", feed))
        for sink in self._sinks:
            self._selector.register(sink.descriptors.read, selectors.EVENT_READ, ("data", sink))
        while not all(stage.ready for stage in self._stages):
            self._turn()

    def _connect(self, processes: tuple[Place, ...]) -> list[tuple[list[Any], list[Any]]]:
        """Makes every link; returns of each process the sides that it receives from and sends to: per stage there (per member
        of a mesh) one for each of its replicas, None where they never have a microbatch in common."""
        sides: list[tuple[dict[Any, list[Any]], dict[Any, list[Any]]]] = [({}, {}) for _ in processes]
        for link in links(self.build, self.options.slots):
            size = link.sent.slots * link.sent.slot_bytes
            memory = self._memory(size, "what goes to or from the model" if FEEDER in (link.source, link.target) else "a cut")
            (data_read, data_write), (free_read, free_write) = (tuple(map(self._own, os.pipe())) for _ in range(2))
            sender, receiver = Descriptors(memory, free_read, data_write), Descriptors(memory, data_read, free_write)
            if link.source == FEEDER:
                self._feeds.append(Sender(link.sent, sender))
                self._turns[id(self._feeds[-1])] = link.first, link.step
            else:
                end = link.sent.to_json(), (sender.memory, sender.read, sender.write)
                _note(sides[link.source][1], self.build, processes, link.target, end)
            if link.target == FEEDER:
                self._sinks.append(Receiver(link.received, receiver))
                self._turns[id(self._sinks[-1])] = link.first, link.step
                self._makers[id(self._sinks[-1])] = processes[link.source]
            else:
                end = link.received.to_json(), (receiver.memory, receiver.read, receiver.write)
                _note(sides[link.target][0], self.build, processes, link.source, end)
        return [(list(receives.values()), list(sends.values())) for receives, sends in sides]

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
        files, places, offset = self.build.files, {}, 0
        names = tuple(dict.fromkeys(name for stage in self.build.stages for name in stage.models))
        for name in names:
            size = len(files.read(name))
            places[name] = (offset, size, files.weights_for(name))
            offset += size
        memory = self._memory(offset, "the stage models")
        write_memory(memory, map(files.read, names))
        return _Models(memory, places, tuple({d for _, _, weights in places.values() for d in weights.values()}))

    def _mine(self, side: Sender | Receiver) -> tuple[int, int]:
        """The first microbatch of this run that goes through a feed or sink, and the step to the next."""
        first, step = self._turns[id(side)]
        return (first - self._base) % step, step

    def _memory(self, size: int, what: str) -> int:
        """Shared memory. Raises InvalidInput where the system does not give so much: a manifest may ask for any."""
        try:
            descriptor = self._own(anonymous_memory(size))
            map_memory(descriptor, size)
        except (OSError, OverflowError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
                raise
            message = f"{what} needs {size} bytes of shared memory, which the system does not give ({error})"
            raise InvalidInput(message, where=str(self.build.folder), hint="compile for smaller microbatches") from error
        return descriptor

    def _own(self, descriptor: int) -> int:
        self._descriptors.append(descriptor)
        return descriptor

    def close(self) -> None:
        """Ends every process and closes everything; may be called again."""
        for stage in self._stages:
            if stage.process.stdin is not None and not stage.process.stdin.closed:
                with contextlib.suppress(OSError):
                    stage.process.stdin.close()
        deadline = time.monotonic() + 1.0
        for stage in self._stages:
            try:
                stage.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                stage.process.kill()
                stage.process.wait()
            if stage.process.stderr is not None:
                stage.process.stderr.close()
        self._selector.close()
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._feeding.clear()
        self._turns.clear()
        self._makers.clear()
        self._status = np.zeros((0, STATUS_WORDS), np.int64)
        for side in (*self._feeds, *self._sinks):
            side.close()
        self._descriptors, self._stages, self._feeds, self._sinks = [], [], [], []

    # Running

    def run(self, microbatches: Sequence[Mapping[str, Any]], *, events: bool = True) -> RunResult:
        """Feeds every microbatch (model input name to array) and collects its outputs. Raises RuntimeFailure, and InvalidInput
        where the weights were changed meanwhile."""
        if not microbatches:
            raise UsageError("there is no microbatch to run")
        base, count = self._count, len(microbatches)
        self._base, self._count = base, base + count
        take: Callable[[int], dict[str, Any]]
        if isinstance(microbatches, list | tuple):
            take = [_raw(microbatch) for microbatch in microbatches].__getitem__
        else:  # made when they are fed; several stages may read the model's inputs
            take = lru_cache(16)(lambda number: _raw(microbatches[number]))
        collectors = [Collector(self.build) for _ in range(count)]
        upcoming = [self._mine(sink)[0] for sink in self._sinks]
        left = sum(len(range(first, count, step)) for first, step in map(self._mine, self._sinks))
        completed = [0.0] * count
        begin = time.monotonic()
        self._begun = time.monotonic_ns()
        turns = {id(feed): self._mine(feed) for feed in self._feeds}
        self._feeding = {
            id(feed): _feed_all(feed, map(take, range(turns[id(feed)][0], count, turns[id(feed)][1]))) for feed in self._feeds
        }
        try:
            for feed in self._feeds:
                self._pump(feed)
            while left:
                for sink in self._turn():
                    which = self._sinks.index(sink)
                    while (message := sink.poll()) is not None:
                        microbatch = upcoming[which]
                        collectors[microbatch].take(self._makers[id(sink)], message.values)
                        sink.release(message)
                        upcoming[which] += self._mine(sink)[1]
                        left -= 1
                        completed[microbatch] = time.monotonic() - begin
        except EOFError:
            self._blame()
        seconds = time.monotonic() - begin
        log, cpu = self._collect_events(base, count, begin) if events else ((), ())
        order = [port.name for port in self.build.outputs]
        outputs = tuple({name: collector.outputs[name] for name in order} for collector in collectors)
        self.build.files.confirm()
        return RunResult(outputs, seconds, tuple(completed), log, cpu)

    def _pump(self, feed: Sender) -> None:
        """Feeds on until a free slot is lacking."""
        generator = self._feeding.get(id(feed))
        if generator is not None and next(generator, _FED) is _FED:
            del self._feeding[id(feed)]

    def _turn(self) -> list[Receiver]:
        """Waits for something to happen and deals with it; returns the sinks that have new tokens. Raises RuntimeFailure."""
        timeout = self.options.timeout
        ready: list[Receiver] = []
        for key, _ in self._selector.select(0.5 if timeout is None else min(0.5, timeout / 4)):
            what, subject = key.data
            if what == "free":
                self._read_tokens(subject)
            elif what == "data":
                self._read_tokens(subject)
                ready.append(subject)
            elif what == "control":
                self._hear(subject)
            else:
                self._listen(subject)
        if any(stage.closed for stage in self._stages):
            self._blame()
        if timeout is not None:
            self._check_time(timeout)
        return ready

    def _read_tokens(self, side: Sender | Receiver) -> None:
        try:
            if isinstance(side, Receiver):
                side.read_tokens()
            else:
                side.wait()
                self._pump(side)
        except EOFError:
            self._blame()

    def _hear(self, stage: StageProcess) -> None:
        """Reads answers of a stage."""
        data = os.read(stage.control, 1 << 16)
        if not data:
            stage.closed = True
            self._forget(stage.control)
            stage.process.poll()
            return
        *lines, stage.buffered = (stage.buffered + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "ready" in message:
                stage.ready = True
            elif "error" in message:
                stage.error = message
            else:
                stage.answers.append(message)

    def _listen(self, stage: StageProcess) -> None:
        """Keeps the last lines of what a stage says on standard error."""
        assert stage.process.stderr is not None
        data = os.read(stage.process.stderr.fileno(), 1 << 16)
        if not data:
            self._forget(stage.process.stderr)
            return
        stage.tail.extend(line for line in data.decode(errors="replace").splitlines() if line.strip())

    def _forget(self, what: Any) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(what)

    def _collect_events(self, base: int, count: int, begin: float) -> tuple[tuple[Event, ...], tuple[float, ...]]:
        for stage in self._stages:
            assert stage.process.stdin is not None
            try:
                stage.process.stdin.write(b"%d\n" % (base + count))
                stage.process.stdin.flush()
            except BrokenPipeError:
                self._blame()
        while not all(stage.answers for stage in self._stages):
            self._turn()
        answers = [stage.answers.popleft() for stage in self._stages]
        found = [
            Event(stage.device, stage.index, action, microbatch - base, start - begin, end - begin, title)
            for stage, answer in zip(self._stages, answers, strict=True)
            for action, microbatch, start, end, title in answer["events"]
            if microbatch >= base
        ]
        found.sort(key=lambda e: (e.start, e.stage, e.end))
        cpu = [0.0] * len(self.build.stages)
        for stage, answer in zip(self._stages, answers, strict=True):
            cpu[stage.index] += answer["cpu"]
        return tuple(found), tuple(cpu)

    # Failing

    def _doing(self, stage: StageProcess) -> str:
        """What the stage was last seen doing. Stages number microbatches through all runs, messages from the current one's
        start."""
        state, microbatch = int(self._status[stage.number, 0]), int(self._status[stage.number, 1])
        return DOING[state].format(max(0, microbatch - self._base))

    def _check_time(self, limit: float) -> None:
        """Raises RuntimeFailure when a stage is busy, or all of them are idle, for longer than ``limit`` seconds."""
        now = time.monotonic_ns()
        for stage in self._stages:
            state, _, since, _ = (int(word) for word in self._status[stage.number])
            allowed = max(limit, START_SECONDS) if state in (STARTING, LOADING) else limit
            if state in (STARTING, LOADING, RUNNING) and now - since > allowed * 1e9:
                raise StageStopped(
                    f"still {self._doing(stage)} after {allowed:g} s; it was stopped",
                    where=stage.label,
                    hint="give a longer --timeout if that much time is expected" + last_words(stage),
                )
        if (
            all(stage.ready for stage in self._stages)
            and now - max(int(self._status[:, 2].max()), self._begun) > 2 * limit * 1e9
        ):
            states = "; ".join(f"{stage.label} is {self._doing(stage)}" for stage in self._stages)
            raise StageStopped(f"nothing has moved for {2 * limit:g} s: {states}", hint="was a process stopped from outside?")

    def _blame(self) -> NoReturn:
        """Finds the stage at fault, for neighbours of a dead one end too. Raises RuntimeFailure."""
        deadline = time.monotonic() + _GRACE
        while time.monotonic() < deadline:
            for key, _ in self._selector.select(0.01):
                what, subject = key.data
                if what == "control":
                    self._hear(subject)
                elif what == "stderr":
                    self._listen(subject)
                else:
                    self._forget(key.fileobj)
            for stage in self._stages:
                if stage.error is not None:
                    raise_said(stage, stage.error["error"], stage.error["microbatch"] - self._base)
            for stage in self._stages:
                status = stage.process.poll()
                if status not in (None, PEER_GONE, FAILED) and stage.closed:
                    raise_ended(stage, status, self._doing(stage))
        gone = [stage.label for stage in self._stages if stage.closed]
        raise RuntimeFailure(
            f"ended without a word: {', '.join(gone) or 'a stage'}", hint="run it again; report it if it stays"
        )


@dataclass(frozen=True, slots=True)
class _Models:
    """Where the processes find their models: ``memory``, and by name offset, size, and weights by location; ``weights``: the
    descriptors of all of these."""

    memory: int
    places: Mapping[str, tuple[int, int, Mapping[str, int]]]
    weights: tuple[int, ...]


class Collector:
    """The outputs of one microbatch as they come in."""

    def __init__(self, build: Build) -> None:
        self.build = build
        self.outputs: dict[str, Any] = {}
        self._parts: dict[str, dict[int, tuple[Part, Raw]]] = defaultdict(dict)

    def take(self, maker: Place, values: Mapping[str, Any]) -> None:
        """What one process made; copied, for it lies in a slot."""
        stage = self.build.stages[maker.stage]
        if not stage.members:
            self.outputs.update((name, to_user(value)) for name, value in values.items())
            return
        for part in stage.members[maker.position].outputs:
            if not part.delivers:
                continue
            parts, value = self._parts[part.name], values[part.value]
            own = Raw(value.element, value.shape, value.data.copy()) if isinstance(value, Raw) else value
            parts[maker.position] = part, own
            wanted = [
                i for i, member in enumerate(stage.members) if any(p.name == part.name and p.delivers for p in member.outputs)
            ]
            if len(parts) == len(wanted):
                shape = next(port.shape for port in stage.outputs if port.name == part.name)
                self.outputs[part.name] = to_user(assemble(_numbers(shape), [parts[i] for i in wanted]))
                del self._parts[part.name]


def _numbers(shape: Sequence[int | str | None] | None) -> tuple[int, ...]:
    return tuple(dim for dim in shape or () if isinstance(dim, int))


def _note(ends: dict[Any, list[Any]], build: Build, places: Sequence[Place], other: int, end: Any) -> None:
    """Puts one side of a link among those of the stage, or of the member of a mesh, at its other end."""
    if other == FEEDER:
        ends[FEEDER] = [end]
        return
    place = places[other]
    stage = build.stages[place.stage]
    key, width = ((place.stage, place.position), 1) if stage.members else ((place.stage, -1), len(stage.devices))
    ends.setdefault(key, [None] * width)[place.position % width] = end


def _member_config(
    stage: StageProgram,
    member: int,
    models: _Models,
    memory: int,
    shared: Places,
    pipes: Mapping[tuple[int, int], tuple[int, int]],
    sends: list[Any],
) -> tuple[dict[str, Any], list[int]]:
    """What a member's process is told besides, and the descriptors that go with it. ``pipes``: by sender and receiver."""
    program = stage.members[member]
    peers = [(peer, pipes[peer, member][0], pipes[member, peer][1]) for peer in peers_of(stage.collectives, member)]
    leaving = {name: (name, element, shape) for side in sends for end in side if end for name, element, shape in end[0][2]}
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
        "outputs": list(leaving.values()),
    }
    return config, [memory, *(descriptor for _, *both in peers for descriptor in both)]


def _raw(microbatch: Mapping[str, Any]) -> dict[str, Any]:
    return {name: from_user(value) for name, value in microbatch.items()}


def _feed_all(feed: Sender, microbatches: Iterable[Mapping[str, Any]]) -> Iterator[None]:
    for microbatch in microbatches:
        yield from feed.feeding(microbatch)
