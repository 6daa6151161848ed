"""Writes a directory whole or not at all.

The content is written into a hidden sibling, flushed to the disk, and moved into place in one step. An exception, Ctrl-C or a
termination request removes the sibling and leaves the old content. Only a killed process can leave its sibling behind. That
sibling never looks like a result, and the next write to the same place removes it; a lock shows whether its writer is alive.

A mount point, or the current directory, is filled instead of replaced: the hidden directory is then a child, and its entries
move up one by one. The file that marks a result (``seal``) is removed first and added last, so that a half-filled directory
never looks like a result.

A missing or empty directory may be replaced, and one that ``replaceable`` accepts; any other is the user's and refused.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from dnnc.build.faults import FolderNotMade, FolderNotWritable, ForeignDirectory, NotADirectory
from ir.core.diagnostics import InvalidInput, UsageError
from ir.system.scratch import PARTIAL, locked_folder, partials, remove_dead, told_of_disk, umask
from ir.system.signals import termination_raises


@contextlib.contextmanager
def whole_directory(target: Path, replaceable: Callable[[Path], bool], seal: str) -> Iterator[Path]:
    """Yields an empty directory that becomes ``target`` when the block ends without an exception. ``seal``: the name of the
    file in it without which ``replaceable`` knows no directory.

    Raises UsageError when ``target`` exists and may not be replaced, InvalidInput when the disk refuses (full, read only).
    """
    target = Path(os.path.abspath(target))
    refuse_foreign(target, replaceable)
    stays = target.is_dir() and (os.path.ismount(target) or _is_current(target))
    folder = target if stays else target.parent
    made_parents = _make_parents(target.parent)
    done = False
    try:
        remove_dead(partials(folder, target.name))
        with (
            told_of_disk(target, "free some space or choose another directory; nothing was written"),
            termination_raises(),
            _sibling(folder, target.name) as temporary,
        ):
            yield temporary
            _flush(temporary)
            refuse_foreign(target, replaceable)
            if stays:
                temporary.chmod(0o777 & ~umask())
                _fill(temporary, target, seal)
            else:
                put_in_place(temporary, target)
            done = True
    finally:
        if not done:
            _remove_empty(made_parents)


@contextlib.contextmanager
def _sibling(folder: Path, name: str) -> Iterator[Path]:
    """The hidden folder that is to become ``name``. Raises InvalidInput where it cannot be made."""
    with contextlib.ExitStack() as stack:
        try:
            temporary = stack.enter_context(locked_folder(folder, f".{name}.", PARTIAL))
        except OSError as error:
            raise InvalidInput(FolderNotWritable(error.strerror or str(error)), where=str(folder)) from error
        yield temporary


def refuse_foreign(target: Path, replaceable: Callable[[Path], bool]) -> None:
    """Raises UsageError when something stands at ``target`` that may not be replaced."""
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise UsageError(NotADirectory(), where=str(target))
    if target.is_dir() and not set(target.iterdir()) <= set(partials(target, target.name)) and not replaceable(target):
        raise UsageError(ForeignDirectory(), where=str(target))


def put_in_place(temporary: Path, target: Path) -> None:
    """Puts the directory ``temporary``, whose files are on the disk, in the place of ``target``; what stood there is removed
    only afterwards. Raises OSError."""
    temporary.chmod(0o777 & ~umask())
    _sync_directory(temporary)
    if not target.exists():
        os.rename(temporary, target)
    elif _exchange(temporary, target):
        shutil.rmtree(temporary, ignore_errors=True)
    else:
        aside = temporary.with_name(temporary.name.removesuffix(PARTIAL) + ".old" + PARTIAL)
        os.rename(target, aside)
        try:
            os.rename(temporary, target)
        except BaseException:
            os.rename(aside, target)
            raise
        shutil.rmtree(aside, ignore_errors=True)
    _sync_directory(target.parent)


def _fill(temporary: Path, target: Path, seal: str) -> None:
    """Puts the entries of ``temporary`` in the place of those of ``target``, in which it lies."""

    def order(path: Path) -> tuple[bool, str]:
        return path.name == seal, path.name

    new = sorted(temporary.iterdir(), key=order)
    old = sorted(set(target.iterdir()) - set(partials(target, target.name)), key=order, reverse=True)
    aside = temporary / f".old.{os.urandom(6).hex()}"
    aside.mkdir()
    moved: list[tuple[Path, Path]] = []
    try:
        for source, place in [*((path, aside / path.name) for path in old), *((path, target / path.name) for path in new)]:
            os.rename(source, place)
            moved.append((source, place))
    except BaseException:
        for source, place in reversed(moved):
            os.rename(place, source)
        raise
    _sync_directory(target)


def _is_current(folder: Path) -> bool:
    """Whether this process, and so most likely the user's shell, stands in ``folder``."""
    try:
        return os.path.samefile(folder, os.curdir)
    except OSError:  # the current directory was removed
        return False


def _exchange(first: Path, second: Path) -> bool:
    """Swaps two directories in one step; False where the system cannot (then two renames do it, almost as well)."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    at_cwd, exchange = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of linux/fs.h
    return bool(renameat2(at_cwd, os.fsencode(first), at_cwd, os.fsencode(second), exchange) == 0)


def being_written(target: Path) -> bool:
    """Whether a writer of ``target`` is at work (or was killed at it)."""
    target = Path(os.path.abspath(target))
    return bool(partials(target.parent, target.name) or partials(target, target.name))


def _make_parents(folder: Path) -> list[Path]:
    """Makes ``folder`` and its parents; returns those that were not there, innermost first."""
    missing = []
    path = folder
    while not path.exists():
        missing.append(path)
        path = path.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        _remove_empty(missing)
        in_the_way = isinstance(error, FileExistsError | NotADirectoryError)
        reason = "a file is in the way" if in_the_way else error.strerror or str(error)
        raise InvalidInput(FolderNotMade(reason), where=str(folder)) from error
    return missing


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


def _flush(folder: Path) -> None:
    """Every file and directory below ``folder`` reaches the disk before the move that makes them visible."""
    for root, _, files in os.walk(folder):
        for name in files:
            handle = os.open(os.path.join(root, name), os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        _sync_directory(Path(root))


def _sync_directory(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:  # some file systems have nothing to flush for a directory
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)
