"""Temporary files and folders, and files that are not whole yet: all are removed at the end, however that comes.

Each lies under a hidden or private name and is locked (``flock``) by the process that made it; it is removed when that process
is done with it, by whatever way but SIGKILL. What a killed process left is not locked, and the next that makes one for the
same purpose removes it. Only what belongs to the same user is ever removed.
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from ir.core.diagnostics import InvalidInput
from ir.core.faults import DiskRefused, FileNotWritten, NotAFile
from ir.system.files import kind_of_file
from ir.system.signals import termination_raises

PARTIAL = ".partial"
"""The end of the name of each file and folder that is to become a result."""
SCRATCH = "dnnc-scratch-"
"""The begin of the name of each private folder below the temporary directory."""
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
_made: set[Path] = set()
"""Files and folders that this process has made and neither removed nor moved into place."""


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A private folder below the temporary directory, gone at the end. Raises InvalidInput where the disk refuses."""
    base = temporary_directory()
    remove_dead_scratch()
    with (
        told_of_disk(base, "free some space, or name another directory in TMPDIR"),
        termination_raises(),
        locked_folder(base, SCRATCH) as folder,
    ):
        yield folder


def temporary_directory() -> Path:
    """The folder for scratch: the first writable one of TMPDIR, TEMP, TMP and the system's. Python's ``tempfile`` looks for it
    by writing a file, which a signal at the wrong moment would leave behind."""
    named = [os.environ.get(variable, "") for variable in ("TMPDIR", "TEMP", "TMP")]
    for place in filter(None, (*named, "/tmp", "/var/tmp", "/usr/tmp")):
        if os.path.isdir(place) and os.access(place, os.W_OK | os.X_OK):
            return Path(os.path.abspath(place))
    return Path.cwd()


def remove_dead_scratch() -> None:
    """Removes scratch folders that killed processes of this user left."""
    base = temporary_directory()
    remove_dead(base / name for name in _names(base) if name.startswith(SCRATCH))


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """An open file that becomes ``path`` when the block ends without an exception. Raises InvalidInput where the system
    refuses, and where something that is no file is at ``path``."""
    refuse_special(path)
    remove_dead(partials(path.parent, path.name))
    with told_of_disk(path, "free some space, or name another file"), termination_raises(), ExitStack() as stack:
        try:
            temporary = stack.enter_context(_locked(path.parent, f".{path.name}.", PARTIAL, folder=False))
        except OSError as error:
            if error.errno in _DISK:
                raise
            raise InvalidInput(FileNotWritten(error.strerror or str(error)), where=str(path)) from None
        with open(temporary, "r+b") as file:
            yield file
            file.flush()
            os.fchmod(file.fileno(), 0o666 & ~umask())
            os.replace(temporary, path)


def refuse_special(path: Path) -> None:
    """Raises InvalidInput where ``path`` leads to a device, a FIFO, a socket or a folder: a file in its place would destroy it,
    for example ``/dev/null``."""
    with suppress(OSError, ValueError):
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode):
            raise InvalidInput(NotAFile(kind_of_file(mode), "a file or nothing", "name another file"), where=str(path))


@contextmanager
def told_of_disk(path: Path, hint: str) -> Iterator[None]:
    """Turns an OSError of the disk (it is full, read-only or broken, or a file may not grow so large) into InvalidInput."""
    try:
        yield
    except OSError as error:
        short = error.errno is None and "written" in str(error)  # numpy's tofile: "100 requested and 50 written"
        if error.errno in _DISK or short:
            where = str(error.filename or path)
            reason = error.strerror or f"it is full, or files may not grow so large ({error})"
            if error.errno == errno.EFBIG:
                hint = f"a limit on the size of files is set (ulimit -f); {hint}"
            raise InvalidInput(DiskRefused(reason, hint), where=where) from error
        raise


@contextmanager
def locked_folder(base: Path, prefix: str, suffix: str = "") -> Iterator[Path]:
    """A new folder in ``base`` that this process holds locked; removed at the end, if it is still there. Raises OSError."""
    with _locked(base, prefix, suffix, folder=True) as made:
        yield made


@contextmanager
def _locked(base: Path, prefix: str, suffix: str, *, folder: bool) -> Iterator[Path]:
    """A new folder or file in ``base`` that this process holds locked. Raises OSError.

    Before it is locked, another process may think that its maker is dead and remove it; then another is made. A process locks
    what it removes, so a folder that still has its name after it was locked here stays."""
    while True:
        path = base / f"{prefix}{os.urandom(6).hex()}{suffix}"
        with _mine(path):
            if folder:
                os.mkdir(path, 0o700)
            else:
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
            try:
                lock = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if os.path.lexists(path):
                    yield path
                    return
            finally:
                os.close(lock)


def partials(folder: Path, name: str) -> list[Path]:
    """Unfinished files and folders of writers of ``name`` in ``folder``, alive or dead."""
    return [folder / entry for entry in _names(folder) if entry.startswith(f".{name}.") and entry.endswith(PARTIAL)]


def remove_dead(paths: Iterable[Path]) -> None:
    """Removes the paths that belong to this user and that no process holds locked."""
    for path in paths:
        with suppress(OSError):
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                if os.fstat(handle).st_uid == os.geteuid():
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove(path)
            finally:
                os.close(handle)


@contextmanager
def _mine(path: Path) -> Iterator[None]:
    """Removes ``path`` at the end of the block. Where an exception (a signal may raise one at any moment) interrupts that, the
    path is removed when the process ends."""
    _made.add(path)
    try:
        yield
    finally:
        _remove(path)
        _made.discard(path)


@atexit.register
def remove_own() -> None:
    """Removes all that this process has made and not yet removed."""
    for path in tuple(_made):
        _remove(path)


def _remove(path: Path) -> None:
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def umask() -> int:
    """The process's umask, which can be read only by setting it for a moment."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
