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
import json
import os
import selectors
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import numpy as np

from dnnc.backend.build import Build, Channel, Port
from dnnc.runtime.codec import from_user, to_user
from dnnc.runtime.edges import FEEDER, Descriptors, Edge, Receiver, Sender, ValueSpec, anonymous_memory, config_text, map_memory
from dnnc.runtime.elements import BY_NAME
from dnnc.runtime.errors import REFUSED_HINT, RuntimeFailure, refusal
from dnnc.runtime.worker import FAILED, LOADING, PEER_GONE, RECEIVING, RUNNING, SENDING, STARTING, STATUS_WORDS, WAITING
from ir.diagnostics import InvalidInput, UsageError

_DOING = {
    STARTING: "starting",
    LOADING: "loading its model",
    RECEIVING: "waiting for microbatch {}",
    WAITING: "waiting for a free slot for microbatch {}",
    RUNNING: "running microbatch {}",
    SENDING: "sending microbatch {}",
}
_TAIL_LINES = 12
_MODULE = "dnnc.runtime.worker"
_FED = object()
_KILLED = "the system kills a process so when memory runs out: use more, or smaller, stages"
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
    """What a stage did: ``action`` is ``F`` (compute) or ``send``; ``start`` and ``end`` in seconds since the run began."""

    device: str
    stage: int
    action: str
    microbatch: int
    start: float
    end: float


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
        """Median compute seconds per microbatch of each stage."""
        spent: dict[int, list[float]] = defaultdict(list)
        for event in self.events:
            if event.action == "F":
                spent[event.stage].append(event.end - event.start)
        return tuple(statistics.median(spent[stage]) for stage in sorted(spent))


def value_spec(port: Port | Channel) -> ValueSpec:
    """How a value of the build crosses a process border."""
    name = port.tensor if isinstance(port, Channel) else port.name
    element = BY_NAME[port.dtype].number if port.dtype in BY_NAME else 0
    numbers = tuple(dim for dim in port.shape if isinstance(dim, int)) if port.shape is not None else None
    return ValueSpec(name, element, numbers if numbers is not None and numbers == port.shape else None)


def output_specs(build: Build, stage: int) -> tuple[ValueSpec, ...]:
    """Outputs of a stage model, each once: those of the whole model first, then what it sends."""
    program = build.stages[stage]
    specs = [value_spec(port) for port in program.outputs] + [value_spec(channel) for channel in program.sends]
    return tuple({spec.name: spec for spec in reversed(specs)}.values())[::-1]


def build_edges(build: Build, slots: int = 2) -> tuple[Edge, ...]:
    """Edges in (producer, consumer) order. Each stage has at least one to be triggered by and one to be noticed by."""
    values: dict[tuple[int, int], dict[str, ValueSpec]] = defaultdict(dict)
    for stage in build.stages:
        for port in stage.inputs:
            values[FEEDER, stage.index][port.name] = value_spec(port)
        for port in stage.outputs:
            values[stage.index, FEEDER][port.name] = value_spec(port)
        for channel in stage.receives:
            values[channel.source, stage.index][channel.tensor] = value_spec(channel)
    for stage in build.stages:
        if not any(consumer == stage.index for _, consumer in values):
            values[FEEDER, stage.index] = {}
        if not any(producer == stage.index for producer, _ in values):
            values[stage.index, FEEDER] = {}
    return tuple(
        Edge(p, c, tuple(specs.values()), slots + (max(0, c - p - 1) if FEEDER not in (p, c) else 0))
        for (p, c), specs in sorted(values.items())
    )


def assign_cores(devices: Sequence[str], threads: int, pin: bool = True) -> tuple[list[list[int]], bool]:
    """Cores per stage, given the device of each, and whether they are its device's own: stages of one device share them. Empty
    lists where the system has no affinity or ``pin`` is off."""
    position = {device: number for number, device in enumerate(dict.fromkeys(devices))}
    needed = len(position) * threads
    if not pin or not hasattr(os, "sched_getaffinity"):
        return [[] for _ in devices], needed <= (os.cpu_count() or 1)
    cores = sorted(os.sched_getaffinity(0))
    if needed <= len(cores):
        return [cores[position[device] * threads : (position[device] + 1) * threads] for device in devices], True
    return [cores for _ in devices], False


@dataclass(slots=True)
class _Stage:
    """A stage's process as the starter sees it, one of its replicas; ``number``: of the process."""

    index: int
    number: int
    device: str
    process: subprocess.Popen[bytes]
    control: int
    answers: deque[dict[str, Any]] = field(default_factory=deque)
    buffered: bytes = b""
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL_LINES))
    ready: bool = False
    error: dict[str, Any] | None = None
    closed: bool = False

    @property
    def label(self) -> str:
        return f"stage {self.index} on {self.device}"


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
        self._stages: list[_Stage] = []
        self._feeds: list[Sender] = []
        self._sinks: list[Receiver] = []
        self._turns: dict[int, tuple[int, int]] = {}  # replica and number of replicas behind each feed and sink
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
        except BaseException:
            self.close()
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
        replicas = [len(stage.devices) for stage in build.stages]
        members = [(index, a) for index, width in enumerate(replicas) for a in range(width)]
        count = len(members)
        cores, own = assign_cores([build.stages[s].devices[a] for s, a in members], options.threads, options.pin)
        status = self._own(anonymous_memory(8 * STATUS_WORDS * count))
        self._status = map_memory(status, 8 * STATUS_WORDS * count).view(np.int64).reshape(-1)[: STATUS_WORDS * count]
        self._status = self._status.reshape(count, STATUS_WORDS)
        self._status[:, 2] = time.monotonic_ns()
        edges = build_edges(build, options.slots)
        ends: dict[tuple[int, int], tuple[list[Any], list[Any]]] = {member: ([], []) for member in members}
        for edge in edges:
            sources, targets = (1 if end == FEEDER else replicas[end] for end in (edge.producer, edge.consumer))
            self._connect(edge, sources, targets, ends)
        for number, (index, replica) in enumerate(members):
            program, (receives, sends) = build.stages[index], ends[index, replica]
            control_read, control_write = map(self._own, os.pipe())
            config = {
                "process": number,
                "processes": count,
                "replica": replica,
                "replicas": replicas[index],
                "model": str(program.model),
                "outputs": [[s.name, s.element, s.shape] for s in output_specs(build, program.index)],
                "receives": receives,
                "sends": sends,
                "control": control_write,
                "status": status,
                "cores": cores[number],
                "threads": options.threads,
                "spin": own and options.threads > 1,
                "optimize": options.optimize,
            }
            passed = [control_write, status, *(d for sides in (*receives, *sends) for side in sides if side for d in side[1])]
            device = program.devices[replica]
            self._stages.append(_Stage(index, number, device, _spawn(config, passed), control_read))
        kept = {s.control for s in self._stages}
        for side in (*self._feeds, *self._sinks):
            kept |= {side.descriptors.read, side.descriptors.write}
        for descriptor in [d for d in self._descriptors if d not in kept]:
            os.close(descriptor)
            self._descriptors.remove(descriptor)
        for stage in self._stages:
            self._selector.register(stage.control, selectors.EVENT_READ, ("control", stage))
            assert stage.process.stderr is not None
            os.set_blocking(stage.process.stderr.fileno(), False)
            self._selector.register(stage.process.stderr, selectors.EVENT_READ, ("stderr", stage))
        for feed in self._feeds:
            self._selector.register(feed.descriptors.read, selectors.EVENT_READ, ("free", feed))
        for sink in self._sinks:
            self._selector.register(sink.descriptors.read, selectors.EVENT_READ, ("data", sink))
        while not all(stage.ready for stage in self._stages):
            self._turn()

    def _connect(
        self, edge: Edge, sources: int, targets: int, ends: dict[tuple[int, int], tuple[list[Any], list[Any]]]
    ) -> None:
        """The edge between every replica of the producer and every one of the consumer that has a microbatch of it: microbatch
        m goes from replica m modulo ``sources`` to replica m modulo ``targets``."""
        sent: list[list[Any]] = [[None] * targets for _ in range(sources)]
        received: list[list[Any]] = [[None] * sources for _ in range(targets)]
        for a in range(sources):
            for b in range(a % gcd(sources, targets), targets, gcd(sources, targets)):
                memory = self._own(anonymous_memory(edge.slots * edge.slot_bytes))
                (data_read, data_write), (free_read, free_write) = (tuple(map(self._own, os.pipe())) for _ in range(2))
                sender, receiver = Descriptors(memory, free_read, data_write), Descriptors(memory, data_read, free_write)
                if edge.producer == FEEDER:
                    self._feeds.append(Sender(edge, sender))
                    self._turns[id(self._feeds[-1])] = b, targets
                if edge.consumer == FEEDER:
                    self._sinks.append(Receiver(edge, receiver))
                    self._turns[id(self._sinks[-1])] = a, sources
                sent[a][b] = edge.to_json(), (sender.memory, sender.read, sender.write)
                received[b][a] = edge.to_json(), (receiver.memory, receiver.read, receiver.write)
        for a, sides in enumerate(sent if edge.producer != FEEDER else ()):
            ends[edge.producer, a][1].append(sides)
        for b, sides in enumerate(received if edge.consumer != FEEDER else ()):
            ends[edge.consumer, b][0].append(sides)

    def _mine(self, side: Sender | Receiver) -> tuple[int, int]:
        """The first microbatch of this run that goes through a feed or sink, and the step to the next."""
        replica, replicas = self._turns[id(side)]
        return (replica - self._base) % replicas, replicas

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
        self._status = np.zeros((0, STATUS_WORDS), np.int64)
        for side in (*self._feeds, *self._sinks):
            side.close()
        self._descriptors, self._stages, self._feeds, self._sinks = [], [], [], []

    # Running

    def run(self, microbatches: Sequence[Mapping[str, Any]], *, events: bool = True) -> RunResult:
        """Feeds every microbatch (model input name to array) and collects its outputs. Raises RuntimeFailure."""
        if not microbatches:
            raise UsageError("there is no microbatch to run")
        base, count = self._count, len(microbatches)
        self._base, self._count = base, base + count
        raw = [{name: from_user(value) for name, value in microbatch.items()} for microbatch in microbatches]
        outputs: list[dict[str, Any]] = [{} for _ in raw]
        upcoming = [self._mine(sink)[0] for sink in self._sinks]
        left = sum(len(range(first, count, step)) for first, step in map(self._mine, self._sinks))
        completed = [0.0] * count
        begin = time.monotonic()
        self._begun = time.monotonic_ns()
        turns = {id(feed): self._mine(feed) for feed in self._feeds}
        self._feeding = {
            id(feed): _feed_all(feed, raw[slice(turns[id(feed)][0], None, turns[id(feed)][1])]) for feed in self._feeds
        }
        try:
            for feed in self._feeds:
                self._pump(feed)
            while left:
                for sink in self._turn():
                    which = self._sinks.index(sink)
                    while (message := sink.poll()) is not None:
                        microbatch = upcoming[which]
                        outputs[microbatch].update((name, to_user(value)) for name, value in message.values.items())
                        sink.release(message)
                        upcoming[which] += self._mine(sink)[1]
                        left -= 1
                        completed[microbatch] = time.monotonic() - begin
        except EOFError:
            self._blame()
        seconds = time.monotonic() - begin
        log, cpu = self._collect_events(base, count, begin) if events else ((), ())
        order = [port.name for port in self.build.outputs]
        return RunResult(tuple({name: found[name] for name in order} for found in outputs), seconds, tuple(completed), log, cpu)

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

    def _hear(self, stage: _Stage) -> None:
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

    def _listen(self, stage: _Stage) -> None:
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
            Event(stage.device, stage.index, action, microbatch - base, start - begin, end - begin)
            for stage, answer in zip(self._stages, answers, strict=True)
            for action, microbatch, start, end in answer["events"]
            if microbatch >= base
        ]
        found.sort(key=lambda e: (e.start, e.stage, e.end))
        cpu = [0.0] * len(self.build.stages)
        for stage, answer in zip(self._stages, answers, strict=True):
            cpu[stage.index] += answer["cpu"]
        return tuple(found), tuple(cpu)

    # Failing

    def _doing(self, stage: _Stage) -> str:
        """What the stage was last seen doing. Stages number microbatches through all runs, messages from the current one's
        start."""
        state, microbatch = int(self._status[stage.number, 0]), int(self._status[stage.number, 1])
        return _DOING[state].format(max(0, microbatch - self._base))

    def _check_time(self, limit: float) -> None:
        """Raises RuntimeFailure when a stage is busy, or all of them are idle, for longer than ``limit`` seconds."""
        now = time.monotonic_ns()
        for stage in self._stages:
            state, _, since, _ = (int(word) for word in self._status[stage.number])
            allowed = max(limit, START_SECONDS) if state in (STARTING, LOADING) else limit
            if state in (STARTING, LOADING, RUNNING) and now - since > allowed * 1e9:
                raise RuntimeFailure(
                    f"still {self._doing(stage)} after {allowed:g} s; it was stopped",
                    where=stage.label,
                    hint="give a longer --timeout if that much time is expected" + _last_words(stage),
                )
        if (
            all(stage.ready for stage in self._stages)
            and now - max(int(self._status[:, 2].max()), self._begun) > 2 * limit * 1e9
        ):
            states = "; ".join(f"{stage.label} is {self._doing(stage)}" for stage in self._stages)
            raise RuntimeFailure(f"nothing has moved for {2 * limit:g} s: {states}", hint="was a process stopped from outside?")

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
                    _raise_said(stage, stage.error["error"], stage.error["microbatch"] - self._base)
            for stage in self._stages:
                status = stage.process.poll()
                if status not in (None, PEER_GONE, FAILED) and stage.closed:
                    raise RuntimeFailure(
                        f"{_ending(status)} while {self._doing(stage)}",
                        where=stage.label,
                        hint=(_KILLED if status == -signal.SIGKILL else "see what it said last") + _last_words(stage),
                    )
        gone = [stage.label for stage in self._stages if stage.closed]
        raise RuntimeFailure(
            f"ended without a word: {', '.join(gone) or 'a stage'}", hint="run it again; report it if it stays"
        )


def _feed_all(feed: Sender, microbatches: Sequence[Mapping[str, Any]]) -> Iterator[None]:
    for microbatch in microbatches:
        yield from feed.feeding(microbatch)


def _raise_said(stage: _Stage, error: str, microbatch: int) -> NoReturn:
    """Raises what a stage said: InvalidInput for a model that onnxruntime does not take, else RuntimeFailure."""
    if stage.ready:
        hint = "run 'dnnc check' on the build; is every input what the model accepts?" + _last_words(stage)
        raise RuntimeFailure(f"failed at microbatch {microbatch}: {error}", where=stage.label, hint=hint)
    if reason := refusal(error):
        raise InvalidInput(f"its model cannot be run: {reason}", where=stage.label, hint=REFUSED_HINT)
    raise RuntimeFailure(f"could not load its model: {error}", where=stage.label, hint="compile it again" + _last_words(stage))


def _ending(status: int | None) -> str:
    """An exit status in words."""
    if status is not None and status < 0:
        try:
            return f"was killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"was killed by signal {-status}"
    return f"ended with status {status}"


def _last_words(stage: _Stage) -> str:
    return "".join(f"\n    {line}" for line in stage.tail)


def _spawn(config: Mapping[str, Any], descriptors: Sequence[int]) -> subprocess.Popen[bytes]:
    """Starts a stage process and tells it its configuration. The package is found where this one was."""
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", _MODULE],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment,
        pass_fds=tuple(descriptors),
    )
    assert process.stdin is not None
    try:
        process.stdin.write(config_text(config))
        process.stdin.flush()
    except BrokenPipeError:
        pass  # it died already; its control pipe says so
    return process
