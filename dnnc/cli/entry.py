"""Runs one command: arguments in, exit code out, each fault as a plain message.

Invariants: a person never sees a traceback; every run ends with a documented exit code; an unexpected exception leaves a report
file that states how to reproduce it.
"""

from __future__ import annotations

import errno
import io
import os
import sys
import traceback
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import typer
from typer.main import get_command

from dnnc.cli.faults import (
    InternalError,
    LibraryNotLoaded,
    NoCurrentDirectory,
    OutOfMemory,
    OutputNotWritten,
    RefusedBySystem,
    WrongArguments,
)
from dnnc.cli.options.values import quicken
from dnnc.cli.streams import OUTPUT, settle_streams
from ir.core.diagnostics import Diagnostic, DnncError, ExitCode, Infeasible, InvariantError, visible
from ir.core.outcomes import Outcome
from ir.system.scratch import remove_own, temporary_directory
from ir.system.signals import Terminated, end_soon_after_a_request, termination_raises
from ir.system.surroundings import leave_nothing

CLICK_EXCEPTION: Any = typer.BadParameter.__mro__[2]
"""``ClickException``, from the package that typer takes it from: a wrong option or argument."""

GONE = {
    **dict.fromkeys(("--verify-each", "--no-verify-each"), "the IR is verified after each pass"),
    "--statistics": "plan.json says what the search proved and how; --timing what each pass took",
}
"""Options of earlier versions, and what stands in their place."""
PYDANTIC = ": Value error, "
"""How pydantic, which some versions of typer use, begins the message of a wrong choice."""


def run(argv: Sequence[str] | None) -> int:
    """Runs the command of ``argv`` and returns its exit code. None: run that of the process, whose streams and signals are
    settled first."""
    if argv is not None:
        return _run(list(argv))
    settle_streams()
    leave_nothing()
    end_soon_after_a_request(remove_own)
    try:
        with termination_raises():
            return _run(sys.argv[1:])
    except Terminated as request:
        _say(f"dnnc: ended by {request.name}")
        return 128 + request.number


def _run(arguments: list[str]) -> int:
    try:
        try:
            code = _dispatch(arguments)
            sys.stdout.flush()
            return code
        except Exception as error:
            return _report(error, arguments)
    except KeyboardInterrupt:
        _say("dnnc: interrupted")
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        _forget_stdout()
        return ExitCode.OK


def _dispatch(arguments: list[str]) -> int:
    """Runs the command that the arguments name."""
    from dnnc.cli.app import needed, tree
    from dnnc.cli.completion import VARIABLE, complete

    if VARIABLE in os.environ:
        sys.stdout.write(complete(os.environ, lambda: tree()(args=arguments, prog_name="dnnc")))
        return ExitCode.OK
    command = get_command(needed(arguments))
    quicken(command)
    with command.make_context("dnnc", arguments) as context:
        command.invoke(context)
    return ExitCode.OK


def _report(error: Exception, arguments: list[str]) -> int:
    """Writes the message of an error, and returns its exit code. Raises again what ``_run`` handles itself."""
    match error:
        case BrokenPipeError():
            raise error
        case typer.Exit():
            sys.stdout.flush()
            return error.exit_code
        case typer.Abort():
            raise KeyboardInterrupt from error
        case Infeasible():
            outcome: Outcome = "infeasible" if error.proven else "undecided"
            return _tell(error.diagnostics, error.exit_code, arguments, outcome=outcome)
        case DnncError():
            return _tell(error.diagnostics, error.exit_code, arguments)
        case MemoryError():
            return _tell([OutOfMemory().at()], ExitCode.INVALID_INPUT, arguments)
        case OSError() | ImportError() if "shared object" in str(error):
            reason = str(error).partition("\n")[0]
            return _tell([LibraryNotLoaded(reason).at()], ExitCode.INVALID_INPUT, arguments)
        case OSError() if error.filename is not None or error.errno is not None:
            return _tell([_refused_by_system(error)], ExitCode.INVALID_INPUT, arguments)
    if isinstance(error, CLICK_EXCEPTION):
        shown = io.StringIO()
        error.show(shown)
        advice = GONE.get(getattr(error, "option_name", ""), "")
        fault = WrongArguments(error.format_message().replace(PYDANTIC, ": "), advice)
        text = shown.getvalue().rstrip("\n").replace(PYDANTIC, ": ")
        return _tell([fault.at()], ExitCode.USAGE, arguments, f"{text}\n  hint: {advice}" if advice else text)
    bug = _bug(error).at()
    return _tell([bug], ExitCode.INTERNAL, arguments, _internal_error(bug, error, arguments))


def _tell(
    diagnostics: Iterable[Diagnostic], code: int, arguments: Sequence[str], text: str = "", outcome: Outcome | None = None
) -> int:
    """Writes diagnostics, or ``text`` in their place, to standard error, and with ``--json`` also one object to standard
    output, of a search with its ``outcome``. Returns ``code``."""
    once = list(dict.fromkeys(diagnostics))
    _say(text or "\n".join(dict.fromkeys(map(str, once))))
    if "--json" in arguments:
        from dnnc.cli.console import put_json

        with suppress(OSError, ValueError):
            status = {} if outcome is None else {"status": outcome}
            put_json("error", {"exit": int(code), **status, "errors": [one.to_json() for one in once]})
            sys.stdout.flush()
    return code


def _refused_by_system(error: OSError) -> Diagnostic:
    """The fault of a refusal by the operating system, with what may help."""
    where = "" if error.filename is None else str(error.filename)
    hints = {
        errno.EMFILE: "this process may open no more files: raise the limit (ulimit -n), or use fewer stages",
        errno.ENFILE: "the whole system may open no more files",
        errno.EAGAIN: "no more processes or threads may be started: raise the limit (ulimit -u), or use fewer stages",
        errno.ENOMEM: "use fewer or smaller stages, or a machine with more memory",
        errno.ENOSPC: "free some space, or write elsewhere",
        errno.EDQUOT: "free some space, or write elsewhere",
        errno.EFBIG: "a limit on the size of files is set (ulimit -f)",
    }
    if not where and isinstance(error, FileNotFoundError):  # of ``os.getcwd``
        return NoCurrentDirectory().at()
    if where == OUTPUT:
        return OutputNotWritten(error.strerror or str(error)).at(where)
    return RefusedBySystem(error.strerror or str(error), hints.get(error.errno or 0, "")).at(where)


def _bug(error: Exception) -> InternalError:
    """The fault of an exception that dnnc did not expect: who failed, and how."""
    # PassCrash and InvariantError say who failed and how. Nothing is imported here: an import may be what failed.
    says_who = isinstance(error, InvariantError) or hasattr(error, "pass_name")
    first = (str(error) if says_who else f"{type(error).__name__}: {error}").splitlines()[0]
    return InternalError(first[:400])


def _internal_error(bug: Diagnostic, error: Exception, arguments: list[str]) -> str:
    """The message of a bug: what happened, and the path of the report."""
    notes = [note for note in getattr(error, "__notes__", ()) if note]
    lines = [str(bug)]
    if isinstance(error, InvariantError):
        lines += ["  " + line for diagnostic in error.diagnostics[1:10] for line in str(diagnostic).splitlines()]
    lines += [f"  {note}" for note in notes]
    path = _write_report(error, arguments)
    lines.append(
        f"  report: {path} (please send it with the model; it holds the command line, versions and the traceback, with the"
        " paths and names in them)"
        if path
        else "  no report could be written"
    )
    return "\n".join(lines)


def _write_report(error: Exception, arguments: list[str]) -> str:
    """Writes the command line, versions and traceback to a temporary file that the user alone may read, and returns its path;
    empty when it cannot."""
    import platform
    import shlex
    import tempfile
    from importlib.metadata import PackageNotFoundError, version

    versions = []
    for package in ("dnnc", "onnx", "onnx-ir", "onnxruntime", "numpy", "numba", "highspy"):
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            versions.append(f"{package} missing")
    text = "\n".join(
        [
            shlex.join(["dnnc", *arguments]),
            f"python {platform.python_version()}, {', '.join(versions)}, {platform.platform()}",
            "",
            *traceback.format_exception(error),
        ]
    )
    try:
        descriptor, path = tempfile.mkstemp(".txt", "dnnc-crash-", temporary_directory())
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        return path
    except OSError:
        return ""


def _say(text: str) -> None:
    """Writes a line to standard error, with escapes for what its encoding lacks; nothing if the stream is closed."""
    with suppress(OSError, ValueError):
        encoding = sys.stderr.encoding or "utf-8"
        text = visible(text, lines=True)
        sys.stderr.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        sys.stderr.flush()


def _forget_stdout() -> None:
    """Redirects standard output, whose reader has gone, so that flushing its buffer at exit does not raise."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
