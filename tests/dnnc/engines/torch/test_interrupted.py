"""Ctrl-C at moments when a training does something else than a step: its exit code, and what it leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dnnc.cli import main
from tests.dnnc.engines.onnxruntime.processes import descendants, gone
from tests.dnnc.engines.torch.training_builds import TWO_STAGES, compiled

torch: Any = pytest.importorskip("torch", reason="the extra 'train' is not installed")
pytest.importorskip("safetensors", reason="the extra 'train' is not installed")

from dnnc.engines.torch.checkpoint import Checkpoint  # noqa: E402

SOURCE = """
import os, time
from pathlib import Path
import numpy as np

def samples(seed):
    random = np.random.default_rng(seed)
    while True:
        yield {"x": random.normal(size=(4, 1024)).astype("float32"), "labels": np.zeros(4, np.int64)}

def hanging(seed):
    Path("reached").touch()
    time.sleep(60)
    yield from samples(seed)
"""
WIDE = "zoo:mlp,layers=3,hidden=1024,batch=4"


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("wide") / "build", *TWO_STAGES, model=WIDE)


def starts(folder: Path, process: int) -> bool:
    return len(descendants(process)) >= 1


def meets(folder: Path, process: int) -> bool:
    return len(descendants(process)) >= 2


def loads(folder: Path, process: int) -> bool:
    return (folder / "reached").exists()


def writes(folder: Path, process: int) -> bool:
    out = folder / "out"
    return (out / "step2").exists() and any(name.startswith(".step") for name in os.listdir(out))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "options"),
    [
        (starts, []),
        (meets, []),
        (loads, ["--data", "waiting:hanging"]),
        (loads, ["--eval-data", "waiting:hanging", "--eval-every", "2"]),
        (writes, []),
    ],
    ids=["as the first process starts", "as ranks start", "as data are loaded", "as it evaluates", "as it writes"],
)
def test_ctrl_c_at_a_moment(
    moment: Callable[[Path, int], bool], options: list[str], build: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 130, no process and no half-written file is left, and each checkpoint that is there can be gone on from. Where the
    step under way waits for data, a second Ctrl-C ends it."""
    (tmp_path / "waiting.py").write_text(SOURCE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    out = tmp_path / "out"
    command = [sys.executable, "-m", "dnnc", "train", str(build), "--steps", "300", "--checkpoint", str(out), "--every", "1"]
    process = subprocess.Popen([*command, *options], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not moment(tmp_path, process.pid):
        assert process.poll() is None, process.communicate()
        time.sleep(0.001)
    ranks = descendants(process.pid)
    process.send_signal(signal.SIGINT)
    try:
        if moment is loads:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=1)
            process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, told
    assert "Traceback" not in told
    assert gone(ranks)
    left = [path.name for path in out.glob("*")] if out.exists() else []
    assert not [name for name in left if name.startswith(".") or name.endswith(".tmp")]
    steps = sorted((int(name[4:]) for name in left if name.startswith("step")), reverse=True)
    for step in steps:
        Checkpoint.open(out / f"step{step}").verify()
    if steps:
        assert main(["train", str(build), "--steps", "1", "--resume", str(out / f"step{steps[0]}"), "-q"]) == 0
