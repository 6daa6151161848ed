"""Starts, watches and ends the ranks of this host as processes.

Invariants: when the block of ``started`` ends, in whatever way, no rank runs any more, nor any process in the process group of
a rank (a process that a data function starts in a session of its own outlives it). If this process is killed, its ranks end
by themselves (``Job.end_with_starter``). The exit status of a rank comes from the system, not from the rank.
"""

from __future__ import annotations

import logging
import os
import re
import select
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

from dnnc.engines.torch.launch.forking import Rank, can_fork, forked
from dnnc.engines.torch.launch.job import Job
from dnnc.engines.torch.launch.telling import Listening
from ir.system.child import forks_wait, module_command, module_environment
from ir.system.surroundings import CACHE

HEAP = {
    name: os.environ.get(name, value) for name, value in (("MALLOC_MMAP_MAX_", "0"), ("MALLOC_TRIM_THRESHOLD_", str(1 << 40)))
}
"""Variables that make glibc keep freed memory, unless the user has set them. Without them each pass of a microbatch returns the
memory of its tensors to the system and gets it back page by page: a step of an MLP of 2048x2048 weights took 1.4 times as
long. A rank whose device has little memory gives it back all the same (``rank.has_room``)."""
_LOG = logging.getLogger(__name__)
_NOT_INHERITED = re.compile(
    r"(PET|TORCHELASTIC|TORCH|TORCHINDUCTOR|GLOO|NCCL)_.*|MASTER_(ADDR|PORT)|((LOCAL|GROUP|ROLE)_)?(RANK|WORLD_SIZE)"
    r"|ROLE_NAME|DNNC_SECRET"
)
"""Variables that no rank inherits: they tell torch, gloo, NCCL and their launchers their rank, their peers and how to behave.
The plan and the options of ``dnnc train`` decide that, not a variable left over from another job."""
_INHERITED = ("TORCH_HOME",)
"""Exceptions: TORCH_HOME is where a data function finds its downloads."""
_NOISE = re.compile(r"^[WIE]\d{4} .*|.*(OMP_NUM_THREADS|FutureWarning|ProcessGroupGloo).*")
_STDERR = 2
"""Ranks write their standard output there, such as prints of data functions: standard output of this process is for results."""
_TAIL_LINES, _TAIL_BYTES = 12, 500
"""Of the standard error of ranks: last lines that are kept, and last bytes of each."""
_GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL of a rank."""
FEWEST_FORKED = 2
"""Ranks on a host from which on a template forks them: it imports torch once for all."""
_MODULE = "dnnc.engines.torch.rank"


def rank_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a rank, or of a process that probes like one: this process's, with ``more``, without
    ``_NOT_INHERITED``."""
    environment = module_environment(HEAP)
    inherited = {name: value for name, value in environment.items() if name in _INHERITED or not _NOT_INHERITED.fullmatch(name)}
    return {**inherited, **(more or {})}


@dataclass(slots=True)
class Ranks:
    """The ranks of this host. ``numbers``: of each among all ranks; ``pipes``: descriptors that their reports come through;
    ``last_lines``: of their standard error; ``ends``: rank -> exit status, in the order in which they ended; ``terminated``:
    the ranks that this process told to end; ``listener``: reads their standard error."""

    numbers: Sequence[int]
    listening: Listening
    processes: list[Rank | subprocess.Popen[bytes]] = field(default_factory=list)
    pipes: list[int] = field(default_factory=list)
    last_lines: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL_LINES))
    ends: dict[int, int] = field(default_factory=dict)
    terminated: set[int] = field(default_factory=set)
    listener: threading.Thread | None = None

    def doing(self) -> dict[int, str]:
        """Rank -> what it is doing now."""
        return {self.numbers[index]: words for index, words in self.listening.doing(len(self.processes)).items()}

    def hear(self, seconds: float) -> bool:
        """Waits at most ``seconds`` for reports of ranks and reads them. Returns whether there was one."""
        if not self.pipes:
            time.sleep(seconds)
        ready = select.select(self.pipes, [], [], seconds)[0]
        for descriptor in ready:
            if not self.listening.hear(descriptor):  # it has ended
                self.pipes.remove(descriptor)
                os.close(descriptor)
        return bool(ready)

    def poll(self) -> bool:
        """Records the ranks that have ended. Returns whether all have."""
        for rank, process in zip(self.numbers, self.processes, strict=False):
            if rank not in self.ends and _has_ended(process):
                _signal(process, signal.SIGKILL)  # ends processes that the rank left behind
                self.ends[rank] = process.wait()
        return len(self.ends) == len(self.processes)

    def end(self) -> None:
        """Ends all ranks that still run: SIGTERM, then SIGKILL after ``_GRACE`` seconds."""
        for rank, process in zip(self.numbers, self.processes, strict=False):
            if rank not in self.ends:
                self.terminated.add(rank)
                _signal(process, signal.SIGTERM)
        deadline = time.monotonic() + _GRACE
        while not self.poll() and time.monotonic() < deadline:
            time.sleep(0.01)
        for rank, process in zip(self.numbers, self.processes, strict=False):
            if rank not in self.ends:
                _signal(process, signal.SIGKILL)
                self.ends[rank] = process.wait()


def _has_ended(process: Rank | subprocess.Popen[bytes]) -> bool:
    """Whether a rank has ended. It is not reaped: until it is, the system gives its process number to nobody else."""
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # reaped by the system: this process was started with SIGCHLD ignored
        return True


def _signal(process: Rank | subprocess.Popen[bytes], number: int) -> None:
    """Sends a signal to a rank's process group: the rank and the processes that it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


@contextmanager
def started(
    jobs: Sequence[Job], arguments: Sequence[str], passed: Sequence[int], threads: int, folder: Path
) -> Iterator[Ranks]:
    """Starts a rank for each job, and ends them all with the block. Each rank has a session of its own, so that only this
    process gets Ctrl-C.

    ``jobs``: their ``tells`` are set here; ``arguments``: of every rank; ``passed``: descriptors that every rank inherits
    beside those of its job; ``threads``: of OpenMP; ``folder``: for caches of libraries. Raises OSError where no process can be
    started."""
    ranks = Ranks([job.rank for job in jobs], Listening(jobs[0].marks))
    try:
        with forks_wait():
            _start(ranks, jobs, arguments, passed, threads, folder)
        for rank, process in zip(ranks.numbers, ranks.processes, strict=False):
            _LOG.debug("rank %d: process %d, %d threads", rank, process.pid, threads)
        yield ranks
    finally:
        ranks.end()
        while ranks.hear(0.0):
            pass
        if ranks.listener is not None:
            ranks.listener.join(1.0)
        for descriptor in ranks.pipes:
            os.close(descriptor)


def _start(
    ranks: Ranks, jobs: Sequence[Job], arguments: Sequence[str], passed: Sequence[int], threads: int, folder: Path
) -> None:
    """Starts the processes of ``ranks``, and the thread that listens to their standard error. The parameters are those of
    ``started``."""
    stderr_read, stderr_write = os.pipe()
    own: list[int] = [stderr_write]  # descriptors of the ranks, which this process closes once they have them
    try:
        pipe = os.fdopen(stderr_read, "rb")
        ranks.listener = threading.Thread(target=forward, args=(pipe, ranks.last_lines), daemon=True)
        ranks.listener.start()
        more = {"OMP_NUM_THREADS": str(threads), CACHE: str(folder), "LOCAL_WORLD_SIZE": str(len(jobs))}
        tells: list[int] = []
        memories: list[int] = []
        for job in jobs:
            read_end, write_end = os.pipe()
            ranks.pipes.append(read_end)
            own.append(write_end)
            tells.append(write_end)
            memories.append(replace(job, tells=write_end).write())
            own.append(memories[-1])
        shared = {job.alive for job in jobs} | {job.marks for job in jobs} | {*passed}
        listens = {job.listen for job in jobs if job.listen is not None}
        if len(jobs) >= FEWEST_FORKED and can_fork():
            inherited = [*shared, *listens, *tells]
            ranks.processes += forked(arguments, memories, inherited, _STDERR, stderr_write, rank_environment(more))
            return
        for job, memory, tell in zip(jobs, memories, tells, strict=True):
            numbers = {"RANK": str(job.rank), "LOCAL_RANK": str(job.local_rank), "WORLD_SIZE": str(job.world)}
            ranks.processes.append(
                subprocess.Popen(
                    [*module_command(_MODULE), *arguments, "--job", str(memory)],
                    stdin=subprocess.DEVNULL,
                    stdout=_STDERR,
                    stderr=stderr_write,
                    env=rank_environment({**more, **numbers}),
                    pass_fds=(*shared, tell, memory, *([] if job.listen is None else [job.listen])),
                    start_new_session=True,
                )
            )
    finally:
        for descriptor in own:
            os.close(descriptor)


def forward(pipe: IO[bytes], last_lines: deque[str]) -> None:
    """Copies what ranks write to standard error to that of this process, and keeps the last lines without warnings."""
    rest, data = b"", b"not at the end yet"
    with pipe, suppress(OSError, ValueError):
        while data:
            data = os.read(pipe.fileno(), 1 << 16)
            with suppress(OSError):  # our standard error may be closed
                os.write(_STDERR, data)
            *lines, rest = (rest + (data or b"\n")).split(b"\n")
            rest = rest[-_TAIL_BYTES:]
            texts = [line[-_TAIL_BYTES:].decode(errors="replace").rstrip() for line in lines]
            last_lines.extend(text for text in texts if text and not _NOISE.match(text))
