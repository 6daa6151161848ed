"""The machine a measurement was made on, as one header that every bench prints: numbers without it mean nothing."""

from __future__ import annotations

import os
import platform
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
