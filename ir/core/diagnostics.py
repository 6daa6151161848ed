"""What goes wrong, as data: diagnostics and the errors that carry them.

Three families. A *user fault* (``DnncError``) is an invalid input: collected, located, plain, with a documented exit code. A
*broken invariant* (``InvariantError``) is a pass that made invalid IR: it names the pass. Everything else is a bug and
leads to a reproducer. A person never sees a traceback.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

_RAW = re.compile(
    r"[\x00-\x09\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
"""What changes a terminal, hides text or changes its order: control, format and bidirectional characters, half characters."""


def visible(text: str, *, lines: bool = False) -> str:
    """``text`` with every character that a terminal would obey written as its escape (``\\x1b``, ``\\u202e``).

    Names from models, topologies, plans and paths pass through it before they are shown. A newline is escaped too unless
    ``lines`` holds: a name must not start a line of its own, a message may."""
    shown = _RAW.sub(lambda match: match[0].encode("unicode_escape").decode(), text) if not text.isprintable() else text
    return shown if lines else shown.replace("\n", "\\n")


def visible_json(text: str) -> str:
    """JSON text with every such character in it escaped as JSON does: ``\\u202e``. What it means stays the same."""
    if text.isascii() and "\x7f" not in text:  # JSON escapes the other control characters itself
        return text
    return _RAW.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


_NEWLINE_OF_A_NAME = re.compile(r"\n(?!  )")
"""A newline of a name in a message or a hint: those of dnnc are followed by an indented line."""

_LONGEST = 4000
"""Characters of one message that are shown; a name may have millions."""


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 60]}... ({len(text) - _LONGEST + 60} more characters)"


def _lines(text: str) -> str:
    """A message or a hint as it is shown."""
    return _cut(_NEWLINE_OF_A_NAME.sub(r"\\n", visible(text, lines=True)))


class ExitCode(enum.IntEnum):
    """Exit codes of the command. ``INTERNAL`` is always a bug of dnnc; what the machine refuses (a full disk, no memory, no
    more descriptors) is ``INVALID_INPUT`` too; a command that SIGHUP or SIGTERM ends has 128 + the signal's number."""

    OK = 0
    INTERNAL = 1
    USAGE = 2
    INVALID_INPUT = 3
    INFEASIBLE = 4
    CHECK_FAILED = 5
    INTERRUPTED = 130


class Severity(enum.Enum):
    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Span:
    """A place in a text: 1-based line and column, ``length`` characters; ``source_line`` is that line, for the caret."""

    line: int
    column: int
    length: int = 1
    source_line: str = ""


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One message. ``where``: a file, graph path or device, as text; ``span``: the place in it; ``hint``: what to do next."""

    message: str
    where: str = ""
    span: Span | None = None
    hint: str = ""
    severity: Severity = Severity.ERROR

    def __str__(self) -> str:
        """``WHERE:LINE:COL: error: MESSAGE``, then the line with a caret, then the hint."""
        place = _cut(visible(self.where))
        if self.span:
            place = f"{place or '<text>'}:{self.span.line}:{self.span.column}"
        message = _lines(self.message)
        lines = [f"{place}: {self.severity.value}: {message}" if place else f"{self.severity.value}: {message}"]
        if self.span and self.span.source_line:
            source = self.span.source_line.replace("\t", " ")
            start = max(0, self.span.column - 81)
            column = self.span.column - 1
            ahead, marked = visible(source[start:column]), visible(source[column : min(column + self.span.length, start + 160)])
            behind = visible(source[column + self.span.length : start + 160])
            lines += [f"  {ahead}{marked}{behind}", "  " + " " * len(ahead) + "^" * max(1, len(marked))]
        if self.hint:
            lines.append(f"  hint: {_lines(self.hint)}")
        return "\n".join(lines)


class DnncError(Exception):
    """A fault of the input. Carries every diagnostic found; ``exit_code`` is what the command returns."""

    exit_code: ExitCode = ExitCode.INVALID_INPUT

    def __init__(self, diagnostics: Diagnostic | str | Iterable[Diagnostic], *, where: str = "", hint: str = "") -> None:
        if isinstance(diagnostics, str):
            diagnostics = Diagnostic(diagnostics, where=where, hint=hint)
        if isinstance(diagnostics, Diagnostic):
            diagnostics = (diagnostics,)
        self.diagnostics: tuple[Diagnostic, ...] = tuple(diagnostics)
        super().__init__("\n".join(map(str, self.diagnostics)))


class InvalidInput(DnncError):
    """A model, topology, IR text or plan that is not valid: exit 3."""


class UsageError(DnncError):
    """An option or argument that makes no sense: exit 2."""

    exit_code = ExitCode.USAGE


class Infeasible(DnncError):
    """No plan satisfies the limits; the message says which device, by how many bytes: exit 4. ``proven``: False when the search
    ended without finding one, and there may be one; its value is not below ``bound`` then."""

    exit_code = ExitCode.INFEASIBLE
    proven: bool = True
    bound: float = 0.0


class CheckFailed(DnncError):
    """The stages do not compute what the model computes: exit 5."""

    exit_code = ExitCode.CHECK_FAILED


class InvariantError(Exception):
    """The IR breaks an invariant of the verifier. ``culprit`` names the pass that made it, when one did."""

    def __init__(self, diagnostics: Iterable[Diagnostic], culprit: str = "") -> None:
        self.diagnostics = tuple(diagnostics)
        self.culprit = culprit
        prefix = f"after pass '{culprit}': " if culprit else ""
        super().__init__(prefix + "\n".join(map(str, self.diagnostics)))


@dataclass(slots=True)
class DiagnosticSink:
    """Collects diagnostics during a run; errors are raised together by ``raise_errors``."""

    diagnostics: list[Diagnostic] = field(default_factory=list)

    def emit(self, diagnostic: Diagnostic) -> None:
        if diagnostic not in self.diagnostics:
            self.diagnostics.append(diagnostic)

    def error(self, message: str, *, where: str = "", hint: str = "") -> None:
        self.emit(Diagnostic(message, where=where, hint=hint))

    def warn(self, message: str, *, where: str = "", hint: str = "") -> None:
        self.emit(Diagnostic(message, where=where, hint=hint, severity=Severity.WARNING))

    def raise_errors(self) -> None:
        """Raises InvalidInput with every error collected, if there is one."""
        errors = [d for d in self.diagnostics if d.severity is Severity.ERROR]
        if errors:
            raise InvalidInput(errors)
