"""What a process may use of its host."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ir.system.host import core_seconds

SPIN = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nprint(flush=True)\nwhile True: pass"
PATIENCE = 60.0


@pytest.mark.skipif(not Path("/proc/thread-self/schedstat").exists(), reason="this system does not count it")
def test_a_thread_that_shares_its_core_waits_for_it() -> None:
    """Computing beside another program on one core, it waits about as long as it computes; asleep, it does not wait."""
    allowed = os.sched_getaffinity(0)
    core = min(allowed)
    other = subprocess.Popen([sys.executable, "-c", SPIN, str(core)], stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None
        assert other.stdout.readline()
        os.sched_setaffinity(0, {core})
        begun, (had, waited) = time.monotonic(), core_seconds()
        while (now := core_seconds())[1] == waited and time.monotonic() - begun < PATIENCE:
            pass
        assert now[0] > had
        assert now[1] > waited
    finally:
        os.sched_setaffinity(0, allowed)
        other.kill()
        other.communicate()
