"""The machine a measurement was made on, as one header that every bench prints: numbers without it mean nothing."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path

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
    """For which part of the time of all cores, since this was made or asked, nothing else had them: no program but this one
    and what it started, and no other virtual machine. 1 where the system does not say (it is Linux that does)."""

    def __init__(self) -> None:
        self.last = self._now()

    def part(self) -> float:
        (clock, every, own), self.last = self.last, self._now()
        whole = (self.last[0] - clock) * cores()
        others = (self.last[1] - every) - (self.last[2] - own)
        return min(1.0, 1 - others / whole) if whole > 0 else 1.0

    @staticmethod
    def _now() -> tuple[float, float, float]:
        """Seconds of the clock, of the processor by all, and by this process and its descendants, with those that ended."""
        tick = os.sysconf("SC_CLK_TCK")
        try:
            words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
        except OSError:
            return time.perf_counter(), 0.0, 0.0
        user, nice, system, _, _, irq, soft, steal = map(int, words[:8])
        rows = dict(_processes())
        mine = {os.getpid()}
        while more := {pid for pid, (parent, _) in rows.items() if parent in mine} - mine:
            mine |= more
        own = sum(rows[pid][1] for pid in mine if pid in rows)
        return time.perf_counter(), (user + nice + system + irq + soft + steal) / tick, own / tick


def _processes() -> Iterator[tuple[int, tuple[int, int]]]:
    """Of each process its parent, and the ticks that it and its children that ended had."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                words = (folder / "stat").read_text().rpartition(")")[2].split()
                yield int(folder.name), (int(words[1]), sum(map(int, words[11:15])))
