"""What the machine refuses is named as what it is, with exit 3: no descriptors, no room, a process that somebody killed."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from dnnc.cli import main
from tests.dnnc.engines.onnxruntime.processes import children


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("build") / "build"
    assert main(["compile", "zoo:mlp", "-t", "preset:cpu-2", "--stages", "2", "-o", str(folder), "-q"]) == 0
    return folder


def dnnc(*arguments: str, limit: Callable[[], None] | None = None, **environment: str) -> tuple[int, str]:
    """Exit code and what was said, of a command whose process has limits. It writes no bytecode: a limit on the size of files
    would leave half of it to all that start later."""
    done = subprocess.run(
        [sys.executable, "-P", "-B", "-m", "dnnc", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        preexec_fn=limit,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


def limited(what: int, value: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(what, (value, value))


@pytest.mark.slow
@pytest.mark.parametrize("descriptors", [9, 14, 19, 25])
def test_too_few_descriptors(descriptors: int, build: Path) -> None:
    code, said = dnnc("run", str(build), "--quiet", limit=limited(resource.RLIMIT_NOFILE, descriptors))
    assert code == 3
    assert "Too many open files" in said
    assert "ulimit -n" in said
    assert "ended without a word" not in said


@pytest.mark.slow
def test_a_stage_process_with_too_few_says_so_too(build: Path) -> None:
    """The limit of the stage processes alone: they inherit it from a starter that lowers its own once its pipes are made."""
    code = f"""
import resource, sys
from dnnc.cli import main
from dnnc.engines.onnxruntime.starter.processes import LocalProcesses
start = LocalProcesses.start
def lowered(self, config, descriptors):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(descriptors) + 2, before[1]))
    try:
        return start(self, config, descriptors)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
LocalProcesses.start = lowered
sys.exit(main(["run", {str(build)!r}, "--quiet"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 3, done.stderr
    assert "Too many open files" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        (["import", "zoo:mlp", "-o", "{out}/mlp.ir"], "mlp.ir"),
        (["compile", "zoo:mlp", "-t", "preset:cpu-2", "-o", "{out}/build"], "{out}/build"),
        (["check", "{build}"], "{out}"),
    ],
)
def test_a_full_disk(arguments: list[str], where: str, build: Path, tmp_path: Path) -> None:
    """Files may not grow beyond 200 bytes: what ``ulimit -f`` refuses goes the way of what a full disk does."""
    names = {"build": str(build), "out": str(tmp_path)}
    words = [argument.format(**names) for argument in arguments]
    code, said = dnnc(*words, "--quiet", limit=limited(resource.RLIMIT_FSIZE, 200), TMPDIR=str(tmp_path))
    assert code == 3, said
    assert "File too large" in said or "files may not grow so large" in said
    assert where.format(**names) in said
    assert sorted(os.listdir(tmp_path)) == []


@pytest.mark.slow
def test_a_full_disk_for_outputs(tmp_path: Path) -> None:
    """Larger than the memory that stages share, which the limit holds for too."""
    build = tmp_path / "build"
    assert dnnc("compile", "zoo:mlp,inputs=8,hidden=8,outputs=2000", "-t", "preset:cpu-2", "-o", str(build), "-q")[0] == 0
    limit = limited(resource.RLIMIT_FSIZE, 400_000)
    code, said = dnnc("run", str(build), "-m", "20", "--outputs", str(tmp_path / "y.npz"), "--quiet", limit=limit)
    assert code == 3
    assert f"{tmp_path / 'y.npz'}: error[E2009]: the disk refused: File too large" in said
    assert sorted(os.listdir(tmp_path)) == ["build"]


@pytest.mark.slow
def test_an_input_that_a_stage_refuses_is_no_fault_of_ours(tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        gather (float[8,4] table, int64[3] rows) => (float[3,4] y) { a = Relu(table) b = Gather(a, rows) y = Relu(b) }""")
    onnx.save(model, str(tmp_path / "gather.onnx"))
    np.savez(tmp_path / "x.npz", table=np.zeros((8, 4), np.float32), rows=np.array([1, 2, 99]))
    build = str(tmp_path / "build")
    assert dnnc("compile", str(tmp_path / "gather.onnx"), "-t", "preset:cpu-2", "-o", build, "--quiet")[0] == 0
    code, said = dnnc("run", build, "--inputs", str(tmp_path / "x.npz"), "--quiet")
    assert code == 3, said
    assert said.count("idx=99") == 1, "told once"


def test_a_stage_that_was_killed_is_no_fault_of_ours(build: Path) -> None:
    command = [sys.executable, "-P", "-m", "dnnc", "run", str(build), "-m", "100", "--repeat", "100000", "--quiet"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not children(process.pid):
        time.sleep(0.01)
    os.kill(children(process.pid)[-1], signal.SIGKILL)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 3, said
    assert "was killed by SIGKILL" in said
