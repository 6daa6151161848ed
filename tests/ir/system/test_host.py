"""What a process may use of its host, and what of it others take."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ir.system.host import CoreClock, not_preempting, processor_seconds

ON_CORE = "import os, sys, time\nos.sched_setaffinity(0, {int(sys.argv[1])})\n"
SPIN = ON_CORE + "print(flush=True)\nwhile True: pass"
COMPUTE = ON_CORE + "while time.process_time() < 0.3: pass"
STAT = """cpu  900 90 9 9000 90 9 9 90 0 0
cpu0 100 10 20 4000 30 5 15 60 7 0
cpu1 300 10 20 4000 30 5 15 30 7 0
cpu12 500 70 0 1000 30 0 0 0 7 0
intr 12 0
"""
counted = pytest.mark.skipif(not Path("/proc/thread-self/schedstat").exists(), reason="this system does not count it")


@pytest.fixture
def core() -> Iterator[int]:
    """A core to which this process is bound."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    yield min(allowed)
    os.sched_setaffinity(0, allowed)


@counted
@pytest.mark.parametrize("sleeps", [True, False])
def test_a_thread_that_shares_its_core_waits_about_as_long_as_it_computes(core: int, sleeps: bool) -> None:
    """Beside one other program on the core; where there are more, it waits longer."""
    clock = CoreClock(sleeps=sleeps)
    other = subprocess.Popen([sys.executable, "-c", SPIN, str(core)], stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None
        assert other.stdout.readline()
        clock.start()
        begun = time.thread_time()
        while time.thread_time() < begun + 0.1:
            pass
        clock.stop()
    finally:
        other.kill()
        other.communicate()
    assert 0 < clock.share < 0.7


@counted
def test_a_thread_that_sleeps_does_not_wait_for_a_core(core: int) -> None:
    """While a program that it started computes on its core. A thread that never sleeps would have waited for this."""
    clocks = CoreClock(sleeps=True), CoreClock(sleeps=False)
    for clock in clocks:
        clock.start()
    subprocess.run([sys.executable, "-c", COMPUTE, str(core)], check=True)
    for clock in clocks:
        clock.stop()
    assert clocks[0].share > 4 * clocks[1].share


def test_what_cores_computed_and_what_was_stolen_is_told_of_each(tmp_path: Path) -> None:
    """In ticks; without the time of guests, which is part of the user's."""
    tick = os.sysconf("SC_CLK_TCK")
    assert processor_seconds({0, 1}, tmp_path) == (0.0, 0.0)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text(STAT)
    assert processor_seconds({0, 12}, tmp_path) == (720 / tick, 60 / tick)
    assert processor_seconds({1}, tmp_path) == (350 / tick, 30 / tick)


@pytest.mark.parametrize("sleeps", [True, False])
@pytest.mark.parametrize("had", [4.0, 8.0])
def test_stolen_time_is_time_without_a_core(monkeypatch: pytest.MonkeyPatch, sleeps: bool, had: float) -> None:
    """Half of 8 s that a thread computes are stolen; its processor time stands still then, or on other systems goes on."""
    clock = CoreClock(sleeps=sleeps)
    moments = iter([(0.0, 0.0, 0.0, 0.0), (8.0, had, 0.0, 4.0)])
    monkeypatch.setattr(clock, "_now", lambda: next(moments))
    clock.start()
    clock.stop()
    assert clock.share == 0.5


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="this system has no such policy")
def test_only_threads_that_start_in_the_block_do_not_preempt() -> None:
    policies: list[int] = []

    def started() -> None:
        thread = threading.Thread(target=lambda: policies.append(os.sched_getscheduler(0)))
        thread.start()
        thread.join()

    with pytest.raises(ValueError, match="an error"), not_preempting():  # noqa: PT012
        started()
        raise ValueError("an error")
    started()
    assert policies == [os.SCHED_BATCH, os.SCHED_OTHER]


HELD = """
from pathlib import Path
from ir.system.host import give_back_freed_memory, give_back_large_blocks
CALL
resident = lambda: int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
block = bytearray(8 << 20)
del block  # glibc takes later blocks of this size from its heap
before = resident()
blocks = [bytearray(b"1" * (4 << 20)) for _ in range(20)]
del blocks[:-1]
print(resident() - before)
"""


@pytest.mark.skipif("glibc" not in platform.libc_ver(), reason="mallopt is glibc's")
def test_large_blocks_go_back_to_the_system() -> None:
    """Nineteen of twenty blocks of 4 MB are freed; the last one holds the end of glibc's heap."""
    held = []
    for call in ("", "give_back_large_blocks()"):
        command = [sys.executable, "-c", "import os" + HELD.replace("CALL", call)]
        held.append(int(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    assert held[1] < 20 < held[0], held


@pytest.mark.skipif("glibc" not in platform.libc_ver(), reason="mallopt is glibc's")
def test_freed_memory_goes_back_whatever_the_environment_says() -> None:
    """Of the same blocks, in the environment of ranks of a training, in which glibc keeps what is freed."""
    held, kept = [], {**os.environ, "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
    for call in ("give_back_large_blocks()", "give_back_freed_memory()"):
        command = [sys.executable, "-c", "import os" + HELD.replace("CALL", call)]
        held.append(int(subprocess.run(command, capture_output=True, text=True, check=True, env=kept).stdout))
    assert held[1] < 20 < held[0], held
