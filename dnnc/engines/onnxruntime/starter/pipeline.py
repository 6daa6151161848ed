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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from dnnc.build.build import Build
from dnnc.engines.hosts.answers import MOST_LINE, Answers
from dnnc.engines.onnxruntime.errors import Lost, RuntimeFailure, StageStopped
from dnnc.engines.onnxruntime.faults import (
    BuildWithoutWeights,
    NothingMoves,
    NothingToRun,
    NotSoManyThreads,
    SessionClosed,
    StageSilent,
    StageTooSlow,
)
from dnnc.engines.onnxruntime.rows import LOADING, RUNNING, STARTING
from dnnc.engines.onnxruntime.session.needs import require_providers
from dnnc.engines.onnxruntime.starter.collector import Progress
from dnnc.engines.onnxruntime.starter.processes import (
    DOING,
    ENDLESS,
    DeviceProcess,
    events_told,
    is_not_connected,
    keep_last,
    raise_ended,
    reported_failure,
)
from dnnc.engines.onnxruntime.starter.recovery import Recovery, Stopped
from dnnc.engines.onnxruntime.starter.results import LOST, Event, RunResult
from dnnc.engines.onnxruntime.starter.starting import Processes, RunOptions, StarterEnd
from dnnc.engines.onnxruntime.transport.codec import from_user
from dnnc.engines.onnxruntime.transport.edges import Sender
from dnnc.engines.onnxruntime.worker import FAILED, PEER_GONE
from dnnc.onnx.elements import Array
from ir.core.diagnostics import DnncError, InvalidInput, UsageError

if TYPE_CHECKING:
    from dnnc.engines.cluster.starting import FarProcesses

_FED = object()
_EVERY = range(ENDLESS)
_TOLD = 64
"""Events of a process that may be lost with it."""
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
        self,
        build: Build,
        options: RunOptions | None = None,
        processes: Processes | FarProcesses | None = None,
        recovery: Recovery | None = None,
    ) -> None:
        """``processes``: those of other hosts; this host's where there are none. ``recovery``: how runs go on after a loss;
        without it as ``processes`` say."""
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
        self._numbers: Sequence[int] = _EVERY  # in this run, of those that are fed
        self.recovery = recovery or Recovery(self._all.wait)
        self._begun = time.monotonic_ns()
        self._feeding: dict[int, Iterator[None]] = {}
        self._blocked: set[int] = set()  # feeds whose free slots are waited for
        self._checked = 0.0
        self.failures: list[Failed] = []
        self.busy = True  # whether microbatches are under way, so that something has to move

    def __enter__(self) -> Pipeline:
        try:
            try:
                self._start()
            except Lost as lost:
                if not self.recovery.far:
                    raise  # nothing was asked yet that would be lost
                self.recover(lost)
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

    def _start(self, stopped: Stopped = lambda: False) -> None:
        """Starts all and waits until they have loaded their programs. Raises UsageError where nobody waits any more
        (``stopped``)."""
        self._all.start()
        for process in self._all.every:
            os.set_blocking(process.control, False)
            self._selector.register(process.control, selectors.EVENT_READ, ("control", process))
            assert process.popen.stderr is not None
            os.set_blocking(process.popen.stderr.fileno(), False)
            self._selector.register(process.popen.stderr, selectors.EVENT_READ, ("stderr", process))
        self._blocked.clear()
        for feed in self._all.feeds:
            os.set_blocking(feed.side.descriptors.read, False)
        for sink in self._all.sinks:
            self._selector.register(sink.side.descriptors.read, selectors.EVENT_READ, ("data", sink))
        while not all(process.ready for process in self._all.every):
            self.wait()
            if stopped():
                raise UsageError(SessionClosed())

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
        count = len(microbatches)
        take: Callable[[int], dict[str, Any]]
        if isinstance(microbatches, list | tuple):
            take = [_raw(microbatch) for microbatch in microbatches].__getitem__
        else:  # made when they are fed; several stages may read the model's inputs
            take = lru_cache(16)(lambda number: _raw(microbatches[number]))
        progress = Progress(self.build, count, time.monotonic())
        log: list[Event] = []
        cpu, share = tuple[float, ...](), 1.0
        while True:
            try:
                self._run_unanswered(take, progress, events)
                if events:
                    last, cpu, share = self._collect_events(progress.begin)
                    log += last
                break
            except Lost as lost:
                log += self._after_loss(lost, progress)
        seconds = time.monotonic() - progress.begin
        order = [port.name for port in self.build.outputs]
        outputs = tuple({name: collector.outputs[name] for name in order} for collector in progress.collectors)
        self.build.files.confirm()
        together = max(map(len, self.build.flow.takers))
        log.sort(key=lambda e: (e.start, e.stage, e.end))
        return RunResult(outputs, seconds, tuple(progress.completed), tuple(log), cpu, share, together)

    def _run_unanswered(self, take: Callable[[int], dict[str, Any]], progress: Progress, events: bool) -> None:
        """Feeds the microbatches that are not answered and collects their outputs. Raises RuntimeFailure."""
        self._numbers, count = progress.unanswered(), len(progress.unanswered())
        self._base, self._count = self._count, self._count + count
        self._begun, self.busy = time.monotonic_ns(), True
        upcoming = {id(sink): self._microbatches_of(sink, count) for sink in self._all.sinks}
        left = Counter(number for sink in self._all.sinks for number in self._microbatches_of(sink, count))
        self._feeding = {
            id(feed): _feed_all(feed.side, map(take, self._microbatches_of(feed, count))) for feed in self._all.feeds
        }
        try:
            self.order(self._count, events)
            for feed in self._all.feeds:
                self.feed_on(feed)
            while left:
                for sink in self.wait():
                    while sink.side.complete:
                        microbatch = next(upcoming[id(sink)])
                        progress.collectors[microbatch].collect(sink)
                        left[microbatch] -= 1
                        if not left[microbatch]:
                            del left[microbatch]
                            progress.completed[microbatch] = time.monotonic() - progress.begin
                            self.recovery.answered()
                if self.failures:
                    raise self.failure_of(min(self.failures, key=lambda failed: (failed.microbatch, failed.stage)))
        except EOFError:
            self.raise_failure()

    def _after_loss(self, lost: Lost, progress: Progress) -> list[Event]:
        """Starts a new epoch; returns the events of the one that has ended, and one of each device for the time between. Raises
        as ``recover``."""
        at, places = time.monotonic() - progress.begin, [(p.device, min(p.members)) for p in self._all.every]
        events = [event for process in self._all.every for event in self._events(process, process.so_far, progress.begin)]
        missing = set(progress.unanswered())
        log = [replace(e, action=LOST, title=e.title or e.action) if e.microbatch in missing else e for e in events]
        progress.forget()
        self.recover(lost)
        first, now = min(missing, default=len(progress.completed) - 1), time.monotonic() - progress.begin
        last = {e.device: e.end for e in sorted(log, key=lambda e: e.end)}
        return log + [Event(d, stage, LOST, first, max(at, last.get(d, at)), now, "away") for d, stage in places]

    def recover(self, lost: Lost, stopped: Stopped = lambda: False) -> None:
        """Ends all processes, and starts them again once their hosts are there (``recovery``); feeds and sinks are new ones.
        Microbatches count from 0 again, and none is under way. Raises StageStopped where that fails or runs end with a loss."""

        def again(until: float) -> None:
            self.close()
            self._all.back(until, stopped)
            self._selector = selectors.DefaultSelector()
            self._count = self._base = 0
            self._numbers, self.failures, self._begun = _EVERY, [], time.monotonic_ns()
            self._start(stopped)

        self.recovery.go_on(lost, again, stopped)

    def _microbatches_of(self, port: StarterEnd, count: int) -> Iterator[int]:
        """The microbatches of a run, of which so many are fed, that go through a feed or sink."""
        return (self._numbers[number - self._base] for number in port.turns.within(self._base, self._base + count))

    def order(self, until: int, events: bool) -> None:
        """Tells every process to work on the microbatches before number ``until``, and whether to report events then. Raises
        EOFError where a process has ended."""
        told = _TOLD if self.recovery.seconds else ENDLESS
        line = json.dumps([until, told if events else 0]).encode() + b"\n"
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

    def feed_at_once(self, feed: StarterEnd, values: Mapping[str, Array]) -> bool:
        """Feeds a microbatch of arrays, if none waits for a free slot of the link and it needs not wait for one itself
        (``Sender.send_at_once``). Returns whether it did. Raises EOFError."""
        sent: bool = id(feed) not in self._feeding and feed.side.send_at_once(values)
        return sent

    def begin(self) -> None:
        """Says that microbatches come after a pause: from now on something has to move within the time limit."""
        self.busy, self._begun = True, time.monotonic_ns()

    def feed_on(self, feed: StarterEnd) -> None:
        """Feeds microbatches until no slot is free; then the selector waits for one. Raises EOFError."""
        generator = self._feeding.get(id(feed))
        if generator is None:
            return
        if not feed.side.has_free_slot:
            feed.side.refill()
        blocked = next(generator, _FED) is not _FED
        if not blocked:
            del self._feeding[id(feed)]
        if blocked != (id(feed) in self._blocked):
            self._blocked ^= {id(feed)}
            if blocked:
                self._selector.register(feed.side.descriptors.read, selectors.EVENT_READ, ("free", feed))
            else:
                self._forget(feed.side.descriptors.read)

    def wait(self, most: float = math.inf) -> list[StarterEnd]:
        """Waits for tokens, answers or errors, at most so many seconds, and handles them; returns the sinks with new tokens.
        Raises RuntimeFailure.

        A process that tells of a failed microbatch hands over its outputs once that is noted: of outputs that came it is known
        whether they are those of a failed microbatch (``failures``)."""
        timeout, answered = self.options.timeout, False
        ready: list[StarterEnd] = []
        for key, _ in self._selector.select(min(_period(timeout), most)):
            what, subject = key.data
            if what == "free":
                self._read_tokens(subject)
            elif what == "data":
                self._read_tokens(subject)
                ready.append(subject)
            elif what == "control":
                self._read_answers(subject)
                answered = True
            elif what == "stderr":
                self._read_stderr(subject)
            else:
                os.read(subject, 1 << 10)  # somebody wants this thread (``wake_by``)
        if answered and any(process.closed or process.wrong is not None for process in self._all.every):
            self.raise_failure()
        if timeout is not None and (now := time.monotonic()) >= self._checked:
            self._checked = now + _period(timeout)
            self._check_time(timeout)
        return ready

    def _read_tokens(self, port: StarterEnd) -> None:
        try:
            port.side.read_tokens()
            if isinstance(port.side, Sender):
                self.feed_on(port)
        except EOFError:
            self.raise_failure()
        except ValueError as error:
            device = port.place.device
            process = next((one for one in self._all.every if one.device == device and one.host), None)
            if process is None:
                raise
            said = Answers(process.host, process.label(port.place.stage))
            raise said.refuse("a value", str(error), "one that was encoded there") from None

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
        said = Answers(process.host, process.label(min(process.members)))
        if len(process.buffered) > MOST_LINE:
            raise said.refuse("a line", process.buffered[:40], f"at most {MOST_LINE} bytes")
        for line in lines:
            message = said.line(line)
            if "ready" in message:
                process.ready = True
            elif "so_far" in message:
                process.so_far += events_told(said, process, message["so_far"])
            elif "error" in message:
                process.error = said.error(message, process.members)
            elif "failed" in message:
                failed = said.error(message, process.members, "failed")
                self.failures.append(Failed(failed["microbatch"], failed["stage"], process, failed["failed"]))
                with contextlib.suppress(EOFError):
                    self._write(process, b'"noted"\n')
            else:
                cpu, share = (said.real(message.get(name), name, 0.0) for name in ("cpu", "share"))
                events = events_told(said, process, message.get("events"))
                process.answers.append({"events": events, "cpu": cpu, "share": min(1.0, share)})

    def _read_stderr(self, process: DeviceProcess) -> None:
        """Keeps the last lines of a process's standard error."""
        assert process.popen.stderr is not None
        data = os.read(process.popen.stderr.fileno(), 1 << 16)
        if not data:
            self._forget(process.popen.stderr)
            return
        keep_last(process, data)

    def _forget(self, what: Any) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(what)

    def _events(self, process: DeviceProcess, told: Iterable[Sequence[Any]], begin: float) -> Iterator[Event]:
        """What a process told, on the clock of the starter."""
        zero = begin - process.clock
        for action, stage, microbatch, start, end, title, channels in told:
            for channel in channels:
                yield Event(process.device, stage, action, self._named(microbatch), start - zero, end - zero, title, channel)

    def _named(self, microbatch: int) -> int:
        """The number in this run of a microbatch that a process has counted over all runs."""
        return self._numbers[max(0, min(microbatch - self._base, len(self._numbers) - 1))] if self._numbers else 0

    def _collect_events(self, begin: float) -> tuple[list[Event], tuple[float, ...], float]:
        """The events of all devices, and the processor seconds of each stage."""
        while not all(process.answers for process in self._all.every):
            self.wait()
        events_of_all: list[Event] = []
        cpu, shares = [0.0] * len(self.build.stages), list[float]()
        for process in self._all.every:
            answer, so_far, process.so_far = process.answers.popleft(), process.so_far, []
            shares.append(float(answer["share"]))
            own = list(self._events(process, (*so_far, *answer["events"]), begin))
            events_of_all += own
            busy = {
                stage: sum(e.end - e.start for e in own if e.stage == stage and e.action == "F") for stage in process.members
            }
            whole = sum(busy.values())
            for stage, seconds in busy.items():
                cpu[stage] += answer["cpu"] * (seconds / whole if whole else 1 / len(busy))
        return events_of_all, tuple(cpu), math.fsum(shares) / len(shares)

    # Failing

    def failure_of(self, failed: Failed) -> DnncError:
        """The error of a failed microbatch, which names its stage."""
        return reported_failure(failed.process, failed.stage, failed.error, self._named(failed.microbatch))

    def _doing(self, process: DeviceProcess) -> tuple[int, str]:
        """The stage that a process last worked on, and what it did. Its status counts microbatches over all runs, the text
        from the start of this run."""
        state, microbatch, _, stage = (int(word) for word in self._all.status[process.number])
        return stage, DOING[state].format(self._named(microbatch))

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
        """Raises the RuntimeFailure of the stage that failed first: the neighbours of a dead stage end too. On several hosts
        none may have failed where neighbours ended: their connection broke."""
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
                if process.wrong is not None:
                    raise process.wrong
                if (error := process.error) is not None and not is_not_connected(error):
                    if error["refused"]:
                        raise InvalidInput(error["refused"])
                    raise reported_failure(process, error["stage"], error["error"], self._named(error["microbatch"]))
            for process in self._all.every:
                status = process.popen.poll()
                if status not in (None, PEER_GONE, FAILED) and process.closed:
                    raise_ended(process, self._doing(process)[0], status, self._doing(process)[1])
        for process in self._all.every:
            if (error := process.error) is not None:
                raise reported_failure(process, error["stage"], error["error"], self._named(error["microbatch"]))
        gone = tuple(process.label(min(process.members)) for process in self._all.every if process.closed)
        far = any(process.host for process in self._all.every)
        raise (Lost if far else RuntimeFailure)(StageSilent(gone or ("a stage",)))


def _period(timeout: float | None) -> float:
    """Seconds between two looks at what the processes do."""
    return 0.5 if timeout is None else min(0.5, timeout / 4)


def _raw(microbatch: Mapping[str, Any]) -> dict[str, Any]:
    return {name: from_user(value) for name, value in microbatch.items()}


def _feed_all(feed: Sender, microbatches: Iterable[Mapping[str, Any]]) -> Iterator[None]:
    for microbatch in microbatches:
        yield from feed.send_microbatch(microbatch)
