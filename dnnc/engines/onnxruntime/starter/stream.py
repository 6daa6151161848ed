"""A running build that takes microbatches one by one, from any thread, and hands out their outputs as futures.

One thread of its own waits on the selector of the ``Pipeline``: for the devices, and for a pipe that ``submit`` writes to. It
feeds the microbatches that were submitted, and sets each future once all outputs of its microbatch are there.

Invariants:
1. at most ``in_flight`` microbatches are submitted and not done; ``submit`` blocks beyond;
2. a microbatch for which a program raises fails alone: its future has the error, the others go on;
3. once a device has ended, or ``close`` is called, every future that is not done has an error, and ``submit`` raises it; on
   several hosts, what was lost is started again, and microbatches that are not done are fed again (``recovery``).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from copy import copy
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from dnnc.build.build import Build
from dnnc.engines.onnxruntime.errors import Lost
from dnnc.engines.onnxruntime.faults import NotSoManyInFlight, SessionClosed, SubmittedByCallback
from dnnc.engines.onnxruntime.starter.collector import Collector
from dnnc.engines.onnxruntime.starter.pipeline import ENDLESS, Failed, Pipeline
from dnnc.engines.onnxruntime.starter.starting import RunOptions, StarterEnd
from ir.core.diagnostics import UsageError

if TYPE_CHECKING:
    from dnnc.engines.cluster.starting import FarProcesses

IN_FLIGHT = 4
"""Default of microbatches in flight for each device: one that it works on, those in the slots before and behind it, and one
that is made meanwhile."""

Outputs = dict[str, Any]


@dataclass(slots=True)
class _Request:
    """A microbatch under way. ``left``: links from which its outputs have not arrived yet; ``failed``: what was told of the
    first stage that failed at it, since later ones may fail at the zeros that it hands on."""

    values: Mapping[str, Any]
    future: Future[Outputs]
    collector: Collector
    left: int = 0
    failed: Failed | None = None


@dataclass(slots=True)
class FeedQueue:
    """A link to a device, and the microbatches that go through it, in order."""

    end: StarterEnd
    queue: deque[Mapping[str, Any]] = field(default_factory=deque)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        while self.queue:
            yield self.queue.popleft()


class Stream:
    """``with Stream(build) as stream: stream.submit(values).result()``. ``values``: each input's value as it travels
    (``codec.from_user``), which is not changed until the future is done."""

    def __init__(
        self,
        build: Build,
        options: RunOptions | None = None,
        in_flight: int = 0,
        processes: FarProcesses | None = None,
    ) -> None:
        """``in_flight``: the most microbatches under way, 0 for ``IN_FLIGHT`` for each device; ``processes``: as of a
        ``Pipeline``. Raises as ``Pipeline``, and UsageError for a negative number."""
        if in_flight < 0:
            raise UsageError(NotSoManyInFlight(in_flight))
        self.build = build
        self.in_flight = in_flight or IN_FLIGHT * len(build.devices)
        self._pipeline = Pipeline(build, options, processes)
        self._room = threading.Semaphore(self.in_flight)
        self._inbox: SimpleQueue[_Request] = SimpleQueue()
        self._requests: dict[int, _Request] = {}
        self._count = 0
        # Where no device works on one microbatch ahead of another, none waits for more than those that are fed: one order is
        # for all. Else the last microbatches would wait for later ones, so each is ordered when it is submitted.
        self._endless = all(not action.microbatch for _, actions in build.schedule.rows for action in actions)
        self._closing = False
        self._error: BaseException | None = None
        self._gate = threading.RLock()  # once ``_error`` is set, nothing is put into the inbox, and the pipe is not written to
        self._thread = threading.Thread(target=self._serve, name="dnnc-stream", daemon=True)

    def __enter__(self) -> Stream:
        """Starts the devices. Raises as ``Pipeline.__enter__``."""
        self._pipeline.__enter__()
        try:
            self._wakeup, self._waker = os.pipe()
        except OSError:
            self._pipeline.close()
            raise
        os.set_blocking(self._waker, False)
        self._begin()
        self._thread.start()
        atexit.register(self.close)
        return self

    def _begin(self) -> None:
        """Uses the processes, which have just started."""
        self._feeds = [FeedQueue(end) for end in self._pipeline.feeds]
        self._sinks = {id(sink): sink for sink in self._pipeline.sinks}
        self._arrived = {id(sink): sink.first for sink in self._pipeline.sinks}
        self._count = 0
        self._pipeline.wake_by(self._wakeup)
        self._pipeline.busy = False
        if self._endless:
            self._pipeline.order(ENDLESS, False)

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def processes(self) -> tuple[int, ...]:
        """Process ids of the devices."""
        return self._pipeline.processes

    def submit(self, values: Mapping[str, Any], *, block: bool = True) -> Future[Outputs] | None:
        """The outputs by name of a microbatch, to come. Blocks while ``in_flight`` are under way; without ``block``, returns
        None then. Raises what ended the stream, UsageError where it is closed. A callback of the future delays all others, and
        must not submit: it would wait for its own thread, so that raises UsageError."""
        if threading.current_thread() is self._thread:
            raise UsageError(SubmittedByCallback())
        if not self._room.acquire(blocking=block):
            return None
        request = _Request(values, Future(), Collector(self.build))
        request.future.set_running_or_notify_cancel()  # what is under way cannot be cancelled
        with self._gate:
            error = self._error
            if error is None:
                self._inbox.put(request)
                self._wake()
        if error is not None:
            self._room.release()
            raise copy(error)  # threads that raise one object share its traceback, which would grow with each call
        return request.future

    def close(self) -> None:
        """Ends the devices; microbatches that are under way fail. May be called again, and from any thread; a callback of a
        future does not wait for the end."""
        atexit.unregister(self.close)
        with self._gate:
            self._closing = True
            if self._error is None:
                self._wake()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _wake(self) -> None:
        """Lets the thread look at the inbox and at ``_closing``. Only while ``_gate`` is held and there is no ``_error``: the
        number of a closed descriptor may be that of another file."""
        with contextlib.suppress(BlockingIOError):  # the pipe is full of such calls
            os.write(self._waker, b"\0")

    # The thread of the stream

    def _serve(self) -> None:
        error: BaseException = UsageError(SessionClosed())
        try:
            while not self._closing:
                try:
                    self._feed(self._submitted())
                    for sink in self._pipeline.wait():
                        self._collect(sink)
                    self._pipeline.busy = bool(self._requests)
                except EOFError:
                    self._go_on(self._ended())
                except Lost as lost:
                    self._go_on(lost)
        except BaseException as raised:
            if not (self._closing and isinstance(raised, Lost)):
                error = raised
        error = copy(error)  # without its traceback, whose frames may refer to slots: their memory would stay mapped
        with self._gate:
            self._error = error
        try:
            self._pipeline.close()
            os.close(self._wakeup)
            os.close(self._waker)
        finally:
            for request in (*self._requests.values(), *self._submitted()):
                self._done(request, copy(error))
            self._requests.clear()

    def _go_on(self, error: BaseException) -> None:
        """Starts what was lost again and feeds the microbatches that are not done; raises any other error."""
        while isinstance(error, Lost):
            try:
                self._pipeline.recover(error, lambda: self._closing)
                self._begin()
                requests = [self._requests[number] for number in sorted(self._requests)]
                self._requests.clear()
                for request in requests:
                    request.collector, request.failed = Collector(self.build), None
                self._feed(requests)
                return
            except EOFError:
                error = self._ended()
        raise error

    def _ended(self) -> BaseException:
        """Why a device has gone."""
        try:
            self._pipeline.raise_failure()
        except BaseException as error:
            return error

    def _submitted(self) -> Iterator[_Request]:
        while True:
            try:
                yield self._inbox.get_nowait()
            except Empty:
                return

    def _feed(self, requests: Iterable[_Request]) -> None:
        """Feeds microbatches, and orders them first where each microbatch is ordered alone. Raises EOFError where a device has
        ended."""
        before = self._count
        for request in requests:
            number = self._count
            self._count += 1
            self._requests[number] = request
            request.left = sum(number % sink.step == sink.first for sink in self._sinks.values())
            for feed in self._feeds:
                if number % feed.end.step == feed.end.first:
                    feed.queue.append(request.values)
        if self._count == before:
            return
        if not self._pipeline.busy:
            self._pipeline.begin()
        if not self._endless:
            self._pipeline.order(self._count, False)
        for feed in self._feeds:
            if feed.queue:
                self._pipeline.feed(feed.end, feed)

    def _collect(self, sink: StarterEnd) -> None:
        """Takes the outputs that have arrived through a link. Those of a failed microbatch are thrown away."""
        for failed in self._pipeline.failures:
            request = self._requests.get(failed.microbatch)
            if request is None:
                continue  # its outputs are there: what failed was not needed for them
            if request.failed is None or failed.stage < request.failed.stage:
                request.failed = failed
        self._pipeline.failures.clear()
        while sink.side.complete:
            number = self._arrived[id(sink)]
            self._arrived[id(sink)] += sink.step
            request = self._requests[number]
            if request.failed is None:
                request.collector.collect(sink)
            else:
                sink.side.release(sink.side.take())
            request.left -= 1
            if not request.left:
                error = self._pipeline.failure_of(request.failed) if request.failed is not None else None
                self._done(self._requests.pop(number), error)

    def _done(self, request: _Request, error: BaseException | None) -> None:
        self._room.release()
        self._pipeline.recovery.answered()
        if error is not None:
            request.future.set_exception(error)
        else:
            outputs = request.collector.outputs
            request.future.set_result({port.name: outputs[port.name] for port in self.build.outputs})


__all__ = ["IN_FLIGHT", "FeedQueue", "Stream"]
