"""Models whose lattice is too large, from an ONNX file through the command to programs that give the same numbers."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import onnx
import pytest

from tests.passes.partition.onnx_models import cached_decoder, experts

GIB = 1 << 30


def dnnc(*arguments: str) -> tuple[subprocess.CompletedProcess[str], int]:
    """The finished command, and the most bytes it held."""
    script = (
        "import resource, subprocess, sys\n"
        "code = subprocess.run(sys.argv[1:]).returncode\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)\n"
        "sys.exit(code)\n"
    )
    command = [sys.executable, "-c", script, sys.executable, "-m", "dnnc", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    return done, 1024 * int(done.stderr.splitlines()[-1])


MODELS = [
    pytest.param(partial(cached_decoder, 6), 0.15, id="caches and masks, 6 layers"),
    pytest.param(partial(experts, 64), 0.15, id="64 experts"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("make", "gap"), MODELS)
def test_compiled_and_checked(make: Callable[[], onnx.ModelProto], gap: float, tmp_path: Path) -> None:
    onnx.save(make(), tmp_path / "model.onnx")
    out = str(tmp_path / "out")
    alone = ("--replicas", "1", "--mesh", "none", "--time-limit", "6")  # stages of single devices, whose search is hard
    done, held = dnnc("compile", str(tmp_path / "model.onnx"), "-t", "preset:cpu-4", "-o", out, "--json", *alone)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    print(told["objective"], told["gap"], told["status"], told["seconds"], held, told["certificate"]["search"])
    assert held < 2 * GIB
    assert 0 < told["bound"] <= told["objective"]
    assert told["gap"] <= gap
    assert len(told["stages"]) == 4
    checked, _ = dnnc("check", out)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.slow
def test_ctrl_c_during_the_search_writes_the_plan_at_hand(tmp_path: Path) -> None:
    """And leaves nothing else."""
    onnx.save(experts(32, hidden=32, length=8), tmp_path / "model.onnx")
    arguments = ["compile", str(tmp_path / "model.onnx"), "-t", "preset:cpu-4", "-o", str(tmp_path / "out")]
    arguments += ["--replicas", "1", "--mesh", "none"]  # whose search takes long
    tracing = ["--print-after", "fold", "--print-folder", str(tmp_path / "ir")]
    before = set(tmp_path.parent.iterdir())
    process = subprocess.Popen([sys.executable, "-m", "dnnc", *arguments, *tracing], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("ir/*fold*")) and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
    time.sleep(1.0)
    assert process.poll() is None, "the search was over too soon for this test"
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in told
    assert "interrupted" in told
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ir", "model.onnx", "out"]
    assert json.loads((tmp_path / "out" / "plan.json").read_text())["status"] == "within-gap"
    assert set(tmp_path.parent.iterdir()) == before
