"""Files of builds on a host that runs stages of them, found by content, so that a second run transfers nothing.

An entry is named ``KEY-CONTENT``: ``KEY`` says which part of which file it is (``parts``), ``CONTENT`` is the SHA-256 digest of
the bytes of that part, which lie at their places in the file, with holes between. Of a whole file both are equal. The default
folder is ``$XDG_CACHE_HOME/dnnc/parts``, else ``~/.cache/dnnc/parts``.

Invariants:
1. a file gets its name once all of its bytes are there (``ir.system.scratch.whole_file``), so a run that was killed leaves no
   half entry, and runs that write the same entry at once leave one whole one;
2. an entry is used only if its bytes have the digest of its name; one that differs is removed. Who writes an entry knows the
   digest of what it wrote, and uses the very file;
3. what a run uses it holds open, so that another run may remove the entry;
4. entries take at most ``limit`` bytes of the disk, the least recently used ones are removed first; those of the run that makes
   room stay.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from dnnc.engines.hosts.faults import FolderOfOthers
from ir.core.diagnostics import InvalidInput
from ir.system.digests import OpenFile, Ranges, has_digest
from ir.system.scratch import whole_file

Progress = Callable[[float], None]
"""Called with the part of a file that is hashed."""
LIMIT = 100 << 30
"""Bytes that entries take at most, by default."""
_ENTRY = re.compile(r"[0-9a-f]{64}-[0-9a-f]{64}")
_ENTRY_OR_KEY = re.compile(r"[0-9a-f]{64}(-[0-9a-f]{64})?")
"""With what a run left that was killed when it gave an entry its name."""
_USED = ".used"
"""The end of the name of an empty file whose time of modification is when the entry was last used. (The times of the entry
itself must stay: its digest is remembered by them.)"""


@dataclass(frozen=True, slots=True)
class Cache:
    """The entries in ``folder``, which is made when the first one is written."""

    folder: Path
    limit: int = LIMIT

    def find(self, key: str, ranges: Ranges | None = None, progress: Progress = lambda fraction: None) -> OpenFile | None:
        """The entry of a key, open; None where there is none. ``ranges``: of the file, those that are the part, all without.
        ``progress``: of hashing these bytes. Raises OSError."""
        for name in self._names():
            if not name.startswith(f"{key}-"):
                continue
            with suppress(FileNotFoundError):
                file = os.fdopen(os.open(self.folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")
                content = f"sha256:{name.partition('-')[2]}"
                if has_digest(file, content, progress, ranges):
                    self._use(name)
                    return OpenFile(file, content, ranges)
                file.close()
                self._remove(name)
        return None

    def add(self, key: str, fill: Callable[[BinaryIO], str], ranges: Ranges | None = None) -> OpenFile:
        """The new entry of a key, open. ``fill`` writes an open file, and returns the digest (hexadecimal) of what it has
        written, of the bytes of ``ranges`` alone where those are stated; what it raises leaves no entry. Raises InvalidInput
        where the disk refuses, or others may write to the folder."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self._is_ours():
            raise InvalidInput(FolderOfOthers(), where=str(self.folder))
        with ExitStack() as stack:
            with whole_file(self.folder / key) as file:
                content = fill(file)
                written = stack.enter_context(open(f"/proc/self/fd/{file.fileno()}", "rb"))
            with suppress(FileNotFoundError):  # another run has written the same just now
                os.replace(self.folder / key, self.folder / f"{key}-{content}")
            self._use(f"{key}-{content}")
            stack.pop_all()
            return OpenFile(written, f"sha256:{content}", ranges)

    def make_room(self, kept: Collection[str]) -> None:
        """Removes entries, those that were used longest ago first, until they take ``limit`` bytes or only those of the keys
        ``kept`` are left."""
        entries = []
        for name in self._names(_ENTRY_OR_KEY):
            with suppress(FileNotFoundError):
                status = os.stat(self.folder / name)
                entries.append((self._last_use(name, status.st_mtime_ns), 512 * status.st_blocks, name))
        total = sum(size for _, size, _ in entries)
        for _, size, name in sorted(entries):
            if total <= self.limit:
                return
            if name.partition("-")[0] not in kept:
                self._remove(name)
                total -= size

    def _names(self, pattern: re.Pattern[str] = _ENTRY) -> list[str]:
        with suppress(FileNotFoundError, NotADirectoryError):
            return sorted(filter(pattern.fullmatch, os.listdir(self.folder))) if self._is_ours() else []
        return []

    def _is_ours(self) -> bool:
        """Whether only this user can write to the folder."""
        status = os.stat(self.folder)
        return status.st_uid == os.geteuid() and not status.st_mode & 0o022

    def _use(self, name: str) -> None:
        with suppress(OSError):
            (self.folder / f"{name}{_USED}").touch(mode=0o600)

    def _last_use(self, name: str, otherwise: int) -> int:
        try:
            return os.stat(self.folder / f"{name}{_USED}").st_mtime_ns
        except FileNotFoundError:
            return otherwise

    def _remove(self, name: str) -> None:
        for path in (self.folder / name, self.folder / f"{name}{_USED}"):
            path.unlink(missing_ok=True)


def default_folder() -> Path:
    """The folder of this user. Raises RuntimeError where the user has no home."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "dnnc" / "parts"
