"""A pipeline that a thread of its own serves, and that any thread may ask: what ``Stream`` and ``Decoder`` share.

The thread waits on the selector of the ``Pipeline``: for the devices, and for a pipe that ``_ask`` writes to.

Invariant: once a device has ended, or ``close`` is called, whoever waits has an error, and ``_ask`` raises it. Where the run
goes on after a loss, devices are started again instead (``recovery``).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Generic, Self, TypeVar

from dnnc.engines.onnxruntime.errors import Lost
from dnnc.engines.onnxruntime.faults import SessionClosed
from dnnc.engines.onnxruntime.starter.pipeline import Pipeline
from dnnc.engines.onnxruntime.starter.starting import StarterEnd
from ir.core.diagnostics import Diagnostic, UsageError

Asked = TypeVar("Asked")


@dataclass(slots=True)
class FeedQueue:
    """A link to a device, and the microbatches that go through it, in order."""

    end: StarterEnd
    queue: deque[Mapping[str, Any]] = field(default_factory=deque)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        while self.queue:
            yield self.queue.popleft()


class Served(ABC, Generic[Asked]):
    """``with`` starts the devices. What is asked for comes to the thread by ``_inbox``."""

    def __init__(self, pipeline: Pipeline, name: str) -> None:
        self._pipeline = pipeline
        self._feeds: list[FeedQueue] = []
        self._inbox: SimpleQueue[Asked] = SimpleQueue()
        self._closing = False
        self._error: BaseException | None = None
        self._gate = threading.RLock()  # once ``_error`` is set, nothing is put into a queue, and the pipe is not written to
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)

    def __enter__(self) -> Self:
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

    def __exit__(self, *error: object) -> None:
        self.close()

    def tell(self, warn: Callable[[Diagnostic], None]) -> None:
        """Lets ``warn`` be called, in the thread, for each loss after which the devices were started again."""
        self._pipeline.recovery.tell = warn

    @property
    def processes(self) -> tuple[int, ...]:
        """Process ids of the devices."""
        return self._pipeline.processes

    def close(self) -> None:
        """Ends the devices; what is under way fails. May be called again, and from any thread; the thread itself does not wait
        for the end."""
        atexit.unregister(self.close)
        with self._gate:
            self._closing = True
            if self._error is None:
                self._wake()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _ask(self, asked: Asked) -> None:
        """Hands ``asked`` to the thread. Raises what ended it, UsageError where it is closed."""
        with self._gate:
            if self._error is None:
                self._inbox.put(asked)
                self._wake()
                return
        raise copy(self._error)  # threads that raise one object share its traceback, which would grow with each call

    def _wake(self) -> None:
        """Lets the thread look at its queues and at ``_closing``. Only while ``_gate`` is held and there is no ``_error``: the
        number of a closed descriptor may be that of another file."""
        with contextlib.suppress(BlockingIOError):  # the pipe is full of such calls
            os.write(self._waker, b"\0")

    # The thread

    @abstractmethod
    def _round(self) -> None:
        """Takes what was asked for, waits for the devices once, and takes what they made. Raises EOFError and Lost."""

    @abstractmethod
    def _resume(self) -> None:
        """Feeds again what is not done, to processes that were started again."""

    @abstractmethod
    def _fail(self, error: BaseException) -> None:
        """Tells everyone who waits of the error, each a copy of it."""

    def _begin(self) -> None:
        """Uses the processes, which have just started."""
        self._feeds = [FeedQueue(end) for end in self._pipeline.feeds]
        self._pipeline.wake_by(self._wakeup)
        self._pipeline.busy = False

    def _serve(self) -> None:
        error: BaseException = UsageError(SessionClosed())
        try:
            while not self._closing:
                try:
                    self._round()
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
            self._fail(error)

    def _go_on(self, error: BaseException) -> None:
        """Starts what was lost again; raises any other error."""
        while isinstance(error, Lost):
            try:
                self._pipeline.recover(error, lambda: self._closing)
                self._begin()
                self._resume()
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


def drained(queue: SimpleQueue[Asked]) -> Iterator[Asked]:
    """What a queue holds."""
    while True:
        try:
            yield queue.get_nowait()
        except Empty:
            return
