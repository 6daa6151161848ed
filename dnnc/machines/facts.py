"""Reads what this host has: cores, memory, their limits, NUMA nodes, GPUs, execution providers. Nothing long is run.

Each number counts what this process may use: the cores of its affinity, and the limits of its control group and of all groups
above it (version 1 and 2). What the system does not state is left out. ``root`` replaces ``/`` in tests.
"""

from __future__ import annotations

import math
import os
import platform
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_NO_LIMIT = 1 << 60
"""Limits of version 1 of this many bytes or more are no limits: the kernel writes the largest multiple of a page."""
_PATIENCE = 10.0
"""Seconds that ``nvidia-smi`` may take."""
_QUERY = ("nvidia-smi", "--query-gpu=index,name,memory.total", "--format=csv,noheader,nounits")


@dataclass(frozen=True, slots=True)
class Node:
    """A NUMA node: the cores of it that this process may use."""

    number: int
    cores: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU; ``index``: the number by which CUDA knows it in this process; ``memory``: bytes."""

    index: int
    name: str
    memory: int


@dataclass(frozen=True, slots=True)
class Facts:
    """``cores``: those of the affinity; ``quota``: how many of them the control group allows at a time (None: no limit);
    ``memory``: bytes, the lesser of the installed memory and of ``memory_limit`` (None: no limit); ``cache``: bytes of
    a core's own cache, of level 2 (that of level 3 is shared), 0 where the system tells of none; ``speeds``: of each of
    ``cores``, how quick the system says it is, in any unit, empty where it does not; ``providers``: of ONNX Runtime."""

    host: str
    processor: str
    cores: tuple[int, ...]
    present: int
    memory: int
    nodes: tuple[Node, ...]
    quota: float | None = None
    memory_limit: int | None = None
    cache: int = 0
    speeds: tuple[int, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    providers: tuple[str, ...] = ()

    @property
    def usable(self) -> int:
        """How many cores can work at a time."""
        return len(self.cores) if self.quota is None else max(1, min(len(self.cores), math.ceil(self.quota)))


def read_facts(root: Path = Path("/"), *, affinity: frozenset[int] | None = None, gpus: str | None = None) -> Facts:
    """The facts of this host. ``affinity`` and ``gpus`` (what ``nvidia-smi`` prints) stand for what the system would say."""
    cores = tuple(sorted(affinity if affinity is not None else _affinity()))
    limit = _least(_memory_limits(root))
    return Facts(
        host=re.sub(r"[^A-Za-z0-9_-]+", "-", socket.gethostname().partition(".")[0]).strip("-") or "host",
        processor=_processor(root),
        cores=cores,
        present=os.cpu_count() or len(cores),
        memory=min(_memory(root), int(limit or _NO_LIMIT)),
        nodes=_nodes(root, cores),
        quota=_least(_quotas(root)),
        memory_limit=int(limit) if limit is not None else None,
        cache=core_caches(root, cores[0]).get(2, 0),
        speeds=_speeds(root, cores),
        gpus=_gpus(_nvidia_smi() if gpus is None else gpus, os.environ.get("CUDA_VISIBLE_DEVICES")),
        providers=_providers(),
    )


def _affinity() -> frozenset[int]:
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def _providers() -> tuple[str, ...]:
    from dnnc.onnx.ort import load_onnxruntime

    return tuple(load_onnxruntime().get_available_providers())


def _processor(root: Path) -> str:
    name = re.search(r"^model name\s*:\s*(.+)$", _text(root / "proc/cpuinfo"), re.MULTILINE)
    return name[1].strip() if name else platform.processor() or platform.machine()


def _memory(root: Path) -> int:
    total = re.search(r"^MemTotal:\s*(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE)
    if total:
        return int(total[1]) << 10
    from ir.system.host import local_memory

    return local_memory()


def core_caches(root: Path = Path("/"), core: int | None = None) -> dict[int, int]:
    """The bytes of the caches that a core reaches, by level, shared ones whole; by default the first core that this process may
    use. Empty where the system tells of none."""
    sizes: dict[int, int] = {}
    core = min(_affinity()) if core is None else core
    for folder in (root / f"sys/devices/system/cpu/cpu{core}/cache").glob("index[0-9]"):
        size, level = re.fullmatch(r"(\d+)K", _text(folder / "size").strip()), _text(folder / "level").strip()
        if size and level.isdigit():
            sizes[int(level)] = max(sizes.get(int(level), 0), int(size[1]) << 10)
    return sizes


def _speeds(root: Path, cores: tuple[int, ...]) -> tuple[int, ...]:
    """Of each core its capacity, which Linux states where cores are of different kinds, else its highest clock; empty where the
    system does not state it of all."""
    for name in ("cpu_capacity", "cpufreq/cpuinfo_max_freq"):
        texts = [_text(root / f"sys/devices/system/cpu/cpu{core}" / name).strip() for core in cores]
        if all(text.isdigit() and int(text) for text in texts):
            return tuple(map(int, texts))
    return ()


def _nodes(root: Path, cores: tuple[int, ...]) -> tuple[Node, ...]:
    """The nodes that have some of the cores; one of all cores where the system tells of none."""
    nodes = []
    for folder in (root / "sys/devices/system/node").glob("node[0-9]*"):
        own = set(_core_list(_text(folder / "cpulist")))
        if mine := tuple(core for core in cores if core in own):
            nodes.append(Node(int(folder.name.removeprefix("node")), mine))
    covered = {core for node in nodes for core in node.cores}
    return tuple(sorted(nodes, key=lambda node: node.number)) if covered == set(cores) else (Node(0, cores),)


def _core_list(text: str) -> Iterator[int]:
    """The numbers of a list such as ``0-3,8``."""
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (not last or last.isdigit()):
            yield from range(int(first), int(last or first) + 1)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The folders of this process's control groups, from its own up to the root, that may limit ``controller``; those of
    version 1 hold that controller alone."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" / (controller if controllers else "")
        group = base / path.strip("/")
        yield group
        yield from (parent for parent in group.parents if parent == base or base in parent.parents)


def _quotas(root: Path) -> Iterator[float]:
    for group in _groups(root, "cpu"):
        words = _text(group / "cpu.max").split()
        if not words:
            words = [_text(group / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
        if len(words) == 2 and all(word.isdigit() and int(word) for word in words):
            yield int(words[0]) / int(words[1])


def _memory_limits(root: Path) -> Iterator[float]:
    for group in _groups(root, "memory"):
        for file in ("memory.max", "memory.limit_in_bytes"):
            text = _text(group / file).strip()
            if text.isdigit() and 0 < int(text) < _NO_LIMIT:
                yield int(text)


def _least(values: Iterator[float]) -> float | None:
    return min(values, default=None)


def _nvidia_smi() -> str:
    """What ``nvidia-smi`` prints of each GPU; empty without it, or where it fails."""
    if shutil.which(_QUERY[0]) is None:
        return ""
    try:
        return subprocess.run(_QUERY, capture_output=True, text=True, timeout=_PATIENCE, check=True).stdout
    except (OSError, subprocess.SubprocessError, UnicodeError):
        return ""


def _gpus(text: str, visible: str | None) -> tuple[Gpu, ...]:
    """The GPUs of a listing that ``CUDA_VISIBLE_DEVICES`` leaves, numbered as CUDA numbers them then; all where it names them
    otherwise than by numbers."""
    listed: dict[int, tuple[str, int]] = {}
    for line in text.splitlines():
        index, _, rest = line.partition(",")
        name, _, memory = rest.rpartition(",")
        if index.strip().isdigit() and memory.strip().isdigit():
            listed[int(index)] = (name.strip(), int(memory) << 20)
    chosen = sorted(listed)
    if visible is not None and re.fullmatch(r"\s*(\d+\s*(,\s*\d+\s*)*)?", visible):
        chosen = [int(number) for number in visible.split(",") if number.strip() and int(number) in listed]
    return tuple(Gpu(place, *listed[index]) for place, index in enumerate(chosen))


def _text(path: Path) -> str:
    """What a file of the system says; empty where there is none."""
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
