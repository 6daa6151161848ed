"""Processes of our own: how a module of these packages is started as a program, and what forks of this process inherit.

Invariants: nothing is imported from the directory that the user stands in; the packages come from where this one did; what
the user put on ``PYTHONPATH`` by name stays there. An empty entry of ``PYTHONPATH`` stands for the current directory (most
come from ``PYTHONPATH=$PYTHONPATH:/more`` where it was unset), so empty entries are left out.

A fork inherits every descriptor, also that of a pipe whose end of file another thread waits for: ``subprocess.Popen`` waits for
that of its error pipe, which a fork by another thread (the workers of a data loader) would keep open for as long as it lives.
Therefore a process is started inside ``forks_wait``.
"""

from __future__ import annotations

import logging  # noqa: F401 - before the registration below: a fork then takes ``_STARTS`` before the lock of ``logging``, as a start does
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

_STARTS = threading.RLock()
"""Held by a thread that starts processes, and by a thread that forks."""
_NOT_INHERITED: set[int] = set()
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))


@contextmanager
def forks_wait() -> Iterator[None]:
    """In the block, ``os.fork`` in any other thread waits for its end. For a start: from its first pipe until the ends that
    only the new processes need are closed here. The block must not wait for what another thread may fork for."""
    with _STARTS:
        yield


@contextmanager
def kept_from_forks(descriptor: int) -> Iterator[None]:
    """Forks that this process makes in the block have the null device in the place of ``descriptor``."""
    _NOT_INHERITED.add(descriptor)
    try:
        yield
    finally:
        _NOT_INHERITED.discard(descriptor)


def _in_a_fork() -> None:
    _STARTS.release()
    if _NOT_INHERITED:
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in _NOT_INHERITED:
            os.dup2(null, descriptor, inheritable=False)
        os.close(null)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_STARTS.acquire, after_in_parent=_STARTS.release, after_in_child=_in_a_fork)


def module_command(module: str) -> list[str]:
    """The command that runs ``module`` as a program, with this interpreter."""
    return [*python_command(), "-m", module]


def python_command() -> list[str]:
    """The command that runs this interpreter: ``-P`` keeps the current directory off its path."""
    return [sys.executable, "-P"]


def module_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of such a command: that of this process, with ``more``."""
    path = os.pathsep.join([_ROOT, *_named_entries()])
    return {**os.environ, **(more or {}), "PYTHONPATH": path}


def _named_entries() -> list[str]:
    return [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
