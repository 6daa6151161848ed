"""A directory is there whole or not at all: exceptions, Ctrl-C, termination, a kill, a full disk."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dnnc.build import transaction
from dnnc.build.transaction import whole_directory
from ir.core.diagnostics import InvalidInput, UsageError


def ours(folder: Path) -> bool:
    return (folder / "mark").exists()


def write(target: Path, text: str = "new") -> None:
    with whole_directory(target, ours, "mark") as folder:
        (folder / "mark").write_text(text)
        (folder / "sub").mkdir()
        (folder / "sub/data").write_text(text)


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_it_appears_with_its_parents_and_usual_permissions(tmp_path: Path) -> None:
    write(tmp_path / "a/b/out")
    assert names(tmp_path / "a/b") == ["out"]
    assert (tmp_path / "a/b/out/sub/data").read_text() == "new"
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE((tmp_path / "a/b/out").stat().st_mode) == 0o777 & ~mask


def test_the_former_one_is_replaced_whole(tmp_path: Path) -> None:
    write(tmp_path / "out", "old")
    (tmp_path / "out/extra").write_text("of the former")
    write(tmp_path / "out")
    assert names(tmp_path) == ["out"]
    assert names(tmp_path / "out") == ["mark", "sub"]


def test_it_is_replaced_where_the_system_cannot_swap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "_exchange", lambda first, second: False)
    write(tmp_path / "out", "old")
    write(tmp_path / "out")
    assert names(tmp_path) == ["out"]
    assert (tmp_path / "out/mark").read_text() == "new"


@pytest.mark.parametrize("fault", [ValueError("bug"), KeyboardInterrupt(), SystemExit(3)])
@pytest.mark.parametrize("before", [False, True])
def test_an_exception_leaves_what_was_there(tmp_path: Path, fault: BaseException, before: bool) -> None:
    if before:
        write(tmp_path / "deep/out", "old")

    def fail() -> None:
        with whole_directory(tmp_path / "deep/out", ours, "mark") as folder:
            (folder / "mark").write_text("half")
            raise fault

    with pytest.raises(type(fault)):
        fail()
    assert names(tmp_path) == (["deep"] if before else []), "parents made for it go too"
    if before:
        assert names(tmp_path / "deep") == ["out"]
        assert (tmp_path / "deep/out/mark").read_text() == "old"


def test_a_failing_move_puts_the_former_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "out", "old")
    monkeypatch.setattr(transaction, "_exchange", lambda first, second: False)
    rename, calls = os.rename, []

    def failing(source: Path, target: Path) -> None:
        calls.append(source)
        if len(calls) == 2:
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "out")
    assert names(tmp_path) == ["out"]
    assert (tmp_path / "out/mark").read_text() == "old"


def test_foreign_things_are_refused_and_untouched(tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir/thesis").write_text("mine")
    (tmp_path / "file").write_text("mine")
    write(tmp_path / "build")
    (tmp_path / "link").symlink_to(tmp_path / "build")
    before = names(tmp_path)
    for name, message in (("dir", "not written by dnnc"), ("file", "not a directory"), ("link", "not a directory")):
        with pytest.raises(UsageError, match=message):
            write(tmp_path / name)
    assert names(tmp_path) == before
    assert (tmp_path / "dir/thesis").read_text() == "mine"


def test_an_empty_directory_is_used(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    write(tmp_path / "out")
    assert names(tmp_path / "out") == ["mark", "sub"]


def test_a_place_that_cannot_be_written_is_an_input_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="a file is in the way"):
        write(tmp_path / "file/out")


def test_the_current_directory_stays_the_current_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell that stands in a directory that was replaced sees nothing any more."""
    monkeypatch.chdir(tmp_path)
    write(Path(), "old")
    (tmp_path / "extra").write_text("of the former")
    write(Path())
    assert sorted(os.listdir(os.curdir)) == ["mark", "sub"]
    assert Path("sub/data").read_text() == "new"


def test_what_something_is_mounted_on_is_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out").mkdir()
    before = (tmp_path / "out").stat().st_ino
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path).name == "out")
    write(tmp_path / "out")
    write(tmp_path / "out")
    assert (names(tmp_path), names(tmp_path / "out")) == (["out"], ["mark", "sub"])
    assert (tmp_path / "out").stat().st_ino == before


@pytest.mark.parametrize("moves", range(4))
def test_a_fault_while_the_current_directory_is_filled_puts_the_former_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moves: int
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path(), "old")
    rename, calls = os.rename, []

    def failing(source: Path, target: Path) -> None:
        calls.append((source, (tmp_path / "mark").exists()))
        if len(calls) == moves + 1:
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(KeyboardInterrupt):
        write(Path())
    assert [there for _, there in calls[: moves + 1]] == [True, False, False, False][: moves + 1], "the mark goes first"
    assert names(tmp_path) == ["mark", "sub"]
    assert (tmp_path / "mark").read_text() == (tmp_path / "sub/data").read_text() == "old"


def test_what_a_killed_process_left_in_the_current_directory_is_not_foreign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / f".{tmp_path.name}.123.partial").mkdir()
    write(Path())
    assert names(tmp_path) == ["mark", "sub"]


HOLD = """
import sys, time
from pathlib import Path
from dnnc.build.transaction import whole_directory
with whole_directory(Path(sys.argv[1]), lambda folder: True, "mark") as folder:
    (folder / "mark").write_text("half")
    print("writing", flush=True)
    time.sleep(60)
"""


def start(target: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(target)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stopped_process_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    process = start(tmp_path / "out")
    assert len(names(tmp_path)) == 1, "the hidden sibling"
    process.send_signal(number)
    process.communicate(timeout=20)
    assert process.returncode != 0
    assert names(tmp_path) == []


@pytest.mark.slow
def test_what_a_killed_process_leaves_goes_with_the_next_write_but_not_while_another_writes(tmp_path: Path) -> None:
    process = start(tmp_path / "out")
    process.kill()
    process.communicate(timeout=20)
    (left,) = names(tmp_path)
    assert left.startswith(".out.")
    assert left.endswith(".partial")
    other = start(tmp_path / "out")
    try:
        deadline = time.monotonic() + 10
        while left in names(tmp_path) and time.monotonic() < deadline:
            time.sleep(0.05)
        (alive,) = names(tmp_path)
        assert alive != left
        write(tmp_path / "out")
        assert names(tmp_path) == sorted([alive, "out"]), "a live writer keeps its sibling"
    finally:
        other.kill()
        other.communicate(timeout=20)


FULL = """
import resource, signal, sys
from pathlib import Path
from dnnc.build.transaction import whole_directory
from ir.core.diagnostics import InvalidInput
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    with whole_directory(Path(sys.argv[1]), lambda folder: True, "mark") as folder:
        (folder / "data").write_bytes(bytes(1 << 20))
except InvalidInput as error:
    print(error)
"""


def test_a_disk_that_takes_no_more_is_an_input_fault_and_leaves_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "out")], capture_output=True, text=True, timeout=60, check=True
    )
    assert "the disk refused" in done.stdout
    assert "nothing was written" in done.stdout
    assert names(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_a_compile_that_is_stopped_while_it_writes(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """The command itself, stopped while 170 MB of weights are being generated: no build appears."""
    command = [
        sys.executable,
        "-m",
        "dnnc",
        "compile",
        "zoo:gpt2,layers=1,seq=8",
        "-t",
        "preset:cpu-2",
        "-o",
        str(tmp_path / "out"),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".out.*/stages/weights.data")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == code, errors
    assert not (tmp_path / "out").exists()
    assert "Traceback" not in errors
    if number is signal.SIGINT:
        assert names(tmp_path) == []
