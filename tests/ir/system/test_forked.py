"""Calls in a child process: their answers, and every way in which they can fail to give one."""

from __future__ import annotations

import inspect
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ir.system.forked import CallFailedError, CallKilledError, call_in_child

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="without fork the call is made here")
MEMORY = 1 << 28


def called(call: object, seconds: float = 60) -> bytes:
    assert callable(call)
    return call_in_child(call, seconds=seconds, memory=MEMORY)


def raising(error: BaseException) -> bytes:
    raise error


def spinning() -> bytes:
    while True:
        pass


@settings(max_examples=4)
@given(st.integers(0, 200_000))
def test_what_a_call_returns_comes_back(size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    assert called(lambda: data[:size]) == data[:size]


def test_a_call_knows_this_process_and_changes_nothing_in_it(capfd: pytest.CaptureFixture[str]) -> None:
    values = [1]

    def call() -> bytes:
        values.append(2)
        os.write(1, b"said")
        return bytes(values)

    assert called(call) == b"\1\2"
    assert values == [1]
    assert capfd.readouterr().out == ""


def test_a_call_that_raises() -> None:
    with pytest.raises(CallFailedError, match=r"^of the text ä$"):
        called(lambda: raising(ValueError("of the text ä")))
    with pytest.raises(CallFailedError, match=r"^KeyError$"):
        called(lambda: raising(KeyError()))


def test_a_call_that_takes_too_much_memory() -> None:
    with pytest.raises(MemoryError):
        called(lambda: bytes(2 * MEMORY))
    assert len(called(lambda: bytes(MEMORY // 2))) == MEMORY // 2


def test_a_call_that_takes_too_long_is_ended() -> None:
    with pytest.raises(TimeoutError):
        called(spinning, 0.05)
    with pytest.raises(TimeoutError):
        called(lambda: b"", 0)


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_call_that_a_signal_ends(number: signal.Signals) -> None:
    """Whatever this process does at the signal."""
    before = signal.signal(number, lambda *_: None) if number is signal.SIGTERM else None
    try:
        with pytest.raises(CallKilledError, match=number.name):
            called(lambda: bytes(os.kill(os.getpid(), number) or 0) or spinning())
    finally:
        if before is not None:
            signal.signal(number, before)


def test_a_call_that_ends_the_process() -> None:
    with pytest.raises(CallKilledError, match="the system"):
        called(lambda: os._exit(0))


def test_a_signal_of_the_child_is_not_heard_here() -> None:
    """The descriptor that tells this process of its signals is the child's too."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    before = signal.set_wakeup_fd(write)
    handler = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        with pytest.raises(CallKilledError, match="SIGTERM"):
            called(lambda: bytes(os.kill(os.getpid(), signal.SIGTERM) or 0) or spinning())
        with pytest.raises(BlockingIOError):
            os.read(read, 1)
    finally:
        signal.signal(signal.SIGTERM, handler)
        signal.set_wakeup_fd(before)
        os.close(read)
        os.close(write)


def test_calls_of_several_threads() -> None:
    answers: list[bytes] = []
    threads = [threading.Thread(target=lambda: answers.append(called(lambda: b"x" * 100_000))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [b"x" * 100_000] * 8


def test_no_warning_of_threads() -> None:
    """Python 3.12 warns of a fork beside threads."""
    code = (
        "import threading; from ir.system.forked import call_in_child;"
        "threading.Thread(target=threading.Event().wait, daemon=True).start();"
        "print(call_in_child(lambda: b'answer', seconds=60, memory=1 << 28))"
    )
    ran = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("b'answer'\n", "")


_SPINNING = """
import os, sys
from ir.system.forked import call_in_child
def call():
    os.write(told, str(os.getpid()).encode())
    while True:
        pass
told = int(sys.argv[1])
call_in_child(call, seconds=600, memory=1 << 28)
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs a system that ends processes with their parent")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_call_ends_with_the_process_that_waits_for_it(number: signal.Signals) -> None:
    read, write = os.pipe()
    starter = subprocess.Popen([sys.executable, "-c", _SPINNING, str(write)], pass_fds=[write], stderr=subprocess.DEVNULL)
    os.close(write)
    child = int(os.read(read, 100))
    starter.send_signal(number)
    try:
        starter.wait(30)
        assert select.select([read], [], [], 30)[0], "the child still has the other end of the pipe"
        assert not os.read(read, 1)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        os.close(read)


def test_ctrl_c_between_any_two_lines_is_ctrl_c() -> None:
    """Another thread may be told of it while signals are blocked here: no descriptor is closed twice, none stays open."""
    lines, first = inspect.getsourcelines(call_in_child)
    numbers = [first + i for i, line in enumerate(lines) if line.strip()]
    begin, end = (first + lines.index(f"    {word}:\n") for word in ("try", "finally"))
    me, opened = os.getpid(), sorted(os.listdir("/proc/self/fd"))
    ended = 0
    for number in (number for number in numbers if begin < number < end):

        def interrupt(frame: FrameType, event: str, arg: object, number: int = number) -> Any:
            if frame.f_code is not call_in_child.__code__ or os.getpid() != me:
                return None
            if event == "line" and frame.f_lineno == number:
                raise KeyboardInterrupt
            return interrupt

        sys.settrace(interrupt)
        try:
            assert call_in_child(lambda: b"made", seconds=60, memory=MEMORY) == b"made"
        except KeyboardInterrupt:
            ended += 1
        finally:
            sys.settrace(None)
        assert sorted(os.listdir("/proc/self/fd")) == opened, number
    assert ended > 8


_INTERRUPTED_WHILE_FORKING = """
import os, signal, threading
from ir.system.forked import call_in_child
def interrupt():
    os.kill(os.getpid(), signal.SIGINT)  # the calling thread blocks signals: the other one gets it
    os.read(told, 1)
told, tells = os.pipe()
os.set_blocking(tells, False)
signal.set_wakeup_fd(tells)
threading.Thread(target=threading.Event().wait, daemon=True).start()
os.register_at_fork(**{"WHEN": interrupt})
try:
    print(call_in_child(lambda: b"answer", seconds=60, memory=1 << 28))
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("when", ["before", "after_in_parent"])
def test_an_interrupt_in_the_middle_of_a_fork_is_not_lost(when: str) -> None:
    """Python ignores what a function of ``os.register_at_fork`` raises, and ``logging`` has such functions."""
    code = _INTERRUPTED_WHILE_FORKING.replace("WHEN", when)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("interrupted\n", "")


_TAKEN_BY_ANOTHER_THREAD = """
import os, signal, sys, threading
from ir.system.forked import call_in_child
def take(number, frame):
    running = os.waitpid(-1, os.WNOHANG) == (0, 0)
    print("heard" if running else "heard after the call", flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, take)
threading.Thread(target=threading.Event().wait, daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
def call():
    blocked = f"SigBlk:\\t{1 << signal.SIGTERM - 1:016x}\\n"
    while blocked not in open(f"/proc/{os.getppid()}/status").read():
        pass  # until the other process blocks this signal alone again, as it waits
    os.kill(os.getppid(), signal.SIGTERM)
    while True:
        pass
call_in_child(call, seconds=30, memory=1 << 28)
"""


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="looks for the signals that a process blocks where Linux shows them"
)
def test_a_signal_that_another_thread_takes_is_heard() -> None:
    """It interrupts no call of this thread, in which alone Python runs handlers. A signal that comes while this thread blocks
    all of them, around the fork, may go there."""
    code = _TAKEN_BY_ANOTHER_THREAD
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("heard\n", "")
