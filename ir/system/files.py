"""Opens and reads files that somebody else wrote. Every input of the command goes through here.

Invariants: only regular files are opened (a FIFO would wait for ever, a device may have no end), a symbolic link is followed
to what it names and that is held to the same rule; a file is opened once, so that what was checked is what is read; no more
than the limit is read, even from a file that grows meanwhile. Every fault is an InvalidInput that names the file.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from ir.core.diagnostics import InvalidInput
from ir.core.faults import FileNotOpened, FileNotRead, FileTooLarge, NoSuchFile, NotAFile, NotUtf8, SymbolicLink


def open_input(
    path: str | Path, what: str, *, hint: str = "", directory: int | None = None, follow: bool = True, where: str = ""
) -> BinaryIO:
    """The open file at ``path``, at its start. ``what`` says what was expected (``a topology file``), for the message.

    A relative path starts at the open ``directory`` where one is given; ``where`` then names the file in messages. With
    ``follow=False`` a symbolic link at the end of the path is refused.

    Raises InvalidInput where there is none, where it is no regular file, and where it cannot be opened; OSError where the
    process may open no more files at all."""
    where = where or str(path)
    # Without O_NONBLOCK, opening a FIFO waits for a writer.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags, dir_fd=directory)
    except FileNotFoundError:
        raise InvalidInput(NoSuchFile(what, hint), where=where) from None
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        raise_exhausted(error, where)
        if not follow and getattr(error, "errno", 0) == errno.ELOOP:
            raise InvalidInput(SymbolicLink(what, hint), where=where) from None
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidInput(FileNotOpened(reason, hint), where=where) from None
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise InvalidInput(NotAFile(kind_of_file(mode), what, hint), where=where)
    return os.fdopen(descriptor, "rb")


def read_input(path: str | Path, what: str, limit: int, *, hint: str = "") -> bytes:
    """All bytes of the file at ``path``, at most ``limit``. Raises InvalidInput as ``open_input`` does, and for more bytes."""
    with open_input(path, what, hint=hint) as file:
        return _limited(file, str(path), what, limit, hint)


def _limited(file: BinaryIO, where: str, what: str, limit: int, hint: str) -> bytes:
    try:
        size = os.fstat(file.fileno()).st_size
        data = file.read(limit + 1) if size <= limit else b""
    except OSError as error:
        raise InvalidInput(FileNotRead(error.strerror or str(error), hint), where=where) from None
    if max(size, len(data)) > limit:
        raise InvalidInput(FileTooLarge(max(size, len(data)), what, limit, hint), where=where)
    return data


def read_input_text(path: str | Path, what: str, limit: int, *, hint: str = "") -> str:
    """The UTF-8 text of the file at ``path``, without a byte order mark. Raises InvalidInput as ``read_input`` does, and for
    bytes that are not UTF-8."""
    with open_input(path, what, hint=hint) as file:
        return decode_input(file, str(path), what, limit, hint=hint)


def decode_input(file: BinaryIO, where: str, what: str, limit: int, *, hint: str = "") -> str:
    """The text of an open file, as ``read_input_text`` reads it."""
    data = _limited(file, where, what, limit, hint)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(NotUtf8(what, f"0x{data[error.start]:02x}", error.start, hint), where=where) from None


def raise_exhausted(error: Exception, where: str) -> None:
    """Raises OSError, with the name ``where``, if the process can open no file at all: this file is not the cause."""
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        raise OSError(error.errno, error.strerror, where) from None


def kind_of_file(mode: int) -> str:
    """The kind of file, in words."""
    kinds = (
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISFIFO, "a FIFO"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a device"),
        (stat.S_ISBLK, "a device"),
    )
    return next((words for test, words in kinds if test(mode)), "no regular file")
