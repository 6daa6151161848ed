"""A build that was tampered with is refused before a stage starts, or computes the same bits."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from dnnc.cli import main
from tests.dnnc.engines.onnxruntime.processes import nothing_left
from tests.dnnc.engines.onnxruntime.tampering import KINDS

MODEL = "zoo:gpt2,layers=2,hidden=32,seq=8"
LAYOUTS = {
    "shared": ("--stages", "3"),
    "per-stage": ("--stages", "2", "--weights", "per-stage"),
    "mesh": ("--mesh", "2"),
}
_started: list[list[str]] = []
_watching = False


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "subprocess.Popen" and _watching:
        _started.append(list(arguments[1]))


sys.addaudithook(_watch)


@contextmanager
def started_processes() -> Iterator[list[list[str]]]:
    """Command lines of the processes that this one starts meanwhile."""
    global _watching
    _started.clear()
    _watching = True
    try:
        yield _started
    finally:
        _watching = False


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("builds")
    for name, options in LAYOUTS.items():
        assert main(["compile", MODEL, "-t", "preset:cpu-3,cores=3", "-o", str(folder / name), "-q", *options]) == 0
    return {name: folder / name for name in LAYOUTS}


def outcome(command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, Any, str]:
    """Exit code, what it computed and what it said."""
    results = folder.parent / "outputs.npz"
    results.unlink(missing_ok=True)
    options = {"run": ["--outputs", str(results), "-m", "2"], "check": ["--json"], "simulate": ["--json"]}[command]
    capsys.readouterr()
    code = main([command, str(folder), *options])
    printed = capsys.readouterr()
    if command == "run":
        found: Any = {name: value.tobytes() for name, value in np.load(results).items()} if code == 0 else None
    else:
        found = json.loads(printed.out) if code == 0 else None
        if command == "check" and found:
            found = (found["passed"], found["comparisons"])
        elif found:
            found.pop("build")
    return code, found, printed.err


def holds(
    layout: Path, seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], before: dict[str, tuple[int, Any, str]]
) -> bool:
    """Whether the tampered build is refused by all commands; if by none, all do what they did of the build as it was."""
    folder = tmp_path / "build"
    shutil.copytree(layout, folder)
    kind = KINDS[seed % len(KINDS)]
    kind(folder, Random(seed))
    after = []
    for command in before:
        with started_processes() as started:
            after.append(outcome(command, folder, capsys))
        code, _, said = after[-1]
        if code != 0:
            assert code == 3, (kind.__name__, said)
            assert not started
            assert "error[" in said
            assert str(folder) in said
            assert "hint: " in said
    assert len({code for code, _, _ in after}) == 1
    if after[0][0] == 0:
        assert [found for _, found, _ in after] == [found for _, found, _ in before.values()], kind.__name__
    return after[0][0] != 0


@pytest.mark.parametrize("number", range(len(KINDS)), ids=[kind.__name__ for kind in KINDS])
def test_one_of_each_kind(builds: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], number: int) -> None:
    layout = builds[list(builds)[number % len(builds)]]
    refused = holds(layout, number, tmp_path, capsys, {"simulate": outcome("simulate", layout, capsys)})
    if KINDS[number].__name__ in ("add", "trace"):
        assert not refused, "these files are not what is run"


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_many_tampered_builds(builds: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], layout: str) -> None:
    with nothing_left():
        before = {command: outcome(command, builds[layout], capsys) for command in ("run", "check", "simulate")}
        verdicts = []
        for seed in range([*LAYOUTS].index(layout), 20, len(LAYOUTS)):
            (tmp_path / str(seed)).mkdir()
            verdicts.append(holds(builds[layout], seed, tmp_path / str(seed), capsys, before))
            shutil.rmtree(tmp_path / str(seed))
    print(f"{layout}: {sum(verdicts)} of {len(verdicts)} refused, the others compute the same")
    assert sum(verdicts) > 3
