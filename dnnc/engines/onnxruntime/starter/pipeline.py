"""A run of a build: feeds the processes, collects their outputs, and notices when one fails or hangs.

One thread waits on one selector: for tokens of the edges between the starter and stages, and for the control pipe and the
standard error of each process. The starter tells each process how many microbatches there are; the process then follows its
device's row of the schedule (``dnnc.engines.onnxruntime.rows``).

Invariants:
1. no process outlives the ``with`` block, however it is left; shared memory has no name, so it ends with the processes;
2. a process exits when its standard input ends, so a starter killed by SIGKILL leaves nothing either;
3. a failing stage raises one RuntimeFailure that names that stage, not a neighbour that lost its connection to it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import selectors
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from dnnc.build.build import Build
from dnnc.build.members import Part
from dnnc.engines.onnxruntime.errors import RuntimeFailure, StageStopped
from dnnc.engines.onnxruntime.faults import (
    BuildWithoutWeights,
    NothingMoves,
    NothingToRun,
    NotSoManyThreads,
    StageSilent,
    StageTooSlow,
)
from dnnc.engines.onnxruntime.rows import LOADING, RUNNING, STARTING
from dnnc.engines.onnxruntime.session.needs import require_providers
from dnnc.engines.onnxruntime.starter.processes import DOING, DeviceProcess, raise_ended, reported_failure
from dnnc.engines.onnxruntime.starter.results import Event, RunResult
from dnnc.engines.onnxruntime.starter.starting import Processes, RunOptions, StarterEnd
from dnnc.engines.onnxruntime.transport.codec import Raw, from_user, to_user
from dnnc.engines.onnxruntime.transport.edges import Sender
from dnnc.engines.onnxruntime.transport.parts import assemble
from dnnc.engines.onnxruntime.transport.wiring import Place
from dnnc.engines.onnxruntime.worker import FAILED, PEER_GONE
from ir.core.diagnostics import DnncError, InvalidInput, UsageError

if TYPE_CHECKING:
    from dnnc.engines.cluster.starting import FarProcesses

_FED = object()
START_SECONDS = 60.0
"""A stage may always take this long to start and to load."""
_GRACE = 2.0
"""Seconds to find out which stage failed first, once something is known to be wrong."""


@dataclass(frozen=True, slots=True)
class Failed:
    """What a process said of a microbatch for which the program of a stage raised an error."""

    microbatch: int
    stage: int
    process: DeviceProcess
    error: str


class Pipeline:
    """The running processes of a build: ``with Pipeline(build) as pipeline: pipeline.run(...)``, any number of runs."""

    def __init__(
        self, build: Build, options: RunOptions | None = None, processes: Processes | FarProcesses | None = None
    ) -> None:
        """``processes``: those of other hosts; this host's where there are none."""
        self.build = build
        self.options = options or RunOptions()
        if self.options.threads < 0:
            raise UsageError(NotSoManyThreads(self.options.threads))
        if build.weights == "none":
            raise InvalidInput(BuildWithoutWeights(), where=str(build.folder))
        if processes is None:
            require_providers(build)
        self._all = processes or Processes(build, self.options)
        self._selector = selectors.DefaultSelector()
        self._count = 0  # microbatches of all runs
        self._base = 0  # those of former runs
        self._begun = time.monotonic_ns()
        self._feeding: dict[int, Iterator[None]] = {}
        self.failures: list[Failed] = []
        self.busy = True  # whether microbatches are under way, so that something has to move

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
        """Process ids of the devices, in the order of their stages."""
        return tuple(process.popen.pid for process in self._all.every)

    @property
    def feeds(self) -> tuple[StarterEnd, ...]:
        """The links through which the model's inputs go to devices."""
        return tuple(self._all.feeds)

    @property
    def sinks(self) -> tuple[StarterEnd, ...]:
        """The links through which the model's outputs arrive."""
        return tuple(self._all.sinks)

    def _start(self) -> None:
        self._all.start()
        for process in self._all.every:
            os.set_blocking(process.control, False)
            self._selector.register(process.control, selectors.EVENT_READ, ("control", process))
            assert process.popen.stderr is not None
            os.set_blocking(process.popen.stderr.fileno(), False)
            self._selector.register(process.popen.stderr, selectors.EVENT_READ, ("stderr", process))
        for feed in self._all.feeds:
            self._selector.register(feed.side.descriptors.read, selectors.EVENT_READ, ("free", feed))
        for sink in self._all.sinks:
            self._selector.register(sink.side.descriptors.read, selectors.EVENT_READ, ("data", sink))
        while not all(process.ready for process in self._all.every):
            self.wait()

    def close(self) -> None:
        """Ends every process and closes everything; may be called again."""
        self._selector.close()
        self._feeding.clear()
        self._all.close()

    def wake_by(self, descriptor: int) -> None:
        """Lets ``wait`` return when another thread writes to the pipe whose end this is."""
        self._selector.register(descriptor, selectors.EVENT_READ, ("wake", descriptor))

    # Running

    def run(self, microbatches: Sequence[Mapping[str, Any]], *, events: bool = True) -> RunResult:
        """Feeds every microbatch (model input name to array) and collects its outputs. Raises RuntimeFailure, and InvalidInput
        where the weights were changed meanwhile."""
        if not microbatches:
            raise UsageError(NothingToRun())
        base, count = self._count, len(microbatches)
        self._base, self._count = base, base + count
        take: Callable[[int], dict[str, Any]]
        if isinstance(microbatches, list | tuple):
            take = [_raw(microbatch) for microbatch in microbatches].__getitem__
        else:  # made when they are fed; several stages may read the model's inputs
            take = lru_cache(16)(lambda number: _raw(microbatches[number]))
        collectors = [Collector(self.build) for _ in range(count)]
        upcoming = {id(sink): iter(self._microbatches_of(sink, count)) for sink in self._all.sinks}
        left = sum(len(self._microbatches_of(sink, count)) for sink in self._all.sinks)
        completed = [0.0] * count
        begin = time.monotonic()
        self._begun = time.monotonic_ns()
        self._feeding = {
            id(feed): _feed_all(feed.side, map(take, self._microbatches_of(feed, count))) for feed in self._all.feeds
        }
        try:
            self.order(base + count, events)
            for feed in self._all.feeds:
                self.feed_on(feed)
            while left:
                for sink in self.wait():
                    while sink.side.complete:
                        microbatch = next(upcoming[id(sink)])
                        collectors[microbatch].collect(sink)
                        left -= 1
                        completed[microbatch] = time.monotonic() - begin
                if self.failures:
                    raise self.failure_of(min(self.failures, key=lambda failed: (failed.microbatch, failed.stage)))
        except EOFError:
            self.raise_failure()
        seconds = time.monotonic() - begin
        log, cpu, share = self._collect_events(base, begin) if events else ((), (), 1.0)
        order = [port.name for port in self.build.outputs]
        outputs = tuple({name: collector.outputs[name] for name in order} for collector in collectors)
        self.build.files.confirm()
        together = max(stage.replicas for stage in self.build.plan.stages)
        return RunResult(outputs, seconds, tuple(completed), log, cpu, share, together)

    def _microbatches_of(self, port: StarterEnd, count: int) -> range:
        """The microbatches of a run of so many that go through a feed or sink."""
        return range((port.first - self._base) % port.step, count, port.step)

    def order(self, until: int, events: bool) -> None:
        """Tells every process to work on the microbatches before number ``until``, and whether to report events then. Raises
        EOFError where a process has ended."""
        line = json.dumps([until, events]).encode() + b"\n"
        for process in self._all.every:
            self._write(process, line)

    def _write(self, process: DeviceProcess, line: bytes) -> None:
        """Writes a line to a process. Raises EOFError where it has ended."""
        assert process.popen.stdin is not None
        try:
            process.popen.stdin.write(line)
            process.popen.stdin.flush()
        except BrokenPipeError:
            raise EOFError from None

    def feed(self, feed: StarterEnd, microbatches: Iterable[Mapping[str, Any]]) -> None:
        """Feeds those microbatches through a link: what there are free slots for now, the others while ``wait`` waits. Those
        that are being fed already go on."""
        if id(feed) not in self._feeding:
            self._feeding[id(feed)] = _feed_all(feed.side, microbatches)
        self.feed_on(feed)

    def begin(self) -> None:
        """Says that microbatches come after a pause: from now on something has to move within the time limit."""
        self.busy, self._begun = True, time.monotonic_ns()

    def feed_on(self, feed: StarterEnd) -> None:
        """Feeds microbatches until no slot is free."""
        generator = self._feeding.get(id(feed))
        if generator is not None and next(generator, _FED) is _FED:
            del self._feeding[id(feed)]

    def wait(self) -> list[StarterEnd]:
        """Waits for tokens, answers or errors and handles them; returns the sinks with new tokens. Raises RuntimeFailure.

        A process tells of a failed microbatch before it hands over its outputs, so control pipes are read once more behind the
        tokens: of outputs that have arrived it is known whether they are those of a failed microbatch (``failures``)."""
        timeout = self.options.timeout
        ready: list[StarterEnd] = []
        for key, _ in self._selector.select(0.5 if timeout is None else min(0.5, timeout / 4)):
            what, subject = key.data
            if what == "free":
                self._read_tokens(subject)
            elif what == "data":
                self._read_tokens(subject)
                ready.append(subject)
            elif what == "control":
                self._read_answers(subject)
            elif what == "stderr":
                self._read_stderr(subject)
            else:
                os.read(subject, 1 << 10)  # somebody wants this thread (``wake_by``)
        if ready:
            for process in self._all.every:
                self._read_answers(process)
        if any(process.closed for process in self._all.every):
            self.raise_failure()
        if timeout is not None:
            self._check_time(timeout)
        return ready

    def _read_tokens(self, port: StarterEnd) -> None:
        try:
            port.side.read_tokens()
            if isinstance(port.side, Sender):
                self.feed_on(port)
        except EOFError:
            self.raise_failure()

    def _read_answers(self, process: DeviceProcess) -> None:
        """Reads what a process wrote to its control pipe, if anything."""
        try:
            data = os.read(process.control, 1 << 16)
        except BlockingIOError:
            return
        if not data:
            process.closed = True
            self._forget(process.control)
            process.popen.poll()
            return
        *lines, process.buffered = (process.buffered + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "ready" in message:
                process.ready = True
            elif "error" in message:
                process.error = message
            elif "failed" in message:
                self.failures.append(Failed(message["microbatch"], message["stage"], process, message["failed"]))
                if process.host:
                    with contextlib.suppress(EOFError):
                        self._write(process, b'"noted"\n')
            else:
                process.answers.append(message)

    def _read_stderr(self, process: DeviceProcess) -> None:
        """Keeps the last lines of a process's standard error."""
        assert process.popen.stderr is not None
        data = os.read(process.popen.stderr.fileno(), 1 << 16)
        if not data:
            self._forget(process.popen.stderr)
            return
        process.tail.extend(line for line in data.decode(errors="replace").splitlines() if line.strip())

    def _forget(self, what: Any) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(what)

    def _collect_events(self, base: int, begin: float) -> tuple[tuple[Event, ...], tuple[float, ...], float]:
        """The events of all devices in order of start, and the processor seconds of each stage."""
        while not all(process.answers for process in self._all.every):
            self.wait()
        events_of_all: list[Event] = []
        cpu, shares = [0.0] * len(self.build.stages), list[float]()
        for process in self._all.every:
            answer, zero = process.answers.popleft(), begin - process.clock
            shares.append(float(answer["share"]))
            own = [
                Event(process.device, stage, action, microbatch - base, start - zero, end - zero, title, channel)
                for action, stage, microbatch, start, end, title, channels in answer["events"]
                for channel in channels
            ]
            events_of_all += own
            busy = {
                stage: sum(e.end - e.start for e in own if e.stage == stage and e.action == "F") for stage in process.members
            }
            whole = sum(busy.values())
            for stage, seconds in busy.items():
                cpu[stage] += answer["cpu"] * (seconds / whole if whole else 1 / len(busy))
        events_of_all.sort(key=lambda e: (e.start, e.stage, e.end))
        return tuple(events_of_all), tuple(cpu), math.fsum(shares) / len(shares)

    # Failing

    def failure_of(self, failed: Failed) -> DnncError:
        """The error of a failed microbatch, which names its stage."""
        return reported_failure(failed.process, failed.stage, failed.error, failed.microbatch - self._base)

    def _doing(self, process: DeviceProcess) -> tuple[int, str]:
        """The stage that a process last worked on, and what it did. Its status counts microbatches over all runs, the text
        from the start of this run."""
        state, microbatch, _, stage = (int(word) for word in self._all.status[process.number])
        return stage, DOING[state].format(max(0, microbatch - self._base))

    def _check_time(self, limit: float) -> None:
        """Raises RuntimeFailure when a stage is busy, or all of them wait for each other, for longer than ``limit`` seconds."""
        now = time.monotonic_ns()
        for process in self._all.every:
            state, _, since, _ = (int(word) for word in self._all.status[process.number])
            allowed = max(limit, START_SECONDS) if state in (STARTING, LOADING) else limit
            if state in (STARTING, LOADING, RUNNING) and now - since > allowed * 1e9:
                stage, doing = self._doing(process)
                raise StageStopped(StageTooSlow(doing, allowed, process.last_words), where=process.label(stage))
        if (
            self.busy
            and all(process.ready for process in self._all.every)
            and now - max(int(self._all.status[:, 2].max()), self._begun) > 2 * limit * 1e9
        ):
            seen = ((process, *self._doing(process)) for process in self._all.every)
            states = "; ".join(f"{process.label(stage)} is {doing}" for process, stage, doing in seen)
            raise StageStopped(NothingMoves(2 * limit, states))

    def raise_failure(self) -> NoReturn:
        """Raises the RuntimeFailure of the stage that failed first: the neighbours of a dead stage end too."""
        deadline = time.monotonic() + _GRACE
        while time.monotonic() < deadline:
            for key, _ in self._selector.select(0.01):
                what, subject = key.data
                if what == "control":
                    self._read_answers(subject)
                elif what == "stderr":
                    self._read_stderr(subject)
                else:
                    self._forget(key.fileobj)
            for process in self._all.every:
                if (error := process.error) is not None:
                    raise reported_failure(process, error["stage"], error["error"], error["microbatch"] - self._base)
            for process in self._all.every:
                status = process.popen.poll()
                if status not in (None, PEER_GONE, FAILED) and process.closed:
                    raise_ended(process, self._doing(process)[0], status, self._doing(process)[1])
        gone = tuple(process.label(min(process.members)) for process in self._all.every if process.closed)
        raise RuntimeFailure(StageSilent(gone or ("a stage",)))


class Collector:
    """Collects the outputs of one microbatch."""

    def __init__(self, build: Build) -> None:
        self.build = build
        self.outputs: dict[str, Any] = {}
        self._parts: dict[str, dict[int, tuple[Part, Raw]]] = defaultdict(dict)

    def collect(self, sink: StarterEnd) -> None:
        """Takes the values that one place sent. Raises EOFError when its process has ended."""
        slot = sink.side.take()
        self.take(sink.place, sink.side.values(slot))
        sink.side.release(slot)

    def take(self, place: Place, values: Mapping[str, Any]) -> None:
        """Copies the values that ``place`` sent, because their slot is used again; assembles an output once all parts are
        there."""
        stage = self.build.stages[place.stage]
        if not stage.members:
            self.outputs.update((name, to_user(value)) for name, value in values.items())
            return
        for part in stage.members[place.position].outputs:
            if not part.delivers:
                continue
            parts, value = self._parts[part.name], values[part.value]
            copy = Raw(value.element, value.shape, value.data.copy()) if isinstance(value, Raw) else value
            parts[place.position] = part, copy
            delivering = [
                i for i, member in enumerate(stage.members) if any(p.name == part.name and p.delivers for p in member.outputs)
            ]
            if len(parts) == len(delivering):
                shape = next(port.shape for port in stage.outputs if port.name == part.name)
                self.outputs[part.name] = to_user(assemble(_numbers(shape), [parts[i] for i in delivering]))
                del self._parts[part.name]


def _numbers(shape: Sequence[int | str | None] | None) -> tuple[int, ...]:
    return tuple(dim for dim in shape or () if isinstance(dim, int))


def _raw(microbatch: Mapping[str, Any]) -> dict[str, Any]:
    return {name: from_user(value) for name, value in microbatch.items()}


def _feed_all(feed: Sender, microbatches: Iterable[Mapping[str, Any]]) -> Iterator[None]:
    for microbatch in microbatches:
        yield from feed.send_microbatch(microbatch)
