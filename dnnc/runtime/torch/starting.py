"""The ranks of this host as processes: their environment, how they are started, watched and ended.

Invariants: when the block of ``started`` is left, by whatever way, no rank is left, nor anything that a rank started; when
this process is killed, ranks end by themselves (``Job.end_with_starter``). How a rank ended is known from the system, whatever
the rank could still say.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO

from dnnc.runtime.torch.job import Job
from ir.child import module_command, module_environment

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
_TAIL_LINES = 12
_GRACE = 5.0
"""Seconds that ranks have to end once they are asked to."""
_MODULE = "dnnc.runtime.torch.rank"


def rank_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a process that does what a rank does: that of this one, with ``more``, without what dnnc decides."""
    environment = module_environment(HEAP)
    kept = {name: value for name, value in environment.items() if name in _KEPT or not _SAID_BY_DNNC.fullmatch(name)}
    return {**kept, **(more or {})}


@dataclass(slots=True)
class Ranks:
    """The ranks of this host. ``first``: the number of the first of them; ``output``: a pipe with what they print; ``said``:
    the last lines of their standard error; ``ends``: rank and exit status, in the order in which they were seen to end;
    ``asked``: those that were asked to end before."""

    first: int
    processes: list[subprocess.Popen[bytes]]
    output: int
    said: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL_LINES))
    ends: dict[int, int] = field(default_factory=dict)
    asked: set[int] = field(default_factory=set)

    def poll(self) -> bool:
        """Look who has ended. Returns whether all have."""
        for rank, process in enumerate(self.processes, self.first):
            if rank not in self.ends and (status := process.poll()) is not None:
                self.ends[rank] = status
                _signal(process, signal.SIGKILL)  # to what it started, and left
        return len(self.ends) == len(self.processes)

    def end(self) -> None:
        """End all that have not ended."""
        for rank, process in enumerate(self.processes, self.first):
            if rank not in self.ends:
                self.asked.add(rank)
                _signal(process, signal.SIGTERM)
        deadline = time.monotonic() + _GRACE
        while not self.poll() and time.monotonic() < deadline:
            time.sleep(0.01)
        for rank, process in enumerate(self.processes, self.first):
            if rank not in self.ends:
                _signal(process, signal.SIGKILL)
                self.ends[rank] = process.wait()


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    """To a rank and all that it started: each rank has a process group of its own."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


@contextmanager
def started(jobs: Sequence[Job], arguments: Sequence[str], passed: Sequence[int], threads: int) -> Iterator[Ranks]:
    """A rank for each job. Each has a session of its own, so that Ctrl-C reaches it through this process alone.

    ``arguments``: of every rank; ``passed``: descriptors that all inherit, beside those of their jobs; ``threads``: of OpenMP.
    Raises OSError where the system gives no process."""
    output, printed = os.pipe()
    errors, complaints = os.pipe()
    ranks = Ranks(jobs[0].rank, [], output)
    listener = threading.Thread(target=_listen, args=(os.fdopen(errors, "rb"), ranks.said), daemon=True)
    listener.start()
    try:
        try:
            for place, job in enumerate(jobs):
                numbers = {"RANK": job.rank, "LOCAL_RANK": place, "WORLD_SIZE": job.world, "LOCAL_WORLD_SIZE": len(jobs)}
                told = {name: str(number) for name, number in numbers.items()}
                ranks.processes.append(
                    subprocess.Popen(
                        [*module_command(_MODULE), *arguments, "--job", job.write()],
                        stdin=subprocess.DEVNULL,
                        stdout=printed,
                        stderr=complaints,
                        env=rank_environment({**told, "OMP_NUM_THREADS": str(threads)}),
                        pass_fds=(job.alive, *passed, *([] if job.listen is None else [job.listen])),
                        start_new_session=True,
                    )
                )
        finally:
            os.close(printed)
            os.close(complaints)
        yield ranks
    finally:
        ranks.end()
        listener.join(1.0)
        os.close(output)


def _listen(pipe: IO[bytes], said: deque[str]) -> None:
    with pipe, suppress(OSError, ValueError):
        for line in pipe:
            text = line.decode(errors="replace").rstrip()
            if text and not _NOISE.match(text):
                said.append(text)


__all__ = ["HEAP", "Ranks", "rank_environment", "started"]
