"""What this process may use of its host: cores and memory, with the limits of its control group."""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_GIB = 1 << 30


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


def core_seconds() -> tuple[float, float]:
    """Seconds for which this thread has had a core so far, and for which it waited for one while it could have computed; of the
    latter 0 where the system does not count them (Linux does, as ``run_delay``)."""
    try:
        waited = int(Path("/proc/thread-self/schedstat").read_text().split()[1]) * 1e-9
    except (OSError, IndexError, ValueError):
        waited = 0.0
    return time.thread_time(), waited


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


__all__ = ["assign_cores", "available_memory", "core_seconds", "device_cores", "local_cores", "local_memory"]
