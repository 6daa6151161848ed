"""What forks inherit of a process that starts others."""

from __future__ import annotations

import os
import select
import signal
import threading

import pytest

from ir.system.child import forks_wait, kept_from_forks

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is inherited without fork")
PATIENCE = 10.0
"""Seconds until a test fails that would wait for ever."""


def fork_that_stays() -> int:
    child = os.fork()
    if not child:
        while True:
            signal.pause()
    return child


def end(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def at_its_end(read: int) -> bool:
    return bool(select.select([read], [], [], PATIENCE)[0]) and os.read(read, 1) == b""


def test_a_fork_by_another_thread_inherits_no_pipe_of_a_start() -> None:
    children: list[int] = []
    forking = threading.Thread(target=lambda: children.append(fork_that_stays()))
    with forks_wait():
        read, write = os.pipe()
        forking.start()
        forking.join(0.2)  # long enough for a fork that does not wait
        os.close(write)
    try:
        assert at_its_end(read)
    finally:
        forking.join()
        end(*children)
        os.close(read)


def test_the_thread_that_starts_processes_may_fork_itself_and_its_child_too() -> None:
    with forks_wait():
        child = os.fork()
        if not child:
            grandchild = os.fork()
            if not grandchild:
                os._exit(3)
            os._exit(os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


def test_a_fork_does_not_hold_what_is_kept_from_it() -> None:
    read, write = os.pipe()
    with kept_from_forks(write):
        child = fork_that_stays()
    os.close(write)
    try:
        assert at_its_end(read)
    finally:
        end(child)
        os.close(read)
