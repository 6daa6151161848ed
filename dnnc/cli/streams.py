"""Prepares standard output and standard error: both exist, and a failing write names its stream.

- A stream that the shell closed (``>&-``) leads nowhere; a file that is opened later must not get its number.
- The reader of a pipe may end at any time (``| head``): later output is dropped and the work goes on, because it may be writing
  a build as well. What only writes there looks whether it is read (``is_unread``).
- Standard output that cannot be written (a full disk) is a fault; standard error that cannot be written is ignored.
- A character that the encoding does not have is written as its escape.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any, TextIO

OUTPUT = "standard output"


def settle_streams() -> None:
    """Replaces ``sys.stdout`` and ``sys.stderr`` by such streams, for the rest of the process."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest free number, so ``number``
            os.set_inheritable(opened, True)
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115 (for the rest of the process)
    sys.stdout = _stream(sys.stdout, 1)
    sys.stderr = _stream(sys.stderr, 2)


def _stream(present: TextIO | None, number: int) -> TextIO:
    if present is None:
        return open(os.devnull, "w", encoding="utf-8", errors="backslashreplace")
    options: Any = present
    return io.TextIOWrapper(
        io.BufferedWriter(_Sink(number)),
        encoding=present.encoding,
        errors="backslashreplace" if present.errors == "strict" else present.errors,
        newline="\n",
        line_buffering=options.line_buffering,
        write_through=options.write_through,
    )


def is_unread(stream: TextIO) -> bool:
    """Whether the reader of a stream of this module has ended, as far as writes have shown."""
    sink = getattr(getattr(stream, "buffer", None), "raw", None)
    return isinstance(sink, _Sink) and sink.gone


class _Sink(io.FileIO):
    """Writes to a descriptor until a write fails, and drops all later output."""

    def __init__(self, number: int) -> None:
        super().__init__(number, "w", closefd=False)
        self.gone = False

    def write(self, data: Any, /) -> int:
        if not self.gone:
            try:
                return super().write(data)
            except BrokenPipeError:
                self.gone = True
            except OSError as error:
                self.gone = True
                if self.fileno() == 1:
                    error.filename = OUTPUT
                    raise
        return memoryview(data).nbytes
