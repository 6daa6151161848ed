"""Calls a function in a child process, bounded in time and memory: for libraries that a bad input makes run for ever with
Python's lock held, fill the memory, or crash.

The child is a fork, so the call sees the memory of this process as it is. It does nothing but the call, and ends itself: at
the time limit by an alarm of the system, which needs no lock, and on Linux with the thread that waits for it, whatever ends
that. This process meanwhile waits for bytes, where signals are heard.
"""

from __future__ import annotations

import faulthandler
import os
import select
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

_RETURNED, _RAISED, _NO_MEMORY = range(3)
_HEADER = 9  # bytes in front of an answer: what it is, and its length
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_LOOK = 100
"""Milliseconds between two looks for signals while this process waits: one that another thread took, while this thread
blocked all signals around the fork, interrupts no call of this thread."""


class CallFailedError(Exception):
    """The call raised an exception, whose text this has."""


class CallKilledError(Exception):
    """A signal ended the call; the text is the name of the signal."""


def call_in_child(call: Callable[[], bytes], *, seconds: float, memory: int) -> bytes:
    """The result of ``call`` in a child process.

    Raises TimeoutError after ``seconds``; MemoryError where the call takes ``memory`` bytes more than this process has (on
    Linux); CallKilledError where a signal ended it; CallFailedError for any other exception. Without fork (Windows) the call is
    made in this process, without bounds."""
    if not hasattr(os, "fork"):
        return _opened(*_made(call))
    if seconds <= 0:
        raise TimeoutError
    tie = _death_tie()
    # As files: closing one twice is no fault, and Ctrl-C may fall behind a close, told by another thread.
    read, write = (os.fdopen(end, mode, 0) for end, mode in zip(os.pipe(), ("rb", "wb"), strict=True))
    child = 0
    # Blocked until the child has its own handlers: those of this process would tell this process of the child's signals.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        with _handlers_after(), warnings.catch_warnings():
            # Of threads whose locks stay locked in a child: it takes none but malloc's, which is safe.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
            if not child:
                _be_the_child(call, seconds, memory, tie, write.fileno(), mask)
        write.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        kind, answer = _received(read.fileno())
        if kind is not None:
            return _opened(kind, answer)
        number, child = _status(child), 0
        if number == signal.SIGALRM:
            raise TimeoutError
        raise CallKilledError({known.value: known.name for known in signal.Signals}.get(number, "the system"))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        read.close()
        write.close()
        if child:
            os.kill(child, signal.SIGKILL)
            _status(child)


@contextmanager
def _handlers_after() -> Iterator[None]:
    """Runs handlers of signals after the block, though another thread may get a signal that this one blocks: what a handler
    raises inside a function of ``os.register_at_fork`` is lost. Python runs handlers in the main thread alone."""
    handlers: dict[int, Callable[..., Any]] = {}
    arrived: list[int] = []
    try:
        if threading.current_thread() is threading.main_thread():
            for number in signal.valid_signals():
                if callable(handler := signal.getsignal(number)):
                    handlers[number] = handler
                    signal.signal(number, lambda number, _: arrived.append(number))
        yield
    finally:
        for one, handler in handlers.items():
            signal.signal(one, handler)
        for one in arrived:
            signal.raise_signal(one)  # to this thread, which blocks it still


def _status(child: int) -> int:
    """Waits for the end of the child; returns the signal that ended it, 0 for none."""
    with suppress(ChildProcessError):  # where SIGCHLD is ignored nothing is left to wait for
        _, status = os.waitpid(child, 0)
        return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    return 0


def _received(read: int) -> tuple[int | None, bytes]:
    """The answer of the child; (None, b"") where it ended without one."""
    data = bytearray()
    answers = select.poll()
    answers.register(read, select.POLLIN)
    while len(data) < _HEADER or len(data) < _HEADER + int.from_bytes(data[1:_HEADER], "little"):
        while not answers.poll(_LOOK):
            pass
        part = os.read(read, 1 << 20)
        if not part:
            return None, b""
        data += part
    return data[0], bytes(memoryview(data)[_HEADER:])


def _opened(kind: int, answer: bytes) -> bytes:
    if kind == _NO_MEMORY:
        raise MemoryError
    if kind == _RAISED:
        raise CallFailedError(answer.decode())
    return answer


def _made(call: Callable[[], bytes]) -> tuple[int, bytes]:
    try:
        return _RETURNED, call()
    except MemoryError:
        return _NO_MEMORY, b""
    except Exception as error:
        return _RAISED, (str(error) or type(error).__name__).encode(errors="backslashreplace")


def _death_tie() -> Callable[[], None]:
    """A function that asks the system to kill this process when its parent ends; it does nothing where the system cannot."""
    if not sys.platform.startswith("linux"):
        return lambda: None
    import ctypes

    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def tie() -> None:
        prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it ended before
            os._exit(1)

    return tie


def _be_the_child(
    call: Callable[[], bytes], seconds: float, memory: int, tie: Callable[[], None], write: int, mask: set[int | signal.Signals]
) -> NoReturn:
    """Runs the child from fork to exit. ``mask``: the signals that this process blocked before the fork."""
    try:
        tie()
        _take_default_handlers()
        signal.setitimer(signal.ITIMER_REAL, seconds)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        lift = _limit_memory(memory)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        kind, answer = _made(call)
        lift()
        data = memoryview(bytes([kind]) + len(answer).to_bytes(_HEADER - 1, "little") + answer)
        while data:
            data = data[os.write(write, data) :]
    finally:
        os._exit(0)


def _take_default_handlers() -> None:
    """Gives signals their default effect and takes away the descriptor by which the parent learns of its own signals. Ignored
    signals stay ignored."""
    faulthandler.disable()
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)


def _limit_memory(size: int) -> Callable[[], None]:
    """Limits this process to ``size`` bytes more than it has now, and turns off core dumps. Returns a function that lifts the
    limit."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    try:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:
        return lambda: None
    before = resource.getrlimit(resource.RLIMIT_AS)
    most = min((limit for limit in before if limit != resource.RLIM_INFINITY), default=used + size)
    resource.setrlimit(resource.RLIMIT_AS, (min(used + size, most), before[1]))
    return lambda: resource.setrlimit(resource.RLIMIT_AS, before)
