"""The cache of compiled kernels: one of an older version of the package is no fault."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

KERNEL = """
from typing import NamedTuple
from passes.model.kernels import compiled

class Before(NamedTuple):
    number: int

@compiled
def add(given):
    return given.number + 1

print(add(Before(1)))
"""


def test_a_cache_that_names_what_is_no_more_is_made_anew(tmp_path: Path) -> None:
    """The index of a kernel's cache holds the types of its arguments: a tuple that had been renamed ended the process."""
    file = tmp_path / "kernel.py"
    path = os.pathsep.join([str(tmp_path), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    for text in (KERNEL, KERNEL.replace("Before", "Behind"), KERNEL.replace("Before", "Behind")):
        file.write_text(text)
        done = subprocess.run(
            [sys.executable, "-c", "import kernel"], capture_output=True, text=True, check=False, env=environment
        )
        assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr
    assert list((tmp_path / "cache").rglob("*.nbi"))
