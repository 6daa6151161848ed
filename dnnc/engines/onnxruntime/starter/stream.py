"""A running build that takes microbatches one by one, from any thread, and hands out their outputs as futures.

Its thread (``served``) feeds the microbatches that were submitted, and sets each future once all outputs of its microbatch are
there.

Invariants:
1. at most ``in_flight`` microbatches are submitted and not done; ``submit`` blocks beyond;
2. a microbatch for which a program raises fails alone: its future has the error, the others go on;
3. once a device has ended, or ``close`` is called, every future that is not done has an error, and ``submit`` raises it; on
   several hosts, what was lost is started again, and microbatches that are not done are fed again (``recovery``).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dnnc.build.build import Build
from dnnc.engines.onnxruntime.faults import NotSoManyInFlight, SubmittedByCallback
from dnnc.engines.onnxruntime.starter.collector import Collector
from dnnc.engines.onnxruntime.starter.pipeline import Failed, Pipeline
from dnnc.engines.onnxruntime.starter.processes import ENDLESS
from dnnc.engines.onnxruntime.starter.served import Served, drained
from dnnc.engines.onnxruntime.starter.starting import RunOptions, StarterEnd
from ir.core.diagnostics import UsageError

if TYPE_CHECKING:
    from dnnc.engines.cluster.starting import FarProcesses

IN_FLIGHT = 4
"""Default of microbatches in flight for each device: one that it works on, those in the slots before and behind it, and one
that is made meanwhile. Where replicas have unlike turns, those with fewest need as many: a stage counts for as many devices as
it would have if all were as slow."""

Outputs = dict[str, Any]


def in_flight_of(build: Build) -> int:
    """How many microbatches are under way at most where nobody says it."""
    devices = len(build.devices)
    for stage in build.stages:
        if stage.turns:
            devices += math.ceil(len(stage.turns) / min(map(stage.turns.count, stage.turns))) - len(stage.devices)
    return IN_FLIGHT * devices


@dataclass(slots=True)
class _Request:
    """A microbatch under way. ``left``: links from which its outputs have not arrived yet; ``failed``: what was told of the
    first stage that failed at it, since later ones may fail at the zeros that it hands on."""

    values: Mapping[str, Any]
    future: Future[Outputs]
    collector: Collector
    left: int = 0
    failed: Failed | None = None


class Stream(Served[_Request]):
    """``with Stream(build) as stream: stream.submit(values).result()``. ``values``: each input's value as it travels
    (``codec.from_user``), which is not changed until the future is done."""

    def __init__(
        self,
        build: Build,
        options: RunOptions | None = None,
        in_flight: int = 0,
        processes: FarProcesses | None = None,
    ) -> None:
        """``in_flight``: the most microbatches under way, 0 for the default (``in_flight_of``); ``processes``: as of a
        ``Pipeline``. Raises as ``Pipeline``, and UsageError for a negative number."""
        if in_flight < 0:
            raise UsageError(NotSoManyInFlight(in_flight))
        super().__init__(Pipeline(build, options, processes), "dnnc-stream")
        self.build = build
        self.in_flight = in_flight or in_flight_of(build)
        self._room = threading.Semaphore(self.in_flight)
        self._requests: dict[int, _Request] = {}
        self._count = 0
        # Where no device works on one microbatch ahead of another, none waits for more than those that are fed: one order is
        # for all. Else the last microbatches would wait for later ones, so each is ordered when it is submitted.
        self._endless = all(not action.microbatch for _, actions in build.schedule.rows for action in actions)

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
        try:
            self._ask(request)
        except BaseException:
            self._room.release()
            raise
        return request.future

    # The thread of the stream

    def _begin(self) -> None:
        super()._begin()
        self._sinks = {id(sink): sink for sink in self._pipeline.sinks}
        self._arriving = {id(sink): sink.turns.within(0, ENDLESS) for sink in self._pipeline.sinks}
        self._count = 0
        if self._endless:
            self._pipeline.order(ENDLESS, False)

    def _round(self) -> None:
        self._feed(drained(self._inbox))
        for sink in self._pipeline.wait():
            self._collect(sink)
        self._pipeline.busy = bool(self._requests)

    def _resume(self) -> None:
        requests = [self._requests[number] for number in sorted(self._requests)]
        if not requests:  # nothing waits for an answer that would show that all is well
            self._pipeline.recovery.answered()
        self._requests.clear()
        for request in requests:
            request.collector, request.failed = Collector(self.build), None
        self._feed(requests)

    def _fail(self, error: BaseException) -> None:
        for request in (*self._requests.values(), *drained(self._inbox)):
            self._done(request, copy(error))
        self._requests.clear()

    def _feed(self, requests: Iterable[_Request]) -> None:
        """Feeds microbatches, and orders them first where each microbatch is ordered alone. Raises EOFError where a device has
        ended."""
        before = self._count
        for request in requests:
            number = self._count
            self._count += 1
            self._requests[number] = request
            request.left = sum(number in sink.turns for sink in self._sinks.values())
            for feed in self._feeds:
                if number in feed.end.turns:
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
            number = next(self._arriving[id(sink)])
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
