"""Standard output and error that are closed, full, or whose reader has gone: the work is done, and faults have names."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

GONE = (">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-", "| true", "2>&1 | true", "2>/dev/full", "2> >(true)")
"""Ways to redirect after which somebody who listened has gone: no fault."""


def shell(redirection: str, *arguments: str) -> tuple[int, str]:
    """Exit code of the command and what could be seen of its output."""
    command = f"{shlex.join([sys.executable, '-P', '-m', 'dnnc', *arguments])} {redirection}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("redirection", GONE)
def test_a_listener_that_has_gone_is_no_fault(redirection: str) -> None:
    code, seen = shell(redirection, "zoo", "list")
    assert code == 0, seen
    assert "Traceback" not in seen
    assert "error" not in seen


@pytest.mark.slow
@pytest.mark.parametrize("redirection", GONE)
def test_an_error_keeps_its_code(redirection: str) -> None:
    """Of the command line or of an input, in turn."""
    expected, arguments = ((2, ["run"]), (3, ["import", "/absent.onnx"]))[GONE.index(redirection) % 2]
    code, seen = shell(redirection, *arguments)
    assert code == expected, seen
    assert "Traceback" not in seen


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("arguments", [["--version"], ["zoo", "list"], ["import", "zoo:mlp"]])
def test_output_that_cannot_be_written_is_named(arguments: list[str]) -> None:
    code, seen = shell(">/dev/full", *arguments)
    assert (code, seen) == (
        3,
        "standard output: error[E0105]: cannot be written: No space left on device\n  hint: what was written to files stands\n",
    )


@pytest.mark.slow
def test_a_build_is_written_whoever_listens(tmp_path: Path) -> None:
    """Closed streams free their numbers: no file of the build may get one and the text with it."""
    build = tmp_path / "build"
    code, seen = shell("<&- >&- 2>&-", "compile", "zoo:mlp", "-t", "preset:cpu-2", "-o", str(build))
    assert code == 0, seen
    code, seen = shell("", "check", str(build), "--quiet")
    assert code == 0, seen


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_build_stands_though_nothing_could_be_said(tmp_path: Path) -> None:
    build = tmp_path / "build"
    code, seen = shell(">/dev/full", "compile", "zoo:mlp", "-t", "preset:cpu-2", "-o", str(build))
    assert code == 3
    assert "standard output: error[E0105]: cannot be written" in seen
    assert (build / "manifest.json").exists()


def test_closed_input_is_empty_input() -> None:
    code, seen = shell("<&-", "opt", "-", "--passes", "cost")
    assert code == 3, seen
    assert "Traceback" not in seen


def test_what_the_encoding_lacks_is_escaped() -> None:
    code = "from dnnc.cli.streams import settle_streams; settle_streams(); print('caf\u00e9')"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-P", "-c", code], env=environment, capture_output=True, check=True)
    assert done.stdout == b"caf\\xe9\n"
