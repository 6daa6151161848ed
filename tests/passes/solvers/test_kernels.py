"""The cache of compiled kernels: one of an older version of the package is no fault, and is not used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from passes.solvers.kernels import numba, part

KERNEL = """
from typing import NamedTuple
from passes.solvers.kernels import compiled

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
    for text in (KERNEL, KERNEL.replace("Before", "Behind")):
        file.write_text(text)
        done = subprocess.run(
            [sys.executable, "-c", "import kernel"], capture_output=True, text=True, check=False, env=environment
        )
        assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr
    assert list((tmp_path / "cache").rglob("*.nbi"))


def test_what_another_file_brings_into_a_kernel_is_not_kept(tmp_path: Path) -> None:
    """A kernel is compiled with those that it calls and with the numbers that it names."""
    caller = "from other import ADDED, more\nfrom passes.solvers.kernels import compiled\n\n"
    caller += "@compiled\ndef add(number):\n    return more(number) + ADDED\n\nprint(add(1))\n"
    other = (
        "from passes.solvers.kernels import {how}\nADDED = {added}\n\n@{how}\ndef more(number):\n    return number + {number}\n"
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    (tmp_path / "caller.py").write_text(caller)
    for how, added, number in (("compiled", 1, 1), ("inlined", 5, 7), ("inlined", 5, 9)):
        (tmp_path / "other.py").write_text(other.format(how=how, added=added, number=number))
        command = [sys.executable, "-B", "-c", "import caller"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert (done.returncode, done.stdout) == (0, f"{1 + number + added}\n"), done.stderr


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="kernels are not compiled")
def test_a_part_of_kernels_has_no_call_from_python() -> None:
    """Also once a kernel has compiled it: there is no code that would read the arguments."""

    @part
    def half(number: float) -> float:
        return number / 2.0

    def quarter(number: float) -> float:
        return half(half(number))

    jit = numba.njit(quarter)
    for _ in range(2):
        with pytest.raises(TypeError, match="half is a part of kernels"):
            half(1.0)
        assert jit(1.0) == 0.25
