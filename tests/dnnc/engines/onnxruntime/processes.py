"""Processes that tests start: what must be gone when a test, or a program that it ended, is over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def nothing_left() -> Iterator[None]:
    """The block leaves no child process, ended ones included, no descriptor and no named segment of shared memory."""
    before, open_before = set(os.listdir("/dev/shm")), len(os.listdir("/proc/self/fd"))
    yield
    assert children(os.getpid()) == []
    assert set(os.listdir("/dev/shm")) <= before
    assert len(os.listdir("/proc/self/fd")) <= open_before


def children(parent: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                stat = Path(f"/proc/{name}/stat").read_text()
            except OSError:
                continue
            if int(stat.rpartition(")")[2].split()[1]) == parent:
                found.append(int(name))
    return found


def gone(processes: Iterable[int]) -> bool:
    """Whether soon none of these processes is left."""
    deadline = time.monotonic() + 10
    while (left := [one for one in processes if Path(f"/proc/{one}").exists()]) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not left


def running(words: str) -> list[int]:
    """The processes whose command line has these words, with zeros between them."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if words.encode() in Path(f"/proc/{name}/cmdline").read_bytes():
                found.append(int(name))
    return found


def end_starter(arguments: list[str], how: signal.Signals, after: float = 0.3) -> int:
    """Starts Python with ``arguments``, a program that prints the numbers of its processes and runs on; ends it by a signal
    ``after`` so many seconds. Returns how many processes it had; all must be gone soon after."""
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
