"""Parts of files between hosts: only bytes that were verified get into a cache, and a refusal lets nobody wait."""

from __future__ import annotations

import hashlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

import pytest

from dnnc.engines.cluster.files.cache import Cache
from dnnc.engines.cluster.files.parts import (
    PIECES,
    Needed,
    Part,
    cached_parts,
    receive_parts,
    send_digests,
    send_parts,
)
from dnnc.engines.onnxruntime.transport.edges import Sender
from ir.core.diagnostics import InvalidInput
from ir.system import digests
from ir.system.digests import OpenFile
from tests.dnnc.engines.cluster.test_relay import pair

SIZE = 3 << 20


def exchange(needed: Needed, cache: Cache) -> int:
    """Sends all parts from one relay to another and receives them into the cache; returns how many bytes were sent."""
    sent: list[int] = []
    with pair() as (a, b):
        sender, receiver = a.sender(1, PIECES, "b"), b.receiver(1, PIECES, "a")
        keys = [part.key for part in needed.parts]
        sending = threading.Thread(target=lambda: sent.append(send_parts(sender, needed, keys)), daemon=True)
        sending.start()
        try:
            receive_parts(receiver, needed.parts, cache)
        finally:
            sending.join(20)
            assert not sending.is_alive(), "the sender waits"
    return sent[0]


def halves(path: Path) -> Needed:
    """Two parts of a file, each of two ranges."""
    path.write_bytes(bytes(range(256)) * (SIZE // 256))
    file = OpenFile(path.open("rb"))
    file.known_digest()
    ranges = ((0, 1000), (SIZE // 2, 1000)), ((2000, 10), (SIZE - 5, 5))
    parts = tuple(Part(hashlib.sha256(str(one).encode()).hexdigest(), SIZE, one) for one in ranges)
    return Needed({}, {}, parts, {part.key: file for part in parts})


def test_parts_are_kept_at_their_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed, cache = halves(tmp_path / "weights"), Cache(tmp_path / "parts")
    with monkeypatch.context() as patch:
        for name in ("digest_file", "digest_ranges"):
            patch.delattr(digests, name)  # what is received is hashed while it comes, and not again
        assert exchange(needed, cache) == 2015
    entry = cache.find(needed.parts[1].key, needed.parts[1].ranges)
    assert entry is not None
    data = os.pread(entry.descriptor, SIZE + 1, 0)
    assert len(data) == SIZE
    assert data[2000:2010] == bytes(x % 256 for x in range(2000, 2010))
    assert data[-6:] == bytes([0, 251, 252, 253, 254, 255])


@pytest.mark.parametrize("there", ["the same", "other bytes", "a shorter file", "a folder", "nothing"])
def test_a_file_that_a_host_sees_is_read_there(tmp_path: Path, there: str) -> None:
    """Under the same path, if its bytes are the same; else it is received."""
    needed, path = halves(tmp_path / "weights"), tmp_path / "there"
    data = bytearray((tmp_path / "weights").read_bytes())
    data[5] ^= there == "other bytes"
    if there == "a folder":
        path.mkdir()
    elif there != "nothing":
        path.write_bytes(data[: SIZE - (there == "a shorter file")])
    paths = {part.key: str(path) for part in needed.parts}
    sees: Queue[list[str]] = Queue()
    wants: Queue[list[str]] = Queue()

    def send(sender: Sender) -> int:
        send_digests(sender, needed, sees.get(timeout=20))
        return send_parts(sender, needed, wants.get(timeout=20))

    with pair() as (a, b), ThreadPoolExecutor(1) as pool:
        sent = pool.submit(send, a.sender(1, PIECES, "b"))
        settings = {"cache": str(tmp_path / "parts"), "cache_bytes": 0}
        listed = [part.to_json() for part in needed.parts]
        receiver = b.receiver(1, PIECES, "a")
        found = cached_parts(listed, settings, receiver, wants.put, lambda fraction: None, paths, sees.put)
        assert sent.result(20) == {"the same": 0, "other bytes": 2000}.get(there, 2015)
    for part in needed.parts:
        for first, count in part.ranges:
            expected = bytes(x % 256 for x in range(first, first + count))
            assert os.pread(found[part.key].descriptor, count, first) == expected


@pytest.mark.parametrize("shorter", [False, True])
def test_a_file_that_was_written_to_gets_into_no_cache(tmp_path: Path, shorter: bool) -> None:
    needed, cache = halves(tmp_path / "weights"), Cache(tmp_path / "parts")
    with (tmp_path / "weights").open("r+b") as file:
        file.write(b"other")
        if shorter:
            file.truncate(1005)
    with pytest.raises(InvalidInput, match="E2204"):
        exchange(needed, cache)
    assert all(cache.find(part.key) is None for part in needed.parts)


def test_a_range_behind_the_end_of_a_file_is_refused(tmp_path: Path) -> None:
    needed, cache = halves(tmp_path / "weights"), Cache(tmp_path / "parts")
    (key, size, _), *_ = (part.to_json() for part in needed.parts)
    behind = Needed({}, {}, (Part(key, size, ((SIZE - 5, 10),)),), needed.sources)
    with pytest.raises(InvalidInput, match="E2204"):
        exchange(behind, cache)


def test_a_folder_that_cannot_be_made_lets_nobody_wait(tmp_path: Path) -> None:
    """There are more pieces than slots."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotADirectoryError):
        exchange(halves(tmp_path / "weights"), Cache(tmp_path / "file" / "parts"))


@pytest.mark.parametrize("key", ["../../etc/passwd", "a" * 63, "A" * 64, ""])
def test_a_key_is_no_path(key: str) -> None:
    with pytest.raises(ValueError, match="is no key of a part"):
        Part.from_json([key, 1, [[0, 1]]])
