"""Digests of large weights are remembered, and memory only ever confirms."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ir.system import digests
from ir.system.digests import LARGE, OpenFile, has_digest, known_digest


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "dnnc" / "digests.json"


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "weights.data"
    path.write_bytes(bytes(LARGE))
    time.sleep(0.15)  # until a later write shows in the file's times
    return path


def sha(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


ZEROS = sha(bytes(LARGE))


def asked(path: Path, expected: str = ZEROS) -> tuple[bool, bool]:
    """The answer, and whether the bytes were read for it."""
    read: list[float] = []
    with path.open("rb") as file:
        return has_digest(file, expected, read.append), bool(read)


def test_a_large_file_is_read_once(weights: Path, cache: Path) -> None:
    assert asked(weights) == (True, True)
    assert asked(weights) == (True, False)
    assert cache.stat().st_mode & 0o777 == 0o600
    assert cache.parent.stat().st_mode & 0o777 == 0o700
    assert os.listdir(cache.parent) == ["digests.json"]


def test_a_digest_is_known_where_the_file_is_as_it_was(weights: Path, cache: Path) -> None:
    with weights.open("rb") as file:
        assert known_digest(file) == ZEROS
        assert file.tell() == LARGE
        file.seek(0)
        assert known_digest(file) == ZEROS
        assert file.tell() == 0
    with weights.open("r+b") as file:
        file.write(b"1")
        file.flush()
        file.seek(0)
        assert known_digest(file) == sha(b"1" + bytes(LARGE - 1))


def test_small_files_are_not_remembered(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "small").write_bytes(b"x")
    assert asked(tmp_path / "small", sha(b"x")) == (True, True)
    assert not cache.exists()


def test_a_write_in_place_is_seen_though_size_and_modification_time_stay(weights: Path, cache: Path) -> None:
    assert asked(weights) == (True, True)
    before = weights.stat()
    with weights.open("r+b") as file:
        file.write(b"other")
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert asked(weights) == (False, True)


def test_another_file_in_its_place_is_another_file(weights: Path, cache: Path, tmp_path: Path) -> None:
    assert asked(weights) == (True, True)
    other = tmp_path / "other"
    other.write_bytes(b"other" + bytes(LARGE - 5))
    before = weights.stat()
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(other, weights)
    assert asked(weights) == (False, True)


def test_a_file_that_was_just_written_is_not_remembered(tmp_path: Path, cache: Path) -> None:
    """A write in the same tick of the clock would leave its times as they are."""
    path = tmp_path / "weights.data"
    path.write_bytes(bytes(LARGE))
    os.utime(path, ns=(time.time_ns() + 10**12,) * 2)  # from the future, as of a disk with another clock
    assert asked(path) == (True, True)
    assert not cache.exists()


def test_what_a_writer_hashes_alone_is_remembered_at_once(tmp_path: Path, cache: Path) -> None:
    """It need not wait before it hashes, for nobody else writes: a compile's own weights."""
    path = tmp_path / "weights.data"
    path.write_bytes(bytes(LARGE * 16))  # hashed for longer than a tick
    with path.open("rb") as file:
        digest = digests.digest_weights(file, alone=True)
    assert asked(path, digest) == (True, False)


def test_a_wrong_memory_never_refuses_a_file(weights: Path, cache: Path) -> None:
    """And what it confirms is only what was hashed."""
    assert asked(weights) == (True, True)
    [[stamp, _]] = json.loads(cache.read_text())
    cache.write_text(json.dumps([[stamp, sha(b"other")]]))
    assert asked(weights) == (True, True)
    assert asked(weights) == (True, False), "the memory is right again"


def group_writable(cache: Path) -> None:
    cache.chmod(0o620)


def folder_for_all(cache: Path) -> None:
    cache.parent.chmod(0o777)


def linked(cache: Path) -> None:
    cache.rename(cache.with_name("real"))
    cache.symlink_to("real")


def fifo(cache: Path) -> None:
    cache.unlink()
    os.mkfifo(cache)


def unwritable(cache: Path) -> None:
    cache.unlink()
    cache.mkdir()


@pytest.mark.parametrize("spoil", [group_writable, folder_for_all, linked, fifo, unwritable])
def test_a_memory_that_others_could_write_is_not_believed(weights: Path, cache: Path, spoil: Callable[[Path], None]) -> None:
    asked(weights)
    spoil(cache)
    assert asked(weights) == (True, True)


@pytest.mark.parametrize("text", ["", "{", "[1]", '[[["a"], "b"]]', "[[[1], 2]]", "[" * 5000, '{"a": 1}', "\0\xff"])
def test_a_damaged_memory_is_made_anew(weights: Path, cache: Path, text: str) -> None:
    asked(weights)
    cache.write_text(text)
    assert asked(weights) == (True, True)
    assert asked(weights) == (True, False)


@pytest.mark.parametrize("home", ["relative", "/proc/none"])
def test_no_place_for_a_memory(weights: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: str) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", home)
    monkeypatch.setenv("HOME", "/proc/none")
    monkeypatch.chdir(tmp_path)
    assert asked(weights) == asked(weights) == (True, True)
    assert sorted(os.listdir(tmp_path)) == ["weights.data"]


def test_the_memory_has_a_bound(weights: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "_KEPT", 3)
    asked(weights)
    [[stamp, digest]] = json.loads(cache.read_text())
    cache.write_text(json.dumps([[[*stamp[:4], inode], digest] for inode in range(10)]))
    assert asked(weights) == (True, True)
    kept = json.loads(cache.read_text())
    assert len(kept) == 3
    assert kept[0] == [stamp, digest]


def test_a_file_that_was_only_renamed_was_not_written_to(tmp_path: Path) -> None:
    """Its time of change is another; so is that of one whose time of modification was set back."""
    path = tmp_path / "a"
    path.write_bytes(b"weights")
    before = path.stat()
    plain, hashed = OpenFile(path.open("rb")), OpenFile(path.open("rb"))
    assert hashed.known_digest() == sha(b"weights")
    assert not plain.was_written()
    time.sleep(0.02)
    path.rename(tmp_path / "b")
    assert plain.was_written()  # nobody can tell
    assert not hashed.was_written()
    (tmp_path / "b").write_bytes(b"WEIGHTS")
    os.utime(tmp_path / "b", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert hashed.was_written()
