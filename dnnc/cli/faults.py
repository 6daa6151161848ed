"""What the command itself refuses: faults of options, and what the machine did not give. Codes E01.."""

from __future__ import annotations

from ir.core.diagnostics import Fault


class OutOfMemory(Fault, code="E0101"):
    """The system gave the command no more memory."""

    message = "out of memory"
    hint = "try a smaller model, fewer stages, or a machine with more memory"


class LibraryNotLoaded(Fault, code="E0102"):
    """A shared library that dnnc needs cannot be loaded: it is broken, or a limit of memory or of open files is too low."""

    message = "a library cannot be loaded: {reason}"
    hint = "is there enough memory, and are enough files allowed (ulimit -v, ulimit -n)? If so, install dnnc again"
    reason: str


class RefusedBySystem(Fault, code="E0103"):
    """The operating system refused to open, read or write a file, or to start a process."""

    message = "{reason}"
    hint = "{advice}"
    reason: str
    advice: str


class NoCurrentDirectory(Fault, code="E0104"):
    """The directory that the command was started in was removed."""

    message = "the current directory was removed"
    hint = "go to another, or name whole paths"


class OutputNotWritten(Fault, code="E0105"):
    """Standard output takes no more: the disk behind it is full, or it is closed."""

    message = "cannot be written: {reason}"
    hint = "what was written to files stands"
    reason: str


class WrongArguments(Fault, code="E0106"):
    """An option or argument is not one of the command, is missing, or has a value that it cannot have."""

    message = "{reason}"
    reason: str


class InternalError(Fault, code="E0107"):
    """A bug of dnnc. The report file holds the command line, versions and the traceback."""

    message = "a fault inside dnnc, not in your input: {reason}"
    reason: str
