"""The cache of a host: whole files only, found by content, the least recently used out first."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

import pytest

from dnnc.engines.cluster.files.cache import Cache
from ir.core.diagnostics import InvalidInput


def add(cache: Cache, data: bytes) -> str:
    key = hashlib.sha256(data).hexdigest()
    cache.add(key, lambda file: key if file.write(data) else "")
    return key


def content(cache: Cache, key: str) -> bytes | None:
    entry = cache.find(key)
    return None if entry is None else os.pread(entry.descriptor, entry.stamp.size, 0)


def test_an_entry_is_found_by_its_content(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "parts")
    assert cache.find("0" * 64) is None
    key = add(cache, b"weights")
    assert content(cache, key) == b"weights"
    assert add(cache, b"weights") == key, "another run may write the same"
    assert content(Cache(tmp_path / "parts"), key) == b"weights"


def test_a_half_written_entry_is_none(tmp_path: Path) -> None:
    cache, key = Cache(tmp_path), hashlib.sha256(b"whole").hexdigest()

    def fill(file: BinaryIO) -> str:
        file.write(b"wh")
        raise EOFError

    with pytest.raises(EOFError):
        cache.add(key, fill)
    assert cache.find(key) is None
    assert os.listdir(tmp_path) == []


def test_what_a_killed_run_left_goes(tmp_path: Path) -> None:
    key = hashlib.sha256(b"whole").hexdigest()
    code = f"""
import os, sys
from pathlib import Path
from dnnc.engines.cluster.files.cache import Cache
def fill(file):
    file.write(b"wh")
    file.flush()
    os.kill(os.getpid(), 9)
Cache(Path({str(tmp_path)!r})).add({key!r}, fill)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    assert len(os.listdir(tmp_path)) == 1
    cache = Cache(tmp_path)
    assert cache.find(key) is None
    add(cache, b"whole")
    assert content(cache, key) == b"whole"
    assert sorted(name.endswith(".used") for name in os.listdir(tmp_path)) == [False, True]


def test_a_changed_entry_is_removed(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    key = add(cache, b"weights")
    (tmp_path / f"{key}-{key}").write_bytes(b"weighty")
    assert cache.find(key) is None
    assert os.listdir(tmp_path) == []


def test_of_some_ranges_of_a_file_no_other_byte_matters(tmp_path: Path) -> None:
    cache, ranges, key = Cache(tmp_path), ((2, 3), (9, 1)), "a" * 64

    def fill(file: BinaryIO) -> str:
        file.truncate(12)
        for (first, count), data in zip(ranges, (b"abc", b"d"), strict=True):
            assert len(data) == count
            file.seek(first)
            file.write(data)
        return hashlib.sha256(b"abcd").hexdigest()

    own = cache.add(key, fill, ranges)
    (name,) = (one for one in os.listdir(tmp_path) if not one.endswith(".used"))
    for place, kept in ((0, True), (3, False)):
        with (tmp_path / name).open("r+b") as file:
            file.seek(place)
            file.write(b"?")
        os.utime(tmp_path / name, (place, place))  # a write within one tick of the clock does not show in its times
        assert own.was_written()
        assert (cache.find(key, ranges) is not None) == kept


def test_an_entry_that_another_run_removes_was_not_written_to(tmp_path: Path) -> None:
    cache, ranges = Cache(tmp_path), ((0, 2),)
    own = cache.add("a" * 64, lambda file: hashlib.sha256(b"ab").hexdigest() if file.write(b"abc") else "", ranges)
    Cache(tmp_path, 0).make_room(kept=())
    assert not os.listdir(tmp_path)
    assert not own.was_written()
    assert os.pread(own.descriptor, 9, 0) == b"abc"


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    """Of three entries of one block each, two fit; what is open stays readable, what the run keeps stays."""
    cache = Cache(tmp_path, 2 * 4096)
    keys = [add(cache, bytes([number]) * 4096) for number in range(3)]
    for seconds, number in enumerate((1, 2, 0)):
        os.utime(tmp_path / f"{keys[number]}-{keys[number]}.used", (seconds, seconds))
    held = cache.find(keys[1])
    assert held is not None
    for seconds, number in enumerate((1, 2, 0)):
        os.utime(tmp_path / f"{keys[number]}-{keys[number]}.used", (seconds, seconds))
    cache.make_room(kept=())
    assert [content(cache, key) is not None for key in keys] == [True, False, True]
    assert os.pread(held.descriptor, 1, 0) == b"\1"
    Cache(tmp_path, 0).make_room(kept=keys[:1])
    assert [content(cache, key) is not None for key in keys] == [True, False, False]


def test_a_folder_that_others_write_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts").chmod(0o777)
    with pytest.raises(InvalidInput, match="E2208"):
        add(Cache(tmp_path / "parts"), b"weights")
