"""The ranks of this host as processes: their environment, how they are started, watched and ended.

Invariants: when the block of ``started`` is left, by whatever way, no rank is left, nor anything that a rank started in its
process group (what a data function gives a session of its own outlives it); when this process is killed, ranks end by
themselves (``Job.end_with_starter``). How a rank ended is known from the system, whatever the rank could still say.
"""

from __future__ import annotations

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

from dnnc.engines.torch.launch.job import Job
from dnnc.engines.torch.launch.telling import Listening
from ir.system.child import module_command, module_environment
from ir.system.surroundings import CACHE

HEAP = {
    name: os.environ.get(name, value) for name, value in (("MALLOC_MMAP_MAX_", "0"), ("MALLOC_TRIM_THRESHOLD_", str(1 << 40)))
}
"""Variables by which glibc keeps freed memory, unless somebody set them. Without them each pass of a microbatch gives its
tensors back to the system and takes them page by page anew: a step of an MLP of 2048x2048 weights took 1.4 times as long."""
_SAID_BY_DNNC = re.compile(
    r"(PET|TORCHELASTIC|TORCH|TORCHINDUCTOR|GLOO|NCCL)_.*|MASTER_(ADDR|PORT)|((LOCAL|GROUP|ROLE)_)?(RANK|WORLD_SIZE)"
    r"|ROLE_NAME|DNNC_SECRET"
)
"""Variables that no rank inherits: those by which torch, gloo, NCCL and their launchers learn who they are, whom they meet and
how they behave. The options of ``dnnc train`` and the plan say so; a variable left over from another job must not."""
_KEPT = ("TORCH_HOME",)
"""Where a data function finds what it downloaded."""
_NOISE = re.compile(r"^[WIE]\d{4} .*|.*(OMP_NUM_THREADS|FutureWarning|ProcessGroupGloo).*")
_TALK = 2
"""Standard error of this process: there goes what data functions print, for standard output is for the results."""
_TAIL_LINES = 12
_GRACE = 5.0
"""Seconds that ranks have to end once they are asked to."""
_MODULE = "dnnc.engines.torch.rank"


def rank_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a process that does what a rank does: that of this one, with ``more``, without what dnnc decides."""
    environment = module_environment(HEAP)
    kept = {name: value for name, value in environment.items() if name in _KEPT or not _SAID_BY_DNNC.fullmatch(name)}
    return {**kept, **(more or {})}


@dataclass(slots=True)
class Ranks:
    """The ranks of this host. ``numbers``: which of all ranks they are; ``tells``: the pipes that they tell by; ``said``: the
    last lines of their standard error; ``ends``: rank and exit status, in the order in which they were seen to end;
    ``asked``: those that were asked to end before."""

    numbers: Sequence[int]
    listening: Listening
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    tells: list[int] = field(default_factory=list)
    said: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL_LINES))
    ends: dict[int, int] = field(default_factory=dict)
    asked: set[int] = field(default_factory=set)

    def doing(self) -> dict[int, str]:
        """What each rank does."""
        return {self.numbers[place]: words for place, words in self.listening.doing(len(self.processes)).items()}

    def hear(self, seconds: float) -> bool:
        """Wait so long for what ranks tell, and read it; whether there was anything."""
        if not self.tells:
            time.sleep(seconds)
        ready = select.select(self.tells, [], [], seconds)[0]
        for descriptor in ready:
            if not self.listening.hear(descriptor):  # it has ended
                self.tells.remove(descriptor)
                os.close(descriptor)
        return bool(ready)

    def poll(self) -> bool:
        """Look who has ended. Returns whether all have."""
        for rank, process in zip(self.numbers, self.processes, strict=False):
            if rank not in self.ends and _has_ended(process):
                _signal(process, signal.SIGKILL)  # to what it started, and left
                self.ends[rank] = process.wait()
        return len(self.ends) == len(self.processes)

    def end(self) -> None:
        """End all that have not ended."""
        for rank, process in zip(self.numbers, self.processes, strict=False):
            if rank not in self.ends:
                self.asked.add(rank)
                _signal(process, signal.SIGTERM)
        deadline = time.monotonic() + _GRACE
        while not self.poll() and time.monotonic() < deadline:
            time.sleep(0.01)
        for rank, process in zip(self.numbers, self.processes, strict=False):
            if rank not in self.ends:
                _signal(process, signal.SIGKILL)
                self.ends[rank] = process.wait()


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether a rank has ended. It is not reaped: until it is, its number is that of no other process or group."""
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # the system reaped it, for this process was started with SIGCHLD ignored
        return True


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    """To a rank and all that it started: each rank has a process group of its own."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


@contextmanager
def started(
    jobs: Sequence[Job], arguments: Sequence[str], passed: Sequence[int], threads: int, folder: Path
) -> Iterator[Ranks]:
    """A rank for each job, whose ``tells`` is set here. Each has a session of its own, so that Ctrl-C reaches it through this
    process alone.

    ``arguments``: of every rank; ``passed``: descriptors that all inherit, beside those of their jobs; ``threads``: of OpenMP;
    ``folder``: for what libraries leave behind. Raises OSError where the system gives no process."""
    ranks = Ranks([job.rank for job in jobs], Listening(jobs[0].marks))
    errors, complaints = os.pipe()
    listener = threading.Thread(target=_listen, args=(os.fdopen(errors, "rb"), ranks.said), daemon=True)
    listener.start()
    more = {"OMP_NUM_THREADS": str(threads), CACHE: str(folder), "LOCAL_WORLD_SIZE": str(len(jobs))}
    try:
        try:
            for job in jobs:
                heard, tells = os.pipe()
                ranks.tells.append(heard)
                written = replace(job, tells=tells).write()
                numbers = {"RANK": str(job.rank), "LOCAL_RANK": str(job.place), "WORLD_SIZE": str(job.world)}
                try:
                    ranks.processes.append(
                        subprocess.Popen(
                            [*module_command(_MODULE), *arguments, "--job", str(written)],
                            stdin=subprocess.DEVNULL,
                            stdout=_TALK,
                            stderr=complaints,
                            env=rank_environment({**more, **numbers}),
                            pass_fds=(
                                job.alive,
                                tells,
                                job.marks,
                                written,
                                *passed,
                                *([] if job.listen is None else [job.listen]),
                            ),
                            start_new_session=True,
                        )
                    )
                finally:
                    os.close(tells)
                    os.close(written)
        finally:
            os.close(complaints)
        yield ranks
    finally:
        ranks.end()
        while ranks.hear(0.0):
            pass
        listener.join(1.0)
        for descriptor in ranks.tells:
            os.close(descriptor)


def _listen(pipe: IO[bytes], said: deque[str]) -> None:
    """Pass on what ranks write to standard error, as it comes, and keep the last lines of it."""
    rest, data = b"", b"begun"
    with pipe, suppress(OSError, ValueError):
        while data:
            data = os.read(pipe.fileno(), 1 << 16)
            with suppress(OSError):  # nobody reads it
                os.write(_TALK, data)
            *lines, rest = (rest + (data or b"\n")).split(b"\n")
            texts = [line.decode(errors="replace").rstrip() for line in lines]
            said.extend(text for text in texts if text and not _NOISE.match(text))


__all__ = ["HEAP", "Ranks", "rank_environment", "started"]
