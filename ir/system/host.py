"""What this process may use of its host: cores and memory, with the limits of its control group."""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

_GIB = 1 << 30
_MOST_STOLEN = 0.99
"""The steal time is counted in ticks, and may seem longer than the time in which it was stolen."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
"""The numbers of these parameters of ``mallopt``, in ``malloc.h``."""
_CORE_ROW = re.compile(r"^cpu(\d+) (\d+) (\d+) (\d+) \d+ \d+ (\d+) (\d+) (\d+)", re.MULTILINE)
"""A row of ``/proc/stat``: user, nice, system, (idle, waiting for devices), interrupts, soft interrupts, stolen; in ticks."""


def local_cores() -> int:
    """Cores that this process may use: its affinity, and the quota of its control group."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup("cpu.max").split()
    if len(quota) == 2 and quota[0].isdigit() and quota[1].isdigit() and int(quota[1]):
        cores = min(cores, max(1, -(-int(quota[0]) // int(quota[1]))))
    return cores


def assign_cores(threads: Sequence[int], pin: bool = True) -> tuple[list[list[int]], bool]:
    """The cores of each device, from the number of its ``threads``, and whether there are enough for all (else devices share
    cores). Empty lists if the system has no affinity or ``pin`` is off."""
    if not pin or not hasattr(os, "sched_getaffinity"):
        return [[] for _ in threads], sum(threads) <= (os.cpu_count() or 1)
    cores = sorted(os.sched_getaffinity(0))
    if sum(threads) <= len(cores):
        return [cores[end - count : end] for count, end in zip(threads, itertools.accumulate(threads), strict=True)], True
    return [cores for _ in threads], False


def device_cores(devices: Sequence[str], threads: Mapping[str, int], pin: bool = True) -> tuple[list[list[int]], bool]:
    """As ``assign_cores``, the cores of each of ``devices``. ``threads``: of all devices of the host, in the order in which
    cores are dealt. A device has the same cores in every plan, because those that rest keep theirs; where there are too few
    cores for all of the host, they are dealt to ``devices`` alone."""
    cores, own = assign_cores(list(threads.values()), pin)
    if own:
        by_device = dict(zip(threads, cores, strict=True))
        return [by_device[device] for device in devices], True
    return assign_cores([threads[device] for device in devices], pin)


class CoreClock:
    """Measures the ``share`` of the time in which the calling thread could have computed, between ``start`` and ``stop``, for
    which it had a core. ``sleeps``: whether it waits for anything but a core meanwhile.

    It waits for a core while the system runs other threads there (Linux counts this as ``run_delay``), and while a hypervisor
    runs other machines there (steal time, of which the mean over the thread's cores is taken: a part p of all time makes what
    it does 1 / (1 - p) times as long). A thread that never sleeps waited whenever its processor time stood still, also where
    the system counts neither."""

    def __init__(self, *, sleeps: bool) -> None:
        self.sleeps = sleeps
        self.reset()

    def reset(self) -> None:
        """Forgets what was measured."""
        self._had = self._waited = 0.0

    def start(self) -> None:
        self._begin = self._now()

    def stop(self) -> None:
        """Adds the time since ``start``."""
        whole, had, delay, stolen = (now - then for now, then in zip(self._now(), self._begin, strict=True))
        part = min(_MOST_STOLEN, stolen / whole) if whole > 0 else 0.0
        waited = delay + (had + delay) * part / (1 - part)
        self._had += had
        self._waited += waited if self.sleeps else max(waited, whole - had)

    @property
    def share(self) -> float:
        return self._had / (self._had + self._waited) if self._had > 0 else 1.0

    @staticmethod
    def _now() -> tuple[float, float, float, float]:
        """Seconds of the clock, of this thread on a core, for which it waited for one, and stolen from one of its cores."""
        words = _text(Path("/proc/thread-self/schedstat")).split()
        delay = int(words[1]) * 1e-9 if len(words) == 3 else 0.0
        cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else frozenset[int]()
        return time.perf_counter(), time.thread_time(), delay, processor_seconds(cores)[1] / max(1, len(cores))


def processor_seconds(cores: Collection[int], root: Path = Path("/")) -> tuple[float, float]:
    """Seconds for which these cores together have computed so far, and for which a hypervisor has kept them from it (steal
    time); 0 where the system does not count them (Linux does, in ``/proc/stat``). ``root`` replaces ``/`` in tests."""
    computed = stolen = 0
    for core, user, nice, system, irq, soft, steal in _CORE_ROW.findall(_text(root / "proc/stat")):
        if int(core) in cores:
            computed += int(user) + int(nice) + int(system) + int(irq) + int(soft)
            stolen += int(steal)
    tick = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
    return computed / tick, stolen / tick


def give_back_large_blocks(size: int = 1 << 20) -> None:
    """From now on this process gives memory of ``size`` bytes or more back to the system when it frees it (glibc; elsewhere
    nothing changes). Left alone, glibc raises this limit to 32 MiB, and its heap has holes between tensors of other sizes."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, size)


def give_back_freed_memory() -> None:
    """From now on this process gives memory back to the system as glibc does at first, whatever the environment says: blocks of
    128 KiB or more, and so much at the end of its heap (elsewhere nothing changes). It holds least then, and is slower."""
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        for parameter, value in ((_TRIM_THRESHOLD, 128 << 10), (_MMAP_THRESHOLD, 128 << 10), (_MMAP_MAX, 1 << 16)):
            library.mallopt(parameter, value)


@contextmanager
def not_preempting() -> Iterator[None]:
    """Threads that this one starts in the block interrupt no other when they wake: where no core is free, they wait until one
    is, or until its thread has had its turn (Linux's SCHED_BATCH, which threads inherit; elsewhere nothing changes)."""
    before = os.sched_getscheduler(0) if hasattr(os, "SCHED_BATCH") else None
    if before is None or before != os.SCHED_OTHER:
        yield
        return
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    try:
        yield
    finally:
        os.sched_setscheduler(0, before, os.sched_param(0))


def local_memory() -> int:
    """Bytes of memory that this process may use, in whole GiB: physical memory, and the limit of its control group."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        memory = 8 * _GIB  # a system that does not tell
    limit = _cgroup("memory.max")
    if limit.isdigit():
        memory = min(memory, int(limit))
    return max(1, memory // _GIB) * _GIB


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that this process can have now without swapping: what the system calls available, and what the limit of its control
    group leaves. ``local_memory`` where the system does not say. ``root`` replaces ``/`` in tests."""
    told = re.search(r"^MemAvailable:\s*(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE)
    memory = int(told[1]) << 10 if told else local_memory()
    limit, used = _cgroup("memory.max", root), _cgroup("memory.current", root)
    return max(0, min(memory, int(limit) - int(used))) if limit.isdigit() and used.isdigit() else memory


def _cgroup(name: str, root: Path = Path("/")) -> str:
    return _text(root / "sys/fs/cgroup" / name).strip()


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
