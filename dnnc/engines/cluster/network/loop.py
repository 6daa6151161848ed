"""The thread of a relay: waits for sockets and descriptors, and calls whoever handles what is ready.

Other threads ask it to do something by ``do``: a queue, and a pipe that wakes it up.

Invariants: handlers and jobs run one at a time; when the thread ends, by an error too, ``ended`` is called in it, and jobs that
come later are done by who asks for them.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

import zmq


class _Closing(Exception):
    """The loop was closed."""


class Loop:
    """``ended``: called when the thread ends, while no other thread does a job. ``over``: whether that was."""

    def __init__(self, ended: Callable[[], None]) -> None:
        self.over = False
        self._ended = ended
        self._handlers: dict[Any, Callable[[], None]] = {}
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._gate = threading.Lock()
        self._closed = False
        self._poller = zmq.Poller()
        self._wakeup, self._waker = os.pipe()
        os.set_blocking(self._wakeup, False)
        os.set_blocking(self._waker, False)
        self.handle(self._wakeup, self._woken)
        self._thread = threading.Thread(target=self._serve, name="dnnc-relay", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def do(self, job: Callable[[], None]) -> None:
        """Lets the thread do something; does it here where the thread has ended."""
        with self._gate:
            if self.over:
                job()
                return
            self._put(job)

    def close(self) -> None:
        """Ends the thread, and waits until it has ended; may be called again."""
        if self._closed:
            return
        self._closed = True
        if self._thread.ident is not None:
            self._put(None)
            self._thread.join()
        os.close(self._wakeup)
        os.close(self._waker)

    # Of the thread

    def handle(self, what: Any, handler: Callable[[], None], event: int = zmq.POLLIN) -> None:
        """Calls ``handler`` whenever the socket or descriptor ``what`` is ready."""
        self._handlers[what] = handler
        self._poller.register(what, event)

    def handles(self, what: Any) -> bool:
        return what in self._handlers

    def forget(self, what: Any) -> None:
        if self._handlers.pop(what, None) is not None:
            self._poller.unregister(what)

    def _put(self, job: Callable[[], None] | None) -> None:
        self._jobs.put(job)
        with contextlib.suppress(BlockingIOError):  # the pipe is full of such calls
            os.write(self._waker, b"\0")

    def _serve(self) -> None:
        try:
            while True:
                for handler, ready in [(self._handlers[ready], ready) for ready, _ in self._poller.poll()]:
                    if self._handlers.get(ready) is handler:  # another descriptor may have its number by now
                        handler()
        except _Closing:
            pass
        finally:
            with self._gate:
                self.over = True
                self._ended()
                while not self._jobs.empty():
                    if (job := self._jobs.get()) is not None:
                        job()

    def _woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wakeup, 1 << 10)
        with contextlib.suppress(Empty):
            while True:
                job = self._jobs.get_nowait()
                if job is None:
                    raise _Closing
                job()
