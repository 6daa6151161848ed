"""Open files, their digests, and a cache of the digests of large files: half a gigabyte takes long to hash.

The cache, in the user's cache folder, finds a digest by size, times of modification and of change, device and inode; all must
be unchanged. The time of change (ctime) cannot be set by a program, so whoever writes to the file changes it.

Invariants:
1. a digest is only remembered of a file whose times are so far back that a later write shows in them, and whose size and times
   were the same before and after the hashing;
2. the memory is only believed where this user alone can write to it; a damaged, foreign or unwritable one is ignored.

What it cannot see: bytes written through a memory map after the system has stamped its pages, or by a machine that shares the
disk and stamps with another clock.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, BinaryIO

LARGE = 16 << 20
"""Digests of files with at least so many bytes are cached; smaller files are hashed in milliseconds."""
_PIECE = 1 << 20
_COARSE_SECONDS, _FINE_SECONDS = 3.0, 0.1
"""A digest is cached only if the file's times are this old, because a write within one tick of the clock does not change them.
Some file systems count in two seconds, the others in ticks of the kernel."""
_KEPT = 256
"""Cached digests, the newest first."""
_FILE_LIMIT = 1 << 20
_NAME = "digests.json"
_OF = " of "


@dataclass(frozen=True, slots=True)
class Stamp:
    """Identifies the content of a file: size in bytes, times in nanoseconds, device and inode."""

    size: int
    modified: int
    changed: int
    device: int
    inode: int

    @classmethod
    def of(cls, descriptor: int) -> Stamp:
        status = os.fstat(descriptor)
        return cls(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_dev, status.st_ino)

    def is_settled(self, now: int) -> bool:
        """Whether a write after ``now`` (nanoseconds since 1970) would change the times."""
        coarse = self.modified % 10**9 == 0 and self.changed % 10**9 == 0
        return now - max(self.modified, self.changed) > (_COARSE_SECONDS if coarse else _FINE_SECONDS) * 1e9


Ranges = Sequence[tuple[int, int]]
"""First bytes and numbers of bytes of parts of a file, ascending."""


def digest_ranges(file: BinaryIO, ranges: Ranges, progress: Callable[[float], None] = lambda fraction: None) -> str:
    """``sha256:...`` of the bytes of these ranges of an open file, as far as they are there, one after another. ``progress``
    gets the fraction. Raises OSError."""
    digest, done, size = hashlib.sha256(), 0, sum(count for _, count in ranges)
    for first, count in ranges:
        for start in range(first, first + count, _PIECE):
            digest.update(os.pread(file.fileno(), min(_PIECE, first + count - start), start))
            done += min(_PIECE, first + count - start)
            progress(done / size)
    return f"sha256:{digest.hexdigest()}"


def digest_file(file: BinaryIO, progress: Callable[[float], None] = lambda fraction: None) -> str:
    """``sha256:...`` of an open file's bytes from its current position, read in pieces. ``progress`` gets the fraction. Raises
    OSError."""
    digest, done, size = hashlib.sha256(), 0, os.fstat(file.fileno()).st_size
    while piece := file.read(_PIECE):
        digest.update(piece)
        done += len(piece)
        progress(min(1.0, done / size) if size else 1.0)
    return f"sha256:{digest.hexdigest()}"


def has_digest(
    file: BinaryIO, expected: str, progress: Callable[[float], None] = lambda fraction: None, ranges: Ranges | None = None
) -> bool:
    """Whether the bytes of an open file, or of these ``ranges`` of it, have the digest ``expected``. The cache can only confirm
    it: before False is returned they are hashed. Raises OSError."""
    stamp = Stamp.of(file.fileno())
    if stamp.size >= LARGE and (list(astuple(stamp)), _of_ranges(expected, ranges)) in _remembered():
        return True
    return digest_weights(file, progress, ranges=ranges) == expected


def known_digest(file: BinaryIO) -> str:
    """The digest of an open file's bytes, from the cache where it is there. Raises OSError."""
    stamp = Stamp.of(file.fileno())
    known = {tuple(key): digest for key, digest in _remembered() if _OF not in digest} if stamp.size >= LARGE else {}
    return known.get(astuple(stamp)) or digest_weights(file)


def digest_weights(
    file: BinaryIO,
    progress: Callable[[float], None] = lambda fraction: None,
    *,
    alone: bool = False,
    ranges: Ranges | None = None,
) -> str:
    """``digest_file`` of the whole file, or ``digest_ranges``, cached where the file is large. ``alone``: nobody can write to
    the file while it is hashed, so its times need to be old only at the end."""
    now, stamp = time.time_ns(), Stamp.of(file.fileno())
    digest = digest_file(file, progress) if ranges is None else digest_ranges(file, ranges, progress)
    now = time.time_ns() if alone else now
    if stamp.size >= LARGE and stamp.is_settled(now) and Stamp.of(file.fileno()) == stamp:
        key = list(astuple(stamp))
        others = [(other, known) for other, known in _remembered() if other[3:] != key[3:]]
        _remember([(key, _of_ranges(digest, ranges)), *others][:_KEPT])
    return digest


def _of_ranges(digest: str, ranges: Ranges | None) -> str:
    """What the cache remembers in place of a digest that is of some ranges of a file alone."""
    if ranges is None:
        return digest
    return f"{digest}{_OF}{hashlib.sha256(str(tuple(map(tuple, ranges))).encode()).hexdigest()}"


class OpenFile:
    """A file that stays open as long as this object lives. ``known``: the digest of its bytes as they were read, where it is
    known; of the bytes of ``ranges`` alone, where the others do not matter."""

    def __init__(self, file: BinaryIO, known: str | None = None, ranges: Ranges | None = None) -> None:
        self.descriptor = file.fileno()
        self.stamp = Stamp.of(self.descriptor)
        self.file = file
        self.known = known
        self.ranges = ranges
        weakref.finalize(self, file.close)

    def digest(self) -> str:
        """The digest of the bytes as they are now, hashed again."""
        if self.ranges is not None:
            return digest_ranges(self.file, self.ranges)
        self.file.seek(0)
        return digest_file(self.file)

    def known_digest(self) -> str:
        """The digest of the bytes, hashed once or from the cache."""
        if self.known is not None:
            return self.known
        self.file.seek(0)
        digest = known_digest(self.file)
        if Stamp.of(self.descriptor) == self.stamp:  # else nobody knows what was read before
            self.known = digest
        return digest

    def was_written(self, differs: Callable[[], bool] | None = None) -> bool:
        """Whether its bytes were written to since it was opened; ones that were may be as they were by now, and were not when
        they were read. A file that was renamed or deleted has another time of change alone, as one whose time of modification
        was set back: that one is hashed again, and taken for written where its digest is not known. ``differs``, of a caller
        who knows a digest of its own, says in place of that whether the bytes are others."""
        now = Stamp.of(self.descriptor)
        if now == self.stamp:
            return False
        if (now.size, now.modified) != (self.stamp.size, self.stamp.modified):
            return True
        if differs is not None:
            return differs()
        return self.known is None or self.digest() != self.known


def _folder() -> Path | None:
    """The cache folder of this user; None where there is none."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):
        return Path(base) / "dnnc"
    try:
        return Path.home() / ".cache" / "dnnc"
    except RuntimeError:
        return None


def _remembered() -> list[tuple[list[int], str]]:
    """The cached stamps and digests; none where the cache is missing, damaged, or writable for others."""
    folder = _folder()
    if folder is None:
        return []
    try:
        descriptor = os.open(folder / _NAME, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not _is_ours(status) or not stat.S_ISREG(status.st_mode) or not _is_ours(os.stat(folder)):
                return []
            data = json.loads(file.read(_FILE_LIMIT))
    except (OSError, ValueError, RecursionError):
        return []
    return [(list(key), digest) for key, digest in data] if _is_memory(data) else []


def _is_ours(status: os.stat_result) -> bool:
    """Whether only this user can write there."""
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _is_memory(data: Any) -> bool:
    return isinstance(data, list) and all(
        isinstance(item, list)
        and len(item) == 2
        and isinstance(item[0], list)
        and all(type(number) is int for number in item[0])
        and isinstance(item[1], str)
        for item in data
    )


def _remember(digests: list[tuple[list[int], str]]) -> None:
    """Writes the cache in one step; where that fails, the old one stays."""
    folder = _folder()
    if folder is None:
        return
    with contextlib.suppress(OSError):
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        if not _is_ours(os.stat(folder)):
            return
        descriptor, path = tempfile.mkstemp(prefix=f".{_NAME}.", dir=folder)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(digests, file)
            os.replace(path, folder / _NAME)
        except BaseException:
            os.unlink(path)
            raise
