"""A compile into the directory of a build while it is run: each run is of the old build or of the new one, whole."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from dnnc.build.build import Build
from dnnc.check.check import check_build
from dnnc.cli import main
from dnnc.data.generate import random_inputs
from dnnc.engines.onnxruntime import Pipeline, run_build
from ir.core.diagnostics import InvalidInput
from tests.dnnc.engines.onnxruntime.processes import nothing_left

WRITER = """
import itertools, os, shutil, sys
os.fsync = lambda handle: None  # the more often, the better
from pathlib import Path
from dnnc.build.transaction import whole_directory
target, *builds = map(Path, sys.argv[1:])
print("ready", flush=True)
for build in itertools.cycle(builds):
    with whole_directory(target, lambda path: True, "manifest.json") as fresh:
        shutil.copytree(build, fresh, dirs_exist_ok=True)
"""


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two models of equal inputs and outputs, each in two stages: a stage of one with one of the other computes something."""
    folder = tmp_path_factory.mktemp("replaced")
    for name, hidden in (("one", 32), ("other", 48)):
        options = ["-t", "preset:cpu-2,cores=2", "--stages", "2", "-q", "-o", str(folder / name)]
        assert main(["compile", f"zoo:mlp,hidden={hidden},layers=4,batch=2", *options]) == 0
    return folder / "one", folder / "other"


@contextmanager
def replaced_for_ever(target: Path, builds: tuple[Path, Path]) -> Iterator[None]:
    writer = subprocess.Popen([sys.executable, "-c", WRITER, target, *builds], stdout=subprocess.PIPE, cwd=Path.cwd())
    assert writer.stdout is not None
    try:
        assert writer.stdout.readline() == b"ready\n"
        yield
        assert writer.poll() is None, "the writer goes on"
    finally:
        writer.kill()
        writer.wait()
        writer.stdout.close()


def test_every_build_that_is_opened_is_one_of_the_two(builds: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(builds[0], tmp_path / "build")
    contents = [Build.open(path).files.contents for path in builds]
    with replaced_for_ever(tmp_path / "build", builds):
        found = []
        deadline = time.monotonic() + 30
        while (len(found) < 40 or len(set(found)) < 2) and time.monotonic() < deadline:
            found.append(contents.index(Build.open(tmp_path / "build").files.contents))
    assert set(found) == {0, 1}


@pytest.mark.slow
def test_runs_and_checks_are_of_one_build(builds: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(builds[0], tmp_path / "build")
    feeds = random_inputs(Build.open(builds[0]))
    wanted = [run_build(path, feeds).outputs[0] for path in builds]
    with nothing_left(), replaced_for_ever(tmp_path / "build", builds):
        for _ in range(5):
            (found,) = run_build(tmp_path / "build", feeds).outputs
            assert any(all(np.array_equal(found[name], one[name]) for name in one) for one in wanted)
            assert check_build(tmp_path / "build").passed


def test_a_build_that_is_deleted_once_it_is_open(builds: tuple[Path, Path], tmp_path: Path) -> None:
    """Before its processes start: they read what was opened."""
    shutil.copytree(builds[0], tmp_path / "build")
    build = Build.open(tmp_path / "build")
    feeds = random_inputs(build)
    shutil.rmtree(tmp_path / "build")
    with nothing_left():
        (found,) = run_build(build, feeds).outputs
    (wanted,) = run_build(builds[0], feeds).outputs
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value)


def test_weights_that_are_written_to_during_a_run(builds: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(builds[0], tmp_path / "build")
    build = Build.open(tmp_path / "build")
    feeds = random_inputs(build)
    with Pipeline(build) as pipeline:
        pipeline.run([feeds])
        with (tmp_path / "build/stages/weights.data").open("r+b") as file:
            file.write(b"other")
        with pytest.raises(InvalidInput, match=r"weights\.data: error\[E0302\]: the file was changed while it was used"):
            pipeline.run([feeds])
