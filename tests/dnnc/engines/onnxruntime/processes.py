"""Processes of a test: finds them, ends them, and checks that nothing of them is left."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LASTING: set[int] = set()
"""Children of this process that serve many tests: ``children`` and ``descendants`` leave them out."""


@contextmanager
def nothing_left() -> Iterator[None]:
    """Asserts that the block leaves no child process (not even a zombie), no file descriptor and no named shared memory."""
    segments_before, open_before = set(os.listdir("/dev/shm")), _descriptors()
    yield
    assert children(os.getpid()) == []
    assert set(os.listdir("/dev/shm")) <= segments_before
    deadline = time.monotonic() + 10
    while len(left := _descriptors()) > len(open_before) and time.monotonic() < deadline:
        gc.collect()  # the traceback of an error that was expected may hold a build, and so its open weights
        time.sleep(0.01)  # ZeroMQ closes sockets in a thread of its own
    assert len(left) <= len(open_before), f"opened and not closed: {sorted(left.items() - open_before.items())}"


def _descriptors() -> dict[str, str]:
    """Number and file of each descriptor of this process that is open."""
    found = {}
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the one that lists the folder is closed by now
            found[number] = os.readlink(f"/proc/self/fd/{number}")
    return found


def children(parent: int) -> list[int]:
    """The process ids of the children of ``parent``, zombies included, without ``LASTING``."""
    processes = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                stat = Path(f"/proc/{name}/stat").read_text()
            except OSError:
                continue
            if int(stat.rpartition(")")[2].split()[1]) == parent:
                processes.append(int(name))
    return [one for one in processes if one not in LASTING]


def gone(processes: Iterable[int]) -> bool:
    """Whether all these processes end within 10 seconds."""
    deadline = time.monotonic() + 10
    while (alive := [one for one in processes if Path(f"/proc/{one}").exists()]) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not alive


def running(words: str, among: Iterable[int] | None = None) -> list[int]:
    """The ids of the processes, of all or ``among`` these, whose command line contains ``words``; zero bytes separate its
    arguments."""
    processes = []
    for one in map(int, filter(str.isdigit, os.listdir("/proc"))) if among is None else among:
        with suppress(OSError):
            if words.encode() in Path(f"/proc/{one}/cmdline").read_bytes():
                processes.append(one)
    return processes


def descendants(process: int) -> list[int]:
    """Process ids of the children of a process and of theirs, without ``LASTING``, by one look at all processes."""
    parents: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            parent = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        parents.setdefault(parent, []).append(int(name))
    found = [process]
    for one in found:
        found += parents.get(one, [])
    return [one for one in found[1:] if one not in LASTING]


def end_starter(arguments: list[str], how: signal.Signals, after: float = 0.3) -> int:
    """Starts Python with ``arguments``: a program that prints the ids of its processes and goes on. Sends it the signal ``how``
    after ``after`` seconds, asserts that its processes end too, and returns how many there were."""
    root = Path(__file__).resolve().parents[4]
    starter = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=root)
    assert starter.stdout is not None
    processes = [int(pid) for pid in starter.stdout.readline().split()]
    time.sleep(after)
    starter.send_signal(how)
    starter.wait(20)
    starter.stdout.close()
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in processes) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(Path(f"/proc/{pid}").exists() for pid in processes)
    return len(processes)
