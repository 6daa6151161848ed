"""Scratch folders and files that become whole: gone by whatever way the block ends, and after SIGKILL with the next start."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ir.core.diagnostics import InvalidInput
from ir.system.scratch import remove_dead, remove_dead_scratch, scratch_folder, whole_file

HOLD = """
import sys, time
from pathlib import Path
from ir.system.scratch import scratch_folder, whole_file
with whole_file(Path(sys.argv[1])) as file, scratch_folder() as folder:
    file.write(b"half")
    (folder / "data").write_bytes(bytes(100))
    print("ready", flush=True)
    time.sleep(60)
"""


def entries(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def hold(folder: Path) -> subprocess.Popen[str]:
    (folder / "tmp").mkdir(exist_ok=True)
    environment = {**os.environ, "TMPDIR": str(folder / "tmp")}
    command = [sys.executable, "-c", HOLD, str(folder / "out")]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def end(process: subprocess.Popen[str], number: signal.Signals) -> int:
    process.send_signal(number)
    process.communicate(timeout=20)
    return process.returncode


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_request_to_end_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    code = end(hold(tmp_path), number)
    assert code in (128 + number, -signal.SIGINT)
    assert entries(tmp_path) == ["tmp"]


def test_what_a_killed_process_leaves_goes_but_not_what_a_live_one_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end(hold(tmp_path), signal.SIGKILL)
    assert len(entries(tmp_path)) == 4, "the file, TMPDIR, the folder in it and the data in that"
    alive = hold(tmp_path)
    try:
        held = entries(tmp_path)
        assert len(held) == 4, "the dead one's is gone"
        monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
        remove_dead_scratch()
        assert entries(tmp_path) == held
        with whole_file(tmp_path / "out") as file:
            file.write(b"whole")
        assert entries(tmp_path) == sorted([*held, "out"])
    finally:
        end(alive, signal.SIGTERM)
    assert entries(tmp_path) == ["out", "tmp"]


def test_a_link_is_no_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is removed are folders and files of this name, never what a link of this name leads to."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "data").write_text("data")
    (tmp_path / "tmp" / "dnnc-scratch-link").symlink_to(tmp_path / "kept")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    with scratch_folder() as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
    assert entries(tmp_path) == ["kept", "kept/data", "tmp", "tmp/dnnc-scratch-link"]


def test_a_file_is_old_until_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), whole_file(path) as file:
        file.write(b"new %d" % (1 // 0))
    assert path.read_bytes() == b"old"
    with whole_file(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask
    assert entries(tmp_path) == ["out"]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be written: No such file or directory"), whole_file(tmp_path / "a" / "b"):
        pass


FULL = """
import resource, sys
from pathlib import Path
from ir.system.scratch import scratch_folder, whole_file
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
for opened in (lambda: whole_file(Path(sys.argv[1])), scratch_folder):
    try:
        with opened() as made:
            (made if hasattr(made, "write") else (made / "data").open("wb")).write(bytes(1 << 20))
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_a_full_disk_is_told_as_such(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FULL, str(tmp_path / "out")]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.count("InvalidInput") == 2
    assert done.stdout.count("the disk refused: File too large") == 2
    assert "TMPDIR" in done.stdout
    assert entries(tmp_path) == []


STUCK = """
import hashlib
import ir.system.signals
ir.system.signals.GRACE = 0.5
ir.system.signals.end_soon_after_a_request(lambda: print('cleaned', flush=True))
with ir.system.signals.termination_raises():
    print("ready", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)
"""


def test_a_process_deep_in_a_solver_ends_too() -> None:
    """A call into a library that takes long returns to no handler: the process is ended from beside it."""
    process = subprocess.Popen([sys.executable, "-c", STUCK], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=20)[0] == "cleaned\n"
    assert process.returncode == 143


IMPORTING = """
import os, signal, sys, time
from ir.system.signals import Terminated, termination_raises
try:
    with termination_raises():
        import sending
        time.sleep(20)
except Terminated:
    print("whole" if sending.whole else "half")
"""


def test_an_import_is_never_broken_off(tmp_path: Path) -> None:
    """A module of C++ that sees an exception while it is imported aborts the process."""
    (tmp_path / "sending.py").write_text("import os\nos.kill(os.getpid(), 15)\nfor i in range(1000): pass\nwhole = True\n")
    command = [sys.executable, "-c", IMPORTING]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "whole\n"


def test_a_folder_taken_for_dead_before_it_was_opened_is_made_again(tmp_path: Path) -> None:
    """Processes that make scratch folders and clean up after dead ones, all at once."""
    code = """
from ir.system.scratch import scratch_folder
for _ in range(150):
    with scratch_folder() as folder:
        (folder / "data").write_bytes(b"x")
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    processes = [subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.PIPE) for _ in range(4)]
    assert [process.communicate()[1] for process in processes] == [b""] * 4
    assert entries(tmp_path) == []


@pytest.mark.parametrize(
    ("kind", "words"), [("fifo", "found a FIFO"), ("folder", "found a folder"), ("link", "found a device")]
)
def test_only_a_file_is_replaced(tmp_path: Path, kind: str, words: str) -> None:
    """Else ``--outputs /dev/null`` of the superuser would put a file in the place of the device."""
    path = tmp_path / "out"
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "link":
            path.symlink_to("/dev/null")
    before = path.lstat()
    with pytest.raises(InvalidInput, match=words) as caught, whole_file(path) as file:
        file.write(b"whole")
    assert caught.value.diagnostics[0].where == str(path)
    assert os.path.samestat(path.lstat(), before)
    assert entries(tmp_path) == ["out"]


def test_a_link_to_a_file_may_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"old")
    (tmp_path / "out").symlink_to("old")
    with whole_file(tmp_path / "out") as file:
        file.write(b"whole")
    assert (tmp_path / "out").read_bytes() == b"whole"


@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_is_not_locked_yet_may_be_taken_for_a_dead_ones(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process removes what is made between its opening and its locking, three times: the next one is made."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    lock, removed = fcntl.flock, []

    def late(descriptor: int, operation: int) -> None:
        if operation == fcntl.LOCK_EX and len(removed) < 3:
            removed.append(entries(tmp_path))
            remove_dead(tmp_path.iterdir())
            assert entries(tmp_path) == []
        lock(descriptor, operation)

    monkeypatch.setattr("ir.system.scratch.fcntl.flock", late)
    if what == "file":
        with whole_file(tmp_path / "out") as file:
            file.write(b"whole")
        assert (tmp_path / "out").read_bytes() == b"whole"
        assert entries(tmp_path) == ["out"]
    else:
        with scratch_folder() as folder:
            (folder / "data").write_bytes(b"whole")
            remove_dead(tmp_path.iterdir())
            assert (folder / "data").read_bytes() == b"whole", "what is locked stays"
        assert entries(tmp_path) == []
    assert len(removed) == 3
    assert len({name for names in removed for name in names}) == 3, "each under a name of its own"
