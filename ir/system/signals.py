"""Turns SIGTERM and SIGHUP into an exception, as Python does with Ctrl-C, so that every ``with`` and ``finally`` cleans up.

The exit code is 128 + the signal's number, as a shell has it for a process that the signal ended. A signal that the process
was started with as ignored (``nohup``) stays ignored. All three wait where an exception would be lost or do harm: in the
import of a module (C++ that is initialised aborts the process), in llvmlite, which calls Python from C while it compiles and
goes on with half of its work when that raises, and in what numpy's C calls (a comparison of structures tells any exception
there as a TypeError). Where Python itself drops one (in a finalizer, or in a callback of the collector), it is asked for again.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_REQUESTS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
_CALLED_FROM_C = (f"{os.sep}llvmlite{os.sep}", os.path.join("numpy", "_core", "_internal.py"))
GRACE = 5.0
"""Seconds for cleaning up after SIGTERM or SIGHUP."""


class Terminated(SystemExit):
    """SIGTERM or SIGHUP came; raised in the main thread."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number

    @property
    def name(self) -> str:
        return signal.Signals(self.number).name


def _raise(number: int, frame: FrameType | None) -> None:
    if _must_wait(frame):
        _ask_again(number)
        return
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    for other in _REQUESTS:
        if signal.getsignal(other) is _raise:
            signal.signal(other, signal.SIG_IGN)  # a second request must not interrupt the cleaning up after the first
    raise Terminated(number)


def _ask_again(number: int) -> None:
    again = threading.Timer(0.05, os.kill, (os.getpid(), number))
    again.daemon = True
    again.start()


def _must_wait(frame: FrameType | None) -> bool:
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith("<frozen importlib") or any(part in file for part in _CALLED_FROM_C):
            return True
        frame = frame.f_back
    return False


@contextmanager
def termination_raises() -> Iterator[None]:
    """In the block, SIGTERM and SIGHUP raise ``Terminated``, and Ctrl-C KeyboardInterrupt. Does nothing outside the main
    thread, or for signals that have a handler already."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    defaults = {**dict.fromkeys(_REQUESTS, signal.SIG_DFL), signal.SIGINT: signal.default_int_handler}
    mine = {number: default for number, default in defaults.items() if signal.getsignal(number) is default}
    other_hook = sys.unraisablehook

    def hook(dropped: sys.UnraisableHookArgs) -> None:
        number = dropped.exc_value.number if isinstance(dropped.exc_value, Terminated) else signal.SIGINT
        if not issubclass(dropped.exc_type, (Terminated, KeyboardInterrupt)) or number not in mine:
            other_hook(dropped)
            return
        signal.signal(number, _raise)
        _ask_again(number)

    for number in mine:
        signal.signal(number, _raise)
    if mine:
        sys.unraisablehook = hook
    try:
        yield
    finally:
        if mine:
            sys.unraisablehook = other_hook
        for number, default in mine.items():
            signal.signal(number, default)


def end_soon_after_a_request(clean: Callable[[], None]) -> None:
    """From now on this process ends at most ``GRACE`` seconds after a signal that ``termination_raises`` handles. Another
    thread then calls ``clean`` and ends it, because the main thread may be in a solver, which no exception reaches, or in a
    callback that swallowed the exception. For a process that does nothing else."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(read, clean), daemon=True).start()


def _watch(read: int, clean: Callable[[], None]) -> None:
    while (number := os.read(read, 1)[0]) not in _REQUESTS:
        pass
    time.sleep(GRACE)
    clean()
    os._exit(128 + number)
