"""Shape inference that never ends, as a person meets it: it hears requests to end, keeps to its time, and leaves no process.

onnx never comes to the end of an equation of Einsum with two '...' in a row, and holds Python's lock meanwhile. The import
refuses such equations before, so the processes here have that door open.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from onnx import helper

from tests.dnnc.onnx.models import save
from tests.dnnc.onnx.test_hostile_models import simple

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for child processes where Linux shows them")

_DOOR_OPEN = """
import sys
import dnnc.onnx.importer.checks, dnnc.onnx.opdefs
dnnc.onnx.importer.checks.value_faults = dnnc.onnx.opdefs.value_faults = lambda *_: []
from dnnc.cli.entry import run
sys.exit(run(None))
"""


def started(folder: Path, *options: str) -> subprocess.Popen[str]:
    node = helper.make_node("Einsum", ["x", "x"], ["y"], name="n", equation="......,ab")
    command = [sys.executable, "-c", _DOOR_OPEN, "import", str(save(simple(node), folder)), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def child_of(process: subprocess.Popen[str]) -> int:
    """The process that infers, once it is there."""
    listing = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    deadline = time.monotonic() + 60
    while not (found := listing.read_text().split()):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return int(found[0])


def assert_gone(pid: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            state = re.sub(r".*\)", "", Path(f"/proc/{pid}/stat").read_text()).split()[0]
        except OSError:
            return
        if state == "Z":  # whoever inherits it has not looked yet
            return
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (signal.SIGTERM, 143, "dnnc: ended by SIGTERM\n"),
        (signal.SIGINT, 130, "dnnc: interrupted\n"),
        (signal.SIGKILL, -signal.SIGKILL, ""),
    ],
)
def test_a_signal_ends_inference_that_never_would(tmp_path: Path, number: signal.Signals, code: int, said: str) -> None:
    process = started(tmp_path)
    child = child_of(process)
    process.send_signal(number)
    assert process.communicate(timeout=60) == ("", said)
    assert process.returncode == code
    assert_gone(child)


def test_a_crash_of_inference_is_told_as_one_of_the_model(tmp_path: Path) -> None:
    process = started(tmp_path)
    os.kill(child_of(process), signal.SIGSEGV)
    said = process.communicate(timeout=60)[1]
    assert f"{tmp_path / 'm.onnx'}: error[E1707]: onnx's shape inference of this model was ended by SIGSEGV" in said
    assert process.returncode == 3


@pytest.mark.slow
def test_inference_keeps_to_its_time(tmp_path: Path) -> None:
    process = started(tmp_path, "--limit", "inference-seconds=1")
    said = process.communicate(timeout=60)[1]
    assert f"{tmp_path / 'm.onnx'}: error[E1706]: shape inference took more than 1 s" in said
    assert "--limit inference-seconds=NUMBER allows more" in said
    assert process.returncode == 3
