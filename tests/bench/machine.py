"""The machine a measurement was made on, as one header that every bench prints: numbers without it mean nothing."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from ir.system.host import processor_seconds

PACKAGES = ("numpy", "lark", "numba", "onnx", "onnx-ir", "onnxruntime")


def cpu_name() -> str:
    """The processor as its maker calls it; the architecture where the system does not say."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def load() -> str:
    """What else runs: the load of the last minute."""
    return f"{os.getloadavg()[0]:.2f}" if hasattr(os, "getloadavg") else "unknown"


def header() -> str:
    """CPU, cores, load, system, Python and the versions of the packages that matter."""
    versions = []
    for package in PACKAGES:
        try:
            versions.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue
    return "\n".join(
        [
            f"cpu: {cpu_name()}, {cores()} cores, load {load()}",
            f"system: {platform.system()} {platform.release()}, Python {platform.python_version()}",
            f"packages: {', '.join(versions)}",
        ]
    )


class Quiet:
    """For which part of the time of this process's cores, since this was made or asked, nothing else had them: no program but
    this one and what it started, and no other virtual machine. 1 where the system does not say (it is Linux that does)."""

    def __init__(self) -> None:
        self.last = self._now()

    def part(self) -> float:
        (clock, every, own), self.last = self.last, self._now()
        whole = (self.last[0] - clock) * cores()
        others = (self.last[1] - every) - (self.last[2] - own)
        return min(1.0, 1 - others / whole) if whole > 0 else 1.0

    @staticmethod
    def _now() -> tuple[float, float, float]:
        """Seconds of the clock, that the cores computed or were stolen, and of this process and its descendants, also of those
        that ended."""
        every = math.fsum(processor_seconds(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else 0.0
        if not every:
            return time.perf_counter(), 0.0, 0.0
        rows = dict(_processes())
        mine = {os.getpid()}
        while more := {pid for pid, (parent, _) in rows.items() if parent in mine} - mine:
            mine |= more
        own = sum(rows[pid][1] for pid in mine if pid in rows)
        return time.perf_counter(), every, own / os.sysconf("SC_CLK_TCK")


def _processes() -> Iterator[tuple[int, tuple[int, int]]]:
    """Of each process its parent, and the ticks that it and its children that ended had."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                words = (folder / "stat").read_text().rpartition(")")[2].split()
                yield int(folder.name), (int(words[1]), sum(map(int, words[11:15])))
