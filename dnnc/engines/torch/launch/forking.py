"""Starts the ranks of a host as forks of one process, so that torch is imported once and not by each rank (two seconds).

``forked`` starts a *template*, ``python -P -m dnnc.engines.torch.launch.forking``, which imports what a rank needs, forks the
ranks, tells the process number of each and ends. Meanwhile the caller is a *subreaper* (``prctl(2)``), so that the ranks become
its own children: it waits for them and gets their exit statuses from the system. No thread runs in the template when it forks.
"""

from __future__ import annotations

import argparse
import atexit
import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from dnnc.engines.torch.launch.job import Job
from ir.system.child import module_command

_SET_SUBREAPER, _GET_SUBREAPER = 36, 37
"""Numbers of ``prctl``, in ``linux/prctl.h``."""


@dataclass(slots=True)
class Rank:
    """The process of a rank that the template forked, as a child of this process."""

    pid: int

    def wait(self) -> int:
        """Its exit status as that of ``subprocess.Popen``: the negative number of a signal that ended it."""
        try:
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except ChildProcessError:  # reaped by the system, as ``subprocess`` says it
            return 0


def can_fork() -> bool:
    """Whether this system makes the forks of a child that ended the children of this process (Linux)."""
    return sys.platform == "linux" and _prctl(_GET_SUBREAPER, ctypes.byref(ctypes.c_int())) == 0


def forked(
    arguments: Sequence[str],
    memories: Sequence[int],
    passed: Sequence[int],
    stdout: int,
    stderr: int,
    environment: Mapping[str, str],
) -> Iterator[Rank | subprocess.Popen[bytes]]:
    """The processes of the ranks, once all are there; behind them the template, where it failed before.

    ``memories``: descriptors of the ranks' jobs (``Job.write``); ``passed``: descriptors that the ranks inherit beside them.
    Raises OSError where no process can be started. Where the caller is interrupted meanwhile, no rank is left."""
    told, tells = os.pipe()
    begun: list[Rank] = []
    template: subprocess.Popen[bytes] | None = None
    with _subreaper(), os.fdopen(told, "r") as numbers:
        try:
            command = [*module_command(__spec__.name), str(tells), ",".join(map(str, memories)), *arguments]
            try:
                template = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    env=dict(environment),
                    pass_fds=(*memories, *passed, tells),
                    start_new_session=True,
                )
            finally:
                os.close(tells)
            for number in numbers:
                begun.append(Rank(int(number)))
            template.wait()
        except BaseException:
            if template is not None:
                template.kill()
                template.wait()
                begun += [Rank(int(number)) for number in numbers if number.endswith("\n")]
            for rank in begun:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(rank.pid, signal.SIGKILL)
                rank.wait()
            raise
    yield from begun
    if template.returncode:  # it failed before all were there, and so does the training
        yield template


@contextmanager
def _subreaper() -> Iterator[None]:
    """Meanwhile processes that lose their parent become children of this process."""
    before = ctypes.c_int()
    _prctl(_GET_SUBREAPER, ctypes.byref(before))
    _prctl(_SET_SUBREAPER, 1)
    try:
        yield
    finally:
        _prctl(_SET_SUBREAPER, before.value)


def _prctl(option: int, value: object) -> int:
    try:
        return int(ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0))
    except (OSError, AttributeError):
        return -1


def main(argv: Sequence[str]) -> int:
    """The template, and then each rank: its exit code."""
    import numpy as np

    from dnnc.engines.torch import rank
    from ir.text.parser import prepare

    prepare()
    parser = argparse.ArgumentParser()
    parser.add_argument("tells", type=int)
    parser.add_argument("memories")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args(argv)
    memories = options.memories.split(",")
    jobs = [Job.read(memory) for memory in memories]
    for memory, job in zip(memories, jobs, strict=True):
        number = os.fork()
        if number:
            os.write(options.tells, b"%d\n" % number)
            continue
        os.setsid()
        os.close(options.tells)
        for other in jobs:
            if other is not job:
                os.close(other.tells)
                if other.listen is not None and other.listen != job.listen:
                    os.close(other.listen)
        for other_memory in memories:
            if other_memory != memory:
                os.close(int(other_memory))
        os.environ.update(RANK=str(job.rank), LOCAL_RANK=str(job.local_rank), WORLD_SIZE=str(job.world))
        np.random.seed()  # else data functions of all ranks would draw the same numbers without a seed
        code = rank.main([*options.arguments, "--job", memory])
        _leave(code)
    os._exit(0)


def _leave(code: int) -> None:
    """Ends a rank as the interpreter would, but for giving back object by object what the system takes back at once."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
